"""The words of `scalescope tune`: what they ask for, and how bad ones are told."""

from pathlib import Path

import pytest

from command_line import CommandLine
from scalescope.records.job import Host
from scalescope.records.profile import WorkloadSpec
from scalescope.records.tuning import TuneRequest

HOROVOD = ("--engine", "horovod")
SCRIPT = ("--", "python", "train.py")


@pytest.fixture
def asked(scalescope: CommandLine, monkeypatch: pytest.MonkeyPatch):
    """The request that words lead to; nothing is started."""
    requests: list[TuneRequest] = []
    monkeypatch.setattr("scalescope.tuner.run.dry_run", lambda request: requests.append(request) or [])

    def ask(*words: str) -> TuneRequest:
        scalescope.in_this_process("tune", "--dry-run", *words)
        return requests[-1]

    return ask


@pytest.fixture
def told(scalescope: CommandLine, monkeypatch: pytest.MonkeyPatch):
    """The one line that bad words lead to."""

    def refuse(*_: object) -> None:
        raise AssertionError("something was started")

    for name in ("tune", "resume", "dry_run"):
        monkeypatch.setattr(f"scalescope.tuner.run.{name}", refuse)

    def complain(*words: str) -> str:
        done = scalescope.in_this_process("tune", *words, code=2)
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        return done.stderr

    return complain


def test_tune_needs_only_a_model_or_a_command(asked) -> None:
    assert asked(*SCRIPT) == TuneRequest(command=("python", "train.py"))
    assert asked("cnn") == TuneRequest(workload=WorkloadSpec(model="cnn"))


def test_every_option_reaches_the_request(asked, tmp_path: Path) -> None:
    request = asked(
        *("transformer", "--np", "4", "--batch", "8", "--engine", "ddp", "--launcher", "mpirun", "--hosts", "a:2,b:2"),
        *("--method", "offline", "--warmup-samples", "0", "--steps-per-sample", "12", "--max-samples", "7"),
        *("--gp-noise", "0.1", "--log-file", "x.csv", "--threads-per-rank", "2", "--env", "A=b", "--ssh", "rsh"),
        *("--launcher-arg", "--bind-to 'a core'", "--steps", "500", "--device", "cpu", "--timeout", "90s"),
        *("--oversubscribe", "--model-arg", "layers=2", "--learning-rate", "0.5", "-o", "out"),
    )
    assert request == TuneRequest(
        workload=WorkloadSpec(model="transformer", model_args={"layers": 2}, learning_rate=0.5),
        np=4,
        batch=8,
        engine="ddp",
        launcher="mpirun",
        hosts=(Host("a", 2), Host("b", 2)),
        method="offline",
        warmup_samples=0,
        steps_per_sample=12,
        max_samples=7,
        gp_noise=0.1,
        log_file="x.csv",
        threads_per_rank=2,
        env={"A": "b"},
        ssh="rsh",
        launcher_args=("--bind-to", "a core"),
        steps=500,
        device="cpu",
        timeout_s=90,
        oversubscribe=True,
        folder="out",
    )


def test_the_names_of_horovodrun_mean_the_same(asked) -> None:
    old = asked(
        *("cnn", "--autotune-warmup-samples", "2", "--autotune-steps-per-sample", "3", "--autotune-log-file", "a.csv"),
        *("--autotune-bayes-opt-max-samples", "4"),
    )
    new = asked(
        *("cnn", "--warmup-samples", "2", "--steps-per-sample", "3", "--log-file", "a.csv"),
        *("--max-samples", "4"),
    )
    assert old == new
    assert (new.warmup_samples, new.steps_per_sample, new.max_samples) == (2, 3, 4)


def test_all_slots_of_the_hosts_are_used(asked) -> None:
    assert asked("cnn", "--hosts", "a:2,b:3").np == 5
    assert asked("cnn", "--hosts", "a:2,b:3", "--np", "4").np == 4


