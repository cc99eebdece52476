"""The parts of a step of any Timeline, by the code that takes real traces apart."""

from scalescope.records.timeline import BUSY, COMPUTE, EXCHANGE, Breakdown, Step, Timeline, moments
from scalescope.traces.trace import Activities, breakdowns, parts_of


def break_down(timeline: Timeline, step: Step) -> Breakdown:
    """The parts of one step of one rank."""
    assert set(BUSY) == {*COMPUTE, "optimizer"}
    own = [span for span in timeline.spans if span.rank == step.rank]
    activities = Activities(*(moments(own, kinds) for kinds in (COMPUTE, ("optimizer",), EXCHANGE, ("input",))))
    return breakdowns(parts_of(activities, [step.start_s], [step.end_s]))[0]
