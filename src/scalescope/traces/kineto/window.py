"""One stretch of a profiler trace for drawing: what a rank did, with operators and kernels merged."""

from array import array
from pathlib import Path

import msgspec
import numpy as np

from scalescope.records.timeline import Activity, Span
from scalescope.traces.event_stream import EventStream
from scalescope.traces.intervals import NOTHING, Intervals, Times, common, joined, union, without
from scalescope.traces.kineto.activities import operators, stepping_alone
from scalescope.traces.kineto.collector import BRIDGED_S, Collector
from scalescope.traces.kineto.events import CALLS, DEVICE_WORK, Event, facts_of, of_device
from scalescope.traces.kineto.moments import bridged

_MOST_SPANS = 1000  # Of one activity; where there are more, those with the shortest gaps between them become one
_MOST_COLLECTIVES = 2000
_LONGEST_LAG_S = 10.0  # Calls that launched work longer before the window are not looked for


def window(path: Path, start_s: float, end_s: float) -> tuple[Span, ...]:
    """What happened between two moments of the file's own clock; its rank is 0 where the file does not say."""
    stream, found, device = EventStream(path, Event), Collector(), _DeviceWork()
    for events in stream:
        found.take(events)
        device.take(events, found.zero_us or 0.0, start_s, end_s)
    found.complete()
    rank = facts_of(stream.header + stream.footer, path).rank or 0
    sets = device.activities(found) if len(device.start_s) else _host_activities(found, (start_s, end_s))
    spans = []
    for activity, moments in sets.items():
        shown = _merged(_cut(moments, start_s, end_s))
        spans += [
            Span(rank=rank, activity=activity, start_s=first, end_s=last)
            for first, last in zip(shown.starts.tolist(), shown.ends.tolist(), strict=True)
        ]
    spans += _exchanges(found, rank, start_s, end_s)
    return tuple(sorted(spans, key=lambda span: (span.start_s, span.end_s)))


def _host_activities(found: Collector, within: tuple[float, float]) -> dict[Activity, Intervals]:
    lanes = found.training or set(found.operators.moments) - found.exchanging
    optimizers = stepping_alone(found, within)
    engine = (without(found.backward.of(lane, within), found.launching.of(lane, within)) for lane in lanes)
    backward = bridged(joined(NOTHING, *engine), BRIDGED_S)
    copies = without(bridged(found.copies.all(within), BRIDGED_S), backward)
    rest = joined(optimizers, backward, copies)
    forward = without(joined(NOTHING, *(operators(found, lane, within) for lane in lanes)), rest)
    return {
        "input": found.inputs.all(within),
        "forward": forward,
        "backward": backward,
        "copy": copies,
        "optimizer": optimizers,
    }


def _exchanges(found: Collector, rank: int, start_s: float, end_s: float) -> list[Span]:
    marks = found.collectives
    starts, ends = np.array(marks.start_s), np.array(marks.end_s)
    seen = np.flatnonzero((starts < end_s) & (ends > start_s)).tolist()
    if len(seen) > _MOST_COLLECTIVES:
        merged = _merged(_cut(union(starts[seen], ends[seen]), start_s, end_s))
        return [
            Span(rank=rank, activity="communication", start_s=first, end_s=last)
            for first, last in zip(merged.starts.tolist(), merged.ends.tolist(), strict=True)
        ]
    return [
        Span(
            rank=rank,
            activity="communication",
            start_s=max(start_s, float(starts[at])),
            end_s=min(end_s, float(ends[at])),
            name=marks.names[at],
            bytes=max(0, marks.bytes[at]),
        )
        for at in seen
    ]


def _cut(moments: Intervals, start_s: float, end_s: float) -> Intervals:
    return union(np.maximum(moments.starts, start_s), np.minimum(moments.ends, end_s))


def _merged(moments: Intervals) -> Intervals:
    gap = BRIDGED_S
    while len((merged := bridged(moments, gap)).starts) > _MOST_SPANS:
        gap *= 2
    return merged


