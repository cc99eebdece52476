"""One launch of one point: tried in one process, started, watched, and turned into a Run or a Failure."""

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from scalescope.agent.recorder import batch_job
from scalescope.engines import find_engine
from scalescope.engines.group_live import NOTE_MARK
from scalescope.errors import ScalescopeError, UsageError, WorkFailed
from scalescope.jobs.collect import collect, collect_matches, collect_pairs
from scalescope.jobs.command import check_command_is_here
from scalescope.jobs.folders import emptied, mark_of
from scalescope.jobs.hosts import check_port, free_port
from scalescope.jobs.interleaved import read_pairs
from scalescope.jobs.interpreter import has_module
from scalescope.jobs.load import LoadMeter
from scalescope.jobs.masking import save_commands, shown_commands
from scalescope.jobs.output import last_lines, printed
from scalescope.jobs.own_ranks import STARTS_RANKS, StartsItsOwnRanks
from scalescope.jobs.plan import Settings, launcher_of, make_job, make_task, nodes_of, started_as_it_is
from scalescope.jobs.train_model import LAUNCH_S, LAUNCH_STEPS, USAGE_MARK
from scalescope.jobs.watch import EMPTIED, LaunchWatch
from scalescope.launchers import find_launcher
from scalescope.launchers.runner import LAUNCHER_OUTPUT, check_hosts, check_system, how_it_ended, run
from scalescope.line_pattern import compile_pattern
from scalescope.progress import Progress
from scalescope.records.job import Ending, Job, place
from scalescope.records.run import Failure, Point, Run
from scalescope.records.store import writing
from scalescope.text import plural
from scalescope.units import format_seconds

_HAND_ON = (
    "on other hosts ranks need PYTHONPATH, SCALESCOPE_FOLDER and SCALESCOPE_LAUNCH from your launch line "
    "(srun --export=ALL, mpirun -x NAME)"
)
_MOST_STEPS = 5000
_PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")


def check_requirements(settings: Settings) -> None:
    """Programs and modules that the launches need, before the first of them."""
    check_system()
    command = settings.request.command
    if command and not settings.named_hosts:
        check_command_is_here(command)
    for name in dict.fromkeys(settings.launchers.values()):
        launcher = find_launcher(name)
        if launcher.program and not shutil.which(launcher.program):
            raise UsageError(f"{launcher.program} is not on the PATH: {launcher.remedy}")
        if launcher.module and not settings.container and not has_module(settings.python, launcher.module):
            raise UsageError(f"{settings.python} has no {launcher.module}: {launcher.remedy}")
    for engine in map(find_engine, settings.engines if "own" not in settings.launchers.values() else ()):
        if engine.package and not settings.container and not has_module(settings.python, engine.package):
            raise UsageError(f"{settings.python} has no {engine.title}: see docs/guides/{engine.package}.md")
    if settings.request.port:
        check_port(settings.request.port)


def check_reachable(settings: Settings, point: Point, folder: Path) -> None:
    """Hosts that are entered from here answer; Slurm reaches its nodes by itself."""
    through_slurm = any(find_launcher(name).scheduler for name in settings.launchers.values())
    if settings.named_hosts and not through_slurm:
        check_hosts(make_job(settings, point, folder, "none", 0))


def launch_folder(settings: Settings, round_: int, point: Point) -> Path:
    """The folder for records of the ranks of one launch, and for their traces if there are any."""
    if settings.trace:
        return Path(settings.folder, "traces", point.label.removesuffix("-traced"))
    return Path(settings.folder, "launches", f"{round_:02d}-{point.label}")


def planned_commands(settings: Settings, point: Point, folder: Path) -> list[str]:
    """Commands of a launch as a shell takes them; nothing is started."""
    job = make_job(settings, point, folder, "LAUNCH", settings.request.port or 29500)
    return shown_commands(launcher_of(settings, point), job, settings.request.env)


class Launched(NamedTuple):
    """A launch that is over, whatever became of it."""

    job: Job
    watch: LaunchWatch
    ending: Ending
    problem: str  # Empty when it went well
    details: str
    harmless: str  # What went wrong after the training, if anything
    # Why it was given up although nothing had failed: the script starts ranks of its own; empty: it was not.
    own_ranks: str = ""
    as_it_is: str = ""  # Why the command was started without the launcher that was planned; empty: it was not


def launch(settings: Settings, round_: int, point: Point, steps: int, progress: Progress) -> Run | Failure:
    """One launch of one point, measured."""
    pattern = compile_pattern(settings.request.pattern, live=True) if settings.request.pattern else None
    launcher = launcher_of(settings, point)
    folder = launch_folder(settings, round_, point)
    meter = LoadMeter()
    launched = run_job(settings, point, folder, steps, progress, pattern)
    outcome = _outcome(settings, launched, point, pattern)
    if isinstance(outcome, Failure):
        return msgspec.structs.replace(outcome, round=round_)
    ours = not settings.named_hosts and not launcher.scheduler
    return msgspec.structs.replace(
        outcome,
        round=round_,
        load=outcome.load or (meter.read() if ours else None),
        batch_job=outcome.batch_job or batch_job(),
        as_it_is=launched.as_it_is,
        warnings=(*_notes(settings, launched, outcome), *outcome.warnings),
    )


