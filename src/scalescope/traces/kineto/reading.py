"""Reads traces of PyTorch's profiler: their steps, what a rank did in them, and the messages that carry gradients."""

import contextlib
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from scalescope.engines import engine_of_trace
from scalescope.intervals import NOTHING, Intervals, Moments, Times
from scalescope.records.explanation import Loss
from scalescope.records.timeline import Span
from scalescope.text import plural
from scalescope.traces.event_stream import EventStream, is_object
from scalescope.traces.kineto.activities import account, launched_since, spans_of
from scalescope.traces.kineto.collector import Collector, Marks
from scalescope.traces.kineto.events import CALL, CATEGORY, Correlated, Event, facts_of, is_collective
from scalescope.traces.kineto.sharded import blocked, exchanging_ranges, issued
from scalescope.traces.marks import RankMarks
from scalescope.traces.trace import Collectives, StepsFrom, Trace
from scalescope.traces.trace_bytes import Places

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
    if len(starts) > 1 and _is_cut_off(found.optimizers, starts, ends):
        note = "The last step mark was cut off and is left out."
        return Steps("marks", starts[:-1], ends[:-1], (note,))
    return Steps("marks", starts, ends)


def _is_cut_off(optimizers: Marks, starts: Times, ends: Times) -> bool:
    """Check whether the last step lacks the optimizer that others have, or is short where no step has one."""
    moments = np.sort(np.array(optimizers.start_s))
    counts = np.searchsorted(moments, ends) - np.searchsorted(moments, starts)
    if counts[:-1].any():
        return bool(counts[-1] == 0 and np.median(counts[:-1]) >= 1)
    lengths = ends - starts
    return bool(lengths[-1] < np.median(lengths[:-1]) / 2)


def _between_optimizers(found: Collector) -> Steps:
    """On CUDA between the ends of what Optimizer.step launched, which lag behind the calls."""
    ends = found.device_optimizer.all().ends
    if not len(ends):
        ends = np.sort(_ends_of_one_optimizer(found.optimizers))
    ends = ends[np.diff(ends, prepend=-np.inf) > 0]
    if len(ends) < 2:
        why = "it has no step marks and fewer than two calls of Optimizer.step"
        advice = "Call the profiler's step() in the loop."
        return Steps("none", np.zeros(0), np.zeros(0), (f"The trace has no steps: {why}. {advice}",))
    return Steps("optimizer", ends[:-1], ends[1:], ("Steps run from one end of Optimizer.step to the next.",))


def _ends_of_one_optimizer(optimizers: Marks) -> Times:
    """Ends of the optimizer that stepped most often and, among equals, last: others run inside or next to it."""
    ends = np.array(optimizers.end_s)
    names, which = np.unique(np.array(optimizers.names, dtype=object), return_inverse=True)
    each = [ends[which == at] for at in range(len(names))]
    return max(each, key=lambda those: (len(those), those.max()), default=np.zeros(0))


def _in_order(found: Collector) -> NDArray[np.int64]:
    """Indices of the file's collectives, in the order of their ends."""
    marks = found.collectives
    kept = np.flatnonzero([is_collective(name) for name in marks.names]) if len(marks) else np.zeros(0, dtype=np.int64)
    return kept[np.argsort(np.array(marks.end_s)[kept], kind="stable")]


def _collectives_of(found: Collector, kept: NDArray[np.int64]) -> Collectives:
    marks = found.collectives
    return Collectives(
        np.array(marks.names, dtype=object)[kept],
        np.array(marks.bytes, dtype=np.int64)[kept],
        np.array(marks.start_s)[kept],
        np.array(marks.end_s)[kept],
    )


def bucket_bytes(found: Collector, collectives: Collectives, steps: Steps) -> tuple[int, ...]:
    """Sizes of the allreduces that backward launched in a typical step, in the order of their launch."""
    carries = _launched_by_backward(found, collectives)
    order = np.argsort(collectives.start_s, kind="stable")
    order = order[carries[order]]
    starts, sizes = collectives.start_s[order], collectives.bytes[order]
    first, last = np.searchsorted(starts, steps.starts_s), np.searchsorted(starts, steps.ends_s)
    each = Counter(tuple(sizes[begin:end].tolist()) for begin, end in zip(first, last, strict=True))
    typical = max(each, key=lambda sizes: each[sizes], default=())
    return () if -1 in typical else typical


