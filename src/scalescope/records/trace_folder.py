"""A folder in which a traced launch left its files: what is there, and what tracing cost."""

from typing import ClassVar, Literal

import msgspec

from scalescope.records.run import Point
from scalescope.records.store import Record

TRACE_RECORD = "traced.json"
"""The record's name in its folder; people call their own traces trace.json."""


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """What tracing added to a step, relative: 0.1 is 10 %."""

    value: float
    low: float
    """The least that neighbouring blocks of traced and untraced steps say, and the most."""
    high: float


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank left; names are relative to the folder, empty where there is no such file."""

    rank: int
    host: str
    profile: str = ""
    """Of torch's profiler."""
    marks: str = ""
    """When each part of each step began and ended."""


class TraceFolder(Record, frozen=True, kw_only=True, tag="trace_folder"):
    """One traced launch."""

    current_version: ClassVar[int] = 1

    what: str
    """The model or the command, for people."""
    command: tuple[str, ...] = ()
    """Empty for a model."""
    point: Point
    engine: Literal["none", "ddp", "horovod"]
    """As the ranks showed it."""
    backend: str
    np: int
    cores: int | None = None
    """Of the machine that launched it; None when ranks ran on other hosts."""
    timeline: str = ""
    """Horovod's, written by rank 0; empty without Horovod."""
    ranks: tuple[RankTrace, ...]
    first_step: int
    """Number of the first captured step, from 0; a timeline has those before it too."""
    steps: int
    """How many were captured on every rank."""
    traced_step_s: float | None
    """Median step of the slowest rank while it was traced."""
    untraced_step_s: float | None
    """The same in the steps around them that were not traced."""
    overhead: Overhead | None = None
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """All of them that hold a trace."""
        profiles = tuple(rank.profile for rank in self.ranks if rank.profile)
        return (self.timeline, *profiles) if self.timeline else profiles
