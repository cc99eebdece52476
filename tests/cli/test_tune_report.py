"""How `scalescope tune` ends: files, what to type next, and what an interruption leaves."""

import sys
from pathlib import Path

import pytest

from scalescope.records.files import PLAN
from scalescope.records.job import Host
from scalescope.records.profile import WorkloadSpec
from scalescope.records.store import append, in_folder, save
from scalescope.records.tuning import Gain, Sample, TuneRequest, Tuning, TuningCost
from scalescope.tuner.journal import SAMPLES, TunePlan
from scalescope.verbs.tune import after_tune as next_command


def tuned(**changes: object) -> Tuning:
    """What a search in a script with two ranks found."""
    given: dict = {
        "what": "train.py",
        "engine": "ddp",
        "np": 2,
        "method": "online",
        "created": "2026-01-01",
        "scalescope": "0",
        "knobs": (),
        "held": {"static_graph": True},
        "samples": (Sample(index=0, phase="default", values={}, step_s=0.02, error_s=0.001, steps=10),),
        "default_step_s": 0.02,
        "winner_step_s": 0.015,
        "decision": "use",
        "values": {"bucket_cap_mb": 1.0, "threads_per_rank": 1},
        "finalist": {"bucket_cap_mb": 1.0, "threads_per_rank": 1},
        "gain": Gain(value=0.33, low=0.3, high=0.36, pairs=5),
        "cost": TuningCost(search_steps=100, confirm_steps=50, seconds=3.0, lost_s=0.1),
    }
    return Tuning(**{**given, **changes})


SCRIPT_ASKED = TuneRequest(command=("python", "my train.py"), hosts=(Host("a", 1), Host("b", 1)), env={"A": "b c"})
AROUND = "--hosts a:1,b:1"


@pytest.mark.parametrize(
    ("tuning", "request_", "command"),
    [
        (
            tuned(),
            SCRIPT_ASKED,
            f"scalescope measure --np 2 --engine ddp --knob static_graph=true --knob bucket_cap_mb=1 "
            f"{AROUND} --threads-per-rank 1 --env 'A=***' -- python 'my train.py'",
        ),
        (
            tuned(decision="keep_default", values={}),
            SCRIPT_ASKED,
            f"scalescope explain --np 2 --engine ddp --knob static_graph=true {AROUND} --env 'A=***' "
            "-- python 'my train.py'",
        ),
        (
            tuned(decision="keep_default", values={}, engine="horovod", held={}),
            TuneRequest(workload=WorkloadSpec(model="cnn", inputs=("3x32x32",)), batch=8, oversubscribe=True),
            "scalescope explain cnn --np 2 --engine horovod --batch 8 --oversubscribe --input 3x32x32",
        ),
        (
            tuned(complete=False, decision="undecided", values={}),
            SCRIPT_ASKED,
            f"scalescope tune --np 2 --engine ddp --knob static_graph=true --method offline {AROUND} --env 'A=***' "
            "-- python 'my train.py'",
        ),
        (
            tuned(complete=False, decision="undecided", method="offline"),
            SCRIPT_ASKED,
            "scalescope tune --resume 'a folder'",
        ),
    ],
)
def test_the_next_command_confirms_finishes_or_explains(tuning, request_, command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert next_command(tuning, request_, tmp_path / "a folder") == command


def test_the_end_names_the_settings_the_log_and_how_to_use_them(scalescope, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)

    def work(request: TuneRequest, _progress: object) -> Tuning:
        save(TunePlan(request=request, cwd=str(tmp_path)), tmp_path / "out" / PLAN)
        return in_folder(tuned(), tmp_path / "out")

    monkeypatch.setattr("scalescope.tuner.run.tune", work)
    done = scalescope.in_this_process("tune", "--json", "--", "python", "train.py")
    assert done.stdout.startswith("{")
    for part in (
        "Settings: out/tuned.yaml, out/tuned.env, out/tuned.txt",
        "DistributedDataParallel(model, bucket_cap_mb=1, static_graph=True)",
        "OMP_NUM_THREADS=1",
        "Log: out/tune.csv",
        "Records: out",
        "Next: scalescope measure --np 2",
    ):
        assert part in done.stderr
    quiet = scalescope.in_this_process("tune", "--quiet", "--", "python", "train.py")
    assert len(quiet.stdout.splitlines()) == 1
    assert (tmp_path / "out" / "tuned.yaml").is_file()


@pytest.mark.parametrize(
    ("words", "place", "part"),
    [
        (("cnn", "-o", "out"), "", "kept in out; type the same command"),
        (("cnn", "-o", "out"), SAMPLES, "resume with: scalescope tune --resume out"),
        (("cnn", "-o", "out", "--offline"), "launches", "resume with: scalescope tune --resume out"),
        (("cnn", "--start-from", "ddp.yaml"), "", "train again"),
        (("--resume", "out"), "launches", "resume with: scalescope tune --resume out"),
    ],
)
def test_an_interruption_says_what_is_kept_and_how_to_resume(
    words, place, part, scalescope, monkeypatch, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    if place == SAMPLES:
        append(
            Sample(index=1, phase="confirm", values={}, step_s=0.02, error_s=0.001, steps=10), tmp_path / "out" / place
        )
    else:
        (tmp_path / "out" / place).mkdir(exist_ok=True)
    (tmp_path / "ddp.yaml").write_text("ddp:\n  bucket_cap_mb: 5\n")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scalescope.tuner.run.tune", stop)
    monkeypatch.setattr("scalescope.tuner.run.resume", stop)
    done = scalescope.in_this_process("tune", *words, code=130)
    assert "nothing is left running" in done.stderr
    assert part in done.stderr
