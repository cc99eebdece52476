"""The map: every number of processes with every batch size, its interval, and which of them to use."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from scalescope.engines import find_engine
from scalescope.errors import UsageError
from scalescope.records.cluster import Cluster
from scalescope.records.job import Knobs
from scalescope.records.prediction import Advice, Calibration, Cell, Prediction, device_hours
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EFFICIENCY_GOAL, ScalingKind
from scalescope.records.run import QUIET
from scalescope.simulator.compute import work
from scalescope.simulator.gpu import own_cost
from scalescope.simulator.sharding import measured_cost
from scalescope.simulator.step import steps
from scalescope.stats import PREDICTED, normal_width
from scalescope.units import format_share

_NEARLY = 0.9  # Part of the efficiency goal from which on the interval of a cell may make up for the rest
_REGRET = 0.05  # Throughput that may be given up for fewer processes
_INTERVAL = normal_width(PREDICTED)
_SHAKY = 0.25  # Half-width of a profiled step, relative, above which a map is not to be trusted
_CHUNK = 16384
DESCRIBED_LINKS = "the cluster's links are described, not measured: run scalescope probe there for narrower intervals"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a prediction: of what, and for which cells."""

    profile: ModelProfile
    cluster: Cluster
    knobs: Knobs
    np: tuple[int, ...]
    batches: tuple[int, ...]  # Per process for weak scaling, of all processes for strong scaling
    scalings: tuple[ScalingKind, ...] = ("weak",)
    calibration: Calibration | None = None
    efficiency_goal: float = EFFICIENCY_GOAL
    accumulate: int = 1  # Passes that the batch of each process is split into


def predict(question: Question) -> Prediction:
    """The map of this question."""
    most = max(question.np)
    if most > question.cluster.slots:
        raise UsageError(
            f"--np {most} is beyond the {question.cluster.slots} slots of {question.cluster.name or 'the cluster'} "
            f"({question.cluster.nodes} x {question.cluster.slots_per_node}): lower --np, or describe a larger cluster"
        )
    profile, knobs = question.profile, question.knobs
    if memory := question.cluster.memory_bytes:
        profile = msgspec.structs.replace(profile, memory_limit_bytes=memory)
        question = msgspec.structs.replace(question, profile=profile)
    if profile.kind != question.cluster.device:
        name, wanted = question.cluster.name or "the cluster", question.cluster.device.upper()
        raise UsageError(
            f"the profile is of a {profile.kind.upper()} and {name} has {wanted}s: "
            f"take the profile on a {wanted}, or give its step times"
        )
    cells = tuple(cell for scaling in question.scalings for cell in _cells(question, scaling))
    if not cells:
        raise UsageError(f"a global batch of {max(question.batches)} has no sample for each of {most} processes")
    doubts = tuple(_doubts(question))
    shared_by = int(_sharing(question.cluster, np.array([most]))[0])
    largest = largest_batch(profile, shared_by)
    return Prediction(
        what=profile.workload.model,
        engine=knobs.engine,
        knobs=knobs,
        cluster=question.cluster.name,
        slots_per_node=question.cluster.slots_per_node,
        nodes=question.cluster.nodes,
        threads_per_rank=profile.threads_per_rank,
        cells=cells,
        recommended=None if doubts else recommend(cells, question.efficiency_goal, question.cluster.slots_per_node),
        most_efficient_np=most_efficient(cells, question.efficiency_goal),
        efficiency_goal=question.efficiency_goal,
        residual=_spread(question),
        calibration=question.calibration,
        own_s=_own_s(question, most),
        profile_batches=tuple(point.batch for point in profile.points),
        interpolation_error=profile.interpolation_error,
        memory_limit_bytes=profile.memory_limit_bytes,
        largest_batch=None if largest is None else largest * question.accumulate,
        accumulate=question.accumulate,
        memory_shared_by=shared_by,
        warnings=tuple(_warnings(question, cells)),
        doubts=doubts,
    )


def together(predictions: Sequence[Prediction]) -> Prediction:
    """One map of several engines, whose cells name theirs; of one engine its own map."""
    first = predictions[0]
    if len(predictions) == 1:
        return first
    cells = tuple(msgspec.structs.replace(cell, engine=each.engine) for each in predictions for cell in each.cells)
    doubts = tuple(dict.fromkeys(doubt for each in predictions for doubt in each.doubts))
    engine = ",".join(each.engine for each in predictions)
    return msgspec.structs.replace(
        first,
        engine=engine,
        knobs=Knobs(engine=engine, values={}),
        cells=cells,
        recommended=None if doubts else recommend(cells, first.efficiency_goal, first.slots_per_node),
        most_efficient_np=most_efficient(cells, first.efficiency_goal),
        residual=max(each.residual for each in predictions),
        calibration=None,
        own_s=0.0,
        warnings=tuple(dict.fromkeys(warning for each in predictions for warning in each.warnings)),
        doubts=doubts,
    )


