"""From observations to a curve: three speedups with intervals, efficiency, and what stands between ideal and real."""

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Literal

import msgspec

from scalescope.measurement.costs import break_even, fit_fixed_cost, how_much_longer, one_time
from scalescope.measurement.observation import Observation
from scalescope.records.scaling import LOSSES, Curve, Estimate, Loss, ScalingPoint, estimate, estimate_apart

Time = Callable[[Observation, float], float | None]  # Seconds of a run for an amount of work


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Properties shared by all observations of a curve."""

    engine: str
    scaling: str = ""
    batch: int | None = None
    work_unit: str = "samples"
    baseline_engine: str = ""  # Empty: the curve's own engine
    baseline_np: int | None = None  # None: the smallest there is, if there are several
    target: float | None = None  # How well ratios had to be known before observing stopped
    # told: by the source; fitted: to times and rates of a table, whose fit is shown; unknown: no one-time cost follows
    work: Literal["told", "fitted", "unknown"] = "told"


def make_curve(observations: Sequence[Observation], frame: Frame) -> Curve:
    """The curve of one engine; observations of its baseline among them."""
    counts = sorted({each.np for each in observations})
    smallest = counts[0] if len(counts) > 1 else None
    baseline_np = frame.baseline_np or smallest
    baseline_engine = frame.baseline_engine or frame.engine
    groups: dict[tuple[int, bool, str], list[Observation]] = {}
    for each in observations:
        groups.setdefault((each.np, each.engine != baseline_engine, each.engine), []).append(each)
    baseline = groups.get((baseline_np, False, baseline_engine), []) if baseline_np is not None else []
    points = [_point(groups[key], baseline, frame) for key in sorted(groups)]
    return Curve(
        engine=frame.engine,
        scaling=frame.scaling,
        batch=frame.batch,
        baseline_np=baseline_np if baseline else None,
        baseline_engine=baseline_engine if baseline else "",
        work_unit=frame.work_unit,
        points=tuple(points),
        fit=fit_fixed_cost(observations, baseline) if baseline and frame.work == "fitted" else None,
    )


def _point(group: Sequence[Observation], baseline: Sequence[Observation], frame: Frame) -> ScalingPoint:
    times: dict[str, Time] = {
        "steady": lambda each, work: each.seconds((), work),
        "train": lambda each, work: each.train_for(work),
        "end_to_end": lambda each, work: each.wall_for(work),
    }
    first = group[0]
    speedup = {name: ratio for name, time in times.items() if (ratio := _ratio(group, baseline, time, frame))}
    ideal = first.np / baseline[0].np if baseline else 1.0
    steady = speedup.get("steady")
    efficiency = None
    if steady:
        efficiency = msgspec.structs.replace(
            steady, value=steady.value / ideal, low=steady.low / ideal, high=steady.high / ideal
        )
    by_mean = _ratio(group, baseline, lambda each, work: work / each.mean_rate if each.mean_rate else None, frame)
    by_median = _ratio(group, baseline, lambda each, work: work / each.median_rate if each.median_rate else None, frame)
    is_baseline, is_work_known = bool(baseline) and first is baseline[0], frame.work != "unknown"
    return ScalingPoint(
        engine=first.engine,
        np=first.np,
        nodes=max(each.nodes for each in group if each.nodes) if first.nodes else None,
        batch=first.batch,
        threads_per_rank=first.threads_per_rank,
        launches=len(group),
        step_s=estimate([each.step_s for each in group], target=frame.target),
        throughput=estimate([each.throughput for each in group], target=frame.target),
        rates={each.round: each.throughput for each in group if each.throughput},
        efficiency=efficiency,
        mean_efficiency=by_mean.value / ideal if by_mean else None,
        median_efficiency=by_median.value / ideal if by_median else None,
        speedup=speedup,
        train_s=_mean([each.train_s for each in group]),
        wall_s=_mean([each.wall_s for each in group]),
        phases={name: fmean(each.phases.get(name, 0.0) for each in group) for name in first.phases},
        steps=first.steps,
        warmup_steps=round(median(each.warmup_steps or 0 for each in group))
        if first.warmup_steps is not None
        else None,
        fixed_s=_mean([each.excess_s for each in group]) if is_work_known else None,
        waterfall=_waterfall(group, baseline, ideal, frame),
        one_time_s=one_time(group) if is_work_known else None,
        longer_for_90=how_much_longer(group, baseline) if is_work_known and not is_baseline else {},
        break_even=break_even(group, baseline) if is_work_known and not is_baseline else {},
        notes=tuple(dict.fromkeys(note for each in group for note in each.notes)),
    )


def _ratio(group: Sequence[Observation], baseline: Sequence[Observation], time: Time, frame: Frame) -> Estimate | None:
    """The baseline's time for the same work over the group's: round by round, or of all where no round has both."""
    base = {each.round: each for each in baseline}
    ratios = []
    for each in group:
        own_s = time(each, each.work)
        base_s = time(base[each.round], each.work) if each.round in base else None
        if own_s and base_s:
            ratios.append(base_s / own_s)
    if base and not base.keys() & {each.round for each in group}:
        work = group[0].work
        return estimate_apart([time(each, work) for each in baseline], [time(each, work) for each in group])
    return estimate(ratios, target=frame.target)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _waterfall(
    group: Sequence[Observation], baseline: Sequence[Observation], ideal: float, frame: Frame
) -> tuple[Loss, ...]:
    """From the ideal to the real speedup: each loss is the fall when one more part of the time is counted."""
    both = [*group, *baseline]
    told = {frozenset(each.parts) - {"uneven"} for each in both}  # rows of a table may tell different parts
    if not baseline or len(told) > 1 or not all(each.rate for each in both):
        return ()
    present = {name for each in both for name in each.parts}
    counted: list[str] = []
    level, losses = ideal, []
    for name in LOSSES:
        if name != "efficiency":
            if name not in present:
                continue
            counted.append(name)
        ratio = _ratio(group, baseline, lambda each, work: each.seconds(counted, work), frame)
        if not ratio:
            return ()
        losses.append(Loss(name=name, lost=level - ratio.value, left=ratio.value))
        level = ratio.value
    return tuple(losses)
