"""A profile from step times that are known: what a step consists of is counted, or taken from another profile."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from scalescope import host
from scalescope.errors import UsageError
from scalescope.jobs.interpreter import torch_version
from scalescope.records.cluster import Cluster, Device
from scalescope.records.prediction import STATED
from scalescope.records.profile import ModelProfile, ProfilePoint, WorkloadSpec
from scalescope.records.request import EstimateRequest
from scalescope.simulator.compute import work
from scalescope.text import assignment, plain
from scalescope.units import check_counts, check_seconds, parse_seconds

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
        launch_spread=0.0,
        ddp_s=None,
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


def device_of(request: EstimateRequest, described: Cluster | None) -> str:
    """The device whose step time is known: one of the cluster, or of this machine."""
    if described:
        return described.gpu or "GPU" if described.device == "gpu" else "cpu"
    return "GPU" if on_gpu(request) else "cpu"


def on_gpu(request: EstimateRequest) -> bool:
    """True if a profile that is taken here is of a GPU."""
    return request.device != "cpu" and host.gpus() > 0


def check_device(request: EstimateRequest, described: Cluster | None, given: ModelProfile | None) -> None:
    """Refuse a profile, given or taken here, of another kind of device than the cluster's."""
    kind: Device = given.kind if given is not None else "gpu" if on_gpu(request) else "cpu"
    whose = f"{request.profile} is of a" if given is not None else "the profile would be of this machine's"
    if described is None:
        if kind == "gpu" and not on_gpu(request):
            raise UsageError(f"{whose} GPU and this machine has none: describe the machines that have, with --cluster")
    elif kind != described.device:
        wanted = described.device.upper()
        instead = f"give step times of one {wanted}, --step-time 32=20ms,64=30ms, or a profile of one with --profile"
        if given is None and (described.device == "cpu" or host.gpus()):
            instead = f"profile its {wanted}, --device {'cpu' if described.device == 'cpu' else 'auto'}"
        raise UsageError(f"{request.cluster} describes {wanted}s and {whose} {kind.upper()}: {instead}")


def stated_warning(request: EstimateRequest) -> str:
    """Warn that step times were given; empty where they were measured."""
    if not request.step_time:
        return ""
    source = request.profile or "counted on the model's layers"
    return f"{STATED}; what a step consists of: {source}"


def known_times(value: str | float | Mapping[int, float], batches: Sequence[int]) -> dict[str, Any]:
    """Read --step-time as options of the request: the time of each batch, and the batches that are meant."""
    times_s = _step_times(value)
    if 0 in times_s:
        if len(batches) != 1:
            raise UsageError("--step-time with one time is of one batch: add --batch 32, or write 32=97ms,64=180ms")
        return {"step_time": {batches[0]: times_s[0]}}
    by_batch = sorted(times_s.items())
    for (small, small_s), (large, large_s) in itertools.pairwise(by_batch):
        if large_s < small_s:
            raise UsageError(f"--step-time: batch {large} takes less time than batch {small}: correct one of them")
    return {"step_time": dict(by_batch), "batch": tuple(batches) or tuple(batch for batch, _ in by_batch)}


def _step_times(value: str | float | Mapping[int, float]) -> dict[int, float]:
    """Seconds by batch; of one time without a batch by 0."""
    if isinstance(value, str) and ("=" in value or "," in value):
        parts = [assignment(part, "--step-time", "32=97ms,64=180ms") for part in value.split(",")]
        if not all(re.fullmatch("0*[1-9][0-9]{0,8}", batch) for batch, _ in parts):
            raise UsageError(
                f"--step-time takes one time, or BATCH=TIME for each such as 32=97ms,64=180ms, not '{plain(value, 60)}'"
            )
        shown, value = plain(value, 60), {int(batch): parse_seconds(time, "--step-time") for batch, time in parts}
        if len(value) < len(parts):
            raise UsageError(f"--step-time names a batch twice in '{shown}': keep one of them")
    if isinstance(value, Mapping):
        check_counts(list(value), "--step-time")
        return {batch: check_seconds(seconds, "--step-time") for batch, seconds in value.items()}
    return {0: parse_seconds(value, "--step-time") if isinstance(value, str) else check_seconds(value, "--step-time")}
