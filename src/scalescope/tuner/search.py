"""Chooses the setting to measure next: a Gaussian process on the simulator's errors, and expected improvement.

Times are logarithms of seconds. A knob's octaves, and switches, are brought to one scale, on which settings that are
about 1 apart tell something about each other.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from scalescope.records.job import KnobValue
from scalescope.records.tuning import Cell, SearchedKnob, TuneRequest
from scalescope.tuner.space import FIRST, Space


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a search."""

    steps_per_sample: int = 10
    max_samples: int = 12  # With the default, and with samples that are asked for again
    gp_noise: float | None = None  # Relative standard deviation of a sample; None: as measured
    discard: int = 2  # Steps after a switch that are not measured
    check: int = 3  # Measured steps after which a clearly bad sample is cut
    worst: float = 1.5  # A step that takes this many times the default's is clearly bad
    default_samples: int = 2  # Of the default at first: how much they differ is the noise of a sample
    finalists: int = 1  # Compared with the default, at most
    most_pairs: int = 24
    confirm_steps: int = 4  # Per block of a pair; more where the search leaves more of all_steps
    all_steps: int = 450  # Search and pairs together; 0: as many as they are
    fewest_times: int = 4  # A block with fewer is asked for again
    least_error: float = 0.015  # Relative error of any sample: what its own steps do not show, such as a slow drift

    def pair_steps(self, searched: int) -> int:
        """Measured steps of a block, so that all pairs fit into what the search has left."""
        if not self.all_steps:
            return self.confirm_steps
        each = (self.all_steps - searched) // (2 * self.most_pairs) - self.discard
        return min(max(each, self.confirm_steps), self.steps_per_sample)


ONLINE = Options()
OFFLINE = Options(
    steps_per_sample=40,
    discard=0,
    check=0,
    default_samples=3,
    finalists=3,
    most_pairs=20,
    confirm_steps=40,
    all_steps=0,
    fewest_times=1,
    least_error=0.03,
)


def options_of(request: TuneRequest, defaults: Options) -> Options:
    """The search's options as the user wants them."""
    alpha = request.autotune_noise
    wanted = {
        "steps_per_sample": request.steps_per_sample,
        "confirm_steps": request.steps_per_sample,
        "all_steps": 0 if request.steps_per_sample else None,
        "max_samples": request.max_samples,
        "gp_noise": _AMPLITUDE * math.sqrt(alpha) if alpha and request.gp_noise is None else request.gp_noise,
    }
    return msgspec.structs.replace(defaults, **{name: value for name, value in wanted.items() if value is not None})


Floats = NDArray[np.float64]
_OCTAVES = 2.0  # Of a size or a time that count as much as a switch
_OCTAVES_OF_THE_FIRST = 4.0
_LENGTH, _LENGTHS = 2.0, (1.0, 3.0)
# Standard deviation of the simulator's relative errors: expected, and within which bounds it is learned.
_AMPLITUDE, _AMPLITUDES = 0.12, (0.03, 0.4)
_AMPLITUDE_ALONE, _AMPLITUDES_ALONE = 0.15, (0.03, 0.6)  # Of the step times themselves, without a simulator
_OFFSET = 0.05  # Of what all settings have in common, the default's noise for one
# How far a length or an amplitude is learned away from what is expected, as a standard deviation of its logarithm.
_TRUST = 0.5
_CAUTION = 0.1  # How much a sample that is slower than the default counts against what it may teach
_RISK = 1.0  # Standard deviations above its mean at which a setting must not be clearly bad
_OWN = 1.0  # Degrees of freedom that a sample's own error counts for, against those of repeated samples
_REACH = 1.5  # Without a simulator: how far from what was tried the next setting may lie

# Weight of another sample of a known setting against one of a new setting: the finalist is measured again anyway.
_AGAIN = 0.4


class Observation(NamedTuple):
    """A measured setting."""

    setting: int
    log_s: float
    variance: float


def with_noise(observed: Sequence[Observation]) -> list[Observation]:
    """Samples of one setting differ by more than their own steps tell: where they do, that is their variance."""
    groups: dict[int, list[float]] = {}
    for each in observed:
        groups.setdefault(each.setting, []).append(each.log_s)
    freedom = sum(len(group) - 1 for group in groups.values())
    squares = sum((log_s - fmean(group)) ** 2 for group in groups.values() for log_s in group)
    between = (_OWN * median(each.variance for each in observed) + squares) / (_OWN + freedom)
    return [each._replace(variance=max(each.variance, between)) for each in observed]


class Posterior(NamedTuple):
    """Expected times of all settings and their uncertainty; logarithms of seconds."""

    mean: Floats
    sd: Floats
    apart: Floats  # Standard deviation of the difference to the default


class Choice(NamedTuple):
    """A setting that is worth a sample, and by how much its logarithm is expected to shorten the best step."""

    setting: int
    gain: float


