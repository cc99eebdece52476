"""Responses of a Horovod timeline: tensors that were fused into one message, and what each tensor cost."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.records.explanation import TensorAccount
from scalescope.traces.horovod.columns import (
    COLLECTIVE,
    COPY_IN,
    COPY_OUT,
    DATA_WAIT,
    GROUPS,
    NEGOTIATION,
    OPERATION,
    QUEUE,
    UNKNOWN,
    Numbers,
    Vocabulary,
    operation_of,
)
from scalescope.traces.horovod.pairs import Rows

# Microseconds between the begins of operations of different responses on a device, where they run side by side.
APART = 100


@dataclass(frozen=True)
class Responses:
    """One entry per message, in the order in which they began; times in microseconds."""

    name: Numbers  # Of the operation
    tensors: Numbers
    bytes: Numbers
    begin: Numbers  # When the operation began; the collective itself begins and ends later
    start: Numbers
    end: Numbers
    first: Numbers  # The place of its first event in the file
    first_tensor: Numbers

    def __len__(self) -> int:
        return len(self.name)


class Message(NamedTuple):
    """Columns of messages that are kept until the end of the file, in few bytes."""

    name: NDArray[np.int32]
    bytes: Numbers
    start: Numbers
    end: Numbers


def kept(messages: Responses, count: int) -> Message:
    """The first ones, at most `count`."""
    few = slice(0, max(0, count))
    return Message(messages.name[few].astype(np.int32), messages.bytes[few], messages.start[few], messages.end[few])


def responses(rows: Rows, groups: Numbers, side_by_side: bool) -> Responses:
    """The messages of some rows; `groups` tells what each row is.

    Horovod begins the operations of all tensors of a message before it does anything else with them.
    """
    operations = rows.in_order(groups == OPERATION)
    if not len(operations):
        nothing = np.zeros(0, dtype=np.int64)
        return Responses(*(nothing for _ in fields(Responses)))
    another = (operations.following[:-1] < operations.order[1:]) | (operations.name[1:] != operations.name[:-1])
    if side_by_side:
        another |= np.diff(operations.begin) > APART
    first = np.flatnonzero(np.concatenate([[True], another]))
    tensors = np.diff(np.append(first, len(operations)))
    sizes = np.add.reduceat(operations.size, first)
    unknown = np.minimum.reduceat(operations.size, first) < 0
    begin = operations.begin[first]
    start, end = begin.copy(), np.maximum.reduceat(operations.end, first)
    _narrow_to_collectives(rows.in_order(groups == COLLECTIVE), operations.order[first], start, end)
    return Responses(
        name=operations.name[first],
        tensors=tensors,
        bytes=np.where(unknown, UNKNOWN, sizes),
        begin=begin,
        start=start,
        end=end,
        first=operations.order[first],
        first_tensor=operations.tensor[first],
    )


def _narrow_to_collectives(collectives: Rows, first: Numbers, start: Numbers, end: Numbers) -> None:
    owner = message_of(collectives, first)
    collectives, owner = collectives.only(owner >= 0), owner[owner >= 0]
    if not len(owner):
        return
    first_of = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    start[owner[first_of]] = np.minimum.reduceat(collectives.begin, first_of)
    end[owner[first_of]] = np.maximum.reduceat(collectives.end, first_of)


def message_of(rows: Rows, first: Numbers) -> Numbers:
    """Find the message of each row, by the first places of the messages; -1 before the first."""
    return np.asarray(np.searchsorted(first, rows.order, side="right") - 1)


def within(moments: NDArray[np.float64], starts: NDArray[np.float64], ends: NDArray[np.float64]) -> Numbers:
    """Find the window, of ascending ones, in which each moment lies; -1 for none."""
    if not len(starts):
        return np.full(len(moments), -1)
    at = np.searchsorted(starts, moments, side="right") - 1
    return np.where((at >= 0) & (moments < ends[np.maximum(at, 0)]), at, -1)


SAMPLED = 400_000  # Activities of which single times are kept, for medians
SHOWN = 50  # Tensors that are reported
_COSTS = [NEGOTIATION, QUEUE, DATA_WAIT, COPY_IN, COPY_OUT, COLLECTIVE]


class _Sample(NamedTuple):
    tensor: NDArray[np.int32]
    group: NDArray[np.int8]
    time: NDArray[np.float32]


class TensorSums:
    """Adds up blocks of activities; medians come from blocks taken at even distances."""

    def __init__(self) -> None:
        self.sizes = np.zeros(0, dtype=np.int64)  # The bytes of every tensor, -1 where unknown
        self._times = np.zeros((0, GROUPS))
        self._counts = np.zeros((0, GROUPS), dtype=np.int64)
        self._name = np.zeros(0, dtype=np.int64)
        self._sample: list[_Sample] = []
        self._blocks, self._stride = 0, 1

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
        if self._blocks % self._stride == 0:
            self._sample.append(_Sample(rows.tensor.astype(np.int32), groups.astype(np.int8), times.astype(np.float32)))
            if sum(len(each.tensor) for each in self._sample) > SAMPLED and len(self._sample) > 1:
                self._sample, self._stride = self._sample[::2], 2 * self._stride
        self._blocks += 1

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
            medians = self._medians(tensor)
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

    def _medians(self, tensor: int) -> list[float]:
        """The median time of each group of activities, in seconds; 0 where there is none."""
        mine = [(each, np.flatnonzero(each.tensor == tensor)) for each in self._sample]
        groups = np.concatenate([each.group[at] for each, at in mine])
        times = np.concatenate([each.time[at] for each, at in mine])
        found = [times[groups == group] for group in range(GROUPS)]
        return [float(np.median(some)) / 1e6 if len(some) else 0.0 for some in found]
