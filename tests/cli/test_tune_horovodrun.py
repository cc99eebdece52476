"""Lines of horovodrun as people have them, typed after tune: the autotune page's five, and what belongs to them."""

import shlex
import sys
from pathlib import Path

import pytest

import needs
from command_line import CommandLine
from scalescope.cli.horovodrun import as_typed_here
from scalescope.engines.horovod import Horovod
from scalescope.records.job import Host
from scalescope.records.tuning import TuneRequest

TRAIN = ("python", "train.py")
HERE = (sys.executable, "train.py")  # A bare machine has no program called python
# The five command lines of Horovod's page on autotune, and what each asks for.
LINES: dict[str, dict[str, object]] = {
    "horovodrun -np 4 --autotune python train.py": {},
    "horovodrun -np 4 --autotune --autotune-log-file autotune_log.csv python train.py": {
        "log_file": "autotune_log.csv"
    },
    "horovodrun -np 4 --autotune --cache-capacity 1024 --no-hierarchical-allgather python train.py": {
        "knobs": ("cache_capacity=1024", "hierarchical_allgather=false")
    },
    "horovodrun -np 4 --autotune --autotune-warmup-samples 5 --autotune-steps-per-sample 20 "
    "--autotune-bayes-opt-max-samples 40 python train.py": {
        "warmup_samples": 5,
        "steps_per_sample": 20,
        "max_samples": 40,
    },
    "horovodrun -np 4 --autotune --autotune-gaussian-process-noise 0.75 python train.py": {"autotune_noise": 0.75},
}


@pytest.fixture
def asked(scalescope: CommandLine, monkeypatch: pytest.MonkeyPatch):
    """The request that a line leads to on a machine with two slots; nothing is started."""
    requests: list[TuneRequest] = []
    monkeypatch.setattr("scalescope.host.slots", lambda device: 2)
    monkeypatch.setattr("scalescope.tuner.run.dry_run", lambda request: requests.append(request) or [])
    (scalescope.folder / "train.py").write_text("import horovod.torch as hvd\n")

    def ask(line: str) -> TuneRequest:
        scalescope.in_this_process("tune", "--dry-run", *shlex.split(line))
        return requests[-1]

    return ask


@pytest.mark.parametrize("line", LINES)
def test_the_lines_of_horovods_autotune_page_are_taken_after_tune(asked, line: str) -> None:
    assert asked(line) == TuneRequest(command=TRAIN, np=4, engine="horovod", oversubscribe=True, **LINES[line])


@pytest.mark.parametrize("line", LINES)
def test_horovodruns_options_mean_the_same_without_the_word_horovodrun(asked, line: str) -> None:
    request = asked(line.removeprefix("horovodrun "))
    assert request == TuneRequest(command=TRAIN, np=4, oversubscribe=True, **LINES[line])


@pytest.mark.parametrize(
    "line",
    [
        "horovodrun -np 2 python train.py",
        "horovodrun -np 4 -H a:2,b:2 python train.py",
        "horovodrun -np 4 --hosts=a:2,b:2 python train.py",
        "-np 4 python train.py",
        "-np 4 python train.py --autotune",
    ],
)
def test_slots_are_kept_to_where_they_suffice_where_hosts_are_named_and_where_horovodrun_is_not(asked, line) -> None:
    assert not asked(line).oversubscribe


def test_other_options_of_horovodrun(asked) -> None:
    request = asked(
        "horovodrun --num-proc 4 -H a:2,b:2 --gloo --fusion-threshold-mb 32 --cycle-time-ms 3.5 --torus-allreduce "
        "--no-hierarchical-allreduce python -m train --epochs 3 --np 7"
    )
    assert request.command == ("python", "-m", "train", "--epochs", "3", "--np", "7")
    assert (request.np, request.hosts) == (4, (Host("a", 2), Host("b", 2)))
    assert set(request.knobs) == {
        *("controller=gloo", "fusion_threshold_mb=32", "cycle_time_ms=3.5", "torus_allreduce=true"),
        "hierarchical_allreduce=false",
    }


@pytest.mark.parametrize(
    ("line", "options", "command"),
    [
        ("cnn --np 2", "cnn --np 2", ""),
        ("--np 2 file.py:model", "--np 2 file.py:model", ""),
        ("--np 2 python3 train.py --np 4", "--np 2", "python3 train.py --np 4"),
        ("--np=2 sh -c train", "--np=2", "sh -c train"),
        ("--knob a=b --details python x.py", "--knob a=b --details", "python x.py"),
        ("--offline python x.py", "--offline", "python x.py"),
        ("resnet81", "resnet81", ""),
        ("-o out horovodrun -np 2 python x.py", "-o out --engine horovod --np 2", "python x.py"),
        ("--autotune-log-file=a.csv --num-proc=2", "--log-file=a.csv --np=2", ""),
        ("--mpi --cycle-time-ms=3 sh x", "--knob controller=mpi --knob cycle_time_ms=3", "sh x"),
        ("--bucket-cap-mb 4 --no-static-graph cnn", "--knob bucket_cap_mb=4 --knob static_graph=false cnn", ""),
        ("--threads-per-rank 2 cnn", "--threads-per-rank 2 cnn", ""),
    ],
)
def test_the_first_word_that_is_no_option_no_value_and_no_model_starts_the_command(line, options, command) -> None:
    assert as_typed_here(line.split(), ()) == (options.split(), tuple(command.split()))


