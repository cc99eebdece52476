"""Gathers what a profiler trace says while its events go by: sets of moments and few single events."""

from array import array
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from scalescope.intervals import EVER, NOTHING, Intervals, Moments, Times, joined
from scalescope.traces.kineto.events import (
    CALL,
    CATEGORY,
    DEVICE_MARK,
    DEVICE_WORK,
    HOST_MARK,
    OPERATOR,
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

# Operators of a thread that follow each other faster than this leave no gap: the interpreter and the autograd engine
# work between them.
BRIDGED_S = 20e-6
_LATEST_US = 1e16
_LONGEST_US = 1e12
_TOGETHER = 1 << 15


class Lanes:
    """Moments by thread or stream."""

    def __init__(self) -> None:
        self.moments: dict[int | str, Moments] = {}

    def add(self, lane: int | str, starts: Times, ends: Times) -> None:
        """Takes in intervals of one lane."""
        self.moments.setdefault(lane, Moments()).add(starts, ends)

    def of(self, lane: int | str, within: tuple[float, float] = EVER) -> Intervals:
        """Moments of one lane."""
        return self.moments[lane].between(within) if lane in self.moments else NOTHING

    def all(self, within: tuple[float, float] = EVER) -> Intervals:
        """Moments of any lane."""
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

    def by_start(self) -> list[int]:
        """Their places in the order of their starts."""
        order: list[int] = np.argsort(np.array(self.start_s), kind="stable").tolist()
        return order

    def __len__(self) -> int:
        return len(self.names)


def launched(launches_s: Sequence[float], works_s: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Pairs of a work and its launch, by their places: both ascend and are first in, first out.

    Works that began before the first launch were launched before the trace.
    """
    launch = 0
    for at, start_s in enumerate(works_s):
        if launch < len(launches_s) and launches_s[launch] <= start_s:
            yield at, launch
            launch += 1


class Columns:
    """Events of one category that wait to be worked off together."""

    def __init__(self) -> None:
        self.count = 0
        self._columns: list[tuple[Times, Times, NDArray[np.int64], NDArray[np.uint8]]] = []

    def add(
        self, events: list[Event], starts_us: Times, lengths_us: Times, lanes: dict[int | str, int], meanings: Meanings
    ) -> list[Event]:
        """Takes in events; those that have a meaning of their own come back."""
        meaning = np.frombuffer(bytes([meanings[event.name] for event in events]), dtype=np.uint8)
        lane = np.array([lanes[event.tid] for event in events], dtype=np.int64)
        self._columns.append((starts_us, lengths_us, lane, meaning))
        self.count += len(events)
        return [events[at] for at in np.flatnonzero(meaning >= Meaning.LAUNCH).tolist()]

    def together(self) -> tuple[Times, Times, NDArray[np.int64], NDArray[np.uint8]]:
        """Starts and lengths in microseconds, lanes and meanings; then there are none."""
        starts, lengths, lanes, meanings = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        self.count, self._columns = 0, []
        return starts, lengths, lanes, meanings


class _LaneNumbers(dict[int | str, int]):
    """Numbers threads and streams."""

    def __missing__(self, lane: int | str) -> int:
        self[lane] = number = len(self)
        return number


class Collector:
    """Facts of a file so far; times are seconds since `zero_us`, the whole second before the file's first event."""

    def __init__(self) -> None:
        self.zero_us: float | None = None
        self.operators, self.backward, self.copies, self.launching = Lanes(), Lanes(), Lanes(), Lanes()
        self.blocked = Lanes()  # Waits for communication inside operators
        self.inputs, self.device, self.device_optimizer = Lanes(), Lanes(), Lanes()
        self.steps, self.optimizers, self.collectives, self.launches = Marks(), Marks(), Marks(), Marks()
        self.ranges = Marks()  # Of torch around the calls that launch NCCL's kernels
        self.sharding, self.device_sharding = Marks(), Marks()  # FSDP2's own ranges, of host and GPU
        # Of each collective: the correlation of a kernel, and its process group as far as its arguments name it
        self.correlations, self.groups = array("q"), list[str]()
        self.called: dict[int, tuple[str, int]] = {}  # Operation and bytes of kernels that only their calls name
        self.exchange, self.optimizing = Moments(), Moments()
        self.zero_grads = array("d")
        self.launched: dict[str, Intervals] = {}  # Input, backward and optimizer on the host, where only marks tell
        self.training: set[int | str] = set()
        self.exchanging: set[int | str] = set()
        self.exchange_streams: set[int | str] = set()
        self.calls_device = False
        self.last_s: dict[int | str, float] = {}
        self.strange = 0  # Events with impossible times or without a duration
        self._parameters: dict[int, Arguments] = {}
        self._unnamed: list[tuple[int, Arguments]] = []
        self._host_meanings, self._device_meanings = Meanings(of_host), Meanings(of_device)
        self._operators, self._device, self._lanes = Columns(), Columns(), _LaneNumbers()

    def knowing_the_same(self) -> "Collector":
        """An empty one for a second look at some events, with what only the whole file tells."""
        other = Collector()
        other.zero_us = self.zero_us
        other.training, other.exchanging = set(self.training), set(self.exchanging)
        other.exchange_streams = set(self.exchange_streams)
        other.launched, other.called, other.blocked = self.launched, self.called, self.blocked
        other.inputs.add("", *self.launched.get("input", NOTHING))
        return other

    def take(self, events: list[Event]) -> tuple[float, float]:
        """Takes in events of the file, in any order; when the first began and the last ended."""
        if self.zero_us is None:
            first = next((event.ts for event in events if 0 <= event.ts < _LATEST_US and event.dur >= 0), None)
            self.zero_us = None if first is None else first // 1e6 * 1e6
        category = np.frombuffer(bytes([CATEGORY[event.cat] for event in events]), dtype=np.uint8)
        starts = np.array([event.ts for event in events], dtype=float)
        lengths = np.array([event.dur for event in events], dtype=float)

        def of(wanted: int) -> tuple[list[Event], Times, Times]:
            at = np.flatnonzero(category == wanted)
            if len(at) == len(events):
                return events, starts, lengths
            return [events[index] for index in at.tolist()], starts[at], lengths[at]

        self.calls_device = self.calls_device or bool((category == CALL).any())
        for event in self._operators.add(*of(OPERATOR), self._lanes, self._host_meanings):
            self._take_mark(event, counted=False)
        for event in self._device.add(*of(DEVICE_WORK), self._lanes, self._device_meanings):
            if (times := self._seconds(event, counted=False)) is not None:
                arguments = arguments_of(event)
                operation, size = self.called.get(arguments.correlation, (arguments.operation, arguments.bytes))
                if size < 0:
                    self._unnamed.append((len(self.collectives), arguments))
                arguments = arguments._replace(operation=operation or operation_of(event.name), bytes=size)
                self._add_collective(arguments, times, event.tid)
        for event in of(DEVICE_MARK)[0]:
            meaning, times = self._device_meanings[event.name], self._seconds(event, counted=True)
            if times is None:
                continue
            if meaning == Meaning.OPTIMIZER:
                self.device_optimizer.add(event.tid, *_arrays(times))
            elif meaning == Meaning.SHARDING:
                self.device_sharding.add(event.name, *times, event.tid)
            elif meaning == Meaning.COLLECTIVE:
                self.exchange_streams.add(event.tid)
        for event in of(HOST_MARK)[0]:
            if self._host_meanings[event.name]:
                self._take_mark(event, counted=True)
        if self._operators.count + self._device.count > _TOGETHER:
            self._work_off()
        real, begin, end = self._times(starts, lengths)
        return (float(begin[real].min()), float(end[real].max())) if real.any() else (np.inf, -np.inf)

    def complete(self) -> None:
        """Handle the events that still wait after the last one, and name collectives by what launched them."""
        self._work_off()
        unnamed = []
        for at, arguments in self._unnamed:
            found = self._parameters.get(-1 if arguments.external_id is None else arguments.external_id)
            if found is not None:
                self.collectives.names[at] = found.operation or self.collectives.names[at]
                self.collectives.bytes[at] = found.bytes
            elif not arguments.operation:
                unnamed.append((at, arguments))
        self._unnamed = unnamed
        self._name_reduce_scatters()

    @property
    def unnamed(self) -> bool:
        """True if kernels are known by their own names only: NCCL once called most of them SendRecv."""
        return bool(self._unnamed)

    def name_kernels(self, called: dict[int, tuple[str, int]]) -> None:
        """Name kernels by the correlation of the calls that launched them."""
        self.called = called
        for at, arguments in self._unnamed:
            if arguments.correlation in called:
                self.collectives.names[at], self.collectives.bytes[at] = called[arguments.correlation]

    def _name_reduce_scatters(self) -> None:
        """Gloo reduces all and keeps a part: what launched an allreduce says whether it was a reduce-scatter.

        Both are first in, first out.
        """
        if "reducescatter" not in self.launches.names:
            return
        marks, works = self.launches, self.collectives
        launches, until = list[int](), -np.inf
        for at in marks.by_start():  # one inside another is the same
            if marks.names[at] in ("allreduce", "reducescatter") and marks.start_s[at] >= until:
                launches.append(at)
                until = marks.end_s[at]
        reduced = [at for at in works.by_start() if works.names[at] == "allreduce"]
        for at, launch in launched([marks.start_s[at] for at in launches], [works.start_s[at] for at in reduced]):
            works.names[reduced[at]] = marks.names[launches[launch]]

    @property
    def compiled(self) -> bool:
        """True if any name is one that torch.compile gives."""
        return any(is_compiled(name) for names in (self._host_meanings, self._device_meanings) for name in names)

    @property
    def host_names(self) -> Collection[str]:
        """Names of operators and ranges on the host."""
        return self._host_meanings.keys()

    def _seconds(self, event: Event, *, counted: bool) -> tuple[float, float] | None:
        """Begin and end of an event; None when they cannot be."""
        if not (0 <= event.ts < _LATEST_US and 0 <= event.dur < _LONGEST_US):
            self.strange += counted
            return None
        start = (event.ts - (self.zero_us or 0.0)) * 1e-6
        return start, start + event.dur * 1e-6

    def _take_mark(self, event: Event, *, counted: bool) -> None:
        meaning, times = self._host_meanings[event.name], self._seconds(event, counted=counted)
        if times is None:
            return
        if meaning == Meaning.SHARDING:
            self.sharding.add(event.name, *times, event.tid)
        elif meaning == Meaning.LAUNCH:
            self.launches.add(operation_of(event.name), *times, event.tid)
        elif meaning == Meaning.PARAMETERS:
            arguments = arguments_of(event)
            if arguments.external_id is not None and arguments.operation:
                self._parameters[arguments.external_id] = arguments
        elif meaning == Meaning.INPUT:
            self.inputs.add(event.tid, *_arrays(times))
        elif meaning == Meaning.ZERO_GRAD:
            self.zero_grads.append(times[0])
        elif meaning == Meaning.RANGE:
            self.ranges.add(operation_of(event.name), *times, event.tid, arguments_of(event).bytes)
        elif meaning == Meaning.COLLECTIVE:
            self.exchanging.add(event.tid)
            arguments = arguments_of(event)._replace(operation=operation_of(event.name))
            self._add_collective(arguments, times, event.tid)
        else:
            self.training.add(event.tid)
            if meaning == Meaning.STEP:
                self.steps.add(event.name, *times, event.tid)
            elif meaning == Meaning.OPTIMIZER:
                self.optimizing.add(*_arrays(times))
                self.optimizers.add(event.name, *times, event.tid)

    def _add_collective(self, arguments: Arguments, times: tuple[float, float], lane: int | str) -> None:
        self.exchange.add(*_arrays(times))
        self.collectives.add(arguments.operation, *times, lane, arguments.bytes)
        self.correlations.append(arguments.correlation)
        self.groups.append(arguments.group)

    def _work_off(self) -> None:
        if self._operators.count:
            starts_us, lengths_us, lanes, meanings = self._operators.together()
            real, starts, ends = self._times(starts_us, lengths_us)
            self.strange += int(len(real) - real.sum())
            for thread, here in self._by_lane(lanes, real & (meanings <= Meaning.PARAMETERS)):
                self.operators.add(thread, starts[here], ends[here] + BRIDGED_S)
                self.last_s[thread] = max(self.last_s.get(thread, 0.0), float(starts[here].max()))
                for meaning, group in (
                    (Meaning.BACKWARD, self.backward),
                    (Meaning.COPY, self.copies),
                    (Meaning.LAUNCH, self.launching),
                ):
                    those = here[meanings[here] == meaning]
                    if len(those):
                        group.add(thread, starts[those], ends[those])
            self.training.update(self.backward.moments)
        if self._device.count:
            starts_us, lengths_us, lanes, meanings = self._device.together()
            real, starts, ends = self._times(starts_us, lengths_us)
            self.strange += int(len(real) - real.sum())
            for stream, own in self._by_lane(lanes, real & (meanings == Meaning.OTHER)):
                self.device.add(stream, starts[own], ends[own])

    def _by_lane(self, lanes: NDArray[np.int64], which: NDArray[np.bool_]) -> list[tuple[int | str, NDArray[np.int64]]]:
        """Every lane that has any of these events, and which of them are its own."""
        at = np.flatnonzero(which)
        at = at[np.argsort(lanes[at], kind="stable")]
        first = np.searchsorted(lanes[at], np.arange(len(self._lanes) + 1))
        bounds = zip(self._lanes, first[:-1].tolist(), first[1:].tolist(), strict=True)
        return [(lane, at[begin:end]) for lane, begin, end in bounds if begin < end]

    def _times(self, starts_us: Times, lengths_us: Times) -> tuple[NDArray[np.bool_], Times, Times]:
        """Mask of the events with times that can be, and starts and ends of all in seconds."""
        with np.errstate(invalid="ignore"):
            real = (starts_us >= 0) & (starts_us < _LATEST_US) & (lengths_us >= 0) & (lengths_us < _LONGEST_US)
        begin = (starts_us - (self.zero_us or 0.0)) * 1e-6
        return real, begin, begin + lengths_us * 1e-6


def _arrays(times: tuple[float, float]) -> tuple[Times, Times]:
    return np.array(times[:1]), np.array(times[1:])
