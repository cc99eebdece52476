"""Steps of a Horovod timeline: recurrences of the gradient tensors.
Sums over steps of a Horovod timeline: what its background thread did.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scalescope.records.explanation import HorovodAccount, TensorAccount
from scalescope.traces.horovod.columns import (
    COPY_IN,
    COPY_OUT,
    DATA_WAIT,
    GROUPS,
    NEGOTIATION,
    QUEUE,
    Numbers,
    Vocabulary,
)
from scalescope.traces.horovod.pairs import Rows, Ticks
from scalescope.traces.horovod.responses import Responses, within
from scalescope.traces.intervals import Intervals, Times, between, union

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
        """Some of them."""
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
    """For how long nothing was under way when a tensor was submitted; negative when something was, 0 at the start."""
    order = np.argsort(operations.begin, kind="stable")
    ended = np.append(_LONG_AGO, np.maximum.accumulate(operations.end[order]))
    earlier = np.searchsorted(operations.begin[order], submissions.begin)
    negotiated = np.append(_LONG_AGO, np.maximum.accumulate(submissions.end)[:-1])
    busy_until = np.maximum(ended[earlier], negotiated)
    return np.where(busy_until > _LONG_AGO, submissions.begin - busy_until, 0)


def _begins(which: Numbers, idle: Numbers, may_be_first: NDArray[np.bool_]) -> list[int]:
    """Where steps begin, in submissions of gradients.

    When a tensor comes again, a new step has begun: there, when that tensor may be the first of a step; otherwise
    after the tensor's last turn, where one was submitted that may be the first, or else after the longest pause.
    """
    if not len(which):
        return []
    order = np.argsort(which, kind="stable")
    same = which[order[1:]] == which[order[:-1]]
    again = np.full(len(which) + 1, len(which))
    again[order[:-1][same]] = order[1:][same]
    before = np.full(len(which), -1)
    before[order[1:][same]] = order[:-1][same]
    next_again, earlier = np.minimum.accumulate(again[::-1])[::-1].tolist(), before.tolist()
    usual, pauses = may_be_first[which].tolist(), idle.tolist()
    begins = [0]
    while (begin := next_again[begins[-1]]) < len(which):
        if not usual[begin]:
            possible = range(max(earlier[begin], begins[-1]) + 1, begin + 1)
            begin = max([at for at in possible if usual[at]] or possible, key=pauses.__getitem__)
        begins.append(begin)
    return begins


@dataclass
class Sums:
    """Over a number of steps; times in microseconds."""

    steps: int = 0
    groups: Times = field(default_factory=lambda: np.zeros(GROUPS))
    collectives: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # By name
    waiting: float = 0.0  # Until the last rank was ready, in negotiations with rank ticks
    ticked: float = 0.0  # All of the negotiations with rank ticks
    negotiations: int = 0
    ticked_negotiations: int = 0
    responses: int = 0
    tensors: int = 0
    sized_responses: int = 0
    bytes: int = 0
    cycles: int = 0
    idle_cycles: int = 0

    def add_times(
        self, groups: Sequence[Intervals], collectives: Mapping[int, Intervals], starts: Times, ends: Times
    ) -> None:
        """What lies in the steps, by group of activities and by name of the collective."""
        self.steps += len(starts)
        self.groups += [between(moments, starts, ends).sum() for moments in groups]
        for name, moments in collectives.items():
            self.collectives[name] += float(between(moments, starts, ends).sum())

    def add_ticks(self, begins: Numbers, ticked: Ticks, starts: Times, ends: Times) -> None:
        """Counts the negotiations that begin so, and splits those with rank ticks."""
        self.negotiations += int((within(begins.astype(np.float64), starts, ends) >= 0).sum())
        self.ticked_negotiations += int((within(ticked.begin.astype(np.float64), starts, ends) >= 0).sum())
        if len(ticked.begin):
            self.waiting += float(between(union(ticked.begin, ticked.ready), starts, ends).sum())
            self.ticked += float(between(union(ticked.begin, ticked.end), starts, ends).sum())

    def add_messages(self, messages: Responses, marks: Times, starts: Times, ends: Times) -> None:
        """Counts messages and cycles; a cycle is idle when no message begins before the next one."""
        begins = messages.begin.astype(np.float64)
        inside = within(begins, starts, ends) >= 0
        sized = inside & (messages.bytes >= 0)
        self.responses += int(inside.sum())
        self.tensors += int(messages.tensors[inside].sum())
        self.sized_responses += int(sized.sum())
        self.bytes += int(messages.bytes[sized].sum())
        ordered = np.sort(begins)
        sent = np.diff(np.searchsorted(ordered, np.append(marks, np.inf)))
        cycles = within(marks, starts, ends) >= 0
        self.cycles += int(cycles.sum())
        self.idle_cycles += int((cycles & (sent == 0)).sum())

    def account(
        self,
        vocabulary: Vocabulary,
        last_rank: dict[int, int],
        first_negotiation: float,
        tensors: tuple[TensorAccount, ...],
    ) -> HorovodAccount:
        """The same per step, in seconds."""
        steps = max(1, self.steps)
        cached = 2 * self.ticked_negotiations < self.negotiations
        seconds = self.groups / 1e6 / steps
        return HorovodAccount(
            negotiation_s=float(seconds[NEGOTIATION]),
            waiting_s=None if cached or not self.ticked_negotiations else self.waiting / 1e6 / steps,
            protocol_s=None if cached or not self.ticked_negotiations else (self.ticked - self.waiting) / 1e6 / steps,
            queue_s=float(seconds[QUEUE]),
            data_wait_s=float(seconds[DATA_WAIT]),
            memcpy_in_s=float(seconds[COPY_IN]),
            memcpy_out_s=float(seconds[COPY_OUT]),
            collectives_s={
                vocabulary.names[name]: time / 1e6 / steps for name, time in self.collectives.items() if time
            },
            responses=self.responses / steps,
            tensors_per_response=self.tensors / max(1, self.responses),
            bytes_per_response=self.bytes / self.sized_responses if self.sized_responses else None,
            cycles=self.cycles / steps if self.cycles else None,
            idle_cycles=self.idle_cycles / steps if self.cycles else None,
            cached=cached,
            last_rank=dict(sorted(last_rank.items())),
            first_negotiation_s=first_negotiation / 1e6,
            tensors=tensors,
        )
