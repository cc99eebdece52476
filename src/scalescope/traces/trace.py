"""One trace file as read: one rank (or what rank 0 saw), its steps and where their time goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalescope.intervals import NOTHING, Intervals, Times, between, joined, without
from scalescope.records.explanation import HorovodAccount, Loss
from scalescope.records.job import NO_ENGINE
from scalescope.records.timeline import Breakdown, Span, exposed


@dataclass(frozen=True)
class Activities:
    """Activities of one rank, as sets of moments; None where the source cannot tell."""

    compute: Intervals | None = None
    optimizer: Intervals | None = None
    exchange: Intervals | None = None
    input: Intervals | None = None


@dataclass(frozen=True)
class Parts:
    """The parts of many steps, one entry each; None where the source cannot tell."""

    step: Times
    compute: Times | None
    optimizer: Times | None
    exposed: Times | None
    hidden: Times | None
    input: Times | None
    other: Times
    waiting: Times | None = None  # Of exposed: until the last rank had come to what is exchanged

    def since(self, step: int) -> "Parts":
        """Those of the steps from this one on."""
        return self._each(lambda column: column[step:])

    def scaled(self, factor: float) -> "Parts":
        """All parts longer by a factor."""
        return self._each(lambda column: column * factor)

    def mean(self) -> "Parts":
        """The mean step."""
        return self._each(lambda column: column.mean(keepdims=True))

    @classmethod
    def joined(cls, several: Sequence["Parts"]) -> "Parts":
        """Steps of all; a part that any of them cannot tell is absent."""
        columns = [[getattr(each, name) for each in several] for name in _PARTS]
        whole: list[Any] = [None if any(c is None for c in column) else np.concatenate(column) for column in columns]
        return cls(*whole)

    def _each(self, change: Callable[[Times], Times]) -> "Parts":
        columns = (getattr(self, name) for name in _PARTS)
        changed: list[Any] = [None if column is None else change(column) for column in columns]
        return Parts(*changed)


_PARTS = [each.name for each in fields(Parts)]


def exposed_of(activities: Activities) -> Intervals:
    """Moments in which a rank exchanged and did nothing else."""
    busy = [each for each in (activities.compute, activities.optimizer) if each is not None]
    return exposed(activities.exchange or NOTHING, joined(NOTHING, *busy))


def parts_of(activities: Activities, starts: ArrayLike, ends: ArrayLike, alone: Intervals | None = None) -> Parts:
    """The parts of every step; they add up to it, and each moment counts once.

    Compute goes before everything, then the optimizer, then communication that is left over, then waiting for input.
    `alone` is `exposed_of` these activities, where it is known already.
    """

    def lasts(moments: Intervals) -> Times:
        return between(moments, starts, ends)

    step = np.asarray(ends, dtype=float) - np.asarray(starts, dtype=float)
    compute, optimizer, exchange = (
        NOTHING if each is None else each for each in (activities.compute, activities.optimizer, activities.exchange)
    )
    busy = joined(compute, optimizer)
    parts = {
        "compute": None if activities.compute is None else lasts(compute),
        "optimizer": None if activities.optimizer is None else lasts(without(optimizer, compute)),
        "exposed": None if activities.exchange is None else lasts(alone or exposed_of(activities)),
        "input": None if activities.input is None else lasts(without(activities.input, joined(busy, exchange))),
    }
    hidden = None
    if activities.compute is not None and parts["exposed"] is not None:
        hidden = lasts(exchange) - parts["exposed"]
    other = step - sum(part for part in parts.values() if part is not None)
    return Parts(step=step, hidden=hidden, other=np.asarray(other), **parts)


def breakdowns(parts: Parts) -> list[Breakdown]:
    """Convert parts to records, in seconds when the parts are."""
    columns = [parts.step, parts.compute, parts.exposed, parts.hidden, parts.input, parts.optimizer, parts.other]
    lists = [repeat(None) if column is None else column.tolist() for column in (*columns, parts.waiting)]
    return [
        Breakdown(
            step_s=step,
            compute_s=compute,
            exposed_s=exposed,
            hidden_s=hidden,
            input_s=fetching,
            optimizer_s=optimizer,
            other_s=other,
            waiting_s=waiting,
        )
        for step, compute, exposed, hidden, fetching, optimizer, other, waiting in zip(*lists, strict=False)
    ]


def mean_parts(parts: Sequence[Parts]) -> Breakdown | None:
    """The mean step of all; a part that any of them cannot tell is absent, and without steps there is none."""
    if not any(len(each.step) for each in parts):
        return None
    return breakdowns(Parts.joined(parts).mean())[0]


# Where steps came from: the profiler's step marks, Optimizer.step, recurring gradient tensors, or there are none.
StepsFrom = Literal["marks", "optimizer", "gradients", "none"]


@dataclass(frozen=True)
class Collectives:
    """Collective operations in the order in which they ended; one entry each, equal on every rank of a job."""

    operation: NDArray[np.object_]  # allreduce, broadcast, ...
    bytes: NDArray[np.int64]  # -1 where the trace does not say
    start_s: Times  # When this rank's part of it began
    end_s: Times


@dataclass(frozen=True)
class Issued:
    """Facts that FSDP2's ranges tell of each collective, in the order of the collectives."""

    phase: NDArray[np.object_]  # forward, backward, or empty where no range holds it
    module: NDArray[np.object_]  # Whose parameters or gradients it carries
    prefetched: NDArray[np.bool_]  # Whether it was issued before its module was reached
    followed: NDArray[np.bool_]  # Whether another backward pass follows before the optimizer steps
    group: NDArray[np.object_]  # The process group, as far as the trace names it
    issued_s: Times  # When the host issued it; NaN where that is not known
    issuing_s: Times  # How long the host was busy with that; 0 where that is not known
    # Where the compute stream of a GPU copies parameters out of a gather, or gradients into a reduction, in time order:
    # which of both, the module, and when it begins
    copies: tuple[tuple[Literal["gathered", "reduced"], str, float], ...] = ()
    synchronized: Intervals | None = None  # When the host waited for its GPU


