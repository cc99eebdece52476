"""Defines a step's time, and judges steps after warm-up: even, of two kinds, or drifting."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from scalescope.stats import TO_SIGMA
from scalescope.text import plural
from scalescope.units import format_seconds, format_share

_LOOKED_AT = 10_000  # Of longer series every k-th step is judged
_BLOCKS = 10
_LEAST_MODE_RATIO = 1.05  # Kinds of steps that lie closer together are not reported
_LEAST_MODE_SHARE = 0.1
_FEW_SLOW = 3  # Fewer slow steps, unless they are a quarter of all, are slow single steps and no kind of their own
_LEAST_DRIFT = 0.03  # Less drift is not reported
UNSETTLED = "steps were still getting faster at the end, no steady state was reached: run more steps"
_SLOW = 1.2  # Times the median
_SLOW_DEVIATIONS = 4.0
_FEWEST_SLOW = 4
_BY_CHANCE = 0.01  # Of random places for as many slow steps that may be as regular
_SHUFFLES = 4000
_REGULAR = 0.8  # Part of the distances between slow steps that must be equal
_MOST_CORRELATED = 0.9  # Above it a series is too short to tell correlation from a change of level
_UNUSUAL = 3.0  # Deviations by which single steps are off that say nothing about the others


class Mode(NamedTuple):
    """One kind of steps."""

    seconds: float  # Their median
    share: float  # Of all steps, 0 to 1


class Steadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about steps that should all take the same time."""

    kind: Literal["even", "bimodal", "drifting"]
    sentence: str = ""  # For people; empty when even
    modes: tuple[Mode, ...] = ()  # The faster kind and the slower kind, where there are two
    # How much slower the last quarter is than the first, relative; below 0 when faster; reported for every kind.
    drift: float = 0.0


class SlowSteps(NamedTuple):
    """Slow steps that come back at equal distances."""

    every: int
    excess_s: float
    number: int


class Noise(NamedTuple):
    """Scatter of steady steps, in logarithms of their times."""

    deviation: float  # Standard deviation about the level of their kind, slow single steps aside
    correlation: float  # Between neighbours, 0 to 0.9


def step_times(of_ranks: Sequence[Sequence[float] | NDArray[np.float64]]) -> list[float]:
    """Seconds of every step of a job, as far as all ranks have it: the mean over ranks of their own times.

    Ranks run in step, so these add up to the elapsed time whatever the clocks of their hosts. The maximum over ranks
    adds up to more, the more ranks the more: whoever is late in one step is early in the next.
    """
    count = min(map(len, of_ranks), default=0)
    if not count:
        return []
    mean: NDArray[np.float64] = np.mean([np.asarray(times[:count], float) for times in of_ranks], axis=0)
    return [float(seconds) for seconds in mean]


def step_times_by_number(numbers: Sequence[int], seconds: Sequence[float]) -> dict[int, float]:
    """The same by the number of the step, where ranks may have seen different ones: one entry of each per rank."""
    if not numbers:
        return {}
    found, place = np.unique(np.asarray(numbers), return_inverse=True)
    mean = np.bincount(place, weights=np.asarray(seconds, float)) / np.bincount(place)
    return dict(zip(found.tolist(), mean.tolist(), strict=True))


