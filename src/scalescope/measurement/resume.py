"""The folder of a measurement: begun once, locked by one process at a time, and resumed after any interruption."""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scalescope.agent.recorder import batch_job
from scalescope.engines import USUAL
from scalescope.errors import UsageError
from scalescope.jobs.folders import check_record, held, result_folder
from scalescope.jobs.masking import load_plan, save_plan
from scalescope.jobs.plan import batches, points, resolve_here
from scalescope.launchers.runner import end_orphans
from scalescope.measurement.fingerprint import check_resume, fingerprint_here
from scalescope.records.files import MEASUREMENT, PLAN, RUNS
from scalescope.records.job import HOSTS, place
from scalescope.records.request import SCALINGS, MeasureRequest, Plan
from scalescope.records.run import Run
from scalescope.records.store import AnyRecord, complete_lines, drop_torn_line, load, load_lines
from scalescope.text import plural

_MORE = ("np", "batch", "engines", "scaling", "hosts")  # To which a measurement that is resumed may get more


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
        check_record(folder / PLAN, Plan)
        request = msgspec.structs.replace(request, seed=seed, folder=str(folder))
        plan = Plan(request=request, cwd=str(Path.cwd()), since_ns=time.time_ns(), fingerprint=here)
        save_plan(plan, folder)
        yield Started(folder, plan)


def _refuse_a_second(folder: Path) -> None:
    """Refuse a folder that already holds a measurement."""
    from_elsewhere = (folder / MEASUREMENT).exists() and not (folder / PLAN).exists()
    if from_elsewhere or any(complete_lines(folder / RUNS)):
        raise UsageError(f"{folder} already holds a measurement: resume it with --resume, or choose another -o")


@contextlib.contextmanager
def resume(folder: Path, changes: Mapping[str, object]) -> Iterator[Started]:
    """Take up a folder where it was left, in the directory it was begun in; `changes` are new limits and more points.

    A launch that was in flight has left nothing in the list of runs. What is added, and what another batch job
    measures, is not compared with launches that were made before: it begins a new round.
    """
    folder = folder.absolute()
    if not (folder / PLAN).exists():
        raise UsageError(f"{folder} holds no measurement to resume: name the folder that was given with -o")
    plan_of(folder)  # a folder of something else is refused before the lock's file is made in it
    if changes.get("precision") and not changes.get("launches"):
        changes = {**changes, "launches": None}
    with resumed_plan(folder, Plan, "measurement") as plan:
        request = msgspec.structs.replace(plan.request, folder=str(folder), **with_more(plan.request, changes))
        runs = tuple(load_lines(folder / RUNS, Run))
        added = any(getattr(request, name) != getattr(plan.request, name) for name in _MORE if name != "hosts")
        if added:
            check_added(request, plan.request, folder)
        if runs and (added or runs[-1].batch_job != batch_job()):
            plan = msgspec.structs.replace(plan, first_round=max(run.round for run in runs) + 1)
        plan = msgspec.structs.replace(plan, request=request)
        save_plan(plan, folder)
        drop_torn_line(folder / RUNS)
        yield Started(folder, plan, runs)


def with_more(before: MeasureRequest, changes: Mapping[str, object]) -> dict[str, Any]:
    """The changes, with numbers of processes, batch sizes, engines, scalings and hosts added to those of before.

    Raises:
        UsageError: What was measured before would mean something else.
    """
    asked: dict[str, Any] = {name: value for name, value in changes.items() if value or name not in _MORE}
    if counts := asked.get("np"):
        if len(before.np) > 1 and min(counts) < min(before.np):
            every = ",".join(map(str, sorted({*before.np, *counts})))
            raise UsageError(
                f"--np {min(counts)} would be another baseline for what was measured: start a new measurement with "
                f"--np {every}"
            )
        asked["np"] = tuple(sorted({*before.np, *counts}))
    if sizes := asked.get("batch"):
        if batches(before) == (None,):
            raise UsageError("the script alone knew its batch size so far: start a new measurement with --batch")
        asked["batch"] = tuple(dict.fromkeys((*batches(before), *sizes)))
    if engines := asked.get("engines"):
        if before.command and not set(engines) <= set(before.engines):
            raise UsageError("the script decides its engine: leave --engine out, or start a new measurement")
        asked["engines"] = tuple(dict.fromkeys((*(before.engines or (USUAL.name,)), *engines)))
    if kinds := asked.get("scaling"):
        asked["scaling"] = tuple(kind for kind in SCALINGS["both"] if kind in (*before.scaling, *kinds))
    hosts = asked.get("hosts", before.hosts)
    if hosts[: len(before.hosts)] != before.hosts or (hosts and not before.hosts):
        known = HOSTS.write(before.hosts)
        do = f"begin with {known} and name more after them" if known else "leave --hosts out"
        raise UsageError(f"earlier launches ran on {known or 'no named hosts'}: {do}, or start a new measurement")
    return asked


def check_added(request: MeasureRequest, before: MeasureRequest, folder: Path) -> None:
    """UsageError when added points cannot be launched, or not with the threads of those before."""
    settings, most = resolve_here(request, folder), max(request.np)
    points(settings)
    threads = settings.threads_per_rank or 1
    placed = place(most, settings.hosts, oversubscribe=request.oversubscribe) or (("", most),)
    for name, ranks in placed if most > max(before.np) and threads > 1 else ():
        cores = settings.physical_cores.get(name, ranks * threads)
        if ranks * threads > cores:
            every = ",".join(map(str, request.np))
            raise UsageError(
                f"{plural(ranks, 'rank')} with {threads} threads each, as in the launches before, need more than the "
                f"{plural(cores, 'core')} of {name or 'this machine'}: start a new measurement with --np {every}"
            )


@contextlib.contextmanager
def resumed_plan(folder: Path, plan_type: type[AnyRecord], what: str) -> Iterator[Any]:
    """The plan of a locked folder, in the directory it was begun in, after ranks that outlived an interruption ended.

    Args:
        folder: Where `what`, a measurement, a search or a study, was begun.
        plan_type: Of its plan.
        what: In the words of the user.

    Raises:
        UsageError: Another process works in the folder, or it was begun with another setup.
    """
    with held(folder):
        plan: Any = load_plan(folder, plan_type)
        if not Path(plan.cwd).is_dir():
            raise UsageError(f"{plan.cwd}, where the {what} was started, does not exist: create it, or start anew")
        with contextlib.chdir(plan.cwd):
            begun_on, moved = check_resume(plan.fingerprint, plan.request, folder)
            end_orphans(str(folder), plan.request.hosts, plan.request.ssh)
            notes = tuple(dict.fromkeys((*plan.notes, *moved)))
            yield msgspec.structs.replace(plan, fingerprint=begun_on, notes=notes)


def plan_of(folder: Path) -> Plan:
    """The plan of the measurement in a folder, without the values of --env."""
    return load(folder / PLAN, Plan)