def _launched_by_backward(found: Collector, collectives: Collectives) -> NDArray[np.bool_]:
    """Launches and allreduces are first in, first out; one before the first launch was launched before the trace."""
    allreduces = np.array(collectives.operation == "allreduce", dtype=bool)
    launches = sorted(
        (start, lane)
        for name, start, lane in zip(found.launches.names, found.launches.start_s, found.launches.lanes, strict=True)
        if name == "allreduce"
    )
    if not launches:
        return allreduces
    inside: dict[float, bool] = {}
    for lane in {lane for _, lane in launches}:
        moments = found.backward.of(lane)
        times = np.array([start for start, other in launches if other == lane])
        at = np.searchsorted(moments.starts, times, side="right") - 1
        within = (
            (at >= 0) & (times < moments.ends[np.maximum(at, 0)]) if len(moments.starts) else np.zeros(len(times), bool)
        )
        inside.update(zip(times.tolist(), within.tolist(), strict=True))
    waiting = deque(start for start, _ in launches)
    carries = np.zeros(len(allreduces), dtype=bool)
    for at in np.argsort(collectives.start_s, kind="stable").tolist():
        if allreduces[at] and waiting and waiting[0] <= collectives.start_s[at]:
            carries[at] = inside[waiting.popleft()]
    return carries


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
    stream, found, places = EventStream(path, Event), Collector(), Places()
    for events in stream:
        places.add(stream.piece, *found.take(events))
    found.complete()
    if found.unnamed and len(found.ranges):
        found.name_kernels(_called(found, stream, places))
    if len(found.sharding) and not found.device.moments:
        found.blocked = blocked(found)
    facts = facts_of(stream.header + stream.footer, path)
    epoch_s = facts.epoch_s + (found.zero_us or 0.0) * 1e-6 if facts.epoch_s else 0.0
    if marks is not None and epoch_s:
        _add_marks(found, marks, epoch_s)
    cut = bool(stream.loss.reason) and not stream.footer.strip()
    on_device = bool(found.device.moments) or (cut and found.calls_device)
    steps = steps_of(found, complete_until_s=_complete_until(found, on_device) if cut else np.inf)
    parts, alone = account(found, steps.starts_s, steps.ends_s, on_device=on_device)
    kept = _in_order(found)
    collectives = _collectives_of(found, kept)
    sharding = issued(found, *_calls(found, stream, places), kept)
    modules = {} if sharding is None else dict(zip(collectives.start_s.tolist(), sharding.module.tolist(), strict=True))
    own = set() if sharding is None else set(collectives.operation[sharding.phase != ""].tolist())
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
        loss=_both(stream.loss, found.loss()),
        notes=tuple(notes),
        spans=_Spans(stream, places, found.knowing_the_same(), facts.rank or 0, on_device, modules),
    )


def _called(found: Collector, stream: EventStream[Event], places: Places) -> dict[int, tuple[str, int]]:
    """Operation and bytes by the correlation of the calls inside torch's ranges of NCCL; the file is read again."""
    ranges, zero_us = found.ranges, found.zero_us or 0.0
    decode = msgspec.json.Decoder(Correlated).decode
    by_lane: dict[int | str, list[tuple[float, int]]] = {}
    for at in np.argsort(np.array(ranges.start_s), kind="stable").tolist():
        by_lane.setdefault(ranges.lanes[at], []).append((ranges.start_s[at], at))
    called: dict[int, tuple[str, int]] = {}
    pieces = places.holding(min(ranges.start_s), max(ranges.end_s))
    for events in stream.again(pieces, stream.decoded, lambda events: events):
        for event in events:
            if CATEGORY[event.cat] != CALL or event.tid not in by_lane:
                continue
            seconds, own = (event.ts - zero_us) * 1e-6, by_lane[event.tid]
            _, at = own[max(bisect_right(own, (seconds, len(ranges))) - 1, 0)]
            if ranges.start_s[at] <= seconds <= ranges.end_s[at]:
                with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
                    called[decode(event.args).correlation] = ranges.names[at], ranges.bytes[at]
    return called


def _calls(
    found: Collector, stream: EventStream[Event], places: Places
) -> tuple[dict[int, tuple[float, int | str]], Intervals]:
    """Read again what the host did for FSDP2's kernels, where a trace has any.

    Returns:
        When and on which thread each was launched, by correlation, and when the host waited for its GPU.
    """
    wanted, called, waits = set(found.correlations) - {-1}, dict[int, tuple[float, int | str]](), Moments()
    if not wanted or not len(found.sharding):
        return called, NOTHING
    ranges, zero_us, decode = exchanging_ranges(found), found.zero_us or 0.0, msgspec.json.Decoder(Correlated).decode
    pieces = places.holding(min(found.sharding.start_s), max(found.sharding.end_s))
    for events in stream.again(pieces, stream.decoded, lambda events: events):
        for event in events:
            if CATEGORY[event.cat] != CALL:
                continue
            seconds = (event.ts - zero_us) * 1e-6
            if "Synchronize" in event.name:
                waits.add(np.array([seconds]), np.array([seconds + event.dur * 1e-6]))
            own = ranges.get(event.tid, [])
            at = bisect_right(own, (seconds, np.inf)) - 1
            if at >= 0 and seconds <= own[at][1]:
                with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
                    if (number := decode(event.args).correlation) in wanted:
                        called[number] = seconds, event.tid
    return called, waits.between()


@dataclass(frozen=True)
class _Spans:
    """What was going on between two moments: read again, in whichever process."""

    stream: EventStream[Event]
    places: Places
    known: Collector
    rank: int
    on_device: bool
    modules: Mapping[float, str]

    def __call__(self, start_s: float, end_s: float) -> tuple[Span, ...]:
        pieces = self.places.holding(launched_since(start_s, end_s) if self.on_device else start_s, end_s)
        events = self.stream.again(pieces, self.stream.decoded, lambda events: events)
        return spans_of(events, self.known, self.rank, start_s, end_s, self.modules)


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


def _complete_until(found: Collector, on_device: bool) -> float:
    """Moment until which a cut file is complete: its events are sorted by thread, and a GPU's come last."""
    threads = [found.last_s.get(lane, -np.inf) for lane in set(found.steps.lanes) | set(found.optimizers.lanes)]
    until = min(threads, default=-np.inf)
    if on_device:
        until = min(until, found.device.last())
    return until


def _both(stream: Loss, events: Loss) -> Loss:
    reasons = [each.reason for each in (stream, events) if each.reason]
    return Loss(events=stream.events + events.events, bytes=stream.bytes, reason="; ".join(reasons))
