"""Finds the end of warm-up in the step times themselves.

Warm-up is a slower beginning: a few steps each slower than the next, one or more slower levels, or a decay. Levels
are found by binary segmentation of the logarithms of step times, decays by trying amplitudes and ratios; what
explains the beginning at the lowest price wins. Steps are correlated, so all fits are to what is new in a step given
the one before, and the scatter is that of the later steps, after slow single steps and alternation between two kinds
of steps have been taken out.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.stats import FEWEST_STEPS
from scalescope.steady import drifts, find_modes, find_noise, logarithms

Logs = NDArray[np.float64]

_LOOKED_AT = 4000  # Warm-up is looked for in this many first steps: it is at most half of them
_DECAY_LOOKED_AT = 200  # Decays are fitted to this many first steps
_DEEPEST = 6  # Divisions within divisions: enough for any warm-up, and bounds the time that odd series take
_FEWEST_OF_A_LEVEL = 10  # Steps on each side of a change, where the scatter must be found from the same steps
_LEAST_CHANGE = math.log(1.08)  # Smaller changes of level are not reported
_LEAST_EXCESS = math.log(1.06)  # A level that is less slow than that, against the next, is drift
# What comes before a still slower level must be slow itself, or that level is a disturbance of the steady state.
_SLOWER_THROUGHOUT = math.log(1.25)
_LEAST_DECAY = 0.12  # A decay whose first step is less slow, relative to the steady ones, is drift
_CLEARLY_SLOWER = math.log(2)  # A less slow beginning of more than a third of the run is a change in the middle of it
# By so much the last quarter of the steps is faster than the quarter before it when no steady state was reached.
_STILL_FALLING = 0.04
_USUAL_DEVIATION = 0.03  # Counts as much as two steps; real launches have 0.01 to 0.15
_USUAL_CORRELATION = 0.3  # Counts as much as five steps
_SPIKE = 4.0  # Deviations by which a step exceeds all around it to be a slow single step

# Prices are in units of squared deviations that an explanation must save.
_PRICE_OF_CHANGE = 9.0  # To look at it at all; more in long series, where chance has more places to make one
_PRICE_OF_LEVEL = 14.0
_PRICE_OF_FIRST_STEP = 7.0  # Less: a slow first step is the commonest warm-up, and to drop one step too many is no loss
_PRICE_OF_DECAY = 20.0
_PRICE_OF_STEP_BEFORE_DECAY = 18.0


class _Steady(NamedTuple):
    """Level and scatter of later steps, in logarithms."""

    deviation: float
    correlation: float
    low: float = 0.0
    gap: float = 0.0  # From the faster kind of steps up to the slower kind; 0 when there is one kind

    @property
    def variance(self) -> float:
        """Variance of an innovation."""
        return self.deviation**2 * (1 - self.correlation**2)

    def one_kind(self, logs: Logs) -> Logs:
        """Steps of the slower kind brought down to the faster one."""
        if not self.gap:
            return logs
        above = logs - self.low
        return np.where(np.abs(above - self.gap) < np.abs(above), above - self.gap, above)

    def innovations(self, logs: Logs) -> Logs:
        """The part of each step that the one before does not predict, along the last axis; all of equal variance."""
        new = np.array(logs, float)
        new[..., 1:] -= self.correlation * logs[..., :-1]
        new[..., 0] *= math.sqrt(1 - self.correlation**2)
        return new

    def misfit(self, logs: Logs) -> Logs:
        """Squared deviations that remain about the best level, along the last axis."""
        new = self.innovations(self.one_kind(logs))
        one = self.innovations(np.ones(logs.shape[-1]))
        level = new @ one / (one @ one)
        new -= np.multiply.outer(level, one)
        return np.asarray((new * new).sum(-1) / self.variance)


def warmup_steps(durations: Sequence[float]) -> int:
    """Count the first steps that are warm-up: at most half, and of a long run at most half of its first 4,000."""
    logs = logarithms(durations[:_LOOKED_AT])
    if len(logs) < 4:
        return 1 if len(logs) > 1 else 0
    warmup = len(logs) // 2
    for _ in range(2):  # the second time with the steady part that was found the first time
        warmup = _end_of_warmup(logs, _steady(logs[warmup:]))
    return warmup


def enough_steps(durations: Sequence[float], warmup: int) -> bool:
    """True if a steady state was reached: not in fewer steps than FEWEST_STEPS, nor when steps still get faster."""
    if len(durations) < FEWEST_STEPS:
        return False
    rest = logarithms(durations[warmup:])
    quarter = max(len(rest) // 4, 1)
    last, before = np.median(rest[-quarter:]), np.median(rest[-2 * quarter : -quarter])
    if last > before - _STILL_FALLING:
        return True
    return not (drifts(rest) or (len(rest) >= 4 and bool(np.all(np.diff(rest) < 0))))


def change_points(durations: Sequence[float]) -> list[tuple[int, float, float]]:
    """Steps from which on steps take another time, with the typical seconds before and after; single steps are none."""
    logs = logarithms(durations)
    if len(logs) < 2 * _FEWEST_OF_A_LEVEL:
        return []
    logs = _without_spikes(logs, _SPIKE * find_noise(logs).deviation)
    found = _level_changes(logs, None, len(logs))
    while True:  # the smallest change goes until all that are left are worth reporting
        bounds = [0, *found, len(logs)]
        levels = [float(np.median(logs[start:end])) for start, end in pairwise(bounds)]
        changes = [abs(after - before) for before, after in pairwise(levels)]
        if not changes or min(changes) >= _LEAST_CHANGE:
            return [(at, math.exp(a), math.exp(b)) for at, (a, b) in zip(found, pairwise(levels), strict=True)]
        del found[int(np.argmin(changes))]


def _steady(logs: Logs) -> _Steady:
    """Describe the steps after warm-up."""
    kinds = _Steady(1.0, 0.0)
    modes = find_modes(np.exp(logs))
    if modes:
        low, high = (math.log(mode.seconds) for mode in modes)
        kinds = kinds._replace(low=low, gap=high - low)
    return _scatter(kinds.one_kind(logs))._replace(low=kinds.low, gap=kinds.gap)


def _scatter(logs: Logs) -> _Steady:
    """The scatter of steps of one kind; few steps are not trusted to be as alike or as independent as they look."""
    noise, size = find_noise(logs), len(logs)
    return _Steady(
        deviation=math.sqrt((noise.deviation**2 * size + _USUAL_DEVIATION**2 * 2) / (size + 2)),
        correlation=(noise.correlation * size + _USUAL_CORRELATION * 5) / (size + 5),
    )


def _end_of_warmup(logs: Logs, steady: _Steady) -> int:
    """Slower beginnings are taken off until what is left has none: shapes that are no pure level or decay end too."""
    logs = logs.copy()
    height = _SPIKE * steady.deviation
    if logs[1] > np.median(logs[2:5]) + height:  # some setups do their slow work in the second step
        logs[0] = max(logs[0], logs[1])
    elif logs[0] < np.median(logs[1:6]) - height:  # what a first step lacks says nothing about the others
        logs[0] = np.median(logs[1:6])
    logs = _without_spikes(logs, height)
    half = len(logs) // 2
    longest = min(half, max(10, len(logs) // 3))
    end = 0
    for _ in range(4):
        more = _slower_beginning(logs[end:], steady, half - end, longest - end, end == 0)
        end += more
        if not more or end >= half:
            break
    return min(end, half)


def _without_spikes(logs: Logs, height: float) -> Logs:
    """Single or double steps far above or below all around them brought to their neighbours' level; never the first."""
    size = len(logs)
    padded = np.concatenate([np.full(3, logs[0]), logs, np.full(3, logs[-1])])
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, 3), axis=1)
    before, after = medians[:size].copy(), medians[4:]
    before[1], before[2] = logs[0], min(logs[:2])
    high, low = np.maximum(before, after), np.minimum(before, after)
    calm = logs.copy()
    calm[1:] = np.where(logs > high + height, high, np.where(logs < low - height, low, logs))[1:]
    left, right = calm[1:-2], calm[3:]
    peaks = calm[2:-1] > np.maximum(left, right) + height
    calm[2:-1] = np.where(peaks, (left + right) / 2, calm[2:-1])
    return calm


