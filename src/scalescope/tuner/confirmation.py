"""The finalist against the default in pairs of blocks of steps: it wins only if an interval says so."""

import itertools
import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Literal, NamedTuple

from scalescope.records.tuning import Gain
from scalescope.stats import FEWEST, GIVE_UP, WIN, WIN_EARLY, half_width, relative_deviation

_MEDIAN = 1.2533  # Standard error of a median over that of a mean, of normal noise
_MEMORY = 1.5  # Steps resemble the one before: their median is less certain than that of independent ones


class Block(NamedTuple):
    """What a setting did when it was measured."""

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
    """Median and robust standard error, at least `least_error` of it; with a batch, of time per sample times batch."""
    times = list(block.step_s)
    if batch and len(block.samples) == len(times) and min(block.samples, default=0) > 0:
        times = [seconds * batch / count for seconds, count in zip(times, block.samples, strict=True)]
    error = _MEMORY * _MEDIAN * relative_deviation(times) / math.sqrt(len(times))
    return Score(median(times), median(times) * math.hypot(error, least_error))


WORTH_HAVING = 0.01  # A gain below this is not worth more pairs

Verdict = Literal["wins", "gains nothing", "open"]


def gain_of(ratios: Sequence[float]) -> Gain:
    """The gain and its interval; `ratios`: logarithm of the default's step over the finalist's, one per pair.

    There is a look after every pair; all together let a setting that gains nothing win at most once in 40.
    """
    middle = fmean(ratios)
    half = half_width(ratios, WIN_EARLY if len(ratios) < FEWEST else WIN)
    low, high = (math.expm1(max(min(end, 50.0), -50.0)) for end in (middle - half, middle + half))
    return Gain(value=math.expm1(middle), low=low, high=high, pairs=len(ratios))


def verdict(ratios: Sequence[float], fewest: int, most: int) -> Verdict:
    """Whether the finalist has won after these pairs, has nothing to win any more, or must go on."""
    if len(ratios) < max(fewest, 2):
        return "open" if len(ratios) < most else "gains nothing"
    if gain_of(ratios).low > 0:
        return "wins"
    hopeless = fmean(ratios) + half_width(ratios, GIVE_UP) < math.log1p(WORTH_HAVING)
    return "gains nothing" if hopeless or len(ratios) >= most else "open"


class Confirmation:
    """Pairs of blocks, the default and the finalist one after the other."""

    def __init__(self, fewest: int, most: int) -> None:
        self._fewest, self._most = fewest, most
        self._pairs: dict[int, dict[bool, float]] = {}
        self._lost: set[int] = set()

    @property
    def ratios(self) -> list[float]:
        """Logarithm of the default's step over the finalist's, for every complete pair."""
        whole = [pair for _, pair in sorted(self._pairs.items()) if len(pair) == 2]
        return [math.log(pair[False] / pair[True]) for pair in whole]

    @property
    def verdict(self) -> Verdict:
        """Where it stands; pairs that were lost are not made up for."""
        return verdict(self.ratios, self._fewest, self._most - len(self._lost))

    @property
    def gain(self) -> Gain | None:
        """Of the finalist; None below two pairs."""
        ratios = self.ratios
        return gain_of(ratios) if len(ratios) > 1 else None

    def next(self) -> tuple[int, bool]:
        """Which pair, and whether the finalist is next; the order alternates, so that a drift favours neither."""
        pair = next(at for at in itertools.count() if at not in self._lost and len(self._pairs.get(at, {})) < 2)
        order = (False, True) if pair % 2 == 0 else (True, False)
        return pair, next(side for side in order if side not in self._pairs.get(pair, {}))

    def add(self, pair: int, of_the_finalist: bool, step_s: float) -> int:
        """Take a block; how many there are now."""
        self._pairs.setdefault(pair, {})[of_the_finalist] = step_s
        return sum(len(each) for each in self._pairs.values())

    def lose(self, pair: int) -> None:
        """A pair that could not be measured."""
        self._lost.add(pair)
        self._pairs.pop(pair, None)
