"""What was measured: one Run per launch, and the Measurement that holds them."""

from typing import ClassVar

import msgspec

from scalescope.records.store import Record

PHASES = ("launch", "import", "init", "build", "warmup", "steady", "evaluation", "pause", "teardown")
"""Every second of a launch belongs to one of these, in the order in which they usually come."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration to measure."""

    engine: str
    scaling: str
    """strong: the global batch is fixed; weak: the batch of a process is."""
    np: int
    batch: int | None
    """Per process; None when the script alone knows it."""
    threads_per_rank: int

    @property
    def global_batch(self) -> int | None:
        """Samples per step over all processes."""
        return None if self.batch is None else self.batch * self.np

    @property
    def label(self) -> str:
        """A short name that is fit for a file."""
        batch = "" if self.batch is None else f"-b{self.batch}"
        return f"{self.engine}-np{self.np}{batch}"


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank did in a launch."""

    rank: int
    host: str
    pid: int
    phases: dict[str, float]
    """Seconds per phase; they add up to the launch's wall time."""
    steps: int
    samples_per_step: float | None
    step_s: float | None
    """Median steady step of this rank alone."""


class Run(Record, frozen=True, kw_only=True, tag="run"):
    """One launch, measured."""

    current_version: ClassVar[int] = 1

    point: Point
    folder: str
    """Relative to the measurement's folder."""
    wall_s: float
    phases: dict[str, float]
    """Seconds per phase, the mean over ranks; they add up to wall_s."""
    steps: int
    warmup_steps: int
    step_s: float
    """Median steady step of the slowest rank."""
    throughput: float | None
    """Samples per second over all ranks in steady state."""
    samples_per_step: float | None
    """Over all ranks."""
    engine_seen: str
    backend: str
    source: str
    """Where steps came from: the optimizer, or a pattern on the output."""
    ranks: tuple[RankSummary, ...]
    warnings: tuple[str, ...] = ()


class Failure(Record, frozen=True, kw_only=True, tag="failure"):
    """A launch that did not end well."""

    point: Point
    folder: str
    problem: str
    details: str


class Measurement(Record, frozen=True, kw_only=True, tag="measurement"):
    """A sweep over points: what was asked, where it ran and what came out."""

    current_version: ClassVar[int] = 1

    what: str
    """The model or the command."""
    created: str
    scalescope: str
    torch: str
    host: str
    cores: int
    launcher: dict[str, str]
    """Per engine, the launcher that was used."""
    binding: str
    runs: tuple[Run, ...]
    failures: tuple[Failure, ...] = ()
