"""Traces of a job, one per rank where possible, and what came with them."""

import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from scalescope import host
from scalescope.errors import UsageError
from scalescope.intervals import Intervals, without
from scalescope.records.explanation import TRACE_RECORD, Clock, TraceFolder
from scalescope.records.store import load
from scalescope.records.timeline import Activity, Span
from scalescope.traces.alignment import align
from scalescope.traces.lateness import Lateness, lateness
from scalescope.traces.marks import RankMarks, read_marks, separate
from scalescope.traces.readers import Reader, named_as_traces, read_trace, reader_of, why_unread
from scalescope.traces.trace import Trace

_WORTH_PROCESSES = 16 << 20  # Bytes of all files together, packed or not
_COMPARED = 0.8  # Of the collectives must be known of all ranks, before waiting is told from transfer
_OF_MARKS: tuple[Activity, ...] = ("input", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class JobTraces:
    """Traces of one job on their own clocks, in the order of ranks."""

    kind: str  # That of their reader, or `run folder`
    traces: tuple[Trace, ...]
    clocks: tuple[Clock, ...] = ()  # One per trace where several clocks had to be brought together
    marks: tuple[RankMarks, ...] = ()  # Of ranks whose timeline does not say what they computed
    profile_marks: tuple[RankMarks, ...] = ()  # Of ranks whose profile says it, for steps that were not traced
    record: TraceFolder | None = None
    skipped: tuple[str, ...] = ()  # Files that could not be read, each in words that say why
    compared: Lateness | None = None  # Ranks at their common collectives; None where their clocks cannot be compared

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the traces."""
        return tuple(at if trace.rank is None else trace.rank for at, trace in enumerate(self.traces))

    @property
    def hosts(self) -> int:
        """Number of hosts that the ranks ran on; 1 where nothing tells."""
        return max(len({rank.host for rank in self.record.ranks}), 1) if self.record else 1

    def spans(self, at: int, start_s: float, end_s: float) -> tuple[Span, ...]:
        """Spans of one rank between two moments of its own clock, as far as drawing needs it."""
        trace, rank = self.traces[at], self.ranks[at]
        found = tuple(msgspec.structs.replace(span, rank=rank) for span in trace.spans(start_s, end_s))
        marked = list[Span]()
        for mine, activity in product([marks for marks in self.marks if marks.rank == rank], _OF_MARKS):
            # Waiting for gradients is no optimizer.
            intervals: Intervals = without(getattr(mine, activity), mine.synchronize)
            for start, end in zip(*((edge - trace.epoch_s).tolist() for edge in intervals), strict=True):
                if end > start_s and start < end_s:
                    start, end = max(start, start_s), min(end, end_s)
                    marked.append(Span(rank=rank, activity=activity, start_s=start, end_s=end, name=activity))
        return (*marked, *found)


def traces_in(path: Path) -> list[tuple[Path, Reader]]:
    """A trace itself, or the traces in a folder, each with its reader; empty when it is something else."""
    files = named_as_traces(path) if path.is_dir() else [path] if path.is_file() else []
    return [(file, reader) for file in files if (reader := reader_of(file))]


def unread_in(path: Path) -> list[str]:
    """Files of a folder that are named as traces and cannot be read, each in words that say why."""
    return [why for file in named_as_traces(path) if (why := why_unread(file))] if path.is_dir() else []


def read_job(paths: Sequence[Path]) -> JobTraces:
    """Reads traces that belong to one job.

    Raises:
        UsageError: When they do not belong together, or one of them cannot be read.
    """
    if len(paths) == 1 and (paths[0] / TRACE_RECORD).is_file():
        return _of_folder(paths[0])
    found = [each for path in paths for each in traces_in(path)]
    files, readers = [file for file, _ in found], {reader.kind: reader for _, reader in found}
    if len(readers) != 1:
        names = " and ".join(readers)
        raise UsageError(f"traces of several kinds were named ({names}): explain one kind at a time")
    (reader,) = readers.values()
    skipped = tuple(why for path in paths for why in unread_in(path))
    if reader.per_rank:
        return replace(_of_ranks(reader.kind, _read_all(files, [None] * len(files)), None), skipped=skipped)
    if len(files) > 1:
        raise UsageError(
            f"each of the {len(files)} files is a {reader.kind} of another job: explain one at a time, or see what "
            "changed with scalescope compare"
        )
    return JobTraces(reader.kind, (read_trace(files[0]),), skipped=skipped)


def _of_folder(folder: Path) -> JobTraces:
    record = load(folder / TRACE_RECORD, TraceFolder)
    missing = [name for name in record.files if not (folder / name).is_file()]
    if missing:
        raise UsageError(f"{folder.name} lacks {missing[0]}, which its {TRACE_RECORD} names: capture it again")
    if not record.timeline:
        captured = [rank for rank in record.ranks if rank.profile]
        own = [read_marks(folder / rank.marks) if (folder / rank.marks).is_file() else None for rank in captured]
        traces = _read_all([folder / rank.profile for rank in captured], own, may_be_empty=True)
        known = tuple(each for each in own if each is not None)
        return replace(_of_ranks("run folder", traces, record), profile_marks=known)
    marks = tuple(read_marks(folder / rank.marks) for rank in record.ranks if rank.marks)
    seen = read_trace(folder / record.timeline, may_be_empty=True)
    return JobTraces("run folder", tuple(separate(seen, marks)), marks=marks, record=record)


def _read_all(files: Sequence[Path], marks: Sequence[RankMarks | None], *, may_be_empty: bool = False) -> list[Trace]:
    """Traces of many ranks, read by as many processes as there are cores; small ones are read here."""
    read = partial(read_trace, may_be_empty=may_be_empty)
    at_once = min(len(files), host.cores().logical)
    few = at_once < 2 or sum(file.stat().st_size for file in files) < _WORTH_PROCESSES
    # Only forks: they have everything imported, and run nobody's main module again. They copy no other threads, which
    # might hold a lock.
    if few or threading.active_count() > 1 or sys.platform != "linux":
        return list(map(read, files, marks))
    import multiprocessing  # slow to import, and needed here alone
    from concurrent.futures import ProcessPoolExecutor

    ignore = (signal.SIGINT, signal.SIG_IGN)  # an interrupt ends the command, and with it its readers
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(at_once, mp_context=fork, initializer=signal.signal, initargs=ignore) as readers:
        return list(readers.map(read, files, marks))


def _of_ranks(kind: str, traces: Sequence[Trace], record: TraceFolder | None) -> JobTraces:
    known = [trace for trace in traces if trace.rank is not None]
    if len({trace.rank for trace in known}) < len(known):
        names = ", ".join(trace.path.name for trace in known[:3])
        raise UsageError(f"several traces are of one rank ({names}): name one trace of each rank of one job")
    free = iter(sorted(set(range(len(traces))) - {trace.rank for trace in known}))
    numbered = [replace(trace, rank=next(free)) if trace.rank is None else trace for trace in traces]
    ordered = tuple(sorted(numbered, key=lambda trace: trace.rank or 0))
    if len(ordered) < 2:
        return JobTraces(kind, ordered, record=record)
    clocks = align(ordered)
    compared = lateness(ordered, clocks)
    if len(compared.wait_s) >= _COMPARED * max(len(trace.collectives.end_s) for trace in ordered) > 0:
        ordered = tuple(
            replace(trace, parts=replace(trace.parts, waiting=waiting)) if trace.parts.exposed is not None else trace
            for trace, waiting in zip(ordered, compared.waiting_s, strict=True)
        )
    return JobTraces(kind, ordered, clocks=clocks, record=record, compared=compared)
