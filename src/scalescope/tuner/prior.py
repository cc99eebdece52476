"""Predicts a step under every setting: the survey of a training becomes a profile and a cluster to simulate."""

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from scalescope.engines import find_engine
from scalescope.engines.base import Engine
from scalescope.errors import UsageError
from scalescope.records.cluster import Cluster, Costs, Overlap
from scalescope.records.profile import Gradient, ModelProfile, ProfilePoint, WorkloadSpec
from scalescope.records.tuning import Values
from scalescope.simulator.step import Steps, steps
from scalescope.tuner.settings import THREADS

HIERARCHICAL = "hierarchical_allreduce"
_ROUNDS = 6
_CYCLED = 6  # Steps one after another: the next one begins where the last one left the engine's cycle
_LEAST = 0.2  # Of what backward was seen to take; no overlap slowdown takes more
_BY_THREADS = 0.5  # Twice the threads are expected to make compute faster by 2 to the power of this
# Slowdown beyond fair shares where compute and messages want more cores than there are: of two ranks on two cores, each
# message taking 0.77 of a core, both sides got 2.1 times slower instead of 1.77 times.
_CONTENTION = 1.5
# With both sides this many times slower, doing both at once takes as long as one after the other; it is not believed to
# take longer until it was measured.
_NOTHING_GAINED = 2.0
_GPU_SLOWDOWN = 1.1  # Of compute while NCCL sends


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """Gradients, parts of a step and costs of messages, as measured inside a training."""

    # Name, bytes and bytes of an element, in the order in which they get ready.
    gradients: tuple[tuple[str, int, int], ...]
    ready_s: tuple[float, ...]  # After the start of backward, while messages of the default travelled
    forward_s: float
    backward_s: float
    optimizer_s: float
    step_s: float
    ranks_per_host: int = 1
    hosts: int = 1
    cores: int = 1
    threads: int = 1
    # `flat` and, where there are groups for it, `hierarchical`: bytes, seconds, CPU seconds.
    costs: dict[str, tuple[tuple[float, float, float], ...]] = {}
    copy_s_per_byte: float = 0.0
    backend: str = "gloo"
    device: str = ""  # cpu or gpu; empty: not known

    @property
    def ranks(self) -> int:
        """Ranks on all hosts."""
        return self.hosts * self.ranks_per_host

    @property
    def total_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(gradient[1] for gradient in self.gradients)


