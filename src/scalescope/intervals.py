"""Sets of moments as sorted, disjoint intervals in two arrays, starts and ends; any unit of time."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.float64]


class Intervals(NamedTuple):
    """Sorted and disjoint; none of them is empty."""

    starts: Times
    ends: Times

    @property
    def length(self) -> float:
        """Length of all intervals together."""
        return float((self.ends - self.starts).sum())


NOTHING = Intervals(np.zeros(0), np.zeros(0))
EVER = (-np.inf, np.inf)
_AT_LEAST = 1 << 15  # Intervals that are gathered before they are merged; more where the union is larger


def union(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """All moments that lie in any of the spans; a span that ends before it begins is none."""
    first, last = np.asarray(starts, dtype=float), np.asarray(ends, dtype=float)
    real = last > first
    first, last = first[real], last[real]
    if not len(first):
        return NOTHING
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    begins = np.concatenate([[True], first[1:] > last[:-1]])
    at = np.flatnonzero(begins)
    return Intervals(first[at], last[np.concatenate([at[1:] - 1, [len(first) - 1]])])


def joined(*sets: Intervals) -> Intervals:
    """All moments that lie in any of the sets."""
    return union(np.concatenate([each.starts for each in sets]), np.concatenate([each.ends for each in sets]))


def before(intervals: Intervals, moments: ArrayLike) -> Times:
    """Length of the intervals before each moment; the difference of two moments is what lies between them."""
    times = np.asarray(moments, dtype=float)
    if not len(intervals.starts):
        return np.zeros_like(times)
    whole = np.concatenate([[0.0], np.cumsum(intervals.ends - intervals.starts)])
    index = np.searchsorted(intervals.starts, times, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.clip(times - intervals.starts[last], 0.0, intervals.ends[last] - intervals.starts[last])
    return np.asarray(np.where(index > 0, whole[last] + inside, 0.0))


def between(intervals: Intervals, starts: ArrayLike, ends: ArrayLike) -> Times:
    """Length of the intervals in each window."""
    return before(intervals, ends) - before(intervals, starts)


def holding(starts: Times, ends: Times, moments: ArrayLike) -> NDArray[np.int64]:
    """Index of the window, of ascending ones, in which each moment lies; -1 for none."""
    times = np.asarray(moments, dtype=float)
    at = np.searchsorted(starts, times, side="right") - 1
    return np.where((at >= 0) & (times < np.append(ends, -np.inf)[at]), at, -1)


def common(first: Intervals, second: Intervals) -> Intervals:
    """The moments that lie in both."""
    points = np.concatenate([first.ends, second.ends, first.starts, second.starts])
    ends = len(first.ends) + len(second.ends)
    order = np.argsort(points, kind="stable")
    depth = np.cumsum(np.where(order < ends, -1, 1))
    points = points[order]
    both = np.flatnonzero(depth[:-1] == 2) if len(points) else np.zeros(0, dtype=int)
    return union(points[both], points[both + 1])


def without(first: Intervals, second: Intervals) -> Intervals:
    """The moments of the first that do not lie in the second."""
    rest = Intervals(np.concatenate([[-np.inf], second.ends]), np.concatenate([second.starts, [np.inf]]))
    return common(first, rest)


class Moments:
    """A union of intervals that takes about as much memory as the union, not as all that was added."""

    def __init__(self) -> None:
        self._union = NOTHING
        self._waiting: list[tuple[Times, Times]] = []
        self._count = 0

    def add(self, starts: Times, ends: Times) -> None:
        """Takes in more intervals, in any order."""
        self._waiting.append((starts, ends))
        self._count += len(starts)
        if self._count > max(_AT_LEAST, len(self._union.starts)):
            self.between()

    def between(self, within: tuple[float, float] = EVER) -> Intervals:
        """All moments that were added, as far as their intervals touch these bounds."""
        if self._waiting:
            starts, ends = zip(self._union, *self._waiting, strict=True)
            self._union, self._waiting, self._count = union(np.concatenate(starts), np.concatenate(ends)), [], 0
        found = self._union
        first, last = np.searchsorted(found.ends, within[0], side="right"), np.searchsorted(found.starts, within[1])
        return Intervals(found.starts[first:last], found.ends[first:last])

    def last(self) -> float:
        """The last of all moments, minus infinity when there is none."""
        return float(self.between().ends.max(initial=-np.inf))


def bridged(intervals: Intervals, gap: float) -> Intervals:
    """The same with gaps shorter than `gap` closed."""
    wider = union(intervals.starts, intervals.ends + gap)
    return Intervals(wider.starts, wider.ends - gap)