def _own_s(question: Question, most: int) -> float:
    """Seconds that the engine itself costs a process in each step of the smallest batch, among `most`."""
    profile = question.profile
    exchange = find_engine(question.knobs.engine).exchange(profile, question.knobs.values)
    if not exchange.shards:
        return own_cost(question.cluster, exchange, profile.ddp_s).step_s
    if not exchange.sharded:
        return 0.0
    smallest = profile.points[0].batch
    own_s, _ = measured_cost(exchange.sharded, work(profile, [smallest]), np.array([most]), np.array([smallest]))
    return float(own_s[0])


def _spread(question: Question) -> float:
    return question.calibration.spread if question.calibration else find_engine(question.knobs.engine).model_error


def _cells(question: Question, scaling: ScalingKind) -> list[Cell]:
    wanted = [
        (ranks, -(-batch // ranks) if scaling == "strong" else batch, batch if scaling == "strong" else batch * ranks)
        for batch in question.batches
        for ranks in question.np
        if scaling == "weak" or batch >= ranks
    ]
    wanted = [cell for cell in wanted if cell[1] >= question.accumulate]
    cells: list[Cell] = []
    for start in range(0, len(wanted), _CHUNK):
        cells += _chunk(question, scaling, wanted[start : start + _CHUNK])
    return cells


def _chunk(question: Question, scaling: ScalingKind, wanted: Sequence[tuple[int, int, int]]) -> list[Cell]:
    """Cells of (processes, batch per process, global batch)."""
    if not wanted:
        return []
    profile, cluster = question.profile, question.cluster
    table = np.array(wanted)
    ranks, batches, totals = table[:, 0], table[:, 1], table[:, 2]
    exchange = find_engine(question.knobs.engine).exchange(profile, question.knobs.values)
    passes = question.accumulate
    made = steps(profile, cluster, exchange, ranks, batches, passes)
    factor = np.where(ranks > 1, question.calibration.factor if question.calibration else 1.0, 1.0)
    seconds = made.step_s * factor
    alone = work(profile, totals if scaling == "strong" else batches, passes)
    batches_of_pass, totals_of_pass = -(-batches // passes), -(-totals // passes)
    speedup = alone.step_s / seconds * (1 if scaling == "strong" else ranks)
    model = np.where(ranks > 1, _spread(question), 0.0)
    # What an engine's model misses was found by real launches and holds their spread; one process has nothing else.
    half = np.exp(_INTERVAL * np.hypot(made.error, np.maximum(model, profile.launch_spread)))
    # With the same batch on both sides of a speedup the profile's error cancels; with two batches both errors count.
    ratio_error = np.hypot(made.error, alone.error) if scaling == "strong" else made.ratio_error
    ratio_half = np.exp(_INTERVAL * np.where(ranks > 1, np.hypot(ratio_error, model), 0.0))
    rates = totals / seconds
    fits = _fits(made.memory_bytes * _sharing(cluster, ranks), profile, batches_of_pass)
    measured = _is_measured(profile, batches_of_pass)
    baseline_fits = np.ones_like(fits)
    if scaling == "strong":  # whose speedup is over one process with the whole batch
        measured &= _is_measured(profile, totals_of_pass)
        baseline_fits = _fits(alone.memory_bytes, profile, totals_of_pass)
    columns = [
        ranks,
        -(-ranks // cluster.slots_per_node),
        batches,
        totals,
        seconds,
        seconds / half,
        seconds * half,
        speedup,
        speedup / ratio_half,
        speedup * ratio_half,
        speedup / ranks,
        rates,
        made.exposed_s * factor,
        made.outcome.hidden_s * factor,
        np.round(made.memory_bytes).astype(int),
        device_hours(ranks, rates),
        fits,
        measured,
        baseline_fits,
    ]
    names = [name for name in Cell.__struct_fields__ if name not in ("scaling", "verified", "engine")]
    return [
        Cell(scaling=scaling, **dict(zip(names, row, strict=True)))
        for row in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _is_measured(profile: ModelProfile, batches: np.ndarray) -> np.ndarray:
    return (batches >= profile.points[0].batch) & (batches <= profile.points[-1].batch)


def _sharing(cluster: Cluster, ranks: np.ndarray) -> np.ndarray:
    """Processes that share the memory of a node; a GPU has its own."""
    return np.minimum(ranks, cluster.slots_per_node) if cluster.device == "cpu" else np.ones_like(ranks)


def _fits(memory_bytes: np.ndarray, profile: ModelProfile, batches: np.ndarray) -> np.ndarray:
    """True where a batch fits into memory: it did when it was tried, or the line through those that did says so."""
    fits = (memory_bytes <= profile.memory_limit_bytes) | (profile.memory_limit_bytes == 0)
    return fits & (batches < profile.too_large) if profile.too_large is not None else fits


def largest_batch(profile: ModelProfile, shared_by: int = 1) -> int | None:
    """The largest batch of each process that fits into memory; None when memory does not grow with the batch."""
    first, last = profile.points[0], profile.points[-1]
    if not profile.memory_limit_bytes:
        return None
    per_sample = (last.memory_bytes - first.memory_bytes) / max(last.batch - first.batch, 1)
    if per_sample <= 0:
        return None if profile.too_large is None else profile.too_large - 1
    largest = max(int(last.batch + (profile.memory_limit_bytes / shared_by - last.memory_bytes) / per_sample), 0)
    return min(largest, profile.too_large - 1) if profile.too_large is not None else largest


def recommend(cells: Sequence[Cell], goal: float, slots_per_node: int) -> Advice | None:
    """Pick the cell with the fewest devices among efficient ones that lose little throughput; at a tie one that ran.

    Beyond one node those with whole nodes come first: the rest of a node is paid for as well. Where nothing reaches the
    efficiency goal, the most throughput that keeps a speedup above 1, or one process.
    """
    usable = [cell for cell in cells if cell.fits]
    if not usable:
        return None
    fastest = max(usable, key=lambda cell: cell.throughput)
    efficient = _efficient(usable, goal)
    worth = [cell for cell in usable if cell.np == 1 or cell.speedup > 1]
    pool = efficient or worth or usable
    best = max(cell.throughput for cell in pool)
    close = [cell for cell in pool if cell.throughput >= (1 - _REGRET) * best]
    whole = [cell for cell in close if cell.np < slots_per_node or cell.np % slots_per_node == 0]
    chosen = min(whole or close, key=lambda cell: (cell.np, not cell.verified, cell.global_batch, -cell.throughput))
    fewest = "processes" if chosen.nodes == 1 or not whole else "nodes"
    why = f"the fewest {fewest} within {format_share(_REGRET)} of the fastest"
    if not efficient:
        why += "; none reaches the efficiency goal"
    elif chosen.efficiency < goal:
        why += f" whose interval holds an efficiency of {format_share(goal)}"
    else:
        why += f" whose efficiency is at least {format_share(goal)}"
    return Advice(
        np=chosen.np,
        batch=chosen.batch,
        global_batch=chosen.global_batch,
        scaling=chosen.scaling,
        speedup=chosen.speedup,
        efficiency=chosen.efficiency,
        throughput=chosen.throughput,
        regret=1 - chosen.throughput / fastest.throughput,
        why=why,
        engine=chosen.engine,
    )


def _efficient(cells: Sequence[Cell], goal: float) -> list[Cell]:
    """Cells that reach the efficiency goal; where only one process is, also those whose interval does not tell.

    Otherwise an error of one percent would turn "use 16 processes" into "use one".
    """
    surely = [cell for cell in cells if cell.efficiency >= goal]
    if any(cell.np > 1 for cell in surely):
        return surely
    nearly = [cell for cell in cells if cell.np > 1 and cell.efficiency >= _NEARLY * goal]
    return [*surely, *(cell for cell in nearly if cell.speedup_high / cell.np >= goal)]


def most_efficient(cells: Sequence[Cell], goal: float) -> int | None:
    """The largest number of processes with a cell that keeps the goal."""
    return max((cell.np for cell in _efficient([cell for cell in cells if cell.fits], goal)), default=None)


def _warnings(question: Question, cells: Sequence[Cell]) -> list[str]:
    said = []
    outlying = [str(point.batch) for point in question.profile.points if point.outlying]
    if outlying:
        said.append(f"batch {', '.join(outlying)} lies off its neighbours even after it was measured again")
    if max(question.np) > 1:
        if not question.cluster.costs:
            said.append(DESCRIBED_LINKS)
        engine = question.knobs.engine
        exchange = find_engine(engine).exchange(question.profile, question.knobs.values)
        if exchange.shards and not exchange.sharded:
            said.append(f"memory of {engine} is modelled, and what {engine} itself costs a process is left out")
    if unfit := [cell.global_batch for cell in cells if not cell.baseline_fits and cell.fits]:
        said.append(
            f"a global batch of {min(unfit):,} or more does not fit one process: strong speedups there are over a step "
            "that the profile's line tells and nobody can run"
        )
    return said


def profile_doubts(profile: ModelProfile) -> list[str]:
    """Warning if one process stepped too unevenly for anything to be built on it; empty: it did not."""
    error = math.expm1(_INTERVAL * max(point.error for point in profile.points))
    return [f"the profile knows steps of one process within {format_share(error)} only"] if error > _SHAKY else []


def _doubts(question: Question) -> list[str]:
    """Parts that other programs disturbed all the time, although they were repeated, and those that vary too much."""
    profile, said = question.profile, profile_doubts(question.profile)
    busy = max(point.foreign_cores for point in profile.points)
    if max(question.np) > 1:
        busy = max([busy, *(each.foreign_cores for each in profile.crowds)])
    if busy > QUIET:
        said.append(f"other programs kept {busy:.1f} cores busy during the profile")
    if question.cluster.disturbed and max(question.np) > 1:
        said.append(question.cluster.disturbed)
    return said