class _Correlated(msgspec.Struct, gc=False):
    correlation: int = -1


class _DeviceWork:
    """What the GPU did in the window, and the calls that launched it."""

    def __init__(self) -> None:
        self.start_s = array("d")
        self._end_s = array("d")
        self._correlation = array("q")
        self._streams: list[int | str] = []
        self._call_s = array("d")
        self._call_correlation = array("q")
        self._call_lane: list[int | str] = []
        self._decode = msgspec.json.Decoder(_Correlated).decode

    def take(self, events: list[Event], zero_us: float, start_s: float, end_s: float) -> None:
        """Takes in work of the window, and the calls that may have launched it."""
        first, last = zero_us + start_s * 1e6, zero_us + end_s * 1e6
        earliest = first - _LONGEST_LAG_S * 1e6
        for event in events:
            if event.cat in CALLS and earliest < event.ts < last and (number := self._number(event)) >= 0:
                self._call_s.append((event.ts - zero_us) * 1e-6)
                self._call_correlation.append(number)
                self._call_lane.append(event.tid)
            elif (
                event.cat in DEVICE_WORK
                and event.ts < last
                and event.ts + event.dur > first
                and not of_device(event.name)
            ):
                self.start_s.append((event.ts - zero_us) * 1e-6)
                self._end_s.append((event.ts + event.dur - zero_us) * 1e-6)
                self._correlation.append(self._number(event))
                self._streams.append(event.tid)

    def _number(self, event: Event) -> int:
        try:
            number = self._decode(event.args).correlation
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return -1
        return number if 0 <= number < 1 << 62 else -1

    def activities(self, found: Collector) -> dict[Activity, Intervals]:
        """Backward is what the autograd engine launched, the optimizer what was launched in Optimizer.step."""
        starts, ends = np.array(self.start_s), np.array(self._end_s)
        launched, lanes = self._launches()
        optimizers = stepping_alone(found)
        backward, copies = np.zeros(len(starts), dtype=bool), np.zeros(len(starts), dtype=bool)
        for lane in found.training:
            here = lanes == lane
            backward[here] = _inside(found.backward.of(lane), launched[here])
            copies[here] = _inside(found.copies.of(lane), launched[here]) & ~backward[here]
        own = np.array([stream not in found.exchange_streams for stream in self._streams])
        optimizer = ~backward & ~copies & _inside(optimizers, launched)
        known = np.isfinite(launched)
        kinds: dict[Activity, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {
            "forward": known & ~backward & ~copies & ~optimizer & own,
            "backward": backward & own,
            "copy": copies & own,
            "optimizer": optimizer & own,
            "other": ~known & own,
        }
        sets: dict[Activity, Intervals] = {kind: union(starts[those], ends[those]) for kind, those in kinds.items()}
        busy = union(starts[own], ends[own])
        return sets | {"input": without(found.inputs.all(), common(found.inputs.all(), busy))}

    def _launches(self) -> tuple[Times, "np.ndarray[tuple[int], np.dtype[np.object_]]"]:
        """When and on which thread each piece of work was launched; NaN where no call is known."""
        work = np.array(self._correlation, dtype=np.int64)
        calls = np.array(self._call_correlation, dtype=np.int64)
        order = np.argsort(calls, kind="stable")
        at = np.minimum(np.searchsorted(calls[order], work), max(0, len(calls) - 1))
        launched, lanes = np.full(len(work), np.nan), np.full(len(work), None, dtype=object)
        if len(calls):
            matched = (calls[order][at] == work) & (work >= 0)
            launched[matched] = np.array(self._call_s)[order][at][matched]
            threads = np.empty(len(calls), dtype=object)
            threads[:] = self._call_lane
            lanes[matched] = threads[order][at][matched]
        return launched, lanes


def _inside(moments: Intervals, times: Times) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    if not len(moments.starts):
        return np.zeros(len(times), dtype=bool)
    at = np.searchsorted(moments.starts, times, side="right") - 1
    return np.asarray((at >= 0) & (times <= moments.ends[np.maximum(at, 0)]))
