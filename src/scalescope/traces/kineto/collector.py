"""Gathers what a profiler trace says while its events go by: sets of moments and few single events."""

from array import array

import numpy as np
from numpy.typing import NDArray

from scalescope.records.explanation import Loss
from scalescope.traces.intervals import NOTHING, Intervals, Times, joined
from scalescope.traces.kineto.events import (
    CALLS,
    DEVICE_MARK,
    DEVICE_WORK,
    MARKS,
    OPERATORS,
    POINT_TO_POINT,
    UNKNOWN_OPERATION,
    Arguments,
    Event,
    Meaning,
    Meanings,
    arguments_of,
    is_compiled,
    of_device,
    of_host,
    operation_of,
)
from scalescope.traces.kineto.moments import EVER, Moments

# Operators of a thread that follow each other faster than this leave no gap: the interpreter and the autograd engine
# work between them.
BRIDGED_S = 20e-6
_LATEST_US = 1e16
_LONGEST_US = 1e12
_TOGETHER = 1 << 15
_MOST_LANES = 1024


class Lanes:
    """Moments by thread or stream; a file with endless threads is read as far as the first thousand."""

    def __init__(self) -> None:
        self.moments: dict[int | str, Moments] = {}

    def add(self, lane: int | str, starts: Times, ends: Times) -> None:
        """Takes in intervals of one lane."""
        if lane not in self.moments and len(self.moments) >= _MOST_LANES:
            return
        self.moments.setdefault(lane, Moments()).add(starts, ends)

    def of(self, lane: int | str, within: tuple[float, float] = EVER) -> Intervals:
        """What one lane did."""
        return self.moments[lane].between(within) if lane in self.moments else NOTHING

    def all(self, within: tuple[float, float] = EVER) -> Intervals:
        """What any lane did."""
        return joined(NOTHING, *(each.between(within) for each in self.moments.values()))

    def last(self) -> float:
        """The last moment of any lane."""
        return max((each.last() for each in self.moments.values()), default=-np.inf)


