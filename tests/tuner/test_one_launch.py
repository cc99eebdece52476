"""Trainings that are launched as they are: through Horovod's own autotune, or with a setting found earlier.

The training is a shell script: it reads Horovod's variables, writes the log of autotune and prints its step times.
"""

import sys
from pathlib import Path

import msgspec
import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.plan import Settings
from scalescope.progress import Progress
from scalescope.records.files import TUNING
from scalescope.records.job import Knobs
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Point
from scalescope.records.store import load
from scalescope.records.tuning import TuneRequest, Tuning, TuningCost
from scalescope.tuner.native import tune_native_by_relaunch
from scalescope.tuner.offline import tune_offline, use_setting
from scalescope.tuner.run import _search
from told import Told

pytestmark = pytest.mark.launches

POINT = Point(engine="horovod", np=1, batch=None, threads_per_rank=1)
FOUND = {"fusion_threshold_mb": 8.0, "cycle_time_ms": 5.0}
LOG = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
    "cycle_time_ms,tensor_fusion_threshold,score\n"
    "0,0,0, 1,25,16,100\n0,0,0, 1,5,8,200\n0,0,0, 1,5,8,200\n"
)
SCRIPT = """
[ -z "$HOROVOD_AUTOTUNE" ] || {{ {autotune}; }}
echo "$SCALESCOPE_STEPS" >>steps.txt
step=0.1; [ "$HOROVOD_CYCLE_TIME/$HOROVOD_FUSION_THRESHOLD" = 5/8388608 ] && step=0.08
for number in 1 2 3 4 5 6 7 8 9 10; do echo "step $step"; done
exit {code}
"""


def prepared(folder: Path, autotune: str = ":", code: int = 0, **more: object) -> tuple[TuneRequest, Settings]:
    script = folder / "train.sh"
    script.write_text(SCRIPT.format(autotune=autotune, code=code))
    command = ("sh", str(script))
    settings = Settings(
        request=MeasureRequest(command=command, np=(1,), pattern=r"step (?P<step_s>\S+)", timeout_s=60),
        folder=str(folder),
        python=sys.executable,
        engines=("horovod",),
        launchers={"horovod": "own"},
        knobs={"horovod": Knobs(engine="horovod")},
        hosts=(),
        slots=1,
        threads_per_rank=1,
        physical_cores={},
        named_hosts=False,
        env={},
        cwd=str(folder),
    )
    return TuneRequest(command=command, np=1, engine="horovod", **more), settings


def test_autotunes_choice_is_compared_with_the_default(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    request, settings = prepared(tmp_path, 'cp log.csv "$HOROVOD_AUTOTUNE_LOG"', max_samples=4, steps_per_sample=5)
    found = tune_native_by_relaunch(request, settings, POINT, tmp_path, Progress())
    assert (found.decision, found.values, found.method) == ("use", FOUND, "offline")
    assert found.gain is not None
    assert found.gain.value == pytest.approx(0.25)
    assert {knob.name: knob.values for knob in found.knobs} == {name: (None, value) for name, value in FOUND.items()}
    assert found.notes == ("Horovod's autotune finished: 2 samples, read it with explain autotune.csv",)
    assert found.cost.warmup_steps == 10
    told = (tmp_path / "steps.txt").read_text().split()
    assert told[0] == str((3 + 4 + 2) * (5 * 5 + 1)), (
        "samples of warm-up, of the search and two more, each of 5 times 5 steps and one to switch"
    )
    assert len(told) == 1 + len(found.samples) == 8


@pytest.mark.parametrize("autotune", [":", 'true >"$HOROVOD_AUTOTUNE_LOG"'], ids=["none", "empty"])
def test_an_empty_autotune_log_asks_for_a_longer_training(tmp_path: Path, autotune: str) -> None:
    request, settings = prepared(tmp_path, autotune)
    with pytest.raises(UsageError, match="autotune wrote nothing in 10 steps: let it train for at least 1,275"):
        tune_native_by_relaunch(request, settings, POINT, tmp_path, Progress())


def test_a_training_that_fails_under_autotune_is_an_error(tmp_path: Path) -> None:
    request, settings = prepared(tmp_path, code=3)
    with pytest.raises(WorkFailed, match="the launch with Horovod's autotune failed: "):
        tune_native_by_relaunch(request, settings, POINT, tmp_path, Progress())


def test_a_setting_found_earlier_is_used_and_costs_nothing(tmp_path: Path) -> None:
    request, settings = prepared(tmp_path, start_from=FOUND)
    used = use_setting(request, settings, POINT, tmp_path, "offline", 40, Progress())
    assert (used.decision, used.values, used.method) == ("use", FOUND, "offline")
    assert used.winner_step_s == pytest.approx(0.08)
    assert used.cost == TuningCost(warmup_steps=0, search_steps=0, confirm_steps=0, seconds=0.0, lost_s=0.0)
    assert (used.cost.worst, used.cost.break_even_steps, used.samples) == (None, None, ())
    assert (tmp_path / "steps.txt").read_text() == "40\n"
    assert load(tmp_path / TUNING, Tuning) == used


def test_a_setting_with_which_the_training_fails_is_an_error(tmp_path: Path) -> None:
    request, settings = prepared(tmp_path, code=3, start_from=FOUND)
    with pytest.raises(WorkFailed, match="the training failed with the setting found earlier: "):
        use_setting(request, settings, POINT, tmp_path, "offline", None, Progress())


def test_where_a_build_cannot_be_switched_launches_take_the_place_of_switches(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho its library cannot be copied\n")
    python.chmod(0o755)
    request, settings = prepared(tmp_path)
    settings = msgspec.structs.replace(settings, python=str(python))
    told = Told()
    assert _search(request, settings, POINT, "online", told) is tune_offline
    assert _search(request, settings, POINT, "native", told) is tune_native_by_relaunch
    assert told.notes == 2 * [
        "Horovod's knobs cannot change while it trains: its library cannot be copied. Tuning by relaunch instead."
    ]
    asked = msgspec.structs.replace(request, method="online")
    with pytest.raises(UsageError, match="its library cannot be copied: use --offline"):
        _search(asked, settings, POINT, "online", told)
