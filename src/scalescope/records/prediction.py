"""How fast a model would be: a map over processes and batch sizes, with how far to trust it."""

from typing import ClassVar, Literal

import msgspec

from scalescope.records.knobs import Knobs
from scalescope.records.store import Record

Scaling = Literal["strong", "weak"]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration; times in seconds, the interval holds 90 %."""

    np: int
    nodes: int
    batch: int
    """Per process."""
    global_batch: int
    scaling: Scaling
    step_s: float
    low_s: float
    high_s: float
    speedup: float
    """Over one process without an engine: of the same global batch (strong), of one process' batch (weak)."""
    speedup_low: float
    speedup_high: float
    efficiency: float
    throughput: float
    """Samples per second, all processes together."""
    exposed_s: float
    """Communication that compute does not hide."""
    hidden_s: float
    memory_bytes: int
    """Of one process."""
    device_hours: float
    """Processes times hours, for a million samples."""
    fits: bool = True
    """Whether the batch fits into the device's memory."""
    measured_batch: bool = True
    """Whether the batch lies within those that the profile measured."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A cell to use, and what using it instead of the fastest one costs."""

    np: int
    batch: int
    global_batch: int
    scaling: Scaling
    speedup: float
    efficiency: float
    throughput: float
    regret: float
    """Throughput lost against the fastest cell, as a fraction."""
    why: str


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was run for real."""

    np: int
    batch: int
    scaling: Scaling
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    measured_low_s: float
    measured_high_s: float
    measured_speedup: float | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


class Residual(Record, frozen=True, kw_only=True, tag="residual"):
    """One check, kept on this machine so that later estimates know how wrong they tend to be."""

    current_version: ClassVar[int] = 1

    hostname: str
    engine: str
    model: str
    np: int
    batch: int
    log_error: float
    """Natural logarithm of measured over predicted (uncalibrated)."""
    seconds_since_epoch: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier checks say of this engine here."""

    checks: int
    factor: float
    """Predicted steps were multiplied by it."""
    spread: float
    """Relative standard deviation that remained."""
    mean_error: float
    """Mean absolute relative error of those checks, before the factor."""


class Prediction(Record, frozen=True, kw_only=True, tag="prediction"):
    """A map of cells with its advice."""

    current_version: ClassVar[int] = 1

    what: str
    """The model."""
    engine: str
    knobs: Knobs
    cluster: str
    """Its name or file."""
    slots_per_node: int
    nodes: int
    threads_per_rank: int
    cells: tuple[Cell, ...]
    recommended: Advice | None
    """None when nothing fits into memory."""
    most_efficient_np: int | None
    """The largest number of processes whose best cell keeps the efficiency that was asked for."""
    efficiency_goal: float
    residual: float
    """Relative standard deviation that intervals include for the model's own error."""
    calibration: Calibration | None = None
    checks: tuple[Check, ...] = ()
    profile_batches: tuple[int, ...]
    interpolation_error: float
    memory_limit_bytes: int
    largest_batch: int | None = None
    """The largest batch per process that fits into memory, as far as the profile tells."""
    warnings: tuple[str, ...] = ()