def steadiness(durations: Sequence[float], noun: str = "step") -> Steadiness:
    """Judge steps after warm-up by their times in seconds; `noun` is what one of them is called."""
    times = _thinned(durations)
    if len(times) < 2:
        return Steadiness(kind="even")
    logs = logarithms(times)
    kinds = find_modes(times)
    quarter = max(len(times) // 4, 1)
    drift = math.expm1(np.median(logs[-quarter:]) - np.median(logs[:quarter]))
    nouns = plural(2, noun).removeprefix("2 ")
    if abs(drift) >= _LEAST_DRIFT and drifts(logs):
        direction = "slower" if drift > 0 else "faster"
        sentence = f"{nouns} get {direction}: {format_share(abs(drift))} from the first to the last quarter"
        return Steadiness(kind="drifting", sentence=sentence, modes=kinds, drift=drift)
    if kinds:
        parts = ", ".join(f"{mode.share * 100:.0f} % take {format_seconds(mode.seconds)}" for mode in kinds)
        return Steadiness(kind="bimodal", sentence=f"{nouns} come in two kinds: {parts}", modes=kinds, drift=drift)
    return Steadiness(kind="even", drift=drift)


def blocks(durations: Sequence[float] | NDArray[np.float64], count: int = _BLOCKS) -> tuple[float, ...]:
    """Medians of `count` consecutive blocks of about equal length; fewer blocks where they would have under 3 steps."""
    if not len(durations):
        return ()
    parts = np.array_split(np.asarray(durations, float), max(min(count, len(durations) // 3), 1))
    return tuple(float(np.median(part)) for part in parts)


def find_modes(durations: Sequence[float] | NDArray[np.float64]) -> tuple[Mode, ...]:
    """The two kinds that steps come in, the faster first; nothing when one kind with slow single steps explains them.

    Both kinds must be narrow against what lies between them: narrower in small samples, where any nine numbers fall
    into two groups. A few slow steps are a kind of their own only when they are many or alike.
    """
    values = np.sort(logarithms(durations))
    size = len(values)
    least = max(2, math.ceil(_LEAST_MODE_SHARE * size))
    if size < 2 * least + 3 or values[0] == values[-1]:
        return ()
    edge = size // 20
    clipped = np.clip(values, values[edge], values[-1 - edge])
    counts = np.arange(least, size - least + 1)
    sums = np.cumsum(clipped)
    between = sums[counts - 1] ** 2 / counts + (sums[-1] - sums[counts - 1]) ** 2 / (size - counts)
    split = int(counts[np.argmax(between)])
    fast, slow = values[:split], values[split:]
    distance = float(np.median(slow) - np.median(fast))
    if distance < math.log(_LEAST_MODE_RATIO):
        return ()
    widths = _width(fast), _width(slow)
    pooled = math.sqrt((widths[0] ** 2 * len(fast) + widths[1] ** 2 * len(slow)) / size)
    doubt = 24 / len(slow) if len(slow) < size / 3 else 0.0  # slow single steps have no level of their own
    narrow = distance > max((3.6 + 45 / size) * pooled, 4.5 * widths[0], (4.5 + doubt) * widths[1])
    if not narrow or len(slow) < min(_FEW_SLOW, size / 4):
        return ()
    return tuple(Mode(float(np.exp(np.median(each))), len(each) / size) for each in (fast, slow))


def _width(values: NDArray[np.float64]) -> float:
    """The standard deviation, by quartiles where there are enough values for them."""
    if len(values) < 8:
        return float(np.std(values, ddof=1))
    low, high = np.quantile(values, [0.25, 0.75])
    return float(high - low) / 1.349


def find_noise(logs: NDArray[np.float64]) -> Noise:
    """The scatter of steady steps about a level that may drift or alternate between two."""
    size = len(logs)
    if size < 4:
        return Noise(float(np.std(logs)) if size else 0.0, 0.0)
    rest = logs - np.median(logs)
    third = size // 3
    if third >= 8:
        slope = (np.median(rest[-third:]) - np.median(rest[:third])) / (size - third)
        rest = rest - slope * (np.arange(size) - size / 2)
    rest = rest - np.median(rest)
    scale = TO_SIGMA * float(np.median(np.abs(rest))) or float(np.std(rest))  # 0 where most steps are equal
    usual = np.abs(rest) <= _UNUSUAL * scale
    if scale == 0 or usual.sum() < 4:
        return Noise(scale, 0.0)
    rest = np.where(usual, rest - rest[usual].mean(), 0.0)
    pairs = max(int((usual[1:] & usual[:-1]).sum()), 1)
    variance = float(rest @ rest) / int(usual.sum())
    if variance == 0:
        return Noise(0.0, 0.0)
    correlation = float(rest[1:] @ rest[:-1]) / pairs / variance
    correlation += (1 + 3 * max(correlation, 0.0)) / size  # short series look less correlated than they are
    correlation = min(max(correlation, 0.0), _MOST_CORRELATED)
    independent = max(size * (1 - correlation) / (1 + correlation), 1.5)
    return Noise(math.sqrt(variance / (1 - 1 / independent)), correlation)


def drifts(logs: NDArray[np.float64]) -> bool:
    """True if a trend is more than correlated noise makes; few steps must leave less doubt than many."""
    size = len(logs)
    if size < 4:
        return False
    values = logarithms(blocks(np.exp(logs))) if size >= 8 * 3 else logs
    earlier, later = np.triu_indices(len(values), 1)
    slope = float(np.median((values[later] - values[earlier]) / (later - earlier))) * len(values) / size
    noise = find_noise(logs - slope * np.arange(size))
    independent = size * (1 - noise.correlation) / (1 + noise.correlation)
    error = max(noise.deviation, 1e-4) * math.sqrt(12 / independent) / size
    return abs(slope) > (3.3 + 80 / size) * error  # passed without drift by 3 in 100 strongly correlated series


def slow_period(durations: Sequence[float]) -> SlowSteps | None:
    """Slow steps at equal distances, as checkpoints and evaluations make them."""
    times = np.asarray(durations, dtype=float)
    if len(times) < 2 * _FEWEST_SLOW:
        return None
    typical = float(np.median(times))
    deviation = TO_SIGMA * float(np.median(np.abs(times - typical)))
    slow = np.flatnonzero(times > max(_SLOW * typical, typical + _SLOW_DEVIATIONS * deviation))
    if len(slow) < _FEWEST_SLOW or len(slow) > len(times) / 2:
        return None
    gaps = np.diff(slow)
    every = int(np.median(gaps))
    if every < 2 or float(np.mean(np.abs(gaps - every) <= 1)) < _REGULAR:
        return None
    # Seeded: equal files get equal answers.
    elsewhere = np.sort(np.random.default_rng(0).integers(len(times), size=(_SHUFFLES, len(slow[:50]))), axis=1)
    if float(np.mean(_irregularity(elsewhere) <= _irregularity(slow[None, :50]))) > _BY_CHANCE:
        return None
    return SlowSteps(every, float(np.median(times[slow])) - typical, len(slow))


def _irregularity(places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean distance of the gaps in each row from their median."""
    gaps = np.diff(places, axis=1)
    return np.asarray(np.abs(gaps - np.median(gaps, axis=1, keepdims=True)).mean(axis=1))


def logarithms(durations: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural logarithms of times in seconds; nothing is shorter than a nanosecond."""
    logs: NDArray[np.float64] = np.log(np.maximum(np.asarray(durations, float), 1e-9))
    return logs


def _thinned(durations: Sequence[float]) -> NDArray[np.float64]:
    """At most some 20,000 steps, evenly chosen."""
    return np.asarray(durations, float)[:: max(len(durations) // _LOOKED_AT, 1)]
