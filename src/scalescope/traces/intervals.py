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
        """How long they last together."""
        return float((self.ends - self.starts).sum())


NOTHING = Intervals(np.zeros(0), np.zeros(0))


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
    """How much of the intervals lies before each moment; the difference of two moments is what lies between them."""
    times = np.asarray(moments, dtype=float)
    if not len(intervals.starts):
        return np.zeros_like(times)
    whole = np.concatenate([[0.0], np.cumsum(intervals.ends - intervals.starts)])
    index = np.searchsorted(intervals.starts, times, side="right")
    last = np.maximum(index - 1, 0)
    inside = np.clip(times - intervals.starts[last], 0.0, intervals.ends[last] - intervals.starts[last])
    return np.asarray(np.where(index > 0, whole[last] + inside, 0.0))


def between(intervals: Intervals, starts: ArrayLike, ends: ArrayLike) -> Times:
    """How much of the intervals lies in each window."""
    return before(intervals, ends) - before(intervals, starts)


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
