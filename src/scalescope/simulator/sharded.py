"""One step of a model that FSDP2 shards: which compute waits for which gather, and what limits the gathers.

A rank has a stream that computes and a queue in which the collectives of a group of ranks run one after another, in
the order in which the CPU issues them. The rules are those of torch.distributed.fsdp.fully_shard (torch 2.13). Seconds
are numbers or arrays with one entry per configuration (cell), which all take the same course. `replay` explains what to
pass for a recorded step; `run` is the simulation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalescope.simulator.events import OverlapSlowdown

Seconds = NDArray[np.float64] | float
Kind = Literal["forward", "backward", "gather", "scatter", "allreduce", "optimizer"]

_OUTSTANDING = 1  # Reduce-scatters that may be under way when the next one is issued; compute waits for the oldest


@dataclass(frozen=True)
class Group:
    """Parameters that are gathered, freed and reduced together: one call of fully_shard."""

    name: str
    bytes: int  # Of all ranks together, as they are gathered
    gather_s: Seconds  # All-gather alone
    scatter_s: Seconds  # Reduce-scatter of its gradients alone
    allreduce_s: Seconds = 0.0  # Of its shard over the replicas of HSDP, which follows the reduce-scatter
    regather_s: Seconds | None = (
        None  # All-gather in backward where it is another (reshard_after_forward=N); None: same
    )
    reshards: bool = True  # Whether parameters are freed after forward and gathered again in backward; not of the root
    copy_out_s: Seconds = 0.0  # From the gathered buffer into parameters, by compute
    copy_in_s: Seconds = 0.0  # Of gradients into the buffer of the reduce-scatter, by compute
    gather_launch_s: Seconds = 0.0  # What the CPU needs to issue an all-gather
    scatter_launch_s: Seconds = 0.0  # What it needs to issue a reduce-scatter


@dataclass(frozen=True)
class Segment:
    """Compute between two points at which FSDP2 acts."""

    group: int  # Index of the group whose parameters it uses
    seconds: Seconds
    launch_s: Seconds = 0.0  # What the CPU needs to start it: gathers of later segments are issued no earlier
    synchronizes: bool = False  # Whether the CPU waits for its end, as by .item(), instead of running ahead


@dataclass(frozen=True)
class ShardedStep:
    """A step by its groups and its compute; the root's group usually has the first and the last segment."""

    groups: tuple[Group, ...]
    forward: tuple[Segment, ...]  # In their order
    backward: tuple[Segment, ...]  # In their order: a group is reduced after its last segment
    optimizer_s: Seconds = 0.0
    passes: int = 1  # Micro-batches of gradient accumulation; each takes `forward` and `backward`
    syncs_every_pass: bool = False  # Whether gradients are reduced in every micro-batch instead of the last one only
    forward_prefetch: int = 0  # Groups ahead that set_modules_to_forward_prefetch names; 0: none
    backward_prefetch: int = 1  # Groups ahead that backward gathers; FSDP2 does one by itself
    blocking: bool = False  # Whether compute stands still during a collective, as over gloo

    def with_prefetch(self, groups: int = 1) -> "ShardedStep":
        """The same step with gathers issued this many groups ahead, in forward and backward."""
        ahead = max(groups, self.forward_prefetch), max(groups, self.backward_prefetch)
        return replace(self, forward_prefetch=ahead[0], backward_prefetch=ahead[1])

    def without_reshard(self) -> "ShardedStep":
        """The same step with parameters kept from forward to backward (reshard_after_forward=False)."""
        return replace(self, groups=tuple(replace(group, reshards=False) for group in self.groups))

    def synced_once(self) -> "ShardedStep":
        """The same step with gradients reduced in the last micro-batch only."""
        return replace(self, syncs_every_pass=False)


@dataclass(frozen=True)
class Done:
    """Something that took time: when, for which group, in which micro-batch."""

    kind: Kind
    name: str
    bytes: int
    start_s: Seconds
    end_s: Seconds


@dataclass(frozen=True)
class ShardedOutcome:
    """A step that was simulated; seconds, one entry per cell."""

    step_s: Seconds
    compute_s: Seconds  # Forward, backward and the copies, without the optimizer
    exposed_s: Seconds  # In which compute waited for a collective
    collectives_s: Seconds  # All of them
    done: tuple[Done, ...]  # In order of issue

    @property
    def hidden_s(self) -> Seconds:
        """Collectives under compute."""
        return np.maximum(self.collectives_s - self.exposed_s, 0.0)


