"""The map of a script that ran as rank 0 of some numbers of processes: a cell for each, and for those between."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from scalescope.engines import KNOWN, USUAL
from scalescope.errors import UsageError
from scalescope.options import write_counts
from scalescope.records.cluster import Cluster
from scalescope.records.job import Knobs
from scalescope.records.prediction import Cell, Prediction, device_hours
from scalescope.records.rank_zero import Message, RankZero
from scalescope.records.request import EFFICIENCY_GOAL, ScalingKind
from scalescope.records.run import QUIET
from scalescope.records.timeline import Timeline
from scalescope.simulator.compute import COPIES_PER_DOUBLING, overlap_factors
from scalescope.simulator.events import OverlapSlowdown
from scalescope.simulator.gpu import unequal
from scalescope.simulator.grid import DESCRIBED_LINKS, most_efficient, recommend
from scalescope.simulator.jitter import grouped, slowest
from scalescope.simulator.recorded import RecordedOutcome, blocks_compute, message_costs, run
from scalescope.stats import PREDICTED, normal_width
from scalescope.text import listed, plural
from scalescope.units import format_bytes

_HALF = normal_width(PREDICTED)
_LAUNCHES = 0.03  # Relative standard deviation of one process from launch to launch, of which only one was seen
_FEWEST_RESIDUALS = 8  # Single steps from which on they tell how long the slowest rank takes
_AT_ONCE = 2.0  # Times the typical step; longer ones are not by chance: all ranks begin an epoch or log at once
_SAME = 0.02  # Batches of all processes within this are one that is shared: strong scaling
ONE_RANK = "not visible from one rank: late ranks, work that depends on what each rank is given"


class RecordedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a prediction from steps that were recorded as rank 0 of N."""

    what: str  # The command
    records: tuple[RankZero, ...]  # One for a number of processes
    cluster: Cluster
    np: tuple[int, ...]
    threads_per_rank: int = 1
    efficiency_goal: float = EFFICIENCY_GOAL


@dataclass(frozen=True)
class RecordedStep:
    """The step of a number of processes on a cluster."""

    record: RankZero  # Of this number of processes, or made of its neighbours
    work_s: float  # Compute of the slowest rank
    outcome: RecordedOutcome
    error: float  # Relative standard error


def predict_recorded(question: RecordedQuestion) -> Prediction:
    """The map of this question: speedups are over the script as one process.

    Raises:
        UsageError: The cluster is too small or of other devices, or no size of the question can be told.
    """
    cluster, records = question.cluster, {record.np: record for record in question.records}
    largest = records[max(records)]
    if max(question.np) > cluster.slots:
        raise UsageError(
            f"--np {max(question.np)} is beyond the {cluster.slots} slots of {cluster.name or 'the cluster'}: "
            "lower --np, or describe a larger cluster"
        )
    if largest.device != cluster.device:
        raise UsageError(
            f"the script ran on a {largest.device.upper()} and {cluster.name or 'the cluster'} has "
            f"{cluster.device.upper()}s: run it on one of those"
        )
    known = {ranks: record_at(records, ranks) for ranks in sorted({1, *question.np, *records})}
    steps = {ranks: step_of(each, cluster) for ranks, each in known.items() if each is not None and each.fits}
    sizes = _Sizes(
        question,
        known,
        steps,
        scaling=kind_of_scaling({ranks: step.record.batch for ranks, step in steps.items()}),
        limit=cluster.memory_bytes or largest.memory_limit_bytes,
    )
    cells = tuple(sizes.cell(record) for ranks in question.np if (record := known[ranks]) is not None)
    if not cells:
        raise UsageError("no size of --np can be told from the runs that succeeded: ask for one of theirs")
    engine = largest.engine or next((each.engine for each in records.values() if each.engine), "")
    doubts = tuple(sizes.doubts())
    return Prediction(
        what=question.what,
        engine=engine,
        knobs=Knobs(engine=engine, values={}),
        cluster=cluster.name,
        slots_per_node=cluster.slots_per_node,
        nodes=cluster.nodes,
        threads_per_rank=question.threads_per_rank,
        cells=cells,
        recommended=None if doubts else recommend(cells, question.efficiency_goal, cluster.slots_per_node),
        most_efficient_np=most_efficient(cells, question.efficiency_goal),
        efficiency_goal=question.efficiency_goal,
        residual=_model_error(engine),
        profile_batches=tuple(sorted({record.batch for record in question.records if record.batch})),
        interpolation_error=0.0,
        memory_limit_bytes=sizes.limit,
        memory_shared_by=sizes.sharing(max(question.np)),
        ran_as=tuple(sorted(records)),
        warnings=tuple(sizes.warnings()),
        doubts=doubts,
    )


