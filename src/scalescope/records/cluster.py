"""Where ranks run: nodes, slots, cores, links, and what collectives were measured to cost there."""

from typing import ClassVar, Literal

import msgspec

from scalescope.records.store import Record

Operation = Literal["allreduce", "broadcast"]
Algorithm = Literal["auto", "ring", "tree", "hierarchical"]
BACKENDS = ("gloo", "nccl", "horovod-gloo", "horovod-mpi", "horovod-nccl")


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of a connection between two ranks (inside a node) or two nodes."""

    bytes_per_s: float
    latency_s: float


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What one collective was measured to take, by size of the message."""

    backend: str
    operation: Operation
    ranks: int
    nodes: int
    sizes_bytes: tuple[int, ...]  # Ascending
    seconds: tuple[float, ...]  # Of the slowest rank, right after compute; the mean without the slowest tenth
    cpu_seconds: tuple[float, ...]  # Per rank
    error: float  # Relative standard error, typical over sizes


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """What compute and communication do to each other when they run at the same time, measured."""

    backend: str
    ranks: int
    nodes: int
    compute: float  # Compute takes so many times longer
    communication: float  # Communication takes so many times longer
    waiting: float = 1.0  # Communication takes so many times longer while the training thread only waits for it
    idle: float = 1.0  # Compute takes so many times longer while the engine's thread has nothing to send
    idle_error: float = 0.0  # Relative standard error of `idle`


class Cluster(Record, frozen=True, kw_only=True, tag="cluster"):
    """A described or probed cluster of equal nodes."""

    current_version: ClassVar[int] = 1

    name: str = ""
    nodes: int
    slots_per_node: int  # Ranks that a node takes, usually its GPUs, on CPUs its cores over the threads of a rank
    cores_per_node: int
    device: Literal["cpu", "gpu"] = "cpu"
    inside: Link | None = None  # Between two ranks of a node; None where measured costs say all
    between: Link | None = None  # Of one node to the others; None where there is one node, or measured costs say all
    # How described links are used; auto: as gloo does for gloo, otherwise the fastest of all three.
    algorithm: Algorithm = "auto"
    # What DDP pays to copy a byte of gradient into its bucket; the way back costs the same.
    copy_s_per_byte: float = 0.0
    costs: tuple[Costs, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    threads_per_rank: int = 1  # While it was probed
    disturbed: str = ""  # Why the probe is not to be trusted, in one line; empty: it is

    @property
    def slots(self) -> int:
        """Ranks that the cluster takes."""
        return self.nodes * self.slots_per_node
