"""Small profiles and clusters whose steps can be worked out by hand."""

from collections.abc import Sequence

import numpy as np

from scalescope.engines import find_engine
from scalescope.engines.base import MIB
from scalescope.records.cluster import Cluster, Link, Overlap
from scalescope.records.profile import Contention, Gradient, ModelProfile, ProfilePoint, WorkloadSpec
from scalescope.simulator.step import Steps, steps

GIB = 1024 * MIB


def point(
    batch: int = 8,
    forward_s: float = 2.0,
    backward_s: float = 4.0,
    optimizer_s: float = 1.0,
    ready_s: Sequence[float] = (1.0, 2.0, 3.0, 4.0),
    **more: object,
) -> ProfilePoint:
    """Steps that never vary, on one busy core."""
    given = {"noise": 0.0, "error": 0.0, "cores_used": 1.0, "memory_bytes": GIB, "steps": 10, **more}
    return ProfilePoint(
        batch=batch,
        step_s=forward_s + backward_s + optimizer_s,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        ready_s=tuple(ready_s),
        **given,
    )


def gradients(*mib: float, element_bytes: int = 4) -> tuple[Gradient, ...]:
    """Parameters of so many MiB."""
    return tuple(
        Gradient(name=f"layer{index}", bytes=int(size * MIB), element_bytes=element_bytes)
        for index, size in enumerate(mib)
    )


def profile(*points: ProfilePoint, **more: object) -> ModelProfile:
    """Four gradients of 1 MiB, unless others are given."""
    given = {
        "workload": WorkloadSpec(model="mlp"),
        "torch": "2.13.0",
        "device": "cpu",
        "hostname": "here",
        "threads_per_rank": 1,
        "gradients": gradients(1, 1, 1, 1),
        "interpolation_error": 0.0,
        "memory_limit_bytes": 64 * GIB,
        **more,
    }
    return ModelProfile(points=points or (point(),), **given)


def proportional(
    *batches: int, sample_s: float = 1.0, gradient_mib: float = 1.0, sample_bytes: int = 0, **more: object
) -> ModelProfile:
    """Every sample costs the same; half of it is backward, whose one gradient is ready at its end."""
    points = [
        point(
            batch,
            forward_s=0.4 * batch * sample_s,
            backward_s=0.5 * batch * sample_s,
            optimizer_s=0.1 * batch * sample_s,
            ready_s=(0.5 * batch * sample_s,),
            memory_bytes=GIB + batch * sample_bytes,
        )
        for batch in batches
    ]
    return profile(*points, gradients=gradients(gradient_mib), **more)


def contention(copies: int, slowdown: float, batch: int = 8, error: float = 0.0, **more) -> Contention:
    return Contention(**{"copies": copies, "batch": batch, "slowdown": slowdown, "error": error, "noise": 0.0, **more})


def described(mib_per_s: float = 1.0, *, latency_s: float = 0.0, slots: int = 8, nodes: int = 1, **more) -> Cluster:
    """Every link the same: N MiB between two ranks take N / rate seconds, between p of them 2 (p - 1) / p of that."""
    link = Link(bytes_per_s=mib_per_s * MIB, latency_s=latency_s)
    given = {"name": "made", "cores_per_node": slots, "inside": link, "between": link, **more}
    return Cluster(nodes=nodes, slots_per_node=slots, **given)


def overlap(compute: float = 1.0, communication: float = 1.0, backend: str = "gloo", ranks: int = 2, **more) -> Overlap:
    return Overlap(
        **{"backend": backend, "ranks": ranks, "nodes": 1, "compute": compute, "communication": communication, **more}
    )


def stepped(
    model: ModelProfile,
    cluster: Cluster,
    ranks: int | Sequence[int],
    batches: int | Sequence[int] = 8,
    engine: str = "ddp",
    *,
    wrapped: bool = False,
    **knobs: bool | float | str,
) -> Steps:
    """Steps of one engine in some cells."""
    counts, sizes = np.broadcast_arrays(np.atleast_1d(ranks), np.atleast_1d(batches))
    return steps(model, cluster, find_engine(engine).exchange(model, knobs), counts, sizes, wrapped=wrapped)
