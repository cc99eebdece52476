"""Compute of a rank in a step: the profile at any batch size, on a host that it shares, next to messages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalescope.records.cluster import Cluster, Overlap
from scalescope.records.profile import ModelProfile, ProfilePoint
from scalescope.simulator.events import Floats
from scalescope.simulator.gpu import described_overlap

_BEYOND_PER_DOUBLING = 0.05  # Relative error that is added for each doubling of the batch beyond the measured ones
# The same for ranks of a host: twice as many as were measured may leave no core to spare (16 ranks known by 2 and 4
# were predicted 34 % wrong, make bench SECTION=accuracy_cores).
COPIES_PER_DOUBLING = 0.20
_OVERLAP_PER_DOUBLING = 0.10  # Relative error of overlap factors, for each doubling of ranks from the probed ones


@dataclass(frozen=True)
class Work:
    """Seconds of compute in a step of one process alone, one column per batch size."""

    forward_s: Floats  # With gradient accumulation all passes before the last, and the forward of the last
    backward_s: Floats
    optimizer_s: Floats
    ready_s: Floats  # One row per gradient, after the start of backward, never less than the row before
    memory_bytes: Floats
    error: Floats  # Relative standard error of the step

    @property
    def step_s(self) -> Floats:
        """The whole step."""
        return self.forward_s + self.backward_s + self.optimizer_s


def work(profile: ModelProfile, batches: ArrayLike, passes: int = 1) -> Work:
    """The profile at these batch sizes, each split into `passes`: straight lines between measured ones, and beyond."""
    sizes = np.ceil(np.asarray(batches, dtype=float) / passes)
    points = profile.points
    backward = _at(points, sizes, [point.backward_s for point in points])
    ready = np.array(
        [_at(points, sizes, [point.ready_s[i] for point in points]) for i in range(len(profile.gradients))]
    )
    ready = np.minimum(np.maximum.accumulate(ready.reshape(len(profile.gradients), len(sizes)), axis=0), backward)
    measured = np.array([point.batch for point in points], dtype=float)
    beyond = np.maximum(np.log2(sizes / measured[-1]), 0) + np.maximum(np.log2(measured[0] / sizes), 0)
    own = np.interp(sizes, measured, [point.error for point in points])
    between = np.where(np.isin(sizes, measured), 0.0, profile.interpolation_error)
    forward = _at(points, sizes, [point.forward_s for point in points])
    return Work(
        forward_s=passes * forward + (passes - 1) * backward,
        backward_s=backward,
        optimizer_s=_at(points, sizes, [point.optimizer_s for point in points]),
        ready_s=ready,
        memory_bytes=_at(points, sizes, [float(point.memory_bytes) for point in points]),
        error=np.sqrt(own**2 + between**2 + (_BEYOND_PER_DOUBLING * beyond) ** 2),
    )


def _at(points: Sequence[ProfilePoint], sizes: Floats, values: Sequence[float]) -> Floats:
    """Straight lines through the values at the points' batch sizes, continued at both ends, never below 0."""
    x, y = np.array([point.batch for point in points], dtype=float), np.array(values)
    if len(x) == 1:
        return np.asarray(y[0] * np.maximum(sizes / x[0], 1.0))  # less work, and who knows how much less
    left = np.clip(np.searchsorted(x, sizes, side="right") - 1, 0, len(x) - 2)
    slope = (y[left + 1] - y[left]) / (x[left + 1] - x[left])
    return np.asarray(np.maximum(y[left] + slope * (sizes - x[left]), 0.0))


@dataclass(frozen=True)
class Slowdown:
    """Slowdown of compute by CPU contention among the ranks of a host, with its relative error."""

    slowdown: Floats
    error: Floats


def contention(profile: ModelProfile, copies: Floats, batches: Floats) -> Slowdown:
    """The profile's CPU contention between and beyond the measured numbers of copies, which count by their doublings.

    Where it was measured at two batch sizes, those in between lie on the line between them.
    """
    measured = sorted({each.batch for each in profile.crowds})
    if not measured:
        return Slowdown(np.ones_like(copies), np.zeros_like(copies))
    curves = [_contention_at(profile, batch, copies) for batch in measured]
    if len(curves) == 1:
        return curves[0]
    low, high = np.log2(measured[0]), np.log2(measured[-1])
    share = np.clip((np.log2(batches) - low) / (high - low), 0.0, 1.0)
    first, last = curves[0], curves[-1]
    slowdown = first.slowdown + share * (last.slowdown - first.slowdown)
    return Slowdown(slowdown, np.maximum(first.error, last.error))


def _contention_at(profile: ModelProfile, batch: int, copies: Floats) -> Slowdown:
    found = [each for each in profile.crowds if each.batch == batch]
    known = np.log2([1.0, *(each.copies for each in found)])
    wanted = np.log2(copies)
    slowdowns = np.array([1.0, *(each.slowdown for each in found)])
    slope = (slowdowns[-1] - slowdowns[-2]) / (known[-1] - known[-2])
    beyond = np.maximum(wanted - known[-1], 0.0)
    slowdown = np.interp(wanted, known, slowdowns) + np.maximum(slope, 0.0) * beyond
    errors = [0.0, *(each.error for each in found)]
    return Slowdown(np.maximum(slowdown, 1.0), np.interp(wanted, known, errors) + COPIES_PER_DOUBLING * beyond)


@dataclass(frozen=True)
class OverlapFactors:
    """Factors by which compute and messages slow each other, and an idle engine slows compute, by cell."""

    compute: Floats
    sending: Floats
    idle: Floats
    compute_error: Floats
    sending_error: Floats
    idle_error: Floats


def cores_busy(profile: ModelProfile) -> float:
    """The part of a rank's cores that its compute keeps busy."""
    return min(float(np.median([point.cores_used for point in profile.points])) / profile.threads_per_rank, 1.0)


def overlap_factors(
    cluster: Cluster, backend: str, ranks: NDArray[np.int_], nodes: NDArray[np.int_], busy: float
) -> OverlapFactors:
    """Overlap slowdown among the most similar ranks; of CPUs as far as compute keeps its cores `busy`."""
    known = [overlap for overlap in cluster.overlaps if overlap.backend == backend]
    if cluster.device == "gpu":  # a message takes multiprocessors and memory from compute, not the host's cores
        busy = 1.0
    factors, errors = np.ones((3, len(ranks))), np.zeros((3, len(ranks)))
    gpus = cluster.device == "gpu" and backend.endswith("nccl")
    places = {(int(count), int(on)) for count, on in zip(ranks, nodes, strict=True) if count > 1}
    for place in places if known or gpus else ():
        nearest = min(known, key=lambda overlap: _distance(overlap, *place), default=None)
        nearest = nearest or described_overlap(cluster, *place)
        measured = (nearest.compute, nearest.communication, nearest.idle)
        here = (ranks == place[0]) & (nodes == place[1])
        factors[:, here] = np.array([1 + (factor - 1) * busy for factor in measured])[:, None]
        far = _OVERLAP_PER_DOUBLING * abs(math.log2(nearest.ranks / place[0]))
        vague = nearest.compute_error + far, nearest.communication_error + far, nearest.idle_error
        errors[:, here] = busy * np.array(vague)[:, None]
    return OverlapFactors(*[*factors, *errors])


def _distance(overlap: Overlap, ranks: int, nodes: int) -> float:
    """Distance of a measured group from the wanted one, in doublings; those of the number of nodes count twice."""
    return abs(math.log2(overlap.ranks / ranks)) + 2 * abs(math.log2(overlap.nodes / nodes))
