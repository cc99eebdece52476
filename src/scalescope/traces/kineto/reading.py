"""Reads traces of PyTorch's profiler: their steps, what a rank did in them, and the messages that carry gradients."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.engines import engine_of_trace
from scalescope.intervals import Intervals, Moments, Times, holding
from scalescope.records.timeline import Span
from scalescope.text import plural
from scalescope.traces.event_stream import Events, is_object
from scalescope.traces.kineto.activities import account, launched_since, spans_of
from scalescope.traces.kineto.collector import Collector, Marks, launched
from scalescope.traces.kineto.events import CALL, CATEGORY, Event, correlation_of, facts_of, is_collective
from scalescope.traces.kineto.sharded import blocked, exchanging, issued
from scalescope.traces.marks import RankMarks
from scalescope.traces.trace import Collectives, Issued, StepsFrom, Trace

_MARKS = "marks"  # The lane of what the rank itself noted


class Steps(NamedTuple):
    """Whole steps, ascending, and what a user should know about them."""

    source: StepsFrom
    starts_s: Times
    ends_s: Times
    notes: tuple[str, ...] = ()


def steps_of(found: Collector, *, complete_until_s: float) -> Steps:
    """Steps that are whole and end before the file stops to be complete."""
    steps = _marked(found) if len(found.steps) else _between_optimizers(found)
    known = steps.ends_s <= complete_until_s
    notes = steps.notes
    if not known.all():
        notes += (f"{plural(int((~known).sum()), 'step')} left out: the file does not hold all of what happened then.",)
    return Steps(steps.source, steps.starts_s[known], steps.ends_s[known], notes)


def _marked(found: Collector) -> Steps:
    starts, ends = np.array(found.steps.start_s), np.array(found.steps.end_s)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    apart = np.concatenate([[True], starts[1:] >= np.maximum.accumulate(ends)[:-1] - 1e-6]) & (ends > starts)
    starts, ends = starts[apart], ends[apart]
    if len(starts) < 2:
        return Steps("marks", starts, ends)
    moments, lengths = np.sort(np.array(found.optimizers.start_s)), ends - starts
    counts = np.searchsorted(moments, ends) - np.searchsorted(moments, starts)
    # The last one lacks the optimizer that others have, or is short where no step has one.
    cut_off = lengths[-1] < np.median(lengths[:-1]) / 2
    if counts[:-1].any():
        cut_off = counts[-1] == 0 and np.median(counts[:-1]) >= 1
    if cut_off:
        return Steps("marks", starts[:-1], ends[:-1], ("The last step mark was cut off and is left out.",))
    return Steps("marks", starts, ends)


def _between_optimizers(found: Collector) -> Steps:
    """On CUDA between the ends of what Optimizer.step launched, which lag behind the calls."""
    ends = found.device_optimizer.all().ends
    if not len(ends):
        # Of the one that stepped most often and, among equals, last: others run inside or next to it.
        names, which = np.unique(np.array(found.optimizers.names, dtype=object), return_inverse=True)
        each = [np.array(found.optimizers.end_s)[which == at] for at in range(len(names))]
        ends = np.sort(max(each, key=lambda those: (len(those), those.max()), default=np.zeros(0)))
    ends = ends[np.diff(ends, prepend=-np.inf) > 0]
    if len(ends) < 2:
        why = "it has no step marks and fewer than two calls of Optimizer.step"
        advice = "Call the profiler's step() in the loop."
        return Steps("none", np.zeros(0), np.zeros(0), (f"The trace has no steps: {why}. {advice}",))
    return Steps("optimizer", ends[:-1], ends[1:], ("Steps run from one end of Optimizer.step to the next.",))


def bucket_bytes(found: Collector, collectives: Collectives, steps: Steps) -> tuple[int, ...]:
    """Sizes of the allreduces that backward launched in a typical step, in the order of their launch."""
    order = np.argsort(collectives.start_s, kind="stable")
    order = order[(collectives.operation == "allreduce")[order].astype(bool)]
    marks = found.launches
    if launches := [at for at in marks.by_start() if marks.names[at] == "allreduce"]:
        lanes, starts_s = [marks.lanes[at] for at in launches], np.array(marks.start_s)[launches]
        backward = {lane: found.backward.of(lane) for lane in set(lanes)}
        inside = {lane: holding(*moments, starts_s) >= 0 for lane, moments in backward.items()}
        pairs = launched(starts_s.tolist(), collectives.start_s[order].tolist())
        order = order[[at for at, launch in pairs if inside[lanes[launch]][launch]]]
    starts, sizes = collectives.start_s[order], collectives.bytes[order]
    first, last = np.searchsorted(starts, steps.starts_s), np.searchsorted(starts, steps.ends_s)
    each = Counter(tuple(sizes[begin:end].tolist()) for begin, end in zip(first, last, strict=True))
    typical = max(each, key=lambda sizes: each[sizes], default=())
    return () if -1 in typical else typical


def recognises(beginning: bytes) -> bool:
    """Recognise a trace of the profiler by its beginning: an object with its keys, or events with threads."""
    if beginning.startswith(b"{") and is_object(beginning):
        return True
    return b'"ph"' in beginning and b'"tid"' in beginning and b"NEGOTIATE_" not in beginning


def read(path: Path, marks: RankMarks | None = None) -> Trace:
    """Reads as far as the file goes, once, with memory that grows with its steps only.

    Marks of the rank tell steps, input and what launched kernels where only the GPU was traced, and when the first
    step of all began.
    """
    stream, found = Events(path, Event), Collector()
    for events in stream:
        stream.note_times(*found.take(events))
    found.complete()
    if found.unnamed and (ranges := found.ranges):
        named: dict[int, tuple[str, int]] = {}
        for event, _, at in _calls(ranges, range(len(ranges)), found, stream):
            if at >= 0 and (number := correlation_of(event)) >= 0:
                named[number] = ranges.names[at], ranges.bytes[at]
        found.name_kernels(named)
    if len(found.sharding) and not found.device.moments:
        found.blocked = blocked(found)
    facts = facts_of(stream.header + stream.footer, path)
    epoch_s = facts.epoch_s + (found.zero_us or 0.0) * 1e-6 if facts.epoch_s else 0.0
    if marks is not None and epoch_s:
        _add_marks(found, marks, epoch_s)
    cut = bool(stream.loss.reason) and not stream.footer.strip()
    on_device = bool(found.device.moments) or (cut and found.calls_device)
    until = np.inf
    if cut:  # events are sorted by thread, and a GPU's come last
        threads = set(found.steps.lanes) | set(found.optimizers.lanes)
        until = min((found.last_s.get(lane, -np.inf) for lane in threads), default=-np.inf)
        until = min(until, found.device.last()) if on_device else until
    steps = steps_of(found, complete_until_s=until)
    parts, alone = account(found, steps.starts_s, steps.ends_s, on_device=on_device)
    seen = found.collectives
    kept = np.flatnonzero([is_collective(name) for name in seen.names])
    kept = kept[np.argsort(np.array(seen.end_s)[kept], kind="stable")]
    collectives = Collectives(
        np.array(seen.names, dtype=object)[kept],
        np.array(seen.bytes, dtype=np.int64)[kept],
        np.array(seen.start_s)[kept],
        np.array(seen.end_s)[kept],
    )
    sharding, modules, own = None, dict[float, str](), set[str]()
    if len(found.sharding):
        sharding = _sharding(found, stream, kept)
        modules = dict(zip(collectives.start_s.tolist(), sharding.module.tolist(), strict=True))
        own = set(collectives.operation[sharding.phase != ""].tolist())
    if found.strange:
        stream.lose(found.strange, 0, "there are events with impossible times or without a duration")
    notes = list(steps.notes)
    if on_device and (len(found.optimizers) or found.launched) and parts.optimizer is None:
        notes.append("The trace does not say which kernels Optimizer.step launched: they count as compute.")
    if cut:
        notes.append("The file was cut: communication may be missing from the steps that are left.")
    return Trace(
        path=path,
        engine=engine_of_trace(found.host_names, collectives=bool(len(collectives.end_s)), own=own).name,
        is_empty=found.zero_us is None,
        rank=facts.rank,
        world_size=facts.world_size,
        backend=facts.backend,
        device="cuda" if on_device else "cpu",
        epoch_s=epoch_s,
        steps_from=steps.source,
        starts_s=steps.starts_s,
        ends_s=steps.ends_s,
        parts=parts,
        collectives=collectives,
        exchange=found.exchange.between(),
        exposed=alone,
        compiled=found.compiled,
        bucket_bytes=bucket_bytes(found, collectives, steps),
        issued=sharding,
        device_bytes=facts.device_bytes,
        group_ranks=facts.group_ranks,
        loss=stream.loss,
        notes=tuple(notes),
        spans=_Spans(stream, found.knowing_the_same(), facts.rank or 0, on_device, modules),
    )


def _sharding(found: Collector, stream: Events[Event], kept: NDArray[np.int64]) -> Issued:
    """Look up what FSDP2 did at each of these collectives; where they are kernels, their calls say when."""
    called, waits = dict[int, tuple[float, int | str]](), Moments()
    wanted = set(found.correlations) - {-1}
    for event, seconds, at in _calls(found.sharding, exchanging(found), found, stream) if wanted else ():
        if "Synchronize" in event.name:
            waits.add(np.array([seconds]), np.array([seconds + event.dur * 1e-6]))
        if at >= 0 and (number := correlation_of(event)) in wanted:
            called[number] = seconds, event.tid
    return issued(found, called, waits.between(), kept)


def _calls(
    marks: Marks, which: Sequence[int], found: Collector, stream: Events[Event]
) -> Iterator[tuple[Event, float, int]]:
    """Calls of the host around some ranges, when each began, and the range that holds it (-1: none).

    The file is read again.
    """
    by_lane: dict[int | str, list[tuple[float, int]]] = {}
    for at in which:
        by_lane.setdefault(marks.lanes[at], []).append((marks.start_s[at], at))
    for lane in by_lane.values():
        lane.sort()
    for events in stream.again(min(marks.start_s), max(marks.end_s)):
        for event in events:
            if CATEGORY[event.cat] != CALL:
                continue
            seconds, own = (event.ts - (found.zero_us or 0.0)) * 1e-6, by_lane.get(event.tid, [])
            place = bisect_right(own, (seconds, len(marks))) - 1
            at = own[place][1] if place >= 0 else -1
            yield event, seconds, at if at >= 0 and seconds <= marks.end_s[at] else -1


@dataclass(frozen=True)
class _Spans:
    """Spans between two moments: read again, in whichever process."""

    stream: Events[Event]
    known: Collector
    rank: int
    on_device: bool
    modules: Mapping[float, str]

    def __call__(self, start_s: float, end_s: float) -> tuple[Span, ...]:
        since_s = launched_since(start_s, end_s) if self.on_device else start_s
        return spans_of(self.stream.again(since_s, end_s), self.known, self.rank, start_s, end_s, self.modules)


def _add_marks(found: Collector, marks: RankMarks, epoch_s: float) -> None:
    """Add what the rank noted of its steps, as far as the file does not say it."""

    def here(moments: Intervals) -> Intervals:
        return Intervals(moments.starts - epoch_s, moments.ends - epoch_s)

    starts, ends = marks.starts_s[marks.traced] - epoch_s, marks.ends_s[marks.traced] - epoch_s
    if not len(starts):
        return
    if len(found.steps):
        first = int(np.argmin(found.steps.start_s))
        if marks.numbers[marks.traced][0] == 0 and starts[0] < found.steps.start_s[first] < ends[0]:
            waited = here(marks.input)
            before = waited.starts < found.steps.start_s[first]
            found.inputs.add(_MARKS, waited.starts[before], waited.ends[before])
            found.steps.start_s[first] = float(starts[0])
        return
    for number, start, end in zip(marks.numbers[marks.traced].tolist(), starts.tolist(), ends.tolist(), strict=True):
        found.steps.add(f"step {number}", start, end, _MARKS)
    found.last_s[_MARKS] = np.inf
    found.launched = {name: here(getattr(marks, name)) for name in ("input", "backward", "optimizer")}
    if len(marks.input.starts):
        found.inputs.add(_MARKS, *found.launched["input"])
