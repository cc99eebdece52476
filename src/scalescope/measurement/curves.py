"""From observations to a curve: three speedups with intervals, efficiency, what stands between ideal and real, and the
fixed cost F of T = F + D / rate, which is there whatever the number of processes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median
from typing import Literal

import msgspec

from scalescope.measurement.observation import END_PARTS, ONCE_PARTS, Observation
from scalescope.records.scaling import LOSSES, SPEEDUPS, Curve, Estimate, Fit, Loss, ScalingPoint
from scalescope.stats import fit_line, of_logarithms

LONGER = (3, 10, 31, 100)  # Runs this many times longer are predicted


def fit_fixed_cost(observations: Sequence[Observation], baseline: Sequence[Observation]) -> Fit | None:
    """The fit over all runs; None when times are missing, sizes are too few, or no constant cost describes them."""
    known = [each for each in observations if each.rate and each.train_s]
    base = [each for each in baseline if each.rate and each.train_s]
    if not base or len({each.np for each in known}) < 2:
        return None
    reference = base[0].work
    line = fit_line(  # without what uneven steps add: it grows with the run and is no fixed cost
        [each.work / reference / (each.rate or 1.0) for each in known],
        [each.seconds(ONCE_PARTS) or 0.0 for each in known],
    )
    if not line or line.slope <= 0 or line.intercept < -2 * (line.intercept_error or 0.0):
        return None
    fixed_s = line.intercept
    base_rate = fmean(each.rate or 0.0 for each in base)
    shares, longer = {}, {}
    for np in sorted({each.np for each in known}):
        group = [each for each in known if each.np == np]
        rate = fmean(each.rate or 0.0 for each in group)
        train_s = fmean(each.train_s or 0.0 for each in group)
        shares[str(np)] = min(fixed_s / train_s, 1.0)
        work = line.slope * group[0].work / reference  # in weak scaling a run of p processes does p times as much
        longer[str(np)] = {
            str(times): (fixed_s + times * work / base_rate) / (fixed_s + times * work / rate) for times in LONGER
        }
    return Fit(
        fixed_s=fixed_s,
        fixed_s_error=line.intercept_error,
        work=line.slope,
        work_error=line.slope_error,
        fixed_share=shares,
        longer=longer,
    )


_ENOUGH = 0.9  # Of the steady speedup: when a run is long enough

Over = Literal["launches", "blocks"]
Time = Callable[[Observation, float], float | None]  # Seconds of a run for an amount of work


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What a curve's observations have in common."""

    engine: str
    scaling: str = ""
    batch: int | None = None
    work_unit: str = "samples"
    baseline_engine: str = ""  # Empty: the curve's own engine
    baseline_np: int | None = None  # None: the smallest there is, if there are several
    target: float | None = None  # How well ratios had to be known before observing stopped
    over: Over = "launches"


def make_curve(observations: Sequence[Observation], frame: Frame) -> Curve:
    """The curve of one engine; observations of its baseline among them."""
    counts = sorted({each.np for each in observations})
    smallest = counts[0] if len(counts) > 1 else None
    baseline_np = frame.baseline_np or smallest
    baseline_engine = frame.baseline_engine or frame.engine
    baseline = [each for each in observations if each.np == baseline_np and each.engine == baseline_engine]
    keys = sorted({(each.np, each.engine != baseline_engine, each.engine) for each in observations})
    points = []
    for np, _, engine in keys:
        group = [each for each in observations if each.np == np and each.engine == engine]
        points.append(_point(group, baseline, frame))
    return Curve(
        engine=frame.engine,
        scaling=frame.scaling,
        batch=frame.batch,
        baseline_np=baseline_np if baseline else None,
        baseline_engine=baseline_engine if baseline else "",
        work_unit=frame.work_unit,
        points=tuple(points),
        fit=fit_fixed_cost(observations, baseline) if baseline else None,
    )


def _point(group: Sequence[Observation], baseline: Sequence[Observation], frame: Frame) -> ScalingPoint:
    first = group[0]
    speedup = _speedups(group, baseline, frame)
    ideal = first.np / baseline[0].np if baseline else 1.0
    steady = speedup.get("steady")
    efficiency = None
    if steady:
        efficiency = msgspec.structs.replace(
            steady, value=steady.value / ideal, low=steady.low / ideal, high=steady.high / ideal
        )
    by_mean = _ratio(group, baseline, lambda each, work: work / each.mean_rate if each.mean_rate else None, frame)
    is_baseline = bool(baseline) and group[0] is baseline[0]
    return ScalingPoint(
        engine=first.engine,
        np=first.np,
        nodes=max(each.nodes for each in group if each.nodes) if first.nodes else None,
        batch=first.batch,
        threads_per_rank=first.threads_per_rank,
        launches=len(group) if frame.over == "launches" else 1,
        step_s=estimate([each.step_s for each in group], target=frame.target, over=frame.over),
        throughput=estimate([each.throughput for each in group], target=frame.target, over=frame.over),
        efficiency=efficiency,
        mean_efficiency=by_mean.value / ideal if by_mean else None,
        speedup=speedup,
        train_s=_mean([each.train_s for each in group]),
        wall_s=_mean([each.wall_s for each in group]),
        phases={name: fmean(each.phases.get(name, 0.0) for each in group) for name in first.phases},
        steps=first.steps,
        warmup_steps=round(median(each.warmup_steps or 0 for each in group))
        if first.warmup_steps is not None
        else None,
        fixed_s=_mean([each.excess_s for each in group]),
        waterfall=_waterfall(group, baseline, ideal, frame),
        longer_for_90={} if is_baseline else _longer(group, baseline),
        break_even={} if is_baseline else _break_even(group, baseline),
        notes=tuple(dict.fromkeys(note for each in group for note in each.notes)),
    )


