"""T = F + D / rate: which part of the train time is there whatever the number of processes."""

from collections.abc import Sequence
from statistics import fmean

from scalescope.records.scaling import Fit
from scalescope.scaling.observation import ONCE_PARTS, Observation
from scalescope.stats import fit_line

LONGER = (3, 10, 31, 100)
"""Runs so many times longer are foretold."""


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
