"""Traced launches: every rank captures some steady steps. They count in no statistics."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from scalescope import host
from scalescope.agent import capture
from scalescope.engines import engine_named, find_engine
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.launch import (
    check_reachable,
    check_requirements,
    launch,
    launch_folder,
    planned_commands,
    rehearse,
)
from scalescope.jobs.output import printed
from scalescope.jobs.plan import Settings, points, resolve_here
from scalescope.jobs.rank_log import read_rank_logs
from scalescope.measurement.network import network_of, way_in
from scalescope.measurement.resume import begin
from scalescope.progress import Progress
from scalescope.records.explanation import TRACE_RECORD, Overhead, RankTrace, TraceFolder
from scalescope.records.job import NO_ENGINE
from scalescope.records.request import MeasureRequest
from scalescope.records.run import INIT_PHASES, Failure, Point, Run
from scalescope.records.store import save
from scalescope.steady import step_times
from scalescope.text import plural
from scalescope.traces.marks import RankMarks, read_marks

_SECONDS = 5.0  # What the captured steps take together, within these limits
_FEWEST, _USUAL, _MOST = 10, 20, 50
_WARMUP = 10
_FROM_START = 40  # Steps from the first one on: those that are slow, and enough that are not
_ENOUGH = 5  # Captured steps; a script that ended before is launched once more, for steps that it makes
_WRITING = 2  # Steps after the captured ones in which ranks wait for those that still write
_FEWEST_TO_COMPARE = 3
_BEFORE = ("launch", *INIT_PHASES)
_UNKNOWN = "what tracing cost is not known: there were too few steps without it"
Block = tuple[int, int, bool]  # Steps from, to, and whether they are traced


class Window(capture.Window):
    """The steps to capture, as the agent reads it, and the launch that holds them."""

    def total(self, *, timeline: bool) -> int:
        """Steps that the launch makes: one after the captured ones at least, so that they are closed."""
        return max(last for _, last, _ in self.blocks(timeline=timeline)) + (not self.compare)

    def blocks(self, *, timeline: bool) -> list[Block]:
        """Blocks of steps in their order; the steps between them count in none."""
        length = self.compare
        captured = (self.first, self.end, True)
        if not length:
            return [captured]
        if timeline:
            later = [(self.end + at * length + 1, self.end + (at + 1) * length, at == 1) for at in range(3)]
            return [captured, *later]
        after = self.end + _WRITING
        before = [(self.first - 1 - length, self.first - 1, False)] if self.first else []
        return [*before, captured, (after, after + length, False)]


def choose_window(
    *,
    timeline: bool,
    most: int | None = None,
    warmup: int = 0,
    step_s: float | None = None,
    from_start: bool = False,
    cpu_detail: bool = False,
) -> Window:
    """Steady steps, as many as are telling, or the first ones; `most`: there are no more."""
    window = _steady_window(timeline=timeline, most=most, warmup=warmup, step_s=step_s)
    if from_start:
        steps = min(_FROM_START, most - 1) if most else _FROM_START
        room = steps if most is None else most - steps - _WRITING - 1
        compare = min(steps // 4, room // (3 if timeline else 1))
        window = Window(0, max(steps, 1), compare if compare > _FEWEST_TO_COMPARE else 0)
    return window._replace(detail="full" if cpu_detail else "")


def _steady_window(*, timeline: bool, most: int | None, warmup: int, step_s: float | None) -> Window:
    steps = min(max(round(_SECONDS / step_s), _FEWEST), _MOST) if step_s else _USUAL
    compare, skipped = steps // 2, max(warmup, _WARMUP)
    window = Window(skipped + (0 if timeline else compare + 1), steps, compare)
    if most is None or window.total(timeline=timeline) <= most:
        return window
    skipped = max(min(skipped, most // 5), 1)
    left = most - 1 - skipped
    compare = left // 5 if timeline else (left - 1 - _WRITING) // 4
    if compare <= _FEWEST_TO_COMPARE:
        return Window(skipped + (not timeline), max(left - (not timeline), 1), 0)
    if timeline:
        return Window(skipped, left - 3 * compare, compare)
    return Window(skipped + compare + 1, left - 1 - _WRITING - 2 * compare, compare)


def traced_run(request: MeasureRequest, progress: Progress) -> Path:
    """Launch a model or a command once with capture; the folder that holds traced.json and what it names."""
    settings, point = _resolved(request)
    check_requirements(settings)
    with begin(settings.request, "explain") as started:
        folder, plan = started.folder, started.plan
        settings = msgspec.structs.replace(settings, since_ns=plan.since_ns, cwd=plan.cwd, folder=str(folder))
        check_reachable(settings, point, folder)
        if request.workload:
            rehearse(settings, [point])
        return traced_launch(settings, point, None, progress)[0]


def traced_commands(request: MeasureRequest) -> list[str]:
    """The commands of a traced launch, as a shell takes them; nothing is started."""
    settings, point = _resolved(request)
    timeline = find_engine(point.engine).tracer == "timeline"
    window = choose_window(
        timeline=timeline, most=request.steps, from_start=request.from_start, cpu_detail=request.cpu_detail
    )
    limited = msgspec.structs.replace(settings.request, steps=window.total(timeline=timeline))
    settings = msgspec.structs.replace(settings, trace=str(window), request=limited)
    return planned_commands(settings, point, trace_folder(settings, point))


def _resolved(request: MeasureRequest) -> tuple[Settings, Point]:
    """The one point: the largest number of processes; without an engine where one process needs none."""
    request = msgspec.structs.replace(request, trace=True, quick=False, np=(max(request.np),))
    settings = resolve_here(request, Path(request.folder or "results").absolute())
    return settings, points(settings)[-1 if request.engines else 0]


def trace_folder(settings: Settings, point: Point) -> Path:
    """The folder for the files of a point's traced launch."""
    return launch_folder(msgspec.structs.replace(settings, trace="any"), 1, point)