def test_after_dashes_the_command_is_what_follows_them() -> None:
    words = ["horovodrun", "-np", "2", "--autotune"]
    assert as_typed_here(words, TRAIN) == (["--engine", "horovod", "--np", "2"], TRAIN)


def test_names_of_horovodrun_are_not_in_the_help(scalescope: CommandLine) -> None:
    shown = scalescope.in_this_process("tune", "--help").stdout
    for name in ("--autotune-", "--num-proc", " -np ", "--fusion-threshold-mb", "--bucket-cap-mb", "--gloo"):
        assert name not in shown.replace("horovodrun -np 4", "")


def test_a_config_file_of_horovodrun_with_all_its_knobs_is_taken(asked, scalescope: CommandLine) -> None:
    (scalescope.folder / "config.yaml").write_text(
        "params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 3.5\n  cache_capacity: 2048\n"
        "  hierarchical_allreduce: true\n  hierarchical_allgather: false\n  torus_allreduce: false\n"
        "autotune:\n  enabled: true\n  log_file: horovod_autotune_log.csv\n  warmup_samples: 5\n"
        "  steps_per_sample: 20\n  bayes_opt_max_samples: 50\n  gaussian_process_noise: 0.9\n"
    )
    request = asked("horovodrun -np 2 --config-file config.yaml python train.py")
    assert "torus_allreduce=false" in request.knobs
    assert "hierarchical_allreduce=true" in request.knobs
    assert (request.autotune_noise, request.max_samples, request.steps_per_sample) == (0.9, 50, 20)


def refused(scalescope: CommandLine, line: str) -> str:
    done = scalescope.in_this_process("tune", *shlex.split(line), code=2)
    assert len(done.stderr.splitlines()) == 1
    assert not (scalescope.folder / "results").exists()
    return str(done.stderr)


@pytest.mark.launches
def test_samples_that_are_too_short_are_refused_before_anything_starts(scalescope: CommandLine) -> None:
    needs.horovod()
    (scalescope.folder / "train.py").write_text("import horovod.torch as hvd\n")
    for words, least in (("--offline", 5), ("", 4)):
        said = refused(scalescope, f"-np 2 {words} --autotune-steps-per-sample 3 {shlex.join(HERE)}")
        assert f"--steps-per-sample 3 is too short to tell anything: give at least {least}" in said
    assert "takes a number above 0" in refused(
        scalescope, f"-np 2 --autotune-gaussian-process-noise 0 {shlex.join(HERE)}"
    )


@pytest.mark.launches
def test_a_dry_run_of_native_shows_how_horovod_is_told_to_tune(scalescope: CommandLine, monkeypatch) -> None:
    needs.horovod()
    monkeypatch.setattr(Horovod, "built_with", lambda *_: False)
    (scalescope.folder / "train.py").write_text("import horovod.torch as hvd\n")
    words = ("-np", "2", "--method", "native", "--autotune-bayes-opt-max-samples", "7", "--cycle-time-ms", "3")
    shown = scalescope.in_this_process("tune", "--dry-run", *words, *HERE).stdout
    for text in ("AUTOTUNE=1", "AUTOTUNE_BAYES_OPT_MAX_SAMPLES=7", "TORUS_ALLREDUCE=0", "CYCLE_TIME=3"):
        assert f"HOROVOD_{text}" in shown
    monkeypatch.setattr(Horovod, "built_with", lambda *_: True)
    shown = scalescope.in_this_process("tune", "--dry-run", *words, *HERE).stdout
    assert "HOROVOD_AUTOTUNE=1" in shown
    assert "HOROVOD_TORUS_ALLREDUCE" not in shown
    assert "HOROVOD_HIERARCHICAL_ALLREDUCE" not in shown


@pytest.mark.launches
def test_a_native_search_may_replace_a_log_of_horovod_and_no_other(scalescope: CommandLine) -> None:
    needs.horovod()
    (scalescope.folder / "train.py").write_text("import horovod.torch as hvd\n")
    log = Path(scalescope.folder, "log.csv")
    line = f"-np 2 --dry-run --method native --autotune-log-file log.csv {shlex.join(HERE)}"
    log.write_text("sample,phase,pair\n")
    assert "is not a log of Horovod's autotune" in refused(scalescope, line)
    log.write_text(
        "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,"
        "tensor_fusion_threshold,score\n"
    )
    scalescope.in_this_process("tune", *shlex.split(line))
