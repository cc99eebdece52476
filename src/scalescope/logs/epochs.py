"""Findings from epoch times: the excess of the first epoch, and after how many epochs more processes pay."""

import math
from collections.abc import Mapping

from scalescope.records.scaling import Curve
from scalescope.text import listed, plural
from scalescope.units import format_seconds

_ALIKE = 1.5  # Costs within this ratio are of one size
_APPEARS = 3.0  # A cost this many times that of fewer processes is a new one
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
    most = max((point.warmup_steps or 0 for point in curve.points), default=0)
    if not excess or not most:
        return "the first epoch takes no longer than the others" if excess else ""
    costs = _once(curve) + ("the first epoch costs" if most == 1 else f"the first epochs (up to {most}) cost")
    after = _appearance(curve, excess)
    first, *others = [*after, *(np for np in sorted(excess) if np < min(after))] if after else sorted(excess)
    told = [f"{_seconds(excess[first])} more than a steady one on {plural(first, 'process')}"]
    told += [f"{_seconds(excess[np])} on {np}" for np in others]
    if not after:
        return f"{costs} {listed(told)}"
    return (
        f"{costs} {listed(told[: len(after)])}, {listed(told[len(after) :])}: the excess appears at {after[0]} "
        f"processes{' and does not grow' if len(after) > 1 else ''}, a one-time cost of starting several processes"
    )


def _appearance(curve: Curve, excess: Mapping[int, float]) -> list[int]:
    """The numbers of processes that share a cost which fewer do not have; none where it grows or was always there."""
    counts = sorted(excess)
    steady_s = next(point.step_s.value for point in curve.points if point.step_s and point.np == counts[0])
    usual_s = max(excess[counts[0]], _WORTH * steady_s)
    appears = next((at for at, np in enumerate(counts) if excess[np] > _APPEARS * usual_s), len(counts))
    before, after = [excess[np] for np in counts[:appears]], [excess[np] for np in counts[appears:]]
    is_new = bool(after) and max(after) <= _ALIKE * min(after) and 2 * max(before) < after[0]
    return counts[appears:] if is_new else []


def _once(curve: Curve) -> str:
    """A reservation where several sizes ran once each."""
    repeated = len(curve.points) < 2 or any(point.launches > 1 for point in curve.points)
    return "" if repeated else "in one run each "


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if abs(seconds) >= 0.95 else f"{seconds:.2g} s"


def testing_sentence(curve: Curve) -> str:
    """Report the time of testing per epoch and its speedup; empty where no log tells."""
    tests = {
        point.np: point.phases["evaluation"] / point.steps
        for point in curve.points
        if point.steps and point.phases.get("evaluation")
    }
    if curve.work_unit != "epochs" or not tests:
        return ""
    each = listed([f"{format_seconds(seconds)} on {np:,}" for np, seconds in tests.items()])
    noun = "process" if list(tests) == [1] else "processes"
    first, last = min(tests), max(tests)
    ratio = f", {tests[first] / tests[last]:.2f}x as fast on {last:,} as on {first:,}" if first != last else ""
    return f"testing takes {each} {noun} per epoch{ratio}; epochs and speedups are those of training alone"


def slower_sentences(curve: Curve) -> list[str]:
    """Report trainings that were slower than the baseline's although a steady epoch is faster."""
    found = []
    baseline = curve.baseline
    for point in curve.points:
        train, steady = point.speedup.get("train"), point.speedup.get("steady")
        if baseline and train and steady and train.value < 1 < steady.value:
            which = "these" if point.steps == baseline.steps else "their"
            found.append(
                f"{_once(curve)}over {which} {plural(point.steps or 0, 'epoch')} {plural(point.np, 'process')} "
                f"were slower than {baseline.np} ({train.value:.2f}x) although a steady epoch was "
                f"{steady.value:.2f}x as fast"
            )
    return found
