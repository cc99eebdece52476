"""Activities of a rank in a profiler trace: as sets of moments for the accounting, as spans for drawing."""

from array import array
from collections.abc import Iterable, Mapping

import numpy as np

from scalescope.intervals import (
    EVER,
    NOTHING,
    Intervals,
    Moments,
    Times,
    bridged,
    common,
    holding,
    joined,
    union,
    without,
)
from scalescope.records.timeline import Activity, Span
from scalescope.traces.kineto.collector import BRIDGED_S, Collector
from scalescope.traces.kineto.events import CALL, CATEGORY, DEVICE_WORK, Event, correlation_of
from scalescope.traces.kineto.events import of_device as meaning_on_device
from scalescope.traces.trace import Activities, Parts, exposed_of, parts_of

_STEPS_TOGETHER = 64
_MOST_SPANS = 1000  # Of one activity; where there are more, those with the shortest gaps between them become one
_SHORTEST_LAG_S, _LONGEST_LAG_S = 1.0, 10.0  # How long before it runs work is launched at most; see launched_since()


def account(found: Collector, starts_s: Times, ends_s: Times, *, on_device: bool) -> tuple[Parts, Intervals]:
    """The parts of every step and when communication was exposed, a few steps at a time.

    Sets of a whole file would take much memory.
    """
    blocks, alone, knows_optimizer = [], Moments(), bool(found.device_optimizer.moments)
    for at in range(0, max(1, len(starts_s)), _STEPS_TOGETHER):
        starts, ends = starts_s[at : at + _STEPS_TOGETHER], ends_s[at : at + _STEPS_TOGETHER]
        within = (float(starts[0]), float(ends.max())) if len(starts) else (0.0, 0.0)
        if not at:  # a GPU's mark of an optimizer holds the kernels of its closure, too
            knows_optimizer &= not len(closures(found, within).starts)
        activities = of_device(found, within, knows_optimizer) if on_device else of_host(found, within)
        exposed = exposed_of(activities)
        blocks.append(parts_of(activities, starts, ends, exposed))
        alone.add(*common(exposed, union(starts, ends)))

    return Parts.joined(blocks), alone.between()


def of_host(found: Collector, within: tuple[float, float] = EVER) -> Activities:
    """On CPU: what operators of the training threads, the threads of gloo and the loader did.

    A rank that waits for its next batch does not wait for communication, even if some goes on.
    """
    lanes = found.training or set(found.operators.moments) - found.exchanging
    busy = joined(NOTHING, *(operators(found, lane, within) for lane in lanes))
    inputs = found.inputs.all(within)
    exchange = without(found.exchange.between(within), inputs)
    optimizers = stepping_alone(found, within)
    stepping = joined(common(busy, optimizers), without(optimizers, exchange))
    return Activities(
        compute=without(busy, optimizers),
        optimizer=stepping if len(found.optimizers) else None,
        exchange=exchange if len(found.collectives) else None,
        input=inputs if found.inputs.moments else None,
    )


def of_device(found: Collector, within: tuple[float, float], knows_optimizer: bool) -> Activities:
    """On CUDA: what the GPU did; the loader counts where the GPU idles."""
    streams = set(found.device.moments)
    busy = joined(NOTHING, *(found.device.of(stream, within) for stream in streams - found.exchange_streams))
    optimizers = found.device_optimizer.all(within) if knows_optimizer else NOTHING
    copies = joined(NOTHING, *(found.device.of(stream, within) for stream in streams & found.exchange_streams))
    return Activities(
        compute=without(busy, optimizers),
        optimizer=common(busy, optimizers) if knows_optimizer else None,
        exchange=joined(found.exchange.between(within), copies) if len(found.collectives) else None,
        input=found.inputs.all(within) if found.inputs.moments else None,
    )


def operators(found: Collector, lane: int | str, within: tuple[float, float] = EVER) -> Intervals:
    """Moments of operators on a thread: not the launch of communication, and not those of the loader."""
    wide = found.operators.of(lane, within)
    ran = Intervals(wide.starts, wide.ends - BRIDGED_S)
    return without(ran, joined(_sending(found, lane, within), found.inputs.of(lane, within)))


def _sending(found: Collector, lane: int | str, within: tuple[float, float]) -> Intervals:
    """Moments in which a thread launched communication or waited for it."""
    return joined(found.launching.of(lane, within), found.blocked.of(lane, within))


def stepping_alone(found: Collector, within: tuple[float, float] = EVER) -> Intervals:
    """Moments of optimizers' steps; what their closures did is forward and backward."""
    return without(found.optimizing.between(within), closures(found, within))


def closures(found: Collector, within: tuple[float, float] = EVER) -> Intervals:
    """Inside Optimizer.step: from its beginning or a zero_grad to the end of the last backward before the next one."""
    steps, backward = found.optimizing.between(within), found.backward.all(within)
    if not len(steps.starts) or not len(backward.starts):
        return NOTHING
    zeroed = np.sort(np.array(found.zero_grads))
    holder = np.searchsorted(steps.starts, zeroed, side="right") - 1
    starts = np.sort(np.append(steps.starts, zeroed[(holder >= 0) & (zeroed < steps.ends[holder])]))
    ends = np.minimum(
        np.append(starts[1:], np.inf), steps.ends[np.searchsorted(steps.starts, starts, side="right") - 1]
    )
    last = np.searchsorted(backward.starts, ends) - 1
    has_one = (last >= 0) & (backward.starts[last] >= starts)
    return union(starts[has_one], np.minimum(backward.ends[last], ends)[has_one])


