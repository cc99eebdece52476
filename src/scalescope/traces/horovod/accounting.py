"""Adds up a Horovod timeline block by block: steps, exposed communication and what the background thread did."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalescope.intervals import Intervals, Times, between, common, holding, joined, union, without
from scalescope.records.explanation import HorovodAccount, TensorAccount
from scalescope.records.timeline import exposed
from scalescope.traces.horovod.columns import (
    COLLECTIVE,
    COPY_IN,
    COPY_OUT,
    DATA_WAIT,
    GROUPS,
    MARK,
    NEGOTIATION,
    OPERATION,
    OPERATIONS,
    QUEUE,
    SUBMISSIONS,
    UNKNOWN,
    Columns,
    Numbers,
    Vocabulary,
    device_of,
    groups,
    operation_of,
    ranks,
)
from scalescope.traces.horovod.pairs import NO_ROWS, NO_TICKS, Pairing, Rows, Ticks, together
from scalescope.traces.horovod.responses import Responses, responses
from scalescope.traces.horovod.steps import NO_STEPS, Gradients, Steps, find, learn
from scalescope.traces.trace import HeldUp

BLOCK = 50_000  # Activities that are added up together
LARGEST_BLOCK = 1_000_000  # Activities after which a block is added up even though it holds no whole step
MOST_MESSAGES = 1_000_000
_ALL_TIME = np.array([-np.inf]), np.array([np.inf])


SAMPLED = 100_000  # Activities from the first one on of which single times are kept, for medians
SHOWN = 50  # Tensors that are reported
_COSTS = [NEGOTIATION, QUEUE, DATA_WAIT, COPY_IN, COPY_OUT, COLLECTIVE]
# A negotiation takes up to two cycles although nobody is late: one to ask and one to answer.
_CYCLES = 2
CYCLES_S = _CYCLES * 1e-3  # Of the default length


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
        at = holding(starts, ends, moments)
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


class TensorSums:
    """Adds up activities; medians are those of the first ones."""

    def __init__(self) -> None:
        self.sizes = np.zeros(0, dtype=np.int64)  # The bytes of every tensor, -1 where unknown
        self._times = np.zeros((0, GROUPS))
        self._counts = np.zeros((0, GROUPS), dtype=np.int64)
        self._name = np.zeros(0, dtype=np.int64)
        self._kinds_of = np.zeros(0, dtype=np.int64)  # Of the first activities: tensor and group, see `add`
        self._times_of = np.zeros(0)

    def add(self, rows: Rows, groups: Numbers) -> None:
        """Counts some rows; `groups` tells what each of them is."""
        if not len(rows):
            return
        count = int(rows.tensor.max()) + 1
        self.see_sizes(rows)
        key = rows.tensor * GROUPS + groups
        times = (rows.end - rows.begin).astype(np.float64)
        self._times[:count] += np.bincount(key, times, minlength=count * GROUPS).reshape(count, GROUPS)
        self._counts[:count] += np.bincount(key, minlength=count * GROUPS).reshape(count, GROUPS)
        named = (groups == OPERATION) | (groups == NEGOTIATION)
        self._name[rows.tensor[named]] = rows.name[named]
        if len(self._times_of) < SAMPLED:
            self._kinds_of, self._times_of = np.append(self._kinds_of, key), np.append(self._times_of, times)

    def see_sizes(self, rows: Rows) -> None:
        """Remembers how large tensors are."""
        more = int(rows.tensor.max()) + 1 - len(self.sizes) if len(rows) else 0
        if more > 0:
            self.sizes = np.append(self.sizes, np.full(more, UNKNOWN))
            self._name = np.append(self._name, np.full(more, UNKNOWN))
            self._times = np.concatenate([self._times, np.zeros((more, GROUPS))])
            self._counts = np.concatenate([self._counts, np.zeros((more, GROUPS), dtype=np.int64)])
        known = rows.size >= 0
        self.sizes[rows.tensor[known]] = rows.size[known]

    def accounts(self, vocabulary: Vocabulary) -> tuple[TensorAccount, ...]:
        """The most expensive tensors, in descending order."""
        total = self._times[:, _COSTS].sum(axis=1)
        costliest = np.argsort(-total, kind="stable")[:SHOWN]
        costliest = costliest[self._counts[costliest].sum(axis=1) > 0]
        accounts = []
        for tensor in costliest.tolist():
            own = np.flatnonzero(self._kinds_of // GROUPS == tensor)
            times = [self._times_of[own][self._kinds_of[own] % GROUPS == group] for group in range(GROUPS)]
            # Of each group of activities, in seconds; 0 where there is none.
            medians = [float(np.median(some)) / 1e6 if len(some) else 0.0 for some in times]
            name = self._name[tensor]
            accounts.append(
                TensorAccount(
                    name=vocabulary.tensors.get(tensor, f"tensor {tensor}"),
                    operation=operation_of(vocabulary.names[name]) if name >= 0 else "",
                    bytes=int(self.sizes[tensor]) if self.sizes[tensor] >= 0 else None,
                    count=int(max(self._counts[tensor, OPERATION], self._counts[tensor, NEGOTIATION])),
                    negotiation_s=medians[NEGOTIATION],
                    queue_s=medians[QUEUE],
                    data_wait_s=medians[DATA_WAIT],
                    memcpy_s=medians[COPY_IN] + medians[COPY_OUT],
                    collective_s=medians[COLLECTIVE],
                )
            )
        return tuple(accounts)


class Message(NamedTuple):
    """Columns of messages that are kept until the end of the file, in few bytes."""

    name: NDArray[np.int32]
    bytes: Numbers
    start: Numbers
    end: Numbers


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
        self.last_rank: dict[int, int] = defaultdict(int)
        self.left_out = 0  # Messages that are not among the found ones because there are too many
        self._messages = 0
        self._steps = 0
        self._steps_with: Counter[int] = Counter()  # By the number of messages with gradients in a step
        self._sizes_with: dict[int, Numbers] = {}  # Their bytes in the first such step
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

    def account_since(self, start_s: float) -> HorovodAccount:
        """Activity of Horovod's thread in a mean step, of the steps from this moment on; of all of it without any."""
        blocks = [block.since(start_s) for block in self.steps]
        steps = sum(len(block.start) for block in blocks)
        if not steps:
            blocks, steps = self.whole, 1
        seconds = sum((block.groups.sum(axis=0) for block in blocks), np.zeros(GROUPS)) / 1e6 / steps
        total: dict[str, float] = defaultdict(float)
        collectives: dict[str, float] = defaultdict(float)
        for block in blocks:
            for key, counts in block.counts.items():
                total[key] += float(counts.sum())
            for number, times in block.collectives.items():
                collectives[self.vocabulary.names[number]] += float(times.sum()) / 1e6 / steps
        cached = 2 * total["ticked_negotiations"] < total["negotiations"]
        names_ranks = total["ticked_negotiations"] and not cached
        return HorovodAccount(
            negotiation_s=float(seconds[NEGOTIATION]),
            waiting_s=total["waiting"] / 1e6 / steps if names_ranks else None,
            protocol_s=(total["ticked"] - total["waiting"]) / 1e6 / steps if names_ranks else None,
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
            last_rank=dict(sorted(self.last_rank.items())),
            first_negotiation_s=self.first_negotiation / 1e6,
            tensors=self.tensors.accounts(self.vocabulary),
        )

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
        rest = together([self._rest, counted]) if len(self._rest) else counted
        late = rest.only(rest.end > horizon)  # what reaches beyond the horizon, cut off there
        self._rest = replace(late, begin=np.maximum(late.begin, int(horizon))) if len(late) else NO_ROWS
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
        last, counts = np.unique(ranks(self.vocabulary)[ticks.name], return_counts=True)
        for rank, often in zip(last.tolist(), counts.tolist(), strict=True):
            if rank >= 0:
                self.last_rank[rank] += often
        messages = responses(rows, row_groups, device_of(self.vocabulary) == "cuda")
        few = slice(0, max(0, MOST_MESSAGES - self._messages))
        self.found.messages.append(
            Message(messages.name[few].astype(np.int32), messages.bytes[few], messages.start[few], messages.end[few])
        )
        self._messages += len(messages)
        self.left_out = max(0, self._messages - MOST_MESSAGES)
        if len(self._rest):
            rows = together([self._rest, rows])
            row_groups = name_groups[rows.name]
        sets = [_moments(rows, row_groups == group) for group in range(GROUPS)]
        self.found.exchange.append(joined(sets[NEGOTIATION], sets[OPERATION]))
        self.found.negotiation.append(sets[NEGOTIATION])
        self._count_messages(messages, steps)
        self._keep_steps(steps, sets[NEGOTIATION], sets[OPERATION], ticks)
        collectives = {
            name: _moments(rows, rows.name == name) for name in np.unique(rows.name[row_groups == COLLECTIVE]).tolist()
        }
        negotiations = rows.begin[row_groups == NEGOTIATION]
        if len(steps.start):
            self.steps.append(count(steps.start, steps.end, sets, collectives, negotiations, ticks, messages, marks))
        if not self.steps:
            self.whole.append(count(*_ALL_TIME, sets, collectives, negotiations, ticks, messages, marks))

    def _keep_steps(self, steps: Steps, negotiation: Intervals, sending: Intervals, ticks: Ticks) -> None:
        """Keeps what is known of every step. Until its last gradient is submitted a rank counts as computing.

        Later it may wait: as long as ranks negotiate while nothing is sent, and for one rank alone where it is named.
        """
        if not len(steps.start):
            return
        found, exchange = self.found, joined(negotiation, sending)
        computing = union(steps.start, steps.last_submission)
        found.start.append(steps.start)
        found.end.append(steps.end)
        found.exposed.append(between(exposed(exchange, computing), steps.start, steps.end))
        found.possibly_hidden.append(between(common(exchange, computing), steps.start, steps.end))
        found.negotiated.append(between(without(negotiation, sending), steps.last_submission, steps.end))
        unready = without(union(ticks.begin, ticks.ready), sending)
        found.ticked.append(between(unready, steps.last_submission, steps.end))
        last = ranks(self.vocabulary)[ticks.name]
        for rank in np.unique(last[last >= 0]).tolist():
            alone = without(union(ticks.before[last == rank], ticks.ready[last == rank]), sending)
            seconds = between(alone, steps.last_submission, steps.end)
            at = np.flatnonzero(seconds)
            found.held_up.append(HeldUp(self._steps + at, np.full(len(at), rank), seconds[at] / 1e6))
        if not self._steps:
            self.first_negotiation = float(between(negotiation, steps.start[:1], steps.end[:1])[0])
        self._latest = float(steps.end[-1])
        self._steps += len(steps.start)

    def _ticks_before(self, horizon: float) -> Ticks:
        """Takes the ticks of negotiations that began before it."""
        ticks = Ticks(*(np.concatenate(column) for column in zip(NO_TICKS, *self.pairing.ticks, strict=True)))
        now = ticks.begin < horizon
        self.pairing.ticks = [Ticks(*(column[~now] for column in ticks))]
        return Ticks(*(column[now] for column in ticks))

    def _count_messages(self, messages: Responses, steps: Steps) -> None:
        """Count steps by how many messages with gradients each sends; of every number the first step is an example."""
        if self._gradients is None or not len(steps.start):
            return
        reducing = np.isin(messages.first_tensor, self._gradients.tensors)
        step = np.where(reducing, holding(steps.start, steps.end, messages.begin), -1)
        counts = np.bincount(step[step >= 0], minlength=len(steps.start))
        if not self._steps and len(counts) > 1:
            counts[0] = 0  # The first step may send otherwise: nothing is cached yet
        numbers, firsts, often = np.unique(counts, return_index=True, return_counts=True)
        for number, first, steps_with in zip(numbers.tolist(), firsts.tolist(), often.tolist(), strict=True):
            self._steps_with[number] += steps_with
            self._sizes_with.setdefault(number, messages.bytes[step == first])

    @property
    def bucket_bytes(self) -> tuple[int, ...]:
        """The bytes of the messages with gradients of a step that sends as many of them as most steps do."""
        found = {number: steps for number, steps in self._steps_with.items() if number}
        typical = min(found, key=lambda number: (-found[number], number), default=0)
        sizes: Numbers = self._sizes_with[typical] if typical else np.zeros(0, dtype=np.int64)
        return tuple(sizes.tolist()) if (sizes >= 0).all() else ()


def _moments(rows: Rows, which: NDArray[np.bool_]) -> Intervals:
    return union(rows.begin[which], rows.end[which])
