"""What there is to explain: traces of a job, one per rank where possible, and what came with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from scalescope.errors import UsageError
from scalescope.records.explanation import TRACE_RECORD, Clock, TraceFolder
from scalescope.records.store import load
from scalescope.records.timeline import Activity, Span
from scalescope.text import plain
from scalescope.traces import horovod, kineto
from scalescope.traces.alignment import align
from scalescope.traces.event_stream import looks_like
from scalescope.traces.intervals import Intervals, without
from scalescope.traces.marks import RankMarks, read_marks, separate
from scalescope.traces.trace import Trace

_TRACE_ENDINGS = (".json", ".json.gz")
_PARTS_OF_MARKS: dict[str, Activity] = {
    "input": "input",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
}


@dataclass(frozen=True)
class Material:
    """Traces on their own clocks, in the order of ranks."""

    kind: Literal["horovod timeline", "profiler traces", "run folder"]
    traces: tuple[Trace, ...]
    clocks: tuple[Clock, ...] = ()  # One per trace where several clocks had to be brought together
    marks: tuple[RankMarks, ...] = ()
    record: TraceFolder | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of the traces."""
        return tuple(at if trace.rank is None else trace.rank for at, trace in enumerate(self.traces))

    def spans(self, at: int, start_s: float, end_s: float) -> tuple[Span, ...]:
        """What one rank did between two moments of its own clock, as far as drawing needs it."""
        trace, rank = self.traces[at], self.ranks[at]
        read: Callable[[Path, float, float], tuple[Span, ...]]
        read = kineto.window if trace.kind == "kineto" else horovod.window
        found = read(trace.path, start_s, end_s)
        named = tuple(_with_rank(span, rank) for span in found)
        mine = next((marks for marks in self.marks if marks.rank == rank), None)
        if trace.kind == "kineto" or mine is None:
            return named
        return (*_marked(mine, trace.epoch_s, start_s, end_s), *named)


def _with_rank(span: Span, rank: int) -> Span:
    return Span(
        rank=rank,
        activity=span.activity,
        start_s=span.start_s,
        end_s=span.end_s,
        name=span.name,
        bytes=span.bytes,
    )


def _marked(marks: RankMarks, epoch_s: float, start_s: float, end_s: float) -> list[Span]:
    """What the rank's own marks add to Horovod's timeline; waiting for gradients is no optimizer."""
    spans = []
    for name, activity in _PARTS_OF_MARKS.items():
        intervals: Intervals = without(getattr(marks, name), marks.synchronize)
        starts, ends = intervals.starts - epoch_s, intervals.ends - epoch_s
        for at in np.flatnonzero((ends > start_s) & (starts < end_s)):
            spans.append(
                Span(
                    rank=marks.rank,
                    activity=activity,
                    start_s=max(float(starts[at]), start_s),
                    end_s=min(float(ends[at]), end_s),
                    name=name,
                )
            )
    return spans


def traces_in(path: Path) -> list[Path]:
    """A trace itself, or the traces in a folder; empty when it is something else."""
    if not path.is_dir():
        return [path] if path.is_file() and looks_like(path) else []
    files = [file for file in sorted(path.iterdir()) if file.name.endswith(_TRACE_ENDINGS) and file.is_file()]
    return [file for file in files if looks_like(file)]


def material(paths: Sequence[Path]) -> Material:
    """Read all of them; they belong to one job."""
    if len(paths) == 1 and (paths[0] / TRACE_RECORD).is_file():
        return _of_folder(paths[0])
    files = [file for path in paths for file in traces_in(path)]
    kinds = {looks_like(file) for file in files}
    if kinds == {"kineto"}:
        return _of_profiles("profiler traces", [_not_empty(kineto.read(file)) for file in files], None)
    if kinds == {"horovod"}:
        if len(files) > 1:
            raise UsageError(
                f"{len(files)} Horovod timelines were named and each is a job of its own: explain one at a time"
            )
        return Material("horovod timeline", (_not_empty(horovod.read(files[0])),))
    raise UsageError("Horovod timelines and profiler traces were named together: explain one kind at a time")


def _not_empty(trace: Trace) -> Trace:
    if trace.is_empty:
        why = f" ({trace.loss.reason})" if trace.loss.reason else ""
        raise UsageError(f"'{plain(trace.path.name)}' holds no events of a training{why}: name another trace")
    return trace


def _of_folder(folder: Path) -> Material:
    record = load(folder / TRACE_RECORD, TraceFolder)
    missing = [name for name in record.files if not (folder / name).is_file()]
    if missing:
        raise UsageError(f"{folder.name} lacks {missing[0]}, which its {TRACE_RECORD} names: capture it again")
    if not record.timeline:
        return _of_profiles("run folder", [kineto.read(folder / name) for name in record.files], record)
    marks = tuple(read_marks(folder / rank.marks) for rank in record.ranks if rank.marks)
    seen = horovod.read(folder / record.timeline)
    return Material("run folder", tuple(separate(seen, marks)), marks=marks, record=record)


def _of_profiles(
    kind: Literal["profiler traces", "run folder"], traces: Sequence[Trace], record: TraceFolder | None
) -> Material:
    known = [trace for trace in traces if trace.rank is not None]
    if len({trace.rank for trace in known}) < len(known):
        names = ", ".join(trace.path.name for trace in known[:3])
        raise UsageError(f"several traces are of one rank ({names}): name one trace of each rank of one job")
    numbered = [replace(trace, rank=at) if trace.rank is None else trace for at, trace in enumerate(traces)]
    ordered = tuple(sorted(numbered, key=lambda trace: trace.rank or 0))
    return Material(kind, ordered, clocks=align(ordered) if len(ordered) > 1 else (), record=record)
