"""What ranks did when: the one form in which predicted and traced steps are drawn and broken down."""

from collections.abc import Collection, Iterable
from typing import ClassVar, Literal

import msgspec

from scalescope.intervals import Intervals, union, without
from scalescope.records.store import Record

Activity = Literal["input", "forward", "backward", "optimizer", "copy", "communication", "negotiation", "other"]
COMPUTE: tuple[Activity, ...] = ("forward", "backward", "copy")
BUSY: tuple[Activity, ...] = (*COMPUTE, "optimizer")
EXCHANGE: tuple[Activity, ...] = ("communication", "negotiation")


class Span(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One activity of one rank, from start to end in seconds."""

    rank: int
    activity: Activity
    start_s: float
    end_s: float
    name: str = ""
    bytes: int = 0


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank."""

    rank: int
    start_s: float
    end_s: float


class Timeline(Record, frozen=True, kw_only=True, tag="timeline"):
    """Activities and steps of one or more ranks on one clock."""

    current_version: ClassVar[int] = 1

    source: str  # Who made it: `predicted`, or the kind of trace
    spans: tuple[Span, ...]
    steps: tuple[Step, ...]


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a step goes, in seconds; the parts add up to the step; hidden time is extra.

    A part that the source cannot separate is None and its time is in other.
    """

    step_s: float
    compute_s: float | None
    exposed_s: float | None  # Communication during which nothing is computed
    hidden_s: float | None  # Communication under compute
    input_s: float | None
    optimizer_s: float | None
    other_s: float
    # Of exposed_s: until the last rank had come to what is exchanged; the rest is transfer. None where nothing tells.
    waiting_s: float | None = None

    @property
    def transfer_s(self) -> float | None:
        """Exposed communication that waits for no rank; None where the source does not say."""
        if self.exposed_s is None or self.waiting_s is None:
            return None
        return max(self.exposed_s - self.waiting_s, 0.0)


def moments(spans: Iterable[Span], activities: Collection[Activity]) -> Intervals:
    """When any of these activities goes on."""
    own = [span for span in spans if span.activity in activities]
    return union([span.start_s for span in own], [span.end_s for span in own])


def exposed(exchange: Intervals, busy: Intervals) -> Intervals:
    """Exposed communication: when a rank exchanges while it neither computes nor updates parameters.

    The only definition. Trace readers, the accounting of Horovod timelines and the charts call it; the simulator,
    which has no intervals, reports the same time (tests/traces/test_exposed.py compares them all).
    """
    return without(exchange, busy)