def _speedups(group: Sequence[Observation], baseline: Sequence[Observation], frame: Frame) -> dict[str, Estimate]:
    times: dict[str, Time] = {
        "steady": lambda each, work: each.seconds((), work),
        "train": lambda each, work: each.train_for(work),
        "end_to_end": lambda each, work: each.wall_for(work),
    }
    ratios = {name: _ratio(group, baseline, time, frame) for name, time in times.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio}


def _ratio(group: Sequence[Observation], baseline: Sequence[Observation], time: Time, frame: Frame) -> Estimate | None:
    """How many times longer the baseline would take for the same work, round by round."""
    base = {each.round: each for each in baseline}
    ratios = []
    for each in group:
        own_s = time(each, each.work)
        base_s = time(base[each.round], each.work) if each.round in base else None
        if own_s and base_s:
            ratios.append(base_s / own_s)
    return estimate(ratios, target=frame.target, over=frame.over)


def estimate(
    values: Sequence[float | None], *, target: float | None = None, over: Over = "launches"
) -> Estimate | None:
    """The geometric mean with a t-interval from 5 repetitions on, below that the median and the range."""
    known = [value for value in values if value is not None and value > 0]
    if not known:
        return None
    found = of_logarithms(known, target=target)
    value = median(known) if found.is_range else found.middle
    kind: Literal["t", "range"] = "range" if found.is_range else "t"
    return Estimate(value=value, low=found.low, high=found.high, interval=kind, count=len(known), over=over)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _waterfall(
    group: Sequence[Observation], baseline: Sequence[Observation], ideal: float, frame: Frame
) -> tuple[Loss, ...]:
    """From the ideal to the real speedup: each loss is the fall when one more part of the time is counted."""
    if not baseline or not all(each.rate for each in [*group, *baseline]):
        return ()
    present = {name for each in [*group, *baseline] for name in each.parts}
    counted: list[str] = []
    level, losses = ideal, []
    for name in LOSSES:
        if name != "efficiency":
            if name not in present:
                continue
            counted.append(name)
        parts = tuple(counted)
        ratio = _ratio(group, baseline, partial(_seconds, parts), frame)
        if not ratio:
            return ()
        losses.append(Loss(name=name, lost=level - ratio.value, left=ratio.value))
        level = ratio.value
    return tuple(losses)


def _seconds(parts: tuple[str, ...], each: Observation, work: float) -> float | None:
    return each.seconds(parts, work)


class _Costs(msgspec.Struct, frozen=True):
    """Mean seconds of one group: per unit of work, and once per run."""

    per_work: float
    per_work_uneven: float  # With what uneven steps add
    work: float
    once: dict[str, float]  # By speedup, what is paid once


def _costs(group: Sequence[Observation]) -> _Costs | None:
    if not group or not all(each.rate and each.knows_train for each in group):
        return None
    once = {"train": fmean(each.excess_s or 0.0 for each in group)}
    if all(each.knows_end for each in group):
        around = fmean(sum(each.parts.get(part, 0.0) for part in END_PARTS) for each in group)
        once["end_to_end"] = once["train"] + around
    work = fmean(each.work for each in group)
    per_work = fmean(1 / (each.rate or 1.0) for each in group)
    uneven = fmean(each.parts.get("uneven", 0.0) for each in group) / work
    return _Costs(per_work, per_work + uneven, work, once)


def _longer(group: Sequence[Observation], baseline: Sequence[Observation]) -> dict[str, float]:
    """How many times longer the run must be before a wall-time speedup is 90 % of the steady one."""
    base, own = _costs(baseline), _costs(group)
    longer: dict[str, float] = {}
    if not base or not own:
        return longer
    wanted = _ENOUGH * base.per_work / own.per_work
    for name in base.once.keys() & own.once.keys():
        gained = own.work * (base.per_work_uneven - wanted * own.per_work_uneven)
        if gained > 0:
            longer[name] = max((wanted * own.once[name] - base.once[name]) / gained, 1.0)
    return {name: longer[name] for name in SPEEDUPS if name in longer}


def _break_even(group: Sequence[Observation], baseline: Sequence[Observation]) -> dict[str, float | None]:
    """After how much work the group overtakes the baseline; None when it never does."""
    base, own = _costs(baseline), _costs(group)
    if not base or not own:
        return {}
    gained = base.per_work - own.per_work
    result: dict[str, float | None] = {}
    for name in SPEEDUPS:
        if name in base.once and name in own.once:
            result[name] = max((own.once[name] - base.once[name]) / gained, 0.0) if gained > 0 else None
    return result
