"""The folder of a measurement: begun once, locked by one process at a time, and resumed after any interruption on the
machine and with the software that it was begun with.
"""

import contextlib
import json
import platform
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scalescope import host
from scalescope.agent.recorder import batch_job
from scalescope.engines import USUAL
from scalescope.errors import ScalescopeError, UsageError
from scalescope.jobs.command import interpreter_of
from scalescope.jobs.folders import check_record, held, result_folder
from scalescope.jobs.interpreter import torch_version
from scalescope.jobs.masking import load_plan, save_plan
from scalescope.jobs.own_ranks import places_ranks_elsewhere
from scalescope.jobs.plan import batches, points, resolve_here
from scalescope.launchers import find_launcher
from scalescope.launchers.runner import end_orphans
from scalescope.records.job import HOSTS, Host, place
from scalescope.records.request import SCALINGS, EstimatePlan, Fingerprint, LaunchRequest, MeasureRequest, Plan
from scalescope.records.run import Run
from scalescope.records.store import AnyRecord, complete_lines, drop_torn_line, load, load_lines
from scalescope.text import plural

_MORE = ("np", "batch", "engines", "scaling", "hosts")  # To which a measurement that is resumed may get more
_WORDS = {"cpu": "CPU", "cores": "cores", "gpus": "GPUs", "python": "Python", "torch": "torch"}
# Not compared when the ranks run on other machines than the one that launches them.
_OF_THE_RANKS = ("cpu", "cores", "gpus")
_ASK = (
    "import importlib.metadata as m, json, platform\n"
    "found = [d.version for d in m.distributions(name='torch')]\n"
    "print(json.dumps([platform.python_version(), found[0] if found else '']))"
)


def fingerprint_here(command: Sequence[str], device: str) -> Fingerprint:
    """This machine and the Python that a command, or without one a MODEL, runs in; torch is not imported."""
    python, torch = platform.python_version(), torch_version()
    is_here = bool(command) and shutil.which(command[0]) is not None  # and not in a container
    interpreter = interpreter_of(tuple(command), sys.executable) if is_here else sys.executable
    if interpreter != sys.executable:
        asked = subprocess.run([interpreter, "-c", _ASK], capture_output=True, text=True, check=False)
        python, torch = json.loads(asked.stdout.splitlines()[-1]) if asked.returncode == 0 else ("", "")
    return Fingerprint(
        host=platform.node(),
        cpu=_cpu_model(),
        cores=host.cores().logical,
        gpus=tuple(card.name for card in host.cards())[: host.gpus()] if device != "cpu" else (),
        python=python,
        torch=torch,
    )


def check_resume(then: Fingerprint | None, asked: LaunchRequest, folder: Path) -> tuple[Fingerprint, tuple[str, ...]]:
    """The fingerprint to keep, and notes; UsageError when what is asked would be mixed with runs of another machine."""
    now = fingerprint_here(asked.command, asked.device)
    then = then or now  # an older scalescope kept none
    elsewhere = runs_elsewhere(asked.hosts, asked.launcher, asked.command)
    return then, check_same_machine(then, now, folder, elsewhere=elsewhere)


def runs_elsewhere(hosts: Sequence[Host], launcher: str, command: Sequence[str]) -> bool:
    """True when the ranks run on machines that are named, that Slurm gives, or that a launch line reaches."""
    in_allocation = bool(launcher) and bool(find_launcher(launcher).scheduler)
    return bool(hosts) or in_allocation or places_ranks_elsewhere(tuple(command), launcher)


def check_same_machine(then: Fingerprint, now: Fingerprint, folder: Path, *, elsewhere: bool) -> tuple[str, ...]:
    """Notes, such as of another host name on equal hardware; UsageError when runs of two machines would be mixed."""
    names = [name for name in _WORDS if not (elsewhere and name in _OF_THE_RANKS)]
    changed = [
        f"{_WORDS[name]} {_shown(getattr(now, name))} instead of {_shown(getattr(then, name))}"
        for name in names
        if getattr(now, name) != getattr(then, name)
    ]
    if changed:
        raise UsageError(
            f"{folder} was started with a different setup ({'; '.join(changed)}): "
            f"resume it with the original setup on {then.host}, or start a new run without --resume"
        )
    if now.host == then.host:
        return ()
    equal = "from which it is launched" if elsewhere else "with the same CPU, cores, GPUs, Python and torch"
    return (f"started on host {then.host} and resumed on {now.host}, {equal}",)


def _shown(value: object) -> str:
    return (", ".join(map(str, value)) if isinstance(value, tuple) else str(value)) or "none"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


# An interrupted estimate is continued within this time; later the machine may be busy with other things.
_CONTINUED_S = 3600.0


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
    """Refuse a folder that already holds a measurement."""
    from_elsewhere = (folder / "measurement.json").exists() and not (folder / "plan.json").exists()
    if from_elsewhere or any(complete_lines(folder / "runs.jsonl")):
        raise UsageError(f"{folder} already holds a measurement: resume it with --resume, or choose another -o")


@contextlib.contextmanager
def resume(folder: Path, changes: Mapping[str, object]) -> Iterator[Started]:
    """Take up a folder where it was left, in the directory it was begun in; `changes` are new limits and more points.

    A launch that was in flight has left nothing in the list of runs. What is added, and what another batch job
    measures, is not compared with launches that were made before: it begins a new round.
    """
    folder = folder.absolute()
    if not (folder / "plan.json").exists():
        raise UsageError(f"{folder} holds no measurement to resume: name the folder that was given with -o")
    plan_of(folder)  # a folder of something else is refused before the lock's file is made in it
    if changes.get("precision") and not changes.get("launches"):
        changes = {**changes, "launches": None}
    with resumed_plan(folder, Plan, "measurement") as plan:
        request = msgspec.structs.replace(plan.request, folder=str(folder), **with_more(plan.request, changes))
        runs = tuple(load_lines(folder / "runs.jsonl", Run))
        added = any(getattr(request, name) != getattr(plan.request, name) for name in _MORE if name != "hosts")
        if added:
            check_added(request, plan.request, folder)
        if runs and (added or runs[-1].batch_job != batch_job()):
            plan = msgspec.structs.replace(plan, first_round=max(run.round for run in runs) + 1)
        plan = msgspec.structs.replace(plan, request=request)
        save_plan(plan, folder)
        drop_torn_line(folder / "runs.jsonl")
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
    """True when the folder holds this very estimate, interrupted; UsageError for another one or a finished one."""
    if not (folder / "plan.json").exists():
        return False
    check_record(folder / "plan.json", EstimatePlan)
    before = load(folder / "plan.json", EstimatePlan)
    here = msgspec.structs.replace(plan.fingerprint, host=before.fingerprint.host)  # another node of a cluster is alike
    if before != msgspec.structs.replace(plan, fingerprint=here):
        raise UsageError(f"{folder} already holds an estimate: choose another folder with -o, or remove this one")
    return True
