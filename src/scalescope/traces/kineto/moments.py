"""Sets of moments that grow while a file is read, and what is left of one set without another."""

import numpy as np

from scalescope.traces.intervals import NOTHING, Intervals, Times, joined, union

_AT_LEAST = 1 << 15
EVER = (-np.inf, np.inf)


class Moments:
    """A union of intervals that takes as much memory as the union, not as all that was added.

    It is kept in pieces that follow each other in time: what is added is mostly later than all before.
    """

    def __init__(self) -> None:
        self._pieces: list[Intervals] = []
        self._waiting: list[tuple[Times, Times]] = []
        self._count = 0

    def add(self, starts: Times, ends: Times) -> None:
        """Takes in more intervals, in any order."""
        self._waiting.append((starts, ends))
        self._count += len(starts)
        if self._count > _AT_LEAST:
            self._merge()

    def between(self, within: tuple[float, float] = EVER) -> Intervals:
        """All moments that were added, as far as their intervals touch these bounds."""
        if self._waiting:
            self._merge()
        touched = [_touching(piece, within) for piece in self._pieces if piece.ends[-1] > within[0]]
        return _one_after_another([piece for piece in touched if len(piece.starts)])

    def last(self) -> float:
        """The last of all moments, minus infinity when there is none."""
        if self._waiting:
            self._merge()
        return float(self._pieces[-1].ends[-1]) if self._pieces else -np.inf

    def _merge(self) -> None:
        added = union(
            np.concatenate([starts for starts, _ in self._waiting]), np.concatenate([ends for _, ends in self._waiting])
        )
        self._waiting, self._count = [], 0
        later = []
        while self._pieces and len(added.starts) and self._pieces[-1].ends[-1] >= added.starts[0]:
            piece = self._pieces.pop()
            if piece.starts[0] > added.ends[-1]:
                later.append(piece)
            else:
                added = joined(piece, added)
        if len(added.starts):
            self._pieces.append(added)
        self._pieces += reversed(later)


def _touching(piece: Intervals, within: tuple[float, float]) -> Intervals:
    first, last = np.searchsorted(piece.ends, within[0], side="right"), np.searchsorted(piece.starts, within[1])
    return Intervals(piece.starts[first:last], piece.ends[first:last])


def _one_after_another(pieces: list[Intervals]) -> Intervals:
    if len(pieces) < 2:
        return pieces[0] if pieces else NOTHING
    return Intervals(
        np.concatenate([piece.starts for piece in pieces]), np.concatenate([piece.ends for piece in pieces])
    )


def bridged(intervals: Intervals, gap: float) -> Intervals:
    """The same with gaps shorter than `gap` closed."""
    wider = union(intervals.starts, intervals.ends + gap)
    return Intervals(wider.starts, wider.ends - gap)
