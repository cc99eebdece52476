"""Runs a measurement: every point once, each kept on disk as soon as it is there."""

import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import msgspec

from scalescope import __version__
from scalescope.errors import ScalescopeError, UsageError, WorkFailed
from scalescope.launchers import Launcher, find_launcher
from scalescope.launchers.base import as_shell
from scalescope.launchers.runner import LAUNCHER_OUTPUT, check_hosts, run
from scalescope.measurement.collect import collect, collect_matches
from scalescope.measurement.output import compile_pattern, last_lines
from scalescope.measurement.plan import BINDING, Settings, launcher_of, make_job, make_task, points, settle
from scalescope.measurement.request import MeasureRequest
from scalescope.measurement.surroundings import check_port, cores_here, free_port, gpus_here, has_module
from scalescope.measurement.watch import Audience as LaunchAudience
from scalescope.measurement.watch import LaunchWatch
from scalescope.records.job import Job
from scalescope.records.run import Failure, Measurement, Point, Run
from scalescope.records.store import append, save, writing

_PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_LAUNCH_S = 20.0
"""A MODEL launch makes so many steps that they take about this long."""


class Audience(LaunchAudience, Protocol):
    """Who is told how a measurement goes on."""

    def planned(self, launches: int, seconds: float | None) -> None:
        """Before the first launch: how many, and about how long in all if that can be said."""

    def begins(self, index: int, point: Point, steps: int | None) -> None:
        """A launch begins."""

    def ends(self, outcome: Run | Failure) -> None:
        """A launch has ended."""


def dry_run(request: MeasureRequest) -> list[tuple[Point, list[str]]]:
    """The commands of every point as a shell takes them; nothing is started."""
    settings = _settle(request, _result_folder(request))
    shown = []
    for index, point in enumerate(points(settings), start=1):
        folder = _launch_folder(settings, index, point)
        job = make_job(settings, point, folder, "LAUNCH", request.port or 29500)
        shown.append((point, [as_shell(command) for command in launcher_of(settings, point).commands(job)]))
    return shown


def measure(request: MeasureRequest, audience: Audience) -> tuple[Path, Measurement]:
    """Launch every point once; the folder of the results and what was measured."""
    pattern = compile_pattern(request.pattern) if request.pattern else None
    folder = _result_folder(request)
    settings = msgspec.structs.replace(_settle(request, folder), since_ns=time.time_ns())
    planned = points(settings)
    _check_requirements(settings)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if settings.named_hosts:
        check_hosts(make_job(settings, planned[0], folder, "none", 0))
    steps, seconds = _rehearse(settings, planned)
    audience.planned(len(planned), seconds)
    runs: list[Run] = []
    failures: list[Failure] = []
    for index, point in enumerate(planned, start=1):
        audience.begins(index, point, steps or request.steps)
        outcome = _launch(settings, index, point, steps, pattern, audience)
        if isinstance(outcome, Failure):
            failures.append(outcome)
        else:
            runs.append(outcome)
            append(outcome, folder / "runs.jsonl")
        audience.ends(outcome)
        save(_record(settings, runs, failures), folder / "measurement.json")
        if failures and not runs:
            raise WorkFailed(_said(failures[0], "nothing was measured"))
    measurement = _record(settings, runs, failures)
    if failures:
        raise WorkFailed(_said(failures[0], f"{len(runs)} of {len(planned)} points are kept in {folder}"))
    return folder, measurement


def _said(failure: Failure, kept: str) -> str:
    details = f"\n{failure.details}" if failure.details else ""
    return f"{failure.point.label}: {failure.problem}; {kept}{details}"


def _result_folder(request: MeasureRequest) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path(request.folder or Path("results") / f"measure-{stamp}").absolute()
    if (folder / "measurement.json").exists():
        raise UsageError(f"{folder} already holds a measurement: choose another folder with -o, or remove it")
    return folder


def _settle(request: MeasureRequest, folder: Path) -> Settings:
    gpus = 0 if request.device == "cpu" else gpus_here()
    cores = cores_here()
    return settle(request, folder, cores=cores, slots=gpus or cores)


def _check_requirements(settings: Settings) -> None:
    """Programs and modules that the launches need, before the first of them."""
    command = settings.request.command
    if command and not settings.named_hosts and not shutil.which(command[0]):
        raise UsageError(f"there is no program '{command[0]}' here: check the command's first word")
    for name in dict.fromkeys(settings.launchers.values()):
        launcher = find_launcher(name)
        if launcher.program and not shutil.which(launcher.program):
            raise UsageError(f"{launcher.program} is not on the PATH: {launcher.remedy}")
        if launcher.module and not has_module(settings.python, launcher.module):
            raise UsageError(f"{settings.python} has no {launcher.module}: {launcher.remedy}")
    needs_horovod = "horovod" in settings.engines and "own" not in settings.launchers.values()
    if needs_horovod and not has_module(settings.python, "horovod"):
        raise UsageError(f"{settings.python} has no Horovod: {find_launcher('horovodrun').remedy}")
    if settings.request.port:
        check_port(settings.request.port)


