"""Verb measure: rounds of launches in shuffled order, each kept on disk as soon as it is there."""

import platform
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import fmean

import msgspec

from scalescope import __version__, host
from scalescope.jobs.command import check_command_is_here
from scalescope.jobs.folders import interrupted_in
from scalescope.jobs.interpreter import torch_version
from scalescope.jobs.launch import (
    check_reachable,
    check_requirements,
    launch,
    launch_folder,
    planned_commands,
    rehearse,
)
from scalescope.jobs.masking import save_plan
from scalescope.jobs.plan import (
    BINDING,
    Settings,
    batches,
    points,
    resolve_here,
    started_as_it_is,
)
from scalescope.line_pattern import compile_pattern
from scalescope.measurement.capture import trace_folder, traced_launch
from scalescope.measurement.replication import fewest_launches, launches_to_go, points_of_round, why_it_stopped
from scalescope.measurement.resume import Started, begin, resume
from scalescope.progress import Progress
from scalescope.records.explanation import TRACE_RECORD
from scalescope.records.files import MEASUREMENT, RUNS
from scalescope.records.request import MeasureRequest, Plan
from scalescope.records.run import Failure, Measurement, Point, Run
from scalescope.records.store import append, in_folder, save
from scalescope.text import plural
from scalescope.units import format_rate, format_seconds

_HOPELESS = 2  # Points that fail before any launch went well: then nothing more is tried


def dry_run(request: MeasureRequest) -> list[tuple[Point, list[str]]]:
    """The commands of every point as a shell takes them; nothing is started."""
    settings = resolve_here(request)
    if request.command and not settings.named_hosts:
        check_command_is_here(request.command)
    return [(point, planned_commands(settings, point, launch_folder(settings, 1, point))) for point in points(settings)]


def traced_after(request: MeasureRequest) -> list[Point]:
    """The points of which one more launch, a traced one, follows."""
    return list(points(resolve_here(request))) if request.trace else []


def measure(request: MeasureRequest, progress: Progress) -> Measurement:
    """Launch every point as often as it takes."""
    if request.pattern:
        compile_pattern(request.pattern, live=True)
    settings = resolve_here(request)
    points(settings)
    check_requirements(settings)
    request = msgspec.structs.replace(request, threads_per_rank=settings.threads_per_rank)
    with begin(request) as started, interrupted_in(started.folder):
        return _run_rounds(started, progress)


def continue_measurement(folder: Path, changes: Mapping[str, object], progress: Progress) -> Measurement:
    """Resume a measurement; `changes` are new limits, and numbers of processes, batch sizes and the like to add."""
    with resume(folder, changes) as started, interrupted_in(started.folder):
        check_requirements(resolve_here(started.plan.request, started.folder))
        return _run_rounds(started, progress)


def _run_rounds(started: Started, progress: Progress) -> Measurement:
    """Make the launches that are not there yet."""
    folder, plan = started.folder, started.plan
    settings = msgspec.structs.replace(
        resolve_here(plan.request, folder), since_ns=plan.since_ns, cwd=plan.cwd, folder=str(folder)
    )
    planned = points(settings)
    check_reachable(settings, planned[0], folder)
    if settings.request.workload and not plan.steps:
        steps, seconds = rehearse(settings, planned)
        plan = msgspec.structs.replace(plan, steps=steps, seconds=seconds)
        save_plan(plan, folder)
    return in_folder(_Rounds(settings, planned, plan, started, progress).make(), folder)


