"""One more launch of a point, in which every rank captures some steady steps; it counts in no statistics."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from scalescope import host
from scalescope.engines import engine_named, find_engine
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.launch import launch, launch_folder
from scalescope.jobs.output import last_lines
from scalescope.jobs.plan import Settings
from scalescope.jobs.rank_log import read_rank_logs
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


class Window(NamedTuple):
    """Which steps are captured, and how many are compared with them; printed as the agent reads it."""

    first: int
    steps: int
    compare: int
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.first}:{self.steps}:{self.compare}" + (f":{self.detail}" if self.detail else "")

    @property
    def end(self) -> int:
        """The first step that is not captured any more."""
        return self.first + self.steps

    def total(self, *, timeline: bool) -> int:
        """Steps that the launch makes: one after the captured ones at least, so that they are closed."""
        return max(last for _, last, _ in self.blocks(timeline=timeline)) + (not self.compare)

    def blocks(self, *, timeline: bool) -> list[tuple[int, int, bool]]:
        """Blocks of steps in their order: from, to, whether traced; the steps between them count in none."""
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


def points_to_trace(planned: Sequence[Point], request: MeasureRequest) -> list[Point]:
    """Every configuration once, if traces are asked for at all."""
    return list(planned) if request.trace else []


def _as_traced(point: Point) -> Point:
    return msgspec.structs.replace(point, arm="traced")


def trace_folder(settings: Settings, point: Point) -> Path:
    """Where the traced launch of a point leaves its files."""
    return launch_folder(msgspec.structs.replace(settings, trace="any"), 1, _as_traced(point))


def traced_launch(settings: Settings, point: Point, known: Run | None, progress: Progress) -> tuple[Path, TraceFolder]:
    """Launch the point with capture and describe what its ranks left; `known` is the same, measured before."""
    request = settings.request
    timeline = find_engine(point.engine).tracer == "timeline"
    most = known.steps if known and request.command else request.steps
    warmup, step_s = (known.warmup_steps, known.step_s) if known else (0, None)
    choose = partial(choose_window, timeline=timeline, from_start=request.from_start, cpu_detail=request.cpu_detail)
    window = choose(most=most, warmup=warmup, step_s=step_s)
    for attempt in (1, 2):
        run = _launch(settings, point, window, progress)
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
    save(record, folder / TRACE_RECORD)
    return folder, record


def _launch(settings: Settings, point: Point, window: Window, progress: Progress) -> Run:
    total = window.total(timeline=find_engine(point.engine).tracer == "timeline")
    request = msgspec.structs.replace(settings.request, steps=total, quick=False)
    traced = _as_traced(point)
    progress.stage(f"capture of {point.label}", steps=total)
    try:
        outcome = launch(
            msgspec.structs.replace(settings, request=request, trace=str(window)), 1, traced, total, progress
        )
    except UsageError as problem:
        raise UsageError(f"{traced.label}: {problem}") from None
    if isinstance(outcome, Failure):
        details = f"\n{outcome.details}" if outcome.details else ""
        raise WorkFailed(f"{traced.label}: {outcome.problem}; nothing was traced{details}")
    return outcome


def describe(
    folder: Path, point: Point, run: Run, window: Window, *, what: str, command: tuple[str, ...]
) -> TraceFolder:
    """What is in the folder of a traced launch."""
    (folder / "timeline-again.json").unlink(missing_ok=True)
    marks = [read_marks(path) for path in folder.glob("marks-rank*.jsonl")]
    timeline = "timeline.json" if (folder / "timeline.json").exists() else ""
    ranks = [_rank_trace(folder, rank) for rank in sorted(marks, key=lambda rank: rank.rank)]
    captured = [set(_captured(rank, window)) for rank in marks if timeline or _profile(folder, rank.rank)]
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
        overhead=cost,
        before_s={name: seconds for name, seconds in run.phases.items() if name in _BEFORE and seconds},
        from_start=not window.first,
        notes=tuple(notes),
    )


def _is_as_planned(block: tuple[int, int, bool], marks: Sequence[RankMarks]) -> bool:
    """Whether the tracer was on, or off, on every rank during the whole block."""
    first, end, traced = block
    return all(np.all(rank.traced[(rank.numbers >= first) & (rank.numbers < end)] == traced) for rank in marks)


def _profile(folder: Path, rank: int) -> str:
    name = f"trace-rank{rank}.json.gz"
    return name if (folder / name).exists() else ""


def _rank_trace(folder: Path, marks: RankMarks) -> RankTrace:
    return RankTrace(rank=marks.rank, host=marks.host, profile=_profile(folder, marks.rank), marks=marks.path.name)


def _captured(marks: RankMarks, window: Window) -> list[int]:
    numbers = marks.numbers[marks.traced]
    return [number for number in numbers.tolist() if window.first <= number < window.end]


def steps_of(folder: Path) -> list[float]:
    """Seconds of every step of a launch."""
    return step_times([[step.seconds for step in log.steps()] for log in read_rank_logs(folder) if log.events])


def _samples(times: Sequence[float], block: tuple[int, int, bool]) -> Sequence[float]:
    return times[block[0] : block[1]]


def _median_of(times: Sequence[float], blocks: Sequence[tuple[int, int, bool]], *, traced: bool) -> float | None:
    found = [step for block in blocks if block[2] == traced for step in _samples(times, block)]
    return median(found) if found else None


def overhead(times: Sequence[float], blocks: Sequence[tuple[int, int, bool]]) -> Overhead | None:
    """Traced against untraced steps; how far neighbouring blocks disagree shows how well it is known."""
    whole = [block for block in blocks if len(_samples(times, block)) >= _FEWEST_TO_COMPARE]
    ratios = []
    for one, other in pairwise(whole):
        if one[2] != other[2]:
            on, off = (one, other) if one[2] else (other, one)
            ratios.append(median(_samples(times, on)) / median(_samples(times, off)) - 1)
    traced, untraced = _median_of(times, whole, traced=True), _median_of(times, whole, traced=False)
    if not ratios or not traced or not untraced:
        return None
    value = traced / untraced - 1
    return Overhead(value=value, low=min(value, *ratios), high=max(value, *ratios))


def _why_not(folder: Path) -> str:
    """What the agent said about it, if anything."""
    told = "scalescope: this rank is not traced: "
    lines = [line for path in sorted(folder.glob("*.out")) for line in last_lines(path, 200) if told in line]
    return f" ({lines[0].partition(told)[2].strip()})" if lines else ""
