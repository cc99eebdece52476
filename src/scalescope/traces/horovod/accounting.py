"""Adds up a Horovod timeline block by block: steps, exposed communication and what the background thread did."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from scalescope.intervals import Intervals, Times, between, common, joined, union, without
from scalescope.records.timeline import exposed
from scalescope.traces.horovod.columns import (
    COLLECTIVE,
    GROUPS,
    MARK,
    NEGOTIATION,
    OPERATION,
    OPERATIONS,
    SUBMISSIONS,
    Columns,
    Vocabulary,
    device_of,
    groups,
    ranks,
)
from scalescope.traces.horovod.pairs import NO_ROWS, NO_TICKS, Pairing, Rows, Ticks, together
from scalescope.traces.horovod.responses import Message, Responses, TensorSums, kept, responses, within
from scalescope.traces.horovod.steps import NO_STEPS, Block, Gradients, Steps, count, find, learn
from scalescope.traces.trace import HeldUp

BLOCK = 50_000  # Activities that are added up together
LARGEST_BLOCK = 1_000_000  # Activities after which a block is added up even though it holds no whole step
MOST_MESSAGES = 1_000_000
_ALL_TIME = np.array([-np.inf]), np.array([np.inf])


@dataclass
class Found:
    """Results of every step and message; times in microseconds."""

    start: list[Times] = field(default_factory=list)
    end: list[Times] = field(default_factory=list)
    exposed: list[Times] = field(default_factory=list)
    possibly_hidden: list[Times] = field(default_factory=list)
    exchange: list[Intervals] = field(default_factory=list)
    negotiation: list[Intervals] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    negotiated: list[Times] = field(default_factory=list)
    ticked: list[Times] = field(default_factory=list)
    held_up: list[HeldUp] = field(default_factory=list)


class Accounting:
    """Takes columns of events in the order of the file; what it keeps grows with steps and messages only."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.pairing = Pairing()
        self.tensors = TensorSums()
        self.found = Found()
        self.steps: list[Block] = []
        self.whole: list[Block] = []  # The same where there are no steps
        self.first_negotiation = 0.0
        self.bucket_bytes: tuple[int, ...] = ()
        self.last_rank: dict[int, int] = defaultdict(int)
        self.left_out = 0  # Messages that are not among the found ones because there are too many
        self._messages = 0
        self._steps = 0
        self._gradients: Gradients | None = None
        self._rows: list[Rows] = []
        self._waiting, self._wanted = 0, BLOCK
        self._marks: list[Times] = []
        self._rest = NO_ROWS
        self._latest = -np.inf

    def add(self, columns: Columns) -> None:
        """The next events."""
        rows = self.pairing.add(columns)
        marks = columns.time[columns.kind == MARK]
        if len(marks):
            self._marks.append(marks.astype(np.float64))
        if len(rows):
            self._rows.append(rows)
            self._waiting += len(rows)
        if self._waiting >= self._wanted:
            self._add_up(final=False)

    def finish(self) -> None:
        """Adds up what is left."""
        self._add_up(final=True)

    def _add_up(self, final: bool) -> None:
        """Counts what lies before the beginning of the last step, which is not complete yet; all of it at the end."""
        rows = together(self._rows) if self._rows else NO_ROWS
        self._rows, self._waiting = [rows], len(rows)
        steps = self._whole_steps(rows)
        if not final and len(rows) < LARGEST_BLOCK:
            steps = steps.before(self.pairing.earliest_open)
            if not len(steps.start):
                self._wanted = 2 * len(rows)
                return
        horizon = np.inf if final or not len(steps.end) else float(steps.end[-1])
        now = rows.begin < horizon
        marks = np.sort(np.concatenate(self._marks)) if self._marks else np.zeros(0)
        counted, later = rows.only(now), rows.only(~now)
        self._count(counted, self._ticks_before(horizon), marks, steps)
        self._rows, self._waiting, self._wanted = [later], len(later), BLOCK + len(later)
        self._rest = _after(together([self._rest, counted]) if len(self._rest) else counted, horizon)
        self._marks = [marks[marks >= horizon]]

    def _whole_steps(self, rows: Rows) -> Steps:
        """The complete steps among the rows, by the gradients known so far or those that these rows tell."""
        submissions = rows.in_order(self._is_one_of(SUBMISSIONS)[rows.name])
        operations = rows.only(self._is_one_of(OPERATIONS)[rows.name])
        known = self._gradients
        if known is None or np.isin(known.tensors, submissions.tensor).mean() < 0.5:
            self.tensors.see_sizes(rows)
            self._gradients = learn(submissions, operations, self.tensors.sizes) or known
        if self._gradients is None:
            return NO_STEPS
        return find(submissions, operations, self._gradients).ascending(self._latest)

    def _is_one_of(self, names: tuple[str, ...]) -> NDArray[np.bool_]:
        """Mark the names of the vocabulary that are among these."""
        return np.array([name in names for name in self.vocabulary.names], dtype=bool)

    def _count(self, rows: Rows, ticks: Ticks, marks: Times, steps: Steps) -> None:
        name_groups = groups(self.vocabulary)
        row_groups = name_groups[rows.name]
        self.tensors.add(rows, row_groups)
        self._count_ticks(ticks)
        messages = responses(rows, row_groups, device_of(self.vocabulary) == "cuda")
        self.found.messages.append(kept(messages, MOST_MESSAGES - self._messages))
        self._messages += len(messages)
        self.left_out = max(0, self._messages - MOST_MESSAGES)
        if len(self._rest):
            rows = together([self._rest, rows])
            row_groups = name_groups[rows.name]
        sets = [_moments(rows, row_groups == group) for group in range(GROUPS)]
        exchange = joined(sets[NEGOTIATION], sets[OPERATION])
        self.found.exchange.append(exchange)
        self.found.negotiation.append(sets[NEGOTIATION])
        self._keep_waits(steps, sets[NEGOTIATION], sets[OPERATION], ticks)
        self._keep_steps(steps, exchange, sets[NEGOTIATION])
        collectives = {
            name: _moments(rows, rows.name == name) for name in np.unique(rows.name[row_groups == COLLECTIVE]).tolist()
        }
        negotiations = rows.begin[row_groups == NEGOTIATION]
        if len(steps.start):
            self.steps.append(count(steps.start, steps.end, sets, collectives, negotiations, ticks, messages, marks))
        if not self.steps:
            self.whole.append(count(*_ALL_TIME, sets, collectives, negotiations, ticks, messages, marks))
        if not self.bucket_bytes and len(steps.start):
            self.bucket_bytes = self._buckets(messages, steps)

    def _keep_steps(self, steps: Steps, exchange: Intervals, negotiation: Intervals) -> None:
        """Keeps what is known of every step. Until its last gradient is submitted a rank counts as computing."""
        if not len(steps.start):
            return
        computing = union(steps.start, steps.last_submission)
        self.found.start.append(steps.start)
        self.found.end.append(steps.end)
        self.found.exposed.append(between(exposed(exchange, computing), steps.start, steps.end))
        self.found.possibly_hidden.append(between(common(exchange, computing), steps.start, steps.end))
        if not self._steps:
            self.first_negotiation = float(between(negotiation, steps.start[:1], steps.end[:1])[0])
        self._latest = float(steps.end[-1])
        self._steps += len(steps.start)

    def _keep_waits(self, steps: Steps, negotiation: Intervals, sending: Intervals, ticks: Ticks) -> None:
        """Per step how long ranks negotiated after its last gradient while nothing was sent, and for whom alone."""
        if not len(steps.start):
            return
        self.found.negotiated.append(between(without(negotiation, sending), steps.last_submission, steps.end))
        unready = without(union(ticks.begin, ticks.ready), sending)
        self.found.ticked.append(between(unready, steps.last_submission, steps.end))
        last = ranks(self.vocabulary)[ticks.name]
        for rank in np.unique(last[last >= 0]).tolist():
            alone = without(union(ticks.before[last == rank], ticks.ready[last == rank]), sending)
            seconds = between(alone, steps.last_submission, steps.end)
            at = np.flatnonzero(seconds)
            self.found.held_up.append(HeldUp(self._steps + at, np.full(len(at), rank), seconds[at] / 1e6))

    def _ticks_before(self, horizon: float) -> Ticks:
        """Takes the ticks of negotiations that began before it."""
        ticks = Ticks(*(np.concatenate(column) for column in zip(NO_TICKS, *self.pairing.ticks, strict=True)))
        now = ticks.begin < horizon
        self.pairing.ticks = [Ticks(*(column[~now] for column in ticks))]
        return Ticks(*(column[now] for column in ticks))

    def _count_ticks(self, ticks: Ticks) -> None:
        """Count how often each rank was the last one."""
        last, counts = np.unique(ranks(self.vocabulary)[ticks.name], return_counts=True)
        for rank, often in zip(last.tolist(), counts.tolist(), strict=True):
            if rank >= 0:
                self.last_rank[rank] += often

    def _buckets(self, messages: Responses, steps: Steps) -> tuple[int, ...]:
        """The bytes of the messages with gradients of a step that sends as many of them as most steps do."""
        assert self._gradients is not None
        reducing = np.isin(messages.first_tensor, self._gradients.tensors)
        step = np.where(reducing, within(messages.begin.astype(np.float64), steps.start, steps.end), -1)
        counts = np.bincount(step[step >= 0], minlength=len(steps.start))
        if len(counts) > 1:
            counts[0] = 0  # The first step may send otherwise: nothing is cached yet
        if not counts.any():
            return ()
        typical = int(np.flatnonzero(counts == np.bincount(counts[counts > 0]).argmax())[0])
        sizes = messages.bytes[step == typical]
        return tuple(sizes.tolist()) if (sizes >= 0).all() else ()


def _moments(rows: Rows, which: NDArray[np.bool_]) -> Intervals:
    return union(rows.begin[which], rows.end[which])


def _after(rows: Rows, horizon: float) -> Rows:
    """Cut off what lies before the horizon."""
    late = rows.only(rows.end > horizon)
    return replace(late, begin=np.maximum(late.begin, int(horizon))) if len(late) else NO_ROWS