def replay(step: ShardedStep) -> float:
    """Seconds of a recorded step under FSDP2's rules.

    Pass what one rank did in one steady step, as a `ShardedStep`:

    - `groups`: one per call of fully_shard, the root first; `bytes` as gathered, `gather_s` and `scatter_s` the median
      of the transfers of its all-gathers and reduce-scatters (the kernel alone, from the start of the last rank; over
      gloo the whole call, waiting included), `allreduce_s` of HSDP, `reshards` False where backward gathered nothing.
    - `forward` and `backward`: the compute of one micro-batch in order, cut where a gather is waited for (and, in
      backward, where a reduce-scatter is issued): the busy time of the compute stream, or over gloo the time between
      two collectives. `launch_s` is the CPU time from this point of the script to the next one; leave it 0 where the
      CPU runs far ahead, and set `synchronizes` where it waits for the device. A root with compute before and after
      the blocks has two segments.
    - `optimizer_s`: the rest of the step. `passes`, `syncs_every_pass`, `forward_prefetch` as the trace shows them.
      `blocking`: True over gloo.

    A change is another step: `replay(step.with_prefetch())`, `replay(step.without_reshard())`,
    `replay(step.synced_once())`; its gain is `replay(step)` over that, minus 1.
    """
    return float(np.asarray(run(step).step_s).reshape(-1)[0])


def run(step: ShardedStep, slowdown: OverlapSlowdown | None = None) -> ShardedOutcome:
    """Simulate a step, from the end of the last optimizer step to the end of its own.

    Args:
        step: What is computed and sent.
        slowdown: What compute and collectives do to each other; each is stretched by as much as it overlaps.
    """
    alone = _Rank(step).run()
    if slowdown is None or step.blocking:
        return alone
    hidden_s = alone.hidden_s
    compute = 1 + _share(hidden_s, alone.compute_s) * (slowdown.compute - 1)
    sending = 1 + _share(hidden_s, alone.collectives_s) * (slowdown.sending - 1)
    return _Rank(_stretched(step, compute, sending)).run()


