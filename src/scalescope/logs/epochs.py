"""Findings from epoch times: the excess of the first epoch, and after how many epochs more processes pay."""

import math
from collections.abc import Mapping

from scalescope.records.scaling import Curve
from scalescope.text import listed
from scalescope.units import format_seconds

_APPEARS = 3.0  # A cost this many times that of fewer processes is a new one
_ALIKE = 1.5  # Costs within this ratio are of one size
_WORTH = 0.1  # Of a steady epoch: less excess is none


def first_epoch_excess(curve: Curve) -> dict[int, float]:
    """Seconds that warm-up epochs took beyond steady ones, by number of processes."""
    excess = {}
    for point in curve.points:
        if curve.work_unit == "epochs" and point.step_s and point.warmup_steps is not None:
            excess[point.np] = point.phases.get("warmup", 0.0) - point.warmup_steps * point.step_s.value
    return excess


def break_even_epochs(curve: Curve) -> dict[int, int | None]:
    """Epochs after which the baseline is overtaken, by number of processes; None: never."""
    found: dict[int, int | None] = {}
    for point in curve.points:
        if curve.work_unit == "epochs" and "train" in point.break_even:
            work = point.break_even["train"].value
            found[point.np] = None if work is None else math.ceil(work)
    return found


def excess_sentence(curve: Curve) -> str:
    """Describe how the first epoch's excess depends on the number of processes; empty when nothing is known."""
    excess = first_epoch_excess(curve)
    if not excess:
        return ""
    if not any(point.warmup_steps for point in curve.points):
        return "the first epochs take no longer than the others"
    sentence = f"the first epochs cost more than steady ones: {_by_processes(excess)}"
    counts = sorted(excess)
    steady_s = next(point.step_s.value for point in curve.points if point.step_s and point.np == counts[0])
    for at in range(1, len(counts)):
        before, after = [excess[np] for np in counts[:at]], [excess[np] for np in counts[at:]]
        if min(after) > _APPEARS * max(*before, _WORTH * steady_s) and max(after) <= _ALIKE * min(after):
            return (
                f"{sentence}; the excess appears at {counts[at]} processes and does not grow: "
                "a one-time cost of starting several processes"
            )
    return sentence


def testing_sentence(curve: Curve) -> str:
    """Report the time of testing per epoch; empty where no log tells."""
    tests = {
        point.np: point.phases["evaluation"] / point.steps
        for point in curve.points
        if curve.work_unit == "epochs" and point.steps and point.phases.get("evaluation")
    }
    if not tests:
        return ""
    return f"testing, per epoch: {_by_processes(tests)}; epochs and speedups are those of training alone"


def _by_processes(seconds: Mapping[int, float]) -> str:
    return listed([f"{format_seconds(each)} at np {np}" for np, each in seconds.items()])