def test_a_knob_that_scripts_may_notice_is_searched_when_it_is_named(asked) -> None:
    assert asked("cnn").search == ()
    assert asked("cnn", "--search", "gradient-as-bucket-view").search == ("gradient_as_bucket_view",)


def test_offline_is_short_for_its_method(asked) -> None:
    assert asked("cnn", "--offline").method == asked("cnn", "--method", "offline", "--offline").method == "offline"
    assert asked("cnn").method is None


def test_knobs_that_are_named_stay_fixed(asked) -> None:
    ddp = asked(
        *("cnn", "--bucket-cap-mb", "4.0", "--no-gradient-as-bucket-view", "--static-graph"),
        *("--first-bucket-mb", "0.5", "--hierarchical-allreduce", "--knob", "threads-per-rank=2"),
    )
    assert set(ddp.knobs) == {
        "bucket_cap_mb=4",
        "gradient_as_bucket_view=false",
        "static_graph=true",
        "first_bucket_mb=0.5",
        "hierarchical_allreduce=true",
        "threads_per_rank=2",
    }
    horovod = asked(
        *("cnn", *HOROVOD, "--cache-capacity", "1024", "--no-hierarchical-allgather", "--knob", "cycle-time-ms = 2"),
        *("--fusion-threshold-mb", "64", "--knob", "cache_capacity=1024"),
    )
    assert set(horovod.knobs) == {
        "cache_capacity=1024",
        "hierarchical_allgather=false",
        "cycle_time_ms=2",
        "fusion_threshold_mb=64",
    }


