"""A block of measured steps, and the one number that stands for it."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from scalescope.stats import relative_deviation

_MEDIAN = 1.2533
"""Standard error of a median over that of a mean, of normal noise."""
_MEMORY = 1.5
"""Steps resemble the one before: their median is less certain than so many independent ones would make it."""


class Block(NamedTuple):
    """What a setting did when it was measured."""

    step_s: tuple[float, ...]
    """Measured steps; offline, medians of blocks of them."""
    samples: tuple[int, ...] = ()
    """Of every measured step; 0: unknown."""
    cut: bool = False
    discarded: int = 0
    waited: int = 0
    switch_s: float = 0.0
    seconds: float = 0.0
    problem: str = ""
    steps: int | None = None
    """That were measured; None: as many as there are times."""


class Score(NamedTuple):
    """The typical step of a block and its standard error."""

    step_s: float
    error_s: float


def typical_batch(samples: Sequence[int]) -> float | None:
    """The batch that times are brought to where batches vary; None where they do not, or are not known."""
    return float(median(samples)) if samples and min(samples) > 0 and len(set(samples)) > 1 else None


def score(block: Block, batch: float | None, least_error: float) -> Score:
    """Median and robust standard error, at least `least_error` of it; with a batch, of time per sample times batch."""
    times = list(block.step_s)
    if batch and len(block.samples) == len(times) and min(block.samples, default=0) > 0:
        times = [seconds * batch / count for seconds, count in zip(times, block.samples, strict=True)]
    error = _MEMORY * _MEDIAN * relative_deviation(times) / math.sqrt(len(times))
    return Score(median(times), median(times) * math.hypot(error, least_error))