def _slower_beginning(logs: Logs, steady: _Steady, half: int, longest: int, first: bool) -> int:
    """End of the first levels or the decay that are slower than what follows; 0 when there is nothing slower."""
    if half < 1:
        return 0
    calm = steady.one_kind(logs)
    bounds = [0, *_level_changes(calm, steady, half, first=first), len(calm)]
    levels = [float(np.median(calm[start:end])) for start, end in pairwise(bounds)]
    count = _slower_levels(calm, bounds, levels, half, longest)
    if not count:
        return 0
    end = bounds[count]
    later_change = next(bound for bound in bounds if bound > max(2 * end, 30) or bound == len(calm))
    window = logs[: min(later_change, _DECAY_LOOKED_AT)]
    if 2 * end > len(window):
        return end
    profile = np.zeros(len(window))
    for index in range(count):
        profile[bounds[index] : bounds[index + 1]] = levels[index] - levels[count]
    misfit = float(steady.misfit(window - profile))
    unit = max(misfit / len(window), 1.0)  # where levels fit badly, a saving must be larger to mean something
    best = misfit + unit * _PRICE_OF_LEVEL * count
    for free in range(min(3, len(window) - 4)):
        length, misfit = _decay(window[free:], steady)
        total = misfit + unit * (_PRICE_OF_DECAY + _PRICE_OF_STEP_BEFORE_DECAY * free)
        if 2 <= free + length <= longest and total < best:
            best, end = total, free + length
    return end


