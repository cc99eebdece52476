"""A cluster: nodes, slots, cores, links, and measured costs of collectives."""

import re
from typing import Annotated, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

from scalescope.records.store import Record

Operation = Literal["allreduce", "broadcast", "allgather", "reducescatter"]  # Bytes of the last two: of all ranks
Algorithm = Literal["auto", "ring", "tree", "hierarchical"]
Device = Literal["cpu", "gpu"]
Gpu = Literal["V100", "A100", "H100", "H200", "B200"]
BACKENDS = ("gloo", "nccl", "horovod-gloo", "horovod-mpi", "horovod-nccl")

# What a file is checked against when it is read
_Backend = Annotated[str, Meta(pattern=f"^({'|'.join(BACKENDS)})$")]
_Count = Annotated[int, Meta(ge=1)]
_Positive = Annotated[float, Meta(gt=0, lt=1e300)]
_NotNegative = Annotated[float, Meta(ge=0, lt=1e300)]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of a connection between two ranks (inside a node) or two nodes."""

    bytes_per_s: _Positive
    latency_s: _NotNegative


class Among(msgspec.Struct, frozen=True, kw_only=True):
    """Rate of a rank inside a node while no more than this many ranks of it take part: fewer links join them."""

    ranks: _Count
    bytes_per_s: _Positive


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Measured times of one collective, by size of the message."""

    backend: _Backend
    operation: Operation
    ranks: _Count
    nodes: _Count
    sizes_bytes: Annotated[tuple[_Count, ...], Meta(min_length=1)]  # Ascending
    seconds: tuple[_Positive, ...]  # Of the slowest rank, right after compute; the mean without the slowest tenth
    cpu_seconds: tuple[_NotNegative, ...]  # Per rank
    error: _NotNegative  # Relative standard error, typical over sizes

    def __post_init__(self) -> None:
        if list(self.sizes_bytes) != sorted(set(self.sizes_bytes)):
            raise ValueError("sizes_bytes must ascend")
        if not len(self.seconds) == len(self.cpu_seconds) == len(self.sizes_bytes):
            raise ValueError("seconds and cpu_seconds must hold one number for each of sizes_bytes")
        if self.nodes > self.ranks:
            raise ValueError("nodes must be at most ranks")


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """Measured slowdowns of compute and communication that run at the same time."""

    backend: _Backend
    ranks: _Count
    nodes: _Count
    compute: _Positive  # Compute takes this many times longer
    communication: _Positive  # Communication takes this many times longer
    idle: _Positive = 1.0  # Compute takes this many times longer while the engine's thread has nothing to send
    idle_error: _NotNegative = 0.0  # Relative standard error of `idle`
    compute_error: _NotNegative = 0.0  # Of `compute`
    communication_error: _NotNegative = 0.0  # Of `communication`


class Cluster(Record, frozen=True, kw_only=True, tag="cluster"):
    """A described or probed cluster of equal nodes."""

    current_version: ClassVar[int] = 1

    name: str = ""
    nodes: _Count
    slots_per_node: _Count  # Ranks that a node takes, usually its GPUs, on CPUs its cores over the threads of a rank
    cores_per_node: _Count
    device: Device = "cpu"
    gpu: Gpu | None = None  # Its model, which decides how NCCL behaves; None: not known
    memory_bytes: Annotated[int, Meta(ge=0)] = 0  # Of a GPU, on CPUs of a node; 0: as that of where a profile was taken
    inside: Link | None = None  # Between two ranks of a node; None where measured costs say all
    among: tuple[Among, ...] = ()  # Where fewer ranks of a node have other links than all of them
    between: Link | None = None  # Of one node to the others; None where there is one node, or measured costs say all
    # How described links are used; auto: as gloo and NCCL do for those, otherwise the fastest of all three.
    algorithm: Algorithm = "auto"
    # What DDP pays to copy a byte of gradient into its bucket; the way back costs the same.
    copy_s_per_byte: _NotNegative = 0.0
    copy_s_per_tensor: _NotNegative = (
        0.0  # The same of a gradient besides its bytes; on GPUs 0 means: as measured on one
    )
    device_spread: _NotNegative | None = None  # Relative standard deviation among devices; None: 0, of GPUs 1.5 %
    costs: tuple[Costs, ...] = ()  # Each kind once
    overlaps: tuple[Overlap, ...] = ()
    threads_per_rank: _Count = 1  # While it was probed
    disturbed: str = ""  # Why the probe is not to be trusted, in one line; empty: it is

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = [(costs.backend, costs.operation, costs.ranks, costs.nodes) for costs in self.costs]
        if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
            backend, operation, ranks, nodes = twice[0]
            raise ValueError(f"{backend} {operation} of {ranks} ranks on {nodes} nodes is measured twice: keep one")

    def inside_bytes_per_s(self, ranks: int) -> float | None:
        """Rate of a rank to the others of its node while this many of it take part; None: not described."""
        fewer = [each for each in self.among if each.ranks >= ranks]
        if fewer:
            return min(fewer, key=lambda each: each.ranks).bytes_per_s
        return self.inside.bytes_per_s if self.inside else None

    @property
    def slots(self) -> int:
        """Ranks that the cluster takes."""
        return self.nodes * self.slots_per_node


def gpu_model(name: str) -> Gpu | None:
    """The model that a GPU's name (`NVIDIA A100-SXM4-80GB`) says; None: another one."""
    return next((model for model in get_args(Gpu) if re.search(rf"\b{model}\b", name)), None)
