"""What the ranks surveyed of a training, as the simulator takes it: a profile and a cluster."""

from collections.abc import Mapping
from typing import Any

import msgspec

from scalescope.errors import UsageError
from scalescope.records.cluster import Cluster, Costs, Overlap
from scalescope.records.profile import Gradient, ModelProfile, ProfilePoint, WorkloadSpec

# Slowdown beyond fair shares where compute and messages want more cores than there are: of two ranks on two cores, each
# message taking 0.77 of a core, both sides got 2.1 times slower instead of 1.77 times.
_CROWDED = 1.5
# With both sides so many times slower, doing both at once takes as long as one after the other; it is not believed to
# take longer until it was measured.
_NOTHING_GAINED = 2.0
_GPU_FRICTION = 1.1  # Of compute while NCCL sends beside it


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """Gradients, parts of a step and costs of messages, as measured inside a training."""

    # Name, bytes and bytes of an element, in the order in which they get ready.
    gradients: tuple[tuple[str, int, int], ...]
    ready_s: tuple[float, ...]  # After the start of backward, while messages of the default travelled
    forward_s: float
    backward_s: float
    optimizer_s: float
    step_s: float
    samples: float = 0
    buffers_bytes: tuple[int, ...] = ()
    ranks_per_host: int = 1
    hosts: int = 1
    cores: int = 1
    threads: int = 1
    # `flat` and, where there are groups for it, `hierarchical`: bytes, seconds, CPU seconds.
    costs: dict[str, tuple[tuple[float, float, float], ...]] = {}
    copy_s_per_byte: float = 0.0
    backend: str = "gloo"
    engine: str = "ddp"

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.hosts * self.ranks_per_host

    @property
    def total_bytes(self) -> int:
        """Of all gradients."""
        return sum(gradient[1] for gradient in self.gradients)


def read_survey(survey: Mapping[str, Any]) -> Survey:
    """A survey as its ranks wrote it, checked."""
    try:
        return msgspec.convert(dict(survey), Survey, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the survey of the training cannot be read ({error}): tune again") from None


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
    rows = _without_disturbances(sorted(survey.costs.get(kind, ())))
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
    friction = _friction(survey, rows, threads)
    on_gpu = backend.endswith("nccl")
    overlap = Overlap(
        backend=backend,
        ranks=survey.ranks,
        nodes=survey.hosts,
        compute=_GPU_FRICTION if on_gpu else friction,
        communication=1.0 if on_gpu else friction,
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


def _without_disturbances(rows: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """A message never takes longer than a larger one: where it did, something else was in its way."""
    kept = list(rows)
    for at in range(len(rows) - 2, -1, -1):
        kept[at] = rows[at][0], min(rows[at][1], kept[at + 1][1]), min(rows[at][2], kept[at + 1][2])
    return kept


def _friction(survey: Survey, rows: list[tuple[float, float, float]], threads: int) -> float:
    """How much slower compute and messages make each other: what both want of the host's cores, over what it has."""
    seconds = sum(row[1] for row in rows)
    share = min(sum(row[2] for row in rows) / seconds, 1.0) if seconds > 0 else 0.0
    wanted = survey.ranks_per_host * (threads + share)
    return min(1 + _CROWDED * max(wanted / survey.cores - 1, 0.0), _NOTHING_GAINED) if share > 0 else 1.0
