"""Record of Horovod's autotune: its samples, its choice, and whether that exceeds the noise."""

from typing import ClassVar, Literal

import msgspec

from scalescope.records.explanation import Loss
from scalescope.records.scaling import Estimate
from scalescope.records.store import Record

# The columns that are on or off.
SWITCHES = ("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce", "cache_enabled")
DEFAULT_SWITCHES = {name: name == "cache_enabled" for name in SWITCHES}

# clear: the winner beats every other setting beyond the noise; among the best: it beats the middle of them, and not the
# next one; noise: it does not beat what luck alone would; unknown: the log does not tell how large noise is.
Verdict = Literal["clear", "among the best", "noise", "unknown"]


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of what autotune varies."""

    fusion_threshold_mb: float  # MiB
    cycle_time_ms: float
    switches: dict[str, bool]  # Of SWITCHES, those that the log has


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the log that is a measurement."""

    line: int  # In the file, from 1
    setting: int  # Index of its setting
    knobs: Knobs
    score: float  # Bytes per microsecond, which is MB/s; higher is better


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One combination and all its samples; settings that are practically equal are one."""

    knobs: Knobs
    samples: int
    score: float  # Geometric mean of its samples
    low: float
    high: float  # The smallest and the largest sample
    smoothed: float | None = None  # What its own samples and its neighbours' make likely; None where noise is unknown
    error: float | None = None  # Relative standard error of that
    out_of_range: bool = False  # Of older records


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Noise among samples of one setting."""

    relative: float  # Standard deviation of one sample: 0.04 is 4 %
    # repeats: from settings that were sampled more than once; neighbours: what a smooth surface through all samples
    # leaves over.
    source: Literal["repeats", "neighbours"]
    freedom: float  # Degrees of freedom behind it


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A switch of which both positions were tried."""

    name: str
    gain: Estimate | None = None  # Of older records, as the next one
    pairs: int = 0


class Autotune(Record, frozen=True, kw_only=True, tag="autotune"):
    """A log of Horovod's autotune, read and judged."""

    current_version: ClassVar[int] = 1

    file: str
    columns: tuple[str, ...]
    samples: tuple[Sample, ...]
    settings: tuple[Setting, ...]  # In the order in which they were first tried
    finished: bool  # Whether its last row selects one of the samples; otherwise the training ended first
    winner: int  # Index of the best single sample, which a finished log selects
    runner_up: int | None  # Index of the best other setting; None when there is one setting only
    recommended: int  # Index of the setting to use
    walked: tuple[Switch, ...]
    held: dict[str, float]  # Columns that have one value in every row; a switch is 0 or 1
    noise: Noise | None
    lead_next: float | None  # Mean of the winning setting over the next one's, minus 1
    lead_median: float | None  # The same over the median setting's
    needed: float | None  # The lead over the next one from which on noise does not explain it
    # The lead over the median that the best of equal settings has by noise alone, at most (one-sided, stats.MEASURED).
    luck: float | None
    alike: int | None = None  # Of older records
    verdict: Verdict
    default_tried: bool  # Whether the default (128 MiB, 1 ms) is among the settings
    cache_not_applied: bool  # It chose cache_enabled=0, which Horovod does not apply to the rest of the training
    environment: dict[str, str]  # Variables that set the recommended setting in later runs
    lost: Loss = Loss()  # Rows that could not be read

    @property
    def winning_setting(self) -> int:
        """Index of the setting of the winner."""
        return self.samples[self.winner].setting
