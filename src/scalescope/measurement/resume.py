"""The folder of a measurement: begun once, held by one process at a time, and continued after any interruption."""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from scalescope.errors import UsageError
from scalescope.launchers.runner import end_orphans
from scalescope.measurement.folders import held
from scalescope.records.request import MeasureRequest, Plan
from scalescope.records.run import Run
from scalescope.records.store import complete_lines, drop_torn_line, load, load_lines, save, writing


class Started(NamedTuple):
    """A folder that is ours, its plan, and what was measured before."""

    folder: Path
    plan: Plan
    runs: tuple[Run, ...] = ()


@contextlib.contextmanager
def begin(request: MeasureRequest) -> Iterator[Started]:
    """Make the folder and write the plan into it; one in which nothing was measured may be used again."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path(request.folder or Path("results") / f"measure-{stamp}").absolute()
    seed = random.randrange(2**31) if request.seed is None else request.seed
    request = msgspec.structs.replace(request, seed=seed, folder=str(folder))
    plan = Plan(request=request, cwd=str(Path.cwd()), since_ns=time.time_ns())
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        from_elsewhere = (folder / "measurement.json").exists() and not (folder / "plan.json").exists()
        if from_elsewhere or any(complete_lines(folder / "runs.jsonl")):
            raise UsageError(
                f"{folder} already holds a measurement: go on with it by --resume, or choose another folder with -o"
            )
        save(plan, folder / "plan.json")
        yield Started(folder, plan)


@contextlib.contextmanager
def resume(folder: Path, changes: Mapping[str, object]) -> Iterator[Started]:
    """Take up a folder where it was left, in the directory it was begun in; new limits are written down.

    A launch that was in flight has left nothing in the list of runs.
    """
    folder = folder.absolute()
    if not (folder / "plan.json").exists():
        raise UsageError(f"{folder} holds no measurement to go on with: name the folder that was given with -o")
    with held(folder):
        plan = plan_of(folder)
        if changes.get("precision") and not changes.get("launches"):
            changes = {**changes, "launches": None}
        plan = msgspec.structs.replace(
            plan, request=msgspec.structs.replace(plan.request, folder=str(folder), **changes)
        )
        if not Path(plan.cwd).is_dir():
            raise UsageError(f"{plan.cwd}, where the measurement was begun, is not there: make it, or begin anew")
        save(plan, folder / "plan.json")
        end_orphans(plan.request.folder)
        drop_torn_line(folder / "runs.jsonl")
        with contextlib.chdir(plan.cwd):
            yield Started(folder, plan, tuple(load_lines(folder / "runs.jsonl", Run)))


def plan_of(folder: Path) -> Plan:
    """What the measurement in a folder set out to do."""
    return load(folder / "plan.json", Plan)
