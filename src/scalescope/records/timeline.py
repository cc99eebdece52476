"""Timeline of ranks: the one form in which predicted and traced steps are drawn and broken down."""

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

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
    """Time of a step by part, in seconds; the parts add up to the step; hidden time is extra.

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


class Part(NamedTuple):
    """One part of a step, and its looks everywhere."""

    key: str  # In JSON
    field: str  # Of a Breakdown
    name: str
    short: str  # In narrow columns
    letter: str  # In a bar of letters
    colour: str

    def seconds(self, parts: Breakdown) -> float | None:
        """Time of a part; None where the source cannot tell. A rounding error below zero is zero."""
        seconds: float | None = getattr(parts, self.field)
        return None if seconds is None else 0.0 if -1e-6 < seconds < 0 else seconds

    def share(self, parts: Breakdown) -> float | None:
        """As a fraction of the step."""
        seconds = self.seconds(parts)
        return None if seconds is None else seconds / parts.step_s if parts.step_s > 0 else 0.0


EXPOSED = Part("exposed_communication", "exposed_s", "exposed communication", "exposed", "e", "#d55e00")
PARTS = (
    Part("compute", "compute_s", "compute", "compute", "c", "#3b87c0"),
    EXPOSED,
    Part("input", "input_s", "input", "input", "i", "#999999"),
    Part("optimizer", "optimizer_s", "optimizer", "optim.", "o", "#3fae8a"),
    Part("other", "other_s", "other", "other", ".", "#d0d0d0"),
)  # They add up to the step
WAITING = Part("waiting", "waiting_s", "waiting for other ranks", "waiting", "w", "#8a3b00")
TRANSFER = Part("transfer", "transfer_s", "exposed transfer", "transfer", "t", "#d55e00")
HIDDEN = Part("hidden_communication", "hidden_s", "hidden communication", "hidden", "h", "#f0b83c")  # Under compute


def parts_of(several: Sequence[Breakdown]) -> tuple[Part, ...]:
    """Parts that add up to each of these steps; exposed communication is divided where all of them tell."""
    exposing = [each for each in several if each.exposed_s is not None]
    if not exposing or any(each.waiting_s is None for each in exposing):
        return PARTS
    return tuple(shown for part in PARTS for shown in ((WAITING, TRANSFER) if part is EXPOSED else (part,)))


def moments(spans: Iterable[Span], activities: Collection[Activity]) -> Intervals:
    """Intervals in which any of these activities goes on."""
    own = [span for span in spans if span.activity in activities]
    return union([span.start_s for span in own], [span.end_s for span in own])


def exposed(exchange: Intervals, busy: Intervals) -> Intervals:
    """Exposed communication: when a rank exchanges while it neither computes nor updates parameters.

    The only definition. Trace readers, the accounting of Horovod timelines and the charts call it; the simulator,
    which has no intervals, reports the same time (tests/traces/test_exposed.py compares them all).
    """
    return without(exchange, busy)
