"""Events of PyTorch's profiler (Kineto): which of their fields are read, and what their names mean."""

import json
import math
import re
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scalescope.traces.event_stream import UNREADABLE

NOT_A_NUMBER = math.nan


class Event(msgspec.Struct, gc=False):
    """One event; arguments stay as they are until somebody asks for them."""

    cat: str = ""
    name: str = ""
    ts: float = NOT_A_NUMBER
    dur: float = NOT_A_NUMBER
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Correlated(msgspec.Struct, gc=False):
    correlation: int = -1


_correlated = msgspec.json.Decoder(_Correlated).decode

_REMEMBERED = 1 << 16  # Names; a trace has millions of events and few names
OPERATOR, DEVICE_WORK, HOST_MARK, DEVICE_MARK, CALL = range(1, 6)  # Categories of events; 0 for all others
# What has another category in traces of older versions is named twice.
_CATEGORIES = {
    OPERATOR: ("cpu_op", "Operator"),
    DEVICE_WORK: ("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"),
    HOST_MARK: ("user_annotation",),
    DEVICE_MARK: ("gpu_user_annotation",),
    CALL: ("cuda_runtime", "cuda_driver", "Runtime"),  # Launches work on a GPU
}


class _Categories(dict[str, int]):
    def __missing__(self, name: str) -> int:
        if len(self) < _REMEMBERED:
            self[name] = 0
        return 0


CATEGORY = _Categories({name: category for category, names in _CATEGORIES.items() for name in names})


class Meaning(IntEnum):
    """Meaning of an event's name."""

    OTHER = 0
    BACKWARD = 1
    COPY = 2
    LAUNCH = 3
    PARAMETERS = 4
    FORWARD = 5
    STEP = 6
    OPTIMIZER = 7
    INPUT = 8
    COLLECTIVE = 9
    ZERO_GRAD = 10
    RANGE = 11
    SHARDING = 12


_HOST_NAMES = (
    ("autograd::engine::evaluate_function", Meaning.BACKWARD),
    ("torch.distributed.ddp.reducer::copy_bucket_to_grad", Meaning.COPY),
    ("c10d::", Meaning.LAUNCH),
    ("_c10d_functional::", Meaning.LAUNCH),
    ("c10d_functional::", Meaning.LAUNCH),
    ("record_param_comms", Meaning.PARAMETERS),
    ("DistributedDataParallel.forward", Meaning.FORWARD),
    ("ProfilerStep#", Meaning.STEP),
    ("Optimizer.step#", Meaning.OPTIMIZER),
    ("Optimizer.zero_grad#", Meaning.ZERO_GRAD),
    ("enumerate(Data", Meaning.INPUT),
    ("gloo:", Meaning.COLLECTIVE),
    ("nccl:", Meaning.RANGE),
    ("FSDP::", Meaning.SHARDING),
)
_DEVICE_COLLECTIVE = re.compile(r"(?:^|\b|_)(?:nccl|rccl)", re.IGNORECASE)


class Meanings(dict[str, int]):
    """Remembers what names mean, as plain numbers."""

    def __init__(self, find: Callable[[str], Meaning]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, name: str) -> int:
        found = int(self._find(name))
        if len(self) < _REMEMBERED:
            self[name] = found
        return found


def of_host(name: str) -> Meaning:
    """The meaning of an operator's or annotation's name."""
    return next((meaning for beginning, meaning in _HOST_NAMES if name.startswith(beginning)), Meaning.OTHER)


def of_device(name: str) -> Meaning:
    """The meaning of a kernel's or device annotation's name."""
    if name.startswith("Optimizer.step#"):
        return Meaning.OPTIMIZER
    if name.startswith("FSDP::"):
        return Meaning.SHARDING
    return Meaning.COLLECTIVE if name.startswith("gloo:") or _DEVICE_COLLECTIVE.search(name[:80]) else Meaning.OTHER


_COMPILED = re.compile(
    r"Torch-Compiled Region|^CompiledFunction|## Call CompiledFxGraph|^triton_(?:poi|per|red|tem)_|inductor"
)


def is_compiled(name: str) -> bool:
    """Check whether torch.compile made what has this name."""
    return _COMPILED.search(name[:200]) is not None