class Marks:
    """Single events in columns."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.bytes = array("q")
        self.start_s = array("d")
        self.end_s = array("d")
        self.lanes: list[int | str] = []

    def add(self, name: str, start_s: float, end_s: float, lane: int | str, size: int = -1) -> None:
        """Takes in one event."""
        self.names.append(name)
        self.bytes.append(size)
        self.start_s.append(start_s)
        self.end_s.append(end_s)
        self.lanes.append(lane)

    def __len__(self) -> int:
        return len(self.names)


class Columns:
    """Events that wait to be worked off together."""

    def __init__(self) -> None:
        self.start_us: list[float] = []
        self.length_us: list[float] = []
        self.lanes: list[int | str] = []
        self._meanings: list[bytes] = []

    def add(self, events: list[Event], meanings: Meanings) -> list[Event]:
        """Takes in events; those that have a meaning of their own come back."""
        found = bytes([meanings[event.name] for event in events])
        self._meanings.append(found)
        self.start_us += [event.ts for event in events]
        self.length_us += [event.dur for event in events]
        self.lanes += [event.tid for event in events]
        return [events[at] for at in np.flatnonzero(np.frombuffer(found, dtype=np.uint8) >= Meaning.LAUNCH).tolist()]

    def meanings(self) -> NDArray[np.uint8]:
        """What the names of all mean."""
        return np.frombuffer(b"".join(self._meanings), dtype=np.uint8)

    def by_lane(self) -> list[tuple[int | str, NDArray[np.bool_]]]:
        """Every lane, and which events are its own."""
        numbers = {lane: number for number, lane in enumerate(set(self.lanes))}
        own = np.array([numbers[lane] for lane in self.lanes], dtype=np.int64)
        return [(lane, own == number) for lane, number in list(numbers.items())[:_MOST_LANES]]


class Collector:
    """What a file said so far; times are seconds since `zero_us`, the whole second before the file's first event."""

    def __init__(self) -> None:
        self.zero_us: float | None = None
        self.operators, self.backward, self.copies, self.launching = Lanes(), Lanes(), Lanes(), Lanes()
        self.inputs, self.device, self.device_optimizer = Lanes(), Lanes(), Lanes()
        self.steps, self.optimizers, self.collectives, self.launches = Marks(), Marks(), Marks(), Marks()
        self.exchange, self.optimizing = Moments(), Moments()
        self.zero_grads = array("d")
        self.training: set[int | str] = set()
        self.exchanging: set[int | str] = set()
        self.exchange_streams: set[int | str] = set()
        self.calls_device = False
        self.last_s: dict[int | str, float] = {}
        self._strange = 0
        self._parameters: dict[int, Arguments] = {}
        self._unnamed: list[tuple[int, int]] = []
        self._host_meanings, self._device_meanings = Meanings(of_host), Meanings(of_device)
        self._operators, self._device = Columns(), Columns()

    def take(self, events: list[Event]) -> None:
        """Takes in events of the file, in any order."""
        if self.zero_us is None:
            real = next((event.ts for event in events if 0 <= event.ts < _LATEST_US and event.dur >= 0), None)
            self.zero_us = None if real is None else real // 1e6 * 1e6
        operators = [event for event in events if event.cat in OPERATORS]
        if operators:
            for event in self._operators.add(operators, self._host_meanings):
                self._take_mark(event, counted=False)
        if len(operators) < len(events):
            self._take_others([event for event in events if event.cat not in OPERATORS])
        if len(self._operators.start_us) + len(self._device.start_us) > _TOGETHER:
            self._work_off()

    def complete(self) -> None:
        """After the last event: works off what waits, and names kernels by the calls that launched them."""
        self._work_off()
        for at, external in self._unnamed:
            if (found := self._parameters.get(external)) is not None:
                self.collectives.names[at] = found.operation or self.collectives.names[at]
                self.collectives.bytes[at] = found.bytes
        self._unnamed = []

    @property
    def compiled(self) -> bool:
        """Whether any name is one that torch.compile gives."""
        return any(is_compiled(name) for names in (self._host_meanings, self._device_meanings) for name in names)

    def loss(self) -> Loss:
        """Events that were read and cannot be."""
        reason = "there are events with impossible times or without a duration" if self._strange else ""
        return Loss(events=self._strange, reason=reason)

    def _take_others(self, events: list[Event]) -> None:
        self.calls_device = self.calls_device or any(event.cat in CALLS for event in events)
        device = [event for event in events if event.cat in DEVICE_WORK]
        if device:
            for event in self._device.add(device, self._device_meanings):
                self._take_kernel(event)
        for event in [event for event in events if event.cat in MARKS]:
            if event.cat == DEVICE_MARK:
                self._take_device_mark(event)
            elif self._host_meanings[event.name]:
                self._take_mark(event, counted=True)

    def _seconds(self, event: Event, *, counted: bool) -> tuple[float, float] | None:
        """When it began and ended, None when that cannot be."""
        if not (0 <= event.ts < _LATEST_US and 0 <= event.dur < _LONGEST_US):
            self._strange += counted
            return None
        start = (event.ts - (self.zero_us or 0.0)) * 1e-6
        return start, start + event.dur * 1e-6

    def _take_mark(self, event: Event, *, counted: bool) -> None:
        meaning, times = self._host_meanings[event.name], self._seconds(event, counted=counted)
        if times is None:
            return
        if meaning == Meaning.LAUNCH:
            self.launches.add(operation_of(event.name), *times, event.tid)
        elif meaning == Meaning.PARAMETERS:
            arguments = arguments_of(event)
            if arguments.external_id is not None and arguments.operation:
                self._parameters[arguments.external_id] = arguments
        elif meaning == Meaning.INPUT:
            self.inputs.add(event.tid, *_arrays(times))
        elif meaning == Meaning.ZERO_GRAD:
            self.zero_grads.append(times[0])
        elif meaning == Meaning.COLLECTIVE:
            self.exchanging.add(event.tid)
            self.exchange.add(*_arrays(times))
            self.collectives.add(operation_of(event.name), *times, event.tid, arguments_of(event).bytes)
        else:
            self.training.add(event.tid)
            if meaning == Meaning.STEP:
                self.steps.add(event.name, *times, event.tid)
            elif meaning == Meaning.OPTIMIZER:
                self.optimizing.add(*_arrays(times))
                self.optimizers.add(event.name, *times, event.tid)

    def _take_kernel(self, event: Event) -> None:
        times = self._seconds(event, counted=False)
        if times is None:
            return
        arguments = arguments_of(event)
        if arguments.bytes < 0 and arguments.external_id is not None:
            self._unnamed.append((len(self.collectives), arguments.external_id))
        operation = arguments.operation or operation_of(event.name)
        self.exchange.add(*_arrays(times))
        self.collectives.add(operation, *times, event.tid, arguments.bytes)

    def _take_device_mark(self, event: Event) -> None:
        meaning, times = self._device_meanings[event.name], self._seconds(event, counted=True)
        if times is None:
            return
        if meaning == Meaning.OPTIMIZER:
            self.device_optimizer.add(event.tid, *_arrays(times))
        elif meaning == Meaning.COLLECTIVE:
            self.exchange_streams.add(event.tid)

    def _work_off(self) -> None:
        operators, self._operators = self._operators, Columns()
        device, self._device = self._device, Columns()
        if operators.start_us:
            self._take_operators(operators)
        if device.start_us:
            real, starts, ends = self._times(device)
            work = real & (device.meanings() == Meaning.OTHER)
            for stream, own in device.by_lane():
                self.device.add(stream, starts[work & own], ends[work & own])

    def _times(self, columns: Columns) -> tuple[NDArray[np.bool_], Times, Times]:
        """Which events have times that can be, and starts and ends of all in seconds."""
        starts, lengths = np.array(columns.start_us, dtype=float), np.array(columns.length_us, dtype=float)
        with np.errstate(invalid="ignore"):
            real = (starts >= 0) & (starts < _LATEST_US) & (lengths >= 0) & (lengths < _LONGEST_US)
        self._strange += int(len(real) - real.sum())
        begin = (starts - (self.zero_us or 0.0)) * 1e-6
        return real, begin, begin + lengths * 1e-6

    def _take_operators(self, columns: Columns) -> None:
        real, starts, ends = self._times(columns)
        meanings = columns.meanings()
        real &= meanings <= Meaning.PARAMETERS
        for thread, own in columns.by_lane():
            here = real & own
            if not here.any():
                continue
            self.operators.add(thread, starts[here], ends[here] + BRIDGED_S)
            self.last_s[thread] = max(self.last_s.get(thread, 0.0), float(starts[here].max()))
            for meaning, lanes in (
                (Meaning.BACKWARD, self.backward),
                (Meaning.COPY, self.copies),
                (Meaning.LAUNCH, self.launching),
            ):
                those = here & (meanings == meaning)
                if those.any():
                    lanes.add(thread, starts[those], ends[those])
        self.training.update(self.backward.moments)


def is_collective(operation: str) -> bool:
    """Whether every rank takes part in it, at the same place in the order."""
    return operation not in (*POINT_TO_POINT, UNKNOWN_OPERATION)


def _arrays(times: tuple[float, float]) -> tuple[Times, Times]:
    return np.array(times[:1]), np.array(times[1:])
