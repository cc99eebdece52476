"""Statistics of few, expensive repetitions: the launch is what is repeated, not the step."""

import functools
import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, covariance, fmean, median, stdev, variance
from typing import Literal, NamedTuple

FEWEST = 5  # Repetitions from which on an interval is claimed; below it there is only a range
FEWEST_STEPS = 5  # In fewer steps of a launch a steady state cannot be told from warm-up
TO_SIGMA = 1.4826  # From the median absolute deviation to the standard deviation of normal noise

# Confidence levels of two-sided intervals, one per kind. No other file states one; `percent` puts them into words.
MEASURED = 0.95  # Of repeated measurements
PREDICTED = 0.90  # Of predictions
CONFIRMED = 0.95  # Of a tuned setting, over all looks at its comparison; _BOUNDARY is found for it
# Optional stopping shrinks coverage, so intervals of repetitions that are looked at again are allowed 0.6 of the error
# (make bench SECTION=coverage).
_AFTER_LOOKS = 1 - 0.6 * (1 - MEASURED)
GIVE_UP = 1 - 0.8 * (1 - CONFIRMED)  # A look that gives a comparison up may err at 0.8 of the error
# The tuner compares two settings pair by pair and looks after these numbers of pairs, and after the last one. A look
# needs _BOUNDARY * (most / pairs) ** _EARLIER normal standard errors, _PER_RESUMPTION more each time the comparison is
# resumed: all looks together let a setting that gains nothing win in at most (1 - CONFIRMED) / 2 of searches
# (make bench SECTION=tune_power).
LOOKS = (3, 4, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320)
_BOUNDARY, _EARLIER, _PER_RESUMPTION = 2.2, 0.3, 0.4


def percent(level: float) -> str:
    """A confidence level as people read it: `95 %`."""
    return f"{100 * level:.3g} %"


def normal_width(level: float) -> float:
    """Standard deviations on each side of a normal interval of this level."""
    return NormalDist().inv_cdf((1 + level) / 2)


@functools.lru_cache(maxsize=1024)  # the same few are asked for again and again
def t_width(freedom: float, level: float) -> float:
    """Standard errors on each side of a t-interval of this level."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def look_width(count: int, most: int, rivals: int = 1, resumed: int = 0) -> float:
    """Standard errors on each side of a mean of `count` of at most `most` values, for all looks together.

    Args:
        count: Values so far.
        most: Values at which the last look is.
        rivals: Settings that are compared with the same one: each gets its share of the error.
        resumed: How often the comparison was resumed after its last look.
    """
    normal = (_BOUNDARY + _PER_RESUMPTION * resumed) * (most / count) ** _EARLIER
    return t_width(count - 1, 1 - math.erfc(normal / math.sqrt(2)) / rivals)


class Interval(NamedTuple):
    """The middle of some repetitions and its interval."""

    middle: float
    low: float
    high: float
    is_range: bool  # Smallest to largest of fewer than FEWEST, instead of a t-interval

    @property
    def kind(self) -> Literal["t", "range"]:
        """The same as records say it."""
        return "range" if self.is_range else "t"


def half_width(values: Sequence[float], level: float = MEASURED) -> float:
    """Half of the width of a mean's t-interval; infinite below two values."""
    if len(values) < 2:
        return math.inf
    return t_width(len(values) - 1, level) * stdev(values) / math.sqrt(len(values))


def _level(count: int, looked: bool) -> float:
    """The level for this number of values; `looked`: stopping may depend on the interval."""
    return _AFTER_LOOKS if looked and count > FEWEST else MEASURED


def of_logarithms(values: Sequence[float], *, target: float | None = None) -> Interval:
    """The geometric mean of positive values and its t-interval, which is that of their logarithms.

    `target`: repetitions were made until it was known within this fraction; where they stopped for that, it is wider.
    """
    logarithms = [math.log(value) for value in values]
    middle = fmean(logarithms)
    if len(values) < FEWEST:
        return Interval(math.exp(middle), min(values), max(values), True)
    half = half_width(logarithms, _level(len(values), True))
    if target is None or half > math.log1p(target):
        half = half_width(logarithms)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half), False)


def of_ratio(ones: Sequence[float], others: Sequence[float]) -> Interval:
    """The ratio of the geometric means of two groups of positive values that were not measured in pairs.

    Its interval is Welch's, of the difference of the logarithms; below FEWEST in a group it is the range of all ratios.
    """
    groups = [[math.log(value) for value in group] for group in (ones, others)]
    middle = fmean(groups[0]) - fmean(groups[1])
    if min(map(len, groups)) < FEWEST:
        return Interval(math.exp(middle), min(ones) / max(others), max(ones) / min(others), True)
    errors = [variance(group) / len(group) for group in groups]
    error = sum(errors)
    if error == 0:
        return Interval(math.exp(middle), math.exp(middle), math.exp(middle), False)
    freedom = error**2 / sum(each**2 / (len(group) - 1) for each, group in zip(errors, groups, strict=True))
    half = t_width(freedom, MEASURED) * math.sqrt(error)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half), False)


def of_values(values: Sequence[float]) -> Interval:
    """The mean of values, which may be below 0, and its t-interval; below FEWEST the median and the range."""
    if len(values) < FEWEST:
        return Interval(median(values), min(values), max(values), True)
    middle, half = fmean(values), half_width(values)
    return Interval(middle, middle - half, middle + half, False)


