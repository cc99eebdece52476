"""What a reader makes of one trace file: one rank (or what rank 0 saw), on the file's own clock."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.records.explanation import HorovodAccount, Loss
from scalescope.timelines.breakdown import Parts
from scalescope.timelines.intervals import Intervals, Times

StepsFrom = Literal["marks", "optimizer", "gradients", "none"]
"""Where steps came from: the profiler's step marks, Optimizer.step, recurring gradient tensors, or there are none."""


@dataclass(frozen=True)
class Collectives:
    """Collective operations in the order in which they ended; one entry each, equal on every rank of a job."""

    operation: NDArray[np.object_]
    """allreduce, broadcast, ..."""
    bytes: NDArray[np.int64]
    """-1 where the trace does not say."""
    start_s: Times
    """When this rank's part of it began."""
    end_s: Times


class HeldUp(NamedTuple):
    """For whom alone the others waited in a Horovod timeline, where it names the rank; one entry per step and rank."""

    step: NDArray[np.int64]
    rank: NDArray[np.int64]
    seconds: Times

    def by_step(self, rank: int, steps: int) -> Times:
        """Seconds of this rank in each of the first steps."""
        mine = (self.rank == rank) & (self.step < steps)
        return np.asarray(np.bincount(self.step[mine], self.seconds[mine], minlength=steps), dtype=float)


@dataclass(frozen=True)
class Trace:
    """One file, read. Times are seconds on its own clock, whose zero is `epoch_s` seconds after 1970 (0: unknown)."""

    path: Path
    kind: Literal["horovod", "kineto"]
    rank: int | None
    world_size: int | None
    backend: str
    """gloo, nccl, mpi, ..., or empty."""
    device: Literal["cpu", "cuda"]
    epoch_s: float
    steps_from: StepsFrom
    starts_s: Times
    """Of the steps, ascending; the last may be cut off and is then left out."""
    ends_s: Times
    parts: Parts
    collectives: Collectives
    exchange: Intervals
    """All moments in which something was exchanged or negotiated."""
    negotiation: Intervals | None = None
    """Those in which ranks agreed on what to send; None where there is no such thing."""
    horovod: HorovodAccount | None = None
    possibly_hidden: Times | None = None
    """Per step: communication before its last gradient was submitted, which may lie under compute."""
    waiting: Times | None = None
    """Per step: negotiation after its last gradient was submitted while nothing was sent; Horovod only."""
    held_up: HeldUp | None = None
    compiled: bool = False
    """Whether code that torch.compile made was seen."""
    bucket_bytes: tuple[int, ...] = ()
    """Of the gradient messages of a typical step, in their order; empty where the trace does not say."""
    is_empty: bool = False
    """Whether no event could be read."""
    loss: Loss = field(default_factory=Loss)
    notes: tuple[str, ...] = ()
    """What a user should know about how it was read, one sentence each."""
