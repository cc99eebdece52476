"""A whole step on a cluster: the profile's compute, the engine's exchange, the cluster's links and shared cores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scalescope.engines import find_engine
from scalescope.engines.base import SHARDING, Exchange
from scalescope.records.cluster import Cluster
from scalescope.records.job import Knobs
from scalescope.records.profile import ModelProfile
from scalescope.records.timeline import Activity, Span, Step, Timeline
from scalescope.simulator.compute import OverlapFactors, contention, cores_busy, overlap_factors, work
from scalescope.simulator.costs import CostModel
from scalescope.simulator.events import Floats, Outcome, OverlapSlowdown, Traffic, simulate
from scalescope.simulator.gpu import copy_s_per_byte, own_cost, unequal
from scalescope.simulator.jitter import jitter
from scalescope.simulator.sharded import ShardedOutcome, run
from scalescope.simulator.sharding import measured_cost, modelled_bytes, sharded_step
from scalescope.stats import PREDICTED, normal_width

_SMALLEST = 4.0  # Bytes of a message that says next to nothing
# A message that is sent alone waits for Horovod's next cycle, half of one on average: of 1 ms while it is probed.
_PROBED_WAIT_S = 0.5e-3
_HALF = normal_width(PREDICTED)


@dataclass(frozen=True)
class Steps:
    """Steps in many cells; seconds, one entry per cell."""

    broadcast_s: Floats  # Buffers, before the forward
    forward_s: Floats
    outcome: Outcome  # Backward and the exchange during it
    norms_s: Floats  # Statistics of SyncBatchNorm layers, which compute waits for in forward and backward
    finish_s: Floats  # From the end of both to the optimizer: what is left to copy back, and the engine's other work
    optimizer_s: Floats
    exposed_s: Floats  # Communication that nothing hides: records.timeline.exposed of the same step
    error: Floats  # Relative standard error from what the profile and the probe vary
    # The same of the step over that of one process with the same batch, where most of the profile's error cancels.
    ratio_error: Floats
    memory_bytes: Floats
    sharded: ShardedOutcome | None = None  # Of an engine that shards: when everything began and ended

    @property
    def step_s(self) -> Floats:
        """The whole step."""
        parts = (self.broadcast_s, self.forward_s, self.norms_s, self.outcome.sent_s, self.finish_s, self.optimizer_s)
        return np.asarray(sum(parts))


@dataclass(frozen=True)
class _Cells:
    """Cells to simulate: ranks[i] processes with batches[i] samples in each pass."""

    profile: ModelProfile
    cluster: Cluster
    exchange: Exchange
    ranks: NDArray[np.int_]
    batches: NDArray[np.int_]
    passes: int

    @property
    def nodes(self) -> NDArray[np.int_]:
        """Hosts that the processes of each cell are on."""
        return -(-self.ranks // self.cluster.slots_per_node)


def steps(
    profile: ModelProfile,
    cluster: Cluster,
    exchange: Exchange,
    ranks: NDArray[np.int_],
    batches: NDArray[np.int_],
    passes: int = 1,
    *,
    wrapped: bool = False,
    since_cycle_s: float | None = None,
) -> Steps:
    """The step of every cell (ranks[i] processes with batches[i] samples each, split into `passes`).

    One process is alone, without the engine, unless it is `wrapped`. `since_cycle_s` is what Traffic has.
    """
    sizes, row = np.unique(batches, return_inverse=True)
    alone = work(profile, sizes, passes)
    cells = _Cells(profile, cluster, exchange, ranks, -(-batches // passes), passes)
    batches, nodes = cells.batches, cells.nodes
    copies = np.minimum(ranks, cluster.slots_per_node).astype(float)
    contended = contention(profile, copies, batches.astype(float))
    together = ranks > 1
    slowdowns = overlap_factors(cluster, exchange.backend, ranks, nodes, cores_busy(profile))
    uneven, uneven_error = jitter(profile, copies, ranks.astype(float), batches.astype(float))
    if not exchange.shards:  # whose ranks wait for each other in every pass
        uneven = 1 + (uneven - 1) / math.sqrt(passes)  # slow passes of a rank even out over a step
    slowest, slowest_error = unequal(cluster, ranks)
    stretch = contended.slowdown * uneven * slowest * slowdowns.idle
    uneven_error = np.hypot(uneven_error, slowest_error)
    shared = np.where(together, np.hypot(np.hypot(contended.error, slowdowns.idle_error), uneven_error), 0.0)
    own = alone.error[row]
    if exchange.shards:
        return _sharded(cells, stretch, slowdowns, shared)
    engaged = together | wrapped
    around = own_cost(cluster, exchange, profile.ddp_s)
    messages = exchange.messages if engaged.any() else ()
    message_bytes = np.array([float(message.bytes) for message in messages])
    copy_s = around.copy_s[: len(messages), None] * engaged
    copied_s = np.cumsum(copy_s, axis=0)
    ready_s = (alone.ready_s[[message.last for message in messages]][:, row] * stretch) + copied_s
    links = _Links(cells)
    outcome = simulate(
        alone.backward_s[row] * stretch + copy_s.sum(axis=0),
        Traffic(
            ready_s=np.maximum.accumulate(ready_s, axis=0),
            bytes=message_bytes,
            cost=links.message_s,
            fuse_bytes=exchange.fuse_bytes,
            cycle_s=np.where(together, exchange.cycle_s, 0.0),
            agreement_s=links.agreement_s(),
            since_cycle_s=since_cycle_s,
        ),
        OverlapSlowdown(slowdowns.compute, slowdowns.sending),
    )
    broadcast_s, norms_s = links.broadcast_s(), passes * links.norms_s(profile.norm_channels)
    copied_back = outcome.backward_s  # in turn, after backward, each message after its arrival
    for arrived, seconds in zip(outcome.ends_s, copy_s, strict=True):
        copied_back = np.maximum(copied_back, arrived) + seconds
    finish_s = np.maximum(copied_back, outcome.sent_s) - outcome.sent_s + around.rest_s * engaged
    forward_s, optimizer_s = alone.forward_s[row] * stretch, alone.optimizer_s[row] * stretch
    whole_s = broadcast_s + forward_s + norms_s + outcome.sent_s + finish_s + optimizer_s
    exposed_s = broadcast_s + norms_s + outcome.exposed_s
    exposed = exposed_s / whole_s
    sent = _sent_error(outcome, broadcast_s + norms_s, whole_s, slowdowns, links.error())
    return Steps(
        broadcast_s=broadcast_s,
        forward_s=forward_s,
        norms_s=norms_s,
        outcome=outcome,
        finish_s=finish_s,
        optimizer_s=optimizer_s,
        exposed_s=exposed_s,
        error=np.hypot((1 - exposed) * np.hypot(own, shared), sent),
        ratio_error=np.hypot((1 - exposed) * shared, np.hypot(exposed * own, sent)),
        memory_bytes=alone.memory_bytes[row] + np.where(together & exchange.copies, message_bytes.sum(), 0.0),
    )


def _sharded(cells: _Cells, stretch: Floats, slowdowns: OverlapFactors, shared_error: Floats) -> Steps:
    """Steps of an engine that shards; backward holds all that compute waits for.

    Args:
        cells: Simulated.
        stretch: Time of compute over that of one process alone, by cell.
        slowdowns: What compute and messages do to each other.
        shared_error: Relative standard error of `stretch`.
    """
    profile, cluster, exchange, passes = cells.profile, cells.cluster, cells.exchange, cells.passes
    ranks, batches, nodes = cells.ranks, cells.batches, cells.nodes
    alone = work(profile, batches)
    if exchange.sharded:  # all copies are in what was measured
        own_s, added_bytes = measured_cost(exchange.sharded, alone, ranks, batches)
        copied_s_per_byte, memory_bytes = 0.0, np.maximum(alone.memory_bytes + added_bytes, 0.0)
    else:
        own_s, copied_s_per_byte = np.zeros(len(ranks)), copy_s_per_byte(cluster)
        memory_bytes = modelled_bytes(profile, exchange.shards, ranks, batches, alone.memory_bytes)
    longer = stretch * (1 + own_s / (alone.forward_s + alone.backward_s))
    here = replace(
        alone,
        forward_s=alone.forward_s * longer,
        backward_s=alone.backward_s * longer,
        optimizer_s=alone.optimizer_s * stretch,
        ready_s=alone.ready_s * longer,
    )
    gathers, scatters = (CostModel(cluster, exchange.backend, operation) for operation in SHARDING)
    link_error = gathers.error(ranks, nodes)
    overlapping = OverlapSlowdown(slowdowns.compute, slowdowns.sending)

    def simulated(slower: Floats | float) -> ShardedOutcome:
        step = sharded_step(
            exchange.shards,
            here,
            ranks,
            lambda size: slower * gathers.seconds(size, ranks, nodes),
            lambda size: slower * scatters.seconds(size, ranks, nodes),
            copy_s_per_byte=copied_s_per_byte,
            passes=passes,
            blocking=cluster.device == "cpu",
        )
        return run(step, overlapping)

    made, later = simulated(1.0), simulated(np.exp(_HALF * link_error))
    nothing = np.zeros(len(ranks))
    step_s, exposed_s, hidden_s = (np.asarray(each) + nothing for each in (made.step_s, made.exposed_s, made.hidden_s))
    forward_s, optimizer_s = passes * here.forward_s, here.optimizer_s / ranks
    norms_s = passes * _Links(cells).norms_s(profile.norm_channels)
    sent_s = step_s - forward_s - optimizer_s
    whole_s = step_s + norms_s
    stretched = hidden_s * slowdowns.compute_error / slowdowns.compute / whole_s
    sent = np.hypot(np.log(np.asarray(later.step_s) / step_s) / _HALF, stretched)
    exposed = (exposed_s + norms_s) / whole_s
    return Steps(
        broadcast_s=nothing,
        forward_s=forward_s,
        outcome=Outcome(
            backward_s=sent_s - exposed_s,
            sent_s=sent_s,
            hidden_s=hidden_s,
            starts_s=np.zeros((0, len(ranks))),
            ends_s=np.zeros((0, len(ranks))),
            since_cycle_s=nothing,
        ),
        norms_s=norms_s,
        finish_s=nothing,
        optimizer_s=optimizer_s,
        exposed_s=exposed_s + norms_s,
        error=np.hypot((1 - exposed) * np.hypot(alone.error, shared_error), sent),
        ratio_error=np.hypot((1 - exposed) * shared_error, np.hypot(exposed * alone.error, sent)),
        memory_bytes=memory_bytes,
        sharded=made,
    )


class _Links:
    """Seconds of an exchange's messages between the ranks of every cell; none for one rank."""

    def __init__(self, cells: _Cells) -> None:
        cluster, exchange, ranks, nodes = cells.cluster, cells.exchange, cells.ranks, cells.nodes
        self._cluster, self._exchange, self._ranks, self._nodes = cluster, exchange, ranks, nodes
        self._allreduce = CostModel(cluster, exchange.backend, "allreduce", exchange.algorithm, exchange.protocol)
        # A negotiated message that was measured waited for its cycle and its agreement, which the simulation adds.
        self._small_s = np.zeros(len(ranks))
        if exchange.negotiated:
            self._small_s = self._allreduce.seconds(_SMALLEST, ranks, nodes)
        self._measured = any(costs.backend == exchange.backend for costs in cluster.costs)

    def message_s(self, bytes_: Floats, cells: NDArray[np.int_]) -> Floats:
        """Seconds of a message alone in some cells, once all ranks are ready for it."""
        seconds = self._allreduce_s(bytes_, self._ranks[cells], self._nodes[cells])
        return np.maximum(seconds - self._small_s[cells], 0.0)

    def _allreduce_s(self, bytes_: Floats, ranks: NDArray[np.int_], nodes: NDArray[np.int_]) -> Floats:
        """Seconds of an allreduce, over all ranks at once or, where hosts have equally many, inside and between hosts.

        By hosts every rank of a host sends its share of the message over the link that they have in common, which takes
        as long as one rank with all of it.
        """
        flat = self._allreduce.seconds(bytes_, ranks, nodes)
        local = -(-ranks // nodes)
        several = (nodes > 1) & (local > 1) & (local * nodes == ranks)
        if not self._exchange.by_hosts or not several.any():
            return flat
        inside = self._allreduce.seconds(bytes_[several], local[several], 1)
        between = self._allreduce.seconds(bytes_[several], nodes[several], nodes[several])
        flat[several] = inside + between
        return flat

    def agreement_s(self) -> Floats:
        """Seconds in which the ranks agree on a message, and send one that is almost empty."""
        waited = _PROBED_WAIT_S if self._measured else 0.0
        questions = 1 if self._exchange.agreements_kept else 2
        return questions * np.maximum(self._small_s - waited, 0.0)

    def broadcast_s(self) -> Floats:
        """Seconds of everything that rank 0 sends before the forward."""
        model = CostModel(self._cluster, self._exchange.backend, "broadcast")
        each = [model.seconds(float(size), self._ranks, self._nodes) for size in self._exchange.broadcasts]
        return sum(each, np.zeros(len(self._ranks)))

    def norms_s(self, channels: Sequence[int]) -> Floats:
        """Seconds of SyncBatchNorm: layers gather mean, variance, count in forward, and sum 2 gradients in backward."""
        total = np.zeros(len(self._ranks))
        for size in channels:
            gathered = 4.0 * (2 * size + 1) * self._ranks / 2  # gathering sends half of what summing as much does
            for bytes_ in (gathered, 8.0 * size):
                total = total + self._allreduce.seconds(bytes_, self._ranks, self._nodes)
        return total

    def error(self) -> Floats:
        """Relative standard error of a message."""
        return self._allreduce.error(self._ranks, self._nodes)


def _sent_error(
    outcome: Outcome, waited_s: Floats, whole_s: Floats, slowdowns: OverlapFactors, link_error: Floats
) -> Floats:
    """Relative standard error of a step from messages that take longer than thought and overlap that costs more.

    Longer messages fill the pauses between them first; what does not fit there comes after backward. The end of the
    interval is what counts, so it is worked out for messages that are longer by its half-width.
    """
    hidden, exposed = outcome.hidden_s, outcome.exposed_s
    sends = outcome.ends_s > 0
    began = np.where(sends, outcome.starts_s, np.inf).min(axis=0, initial=np.inf)
    travelling = (outcome.ends_s - outcome.starts_s).sum(axis=0)
    pauses = np.where(np.isfinite(began), np.maximum(outcome.sent_s - began - travelling, 0.0), 0.0)
    lost = np.maximum(1 - 1 / slowdowns.compute, 0.0)  # of compute, while a message travels
    more = np.expm1(_HALF * link_error)
    later = np.maximum(exposed * more, travelling * more - pauses) + (hidden * lost + waited_s) * more
    links = np.log1p(later / whole_s) / _HALF
    slower = np.maximum(hidden * slowdowns.sending_error / slowdowns.sending - pauses, 0.0)
    slower = (slower + hidden * lost * slowdowns.sending_error) / whole_s
    stretched = hidden * slowdowns.compute_error / slowdowns.compute / whole_s
    return np.asarray(np.hypot(links, np.hypot(slower, stretched)))


def predicted_step(
    profile: ModelProfile, cluster: Cluster, knobs: Knobs, np_: int, batch: int, passes: int = 1
) -> Timeline:
    """The step of the slowest of `np_` processes with `batch` samples each; all of them look alike."""
    exchange = find_engine(knobs.engine).exchange(profile, knobs.values)
    made = steps(profile, cluster, exchange, np.array([np_]), np.array([batch]), passes)
    if made.sharded is not None:
        return _sharded_timeline(made, np_)
    spans: list[Span] = []
    at = 0.0

    def add(activity: Activity, start_s: float, end_s: float, name: str, size: int = 0) -> None:
        if end_s > start_s:
            spans.append(Span(rank=0, activity=activity, start_s=start_s, end_s=end_s, name=name, bytes=size))

    broadcast_s, forward_s, optimizer_s = (
        float(part[0]) for part in (made.broadcast_s, made.forward_s, made.optimizer_s)
    )
    add("communication", at, at + broadcast_s, "buffers", sum(exchange.broadcasts))
    at += broadcast_s
    add("forward", at, at + forward_s, "forward" if passes == 1 else f"{passes - 1} passes before, and forward")
    at += forward_s
    add("communication", at, at + float(made.norms_s[0]), "statistics of batch norms")
    at += float(made.norms_s[0])
    outcome = made.outcome
    add("backward", at, at + float(outcome.backward_s[0]), "backward")
    free = float(outcome.backward_s[0])
    firsts = [index for index, end in enumerate(outcome.ends_s[:, 0]) if end > 0]  # of messages that travelled together
    for first, after in zip(firsts, [*firsts[1:], len(outcome.ends_s)], strict=False) if np_ > 1 else ():
        if exchange.negotiated:
            add("negotiation", at + free, at + float(outcome.starts_s[first, 0]), "until all ranks agree")
            free = max(free, float(outcome.ends_s[first, 0]))
        size = sum(message.bytes for message in exchange.messages[first:after])
        tensors = sum(message.tensors for message in exchange.messages[first:after])
        name = f"allreduce of {tensors} gradients" if tensors > 1 else "allreduce of 1 gradient"
        add("communication", at + float(outcome.starts_s[first, 0]), at + float(outcome.ends_s[first, 0]), name, size)
    at += float(outcome.sent_s[0])
    add("copy", at, at + float(made.finish_s[0]), "gradients out of buckets")
    at += float(made.finish_s[0])
    add("optimizer", at, at + optimizer_s, "optimizer")
    return Timeline(source="predicted", spans=tuple(spans), steps=(Step(rank=0, start_s=0.0, end_s=at + optimizer_s),))


def _sharded_timeline(made: Steps, np_: int) -> Timeline:
    """Everything that an engine that shards does in a step of the first cell."""
    assert made.sharded is not None
    words = {"gather": "all-gather of", "scatter": "reduce-scatter of", "allreduce": "allreduce of"}
    spans = []
    for done in made.sharded.done:
        start_s, end_s = (float(np.ravel(moment)[0]) for moment in (done.start_s, done.end_s))
        activity: Activity = "communication"
        if done.kind in ("forward", "backward", "optimizer"):
            activity = done.kind
        if end_s > start_s and (np_ > 1 or activity != "communication"):
            name = f"{words.get(done.kind, done.kind)} {done.name}" if done.kind != "optimizer" else done.kind
            spans.append(Span(rank=0, activity=activity, start_s=start_s, end_s=end_s, name=name, bytes=done.bytes))
    end_s = float(np.ravel(made.sharded.step_s)[0])
    norms_s = float(made.norms_s[0])
    if norms_s > 0:
        name = "statistics of batch norms"
        spans.append(Span(rank=0, activity="communication", start_s=end_s, end_s=end_s + norms_s, name=name))
        end_s += norms_s
    return Timeline(source="predicted", spans=tuple(spans), steps=(Step(rank=0, start_s=0.0, end_s=end_s),))
