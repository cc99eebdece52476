"""Where warm-up ends, found in the step times themselves."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

_LONGEST = 400
"""Warm-up is looked for among this many first steps."""
_WORTH = 3.0
"""A split must explain so many typical deviations more than no split does."""


def warmup_steps(durations: Sequence[float]) -> int:
    """How many first steps are slower than what follows: the split into two levels that fits best, or 0."""
    logs = [math.log(max(duration, 1e-9)) for duration in durations[:_LONGEST]]
    if len(logs) < 2:
        return 0
    if len(logs) < 4:
        return 1
    whole = _misfit(logs)
    noise = max(median(abs(b - a) for a, b in pairwise(logs)), 1e-3)
    best_split, best_misfit = 0, whole - _WORTH * noise
    for split in range(1, len(logs) // 2 + 1):
        before, after = logs[:split], logs[split:]
        if median(before) > median(after) + noise:
            misfit = _misfit(before) + _misfit(after)
            if misfit < best_misfit:
                best_split, best_misfit = split, misfit
    return best_split


def _misfit(values: Sequence[float]) -> float:
    level = median(values)
    return sum(abs(value - level) for value in values)
