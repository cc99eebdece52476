"""Pairs begins and ends of a Horovod timeline: a stack per tensor, for many events at a time."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.traces.horovod.columns import BEGIN, END, MARK, TICK, UNKNOWN, Columns, Numbers

DEEPEST = 64  # Activities of a tensor that may be open at the same time
MOST_OPEN = 100_000
_CHANGE = np.array([-1, 1, 0], dtype=np.int64)


@dataclass(frozen=True)
class Rows:
    """Activities that have ended, nearly in the order in which they began; one entry each."""

    name: Numbers
    tensor: Numbers
    begin: Numbers  # Microseconds
    end: Numbers
    size: Numbers  # Bytes of the tensor where the end tells, else -1
    order: Numbers  # The place of the begin among all events of the file
    following: Numbers  # The place of the next event of the same tensor

    def __len__(self) -> int:
        return len(self.name)

    def only(self, which: NDArray[np.bool_] | Numbers) -> "Rows":
        """Rows selected by mask or index."""
        at = np.flatnonzero(which) if which.dtype == bool else which
        return Rows(*(getattr(self, name).take(at) for name in _COLUMNS))

    def in_order(self, which: NDArray[np.bool_]) -> "Rows":
        """Rows selected by mask, in the order in which they began."""
        at = np.flatnonzero(which)
        return self.only(at[np.argsort(self.order[at], kind="stable")])


class Ticks(NamedTuple):
    """Negotiations that end with the tick of a rank, the last one to be ready; times in microseconds."""

    begin: Numbers
    before: Numbers  # When all ranks but the last were ready
    ready: Numbers
    end: Numbers
    name: Numbers  # Of the tick: the rank


_COLUMNS = [each.name for each in fields(Rows)]


def together(parts: list[Rows]) -> Rows:
    """Concatenate parts."""
    if len(parts) == 1:
        return parts[0]
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))


NO_TICKS = Ticks(*(np.zeros(0, dtype=np.int64) for _ in Ticks._fields))
NO_ROWS = Rows(*(np.zeros(0, dtype=np.int64) for _ in _COLUMNS))


class _Events(NamedTuple):
    kind: NDArray[np.int8]
    name: Numbers
    tensor: Numbers
    time: Numbers
    size: Numbers
    place: Numbers
    following: Numbers


class Pairing:
    """Carries open activities from one batch of events to the next."""

    def __init__(self) -> None:
        self.orphans = 0  # Ends without a begin
        self.ticks: list[Ticks] = []  # Since the list was last emptied
        self.events = 0
        self._open = _Events(np.zeros(0, dtype=np.int8), *(np.zeros(0, dtype=np.int64) for _ in range(6)))

    @property
    def earliest_open(self) -> float:
        """Begin of the earliest activity that has not ended."""
        begins = self._open.time[self._open.kind == BEGIN]
        return float(begins.min()) if len(begins) else np.inf

    def add(self, columns: Columns) -> Rows:
        """Pair the next events; return the activities that have ended with them."""
        before, count = self._open, len(columns.kind)
        kept = np.flatnonzero(columns.kind != MARK)
        new = (*(column[kept] for column in columns), self.events + kept, np.full(len(kept), UNKNOWN, dtype=np.int64))
        both: Any = zip(before, new, strict=True)
        events = _Events(*map(np.concatenate, both))
        kind, name, tensor, time, size, place, following = events
        self.events += count
        order = np.argsort(_narrow(tensor), kind="stable")
        depth, order, sorted_kind, sorted_tensor = self._depths(order, kind[order], tensor[order])
        starts, ends = _matched(depth, sorted_kind)
        left = sorted_kind == BEGIN
        left[starts] = False
        self._carry(events, order, left, sorted_kind, sorted_tensor)
        place_of = np.full(len(kind), -1, dtype=np.int64)
        place_of[order[starts]] = np.arange(len(starts))
        place_of = place_of[place_of >= 0]
        starts, ends = starts[place_of], ends[place_of]
        at_start, at_end, at_last = order[starts], order[ends], order[ends - 1]
        after, ticked = following[at_start], np.flatnonzero(kind[at_last] == TICK)
        if len(ticked):
            last, previous = at_last[ticked], order[ends[ticked] - 2]
            self.ticks.append(
                Ticks(time[at_start[ticked]], time[previous], time[last], time[at_end[ticked]], name[last])
            )
        return Rows(
            name=name[at_start],
            tensor=tensor[at_start],
            begin=time[at_start],
            end=time[at_end],
            size=size[at_end],
            order=place[at_start],
            following=np.where(after >= 0, after, place[order[starts + 1]]),
        )

    def _depths(
        self, order: Numbers, kind: NDArray[np.int8], tensor: Numbers
    ) -> tuple[Numbers, Numbers, NDArray[np.int8], Numbers]:
        """Count the open activities of the tensor at each event; ends without a begin are left out."""
        if not len(kind):
            return tensor, order, kind, tensor
        change = _CHANGE[kind]
        sums = np.cumsum(change)
        first = np.flatnonzero(np.concatenate([[True], tensor[1:] != tensor[:-1]]))
        lengths = np.diff(np.append(first, len(tensor)))
        depth = sums - np.repeat(sums[first] - change[first], lengths)
        if depth.min() >= 0:
            return depth + (kind == END), order, kind, tensor
        apart = np.repeat(np.arange(len(first)) * (2 * len(kind)), lengths)
        lowest = np.minimum.accumulate(np.minimum(depth, 0) - apart) + apart
        previous = np.roll(lowest, 1)
        previous[first] = 0
        orphans = (kind == END) & (depth < previous)
        self.orphans += int(orphans.sum())
        keep = ~orphans
        return self._depths(order[keep], kind[keep], tensor[keep])

    def _carry(
        self,
        events: _Events,
        order: Numbers,
        left: NDArray[np.bool_],
        sorted_kind: NDArray[np.int8],
        sorted_tensor: Numbers,
    ) -> None:
        """Keeps what has begun and not ended, and the last ticks of those tensors."""
        at = np.flatnonzero(left)[-MOST_OPEN:]
        following = events.following.copy()
        new = at[(at + 1 < len(left)) & (following[order[at]] < 0)]
        new = new[sorted_tensor[new + 1] == sorted_tensor[new]]
        following[order[new]] = events.place[order[new + 1]]
        last = np.flatnonzero(np.append(sorted_tensor[1:] != sorted_tensor[:-1], True)) if len(left) else at
        ticks = last[sorted_kind[last] == TICK]
        ticks = ticks[np.isin(sorted_tensor[ticks], sorted_tensor[at])]
        kept = np.sort(order[np.concatenate([at, ticks])])
        self._open = _Events(*(column[kept] for column in events._replace(following=following)))


def _narrow(tensor: Numbers) -> NDArray[np.integer]:
    """Convert to the smallest integers that hold the numbers: sorting these is much faster."""
    return tensor.astype(np.uint16) if not len(tensor) or tensor.max() < 1 << 16 else tensor


def _matched(depth: Numbers, kind: NDArray[np.int8]) -> tuple[Numbers, Numbers]:
    """Match begins and ends of activities, in events that are sorted by tensor."""
    starts, ends = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    real = kind != TICK
    deepest = int(depth[real].max()) if real.any() else 0
    for level in range(1, min(deepest, DEEPEST) + 1):
        here = np.flatnonzero((depth == level) & real)
        closing = np.flatnonzero(kind[here] == END)
        starts.append(here[closing - 1])
        ends.append(here[closing])
    return np.concatenate(starts), np.concatenate(ends)
