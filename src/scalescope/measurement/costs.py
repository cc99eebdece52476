"""One-time cost and cost per unit of work: when a size breaks even, how long a run must be.

Launches tell the one-time cost of every point by themselves, with an interval over launches. Tables may not tell the
work: then T = F + D / rate is fitted, with one cost F for all numbers of processes, and it is said where that fails.
"""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from scalescope.measurement.observation import ONCE_PARTS, Observation
from scalescope.records.scaling import SPEEDUPS, BreakEven, Estimate, Fit
from scalescope.stats import MEASURED, Line, crossing, fit_line, of_values, t_width

LONGER = (3, 10, 31, 100)  # Runs this many times longer are predicted
_ENOUGH = 0.9  # Of the steady speedup: when a run is long enough
_MISFIT = 0.1  # Of a row's time: a fit that is off by more does not describe it


def one_time(group: Sequence[Observation]) -> Estimate | None:
    """All that is spent once at this number of processes, as far as the source tells."""
    name = "end_to_end" if all(each.knows_end for each in group) else "train"
    known = [seconds for each in group if (seconds := each.once_s(name)) is not None]
    return _estimate(known) if len(known) == len(group) else None


def _estimate(values: Sequence[float], least: float = -math.inf) -> Estimate:
    found = of_values(values)
    middle, low, high = (max(each, least) for each in found[:3])
    return Estimate(value=middle, low=low, high=high, interval=found.kind, count=len(values))


def _pairs(group: Sequence[Observation], baseline: Sequence[Observation]) -> list[tuple[Observation, Observation]]:
    """Each with the baseline of its round; nothing where rates or train times are missing."""
    base = {each.round: each for each in baseline}
    found = [(each, base[each.round]) for each in group if each.round in base]
    return found if all(each.rate and each.knows_train for pair in found for each in pair) else []


def how_much_longer(group: Sequence[Observation], baseline: Sequence[Observation]) -> dict[str, Estimate]:
    """The factor by which a run must be longer before a wall-time speedup is 90 % of the steady one; absent: never."""
    longer: dict[str, Estimate] = {}
    pairs = _pairs(group, baseline)
    for name in SPEEDUPS[1:]:
        times = []
        for own, base in pairs:
            own_s, base_s = own.once_s(name), base.once_s(name)
            wanted = _ENOUGH * (own.rate or 1.0) / (base.rate or 1.0)
            gained = own.work * (base.per_work_s - wanted * own.per_work_s)
            if own_s is not None and base_s is not None and gained > 0:
                times.append((wanted * own_s - base_s) / gained)
        if times and len(times) == len(pairs):
            longer[name] = _estimate(times, 1.0)
    return longer


def break_even(group: Sequence[Observation], baseline: Sequence[Observation]) -> dict[str, BreakEven]:
    """After how much work the group overtakes the baseline."""
    found: dict[str, BreakEven] = {}
    pairs = _pairs(group, baseline)
    gains = [_paid_per_work(base) - _paid_per_work(own) for own, base in pairs]
    for name in SPEEDUPS[1:]:
        once = [(own.once_s(name), base.once_s(name)) for own, base in pairs]
        costs = [own_s - base_s for own_s, base_s in once if own_s is not None and base_s is not None]
        if costs and len(costs) == len(gains):
            at = crossing(costs, gains)
            found[name] = BreakEven(value=at.middle, low=at.low, high=at.high, interval=at.kind, count=len(costs))
    return found


def _paid_per_work(each: Observation) -> float:
    """Uneven steps count; not in logs, whose few epochs are compared by their median one throughout."""
    return 1 / (each.rate or 1.0) if each.by_median else each.per_work_s


def fit_fixed_cost(observations: Sequence[Observation], baseline: Sequence[Observation]) -> Fit | None:
    """The fit over all rows; None when times are missing, sizes are too few, or no constant cost describes them."""
    known = [each for each in observations if each.rate and each.train_s]
    base = [each for each in baseline if each.rate and each.train_s]
    if not base or len({each.np for each in known}) < 2:
        return None
    reference = base[0].work
    per_work = [each.work / reference / (each.rate or 1.0) for each in known]
    seconds = [each.seconds(ONCE_PARTS) or 0.0 for each in known]
    line = fit_line(per_work, seconds)
    if not line or line.slope <= 0 or line.intercept < -2 * (line.intercept_error or 0.0):
        return None
    fixed_s = line.intercept
    base_rate = fmean(each.rate or 0.0 for each in base)
    shares, longer = {}, {}
    groups: dict[int, list[Observation]] = {}
    for each in known:
        groups.setdefault(each.np, []).append(each)
    for count, group in sorted(groups.items()):
        rate = fmean(each.rate or 0.0 for each in group)
        train_s = fmean(each.train_s or 0.0 for each in group)
        shares[str(count)] = min(fixed_s / train_s, 1.0)
        work = line.slope * group[0].work / reference  # in weak scaling a run of p processes does p times as much
        longer[str(count)] = {
            str(times): (fixed_s + times * work / base_rate) / (fixed_s + times * work / rate) for times in LONGER
        }
    return Fit(
        fixed_s=fixed_s,
        fixed_s_error=line.intercept_error,
        work=line.slope,
        work_error=line.slope_error,
        fixed_share=shares,
        longer=longer,
        lack=_lack_of_fit([each.np for each in known], per_work, seconds, line),
    )


def _lack_of_fit(sizes: Sequence[int], per_work: Sequence[float], seconds: Sequence[float], line: Line) -> str:
    """Evidence that the cost is not the same at all numbers of processes; empty: there is none."""
    off = [line.intercept + line.slope * x - y for x, y in zip(per_work, seconds, strict=True)]
    worst = max(range(len(off)), key=lambda at: abs(off[at]) / seconds[at])
    if abs(off[worst]) > _MISFIT * seconds[worst]:
        return f"the fit is off by {100 * abs(off[worst]) / seconds[worst]:.0f} % on {sizes[worst]}"
    counts = np.array(sizes)
    for term, told in ((np.log2(counts), "grows"), ((counts > counts.min()).astype(float), "appears")):
        extra = _extra_term(np.array(per_work), np.array(seconds), term)
        if extra is not None:
            way = "with the processes" if told == "grows" else f"with more than {counts.min()}"
            told = told if extra > 0 else {"grows": "falls", "appears": "goes"}[told]
            return f"the cost {told} {way} ({extra:+.2g} s{' per doubling' if told in ('grows', 'falls') else ''})"
    return ""


def _extra_term(x: np.ndarray, y: np.ndarray, term: np.ndarray) -> float | None:
    """The coefficient of one more term where it is clearly not 0, at half of the usual error because two are tried."""
    freedom = len(x) - 3
    design = np.stack([np.ones(len(x)), x, term], axis=1)
    if freedom < 1 or np.linalg.matrix_rank(design) < 3:
        return None
    found, *_ = np.linalg.lstsq(design, y, rcond=None)
    rest = y - design @ found
    error = math.sqrt(max(float(rest @ rest) / freedom * np.linalg.inv(design.T @ design)[2, 2], 0.0))
    clear = abs(found[2]) > max(t_width(freedom, 1 - (1 - MEASURED) / 2) * error, 1e-6 * float(np.mean(y)))
    return float(found[2]) if clear else None
