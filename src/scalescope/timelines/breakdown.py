"""Where the time of a step goes: the one definition for predicted and for traced steps."""

from scalescope.records.timeline import COMPUTE, EXCHANGE, Breakdown, Step, Timeline
from scalescope.timelines.intervals import Intervals, difference, intersection, length, union


def break_down(timeline: Timeline, step: Step) -> Breakdown:
    """The parts of one step of one rank; they add up to it, and each moment counts once.

    Compute goes before everything, then the optimizer, then communication that is left over, then waiting for input.
    """
    window = [(step.start_s, step.end_s)]
    taken: dict[str, Intervals] = {}
    kinds = {"compute": COMPUTE, "optimizer": ("optimizer",), "exchange": EXCHANGE, "input": ("input",)}
    for part, activities in kinds.items():
        spans = [
            (span.start_s, span.end_s)
            for span in timeline.spans
            if span.rank == step.rank and span.activity in activities
        ]
        taken[part] = intersection(union(spans), window)
    busy = union([*taken["compute"], *taken["optimizer"]])
    exposed = difference(taken["exchange"], busy)
    optimizer = difference(taken["optimizer"], taken["compute"])
    waiting = difference(taken["input"], union([*busy, *exposed]))
    parts = [length(taken["compute"]), length(exposed), length(optimizer), length(waiting)]
    whole = step.end_s - step.start_s
    return Breakdown(
        step_s=whole,
        compute_s=parts[0],
        exposed_s=parts[1],
        hidden_s=length(taken["exchange"]) - parts[1],
        input_s=parts[3],
        optimizer_s=parts[2],
        other_s=whole - sum(parts),
    )
