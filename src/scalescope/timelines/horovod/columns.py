"""Events of a Horovod timeline as columns of numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
END, BEGIN, TICK, MARK = range(4)
"""Kinds of events: E, B, X (a rank is ready) and i (a cycle begins)."""
KIND_OF_LETTER = {"E": END, "B": BEGIN, "X": TICK, "i": MARK}
SLOTS = 1 << 18
"""Tensors that are told apart at the same time; Horovod numbers them one after the other."""
FARTHEST = 1 << 62
"""Times beyond it, in microseconds, are damaged."""
UNKNOWN = -1
_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}


class Arguments(msgspec.Struct, gc=False):
    """What an event may carry."""

    name: str = ""
    dtype: str = ""
    shape: str = ""
    start_time_since_epoch_in_micros: int = 0


class TimelineEvent(msgspec.Struct, gc=False):
    """One event as Horovod writes it."""

    ph: str = ""
    name: str = ""
    ts: int | float = 0
    pid: int = 0
    args: Arguments | None = None


@dataclass(frozen=True)
class Columns:
    """One entry per event, in the order of the file."""

    kind: NDArray[np.int8]
    name: Numbers
    """Numbers of the vocabulary; -1 for ends."""
    tensor: Numbers
    time: Numbers
    """Microseconds."""
    size: Numbers
    """Bytes of the tensor where an end tells, else -1."""


def joined_columns(first: Columns, second: Columns) -> Columns:
    """One after the other."""
    return Columns(
        np.concatenate([first.kind, second.kind]),
        np.concatenate([first.name, second.name]),
        np.concatenate([first.tensor, second.tensor]),
        np.concatenate([first.time, second.time]),
        np.concatenate([first.size, second.size]),
    )


@dataclass
class Vocabulary:
    """What the file has named so far."""

    names: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    tensors: dict[int, str] = field(default_factory=dict)
    epoch_s: float = 0.0
    strange: int = 0
    """Events that were left out because their time cannot be."""

    def number(self, name: str) -> int:
        """The number of a name of an activity, a new one if need be."""
        known = self.numbers.get(name)
        if known is None:
            known = self.numbers[name] = len(self.names)
            self.names.append(name)
        return known

    def columns(self, events: Iterable[TimelineEvent]) -> Columns:
        """The columns of events; names of tensors are remembered."""
        rows: list[tuple[int, int, int, int, int]] = []
        for event in events:
            kind = KIND_OF_LETTER.get(event.ph)
            if kind is None:
                if event.ph == "M" and event.args is not None:
                    self._describe(event.pid, event.args)
            elif not -FARTHEST < event.ts < FARTHEST:
                self.strange += 1
            else:
                name = UNKNOWN if kind == END else self.number(event.name)
                size = size_of(event.args.dtype, event.args.shape) if event.args and kind == END else UNKNOWN
                rows.append((kind, name, event.pid % SLOTS, int(event.ts), size))
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        return Columns(table[:, 0].astype(np.int8), table[:, 1], table[:, 2], table[:, 3], table[:, 4])

    def _describe(self, pid: int, arguments: Arguments) -> None:
        if arguments.name:
            self.tensors[pid % SLOTS] = arguments.name
        elif not pid and 0 < arguments.start_time_since_epoch_in_micros < FARTHEST:
            self.epoch_s = arguments.start_time_since_epoch_in_micros / 1e6


def size_of(dtype: str, shape: str) -> int:
    """Bytes of a tensor, -1 when it cannot be told."""
    each = _BYTES.get(dtype)
    lengths = shape.strip("[] ").replace(",", " ").split()
    if each is None or not all(length.isdecimal() and len(length) < 16 for length in lengths):
        return UNKNOWN
    size = each * math.prod(int(length) for length in lengths)
    return size if size < FARTHEST else UNKNOWN
