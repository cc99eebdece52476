"""Predicted speed of a model: a map over processes and batch sizes, with how far to trust it."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, ClassVar

import msgspec

from scalescope.records.job import Knobs
from scalescope.records.request import ScalingKind
from scalescope.records.store import Record


def device_hours(processes: Any, samples_per_s: Any) -> Any:
    """Processes times hours, for a million samples; of numbers or of arrays."""
    return processes / samples_per_s * 1e6 / 3600


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration; times in seconds, intervals have the level stats.PREDICTED."""

    np: int
    nodes: int
    batch: int  # Per process
    global_batch: int
    scaling: ScalingKind
    step_s: float
    low_s: float
    high_s: float
    # Over one process without an engine: of the same global batch (strong), of one process' batch (weak)
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency: float
    throughput: float  # Samples per second, all processes together
    exposed_s: float  # Communication that compute does not hide
    hidden_s: float
    memory_bytes: int  # Of one process
    device_hours: float  # Processes times hours, for a million samples
    fits: bool = True  # Whether the batch fits into the memory of the device, or of the node that processes share
    # Whether the batch, and of a strong speedup the one it is over, lies within those that the profile measured
    measured_batch: bool = True
    baseline_fits: bool = True  # Whether the one process that a strong speedup is over could run the whole batch
    # Whether its step was measured (the interval is then from the fastest to the slowest launch), not predicted.
    verified: bool = False
    engine: str = ""  # Of a map of several engines; empty: that of the prediction

    @classmethod
    def without_times(cls, **place: Any) -> "Cell":
        """A cell that does not fit: memory ran out before a step ended; `place` is all that is known of it."""
        rates = ("speedup", "speedup_low", "speedup_high", "efficiency", "throughput", "device_hours")
        none: dict[str, Any] = dict.fromkeys(("step_s", "low_s", "high_s", "exposed_s", "hidden_s", *rates), 0.0)
        return cls(**none, **place, fits=False)


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A cell to use, and what using it instead of the fastest one costs."""

    np: int
    batch: int
    global_batch: int
    scaling: ScalingKind
    speedup: float
    efficiency: float
    throughput: float
    regret: float  # Throughput lost against the fastest cell, as a fraction
    why: str
    engine: str = ""  # Of its cell


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was run for real."""

    np: int
    batch: int
    scaling: ScalingKind
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    measured_low_s: float
    measured_high_s: float
    disturbed: bool = False  # Whether other programs were busy during every one of its launches
    # Step of one process during the check over the profile's: `measured_s` is at the profile's pace. None: as run.
    pace: float | None = None

    @classmethod
    def of(cls, cell: Cell, seconds: Sequence[float], **how: Any) -> "Check":
        """Check a cell by measured steps: their middle, and the lowest and the highest of them."""
        return cls(
            np=cell.np,
            batch=cell.batch,
            scaling=cell.scaling,
            predicted_s=cell.step_s,
            low_s=cell.low_s,
            high_s=cell.high_s,
            measured_s=median(seconds),
            measured_low_s=min(seconds),
            measured_high_s=max(seconds),
            **how,
        )

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1

    @property
    def log_error(self) -> float:
        """Natural logarithm of measured over predicted."""
        return math.log(self.measured_s / self.predicted_s)

    @property
    def inside(self) -> bool:
        """True if the interval holds the measured step."""
        return self.low_s <= self.measured_s <= self.high_s


class Residual(Record, frozen=True, kw_only=True, tag="residual"):
    """Error of one estimate, kept on this machine for later ones."""

    # Version 1 kept every check on its own, those of disturbed probes too: it is not read any more.
    current_version: ClassVar[int] = 2

    hostname: str
    engine: str
    model: str
    checks: int
    log_error: float  # Median over its checks: natural logarithm of measured over predicted (uncalibrated)
    seconds_since_epoch: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Correction by earlier checks of this engine on this machine."""

    estimates: int  # That were checked
    factor: float  # Predicted steps were multiplied by it
    spread: float  # Relative standard deviation that remained
    mean_error: float  # Mean absolute relative error of those estimates, before the factor


STATED = "step times of one process were given, not measured"  # The beginning of a warning


class Prediction(Record, frozen=True, kw_only=True, tag="prediction"):
    """A map of cells with its advice."""

    current_version: ClassVar[int] = 1

    what: str  # The model
    engine: str
    knobs: Knobs
    cluster: str  # Its name or file
    slots_per_node: int
    nodes: int
    threads_per_rank: int
    accumulate: int = 1  # Passes that the batch of each process is split into
    cells: tuple[Cell, ...]
    recommended: Advice | None  # None when nothing fits into memory, or the map is not to be trusted
    # The largest number of processes whose best cell keeps the efficiency that was asked for.
    most_efficient_np: int | None
    efficiency_goal: float
    residual: float  # Relative standard deviation that intervals include for the model's own error
    calibration: Calibration | None = None
    checks: tuple[Check, ...] = ()
    correction: float = 1.0  # Predicted steps of several processes were multiplied by it because of the checks
    doubts: tuple[str, ...] = ()  # Why the map is not to be trusted, a line each
    own_s: float = 0.0  # What the engine costs a process in each step apart from messages: copies, hooks
    profile_batches: tuple[int, ...]
    # Of a script: numbers of processes as whose rank 0 it ran; what lies between them is interpolated. Empty: a model
    ran_as: tuple[int, ...] = ()
    interpolation_error: float
    memory_limit_bytes: int
    memory_shared_by: int = 1  # Processes that share it, when there are as many as the map has
    largest_batch: int | None = None  # The largest batch per process that fits into memory, as far as the profile tells
    warnings: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        """True if it was made of undisturbed parts, or confirmed by checks."""
        return not self.doubts

    @property
    def is_stated(self) -> bool:
        """True if the step times of one process were given: nothing of it can be checked on this machine."""
        return any(warning.startswith(STATED) for warning in self.warnings)

    @property
    def was_wrong(self) -> bool:
        """True if an undisturbed check lies outside its interval."""
        return any(not check.inside and not check.disturbed for check in self.checks)