def prepare() -> None:
    """Load what the search needs, which takes a second or two, and keep it to one core: the training has the others."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    Surrogate(Space(engine="", knobs=()), None).posterior([Observation(0, 0.0, 1.0)])


class Surrogate:
    """Model of the step times in a space, from predictions and observations."""

    def __init__(self, space: Space, predicted: Sequence[float] | None) -> None:
        self._space, self._predicted = space, predicted
        self._base = np.log(np.array(predicted)) if predicted is not None else np.zeros(len(space.settings))
        self._has_prior = predicted is not None
        self._at = coordinates(space)

    def posterior(self, observed: Sequence[Observation]) -> Posterior:
        """Fit the Gaussian process to the observations; the first one is the default's."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern

        rows = [each.setting for each in observed]
        residuals = np.array([each.log_s for each in observed]) - self._base[rows]
        amplitude, bounds = (_AMPLITUDE, _AMPLITUDES) if self._has_prior else (_AMPLITUDE_ALONE, _AMPLITUDES_ALONE)
        low, high = bounds
        shape = ConstantKernel(amplitude**2, (low**2, high**2)) * Matern(_LENGTH, _LENGTHS, nu=2.5)
        kernel = ConstantKernel(_OFFSET**2, "fixed") + shape
        process = GaussianProcessRegressor(
            kernel, alpha=np.array([each.variance for each in observed]), optimizer=_most_likely
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(self._at[rows], residuals - residuals[0])
            mean, covariance = process.predict(self._at, return_cov=True)
        variance = np.maximum(np.diag(covariance), 0.0)
        apart = np.sqrt(np.maximum(variance + variance[0] - 2 * covariance[0], 0.0))
        return Posterior(self._base + residuals[0] + mean, np.sqrt(variance), apart)

    def cells(self, known: Posterior | None) -> tuple[Cell, ...]:
        """The posterior of every setting, for the record."""
        nothing = [None] * len(self._space.settings)
        columns = zip(
            self._space.settings,
            self._predicted if self._predicted is not None else nothing,
            np.exp(known.mean).tolist() if known else nothing,
            known.sd.tolist() if known else nothing,
            strict=True,
        )
        return tuple(Cell(values=a, predicted_s=b, expected_s=c, error=d) for a, b, c, d in columns)

    def choose(
        self, posterior: Posterior, tried: Sequence[int], barred: set[int], noise: float, limit: float
    ) -> Choice | None:
        """The setting from which most is expected, of those that are not likely to take longer than `limit`.

        `noise`: standard deviation of a sample; a setting that was tried may be worth another sample.
        """
        mean, sd = posterior.mean, posterior.sd
        allowed = mean + _RISK * sd < limit
        if not self._has_prior:
            near = self._at[[setting for setting in tried if setting not in barred]]
            allowed &= (np.linalg.norm(self._at[:, None] - near[None], axis=2) <= _REACH).any(axis=1)
        allowed[list(tried)] = True
        allowed[list(barred)] = False
        allowed[0] = True
        if not allowed.any():
            return None
        gains = _expected_gain(mean, sd, tried, barred, noise)
        gains[list(tried)] *= _AGAIN
        loss = _expected_improvement(mean - mean[0], sd)
        setting = int(np.where(allowed, gains - _CAUTION * loss, -np.inf).argmax())
        return Choice(setting, float(gains[setting]))


def _expected_gain(mean: Floats, sd: Floats, tried: Sequence[int], barred: set[int], noise: float) -> Floats:
    """Knowledge gradient: the expected improvement of the best tried setting by one more sample of each setting."""
    standing = sorted({*tried} - barred, key=lambda setting: float(mean[setting]))
    best = np.full(len(mean), mean[standing[0]])
    if len(standing) > 1:
        best[standing[0]] = mean[standing[1]]
    better = best - mean
    # A setting that stands is in use already if it is the best: only what a sample can change about that counts.
    better[standing] = -np.abs(better[standing])
    return _expected_improvement(better, sd**2 / np.sqrt(sd**2 + noise**2))


def _expected_improvement(mean: Floats, sd: Floats) -> Floats:
    """Expected positive part of a normal variable."""
    from scipy.special import ndtr

    z = mean / np.maximum(sd, 1e-9)
    return np.asarray(mean * ndtr(z) + sd * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))


def _most_likely(objective: Callable[..., tuple[float, Floats]], start: Floats, bounds: Floats) -> tuple[Floats, float]:
    """Amplitude and length by likelihood, kept near what is expected of them while there are few observations."""
    from scipy.optimize import minimize

    trust = np.array([2 * _TRUST, _TRUST])  # the first is a variance

    def penalized(theta: Floats) -> tuple[float, Floats]:
        value, slope = objective(theta, eval_gradient=True)
        away = (theta - start) / trust
        return value + 0.5 * float(away @ away), slope + away / trust

    found = minimize(penalized, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 15})
    return found.x, float(found.fun)


def coordinates(space: Space) -> Floats:
    """One column per searched knob (one of zeros where there is none), one row per setting."""

    def coordinate(knob: SearchedKnob, value: KnobValue | None) -> float:
        if knob.logarithmic and isinstance(value, (int, float)):
            octaves = _OCTAVES_OF_THE_FIRST if knob.name == FIRST else _OCTAVES
            smallest = min(float(other) for other in knob.values if other)
            return math.log2(max(float(value), smallest / 4)) / octaves
        return float(knob.values.index(value)) if value in knob.values else 0.0

    settings = [space.complete(values) for values in space.settings]
    columns = [[coordinate(knob, values.get(knob.name)) for values in settings] for knob in space.knobs]
    return np.array(columns or [[0.0] * len(settings)]).T