def traced_launch(settings: Settings, point: Point, known: Run | None, progress: Progress) -> tuple[Path, TraceFolder]:
    """Launch the point with capture and describe what its ranks left; `known` is the same, measured before."""
    request = settings.request
    timeline = find_engine(point.engine).tracer == "timeline"
    most = known.steps if known and request.command else request.steps
    warmup, step_s = (known.warmup_steps, known.step_s) if known else (0, None)
    choose = partial(choose_window, timeline=timeline, from_start=request.from_start, cpu_detail=request.cpu_detail)
    window = choose(most=most, warmup=warmup, step_s=step_s)
    for attempt in (1, 2):
        run = _launch(settings, point, window, window.total(timeline=timeline), progress)
        folder = Path(settings.folder, run.folder)
        record = describe(folder, point, run, window, what=request.what, command=request.command)
        if attempt == 2 or record.steps >= _ENOUGH or run.steps >= window.end:
            break
        window = choose(most=run.steps)
    if not record.files or not record.steps:
        raise WorkFailed(
            f"{point.label}: {plural(run.steps, 'step')} were made and none was captured{_why_not(folder)}; "
            f"see the ranks' output in {folder}"
        )
    network = network_of(folder, record.backend, way_in(settings, point))
    record = msgspec.structs.replace(record, network=network)
    save(record, folder / TRACE_RECORD)
    return folder, record


def _launch(settings: Settings, point: Point, window: Window, steps: int, progress: Progress) -> Run:
    request = msgspec.structs.replace(settings.request, steps=steps, quick=False)
    settings = msgspec.structs.replace(settings, request=request, trace=str(window))
    traced = msgspec.structs.replace(point, arm="traced")
    progress.stage(f"capture of {point.label}", steps=steps)
    try:
        outcome = launch(settings, 1, traced, steps, progress)
    except UsageError as problem:
        raise UsageError(f"{traced.label}: {problem}") from None
    if isinstance(outcome, Failure):
        raise outcome.error(traced.label, "; nothing was traced")
    return outcome