def _rehearse(settings: Settings, planned: tuple[Point, ...]) -> tuple[int, float | None]:
    """Try a MODEL once in one process: how many steps a launch gets, and about how long all launches take."""
    request = settings.request
    if not request.workload:
        return 0, None
    smallest = min(planned, key=lambda point: point.batch or 0)
    path = Path(settings.folder, "rehearsal.json")
    with writing(path):
        path.write_bytes(msgspec.json.encode(make_task(settings, smallest, 1)))
    words = (settings.python, "-m", "scalescope.measurement.train_model", "--check", str(path))
    threads = {"OMP_NUM_THREADS": str(settings.threads_per_rank)}
    started = time.monotonic()
    answer = subprocess.run(words, env={**os.environ, **threads}, capture_output=True, text=True, check=False)
    if answer.returncode == UsageError.exit_code:
        raise UsageError(answer.stderr.strip().splitlines()[-1])
    if answer.returncode:
        raise WorkFailed(f"the model {request.workload.model} failed on its own:\n{answer.stderr.strip()[-3000:]}")
    overhead_s = time.monotonic() - started
    step_s = float(msgspec.json.decode(answer.stdout.splitlines()[-1])["step_s"])
    per_sample_s = step_s / (smallest.batch or 1)
    largest_s = per_sample_s * max(point.batch or 1 for point in planned)
    steps = request.steps or min(max(int(_LAUNCH_S / max(largest_s, 1e-6)), 12), 100)
    seconds = sum(2 * overhead_s + steps * per_sample_s * (point.batch or 1) for point in planned)
    return steps, seconds


def _launch(
    settings: Settings, index: int, point: Point, steps: int, pattern: re.Pattern[str] | None, audience: Audience
) -> Run | Failure:
    """One launch of one point; when its port was taken meanwhile, again with another one."""
    launcher = launcher_of(settings, point)
    folder = _launch_folder(settings, index, point)
    attempts = 1 if settings.request.port else 3
    for attempt in range(1, attempts + 1):
        with writing(folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if settings.request.workload:
                (folder / "task.json").write_bytes(msgspec.json.encode(make_task(settings, point, steps)))
        mark = f"{index:03d}-{secrets.token_hex(6)}"
        job = make_job(settings, point, folder, mark, settings.request.port or free_port())
        outcome = _run_once(settings, launcher, job, point, pattern, audience)
        if isinstance(outcome, Run) or attempt == attempts or not _port_was_taken(folder):
            break
    return outcome


def _run_once(
    settings: Settings, launcher: Launcher, job: Job, point: Point, pattern: re.Pattern[str] | None, audience: Audience
) -> Run | Failure:
    commands = launcher.commands(job)
    path = Path(job.folder, "command.txt")
    with writing(path):
        path.write_text("".join(as_shell(command) + "\n" for command in commands))
    watch = LaunchWatch(job, audience, pattern)
    relative = str(Path(job.folder).relative_to(settings.folder))
    ending = run(commands, job, watch, timeout_s=settings.request.timeout_s)
    problem, details, harmless = ending.problem, ending.details, ""
    if problem and not details:
        problem, details = watch.died(launcher)
        harmless = watch.died_after_training(launcher)
        problem = "" if harmless else problem
    if not problem:
        try:
            if pattern and not any(log.events for log in watch.logs):
                matches, first = watch.output.best_matches(), watch.output.first_ns
                return collect_matches(point, matches, first, ending, relative, pattern.pattern)
            return collect(point, watch.logs, ending, relative, harmless)
        except ScalescopeError as trouble:
            problem = str(trouble)
            details = "\n".join(
                last_lines(Path(job.folder, "rank0.out")) or last_lines(Path(job.folder, LAUNCHER_OUTPUT))
            )
    if _disk_was_full(Path(job.folder)):
        problem = f"the disk is full ({problem}): free some space or choose another folder with -o"
    return Failure(point=point, folder=relative, problem=problem, details=details)


def _outputs(folder: Path) -> list[str]:
    return [line for path in folder.glob("*.out") for line in last_lines(path, 200)]


def _port_was_taken(folder: Path) -> bool:
    return any(_PORT_TAKEN.search(line) for line in _outputs(folder))


def _disk_was_full(folder: Path) -> bool:
    return any("No space left on device" in line for line in _outputs(folder))


def _launch_folder(settings: Settings, index: int, point: Point) -> Path:
    return Path(settings.folder, "launches", f"{index:03d}-{point.label}")


def _record(settings: Settings, runs: list[Run], failures: list[Failure]) -> Measurement:
    return Measurement(
        what=settings.request.what,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        scalescope=__version__,
        torch=_torch_version(settings.python),
        host=platform.node(),
        cores=cores_here(),
        launcher=dict(settings.launchers),
        binding=BINDING,
        runs=tuple(runs),
        failures=tuple(failures),
    )


def _torch_version(python: str) -> str:
    """What the package says of itself; the user's own interpreter may have another one."""
    try:
        return version("torch") if python == sys.executable else ""
    except PackageNotFoundError:
        return ""