class Crossing(NamedTuple):
    """Number of units that make up for a cost, and its interval; None: never, however many."""

    middle: float | None
    low: float | None
    high: float | None
    is_range: bool

    @property
    def kind(self) -> Literal["t", "range"]:
        """The same as records say it."""
        return "range" if self.is_range else "t"


def crossing(costs: Sequence[float], gains: Sequence[float]) -> Crossing:
    """Number of units, each gaining `gains`, that make up for `costs`, from pairs: 0 where costs are below 0.

    The interval is Fieller's: all numbers of units at which the mean balance of cost and gains may be 0. It has no
    upper end where the gain may be 0.
    """
    count, cost, gain = len(costs), fmean(costs), fmean(gains)
    middle = max(cost / gain, 0.0) if gain > 0 else None
    if count < FEWEST:
        each = sorted(max(c / g, 0.0) if g > 0 else math.inf for c, g in zip(costs, gains, strict=True))
        low, high = (None if math.isinf(end) else end for end in (each[0], each[-1]))
        return Crossing(middle, low, high, True)
    share = t_width(count - 1, MEASURED) ** 2 / count
    square = gain**2 - share * variance(gains)
    mixed = cost * gain - share * covariance(costs, gains)
    rest = cost**2 - share * variance(costs)
    root = math.sqrt(max(mixed**2 - square * rest, 0.0))
    if square > 0:
        if gain < 0:
            return Crossing(None, None, None, False)
        return Crossing(middle, max((mixed - root) / square, 0.0), max((mixed + root) / square, 0.0), False)
    low = 0.0 if rest <= 0 else rest / (mixed + root) if mixed + root > 0 else None
    return Crossing(middle, low, None, False)


def relative_half_width(values: Sequence[float], *, looked: bool = False) -> float:
    """Half-width of the interval of a geometric mean, as a fraction: 0.05 is +-5 %."""
    half = half_width([math.log(value) for value in values], _level(len(values), looked))
    return math.expm1(half) if half < 700 else math.inf


def outlying(values: Sequence[float], tests: int = 1) -> list[int]:
    """Indices of outliers among the values; `tests`: number of series that are tested together.

    Grubbs' test, repeated without the value that is furthest off, because two such values hide each other: up to one
    in four is looked for. Its error is that of MEASURED intervals, shared by all series.
    """
    left = list(range(len(values)))
    removed: list[int] = []
    found = 0
    for _ in range(len(values) // 4):
        count, middle = len(left), fmean(values[at] for at in left)
        spread = stdev([values[at] for at in left])
        if count < 3 or spread <= 1e-9 * max(abs(values[at]) for at in left):
            break
        furthest = max(left, key=lambda at: abs(values[at] - middle))
        width = t_width(count - 2, 1 - (1 - MEASURED) / tests / count) ** 2
        limit = (count - 1) / math.sqrt(count) * math.sqrt(width / (count - 2 + width))
        left.remove(furthest)
        removed.append(furthest)
        if abs(values[furthest] - middle) / spread > limit:
            found = len(removed)
    return removed[:found]


def is_autocorrelated(values: Sequence[float], tests: int = 1) -> bool:
    """True if neighbours in time are more alike than chance allows, by von Neumann's ratio; `tests` as in `outlying`.

    Five values show a correlation of 0.8 in about one series of four, twelve in nearly all.
    """
    count, total = len(values), variance(values) * (len(values) - 1)
    if count < 4 or total <= (1e-9 * max(map(abs, values))) ** 2:
        return False
    ratio = sum((after - before) ** 2 for before, after in pairwise(values)) / total
    deviation = math.sqrt(4 * (count - 2) / (count**2 - 1))
    return ratio < 2 - NormalDist().inv_cdf(1 - (1 - MEASURED) / tests) * deviation


def robust_deviation(values: Sequence[float]) -> float:
    """A standard deviation that outliers do not move: from the median absolute deviation."""
    middle = median(values)
    return TO_SIGMA * median(abs(value - middle) for value in values)


def relative_deviation(values: Sequence[float]) -> float:
    """The robust deviation as a fraction of the median."""
    return robust_deviation(values) / median(values)


def standard_errors(groups: Sequence[Sequence[float]]) -> list[float] | None:
    """Relative standard error of a typical value of each group; None when no group has two values.

    All groups share one source of noise, so the deviation is taken from all of them together.
    Scaled by Student's t, so that normal_width(PREDICTED) times it covers as much for three values as for thirty.
    """
    logs = [[math.log(value) for value in group] for group in groups]
    freedom = sum(len(group) - 1 for group in logs)
    if not freedom:
        return None
    squares = sum((value - fmean(group)) ** 2 for group in logs for value in group)
    wider = t_width(freedom, PREDICTED) / normal_width(PREDICTED)
    return [wider * math.sqrt(squares / freedom / len(group)) for group in logs]


def standard_error(values: Sequence[float]) -> float:
    """The relative standard error of one group of two or more values."""
    (error,) = standard_errors([values]) or (math.nan,)
    return error


class Line(NamedTuple):
    """A least-squares line with standard errors; the errors are None with two points, which any line fits."""

    intercept: float
    slope: float
    intercept_error: float | None
    slope_error: float | None


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line | None:
    """The line through the points, or None when all x are equal."""
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