class _Rank:
    """The streams of one rank: each attribute in seconds is when that stream is free."""

    def __init__(self, step: ShardedStep) -> None:
        self._step = step
        self._cpu: Seconds = 0.0
        self._compute: Seconds = 0.0
        self._queue: Seconds = 0.0  # Collectives of the group that shards
        self._replicas: Seconds = 0.0  # All-reduces of HSDP
        self._gathers_from: Seconds = 0.0  # Events that every later gather waits for
        self._copied_out: Seconds | None = None  # End of the last copy out of a gathered buffer
        self._pending: dict[int, Seconds] = {}  # Gathers on their way, by group: their ends
        self._whole: set[int] = set()  # Groups whose parameters are there
        self._outstanding: list[Seconds] = []  # Ends of reduce-scatters that compute has not waited for
        self._reduced: Seconds = 0.0  # End of the last reduction
        self._computed: Seconds = 0.0
        self._waited: Seconds = 0.0
        self._sent: Seconds = 0.0
        self._done: list[Done] = []

    def run(self) -> ShardedOutcome:
        step = self._step
        for number in range(step.passes):
            self._forward()
            self._backward(syncs=step.syncs_every_pass or number == step.passes - 1)
        computed = self._computed
        self._work("optimizer", "optimizer", step.optimizer_s)
        return ShardedOutcome(self._compute, computed, self._waited, self._sent, tuple(self._done))

    def _forward(self) -> None:
        step = self._step
        order = _first_uses(step.forward)
        last_uses = _last_uses(step.forward)
        self._gathers_from = self._compute  # the optimizer, or the micro-batch before
        self._copied_out = None
        for at, segment in enumerate(step.forward):
            group = segment.group
            if group not in self._whole:
                self._gather(group, step.groups[group].gather_s)
                if self._copied_out is not None:  # so that at most two gathers are ahead of compute
                    self._gathers_from = np.maximum(self._gathers_from, self._copied_out)
                self._copy_out(group)
                for ahead in _next(order, group, step.forward_prefetch):
                    self._gather(ahead, step.groups[ahead].gather_s)
            self._segment("forward", segment)
            if last_uses[group] == at and step.groups[group].reshards:
                self._whole.discard(group)
        if self._copied_out is not None:
            self._gathers_from = np.maximum(self._gathers_from, self._copied_out)

    def _backward(self, *, syncs: bool) -> None:
        step = self._step
        order = _first_uses(step.backward)
        last_uses = _last_uses(step.backward)
        begun: set[int] = set()
        for at, segment in enumerate(step.backward):
            group = segment.group
            if group not in self._whole:
                self._gather(group, _regather_s(step.groups[group]))
                self._gathers_from = np.maximum(self._gathers_from, self._copy_out(group))
            if group not in begun:
                begun.add(group)
                for ahead in _next(order, group, step.backward_prefetch):
                    self._gather(ahead, _regather_s(step.groups[ahead]))
            self._segment("backward", segment)
            if last_uses[group] == at:
                self._whole.discard(group)
                if syncs:
                    self._reduce(step.groups[group])
        self._wait(self._reduced)
        self._outstanding.clear()
        self._whole.clear()

    def _gather(self, index: int, seconds: Seconds) -> None:
        """Issue an all-gather unless its parameters are there or on their way."""
        if index in self._whole or index in self._pending:
            return
        group = self._step.groups[index]
        self._cpu = self._cpu + group.gather_launch_s
        self._pending[index] = self._queue = self._send("gather", group, self._queue, self._gathers_from, seconds)

    def _copy_out(self, index: int) -> Seconds:
        """Wait for a gather and copy its parameters out of the buffer."""
        self._wait(self._pending.pop(index))
        self._whole.add(index)
        self._copy(self._step.groups[index].copy_out_s)
        self._copied_out = self._compute
        return self._compute

    def _reduce(self, group: Group) -> None:
        """Reduce-scatter a group's gradients, and sum the shards over replicas."""
        while len(self._outstanding) >= _OUTSTANDING:
            self._wait(self._outstanding.pop(0))
        self._copy(group.copy_in_s)
        self._cpu = self._cpu + group.scatter_launch_s
        ended = self._queue = self._send("scatter", group, self._queue, self._compute, group.scatter_s)
        self._outstanding.append(ended)
        if np.any(np.asarray(group.allreduce_s) > 0):
            ended = self._replicas = self._send("allreduce", group, self._replicas, ended, group.allreduce_s)
        self._reduced = np.maximum(self._reduced, ended)

    def _send(self, kind: Kind, group: Group, queue: Seconds, after: Seconds, seconds: Seconds) -> Seconds:
        """End of a collective that starts when its queue is free, after an event, and not before it is issued."""
        start = np.maximum(np.maximum(queue, after), self._cpu)
        if self._step.blocking:
            start = np.maximum(start, self._compute)
        end = start + seconds
        if self._step.blocking:
            self._wait(end)
        self._sent = self._sent + seconds
        self._done.append(Done(kind, group.name, group.bytes, start, end))
        return end

    def _segment(self, kind: Kind, segment: Segment) -> None:
        self._cpu = self._cpu + segment.launch_s
        self._work(kind, self._step.groups[segment.group].name, segment.seconds)
        # The last kernel cannot end before it is started.
        self._compute = np.maximum(self._compute, self._cpu)
        if segment.synchronizes:
            self._cpu = self._compute
        self._computed = self._computed + segment.seconds

    def _work(self, kind: Kind, name: str, seconds: Seconds) -> None:
        start = self._compute
        self._compute = start + seconds
        self._done.append(Done(kind, name, 0, start, self._compute))

    def _copy(self, seconds: Seconds) -> None:
        self._compute = self._compute + seconds
        self._computed = self._computed + seconds

    def _wait(self, until: Seconds) -> None:
        """Compute waits; the CPU, which runs ahead, does not."""
        self._waited = self._waited + np.maximum(until - self._compute, 0.0)
        self._compute = np.maximum(self._compute, until)


def _first_uses(segments: Sequence[Segment]) -> list[int]:
    """Groups in the order in which they are used."""
    return list(dict.fromkeys(segment.group for segment in segments))


def _last_uses(segments: Sequence[Segment]) -> dict[int, int]:
    return {segment.group: at for at, segment in enumerate(segments)}


def _next(order: Sequence[int], group: int, count: int) -> Sequence[int]:
    """The groups that follow one."""
    at = order.index(group) + 1
    return order[at : at + count]


def _regather_s(group: Group) -> Seconds:
    return group.gather_s if group.regather_s is None else group.regather_s


def _share(part_s: Seconds, whole_s: Seconds) -> Seconds:
    return np.minimum(part_s / np.maximum(whole_s, 1e-12), 1.0)


def _stretched(step: ShardedStep, compute: Seconds, sending: Seconds) -> ShardedStep:
    def longer(segments: Sequence[Segment]) -> tuple[Segment, ...]:
        return tuple(replace(segment, seconds=segment.seconds * compute) for segment in segments)

    groups = tuple(
        replace(
            group,
            gather_s=group.gather_s * sending,
            scatter_s=group.scatter_s * sending,
            allreduce_s=group.allreduce_s * sending,
            regather_s=None if group.regather_s is None else group.regather_s * sending,
        )
        for group in step.groups
    )
    return replace(step, groups=groups, forward=longer(step.forward), backward=longer(step.backward))
