"""Noise of the samples of Horovod's autotune, and scores smoothed over neighbouring settings."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from statistics import pvariance, variance
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.records.autotune import Noise, Sample

_ENOUGH_REPEATS = 4  # Degrees of freedom from which on repeats alone tell the noise
_FEWEST = 6  # Samples for a surface
MOST = 200  # Samples that a surface is put through; it takes their third power
_LENGTHS = (1.0, 2.0, 4.0)  # Octaves of cycle time or fusion threshold over which scores stay alike
_SWITCH_LENGTHS = (3.0, 1.0)
_SIGNALS = (0.1, 1.0)
_NOISES = (0.003, 0.02, 0.1, 0.3, 0.6, 1.0)  # Variances, relative to that of all samples


class Surface(NamedTuple):
    """A smooth function of the knobs, in logarithms of scores."""

    values: NDArray[np.float64]  # At the samples
    errors: NDArray[np.float64]  # Standard errors of the values
    freedom: float  # Samples, less what the surface takes to follow them


def noise_and_surface(
    samples: Sequence[Sample], groups: Sequence[Sequence[float]]
) -> tuple[Noise | None, Surface | None]:
    """The noise, from repeats where there are enough of them, and the surface that it leaves; None for too few."""
    repeats = None
    freedom = sum(len(group) - 1 for group in groups)
    if freedom:
        squares = sum(variance(map(math.log, group)) * (len(group) - 1) for group in groups if len(group) > 1)
        repeats = Noise(relative=math.sqrt(squares / freedom), source="repeats", freedom=freedom)
    logs = [math.log(sample.score) for sample in samples]
    spread = pvariance(logs)
    if len(samples) < _FEWEST or spread == 0:
        return repeats, None
    if repeats and repeats.freedom >= _ENOUGH_REPEATS:
        return repeats, _smooth(samples, logs, repeats.relative**2 / spread)
    # Every surface counts as much as it is likely: the likeliest alone may go through every sample.
    fits = list(_fits(samples, logs, _NOISES))
    likeliest = max(fit.log_marginal_likelihood_value_ for fit in fits)
    weights = [math.exp(fit.log_marginal_likelihood_value_ - likeliest) for fit in fits]
    share = sum(weight * fit.alpha for weight, fit in zip(weights, fits, strict=True)) / sum(weights)
    surface = _smooth(samples, logs, share)
    return Noise(relative=math.sqrt(share * spread), source="neighbours", freedom=surface.freedom), surface


def _smooth(samples: Sequence[Sample], logs: Sequence[float], share: float) -> Surface:
    """The likeliest surface through samples of which noise has this share of the variance."""
    fit = max(_fits(samples, logs, [max(share, 1e-6)]), key=lambda each: each.log_marginal_likelihood_value_)
    places = _places(samples)
    values, errors = fit.predict(places, return_std=True)
    signal = fit.kernel_(places)
    followed = np.trace(np.linalg.solve(signal + fit.alpha * np.eye(len(places)), signal))
    return Surface(values, errors, max(len(places) - float(followed), 1.0))


def _fits(samples: Sequence[Sample], logs: Sequence[float], noises: Sequence[float]) -> Iterator[Any]:
    """scikit-learn's Gaussian processes of every smoothness, signal and noise."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    places = _places(samples)
    switched = len({tuple(sample.knobs.switches.values()) for sample in samples}) > 1
    for length, apart in product(_LENGTHS, _SWITCH_LENGTHS if switched else _SWITCH_LENGTHS[:1]):
        lengths = [length, length, *[apart] * (len(places[0]) - 2)]
        for signal, noise in product(_SIGNALS, noises):
            kernel = ConstantKernel(signal) * RBF(lengths)
            yield GaussianProcessRegressor(kernel, alpha=noise, optimizer=None, normalize_y=True).fit(places, logs)


def _places(samples: Sequence[Sample]) -> list[list[float]]:
    """Octaves of cycle time and fusion threshold, and the switches."""
    return [
        [
            math.log2(max(each.knobs.cycle_time_ms, 0.1)),
            math.log2(1 + max(each.knobs.fusion_threshold_mb, 0.0)),
            *map(float, each.knobs.switches.values()),
        ]
        for each in samples
    ]
