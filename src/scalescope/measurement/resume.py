"""The folder of a measurement: begun once, held by one process at a time, and continued after any interruption."""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from scalescope.errors import ScalescopeError, UsageError
from scalescope.launchers.runner import end_orphans
from scalescope.measurement.environment import load_plan, save_plan
from scalescope.measurement.fingerprint import check_resume, fingerprint_here
from scalescope.measurement.folders import check_record, held, result_folder
from scalescope.records.request import EstimatePlan, MeasureRequest, Plan
from scalescope.records.run import Run
from scalescope.records.store import complete_lines, drop_torn_line, load, load_lines

_CONTINUED_S = 3600.0
"""An interrupted estimate is continued within this time; later the machine may be busy with other things."""


class Started(NamedTuple):
    """A folder that is ours, its plan, and what was measured before."""

    folder: Path
    plan: Plan
    runs: tuple[Run, ...] = ()


@contextlib.contextmanager
def begin(request: MeasureRequest, verb: str = "measure") -> Iterator[Started]:
    """Make the folder and write the plan into it; one in which nothing was measured may be used again."""
    seed = random.randrange(2**31) if request.seed is None else request.seed
    here = fingerprint_here(request.command, request.device)
    if request.folder:
        _refuse_a_second(Path(request.folder))
    with result_folder(verb, request.folder) as folder:
        _refuse_a_second(folder)
        check_record(folder / "plan.json", Plan)
        request = msgspec.structs.replace(request, seed=seed, folder=str(folder))
        plan = Plan(request=request, cwd=str(Path.cwd()), since_ns=time.time_ns(), fingerprint=here)
        save_plan(plan, folder)
        yield Started(folder, plan)


def _refuse_a_second(folder: Path) -> None:
    """What was measured stays."""
    from_elsewhere = (folder / "measurement.json").exists() and not (folder / "plan.json").exists()
    if from_elsewhere or any(complete_lines(folder / "runs.jsonl")):
        raise UsageError(f"{folder} already holds a measurement: resume it with --resume, or choose another -o")


@contextlib.contextmanager
def resume(folder: Path, changes: Mapping[str, object]) -> Iterator[Started]:
    """Take up a folder where it was left, in the directory it was begun in; new limits are written down.

    A launch that was in flight has left nothing in the list of runs.
    """
    folder = folder.absolute()
    if not (folder / "plan.json").exists():
        raise UsageError(f"{folder} holds no measurement to go on with: name the folder that was given with -o")
    plan_of(folder)  # a folder of something else is refused before the lock's file is made in it
    with held(folder):
        plan = load_plan(folder, Plan)
        if not Path(plan.cwd).is_dir():
            raise UsageError(f"{plan.cwd}, where the measurement was begun, is not there: make it, or begin anew")
        with contextlib.chdir(plan.cwd):
            plan = _taken_up(plan, folder, changes)
            save_plan(plan, folder)
            end_orphans(plan.request.folder, plan.request.hosts, plan.request.ssh)
            drop_torn_line(folder / "runs.jsonl")
            yield Started(folder, plan, tuple(load_lines(folder / "runs.jsonl", Run)))


def _taken_up(plan: Plan, folder: Path, changes: Mapping[str, object]) -> Plan:
    """The plan with new limits; UsageError on another machine, where launches could not be compared."""
    request = plan.request
    begun_on, moved = check_resume(plan.fingerprint, request, folder)
    if changes.get("precision") and not changes.get("launches"):
        changes = {**changes, "launches": None}
    return msgspec.structs.replace(
        plan,
        request=msgspec.structs.replace(request, folder=str(folder), **changes),
        fingerprint=begun_on,
        notes=tuple(dict.fromkeys((*plan.notes, *moved))),
    )


def plan_of(folder: Path) -> Plan:
    """What the measurement in a folder set out to do, without the values of --env."""
    return load(folder / "plan.json", Plan)


def unfinished_estimate(plan: EstimatePlan) -> str:
    """The newest folder in which this very estimate was interrupted a short while ago; empty when there is none."""
    for path in sorted(Path("results").glob("estimate-*/plan.json"), reverse=True):
        with contextlib.suppress(ScalescopeError, OSError):
            recent = time.time() - path.stat().st_mtime < _CONTINUED_S
            if recent and load(path, EstimatePlan) == plan:
                with held(path.parent):  # another process may be at it
                    return str(path.parent)
    return ""


def is_begun(folder: Path, plan: EstimatePlan) -> bool:
    """Whether the folder holds this very estimate, interrupted; UsageError when it holds another or a finished one."""
    if not (folder / "plan.json").exists():
        return False
    check_record(folder / "plan.json", EstimatePlan)
    if load(folder / "plan.json", EstimatePlan) != plan:
        raise UsageError(f"{folder} already holds an estimate: choose another folder with -o, or remove this one")
    return True
