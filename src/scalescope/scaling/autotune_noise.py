"""How much samples of Horovod's autotune scatter, and what a setting reaches when its neighbours are asked too."""

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.records.autotune import Knobs, Noise

Array = NDArray[np.float64]

_ENOUGH_REPEATS = 4
"""Degrees of freedom from which on repeats alone tell the noise."""
_FEWEST = 6
"""Samples for a surface."""
MOST = 400
"""Samples that a surface is put through; it takes their third power."""
_LENGTHS = (0.5, 1.0, 2.0, 4.0)
"""Octaves of cycle time or fusion threshold over which scores stay alike."""
_SWITCHED = (0.1, 1.0)
"""How far apart a switch moves two settings, squared."""
_SIGNALS = (0.1, 0.3, 1.0, 3.0)
_NOISES = (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Variances, relative to that of all samples."""
_TINY = 1e-10


class Surface(NamedTuple):
    """A smooth function of the knobs, in logarithms of scores."""

    values: Array
    """At the samples."""
    errors: Array
    """Standard errors of the values."""
    freedom: float
    """Samples, less what the surface takes to follow them."""


class _Fit(NamedTuple):
    """One Gaussian process: variances of signal and noise along directions, and how well they fit."""

    likelihood: float
    """Its logarithm."""
    signal: Array
    directions: Array
    noise: float


def noise_of_repeats(groups: Sequence[Sequence[float]]) -> Noise | None:
    """The standard deviation of one sample, from settings with several; None where none was repeated."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        return None
    squares = sum(float(np.var(np.log(group))) * len(group) for group in groups)
    return Noise(relative=math.sqrt(squares / freedom), source="repeats", freedom=freedom)


def noise_and_surface(
    knobs: Sequence[Knobs], scores: Sequence[float], groups: Sequence[Sequence[float]]
) -> tuple[Noise | None, Surface | None]:
    """The noise, from repeats where there are enough of them, and the surface that it leaves; None for too few."""
    repeats = noise_of_repeats(groups)
    if len(scores) < _FEWEST:
        return repeats, None
    if repeats and repeats.freedom >= _ENOUGH_REPEATS:
        return repeats, smooth(knobs, scores, repeats.relative)
    relative = _noise_of_neighbours(knobs, scores)
    surface = smooth(knobs, scores, relative)
    return Noise(relative=relative, source="neighbours", freedom=surface.freedom), surface


def smooth(knobs: Sequence[Knobs], scores: Sequence[float], noise: float) -> Surface:
    """The likeliest surface through samples with this noise."""
    logarithms = np.log(np.array(scores, dtype=float))
    middle = float(logarithms.mean())
    fit = max(_fits(knobs, logarithms, [noise**2]), key=lambda each: each.likelihood)
    kept = fit.signal / (fit.signal + fit.noise + _TINY)
    values = middle + fit.directions @ (kept * (fit.directions.T @ (logarithms - middle)))
    errors = np.sqrt((fit.directions**2) @ (fit.signal * (1 - kept)))
    return Surface(values, errors, max(len(scores) - float(kept.sum()), 1.0))


def _noise_of_neighbours(knobs: Sequence[Knobs], scores: Sequence[float]) -> float:
    """What surfaces leave over, each as likely as it is: the likeliest alone may go through every sample."""
    logarithms = np.log(np.array(scores, dtype=float))
    noises = [float(logarithms.var()) * relative for relative in _NOISES]
    fits = _fits(knobs, logarithms, noises)
    likeliest = max(fit.likelihood for fit in fits)
    weights = [math.exp(fit.likelihood - likeliest) for fit in fits]
    variance = sum(weight * fit.noise for weight, fit in zip(weights, fits, strict=True)) / sum(weights)
    return math.sqrt(variance)


def _fits(knobs: Sequence[Knobs], logarithms: Array, noises: Sequence[float]) -> list[_Fit]:
    """Gaussian processes of every smoothness, signal and noise."""
    rest = logarithms - logarithms.mean()
    steps, switched = _distances(knobs)
    fits = []
    for length, apart in product(_LENGTHS, _SWITCHED if switched.any() else _SWITCHED[:1]):
        shares, directions = np.linalg.eigh(np.exp(-0.5 * (steps / length**2 + apart * switched)))
        turned = directions.T @ rest
        for relative, noise in product(_SIGNALS, noises):
            signal = float(rest.var()) * relative * np.maximum(shares, 0.0)
            spread = signal + noise + _TINY
            likelihood = -0.5 * float((turned**2 / spread + np.log(spread)).sum())
            fits.append(_Fit(likelihood, signal, directions, noise))
    return fits


def _distances(knobs: Sequence[Knobs]) -> tuple[Array, Array]:
    """Between all pairs: squared octaves of cycle time and fusion threshold, and how many switches differ."""
    cycle = np.log2([max(each.cycle_time_ms, 0.1) for each in knobs])
    fusion = np.log2([1 + max(each.fusion_threshold_mb, 0.0) for each in knobs])
    places = np.stack([cycle, fusion], axis=1)
    switches = np.array([[float(value) for value in each.switches.values()] for each in knobs])

    def between(columns: Array) -> Array:
        apart: Array = ((columns[:, None, :] - columns[None, :, :]) ** 2).sum(axis=2)
        return apart

    return between(places), between(switches)