def run_job(
    settings: Settings,
    point: Point,
    folder: Path,
    steps: int,
    progress: Progress,
    pattern: re.Pattern[str] | None = None,
    *,
    keeps_steps: bool = True,
) -> Launched:
    """Run the ranks of a point to their end; a script that cannot be started like this is started as it is."""

    def attempt(settings: Settings) -> Launched:
        return _run_ranks(settings, point, folder, steps, progress, pattern, keeps_steps)

    launched = attempt(settings)
    why = _why_as_it_is(settings, point, launched)
    if not why:
        return launched
    again = attempt(started_as_it_is(settings, why))
    if again.problem and launched.problem:  # it fails either way
        name = launcher_of(settings, point).name
        return again._replace(problem=f"{launched.problem}, under {name} and without it alike", as_it_is="")
    return again


def _why_as_it_is(settings: Settings, point: Point, launched: Launched) -> str:
    """Why the command should be started again without the launcher; empty when there is no reason."""
    request, launcher = settings.request, launcher_of(settings, point)
    if not request.command or launcher.name == "own":
        return ""
    if launched.own_ranks:
        return f"{launched.own_ranks}, so it was started as it is, without {launcher.name}"
    watch = launched.watch
    if not launched.problem or any(log.events for log in watch.logs) or watch.output.best_matches():
        return ""
    may_restart = any(word.startswith("--max-restarts") for word in request.launcher_args)
    if len(watch.logs) + watch.restarted > point.np and not may_restart:
        return f"{STARTS_RANKS}, so it was started as it is, without {launcher.name}"
    if point.np > 1 or settings.named_hosts:
        return ""
    line = shlex.join(launched.job.command)
    return f"under {launcher.name} it failed before its first step, so it was started again as plain `{line}`"


def _run_ranks(
    settings: Settings,
    point: Point,
    folder: Path,
    steps: int,
    progress: Progress,
    pattern: re.Pattern[str] | None,
    keeps_steps: bool,
) -> Launched:
    """Run the ranks of a point to their end; when their port was taken meanwhile, again with another one."""
    launcher = launcher_of(settings, point)
    attempts = 1 if settings.request.port else 3
    for attempt in range(1, attempts + 1):
        emptied(folder, "launch")
        with writing(folder):
            if settings.request.workload:
                (folder / "task.json").write_bytes(msgspec.json.encode(make_task(settings, point, steps)))
        mark = f"{folder.name}-{secrets.token_hex(6)}"
        job = make_job(settings, point, folder, mark, settings.request.port or free_port())
        looks = bool(settings.request.command) and launcher.name != "own"
        watch = LaunchWatch(job, progress, pattern, keeps_steps=keeps_steps, looks_for_own_ranks=looks)
        save_commands(launcher, job, settings.request.env)
        try:
            with watch.output.followed():
                ending = run(launcher.commands(job), job, watch, timeout_s=settings.request.timeout_s)
        except StartsItsOwnRanks as seen:
            ending = Ending(started_ns=0, ended_ns=0, started_wall_ns=0)
            return Launched(job, watch, ending, "", "", "", str(seen), settings.as_it_is)
        problem, details, harmless = ending.problem, ending.details, ""
        if problem and not details:
            problem, details = watch.died(launcher, ending.code)
            harmless = watch.died_after_training(launcher, ending.code)
            problem = "" if harmless else problem
        launched = Launched(job, watch, ending, problem, details, harmless, as_it_is=settings.as_it_is)
        if not launched.problem or attempt == attempts or not any(map(_PORT_TAKEN.search, printed(folder))):
            break
    return launched


def _outcome(settings: Settings, launched: Launched, point: Point, pattern: re.Pattern[str] | None) -> Run | Failure:
    """The Run that a launch measured, or its Failure."""
    folder, watch, ending = Path(launched.job.folder), launched.watch, launched.ending
    relative = str(folder.relative_to(settings.folder))
    problem, details = launched.problem, launched.details
    own = bool(launched.as_it_is) or launcher_of(settings, point).name == "own"
    if not problem:
        try:
            if pattern and not any(log.events for log in watch.logs):
                matches, first = watch.output.best_matches(), watch.output.first_ns
                return collect_matches(point, matches, first, ending, relative, pattern.pattern)
            if settings.request.quick:
                return collect_pairs(point, watch.logs, ending, relative, read_pairs(folder, point.np))
            return collect(point, watch.logs, ending, relative, own=own)
        except UsageError:
            raise
        except ScalescopeError as trouble:
            problem = str(trouble) if mark_of(folder) else EMPTIED.format(folder)
            if own and settings.named_hosts and not watch.logs:
                problem += f"; {_HAND_ON}"
            details = "\n".join(last_lines(folder / "rank0.out") or last_lines(folder / LAUNCHER_OUTPUT))
    if launched.as_it_is:
        problem += f" ({launched.as_it_is})"
    if any("No space left on device" in line for line in printed(folder)):
        problem = f"the disk is full ({problem}): free some space or choose another folder with -o"
    return Failure(point=point, folder=relative, problem=problem, details=details)


