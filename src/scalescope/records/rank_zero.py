"""One run of a script as rank 0 of N: its step, its memory, and every collective of a step, without any other rank."""

from typing import ClassVar, Literal

import msgspec

from scalescope.records.cluster import Device
from scalescope.records.store import Record

Collective = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
]
Phase = Literal["forward", "backward", "optimizer", "other"]  # Other: input, logging, between steps


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of a step. Times are seconds of compute since the step began: those in which results were made up
    (`fill_s`) before them are taken off.

    On a CPU that is when the call was made. On a GPU it is when its streams came there (events), not when the CPU,
    which runs ahead, put the work into them.
    """

    operation: Collective
    bytes: int  # Of the larger side, the whole tensor: what an all-gather gives, what a reduce-scatter takes
    dtype: str = ""  # As torch names it, without `torch.`: float32
    ranks: int  # Of its group
    stride: int = 1  # Distance between the ranks of its group: 1: neighbours; 0: irregular
    group: str = ""  # Name of its group: messages of a group run one after another
    phase: Phase = "other"
    module: str = ""  # Whose parameters it carries, where the engine says so; empty: not known, or the root
    prefetched: bool = False  # Whether FSDP2 issued it ahead of the module that is computed
    issued_s: float  # What it sends is there, and it could start
    # When compute first waits for it: the call itself where it blocks, of DDP's buckets the end of backward.
    # None: never in this step
    needed_s: float | None = None
    fill_s: float = 0.0  # What making its result up took, which a real one does not take


class RankZero(Record, frozen=True, kw_only=True, tag="rank_zero"):
    """A script that ran as rank 0 of `np` on one device, with collectives that returned at once.

    A step lasts from the end of an optimizer step to the end of the next one. What one process alone does is np = 1.
    """

    current_version: ClassVar[int] = 1

    what: str  # The command
    np: int  # Ranks that the script was told of
    ranks_per_node: int  # And on a node (LOCAL_WORLD_SIZE)
    copies: int = 1  # Processes of this host that made the same steps at the same time, itself included
    batch: int = 0  # Samples of a step of this process, over all passes of gradient accumulation; 0: not known
    engine: str = ""  # By name, as its collectives and wrappers show it: ddp, fsdp2, hsdp, ...; empty: none
    backend: str = ""  # As the script named its process group: gloo, nccl; empty: it made none
    device: Device = "cpu"
    gpu: str = ""  # The name of the GPU
    torch: str = ""  # Its version
    threads: int = 1  # Of torch in the process
    # Steps that were timed without recording: typical seconds of one, in which results are still made up (`fill_s`)
    step_s: float
    steps_s: tuple[float, ...] = ()  # Every one of them
    error: float = 0.0  # Relative standard error of step_s
    fill_s: float = 0.0  # Part of step_s in which results of collectives were made up
    forward_s: float = 0.0  # Parts of step_s; what is left of it is input and anything else between steps
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    # The step whose messages follow, by their clock: recording is in it, making results up is not
    recorded_step_s: float = 0.0
    messages: tuple[Message, ...] = ()  # Of one typical recorded step, in order of issue
    # When each of them was issued, by that clock, and when the step ended: of all recorded steps with the same ones, of
    # all processes that stepped at a time
    issues_s: tuple[tuple[float, ...], ...] = ()
    cores_used: float = 0.0  # CPU seconds per second of a step; 0: not known
    foreign_cores: float = 0.0  # Cores that other programs kept busy meanwhile
    memory_bytes: int = 0  # Peak: of the process on a CPU, of torch's allocations on a GPU
    memory_limit_bytes: int = 0  # What the device has; 0: not known
    out_of_memory: str = ""  # The line with which memory ran out; empty: it did not. Then step_s is 0
    finite: bool = True  # Whether no loss was seen that is not finite
    saves: tuple[str, ...] = ()  # Files and calls by which the script would have saved, a line each
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """False if memory ran out."""
        return not self.out_of_memory

    @property
    def compute_s(self) -> float:
        """A step whose collectives cost nothing."""
        return max(self.step_s - self.fill_s, 0.0)
