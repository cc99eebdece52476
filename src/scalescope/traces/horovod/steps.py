"""Steps of a Horovod timeline, which are recurrences of the gradient tensors, and what its thread did in them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalescope.intervals import Intervals, Times, between, union
from scalescope.records.explanation import HorovodAccount, TensorAccount
from scalescope.traces.horovod.columns import (
    COPY_IN,
    COPY_OUT,
    DATA_WAIT,
    GROUPS,
    NEGOTIATION,
    OPERATION,
    QUEUE,
    Numbers,
    Vocabulary,
)
from scalescope.traces.horovod.pairs import Rows, Ticks
from scalescope.traces.horovod.responses import Responses, within

ALIKE = 0.1  # Tensors that are reduced about as often as each other recur together
# A tensor may be the first of a step when the pause before it is this share of the longest, in the mean.
LONG_PAUSE = 0.5
_LONG_AGO = -(1 << 62)
# A negotiation takes up to two cycles although nobody is late: one to ask and one to answer.
_CYCLES = 2
CYCLES_S = _CYCLES * 1e-3  # Of the default length


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
    next_again, earlier = np.minimum.accumulate(again[::-1])[::-1].tolist(), before.tolist()
    usual, pauses = may_be_first[which].tolist(), idle.tolist()
    begins = [0]
    while (begin := next_again[begins[-1]]) < len(which):
        if not usual[begin]:
            possible = range(max(earlier[begin], begins[-1]) + 1, begin + 1)
            begin = max([at for at in possible if usual[at]] or possible, key=pauses.__getitem__)
        begins.append(begin)
    return begins


@dataclass(frozen=True)
class Block:
    """Activity of Horovod's thread in some steps, one entry per step; times in microseconds."""

    start: Times
    groups: NDArray[np.float64]  # One column per group of activities
    collectives: Mapping[int, Times]  # By name
    counts: Mapping[str, Times]  # See count()

    def since(self, start_s: float) -> "Block":
        """The steps that begin then or later, in seconds."""
        which = self.start / 1e6 >= start_s
        return Block(
            self.start[which],
            self.groups[which],
            {name: times[which] for name, times in self.collectives.items()},
            {name: counts[which] for name, counts in self.counts.items()},
        )


def waiting(blocks: Sequence[Block], step_s: Times, negotiated_s: Times, ticked_s: Times) -> Times:
    """Per step how long it waited for a late rank, in seconds.

    Args:
        blocks: Of all steps.
        step_s: How long each step is.
        negotiated_s: Negotiation after its last gradient while nothing was sent.
        ticked_s: Of it, until the last rank was ready, as far as ranks are named; cached negotiations name none, and
            of these all counts that is longer than cycles alone can make it.
    """
    names = ("negotiations", "ticked_negotiations", "cycles")
    seen = {name: np.concatenate([np.zeros(0), *(block.counts[name] for block in blocks)]) for name in names}
    sending_s = np.concatenate([np.zeros(0), *(block.groups[:, OPERATION] for block in blocks)]) / 1e6
    marked = seen["cycles"] > 0
    apart_s = np.maximum(step_s - sending_s, 0.0)[marked] / seen["cycles"][marked]
    cycles_s = max(CYCLES_S, _CYCLES * float(np.median(apart_s))) if marked.any() else CYCLES_S
    named = 2 * seen["ticked_negotiations"] >= seen["negotiations"]
    return np.where(named, ticked_s, np.maximum(negotiated_s - cycles_s, 0.0))


def count(
    starts: Times,
    ends: Times,
    groups: Sequence[Intervals],
    collectives: Mapping[int, Intervals],
    negotiations: Numbers,
    ticks: Ticks,
    messages: Responses,
    marks: Times,
) -> Block:
    """Adds up what lies in each step.

    Args:
        starts: Of the steps, ascending, in microseconds like all times.
        ends: Of the steps.
        groups: When activities of each group went on.
        collectives: The same by name of the collective.
        negotiations: When negotiations began.
        ticks: Negotiations that name the rank that was ready last.
        messages: What was sent.
        marks: Begins of cycles; a cycle is idle when no message begins before the next one.
    """

    def per_step(moments: ArrayLike, weights: ArrayLike | None = None) -> Times:
        at = within(np.asarray(moments, dtype=np.float64), starts, ends)
        weights = np.ones(len(at)) if weights is None else np.asarray(weights, dtype=float)
        return np.asarray(np.bincount(at[at >= 0], weights[at >= 0], minlength=len(starts)), dtype=float)

    sized = messages.bytes >= 0
    sent = np.diff(np.searchsorted(np.sort(messages.begin), np.append(marks, np.inf)))
    return Block(
        starts,
        np.stack([between(moments, starts, ends) for moments in groups], axis=1),
        {name: between(moments, starts, ends) for name, moments in collectives.items()},
        {
            "negotiations": per_step(negotiations),
            "ticked_negotiations": per_step(ticks.begin),
            "waiting": between(union(ticks.begin, ticks.ready), starts, ends),  # Until the last rank was ready
            "ticked": between(union(ticks.begin, ticks.end), starts, ends),
            "responses": per_step(messages.begin),
            "tensors": per_step(messages.begin, messages.tensors),
            "sized_responses": per_step(messages.begin, sized),
            "bytes": per_step(messages.begin, np.where(sized, messages.bytes, 0)),
            "cycles": per_step(marks),
            "idle_cycles": per_step(marks, sent == 0),
        },
    )


def account(
    blocks: Sequence[Block],
    steps: int,
    vocabulary: Vocabulary,
    last_rank: Mapping[int, int],
    first_negotiation: float,
    tensors: tuple[TensorAccount, ...],
) -> HorovodAccount:
    """Blocks together, per step and in seconds."""
    seconds = sum((block.groups.sum(axis=0) for block in blocks), np.zeros(GROUPS)) / 1e6 / steps
    total: dict[str, float] = defaultdict(float)
    collectives: dict[str, float] = defaultdict(float)
    for block in blocks:
        for key, counts in block.counts.items():
            total[key] += float(counts.sum())
        for number, times in block.collectives.items():
            collectives[vocabulary.names[number]] += float(times.sum()) / 1e6 / steps
    cached = 2 * total["ticked_negotiations"] < total["negotiations"]
    told = total["ticked_negotiations"] and not cached
    return HorovodAccount(
        negotiation_s=float(seconds[NEGOTIATION]),
        waiting_s=total["waiting"] / 1e6 / steps if told else None,
        protocol_s=(total["ticked"] - total["waiting"]) / 1e6 / steps if told else None,
        queue_s=float(seconds[QUEUE]),
        data_wait_s=float(seconds[DATA_WAIT]),
        memcpy_in_s=float(seconds[COPY_IN]),
        memcpy_out_s=float(seconds[COPY_OUT]),
        collectives_s={name: each for name, each in collectives.items() if each},
        responses=total["responses"] / steps,
        tensors_per_response=total["tensors"] / max(1.0, total["responses"]),
        bytes_per_response=total["bytes"] / total["sized_responses"] if total["sized_responses"] else None,
        cycles=total["cycles"] / steps if total["cycles"] else None,
        idle_cycles=total["idle_cycles"] / steps if total["cycles"] else None,
        cached=cached,
        last_rank=dict(sorted(last_rank.items())),
        first_negotiation_s=first_negotiation / 1e6,
        tensors=tensors,
    )
