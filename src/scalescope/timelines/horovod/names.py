"""What the names of activities in a Horovod timeline stand for."""

import re
from typing import Literal

import numpy as np

from scalescope.timelines.horovod.columns import Numbers, Vocabulary

NEGOTIATION, OPERATION, QUEUE, DATA_WAIT, COPY_IN, COPY_OUT, COLLECTIVE, OTHER = range(8)
"""Groups of activities."""
GROUPS = 8
OPERATIONS = ("ALLREDUCE", "ADASUM", "REDUCESCATTER", "ALLGATHER", "BROADCAST", "ALLTOALL", "BARRIER", "JOIN")
REDUCTIONS = ("ALLREDUCE", "ADASUM", "REDUCESCATTER")
SUBMISSIONS = tuple(f"NEGOTIATE_{name}" for name in REDUCTIONS)
_BACKENDS = ("nccl", "ccl", "gloo", "mpi")
"""In the order in which they decide: Gloo's alltoall is labelled MPI_ALLTOALL."""
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
    """allreduce, broadcast, ..."""
    return name.removeprefix("NEGOTIATE_").lower()


def ranks(vocabulary: Vocabulary) -> Numbers:
    """The rank that each name is, -1 for names that are none."""
    return np.array(
        [int(name) if re.fullmatch("[0-9]{1,7}", name) else -1 for name in vocabulary.names], dtype=np.int64
    )


def backend_of(vocabulary: Vocabulary) -> str:
    """Who carried out the collectives, or an empty text."""
    used = {name.split("_")[0].lower() for name in vocabulary.names if group_of(name) == COLLECTIVE}
    return next((backend for backend in _BACKENDS if backend in used), "")


def device_of(vocabulary: Vocabulary) -> Literal["cpu", "cuda"]:
    """Where the tensors lay."""
    on_device = any(name in _DEVICE_NAMES or name.startswith("NCCL_") for name in vocabulary.names)
    return "cuda" if on_device else "cpu"
