"""Scaling of a training: speedups, efficiency and losses, from measurements, tables or logs alike."""

import math
from collections.abc import Sequence
from statistics import median_high, median_low
from typing import ClassVar, Literal, NamedTuple

import msgspec

from scalescope.records.job import NO_ENGINE
from scalescope.records.store import Record
from scalescope.stats import of_logarithms, of_ratio

SPEEDUPS = ("steady", "train", "end_to_end")  # The three speedups, in the order in which they shrink

QUESTIONS = {
    "steady": "How much faster does a long training run?",
    "train": "How much sooner was this training done, from its first step to its last?",
    "end_to_end": "How much sooner was this job done, from its launch to its end?",
}  # What each speedup answers

SPEEDUP_NAMES = {"steady": "steady", "train": "train", "end_to_end": "end to end"}  # As people read them

REPEAT = "repeat with --launches 5"  # What to do about single launches of a measurement

# What stands between ideal and real speedup, in the order in which it is taken away.
LOSSES = ("efficiency", "warmup", "uneven", "fixed", "init", "launch")


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A number and its interval."""

    value: float
    low: float
    high: float
    # t: a t-interval of level stats.MEASURED; range: smallest to largest of too few repetitions for an interval.
    interval: Literal["t", "range"] = "range"
    count: int = 1  # Repetitions behind it
    over: Literal["launches", "blocks"] = "launches"  # What was repeated

    @property
    def once(self) -> bool:
        """True if it comes of one launch (each): launches differ, so a difference may be chance."""
        return self.count == 1 and self.over == "launches"


def estimate(values: Sequence[float | None], *, target: float | None = None) -> Estimate | None:
    """The geometric mean with a t-interval from 5 repetitions on, below that the median and the range.

    The median of an even number is the geometric mean of the two in the middle: of two launches each, the ratio is then
    that of their rates.
    """
    known = [value for value in values if value is not None and value > 0]
    if not known:
        return None
    found = of_logarithms(known, target=target)
    value = _median(known) if found.is_range else found.middle
    return Estimate(value=value, low=found.low, high=found.high, interval=found.kind, count=len(known))


def estimate_apart(ones: Sequence[float | None], others: Sequence[float | None]) -> Estimate | None:
    """The ratio of two groups that were not launched in the same rounds, as of separate jobs."""
    known, rest = ([value for value in group if value is not None and value > 0] for group in (ones, others))
    if not known or not rest:
        return None
    found = of_ratio(known, rest)
    value = _median(known) / _median(rest) if found.is_range else found.middle
    return Estimate(value=value, low=found.low, high=found.high, interval=found.kind, count=min(len(known), len(rest)))


def _median(values: Sequence[float]) -> float:
    low, high = median_low(values), median_high(values)
    return low if low == high else math.sqrt(low * high)


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """After how much work a size overtakes the baseline, in the curve's unit; None: never, however much."""

    value: float | None
    low: float | None
    high: float | None
    interval: Literal["t", "range"] = "range"
    count: int = 1


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the waterfall from ideal to real speedup."""

    name: str  # One of LOSSES
    lost: float  # Speedup that is lost here; below 0 when the baseline loses more by it
    left: float  # Speedup after it


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One number of processes on a curve; what a source cannot tell is None or absent."""

    engine: str
    np: int
    nodes: int | None = None  # Hosts, where ranks ran on named ones
    batch: float | None = None  # Per process
    threads_per_rank: int | None = None
    launches: int = 1
    step_s: Estimate | None = None
    throughput: Estimate | None = None  # Samples per second over all processes in steady state
    rates: dict[int, float] = {}  # The same by round of launches: points are compared within a round
    efficiency: Estimate | None = None  # Steady speedup over its ideal
    # The same by mean and by median steps; worth a look when they differ, as when steps come in two kinds. What
    # efficiency itself is by: of launches elapsed time, that is mean steps; of logs the median epoch.
    mean_efficiency: float | None = None
    median_efficiency: float | None = None
    speedup: dict[str, Estimate] = {}  # By the names in SPEEDUPS
    train_s: float | None = None
    wall_s: float | None = None
    phases: dict[str, float] = {}  # Seconds, the mean over launches; of a table init and train, as far as it tells them
    steps: int | None = None
    warmup_steps: int | None = None
    fixed_s: float | None = None  # Train time that is spent once, whatever the length of the run
    one_time_s: Estimate | None = None  # All that is spent once as far as the source tells: with launch, init and end
    waterfall: tuple[Loss, ...] = ()
    # By speedup: how many times longer the run must be to reach 90 % of the steady one; 1 when it does already, absent
    # when uneven steps keep it from ever doing so.
    longer_for_90: dict[str, Estimate] = {}
    break_even: dict[str, BreakEven] = {}  # By speedup
    notes: tuple[str, ...] = ()

    @property
    def global_batch(self) -> float | None:
        """Samples per step over all processes."""
        return None if self.batch is None else self.batch * self.np


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """T = fixed + work / rate, by least squares over the rows of a table; standard errors where there are any."""

    fixed_s: float
    fixed_s_error: float | None
    work: float  # In the curve's unit, per run of the baseline's length
    work_error: float | None
    fixed_share: dict[str, float]  # By number of processes: which part of the train time is fixed cost
    # By number of processes, then by how many times longer: the train speedup of such a run.
    longer: dict[str, dict[str, float]] = {}
    lack: str = ""  # What shows that one fixed cost does not describe these times; empty: nothing does


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Points that differ in the number of processes only."""

    engine: str
    scaling: str  # strong, weak, or empty when the source does not say
    batch: int | None = None  # As the user asked: global for strong, per process for weak scaling
    baseline_np: int | None  # What speedups are relative to; None: there is nothing to compare with
    baseline_engine: str = ""
    work_unit: str = "samples"  # What work is counted in: samples, steps or epochs
    points: tuple[ScalingPoint, ...]  # In order of processes; the baseline first
    fit: Fit | None = None  # Of tables; launches tell the one-time cost of every point by itself

    @property
    def baseline(self) -> ScalingPoint | None:
        """The point that the others are compared with."""
        same = (point for point in self.points if point.np == self.baseline_np and point.engine == self.baseline_engine)
        return next(same, None)


class Scaling(Record, frozen=True, kw_only=True, tag="scaling"):
    """All curves of one study and what they say."""

    current_version: ClassVar[int] = 2

    what: str  # The model, the command or the file
    source: str  # measurement, quick, table or logs
    curves: tuple[Curve, ...]
    doubt: str = ""  # What the answer begins with where the numbers are not what they seem
    trust: tuple[str, ...] = ()  # Which speedup to trust, in sentences, from these numbers
    findings: tuple[str, ...] = ()  # What else stands out, in sentences
    warnings: tuple[str, ...] = ()


class BestBatch(NamedTuple):
    """The batch with which the smallest number of processes is fastest."""

    np: int
    engine: str  # Whose rates decide: none, or the fastest one
    batch: float  # Per process
    rivals: tuple[float, ...]  # Batches that are not clearly slower, round by round
    rates: dict[str, dict[float, Estimate]]  # By engine and batch, of engines that tried several

    @property
    def rate(self) -> Estimate:
        """Samples per second with it."""
        return self.rates[self.engine][self.batch]


def best_batch(curves: Sequence[Curve]) -> BestBatch | None:
    """The fastest batch of the smallest baseline; None below two batch sizes. Findings and the figure read it here."""
    bases = [curve.baseline_np for curve in curves if curve.baseline_np is not None]
    smallest = min(bases, default=0)
    rates: dict[str, dict[float, Estimate]] = {}
    points: dict[tuple[str, float], ScalingPoint] = {}
    for point in (point for curve in curves for point in curve.points):
        if point.np == smallest and point.batch is not None and point.throughput:
            rates.setdefault(point.engine, {}).setdefault(point.batch, point.throughput)
            points.setdefault((point.engine, point.batch), point)
    rates = {engine: sizes for engine, sizes in rates.items() if len(sizes) > 1}
    if not rates:
        return None
    fastest = max(rates, key=lambda engine: max(rate.value for rate in rates[engine].values()))
    engine = NO_ENGINE if NO_ENGINE in rates else fastest
    sizes = rates[engine]
    best = max(sizes, key=lambda size: sizes[size].value)
    rivals = tuple(
        size for size in sorted(sizes) if size != best and not _is_slower(points[engine, size], points[engine, best])
    )
    return BestBatch(smallest, engine, best, rivals, rates)


def compared(one: ScalingPoint, other: ScalingPoint) -> Estimate | None:
    """Ratio of two points, round by round; None where no launches of theirs were made together."""
    return estimate([rate / other.rates[number] for number, rate in one.rates.items() if number in other.rates])


def _is_slower(one: ScalingPoint, best: ScalingPoint) -> bool:
    """True if it is slower than the best: by their ratios, or where there are none by their own intervals."""
    ratio = compared(best, one)
    if ratio:
        return ratio.low > 1
    return bool(one.throughput and best.throughput and one.throughput.high < best.throughput.low)


class EngineRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Two engines on the same configuration."""

    scaling: str
    np: int
    batch: float | None  # Per process
    engine: str  # The faster one
    than: str
    ratio: Estimate  # How many times as fast


def engine_ratios(curves: Sequence[Curve]) -> tuple[EngineRatio, ...]:
    """The fastest engine against each other one, wherever several made the same steps in the same rounds."""
    groups: dict[tuple[str, int, float | None], dict[str, ScalingPoint]] = {}
    for curve in curves:
        for point in curve.points:
            if point.throughput and point.engine == curve.engine and point.engine not in ("", NO_ENGINE):
                groups.setdefault((curve.scaling, point.np, point.batch), {})[point.engine] = point
    found = []
    for (scaling, np, batch), points in groups.items():
        best = max(points.values(), key=lambda point: point.throughput.value if point.throughput else 0.0)
        for engine, point in points.items():
            ratio = compared(best, point) if point is not best else None
            if ratio:
                found.append(
                    EngineRatio(scaling=scaling, np=np, batch=batch, engine=best.engine, than=engine, ratio=ratio)
                )
    return tuple(found)
