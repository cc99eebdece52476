"""A profile from step times that are known: what a step consists of is counted, or taken from another profile."""

from collections.abc import Mapping

import msgspec
import numpy as np

from scalescope.jobs.environment import torch_version
from scalescope.records.profile import ModelProfile, ProfilePoint, WorkloadSpec
from scalescope.simulator.compute import work

# Relative standard error of a step time that somebody states: three digits are usual, and devices differ.
_STATED_ERROR = 0.01


def profile_from_step_times(
    workload: WorkloadSpec,
    times_s: Mapping[int, float],
    *,
    device: str,
    threads: int,
    given: ModelProfile | None = None,
) -> ModelProfile:
    """The profile of a device on which one process takes these times, by batch size.

    Args:
        workload: What is trained.
        times_s: Seconds of a step by batch size.
        device: `cpu`, or a name of the GPU.
        threads: Of a rank.
        given: A profile of the same model, on any device, whose shares of the step are used; None: they are counted on
            the model's layers.
    """
    sources = {batch: given or _counted(workload, batch) for batch in sorted(times_s)}
    base = next(iter(sources.values()))
    return msgspec.structs.replace(
        base,
        device=device,
        hostname="",
        threads_per_rank=threads,
        points=tuple(_point(source, batch, times_s[batch], threads) for batch, source in sources.items()),
        crowds=base.crowds if device == base.device == "cpu" else (),
        interpolation_error=0.0,
        memory_limit_bytes=0,
        too_large=None,
        seconds=0.0,
    )


def _counted(workload: WorkloadSpec, batch: int) -> ModelProfile:
    """A profile in units of work instead of seconds."""
    from scalescope.workloads.work import step_work  # imports torch

    made = step_work(workload, batch)
    return ModelProfile(
        workload=workload,
        torch=torch_version(),
        device="",
        hostname="",
        threads_per_rank=1,
        gradients=made.gradients,
        buffers_bytes=made.buffers_bytes,
        buffers=made.buffers,
        points=(
            ProfilePoint(
                batch=batch,
                step_s=made.forward + made.backward + made.optimizer,
                forward_s=made.forward,
                backward_s=made.backward,
                optimizer_s=made.optimizer,
                ready_s=made.ready,
                noise=0.0,
                error=0.0,
                cores_used=1.0,
                memory_bytes=made.memory_bytes,
                steps=0,
            ),
        ),
        interpolation_error=0.0,
        memory_limit_bytes=0,
    )


def _point(shares: ModelProfile, batch: int, step_s: float, threads: int) -> ProfilePoint:
    """A point of the profile `shares`, at this batch, that takes this time."""
    known = work(shares, [batch])
    scale = step_s / float(known.step_s[0])
    nearest = min(shares.points, key=lambda point: abs(np.log2(point.batch / batch)))
    return msgspec.structs.replace(
        nearest,
        batch=batch,
        step_s=step_s,
        forward_s=float(known.forward_s[0]) * scale,
        backward_s=float(known.backward_s[0]) * scale,
        optimizer_s=float(known.optimizer_s[0]) * scale,
        ready_s=tuple(float(ready) * scale for ready in known.ready_s[:, 0]),
        error=_STATED_ERROR,
        cores_used=float(threads),
        memory_bytes=round(float(known.memory_bytes[0])),
        remade=0,
        outlying=False,
        foreign_cores=0.0,
    )