def _slower_levels(logs: Logs, bounds: Sequence[int], levels: Sequence[float], half: int, longest: int) -> int:
    """Count the first levels that are warm-up: all slower than the one after them, not too long, gone for good."""
    count = 0
    for index, end in enumerate(bounds[1:-1]):
        least = min(levels[: index + 1]) - levels[index + 1]
        slower = least >= max(_LEAST_EXCESS, min((levels[index] - levels[index + 1]) / 2, _SLOWER_THROUGHOUT))
        short = end <= (half if least > _CLEARLY_SLOWER else longest)
        if slower and short and not _comes_back(logs, bounds[index], end):
            count = index + 1
    return count


def _comes_back(logs: Logs, start: int, end: int) -> bool:
    """True if runs of steps as slow as these are common later: then they are a kind of steps and no warm-up."""
    width = min(end - start, 5)
    later = logs[end:]
    if width < 3 or len(later) < width:
        return False
    low = np.median(later[: max(20, end - start)])
    slow = low + 0.6 * (np.median(logs[start:end]) - low)
    runs = np.median(np.lib.stride_tricks.sliding_window_view(later, width), axis=1)
    return bool(np.mean(runs > slow) > 0.1)


def _level_changes(logs: Logs, steady: _Steady | None, until: int, *, first: bool = False, depth: int = 0) -> list[int]:
    """Find changes of level, up to `until` or a little beyond, by binary segmentation: the one change-point routine.

    Args:
        logs: Logarithms of step times.
        steady: How steps scatter about their level; None: as they scatter about the levels on both sides of a change,
            each of which must then have enough steps to tell.
        until: Later changes are not looked for.
        first: Whether a slow first step alone counts, at a lower price.
        depth: How often the series was divided before.
    """
    fewest = 1 if steady else _FEWEST_OF_A_LEVEL
    if len(logs) < 2 * fewest or depth > _DEEPEST:
        return []
    inside = slice(fewest - 1, len(logs) - fewest)
    saved, rise = _change_point_gain(logs, steady or _Steady(1.0, 0.0))
    at = int(np.argmax(saved[inside])) + fewest
    if steady is None:
        left, right = logs[:at] - logs[:at].mean(), logs[at:] - logs[at:].mean()
        saved, rise = _change_point_gain(logs, _scatter(np.concatenate([left, right])))
        at = int(np.argmax(saved[inside])) + fewest
    if saved[at - 1] < _PRICE_OF_CHANGE + 2 * math.log(len(logs)):
        at = 1
        if not first or rise[0] < 0 or saved[0] < _PRICE_OF_FIRST_STEP:
            return []
    before = _level_changes(logs[:at], steady, at, first=first, depth=depth + 1)
    after = _level_changes(logs[at:], steady, until - at, depth=depth + 1) if at < until else []
    return [*before, at, *(at + change for change in after)]


def _change_point_gain(logs: Logs, steady: _Steady) -> tuple[Logs, Logs]:
    """Squared deviations that two levels save against one, for every place of a change; above 0 where steps get faster.

    Least squares for all places at once, by sums over the steps before the change.
    """
    new, one = steady.innovations(logs - np.median(logs)), steady.innovations(np.ones(len(logs)))
    early_one = np.cumsum(one * one)[:-1] - steady.correlation * one[1:]
    early_early = np.cumsum(one * one)[:-1] + steady.correlation**2
    early_new = np.cumsum(one * new)[:-1] - steady.correlation * new[1:]
    top = early_new - early_one * (one @ new) / (one @ one)
    bottom = early_early - early_one**2 / (one @ one)
    return top * top / bottom / steady.variance, top


def _decay(logs: Logs, steady: _Steady) -> tuple[int, float]:
    """After how many steps the excess of the best decay is below half a deviation, and its misfit."""
    steps = np.arange(len(logs))
    amplitudes = np.linspace(math.log(0.05), math.log(40), 11)  # logarithms: of the first excess, of steps per e-fold
    times = np.linspace(math.log(0.03), math.log(30), 13)
    amplitude, ratio, best = 0.0, 0.5, math.inf
    for _ in range(3):
        ratios = np.exp(-np.exp(-times))
        profiles = np.log1p(np.exp(amplitudes)[:, None, None] * ratios[:, None] ** steps)
        misfits = steady.misfit(logs - profiles)
        row, column = np.unravel_index(int(np.argmin(misfits)), misfits.shape)
        amplitude, ratio, best = math.exp(amplitudes[row]), float(ratios[column]), float(misfits[row, column])
        near = np.linspace(-1, 1, 7)
        amplitudes = amplitudes[row] + near * (amplitudes[1] - amplitudes[0])
        times = times[column] + near * (times[1] - times[0])
    if amplitude < _LEAST_DECAY:
        return 0, best
    return max(math.ceil(math.log(steady.deviation / 2 / amplitude) / math.log(ratio)), 0), best
