"""Steps of a Horovod timeline, which are recurrences of the gradient tensors."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalescope.intervals import Times
from scalescope.traces.horovod.columns import Numbers
from scalescope.traces.horovod.pairs import Rows

ALIKE = 0.1  # Tensors that are reduced about as often as each other recur together
# A tensor may be the first of a step when the pause before it is this share of the longest, in the mean.
LONG_PAUSE = 0.5
_LONG_AGO = -(1 << 62)


@dataclass(frozen=True)
class Gradients:
    """The tensors that are reduced in every step."""

    tensors: Numbers  # Ascending
    first: NDArray[np.bool_]  # Which of them may be the first of a step: those that come after a long pause


@dataclass(frozen=True)
class Steps:
    """Complete steps, in microseconds."""

    start: Times
    last_submission: Times
    end: Times

    def only(self, which: NDArray[np.bool_]) -> "Steps":
        """Steps selected by mask or index."""
        return Steps(self.start[which], self.last_submission[which], self.end[which])

    def before(self, moment: float) -> "Steps":
        """Those that end before."""
        return self.only(self.end <= moment)

    def ascending(self, moment: float) -> "Steps":
        """Without those that begin before the moment or before an earlier step ends: clocks may be set back."""
        ended = np.maximum.accumulate(np.append(moment, self.end))[:-1]
        return self.only((self.end > self.start) & (self.start >= ended))


NO_STEPS = Steps(np.zeros(0), np.zeros(0), np.zeros(0))


def learn(submissions: Rows, operations: Rows, sizes: Numbers) -> Gradients | None:
    """The gradients among the tensors that were submitted for reduction; None when nothing recurs.

    They are the most numerous group of tensors that were reduced about as often as each other. Single numbers
    (metrics) do not count where there are others. `sizes` holds the bytes of every tensor, -1 where unknown.
    """
    tensors, counts = np.unique(submissions.tensor, return_counts=True)
    recurring = counts > 1
    tensors, counts = tensors[recurring], counts[recurring]
    large = ~np.isin(sizes[tensors], (1, 2, 4, 8))
    if large.any():
        tensors, counts = tensors[large], counts[large]
    if not len(tensors):
        return None
    ordered = np.sort(counts)
    low, high = counts / (1 + ALIKE) - 1, counts * (1 + ALIKE) + 1
    alike = np.searchsorted(ordered, high, side="right") - np.searchsorted(ordered, low)
    best = np.lexsort((counts, alike))[-1]
    chosen = tensors[(counts >= low[best]) & (counts <= high[best])]
    mine = submissions.only(np.isin(submissions.tensor, chosen))
    which, idle = np.searchsorted(chosen, mine.tensor), _idle_before(mine, operations)
    pauses = np.bincount(which, np.maximum(idle, 0), minlength=len(chosen)) / np.bincount(which, minlength=len(chosen))
    return Gradients(chosen, pauses >= LONG_PAUSE * pauses.max())


def find(submissions: Rows, operations: Rows, gradients: Gradients) -> Steps:
    """The complete steps."""
    mine = submissions.only(np.isin(submissions.tensor, gradients.tensors))
    which = np.searchsorted(gradients.tensors, mine.tensor)
    begins = _begins(which, _idle_before(mine, operations), gradients.first)
    if len(begins) < 2:
        return NO_STEPS
    time = mine.begin.astype(np.float64)
    start = time[begins]
    last = np.maximum.reduceat(time, begins)[:-1]
    return Steps(start[:-1], np.clip(last, start[:-1], np.maximum(start[1:], start[:-1])), start[1:])


def _idle_before(submissions: Rows, operations: Rows) -> Numbers:
    """Idle time before each submission of a tensor; negative when something was under way, 0 at the start."""
    order = np.argsort(operations.begin, kind="stable")
    ended = np.append(_LONG_AGO, np.maximum.accumulate(operations.end[order]))
    earlier = np.searchsorted(operations.begin[order], submissions.begin)
    negotiated = np.append(_LONG_AGO, np.maximum.accumulate(submissions.end)[:-1])
    busy_until = np.maximum(ended[earlier], negotiated)
    return np.where(busy_until > _LONG_AGO, submissions.begin - busy_until, 0)


def _begins(which: Numbers, idle: Numbers, may_be_first: NDArray[np.bool_]) -> list[int]:
    """Find the submissions of gradients at which steps begin.

    When a tensor comes again, a new step has begun: there, when that tensor may be the first of a step; otherwise
    after the tensor's previous submission, where one was submitted that may be the first, or else after the longest
    pause.
    """
    if not len(which):
        return []
    order = np.argsort(which, kind="stable")
    same = which[order[1:]] == which[order[:-1]]
    again = np.full(len(which) + 1, len(which))
    again[order[:-1][same]] = order[1:][same]
    before = np.full(len(which), -1)
    before[order[1:][same]] = order[:-1][same]
    next_again = np.minimum.accumulate(again[::-1])[::-1]
    begins = [0]
    while (begin := int(next_again[begins[-1]])) < len(which):
        if not may_be_first[which[begin]]:
            possible = range(max(int(before[begin]), begins[-1]) + 1, begin + 1)
            begin = max([at for at in possible if may_be_first[which[at]]] or possible, key=idle.__getitem__)
        begins.append(begin)
    return begins