def spans_of(
    batches: Iterable[list[Event]],
    known: Collector,
    rank: int,
    start_s: float,
    end_s: float,
    modules: Mapping[float, str],
) -> tuple[Span, ...]:
    """Spans between two moments, with operators and kernels merged.

    Args:
        batches: Events of that time, and of the time in which its work was launched.
        known: All that the whole file holds.
        rank: Whose file it is.
        start_s: On the file's own clock.
        end_s: On the file's own clock.
        modules: Whose collective began at a moment, as far as the file says it.
    """
    found, device = known.knowing_the_same(), _DeviceWork()
    for events in batches:
        found.take(events)
        device.take(events, found.zero_us or 0.0, start_s, end_s)
    found.complete()
    sets = device.activities(found) if len(device.start_s) else _host_activities(found, (start_s, end_s))
    spans = []
    for activity, moments in sets.items():
        shown = _merged(moments, start_s, end_s)
        spans += [
            Span(rank=rank, activity=activity, start_s=first, end_s=last)
            for first, last in zip(shown.starts.tolist(), shown.ends.tolist(), strict=True)
        ]
    marks = found.collectives
    for name, size, first, last in zip(marks.names, marks.bytes, marks.start_s, marks.end_s, strict=True):
        if first < end_s and last > start_s:
            shown_name = f"{name} of {module}" if (module := modules.get(first)) else name
            start, end = max(start_s, first), min(end_s, last)
            spans.append(
                Span(
                    rank=rank,
                    activity="communication",
                    start_s=start,
                    end_s=end,
                    name=shown_name,
                    bytes=max(0, size),
                )
            )
    return tuple(sorted(spans, key=lambda span: (span.start_s, span.end_s)))


def launched_since(start_s: float, end_s: float) -> float:
    """From when on calls may have launched what ran in a window: a host is two steps ahead of its GPU at most."""
    return start_s - min(max(2 * (end_s - start_s), _SHORTEST_LAG_S), _LONGEST_LAG_S)


def _host_activities(found: Collector, within: tuple[float, float]) -> dict[Activity, Intervals]:
    lanes = found.training or set(found.operators.moments) - found.exchanging
    optimizers = stepping_alone(found, within)
    engine = (without(found.backward.of(lane, within), _sending(found, lane, within)) for lane in lanes)
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


def _merged(moments: Intervals, start_s: float, end_s: float) -> Intervals:
    """Spans between two moments, with the shortest gaps closed where it is too much to draw."""
    moments, gap = union(np.maximum(moments.starts, start_s), np.minimum(moments.ends, end_s)), BRIDGED_S
    while len((merged := bridged(moments, gap)).starts) > _MOST_SPANS:
        gap *= 2
    return merged


class _DeviceWork:
    """Work of the GPU in the window, and the calls that launched it."""

    def __init__(self) -> None:
        self.start_s = array("d")
        self._end_s = array("d")
        self._correlation = array("q")
        self._streams: list[int | str] = []
        self._call_s = array("d")
        self._call_correlation = array("q")
        self._call_lane: list[int | str] = []

    def take(self, events: list[Event], zero_us: float, start_s: float, end_s: float) -> None:
        """Takes in work of the window, and the calls that may have launched it."""
        first, last = zero_us + start_s * 1e6, zero_us + end_s * 1e6
        earliest = zero_us + launched_since(start_s, end_s) * 1e6
        for event in events:
            category = CATEGORY[event.cat]
            if category == CALL and earliest < event.ts < last and (number := correlation_of(event)) >= 0:
                self._call_s.append((event.ts - zero_us) * 1e-6)
                self._call_correlation.append(number)
                self._call_lane.append(event.tid)
            elif (
                category == DEVICE_WORK
                and event.ts < last
                and event.ts + event.dur > first
                and not meaning_on_device(event.name)
            ):
                self.start_s.append((event.ts - zero_us) * 1e-6)
                self._end_s.append((event.ts + event.dur - zero_us) * 1e-6)
                self._correlation.append(correlation_of(event))
                self._streams.append(event.tid)

    def activities(self, found: Collector) -> dict[Activity, Intervals]:
        """Backward is what the autograd engine launched, the optimizer what was launched in Optimizer.step."""
        starts, ends = np.array(self.start_s), np.array(self._end_s)
        # Time and thread at which each piece of work was launched; NaN where no call is known.
        work, calls = (np.array(each, dtype=np.int64) for each in (self._correlation, self._call_correlation))
        launched, lanes = np.full(len(work), np.nan), np.full(len(work), None, dtype=object)
        if len(calls):
            order = np.argsort(calls, kind="stable")
            at = np.minimum(np.searchsorted(calls[order], work), len(calls) - 1)
            matched = (calls[order][at] == work) & (work >= 0)
            threads = np.empty(len(calls), dtype=object)
            threads[:] = self._call_lane
            launched[matched] = np.array(self._call_s)[order][at][matched]
            lanes[matched] = threads[order][at][matched]
        optimizers = stepping_alone(found)
        backward, copies = np.zeros(len(starts), dtype=bool), np.zeros(len(starts), dtype=bool)
        for lane in found.training:
            here = lanes == lane
            backward[here] = holding(*found.backward.of(lane), launched[here]) >= 0
            copies[here] = (holding(*found.copies.of(lane), launched[here]) >= 0) & ~backward[here]
        if found.launched:
            backward, optimizers = (holding(*found.launched["backward"], launched) >= 0), found.launched["optimizer"]
        own = np.array([stream not in found.exchange_streams for stream in self._streams])
        optimizer = ~backward & ~copies & (holding(*optimizers, launched) >= 0)
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