class _Rounds:
    """The rounds of one measurement."""

    def __init__(
        self, settings: Settings, planned: Sequence[Point], plan: Plan, started: Started, progress: Progress
    ) -> None:
        self._settings, self._planned, self._plan, self._progress = settings, planned, plan, progress
        self._request, self._folder = settings.request, started.folder
        self._runs: list[Run] = list(started.runs)
        self._first = max(plan.first_round, *(run.round for run in self._runs), 1)
        to_go = launches_to_go(self._first, planned, self._runs, self._request)
        self._least = len(self._runs) + sum(to_go.values())  # Launches in all
        self._traces: list[str] = []
        self._failures: list[Failure] = []
        self._began = time.monotonic()
        self._budget_spent = False

    def make(self) -> Measurement:
        """Launch round after round until nothing more is wanted."""
        request = self._request
        self._progress.note(self._course())
        for number in count(self._first):
            wanted = points_of_round(number, self._planned, self._runs, self._failures, request)
            if not wanted:
                break
            for point in wanted:
                if not any(run.round == number and run.point == point for run in self._runs):
                    self._budget_spent = self._budget_spent or self._is_too_late(point)
                    if self._budget_spent:
                        break
                    self._launch(number, point)
            if self._budget_spent:
                break
        stopped = why_it_stopped(request, self._planned, self._runs, budget_spent=self._budget_spent)
        self._save(stopped)
        measured = {run.point for run in self._runs}
        for failure in self._failures:
            if failure.point not in measured:  # the whole fails; a launch that failed once is only a warning
                kept = f"{len(measured)} of {len(self._planned)} points are kept in {self._folder}"
                raise failure.error(failure.point.label, f"; {kept}")
        if request.trace:
            self._trace()
        return self._save(stopped)

    def _course(self) -> str:
        """`6 launches at 2 points; 2 are there already; about 40 s.`"""
        done, more = len(self._runs), fewest_launches(self._request) < self._request.most_launches
        told = [f"{plural(self._least, 'launch')} {'or more ' if more else ''}at {plural(len(self._planned), 'point')}"]
        told += [f"{done} are there already"] if done else []
        seconds = self._seconds_left(done + 1) if done < self._least else None
        told += [f"about {format_seconds(seconds)}"] if seconds else []
        return "; ".join(told) + "."

    def _seconds_left(self, index: int) -> float | None:
        """About how long the launches from this one on take, by those before it."""
        if self._runs:
            return fmean(run.wall_s for run in self._runs) * (max(self._least, index) - index + 1)
        return self._plan.seconds * fewest_launches(self._request) if self._plan.seconds else None

    def _trace(self) -> None:
        """One more launch of every point, after those that count."""
        for point in self._planned:
            known = next((run for run in reversed(self._runs) if run.point == point), None)
            folder = trace_folder(self._settings, point)
            if not (folder / TRACE_RECORD).exists():
                settings = self._settings_of(point)
                traced_launch(settings, point, None if self._request.quick else known, self._progress)
            self._traces.append(str(folder.relative_to(self._folder)))
            self._save("")

    def _is_too_late(self, point: Point) -> bool:
        """True when a launch would probably end after the budget; the first of every point is made anyway."""
        budget_s = self._request.budget_s
        known = [run.wall_s for run in self._runs if run.point == point]
        if budget_s is None or self._request.quick or not known:
            return False
        return time.monotonic() - self._began + fmean(known) > budget_s

    def _settings_of(self, point: Point) -> Settings:
        """The settings, with the way to start the command that an earlier launch found out."""
        for run in self._runs:
            if run.as_it_is and (run.point.np > 1 or point.np == 1):
                return started_as_it_is(self._settings, run.as_it_is)
        return self._settings

    def _launch(self, number: int, point: Point) -> None:
        index = len(self._runs) + 1
        expected = max(self._least, index)
        steps = self._plan.steps or self._request.steps
        self._progress.stage(f"launch {index}/{expected} {point.label}", self._seconds_left(index), steps)
        outcome = launch(self._settings_of(point), number, point, self._plan.steps, self._progress)
        if isinstance(outcome, Run):
            self._runs.append(outcome)
            append(outcome, self._folder / RUNS)
            rate = f", {format_rate(outcome.throughput)} samples/s" if outcome.throughput else ""
            self._progress.note(f"{point.label}: {format_seconds(outcome.step_s)} a step{rate}", "detail")
        else:
            self._failures.append(outcome)
            self._progress.note(f"{point.label}: failed", "problem")
        self._save("")
        hopeless = min(len(self._planned), _HOPELESS)
        if not self._runs and len({failure.point for failure in self._failures}) >= hopeless:
            raise self._failures[0].error(self._failures[0].point.label, "; nothing was measured")

    def _save(self, stopped: str) -> Measurement:
        request, settings = self._request, self._settings
        order = {point: index for index, point in enumerate(self._planned)}
        measurement = Measurement(
            what=request.what,
            scaling=request.scaling,
            batch=tuple(batch for batch in batches(request) if batch is not None),
            quick=request.quick,
            precision=request.precision,
            created=datetime.fromtimestamp(self._plan.since_ns * 1e-9, UTC).isoformat(timespec="seconds"),
            scalescope=__version__,
            torch=torch_version() if settings.python == sys.executable else "",
            host=platform.node(),
            cores=host.cores().logical,
            launcher=dict(settings.launchers),
            binding=BINDING,
            named_hosts=settings.named_hosts,
            runs=tuple(sorted(self._runs, key=lambda run: (run.round, order.get(run.point, len(order))))),
            failures=tuple(self._failures),
            traces=tuple(self._traces),
            stopped=stopped,
            warnings=self._plan.notes,
        )
        save(measurement, self._folder / MEASUREMENT)
        return measurement