def describe(
    folder: Path, point: Point, run: Run, window: Window, *, what: str, command: tuple[str, ...]
) -> TraceFolder:
    """The record of a traced launch: its files, the steps they hold, and what tracing cost."""
    (folder / "timeline-again.json").unlink(missing_ok=True)
    marks = sorted(map(read_marks, folder.glob("marks-rank*.jsonl")), key=lambda rank: rank.rank)
    timeline = "timeline.json" if (folder / "timeline.json").exists() else ""
    ranks, captured = [], []
    for rank in marks:
        profile = f"trace-rank{rank.rank}.json.gz"
        profile = profile if (folder / profile).exists() else ""
        ranks.append(RankTrace(rank=rank.rank, host=rank.host, profile=profile, marks=rank.path.name))
        if timeline or profile:
            numbers = rank.numbers[rank.traced].tolist()
            captured.append({number for number in numbers if window.first <= number < window.end})
    blocks = [block for block in window.blocks(timeline=bool(timeline)) if _is_as_planned(block, marks)]
    times = steps_of(folder)
    cost = overhead(times, blocks)
    usual = engine_named(run.engine_seen or NO_ENGINE).tracing_cost
    notes = [] if cost else ["; ".join(filter(None, (_UNKNOWN, usual)))]
    missing = [rank.rank for rank in ranks if not timeline and not rank.profile]
    if missing:
        notes.append(f"rank {', '.join(map(str, missing))} left no trace{_why_not(folder)}")
    return TraceFolder(
        what=what,
        command=command,
        point=point,
        engine=run.engine_seen or NO_ENGINE,
        backend=run.backend,
        np=point.np,
        cores=host.cores().logical if run.load else None,
        timeline=timeline,
        ranks=tuple(ranks),
        steps=len(set.intersection(*captured)) if captured else 0,
        untraced_step_s=_median_of(times, blocks, traced=False),
        untraced_after_s=_median_of(times, [block for block in blocks if block[0] >= window.end], traced=False),
        overhead=cost,
        before_s={name: seconds for name, seconds in run.phases.items() if name in _BEFORE and seconds},
        from_start=not window.first,
        notes=tuple(notes),
    )


def _is_as_planned(block: Block, marks: Sequence[RankMarks]) -> bool:
    """True when the tracer was on, or off, on every rank during the whole block."""
    first, end, traced = block
    return all(np.all(rank.traced[(rank.numbers >= first) & (rank.numbers < end)] == traced) for rank in marks)


def steps_of(folder: Path) -> list[float]:
    """Seconds of every step of a launch."""
    return step_times([[step.seconds for step in log.steps()] for log in read_rank_logs(folder) if log.events])


def _median_of(times: Sequence[float], blocks: Sequence[Block], *, traced: bool) -> float | None:
    found = [step for first, end, is_traced in blocks if is_traced == traced for step in times[first:end]]
    return median(found) if found else None


def overhead(times: Sequence[float], blocks: Sequence[Block]) -> Overhead | None:
    """Traced against untraced steps; the ratios of neighbouring blocks give its interval."""
    whole = [(first, end, traced) for first, end, traced in blocks if len(times[first:end]) >= _FEWEST_TO_COMPARE]
    ratios = []
    for one, other in pairwise(whole):
        if one[2] != other[2]:
            on, off = (one, other) if one[2] else (other, one)
            ratios.append(median(times[on[0] : on[1]]) / median(times[off[0] : off[1]]) - 1)
    traced, untraced = _median_of(times, whole, traced=True), _median_of(times, whole, traced=False)
    if not ratios or not traced or not untraced:
        return None
    value = traced / untraced - 1
    return Overhead(value=value, low=min(value, *ratios), high=max(value, *ratios))


def _why_not(folder: Path) -> str:
    """The reason that the agent printed, if any, in parentheses."""
    mark = "scalescope: this rank is not traced: "
    lines = [line for line in printed(folder) if mark in line]
    return f" ({lines[0].partition(mark)[2].strip()})" if lines else ""
