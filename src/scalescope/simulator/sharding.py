"""From a profile and an engine's shards to what FSDP2 does in a step, and how much memory it takes."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scalescope.engines.base import ShardGroup
from scalescope.records.profile import ModelProfile, ShardedPoint
from scalescope.simulator.compute import Work
from scalescope.simulator.events import Floats
from scalescope.simulator.sharded import Group, Segment, ShardedStep

# Numbers that an optimizer by name keeps for each parameter; what is not known is taken to be kept whole.
_STATES = {"sgd": 1, "adam": 2, "adamw": 2, "rmsprop": 1, "adagrad": 1}


def sharded_step(
    shards: Sequence[ShardGroup],
    work: Work,
    ranks: NDArray[np.int_],
    gather_s: Callable[[float], Floats],
    scatter_s: Callable[[float], Floats],
    *,
    copy_s_per_byte: float,
    passes: int,
    blocking: bool,
) -> ShardedStep:
    """A step in every cell.

    Backward is cut where a gradient of another group gets ready, and forward takes the same parts the other way round.

    Args:
        shards: Of the engine.
        work: Of one pass, one column per cell.
        ranks: Among which every group is sharded, by cell.
        gather_s: From the bytes of a group to the seconds of its all-gather, by cell.
        scatter_s: The same of its reduce-scatter.
        copy_s_per_byte: Of what goes out of the buffer of a gather, or into that of a reduce-scatter.
        passes: Of gradient accumulation; gradients are reduced in the last.
        blocking: Whether compute stands still during a collective.
    """
    owner = {gradient: index for index, shard in enumerate(shards) for gradient in shard.gradients}
    ready_s = work.ready_s.copy()
    ready_s[-1:] = work.backward_s  # what comes after the last gradient belongs to its group
    parts = np.diff(ready_s, axis=0, prepend=0.0)
    backward: list[Segment] = []
    for index, seconds in enumerate(parts):
        if backward and backward[-1].group == owner[index]:
            backward[-1] = Segment(owner[index], backward[-1].seconds + seconds)
        else:
            backward.append(Segment(owner[index], seconds))
    whole_s = np.maximum(work.backward_s, 1e-12)
    forward = [Segment(each.group, work.forward_s * each.seconds / whole_s) for each in reversed(backward)]
    together = ranks > 1
    return ShardedStep(
        groups=tuple(
            Group(
                name=shard.name or "the rest",
                bytes=shard.bytes,
                gather_s=np.where(together, gather_s(float(shard.bytes)), 0.0),
                scatter_s=np.where(together, scatter_s(float(shard.bytes)), 0.0),
                reshards=shard.reshards,
                copy_out_s=np.where(together, copy_s_per_byte * shard.bytes, 0.0),
                copy_in_s=np.where(together, copy_s_per_byte * shard.bytes, 0.0),
            )
            for shard in shards
        ),
        forward=tuple(forward),
        backward=tuple(backward),
        optimizer_s=work.optimizer_s / ranks,
        passes=passes,
        blocking=blocking,
    )


def measured_cost(
    points: Sequence[ShardedPoint], work: Work, ranks: NDArray[np.int_], batches: NDArray[np.int_]
) -> tuple[Floats, Floats]:
    """Seconds that sharding itself takes from forward and backward, and bytes that it adds at the peak, by cell.

    They lie on lines over 1 / ranks, as what is divided among ranks does, and over the batch from the smallest to the
    largest that was measured; beyond these they stay what they are there.

    Args:
        points: Measured.
        work: Of one process with the whole model; its optimizer's part is not in what sharding takes.
        ranks: By cell.
        batches: Of one pass, by cell.
    """

    def at(batch: int) -> tuple[Floats, Floats]:
        here = sorted((point for point in points if point.batch == batch), key=lambda point: point.ranks)
        known = [-1 / point.ranks for point in here]
        seconds = np.interp(-1 / ranks, known, [point.added_s for point in here])
        return seconds, np.interp(-1 / ranks, known, [float(point.added_bytes) for point in here])

    smallest, largest = min(point.batch for point in points), max(point.batch for point in points)
    share = np.clip((batches - smallest) / max(largest - smallest, 1), 0.0, 1.0)
    (low_s, low_bytes), (high_s, high_bytes) = at(smallest), at(largest)
    added_s = low_s + share * (high_s - low_s)
    added_bytes = low_bytes + share * (high_bytes - low_bytes)
    own_s = np.maximum(added_s + work.optimizer_s * (1 - 1 / ranks), 0.0)  # below 0 it is noise
    return np.where(ranks > 1, own_s, 0.0), np.where(ranks > 1, added_bytes, 0.0)


def modelled_bytes(
    profile: ModelProfile, shards: Sequence[ShardGroup], ranks: NDArray[np.int_], batches: NDArray[np.int_], own: Floats
) -> Floats:
    """Memory of a rank where one process alone takes `own`, by cell, where it was not measured.

    A process holds its parameters and the optimizer's state, and either what forward kept or all gradients, whichever
    is more. A rank holds its part of the first two and of the gradients; whole are the groups that are not freed after
    forward, and of the others the largest three buffers at a time: its parameters, those that are gathered next, and
    the gradients that are reduced.
    """
    whole = float(sum(shard.bytes for shard in shards))
    state = whole * _STATES.get(profile.workload.optimizer, 0)
    first, last = profile.points[0], profile.points[-1]
    sample_bytes = max((last.memory_bytes - first.memory_bytes) / max(last.batch - first.batch, 1), 0.0)
    several = len(profile.points) > 1  # one point does not tell activations from the rest
    kept = sample_bytes * batches if several else np.full(len(batches), whole)
    kept_or_gradients = np.maximum(kept, whole) - np.maximum(kept, whole / ranks)
    stays = float(sum(shard.bytes for shard in shards if not shard.reshards))
    freed = max((shard.bytes for shard in shards if shard.reshards), default=0)
    less = (whole + state) * (1 - 1 / ranks) + kept_or_gradients
    return np.where(ranks > 1, np.maximum(own - less, 0.0) + stays + 3.0 * freed, own)