def read_survey(survey: Mapping[str, Any]) -> Survey:
    """A survey as its ranks wrote it, checked."""
    try:
        return msgspec.convert(dict(survey), Survey, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the survey of the training cannot be read ({error}): tune again") from None


def predict(engine: str, settings: Sequence[Values], survey: Mapping[str, Any]) -> list[float] | None:
    """Seconds of a step under every setting, the default first; None where the survey does not tell message costs."""
    found = read_survey(survey)
    if not found.gradients or (found.ranks > 1 and not found.costs.get("flat")):
        return None
    simulation = _Simulation(found, find_engine(engine), settings[0])
    seconds = [simulation.step_s(values) for values in settings]
    scale = found.step_s / seconds[0] if found.step_s > 0 and seconds[0] > 0 else 1.0
    return [each * scale for each in seconds]


class _Simulation:
    """Steps of one surveyed training under any setting."""

    def __init__(self, survey: Survey, engine: Engine, default: Values) -> None:
        self._survey, self._engine = survey, engine
        self._simulated: dict[Hashable, float] = {}
        # Backward alone: such that, while the default's messages travel, it takes as long as it was seen to.
        alone = seen = profile_of(survey).points[0].backward_s
        for _ in range(_ROUNDS if self._survey.ranks > 1 and seen > 0 else 0):
            together = float(self._steps(profile_of(self._survey, alone), default).outcome.backward_s[0])
            alone = min(max(alone * seen / together, _LEAST * seen), seen)
        self._profile = profile_of(self._survey, alone)
        self._default_cycle_s = engine.exchange(self._profile, default).cycle_s

    def step_s(self, values: Values) -> float:
        """One step, messages and compute; settings that exchange the same are simulated once."""
        exchange = self._engine.exchange(self._profile, values)
        key = exchange, self._kind(values), values.get(THREADS.name)
        if key not in self._simulated:
            threads = float(values.get(THREADS.name, self._survey.threads))
            faster = math.pow(threads / self._survey.threads, _BY_THREADS)
            polls = self._polls(exchange.cycle_s) / self._polls(self._default_cycle_s)
            found, since_s = [], 0.0
            for _ in range(_CYCLED if exchange.cycle_s else 1):
                made = self._steps(self._profile, values, since_s if exchange.cycle_s else None)
                compute_s = float((made.forward_s + made.outcome.backward_s + made.optimizer_s)[0])
                found.append(float(made.step_s[0]) - compute_s + compute_s * polls / faster)
                since_s = float((made.outcome.since_cycle_s + made.finish_s + made.optimizer_s + made.forward_s)[0])
            self._simulated[key] = fmean(found[len(found) // 2 :])
        return self._simulated[key]

    def _polls(self, cycle_s: float) -> float:
        """Slowdown of compute because the ranks agree in every cycle, whether there is something or not."""
        if not cycle_s or self._survey.ranks < 2:
            return 1.0
        _, seconds, processor = min(self._survey.costs["flat"])
        share = min(processor, seconds) / max(cycle_s, seconds)
        wanted = self._survey.ranks_per_host * (self._survey.threads + share)
        return 1 + max(wanted / self._survey.cores - 1, 0.0)

    def _steps(self, profile: ModelProfile, values: Values, since_cycle_s: float | None = None) -> Steps:
        exchange = self._engine.exchange(profile, values)
        threads = int(values.get(THREADS.name, self._survey.threads))
        cluster = cluster_of(self._survey, exchange.backend, self._kind(values), threads)
        exchange = msgspec.structs.replace(exchange, by_hosts=False)  # the survey timed whole messages of this kind
        ranks = np.array([self._survey.ranks])
        return steps(profile, cluster, exchange, ranks, np.array([1]), since_cycle_s=since_cycle_s)

    def _kind(self, values: Values) -> str:
        return "hierarchical" if values.get(HIERARCHICAL) and "hierarchical" in self._survey.costs else "flat"


def profile_of(survey: Survey, backward_s: float | None = None) -> ModelProfile:
    """The compute of a rank; `backward_s`: what backward takes alone, to which all ready times are brought."""
    ready_s, last = survey.ready_s, max(survey.ready_s, default=survey.backward_s)
    alone = last if backward_s is None else backward_s
    scale = alone / last if last > 0 else 1.0
    point = ProfilePoint(
        batch=1,
        step_s=survey.forward_s + alone + survey.optimizer_s,
        forward_s=survey.forward_s,
        backward_s=alone,
        optimizer_s=survey.optimizer_s,
        ready_s=tuple(moment * scale for moment in ready_s),
        noise=0.0,
        error=0.0,
        cores_used=float(survey.threads),
        memory_bytes=0,
        steps=1,
    )
    return ModelProfile(
        workload=WorkloadSpec(model="surveyed"),
        torch="",
        device="gpu" if survey.backend == "nccl" else "cpu",
        hostname="",
        threads_per_rank=survey.threads,
        gradients=tuple(
            Gradient(name=name, bytes=size, element_bytes=element) for name, size, element in survey.gradients
        ),
        points=(point,),
        interpolation_error=0.0,
        memory_limit_bytes=0,
    )


def cluster_of(survey: Survey, backend: str, kind: str, threads: int) -> Cluster:
    """The links as messages of one kind, `flat` or `hierarchical`, were measured on them."""
    rows = sorted(survey.costs.get(kind, ()))
    for at in range(len(rows) - 2, -1, -1):  # no message takes longer than a larger one: it was disturbed
        rows[at] = rows[at][0], min(rows[at][1], rows[at + 1][1]), min(rows[at][2], rows[at + 1][2])
    seconds = sum(row[1] for row in rows)
    share = min(sum(row[2] for row in rows) / seconds, 1.0) if seconds > 0 else 0.0
    slowdown = 1.0  # of compute and messages: the cores that both want over those that there are
    if share > 0:
        excess = survey.ranks_per_host * (threads + share) / survey.cores - 1
        slowdown = min(1 + _CONTENTION * max(excess, 0.0), _NOTHING_GAINED)
    costs = Costs(
        backend=backend,
        ranks=survey.ranks,
        nodes=survey.hosts,
        operation="allreduce",
        sizes_bytes=tuple(int(row[0]) for row in rows),
        seconds=tuple(row[1] for row in rows),
        cpu_seconds=tuple(row[2] for row in rows),
        error=0.0,
    )
    on_gpu = backend.endswith("nccl")
    overlap = Overlap(
        backend=backend,
        ranks=survey.ranks,
        nodes=survey.hosts,
        compute=_GPU_SLOWDOWN if on_gpu else slowdown,
        communication=1.0 if on_gpu else slowdown,
    )
    return Cluster(
        nodes=survey.hosts,
        slots_per_node=survey.ranks_per_host,
        cores_per_node=survey.cores,
        copy_s_per_byte=survey.copy_s_per_byte,
        costs=(costs,) if rows else (),
        overlaps=(overlap,),
        threads_per_rank=survey.threads,
    )