def test_the_script_says_whose_knobs_are_meant(asked, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import horovod.torch as hvd\n")
    request = asked("--cycle-time-ms", "5", *SCRIPT)
    assert request.knobs == ("cycle_time_ms=5",)
    assert request.engine == ""


def test_a_config_file_fixes_knobs_and_the_command_line_outranks_it(asked, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "params:\n  cycle_time_ms: 5\n  cache_capacity: 0\n"
        "autotune:\n  steps_per_sample: 30\n  bayes_opt_max_samples: 9\n  log_file: old.csv\n"
    )
    request = asked("cnn", "--config-file", "config.yaml", "--cycle-time-ms", "2", "--max-samples", "5")
    assert request.engine == "horovod"
    assert set(request.knobs) == {"cycle_time_ms=2", "cache_capacity=0"}
    assert (request.steps_per_sample, request.max_samples, request.log_file) == (30, 5, "old.csv")


def test_a_found_setting_is_started_from(asked, tmp_path: Path) -> None:
    (tmp_path / "tuned.yaml").write_text("ddp:\n  bucket_cap_mb: 2\n")
    for place in ("tuned.yaml", "."):
        request = asked("cnn", "--start-from", place, "--no-static-graph")
        assert request.start_from == {"bucket_cap_mb": 2}
        assert request.knobs == ("static_graph=false",)
        assert request.engine == "ddp"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "MODEL such as cnn, or -- and your command"),
        (("cnn", *SCRIPT), "name one thing"),
        (("--model-arg", "a=1", *SCRIPT), "goes with a MODEL"),
        (("cnn", "--np", "1,2"), "one number"),
        (("cnn", "--np", "1"), "2 or more"),
        (("cnn", "--hosts", "a:1"), "2 or more"),
        (("cnn", "--np", "x"), "--np takes"),
        (("cnn", "--hosts", "a"), "--hosts takes"),
        (("cnn", "--batch", "0"), "--batch"),
        (("cnn", "--steps-per-sample", "0"), "--steps-per-sample"),
        (("cnn", "--autotune-steps-per-sample", "0"), "--steps-per-sample"),
        (("cnn", "--max-samples", "0"), "--max-samples"),
        (("cnn", "--warmup-samples", "-1"), "--warmup-samples"),
        (("cnn", "--gp-noise", "1.5"), "0 to 1"),
        (("cnn", "--gp-noise", "nan"), "0 to 1"),
        (("cnn", "--steps", "5", "--steps-per-sample", "10"), "raise it"),
        (("cnn", "--method", "magic"), "--method"),
        (("cnn", "--method", "online", "--offline"), "contradict"),
        (("cnn", "--engine", "dpp"), "did you mean ddp"),
        (("cnn", "--engine", "plain"), "ddp, horovod or fsdp2"),
        (("cnn", "--device", "tpu"), "cpu, cuda or auto"),
        (("cnn", "--timeout", "soon"), "--timeout"),
        (("cnn", "--env", "a"), "--env"),
        (("cnn", "--launcher-arg", "'a"), "close its quotes"),
        (("cnn", "--knob", "bucket_cap=4"), "bucket_cap_mb"),
        (("cnn", "--knob", "nonsense"), "NAME=VALUE"),
        (("cnn", "--knob", "bucket_cap_mb=0"), "0.001 to 4096"),
        (("cnn", "--bucket-cap-mb", "many"), "a number from"),
        (("cnn", "--bucket-cap-mb", "nan"), "a number from"),
        (("cnn", "--bucket-cap-mb", "4", "--knob", "bucket_cap_mb=5"), "keep one"),
        (("cnn", "--knob", "static_graph=on", "--knob", "static-graph=off"), "keep one"),
        (("cnn", "--knob", "threads_per_rank=2", "--threads-per-rank", "3"), "keep one"),
        (("cnn", "--search", "bucket_cap_mb"), "use gradient_as_bucket_view"),
        (("cnn", "--search", "gradient_as_bucket_view", "--gradient-as-bucket-view"), "keep one"),
        (("cnn", *HOROVOD, "--search", "gradient_as_bucket_view"), "leave it out"),
        (("cnn", "--cache-capacity", "5"), "add --engine horovod"),
        (("cnn", *HOROVOD, "--static-graph"), "a knob of ddp"),
        (("cnn", "--config-file", "none.yaml"), "cannot read none.yaml"),
        (("cnn", "--config-file", "bad.yaml"), "cycle_time_ms"),
        (("cnn", "--engine", "ddp", "--config-file", "horovod.yaml"), "is for horovod and this is ddp"),
        (("cnn", "--start-from", "none"), "cannot read none"),
        (("cnn", "--start-from", "last"), "cannot read last"),
        (("cnn", "--start-from", "empty"), "no tuned.yaml"),
        (("cnn", "--start-from", "horovod.yaml", "--offline"), "leave --offline out"),
        (("cnn", "--start-from", "horovod.yaml", "--autotune-log-file", "a"), "leave --log-file out"),
        (("cnn", "--start-from", "horovod.yaml", "--cycle-time-ms", "3"), "leave one out"),
        (("--start-from", "horovod.yaml", "--config-file", "ddp.yaml", *SCRIPT), "--start-from is for horovod"),
        (("--config-file", "ddp.yaml", "--", "python", "with_horovod.py"), "this is horovod"),
        (("cnn", "--log-file", "ddp.yaml"), "not a log of scalescope tune"),
        (("cnn", "--log-file", "empty"), "not a regular file"),
        (("cnn", "-o", "ddp.yaml"), "is a file"),
        (("cnn", "--resume", "empty"), "leave the MODEL out"),
        (("--resume", "empty", *SCRIPT), "leave the command out"),
        (("--resume", "empty", "--max-samples", "5"), "leave --max-samples out"),
        (("--resume", "empty", "-o", "a"), "leave -o out"),
        (("cnn", "--unknown"), "--unknown"),
        (("cnn", "--resume"), "--resume takes the folder"),
        (("cnn", "--watch", "50"), "--watch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options_of_tune_are_refused_before_anything_starts(words, part, told, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.yaml").write_text("params:\n  cycle_time: 5\n")
    (tmp_path / "horovod.yaml").write_text("params:\n  cycle_time_ms: 5\n")
    (tmp_path / "ddp.yaml").write_text("ddp:\n  bucket_cap_mb: 5\n")
    (tmp_path / "with_horovod.py").write_text("import horovod\n")
    assert part in told(*words)