def _notes(settings: Settings, launched: Launched, run: Run) -> Iterator[str]:
    """Warnings of the launch itself."""
    if launched.as_it_is:
        yield launched.as_it_is
    if launched.harmless:
        yield launched.harmless
    lines = printed(Path(launched.job.folder))
    yield from dict.fromkeys(line.removeprefix(NOTE_MARK).strip() for line in lines if line.startswith(NOTE_MARK))
    if launched.watch.restarted:
        yield (
            f"{plural(launched.watch.restarted, 'rank')} had to be started again during the launch: steps of the last "
            "start count, and all time before it is launch time"
        )
    yield from _shared_cores(settings, run.point)
    if settings.node_slots and run.nodes > (fewest := nodes_of(settings, run.point.np)[0]):
        yield (
            f"{plural(run.point.np, 'rank')} ran on {run.nodes} nodes and {plural(fewest, 'node')} would hold them, so "
            "gradients cross the network needlessly: put -N {nodes} into the srun line"
        )
    if run.source != "pattern" or "step_s" in settings.request.pattern:
        return
    instead = "print the time of a step and match it with (?P<step_s>...)"
    if settings.named_hosts:
        yield f"lines from other hosts arrive when the shared folder shows them, maybe seconds late: {instead}"
    if any(word.startswith("--tee") for word in settings.request.command):
        yield f"torchrun --tee passes lines on every 0.1 s, and step times are as coarse: leave it out, or {instead}"


def _shared_cores(settings: Settings, point: Point) -> Iterator[str]:
    """Warnings of cores that ranks of a point share."""
    yield from settings.warnings
    oversubscribe = settings.request.oversubscribe
    for name, ranks in place(point.np, settings.hosts, oversubscribe=oversubscribe) or (("", point.np),):
        cores = settings.physical_cores.get(name, ranks)
        if ranks > cores:
            where = f" of {name}" if name else ""
            yield (
                f"{ranks} ranks share {plural(cores, 'physical core')}{where}: "
                f"hyperthreads are not full cores, expect a lower speedup than on {ranks} cores"
            )


def rehearse(settings: Settings, planned: Sequence[Point]) -> tuple[int, float]:
    """Steps that a launch gets, and about the seconds that one launch of every point takes together."""
    request = settings.request
    assert request.workload
    smallest = min(planned, key=lambda point: point.batch or 0)
    path = Path(settings.folder, "rehearsal.json")
    with writing(path):
        path.write_bytes(msgspec.json.encode(make_task(settings, smallest, 1)))
    words = (*settings.container, settings.python, "-m", "scalescope.jobs.train_model", "--check", str(path))
    threads = {"OMP_NUM_THREADS": str(settings.threads_per_rank)}
    started = time.monotonic()
    try:
        answer = subprocess.run(
            words,
            env={**os.environ, **request.env, **threads},
            cwd=settings.cwd or None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=request.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WorkFailed(
            f"the model {request.workload.model} made no step within {format_seconds(request.timeout_s)} in one "
            "process: give it longer with --timeout, or try a smaller --batch"
        ) from None
    if answer.returncode == UsageError.exit_code:
        lines = [line.strip() for line in answer.stderr.splitlines()]  # modules may print when they end
        told = [line.removeprefix(USAGE_MARK).strip() for line in lines if line.startswith(USAGE_MARK)]
        raise UsageError((told or [f"{request.workload.model} cannot be built"])[-1])
    if answer.returncode == -signal.SIGILL:  # some virtual machines promise AMX and do not have it
        raise WorkFailed(
            f"the model {request.workload.model} uses an instruction that this machine does not have: "
            "try --env ONEDNN_MAX_CPU_ISA=AVX512_CORE"
        )
    if answer.returncode:
        why = answer.stderr.strip()[-3000:] or f"it {how_it_ended(answer.returncode)}"
        raise WorkFailed(f"the model {request.workload.model} failed on its own:\n{why}")
    overhead_s = time.monotonic() - started
    # What modules of the user's print may stand before the answer and, when they end, after it.
    lines = [line for line in answer.stdout.splitlines() if line.startswith('{"step_s":')]
    step_s = float(msgspec.json.decode(lines[-1])["step_s"])
    per_sample_s = step_s / (smallest.batch or 1)
    largest_s = per_sample_s * max(point.batch or 1 for point in planned)
    steps = request.steps or min(max(int(LAUNCH_S / max(largest_s, 1e-6)), LAUNCH_STEPS), _MOST_STEPS)
    seconds = sum(2 * overhead_s + steps * per_sample_s * (point.batch or 1) for point in planned)
    return steps, seconds
