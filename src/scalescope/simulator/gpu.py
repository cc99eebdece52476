"""Costs of several GPUs besides messages: DDP's own work on each of them, and that no two are equal.

The constants of DDP were measured, wrapped against bare with one NCCL rank, on six models that keep an H200 busy
(`make bench SECTION=ddp_gpu`); a line through them misses none by more than 8 %. On other GPUs what is bound by memory
scales with the memory's bandwidth, what is bound by starting kernels stays.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scalescope.engines.base import Exchange
from scalescope.records.cluster import Cluster, Gpu, Overlap
from scalescope.simulator.events import Floats
from scalescope.simulator.nccl import channels

# Bytes per second of the memory, and multiprocessors, by NVIDIA's data sheets.
_MEMORY: dict[Gpu, float] = {"V100": 0.9e12, "A100": 2.0e12, "H100": 3.35e12, "H200": 4.8e12, "B200": 8.0e12}
_MULTIPROCESSORS: dict[Gpu, int] = {"V100": 80, "A100": 108, "H100": 132, "H200": 132, "B200": 148}
_UNKNOWN: Gpu = "A100"
_COPY_S = 2.1e-6  # Of a gradient into its bucket, or back, besides its bytes
_COPY_PASSES = 2.28  # Times that a copy moves its bytes through memory: read, written, and not at the full bandwidth
_BUFFER_S = 4.8e-6  # Of each buffer, gathered before it is broadcast and handed back
_STEP_S = 0.14e-3  # Of a step, whatever the model: streams that wait for each other
# How much longer compute takes while some multiprocessors communicate: so many times the root of their share. Measured
# with kernels of 2 to 32 blocks on an H200: 1.06, 1.07, 1.15, 1.22, 1.32 for resnet50, vgg19 and a GPT on average, and
# single models between 1.00 and 1.13 at 2 blocks and between 1.26 and 1.42 at 32.
_SLOWED_BY_ROOT = 0.65
_SLOWED_ERROR = 0.05  # Standard error of that factor for a single model
# Relative standard deviation of the step among GPUs of one kind. Sinha et al. (Not All GPUs Are Created Equal, SC22)
# find a range of 8 % on average, up to 22 %, among the GPUs of five clusters; a box plot spans 5.4 deviations.
_SPREAD = 0.015


@dataclass(frozen=True)
class OwnCost:
    """Seconds of an engine's work in a rank apart from messages."""

    copy_s: Floats  # Of each message into its bucket, during backward; back after it the same
    rest_s: float  # Once in a step

    @property
    def step_s(self) -> float:
        """All of it in one step."""
        return float(2 * self.copy_s.sum() + self.rest_s)


def own_cost(cluster: Cluster, exchange: Exchange, measured_s: float | None = None) -> OwnCost:
    """As the cluster states it, otherwise for a GPU of its kind; only engines that wrap the model have any.

    `measured_s` is what a profile on a CPU measured for the engine: what its copies do not explain of it comes once in
    a step.
    """
    bytes_ = np.array([float(message.bytes) for message in exchange.messages])
    tensors = np.array([float(message.tensors) for message in exchange.messages])
    tensor_s, byte_s, rest_s = cluster.copy_s_per_tensor, copy_s_per_byte(cluster), 0.0
    if cluster.device == "gpu" and not exchange.negotiated:
        rest_s = _STEP_S + _BUFFER_S * exchange.broadcast_tensors
        tensor_s = tensor_s or _COPY_S
    copy_s = byte_s * bytes_ + tensor_s * tensors
    if cluster.device == "cpu" and not exchange.negotiated and measured_s is not None:
        rest_s = max(measured_s - 2 * float(copy_s.sum()), 0.0)
    return OwnCost(copy_s * exchange.copies, rest_s)


def copy_s_per_byte(cluster: Cluster) -> float:
    """Seconds for each byte of parameters or gradients that an engine copies into or out of a buffer."""
    if cluster.device == "gpu" and not cluster.copy_s_per_byte:
        return _COPY_PASSES / _MEMORY[cluster.gpu or _UNKNOWN]
    return cluster.copy_s_per_byte


def described_overlap(cluster: Cluster, ranks: int, nodes: int) -> Overlap:
    """Overlap slowdown by NCCL on GPUs where it was not measured: each channel takes a multiprocessor."""
    inside = cluster.inside_bytes_per_s(-(-ranks // nodes)) if ranks > nodes else None
    between = cluster.between.bytes_per_s if cluster.between and nodes > 1 else None
    share = channels(min(filter(None, (inside, between)), default=0.0)) / _MULTIPROCESSORS[cluster.gpu or _UNKNOWN]
    return Overlap(
        backend="nccl",
        ranks=ranks,
        nodes=nodes,
        compute=1 + _SLOWED_BY_ROOT * math.sqrt(share),
        compute_error=_SLOWED_ERROR,
        communication=1.0,
    )


def unequal(cluster: Cluster, ranks: ArrayLike) -> tuple[Floats, Floats]:
    """Time of the slowest of p devices relative to a typical one, and the relative standard error of that.

    The error holds that the device of the profile is one of them, and that their spread is known within a factor of 2.
    """
    from scipy.special import ndtri

    spread = cluster.device_spread
    if spread is None:
        spread = _SPREAD if cluster.device == "gpu" else 0.0
    p = np.asarray(ranks, dtype=float)
    slowest = ndtri((p - 0.375) / (p + 0.25))  # Blom's mean of the largest of p normal values
    return 1 + spread * slowest, np.where(p > 1, spread * np.hypot(1.0, slowest), 0.0)