class HeldUp(NamedTuple):
    """Waits for one rank alone in a Horovod timeline, where it names the rank; one entry per step and rank."""

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
    rank: int | None
    world_size: int | None
    backend: str  # gloo, nccl, mpi, ..., or empty
    device: Literal["cpu", "cuda"]
    epoch_s: float
    steps_from: StepsFrom
    starts_s: Times  # Of the steps, ascending; the last may be cut off and is then left out
    ends_s: Times
    parts: Parts
    collectives: Collectives
    exchange: Intervals  # All moments in which something was exchanged or negotiated
    # Those of its steps in which nothing was computed meanwhile; None where they are known by step only.
    exposed: Intervals | None = None
    # Those in which ranks agreed on what to send; None where there is no such thing.
    negotiation: Intervals | None = None
    engine: str = NO_ENGINE  # As its names show it
    whole_job: bool = False  # Whether it tells of all ranks, from the first step on
    # What Horovod's thread did in the steps that begin at this moment or later: steady ones, once they are known.
    horovod: Callable[[float], HorovodAccount] | None = None
    # Per step: communication before its last gradient was submitted, which may lie under compute.
    possibly_hidden: Times | None = None
    # Per step: negotiation after its last gradient was submitted while nothing was sent; Horovod only.
    negotiated: Times | None = None
    held_up: HeldUp | None = None
    issued: Issued | None = None  # None without ranges of FSDP2
    device_bytes: int | None = None  # Memory of its GPU, where the trace says it
    group_ranks: dict[str, int] = field(default_factory=dict)  # Of each process group that the trace names
    compiled: bool = False  # Whether code that torch.compile made was seen
    # Of the gradient messages of a typical step, in their order; empty where the trace does not say.
    bucket_bytes: tuple[int, ...] = ()
    is_empty: bool = False  # Whether no event could be read
    loss: Loss = field(default_factory=Loss)
    notes: tuple[str, ...] = ()  # What a user should know about how it was read, one sentence each
    # What was going on between two moments, for drawing: read again from the pieces of the file that hold them.
    spans: Callable[[float, float], tuple[Span, ...]] = lambda start_s, end_s: ()
