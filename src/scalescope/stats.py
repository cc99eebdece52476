"""Statistics of few, precious repetitions: the launch is what is repeated, not the step."""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

FEWEST = 5  # Repetitions from which on an interval is claimed; below it there is only a range
_TO_SIGMA = 1.4826  # From the median absolute deviation to the standard deviation of normal noise
_NINETY = 1.645  # Standard deviations on each side of a normal 90 % interval
_UPPER = 0.975
# Who looks after every repetition and stops when it pleases covers less than it says; from the second look on a wider
# quantile makes up for it (make bench SECTION=coverage shows how well)
_UPPER_AFTER_LOOKS = 0.985


class Interval(NamedTuple):
    """The middle of some repetitions and what surrounds it."""

    middle: float
    low: float
    high: float
    is_range: bool  # Smallest to largest of fewer than FEWEST, instead of a 95 % t-interval


def half_width(values: Sequence[float], *, looked: bool = False) -> float:
    """Half of the 95 % t-interval's width of a mean; `looked`: stopping may depend on it. Infinite below two."""
    from scipy.special import stdtrit

    count = len(values)
    if count < 2:
        return math.inf
    upper = _UPPER_AFTER_LOOKS if looked and count > FEWEST else _UPPER
    return float(stdtrit(count - 1, upper)) * stdev(values) / math.sqrt(count)


def of_logarithms(values: Sequence[float], *, target: float | None = None) -> Interval:
    """The geometric mean of positive values and its 95 % t-interval, which is that of their logarithms.

    `target`: repetitions were made until it was known within this fraction; where they stopped for that, it is wider.
    """
    logarithms = [math.log(value) for value in values]
    middle = fmean(logarithms)
    if len(values) < FEWEST:
        return Interval(math.exp(middle), min(values), max(values), True)
    half = half_width(logarithms, looked=True)
    if target is None or half > math.log1p(target):
        half = half_width(logarithms)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half), False)


def relative_half_width(values: Sequence[float], *, looked: bool = False) -> float:
    """How far the interval of a geometric mean reaches, as a fraction: 0.05 is +-5 %."""
    half = half_width([math.log(value) for value in values], looked=looked)
    return math.expm1(half) if half < 700 else math.inf


def robust_deviation(values: Sequence[float]) -> float:
    """A standard deviation that outliers do not move: from the median absolute deviation."""
    middle = median(values)
    return _TO_SIGMA * median(abs(value - middle) for value in values)


def relative_deviation(values: Sequence[float]) -> float:
    """The same over the median."""
    return robust_deviation(values) / median(values)


def standard_errors(groups: Sequence[Sequence[float]]) -> list[float] | None:
    """Relative standard error of a typical value of each group; None when no group has two values.

    What shakes one group of positive values shakes the others too, so the deviation is taken from all groups together.
    Scaled by Student's t, so that 1.645 of it on each side hold 90 % for three values as for thirty.
    """
    from scipy.special import stdtrit

    logs = [[math.log(value) for value in group] for group in groups]
    freedom = sum(len(group) - 1 for group in logs)
    if not freedom:
        return None
    squares = sum((value - fmean(group)) ** 2 for group in logs for value in group)
    wider = float(stdtrit(freedom, 0.95)) / _NINETY
    return [wider * math.sqrt(squares / freedom / len(group)) for group in logs]


def standard_error(values: Sequence[float]) -> float:
    """The same of one group of two or more values."""
    (error,) = standard_errors([values]) or (math.nan,)
    return error


class Line(NamedTuple):
    """A least-squares line with standard errors; the errors are None with two points, which any line fits."""

    intercept: float
    slope: float
    intercept_error: float | None
    slope_error: float | None


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """The line through the points, or None when all x are alike."""
    count, mean_x, mean_y = len(x), fmean(x), fmean(y)
    spread = sum((value - mean_x) ** 2 for value in x)
    if count < 2 or spread <= 1e-12 * mean_x**2:
        return None
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    intercept = mean_y - slope * mean_x
    if count == 2:
        return Line(intercept, slope, None, None)
    rest = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True)) / (count - 2)
    return Line(intercept, slope, math.sqrt(rest * (1 / count + mean_x**2 / spread)), math.sqrt(rest / spread))