def recorded_timeline(question: RecordedQuestion, ranks: int) -> Timeline | None:
    """The predicted step of rank 0 of a number of processes; None where it is not known."""
    record = record_at({each.np: each for each in question.records}, ranks)
    if record is None or not record.fits:
        return None
    step = step_of(record, question.cluster)
    return step.outcome.timeline(record, step.work_s)


def step_of(record: RankZero, cluster: Cluster) -> RecordedStep:
    """The step of the slowest of `record.np` processes on a cluster."""
    ranks = np.array([record.np])
    nodes = -(-ranks // cluster.slots_per_node)
    backend = backend_of(record)
    costs_s, errors = message_costs(record.messages, cluster, backend)
    busy = min(record.cores_used / record.threads, 1.0) if record.cores_used and cluster.device == "cpu" else 1.0
    factors = overlap_factors(cluster, backend, ranks, nodes, busy)
    slowdown = OverlapSlowdown(float(factors.compute[0]), float(factors.sending[0]))
    others, others_error = unequal(cluster, ranks)
    uneven, uneven_error = _uneven(record)
    work_s = record.compute_s * uneven * float(others[0])
    made = run(record, costs_s, slowdown, work_s=work_s)
    slow_links = run(record, costs_s * np.exp(_HALF * errors), slowdown, work_s=work_s)
    # Relative standard errors of a step, by what they come from.
    links_error = math.log(slow_links.step_s / made.step_s) / _HALF if made.step_s > 0 else 0.0
    overlap_error = made.hidden_s * float(factors.compute_error[0]) / slowdown.compute / max(made.step_s, 1e-12)
    crowd_error = 0.0
    if cluster.device == "cpu":  # more processes on a node than stepped next to each other here
        together = min(record.np, cluster.slots_per_node)
        crowd_error = COPIES_PER_DOUBLING * max(math.log2(together / record.copies), 0.0)
    work_error = math.hypot(record.error, uneven_error, float(others_error[0]), crowd_error)
    exposed = made.exposed_s / max(made.step_s, 1e-12)
    return RecordedStep(record, work_s, made, math.hypot((1 - exposed) * work_error, links_error, overlap_error))


def backend_of(record: RankZero) -> str:
    """The backend that moves the bytes; `cpu:gloo,cuda:nccl` names one for each kind of device."""
    named = dict(part.split(":", 1) for part in record.backend.split(",") if ":" in part)
    usual = "gloo" if record.device == "cpu" else "nccl"
    if named:
        return named.get("cpu" if record.device == "cpu" else "cuda", usual)
    return record.backend if record.backend in ("gloo", "nccl") else usual


def record_at(records: Mapping[int, RankZero], ranks: int) -> RankZero | None:
    """The script as rank 0 of this many: as it ran, or what lies between its neighbours.

    Step and memory lie on the line through both over 1 / ranks, as what is divided among ranks does; the plan is that
    of the larger one, with its groups made as large as here. None: beyond those that ran, next to one that does not
    fit, or groups of these ranks cannot be made.
    """
    if ranks in records:
        return records[ranks]
    below = max((each for each in records if each < ranks), default=None)
    above = min((each for each in records if each > ranks), default=None)
    if below is None or above is None or not (records[below].fits and records[above].fits):
        return None
    low, high = records[below], records[above]
    share = (1 / below - 1 / ranks) / (1 / below - 1 / above)

    def between(name: str) -> float:
        first, last = float(getattr(low, name)), float(getattr(high, name))
        return first + share * (last - first)

    messages = _messages_of(low, high, ranks)
    if messages is None:
        return None
    same_total = low.batch != high.batch and _is_shared(low, high)
    batch = -(-low.batch * low.np // ranks) if same_total else round(between("batch"))
    seconds = ("step_s", "fill_s", "forward_s", "backward_s", "optimizer_s", "error", "cores_used")
    return msgspec.structs.replace(
        high,
        np=ranks,
        batch=batch,
        copies=min(low.copies, high.copies),
        messages=messages,
        memory_bytes=round(between("memory_bytes")),
        **{name: between(name) for name in seconds},
    )


def _messages_of(low: RankZero, high: RankZero, ranks: int) -> tuple[Message, ...] | None:
    """The larger one's messages among this many ranks; None where they do not divide into its groups."""
    alike = [message.operation for message in low.messages] == [message.operation for message in high.messages]
    share = (ranks - low.np) / (high.np - low.np)
    found = []
    for number, message in enumerate(high.messages):
        size, inside = message.bytes, message.stride * message.ranks
        if alike:  # what every rank adds to, such as gathered metrics, grows with them
            size = round(low.messages[number].bytes + share * (size - low.messages[number].bytes))
        group = message.ranks
        if inside == high.np:
            if ranks % message.stride:
                return None
            group = ranks // message.stride
        elif message.stride and ranks % inside:
            return None
        found.append(msgspec.structs.replace(message, bytes=size, ranks=group))
    return tuple(found)


def _is_shared(low: RankZero, high: RankZero) -> bool:
    """True if the global batch of two sizes is the same, up to rounding."""
    total, other = low.batch * low.np, high.batch * high.np
    return abs(total - other) <= max(_SAME * max(total, other), high.np)


def kind_of_scaling(batches: Mapping[int, int]) -> ScalingKind:
    """Strong where a process gets fewer samples the more there are; weak otherwise."""
    told = [batch for _, batch in sorted(batches.items()) if batch]
    return "strong" if len(told) > 1 and told[-1] < told[0] else "weak"


def _uneven(record: RankZero) -> tuple[float, float]:
    """Time of the slowest rank relative to a typical one, and the relative error of that.

    Ranks wait for the slowest at the end of a step, or at every collective where each of them stops compute.
    """
    steps = np.array(record.steps_s)[:, None]
    if record.messages and blocks_compute(record) and len(record.issues_s) >= _FEWEST_RESIDUALS:
        moments = np.array(record.issues_s)
        pieces = np.diff(moments, axis=1)
        pieces[:, -1] += moments[:, 0]  # what lies between the last collective of a step and the first of the next
        steps = np.maximum(pieces, 0.0)
    if len(steps):
        steps = steps[steps.sum(axis=1) <= _AT_ONCE * np.median(steps.sum(axis=1))]
    if record.np == 1 or len(steps) < _FEWEST_RESIDUALS:
        return 1.0, 0.0
    typical = np.maximum(steps.mean(axis=0), 1e-9)
    found = [slowest(grouped(piece), np.array([float(record.np)])) for piece in (steps / typical).T]
    longer = np.array([float(factor[0]) for factor, _ in found])
    errors = np.array([float(error[0]) for _, error in found])
    slowest_s = typical * longer
    return float(slowest_s.sum() / typical.sum()), float(np.linalg.norm(slowest_s * errors) / slowest_s.sum())


@dataclass(frozen=True)
class _Sizes:
    """All numbers of processes of a question, and what follows from them together."""

    question: RecordedQuestion
    # By number of processes: as it ran, or between its neighbours; None: not known
    known: Mapping[int, RankZero | None]
    steps: Mapping[int, RecordedStep]  # Of those that fit
    scaling: ScalingKind
    limit: int  # Bytes of a device, or of a host of CPUs; 0: not known

    @property
    def base(self) -> int:
        """The number of processes that speedups are over: one, or the fewest that fit."""
        return min(self.steps, default=1)

    def sharing(self, ranks: int) -> int:
        """Processes that share memory: those of a node, unless each has a GPU."""
        cluster = self.question.cluster
        return min(ranks, cluster.slots_per_node) if cluster.device == "cpu" else 1

    def cell(self, record: RankZero) -> Cell:
        """One of the map; without times where memory ran out before a step ended."""
        cluster, ranks, batch = self.question.cluster, record.np, record.batch or 1
        place: dict[str, Any] = {
            "np": ranks,
            "nodes": -(-ranks // cluster.slots_per_node),
            "batch": batch,
            "global_batch": batch * ranks,
            "scaling": self.scaling,
            "memory_bytes": record.memory_bytes or record.memory_limit_bytes * (not record.fits),
        }
        step, base = self.steps.get(ranks), self.steps.get(self.base)
        if step is None or base is None:
            return Cell.without_times(**place)
        seconds = step.outcome.step_s
        rate, base_rate = batch * ranks / seconds, (base.record.batch or 1) / base.outcome.step_s
        speedup = rate / base_rate
        model = _model_error(record.engine) if ranks > 1 else _LAUNCHES
        half = math.exp(_HALF * math.hypot(step.error, model))
        ratio = math.exp(_HALF * math.hypot(step.error, base.error, model)) if ranks != self.base else 1.0
        return Cell(
            **place,
            step_s=seconds,
            low_s=seconds / half,
            high_s=seconds * half,
            speedup=speedup,
            speedup_low=speedup / ratio,
            speedup_high=speedup * ratio,
            efficiency=speedup / ranks,
            throughput=rate,
            exposed_s=step.outcome.exposed_s,
            hidden_s=step.outcome.hidden_s,
            device_hours=device_hours(ranks, rate),
            fits=not self.limit or record.memory_bytes * self.sharing(ranks) <= self.limit,
            baseline_fits=self.base == 1,
        )

    def doubts(self) -> list[str]:
        """Reasons for which the map is not to be trusted."""
        records, cluster = self.question.records, self.question.cluster
        busy = max(record.foreign_cores for record in records)
        said = [f"other programs kept {busy:.1f} cores busy while the script ran"] if busy > QUIET else []
        return [*said, cluster.disturbed] if cluster.disturbed and max(self.question.np) > 1 else said

    def warnings(self) -> list[str]:
        """Warnings about what the map does not know, and about what the script did, a line each."""
        question, records, cluster = self.question, self.question.records, self.question.cluster
        several = [record for record in records if record.np > 1]
        gpu = cluster.device == "gpu"
        said = [f"{ONE_RANK}{', memory of NCCL' * gpu}"] if several else []
        if not cluster.costs and several:
            said.append(DESCRIBED_LINKS)
        if unknown := [ranks for ranks in question.np if self.known[ranks] is None]:
            said.append(
                f"left out, next to a size that failed or does not fit, or not divided into the script's groups: "
                f"{write_counts(unknown)}"
            )
        if self.steps and self.base > 1:
            why = "does not fit" if any(record.np == 1 for record in records) else "failed"
            said.append(f"one process {why}: speedups are over a share of what {self.base:,} reach")
        if not any(record.batch for record in records):
            said.append("the script did not show its batch: a sample is one batch of a process")
        if overflown := [f"{record.np:,}" for record in records if not record.finite]:
            said.append(f"as rank 0 of {listed(overflown)} its loss or a parameter was not finite")
        short = [record for record in records if not record.fits and self.limit > record.memory_limit_bytes > 0]
        if short:
            here, there = format_bytes(short[0].memory_limit_bytes), format_bytes(self.limit)
            said.append(
                f"memory ran out at the {here} of this device, the cluster's have {there}: run it on one of those"
            )
        crowded = [record for record in several if not gpu and min(record.np, cluster.slots_per_node) > record.copies]
        if crowded:
            most = min(crowded[-1].np, cluster.slots_per_node)
            said.append(
                f"{plural(crowded[-1].copies, 'process')} stepped at a time here, and a node takes {most}: "
                "that more of them share its memory and caches is in no step, only in the intervals"
            )
        saves = dict.fromkeys(line for record in records for line in record.saves)
        if saves:
            said.append(f"held back while it ran as rank 0: {listed(list(saves)[:3])}{' and more' * (len(saves) > 3)}")
        # What differs in numbers only is said once, as of the last record.
        own = {re.sub(r"\d+", "", line): line for record in records for line in record.warnings}
        return [*said, *own.values()]


def _model_error(engine: str) -> float:
    return KNOWN.get(engine, USUAL).model_error
