"""A step that was recorded as rank 0 of N, where collectives cost nothing, with messages that take their time.

Compute goes on as it was recorded, a message enters the queue of its group when compute has come to where it was
issued, and compute stands still where it waits for one that is not over. So what a recording on a GPU shows of FSDP2's
order holds with slow messages, too: a gather was issued where the parameters of the group before were copied out. One
rule is not in it, because no reduce-scatter was ever under way: compute waits for one before it issues the next
(simulator.sharded). Seconds from the start of the step.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalescope.engines import KNOWN, USUAL
from scalescope.records.cluster import Cluster, Operation
from scalescope.records.rank_zero import Collective, Message, RankZero
from scalescope.records.timeline import Activity, Span, Step, Timeline
from scalescope.simulator.costs import STAND_IN_ERROR, CostModel
from scalescope.simulator.events import Floats, OverlapSlowdown

# What a cluster's tables and links know it as; those with the same traffic stand in for what nobody measures.
_KNOWN: dict[Collective, Operation] = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
}
_LIKE: dict[Collective, Operation] = {
    "reduce": "broadcast",  # the same tree the other way round
    "gather": "allgather",  # as many bytes through the link of one rank
    "scatter": "allgather",
    "all_to_all": "allgather",
    "send": "broadcast",
    "recv": "broadcast",
    "barrier": "allreduce",
}
_ALMOST_EMPTY = 4  # Bytes of a barrier
_TINY = 1e-12


@dataclass(frozen=True)
class Travelled:
    """A message of a step: when it was under way."""

    message: Message
    start_s: float
    end_s: float


@dataclass(frozen=True)
class RecordedOutcome:
    """A recorded step with messages that take time."""

    step_s: float
    exposed_s: float  # In which compute waited for a message (records.timeline.exposed of the same step)
    hidden_s: float  # In which messages travelled under compute
    travelled: tuple[Travelled, ...]  # In order of issue
    computed: tuple[tuple[float, float, float, float], ...]  # From when to when, and work done before and after

    def timeline(self, record: RankZero, work_s: float) -> Timeline:
        """The step for charts; what `record` says of forward, backward and optimizer divides `work_s` of compute."""
        spans = [
            Span(rank=0, activity=activity, start_s=start_s, end_s=end_s, name=activity)
            for piece in self.computed
            for activity, start_s, end_s in _phases(record, work_s, *piece)
        ]
        spans += [
            Span(
                rank=0,
                activity="communication",
                start_s=each.start_s,
                end_s=each.end_s,
                name=_named(each.message),
                bytes=each.message.bytes,
            )
            for each in self.travelled
            if each.end_s > each.start_s
        ]
        step = Step(rank=0, start_s=0.0, end_s=self.step_s)
        return Timeline(source="predicted", spans=tuple(spans), steps=(step,))


def run(
    record: RankZero,
    costs_s: Sequence[float] | Floats,
    slowdown: OverlapSlowdown | None = None,
    *,
    work_s: float | None = None,
) -> RecordedOutcome:
    """Simulate the recorded step.

    Args:
        record: The step.
        costs_s: Of each message alone, once all ranks are there.
        slowdown: What compute and messages do to each other; numbers, not arrays.
        work_s: Seconds of compute that the step stands for, over which its recorded moments are spread; None: its own.
    """
    compute, sending = (1.0, 1.0) if slowdown is None else (float(slowdown.compute), float(slowdown.sending))
    work_s = record.compute_s if work_s is None else work_s
    moments = _moments(record, work_s)
    queues: dict[str, deque[int]] = {each.group: deque() for each in record.messages}
    after = _after(record.messages)
    left, started, ended = [float(cost_s) for cost_s in costs_s], [-1.0] * len(costs_s), [-1.0] * len(costs_s)
    now = done = exposed = hidden = 0.0
    computed: list[tuple[float, float, float, float]] = []
    at, waiting = 0, -1
    while True:
        while waiting < 0 and at < len(moments) and moments[at][0] <= done + _TINY:
            _, waits, number = moments[at]
            at += 1
            if waits:
                waiting = number if ended[number] < 0 else -1
                continue
            queues[record.messages[number].group].append(number)
        first = [queue[0] for queue in queues.values() if queue]
        heads = [head for head in first if head not in after or ended[after[head]] >= 0]
        for head in heads:
            started[head] = now if started[head] < 0 else started[head]
        computing = waiting < 0
        if computing and done >= work_s - _TINY and at >= len(moments):
            break
        both = computing and bool(heads)
        pace, rate = (1 / compute, 1 / sending) if both else (1.0, 1.0)
        goal = moments[at][0] if at < len(moments) else work_s
        step = (goal - done) / pace if computing else float("inf")
        step = max(min([step, *(left[head] / rate for head in heads)]), 0.0)
        before, done = done, done + step * pace if computing else done
        if computing and step > 0:
            computed.append((now, now + step, before, done))
        now += step
        hidden, exposed = hidden + step * both, exposed + step * (not computing)
        for head in heads:
            left[head] -= step * rate
            if left[head] <= _TINY:
                queues[record.messages[head].group].popleft()
                ended[head] = now
                if waiting == head:
                    waiting = -1
    travelled = [
        Travelled(message, started[number], ended[number])
        for number, message in enumerate(record.messages)
        if ended[number] >= 0
    ]
    return RecordedOutcome(now, exposed, hidden, tuple(travelled), tuple(computed))


def _after(messages: Sequence[Message]) -> dict[int, int]:
    """Messages that need the result of one in another group: HSDP sums over replicas what it reduced among shards."""
    found, scatter = {}, -1
    for number, message in enumerate(messages):
        if message.operation == "reduce_scatter":
            scatter = number
        elif message.operation == "all_reduce" and message.phase == "backward" and scatter >= 0:
            before = messages[scatter]
            if before.module == message.module and before.group != message.group:
                found[number] = scatter
    return found


def _moments(record: RankZero, work_s: float) -> list[tuple[float, bool, int]]:
    """List when a step issues messages and waits for them: seconds of work done, whether it waits, the message."""
    backward_end_s = record.recorded_step_s * (1 - record.optimizer_s / max(record.step_s, _TINY))
    blocks = blocks_compute(record)
    found: list[tuple[float, bool, int]] = []
    scatter: int | None = None
    for number, message in enumerate(record.messages):
        needed_s = message.issued_s if blocks else message.needed_s
        if message.phase == "backward" and message.operation in ("reduce_scatter", "all_reduce") and needed_s is None:
            needed_s = backward_end_s
        if message.operation == "reduce_scatter" and message.phase == "backward":
            if scatter is not None:  # only one is outstanding
                found.append((message.issued_s, True, scatter))
            scatter = number
        found.append((message.issued_s, False, number))
        if needed_s is not None:
            found.append((max(needed_s, message.issued_s), True, number))
    # In the order of time; what comes at once in that of issue, as it stands here.
    found.sort(key=lambda each: each[0])
    scale = work_s / max(record.recorded_step_s, _TINY)
    return [(min(moment_s * scale, work_s), waits, number) for moment_s, waits, number in found]


def blocks_compute(record: RankZero) -> bool:
    """True where each collective stops compute until it is over: over gloo those of an engine that shards."""
    return record.device == "cpu" and "allgather" in KNOWN.get(record.engine, USUAL).operations


def message_costs(messages: Sequence[Message], cluster: Cluster, backend: str) -> tuple[Floats, Floats]:
    """Seconds of each message alone on a cluster, and the relative standard error of that."""
    seconds, errors = np.zeros(len(messages)), np.zeros(len(messages))
    for operation in operations_of(messages):
        here = [number for number, message in enumerate(messages) if _operation(message) == operation]
        known = np.array([messages[number].operation in _KNOWN for number in here])
        places = np.array([_place(messages[number], cluster) for number in here])
        size, ranks, nodes = places.T
        model = CostModel(cluster, backend, operation)
        seconds[here] = model.seconds(size, ranks, nodes)
        errors[here] = np.where(ranks > 1, model.error(ranks, nodes) + np.where(known, 0.0, STAND_IN_ERROR), 0.0)
    return seconds, errors


def operations_of(messages: Sequence[Message]) -> set[Operation]:
    """The operations that tell what these messages cost."""
    return {_operation(message) for message in messages}


def _operation(message: Message) -> Operation:
    return _KNOWN.get(message.operation) or _LIKE[message.operation]


def _place(message: Message, cluster: Cluster) -> tuple[float, int, int]:
    """Bytes, ranks and nodes of a message as a group of neighbours would send it.

    Groups of ranks that are apart, as the replicas of HSDP, all send at once over the links that nodes have in common:
    as much as one group with the bytes of all of them.
    """
    ranks, stride, slots = message.ranks, message.stride, cluster.slots_per_node
    size = float(message.bytes) or _ALMOST_EMPTY
    if message.operation in ("send", "recv"):
        ranks = min(ranks, 2)
    if stride == 1:
        nodes, beside = -(-ranks // slots), 1
    elif stride == 0:
        nodes, beside = min(ranks, cluster.nodes), 1
    else:
        on_node = max(-(-slots // stride), 1) if (ranks - 1) * stride >= slots else ranks
        nodes = -(-ranks // on_node)
        beside = min(stride, slots) if nodes > 1 else 1
    if message.operation == "all_to_all" and nodes > 1:  # where a ring crosses once, every rank of a node does
        beside *= -(-ranks // nodes)
    return size * beside, ranks, nodes


def _phases(
    record: RankZero, work_s: float, start_s: float, end_s: float, before_s: float, after_s: float
) -> list[tuple[Activity, float, float]]:
    """Activities of compute from start to end: input and the like first, then forward, backward, optimizer."""
    scale = work_s / max(record.step_s, _TINY)
    optimizer = work_s - scale * record.optimizer_s
    backward = optimizer - scale * record.backward_s
    forward = max(backward - scale * record.forward_s, 0.0)
    parts: tuple[tuple[Activity, float, float], ...] = (
        ("other", 0.0, forward),
        ("forward", forward, backward),
        ("backward", backward, optimizer),
        ("optimizer", optimizer, work_s),
    )
    longer = (end_s - start_s) / max(after_s - before_s, _TINY)
    found = []
    for activity, low, high in parts:
        first, last = max(low, before_s), min(high, after_s)
        if last - first > _TINY:
            found.append((activity, start_s + longer * (first - before_s), start_s + longer * (last - before_s)))
    return found


def _named(message: Message) -> str:
    words = message.operation.replace("_", "-") if message.operation != "all_reduce" else "allreduce"
    return f"{words} of {message.module}" if message.module else words
