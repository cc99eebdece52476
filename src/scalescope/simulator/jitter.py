"""Time of the slowest of many ranks: steps wait for it, so rare slow steps of one rank slow all of them.

Computed from the steps that a profile saw, as residuals over the typical step, not from a normal distribution: one step
in fifty that takes half as long again says nothing about two ranks and nearly everything about a thousand.
"""

import math
from collections.abc import Sequence

import numpy as np

from scalescope.records.profile import Contention, ModelProfile, ProfilePoint, Residuals
from scalescope.simulator.events import Floats

_SINGLE = 8  # The largest residuals stay single, those below in groups of about a sixth of what is above them
_OF_TAIL = 50  # The tail goes on as the largest of this many residuals do, at least four of them
_TAIL_DOUBLINGS = 60  # Numbers of ranks beyond the residuals, in doublings, that the tail is worked out for
_EULER = 0.5772156649015329
_LARGEST_ERROR = 0.5
_NORMAL_COUNT = 2048  # Of residuals that stand for a normal distribution


def grouped(steps_over_typical: Sequence[float]) -> Residuals:
    """Residuals as a profile keeps them: the largest one by one, the others in groups with their means."""
    values = np.sort(np.asarray(steps_over_typical, dtype=float))[::-1]
    counts: list[int] = []
    while (done := sum(counts)) < len(values):
        counts.append(min(1 if done < _SINGLE else max(done // 6, 1), len(values) - done))
    ends = np.cumsum(counts)
    levels = [float(values[end - count : end].mean()) for end, count in zip(ends, counts, strict=True)]
    return Residuals(counts=tuple(counts), levels=tuple(round(level, 6) for level in levels))


def slowest(residuals: Residuals, ranks: Floats) -> tuple[Floats, Floats]:
    """Mean of the slowest of p ranks over the mean of one, and the relative standard error of that.

    The largest residual stands for an exponential tail that goes on as the largest ones do, so that more ranks than
    there are residuals find slower steps than any that was seen.
    """
    below, levels, scale = _with_tail(residuals)
    shares = np.diff(below, prepend=0.0)
    # From the smallest level up: the share of steps that are no longer than it, and the way to the next level.
    reached = np.maximum(1 - below[::-1], 0.0)[:-1] + shares[::-1][:-1]
    gaps = np.diff(levels[::-1])

    def mean_of(p: Floats) -> Floats:
        return np.asarray(levels[0] - np.power(reached, p[:, None]) @ gaps)

    found, one, count = mean_of(ranks), float(mean_of(np.ones(1))[0]), sum(residuals.counts)
    # The influence of a single step on the mean of the slowest, and from it the variance of that mean.
    pulls = ranks[:, None] * np.power(reached, ranks[:, None] - 1) * gaps
    above = np.concatenate([np.cumsum(pulls[:, ::-1], axis=1)[:, ::-1], np.zeros((len(ranks), 1))], axis=1)
    influence = above - (pulls @ reached)[:, None]
    variance = (influence**2 @ shares[::-1]) / count
    beyond = scale * np.maximum(np.log(ranks / count), 0.0)
    error = np.minimum((np.sqrt(variance) + beyond / 2) / found, _LARGEST_ERROR)
    return found / one, np.where(ranks > 1, error, 0.0)


def _with_tail(residuals: Residuals) -> tuple[Floats, Floats, float]:
    """Share of steps down to the end of each group, the groups' levels, and the scale of the tail."""
    counts, levels = np.array(residuals.counts, dtype=float), np.array(residuals.levels)
    count = counts.sum()
    reached = np.cumsum(counts)
    if len(counts) < 2:
        return reached / count, levels, 0.0
    top = min(max(count / _OF_TAIL, 4.0), reached[-2])
    last = int(np.searchsorted(reached, top - 1e-9))
    scale = float((counts[: last + 1] @ levels[: last + 1]) / reached[last] - levels[last + 1])
    halvings = np.arange(_TAIL_DOUBLINGS)
    # The mean of log(1 / u) over u between 2**-(j + 1) and 2**-j is j log 2 + 1 - log 2; the largest of n exponential
    # values lies on average Euler's constant above the level that a share of 1 / n exceeds.
    tail = levels[0] + scale * (halvings * math.log(2) + 1 - math.log(2) - _EULER)
    shares = counts[0] / count * 0.5**halvings
    return np.concatenate([shares[::-1], reached[1:] / count]), np.concatenate([tail[::-1], levels[1:]]), scale


def jitter(profile: ModelProfile, copies: Floats, ranks: Floats, batches: Floats) -> tuple[Floats, Floats]:
    """By how much the slowest of all ranks lengthens each step, with its relative error; 1 for one rank.

    Residuals come from the measured numbers of copies on a host that are nearest to a cell's, and lie between those of
    the batch sizes on both sides of it.
    """
    factor, error = np.ones_like(ranks), np.zeros_like(ranks)
    known = np.array(sorted({1, *(each.copies for each in profile.crowds)}), dtype=float)
    nearest = known[np.abs(np.log2(copies[:, None] / known)).argmin(axis=1)]
    nearest = np.where((copies > 1) & (len(known) > 1), np.maximum(nearest, known[min(1, len(known) - 1)]), nearest)
    for count in known:
        here = (nearest == count) & (ranks > 1)
        if not here.any():
            continue
        sources: list[ProfilePoint | Contention] = list(profile.points)
        if count > 1:
            sources = [each for each in profile.crowds if each.copies == count]
        distinct, row = np.unique(ranks[here], return_inverse=True)
        found = [slowest(each.residuals or _normal(each.noise), distinct) for each in sources]
        at = np.log2([each.batch for each in sources])
        for target, part in ((factor, 0), (error, 1)):
            table = np.array([both[part] for both in found])
            target[here] = _between(np.log2(batches[here]), at, table[:, row])
    return factor, error


def _between(wanted: Floats, known: Floats, table: Floats) -> Floats:
    """Each column of a table, whose rows belong to ascending `known`, at a place of its own."""
    if len(known) == 1:
        return np.asarray(table[0])
    left = np.clip(np.searchsorted(known, wanted, side="right") - 1, 0, len(known) - 2)
    share = np.clip((wanted - known[left]) / (known[left + 1] - known[left]), 0.0, 1.0)
    columns = np.arange(len(wanted))
    return np.asarray(table[left, columns] * (1 - share) + table[left + 1, columns] * share)


def _normal(noise: float) -> Residuals:
    """Residuals for a profile that keeps only a standard deviation: of a normal distribution."""
    if not noise:
        return Residuals(counts=(1,), levels=(1.0,))
    from scipy.special import ndtri

    return grouped(1 + noise * ndtri((np.arange(_NORMAL_COUNT) + 0.5) / _NORMAL_COUNT))
