"""Events of a Horovod timeline as columns of numbers, and what the names of activities stand for."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
END, BEGIN, TICK, MARK = range(4)  # Kinds of events: E, B, X (a rank is ready) and i (a cycle begins)
KIND_OF_LETTER = {"E": END, "B": BEGIN, "X": TICK, "i": MARK}
SLOTS = 1 << 18  # Tensors that are told apart at the same time; Horovod numbers them one after the other
FARTHEST = 1 << 62  # Times beyond it, in microseconds, are damaged
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
    """Arguments that an event may carry."""

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


class Columns(NamedTuple):
    """One entry per event, in the order of the file."""

    kind: NDArray[np.int8]
    name: Numbers  # Numbers of the vocabulary; -1 for ends
    tensor: Numbers
    time: Numbers  # Microseconds
    size: Numbers  # Bytes of the tensor where an end tells, else -1


@dataclass
class Vocabulary:
    """Names seen in the file so far."""

    names: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    tensors: dict[int, str] = field(default_factory=dict)
    epoch_s: float = 0.0
    strange: int = 0  # Events that were left out because their time cannot be

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
                arguments = event.args
                if event.ph != "M" or arguments is None:
                    continue
                if arguments.name:
                    self.tensors[event.pid % SLOTS] = arguments.name
                elif not event.pid and 0 < arguments.start_time_since_epoch_in_micros < FARTHEST:
                    self.epoch_s = arguments.start_time_since_epoch_in_micros / 1e6
            elif not -FARTHEST < event.ts < FARTHEST:
                self.strange += 1
            else:
                name = UNKNOWN if kind == END else self.number(event.name)
                size = size_of(event.args.dtype, event.args.shape) if event.args and kind == END else UNKNOWN
                rows.append((kind, name, event.pid % SLOTS, int(event.ts), size))
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        return Columns(table[:, 0].astype(np.int8), table[:, 1], table[:, 2], table[:, 3], table[:, 4])


def size_of(dtype: str, shape: str) -> int:
    """Bytes of a tensor, -1 when it cannot be known."""
    each = _BYTES.get(dtype)
    lengths = shape.strip("[] ").replace(",", " ").split()
    if each is None or not all(length.isdecimal() and len(length) < 16 for length in lengths):
        return UNKNOWN
    size = each * math.prod(int(length) for length in lengths)
    return size if size < FARTHEST else UNKNOWN


NEGOTIATION, OPERATION, QUEUE, DATA_WAIT, COPY_IN, COPY_OUT, COLLECTIVE, OTHER = range(8)  # Groups of activities
GROUPS = 8
OPERATIONS = ("ALLREDUCE", "ADASUM", "REDUCESCATTER", "ALLGATHER", "BROADCAST", "ALLTOALL", "BARRIER", "JOIN")
REDUCTIONS = ("ALLREDUCE", "ADASUM", "REDUCESCATTER")
SUBMISSIONS = tuple(f"NEGOTIATE_{name}" for name in REDUCTIONS)
# In the order in which they decide: Gloo's alltoall is labelled MPI_ALLTOALL.
_BACKENDS = ("nccl", "ccl", "gloo", "mpi")
_DEVICE_NAMES = ("QUEUE", "INIT_NCCL", "WAIT_FOR_DATA", "WAIT_FOR_OTHER_TENSOR_DATA", "MEMCPY_IN_HOST_BUFFER")


def group_of(name: str) -> int:
    """The group of an activity."""
    if name.startswith("NEGOTIATE_"):
        return NEGOTIATION
    if name in OPERATIONS:
        return OPERATION
    if name == "QUEUE":
        return QUEUE
    if name.startswith("WAIT_FOR_"):
        return DATA_WAIT
    if name.startswith("MEMCPY_IN_"):
        return COPY_IN
    if name.startswith("MEMCPY_OUT_"):
        return COPY_OUT
    return COLLECTIVE if name.split("_")[0].lower() in _BACKENDS else OTHER


def groups(vocabulary: Vocabulary) -> Numbers:
    """The group of every name."""
    return np.array([group_of(name) for name in vocabulary.names], dtype=np.int64)


def operation_of(name: str) -> str:
    """The operation, such as `allreduce`, of an activity's name."""
    return name.removeprefix("NEGOTIATE_").lower()


def ranks(vocabulary: Vocabulary) -> Numbers:
    """The rank that each name is, -1 for names that are none."""
    return np.array(
        [int(name) if re.fullmatch("[0-9]{1,7}", name) else -1 for name in vocabulary.names], dtype=np.int64
    )


def backend_of(vocabulary: Vocabulary) -> str:
    """Library that carried out the collectives, or an empty text."""
    used = {name.split("_")[0].lower() for name in vocabulary.names if group_of(name) == COLLECTIVE}
    return next((backend for backend in _BACKENDS if backend in used), "")


def device_of(vocabulary: Vocabulary) -> Literal["cpu", "cuda"]:
    """Device of the tensors."""
    on_device = any(name in _DEVICE_NAMES or name.startswith("NCCL_") for name in vocabulary.names)
    return "cuda" if on_device else "cpu"