_BEFORE_OPERATION = re.compile(
    r"^(?:gloo:|nccl:|_?c10d(?:_functional)?::|nccl(?:sym)?(?:dev)?kernel_|rccl(?:generic)?kernel_?)", re.IGNORECASE
)
_OPERATIONS = (
    ("allreduce", "allreduce"),
    ("allgather", "allgather"),
    ("reducescatter", "reducescatter"),
    ("alltoall", "alltoall"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "send"),
    ("send", "send"),
    ("recv", "recv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)
_POINT_TO_POINT = ("send", "recv")
UNKNOWN_OPERATION = "collective"


@lru_cache(maxsize=4096)
def operation_of(name: str) -> str:
    """`gloo:all_reduce`, `c10d::allreduce_` and `ncclDevKernel_AllReduce_Sum_f32_RING_LL` are all an allreduce."""
    plain = _BEFORE_OPERATION.sub("", name)[:40].replace("_", "").lower()
    return next((operation for part, operation in _OPERATIONS if part in plain), UNKNOWN_OPERATION)


def is_collective(operation: str) -> bool:
    """Check whether every rank takes part in it, at the same place in the order."""
    return operation not in (*_POINT_TO_POINT, UNKNOWN_OPERATION)


_ITEM_BYTES = {
    "double": 8, "long": 8, "long int": 8, "float": 4, "int": 4, "half": 2, "c10::half": 2, "bfloat16": 2,
    "c10::bfloat16": 2, "short": 2, "short int": 2, "byte": 1, "char": 1, "bool": 1, "unsigned char": 1,
    "signed char": 1, "complexfloat": 8, "complexdouble": 16, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


class Arguments(NamedTuple):
    """Arguments of a communication event; empty, -1 or None where they do not."""

    operation: str
    bytes: int
    external_id: int | None
    correlation: int  # Of a kernel and the call that launched it
    group: str = ""  # Of processes


def arguments_of(event: Event) -> Arguments:
    """The operation and size of a communication, as far as its own arguments tell."""
    try:
        found = msgspec.json.decode(event.args)
    except UNREADABLE:
        found = {}
    if not isinstance(found, dict):
        found = {}
    name, external, correlation = (found.get(key) for key in ("Collective name", "External id", "correlation"))
    item = _ITEM_BYTES.get(str(found.get("dtype")).lower(), 0)
    counts = [found.get("In msg nelems"), found.get("Out msg nelems")]
    sizes = [count * item for count in counts if item and isinstance(count, int) and 0 <= count < 1 << 50]
    # The description of a process group names a mesh's dimension.
    group, described = found.get("Process Group Name"), found.get("Process Group Description")
    if isinstance(described, str) and described not in ("", "undefined"):
        group = described
    return Arguments(
        operation_of(name) if isinstance(name, str) and name else "",
        max([*sizes, _shape_bytes(found.get("Input Dims"), found.get("Input type"))]),
        external if isinstance(external, int) else None,
        correlation if isinstance(correlation, int) and 0 <= correlation < 1 << 62 else -1,
        group[:100] if isinstance(group, str) else "",
    )


def correlation_of(event: Event) -> int:
    """Number that ties a kernel to the call that launched it; -1 where the arguments do not say."""
    try:
        number = _correlated(event.args).correlation
    except UNREADABLE:
        return -1
    return number if 0 <= number < 1 << 62 else -1


def _shape_bytes(shapes: object, kinds: object) -> int:
    if not isinstance(shapes, list) or not isinstance(kinds, list) or not shapes or len(shapes) != len(kinds):
        return -1
    total = 0
    for shape, kind in zip(shapes, kinds, strict=True):
        item = _ITEM_BYTES.get(str(kind).lower())
        if item is None or not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            return -1
        total += item * math.prod(shape)
    return total if 0 <= total < 1 << 60 else -1


class Facts(NamedTuple):
    """Facts that a trace tells about itself around its events."""

    rank: int | None
    world_size: int | None
    backend: str
    epoch_s: float
    group_ranks: dict[str, int]  # Of each process group
    device_bytes: int | None  # Memory of the GPU


_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*')
_DEVICE_BYTES = re.compile(rb'"totalGlobalMem"\s*:\s*(\d{1,18})\b')
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_MOST_RANKS = 10**6


def facts_of(around: bytes, path: Path) -> Facts:
    """Reads them from what stands before and after the events; a rank may also stand in the file's name."""
    info: dict[str, Any] = {}
    if found := _DISTRIBUTED.search(around):
        text = around[found.end() : found.end() + (1 << 16)].decode("utf-8", "replace")
        try:
            value, _ = json.JSONDecoder().raw_decode(text)
            info = value if isinstance(value, dict) else {}
        except (ValueError, RecursionError):
            info = {}
    rank, world_size, backend = _count(info, "rank"), _count(info, "world_size"), info.get("backend")
    named = _RANK_IN_NAME.search(path.name)
    base = _BASE.search(around)
    return Facts(
        int(named[1]) if rank is None and named else rank,
        world_size or None,
        backend if isinstance(backend, str) else "",
        int(base[1]) * 1e-9 if base else 0.0,
        _group_ranks(info),
        int(memory[1]) if (memory := _DEVICE_BYTES.search(around)) else None,
    )


def _group_ranks(info: dict[str, Any]) -> dict[str, int]:
    """Number of ranks of each process group, by its description and by its name."""
    config, ranks = info.get("pg_config"), dict[str, int]()
    for group in config if isinstance(config, list) else ():
        if isinstance(group, dict) and isinstance(size := group.get("pg_size"), int) and 0 < size <= _MOST_RANKS:
            ranks |= {str(name)[:100]: size for key in ("pg_name", "pg_desc") if (name := group.get(key))}
    return ranks


def _count(info: dict[str, Any], name: str) -> int | None:
    """A number from 0; None where the trace does not say one that can be."""
    value = info.get(name)
    return value if isinstance(value, int) and 0 <= value <= _MOST_RANKS else None
