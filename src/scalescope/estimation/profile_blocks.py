"""Request for a profile, and the blocks of steps that its ranks write."""

from statistics import median
from typing import Literal

import msgspec

from scalescope.records.profile import WorkloadSpec

# Blocks of one process with DDP (wrapped) or as rank 0 of an engine that shards, and without any (bare).
Pair = Literal["", "bare", "wrapped", "sharded"]


class Sharding(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that shards, as rank 0 of some numbers of processes."""

    live_module: str
    reshards: bool | None = None  # Its knob reshard_after_forward
    ranks: tuple[int, ...]

    @property
    def knobs(self) -> dict[str, bool]:
        """As its live half takes them."""
        return {} if self.reshards is None else {"reshard_after_forward": self.reshards}


class ProfileTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a profile: what to measure, and how long it may take."""

    workload: WorkloadSpec
    batches: tuple[int, ...]
    device: str
    seconds: float
    repeats: int  # Blocks of every batch size that are wanted
    together: tuple[int, ...]  # Numbers of ranks that step next to each other, to see CPU contention
    launches: int = 1  # Of this program, each of which has `seconds`
    sharding: Sharding | None = None  # To measure its own cost as well
    every: bool = False  # All batch sizes, because an earlier launch chose them; otherwise those that matter


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters and buffers of the model; the first line of rank 0."""

    names: list[str]
    bytes: list[int]
    element_bytes: list[int]
    buffers_bytes: list[int]
    buffers: int = 0
    norm_channels: list[int] = []
    torch: str
    device: str
    hostname: str
    memory_limit_bytes: int


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Block of successive steps of one rank, as written down when they are done."""

    batch: int
    copies: int
    forward_s: list[float] = []
    backward_s: list[float] = []
    optimizer_s: list[float] = []
    cpu_s: list[float] = []
    ready_s: dict[str, float] = {}  # By position among the parameters; the median over the steps
    memory_bytes: int = 0
    foreign_cores: float = 0.0
    failed: str = ""  # Why this batch cannot be run; empty when it can
    launch: int = 0
    pair: Pair = ""  # Of a block that tells, with one next to it, what an engine costs; it has no ready_s
    ranks: int = 1  # Of a pair: as whose rank 0 the process ran
    fill_s: float = 0.0  # Of a pair: part of each step in which results of collectives were made up

    @property
    def step_s(self) -> float:
        """The median step."""
        return median(map(sum, zip(self.forward_s, self.backward_s, self.optimizer_s, strict=True)))


def file_of(rank: int) -> str:
    """File to which a rank writes its blocks."""
    return f"profile-rank{rank}.jsonl"
