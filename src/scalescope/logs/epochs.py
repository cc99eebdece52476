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
    steady = {point.np: point.step_s.value for point in curve.points if point.step_s}
    most = max((point.warmup_steps or 0 for point in curve.points), default=0)
    if not excess or not most:
        return "the first epoch takes no longer than the others" if excess else ""
    beginning = _once(curve) + ("the first epoch costs" if most == 1 else f"the first epochs (up to {most}) cost")
    counts = sorted(excess)
    if len(counts) == 1:
        return f"{beginning} {_seconds(excess[counts[0]])} more than steady ones on {plural(counts[0], 'process')}"
    first, others = counts[0], counts[1:]
    appears = next((np for np in others if excess[np] > _APPEARS * max(excess[first], _WORTH * steady[first])), None)
    if appears is not None:
        before = [np for np in counts if np < appears]
        after = [np for np in counts if np >= appears]
        least, largest = (pick(excess[np] for np in after) for pick in (min, max))
        if least > 0 and largest <= _ALIKE * least and all(excess[np] * 2 < excess[appears] for np in before):
            growth = " and does not grow" if len(after) > 1 else ""
            return (
                f"{beginning} {_listed(excess, after)}, {_listed(excess, before, bare=True)}: the excess appears at "
                f"{appears} processes{growth}, a one-time cost of starting several processes"
            )
    return f"{beginning} {_listed(excess, counts)}"


def _once(curve: Curve) -> str:
    """A reservation where several sizes ran once each."""
    repeated = len(curve.points) < 2 or any(point.launches > 1 for point in curve.points)
    return "" if repeated else "in one run each "


def _listed(excess: Mapping[int, float], counts: list[int], *, bare: bool = False) -> str:
    """`22.2 s more than a steady one on 2 processes and 21.9 s on 4`."""
    parts = []
    for index, np in enumerate(counts):
        full = index == 0 and not bare
        where = plural(np, "process") if full else str(np)
        parts.append(f"{_seconds(excess[np])}{' more than a steady one' if full else ''} on {where}")
    return listed(parts)


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
