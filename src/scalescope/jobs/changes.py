"""Where steps begin to take another time, and slow steps that come back."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scalescope.jobs.steady import find_noise, logarithms
from scalescope.records.explanation import Change, Period

_FEWEST = 10  # Steps on each side of a change
_LEAST_CHANGE = math.log(1.08)
_PRICE = 16.0  # Squared deviations that a change must explain
_DEEPEST = 4
_SLOW = 1.2
_SLOW_DEVIATIONS = 4.0
_FEWEST_SLOW = 3
_REGULAR = 0.8  # Part of the distances between slow steps that must be equal


def change_points(durations: Sequence[float]) -> tuple[Change, ...]:
    """Steps from which on steps take another time, by binary segmentation; single slow steps are no change."""
    if len(durations) < 2 * _FEWEST:
        return ()
    logs = _without_spikes(logarithms(durations))
    bounds = [0, *_split(logs, 0, len(logs), _DEEPEST), len(logs)]
    levels = [math.exp(float(np.median(logs[start:end]))) for start, end in pairwise(bounds)]
    return tuple(
        Change(step=at, before_s=before, after_s=after)
        for at, (before, after) in zip(bounds[1:-1], pairwise(levels), strict=True)
    )


def _without_spikes(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of three neighbours."""
    padded = np.concatenate([logs[:1], logs, logs[-1:]])
    return np.asarray(np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0))


def _split(logs: NDArray[np.float64], start: int, end: int, depth: int) -> list[int]:
    part = logs[start:end]
    count = len(part)
    if depth == 0 or count < 2 * _FEWEST:
        return []
    sums = np.cumsum(part)
    at = np.arange(_FEWEST, count - _FEWEST + 1)
    left, right = sums[at - 1] / at, (sums[-1] - sums[at - 1]) / (count - at)
    saved = at * (count - at) / count * (right - left) ** 2
    best = int(saved.argmax())
    place, step = int(at[best]), float(right[best] - left[best])
    noise = find_noise(np.concatenate([part[:place] - left[best], part[place:] - right[best]]))
    # Correlated steps are fewer than they seem.
    independent = (1 - noise.correlation) / (1 + noise.correlation)
    if abs(step) < _LEAST_CHANGE or saved[best] * independent < _PRICE * max(noise.deviation, 1e-3) ** 2:
        return []
    middle = start + place
    return [*_split(logs, start, middle, depth - 1), middle, *_split(logs, middle, end, depth - 1)]


def slow_periods(durations: Sequence[float]) -> tuple[Period, ...]:
    """Slow steps at equal distances, as checkpoints and evaluations make them."""
    times = np.asarray(durations, dtype=float)
    if len(times) < 2 * _FEWEST_SLOW:
        return ()
    typical = float(np.median(times))
    deviation = 1.4826 * float(np.median(np.abs(times - typical)))
    slow = np.flatnonzero(times > max(_SLOW * typical, typical + _SLOW_DEVIATIONS * deviation))
    if len(slow) < _FEWEST_SLOW or len(slow) > len(times) / 2:
        return ()
    gaps = np.diff(slow)
    every = int(np.median(gaps))
    if every < 2 or float(np.mean(np.abs(gaps - every) <= 1)) < _REGULAR:
        return ()
    return (Period(every=every, excess_s=float(np.median(times[slow])) - typical, count=len(slow)),)
