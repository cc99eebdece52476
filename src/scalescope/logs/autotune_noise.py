"""Noise of the samples of Horovod's autotune, and scores smoothed over neighbouring settings."""

import math
import warnings
from collections.abc import Sequence
from statistics import pvariance, variance
from typing import NamedTuple

from scalescope.records.autotune import Noise, Sample

_ENOUGH_REPEATS = 4  # Degrees of freedom from which on repeats alone tell the noise
_FEWEST = 6  # Samples for a surface
MOST = 200  # Samples that a surface is put through; it takes their third power
_LENGTHS = (1.0, 8.0)  # Octaves of cycle time or fusion threshold over which scores stay alike
_SIGNAL = (0.1, 2.0)  # Variance of the surface, relative to that of all samples
_NOISE = (0.02, 1.0)  # And of the noise: below, the likeliest surface goes through every sample


class Smoothed(NamedTuple):
    """Estimate of a score from a sample and its neighbours."""

    score: float
    error: float  # Relative standard error


def noise_and_surface(
    samples: Sequence[Sample], groups: Sequence[Sequence[float]]
) -> tuple[Noise | None, list[Smoothed]]:
    """The noise, and every sample smoothed; None and no samples where there are too few of them.

    Noise is that of repeats where there are enough of them, or else what a Gaussian process leaves over.
    """
    repeats = None
    freedom = sum(len(group) - 1 for group in groups)
    if freedom:
        squares = sum(variance(map(math.log, group)) * (len(group) - 1) for group in groups if len(group) > 1)
        repeats = Noise(relative=math.sqrt(squares / freedom), source="repeats", freedom=freedom)
    logs = [math.log(sample.score) for sample in samples]
    spread = pvariance(logs)
    if len(samples) < _FEWEST or spread == 0:
        return repeats, []
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    places = [
        [
            math.log2(max(each.knobs.cycle_time_ms, 0.1)),
            math.log2(1 + each.knobs.fusion_threshold_mb),
            *map(float, each.knobs.switches.values()),
        ]
        for each in samples
    ]
    white = WhiteKernel(0.3, _NOISE)
    known = repeats if repeats and repeats.freedom >= _ENOUGH_REPEATS else None
    if known:
        white = WhiteKernel(max(known.relative**2 / spread, 1e-6), "fixed")
    kernel = ConstantKernel(1.0, _SIGNAL) * RBF([2.0] * len(places[0]), _LENGTHS) + white
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of values at their bounds, which are meant
        fit = GaussianProcessRegressor(kernel, normalize_y=True).fit(places, logs)
    values, deviations = fit.predict(places, return_std=True)
    noise_variance = float(fit.kernel_.k2.noise_level) * spread
    variances = [max(float(each) ** 2 - noise_variance, 0.0) for each in deviations]  # of the surface alone
    smoothed = [
        Smoothed(math.exp(value), math.sqrt(of_value)) for value, of_value in zip(values, variances, strict=True)
    ]
    if known:
        return known, smoothed
    left = len(samples) - sum(variances) / noise_variance  # what is followed by the surface tells no noise
    return Noise(relative=math.sqrt(noise_variance), source="neighbours", freedom=max(left, 1.0)), smoothed
