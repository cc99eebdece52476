"""Where the time of a step goes: the one definition for predicted and for traced steps."""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from scalescope.records.timeline import COMPUTE, EXCHANGE, Breakdown, Step, Timeline
from scalescope.timelines.intervals import Intervals, Times, between, joined, union


@dataclass(frozen=True)
class Activities:
    """What one rank did, as sets of moments; None where the source cannot tell."""

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


def parts_of(activities: Activities, starts: ArrayLike, ends: ArrayLike) -> Parts:
    """The parts of every step; they add up to it, and each moment counts once.

    Compute goes before everything, then the optimizer, then communication that is left over, then waiting for input.
    """
    step = np.asarray(ends, dtype=float) - np.asarray(starts, dtype=float)
    taken, covered = np.zeros_like(step), Intervals(np.zeros(0), np.zeros(0))
    found: list[Times | None] = []
    for kind in (activities.compute, activities.optimizer, activities.exchange, activities.input):
        if kind is None:
            found.append(None)
            continue
        covered = joined(covered, kind)
        now = between(covered, starts, ends)
        found.append(now - taken)
        taken = now
    compute, optimizer, exposed, waiting = found
    hidden = None
    if exposed is not None and compute is not None:
        assert activities.exchange is not None
        hidden = between(activities.exchange, starts, ends) - exposed
    return Parts(step, compute, optimizer, exposed, hidden, waiting, step - taken)


def break_down(timeline: Timeline, step: Step) -> Breakdown:
    """The parts of one step of one rank."""

    def of(*kinds: str) -> Intervals:
        spans = [span for span in timeline.spans if span.rank == step.rank and span.activity in kinds]
        return union([span.start_s for span in spans], [span.end_s for span in spans])

    activities = Activities(of(*COMPUTE), of("optimizer"), of(*EXCHANGE), of("input"))
    return breakdowns(parts_of(activities, [step.start_s], [step.end_s]))[0]


def breakdowns(parts: Parts) -> list[Breakdown]:
    """The same as records, in seconds when the parts are."""
    columns = {
        "step_s": parts.step,
        "compute_s": parts.compute,
        "exposed_s": parts.exposed,
        "hidden_s": parts.hidden,
        "input_s": parts.input,
        "optimizer_s": parts.optimizer,
        "other_s": parts.other,
    }
    lists = {name: None if column is None else column.tolist() for name, column in columns.items()}
    return [
        msgspec.convert({name: None if values is None else values[at] for name, values in lists.items()}, Breakdown)
        for at in range(len(parts.step))
    ]
