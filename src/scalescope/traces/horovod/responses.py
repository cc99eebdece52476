"""Responses of a Horovod timeline: tensors that were fused into one message."""

from dataclasses import dataclass, fields

import numpy as np

from scalescope.traces.horovod.columns import COLLECTIVE, OPERATION, UNKNOWN, Numbers
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
    collectives = rows.in_order(groups == COLLECTIVE)
    owner = message_of(collectives, operations.order[first])
    collectives, owner = collectives.only(owner >= 0), owner[owner >= 0]
    if len(owner):
        first_of = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
        start[owner[first_of]] = np.minimum.reduceat(collectives.begin, first_of)
        end[owner[first_of]] = np.maximum.reduceat(collectives.end, first_of)
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


def message_of(rows: Rows, first: Numbers) -> Numbers:
    """Find the message of each row, by the first places of the messages; -1 before the first."""
    return np.asarray(np.searchsorted(first, rows.order, side="right") - 1)
