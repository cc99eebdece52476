"""Types that a search exchanges with whoever measures: a sample is asked for, a block of steps comes back."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from scalescope.records.tuning import Cell, Decision, Gain, Phase, Values
from scalescope.stats import relative_deviation
from scalescope.tuner.confirmation import MorePairs

_MIDDLE = 0.5  # Of the steps of a block, in order: the part whose mean is taken
_MIDMEAN = 1.09  # Its standard error over that of the mean of all, of normal noise
_MEMORY = 1.5  # Steps resemble the one before: their mean is less certain than that of independent ones


class Block(NamedTuple):
    """Measured steps of a setting."""

    step_s: tuple[float, ...]  # Measured steps; offline, medians of blocks of them
    samples: tuple[int, ...] = ()  # Of every measured step; 0: unknown
    cut: bool = False
    discarded: int = 0
    waited: int = 0
    switch_s: float = 0.0
    seconds: float = 0.0
    problem: str = ""
    steps: int | None = None  # That were measured; None: as many as there are times


class Score(NamedTuple):
    """The typical step of a block and its standard error."""

    step_s: float
    error_s: float


def typical_batch(samples: Sequence[int]) -> float | None:
    """The batch that times are brought to where batches vary; None where they do not, or are not known."""
    return float(median(samples)) if samples and min(samples) > 0 and len(set(samples)) > 1 else None


def score(block: Block, batch: float | None, least_error: float) -> Score:
    """Midmean and robust standard error, at least `least_error` of it; with a batch, of time per sample times batch."""
    times = list(block.step_s)
    if batch and len(block.samples) == len(times) and min(block.samples, default=0) > 0:
        times = [seconds * batch / count for seconds, count in zip(times, block.samples, strict=True)]
    error = _MEMORY * _MIDMEAN * relative_deviation(times) / math.sqrt(len(times))
    return Score(midmean(times), midmean(times) * math.hypot(error, least_error))


def midmean(values: Sequence[float]) -> float:
    """The mean of the middle half: as good as a median where a step takes long, better where all vary."""
    outside = len(values) * (1 - _MIDDLE) / 2
    weights = [
        min(max(at + 1 - outside, 0.0), 1.0) * min(max(len(values) - at - outside, 0.0), 1.0)
        for at in range(len(values))
    ]
    return sum(weight * value for weight, value in zip(weights, sorted(values), strict=True)) / sum(weights)


class SampleRequest(msgspec.Struct, frozen=True):
    """A sample to be made."""

    index: int
    phase: Phase
    pair: int | None
    values: Values  # Without what is fixed
    steps: int
    limit_s: float | None  # A median above it, after a few steps, cuts the sample
    predicted_s: float | None


class Outcome(NamedTuple):
    """Decision of a search, or what it would be if it ended now."""

    decision: Decision
    values: Values
    finalist: Values
    gain: Gain | None
    more: MorePairs | None  # That would decide it; None where it is decided
    reason: str
    cells: tuple[Cell, ...]
    default_step_s: float | None
    winner_step_s: float | None
