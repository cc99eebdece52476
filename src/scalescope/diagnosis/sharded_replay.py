"""Replay of FSDP2: a typical step on a GPU, run again by the simulator with something changed.

Over gloo collectives block: what they cost is what goes without them, and waiting for other ranks is not.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.diagnosis.traces import JobTraces
from scalescope.intervals import between
from scalescope.records.explanation import Explanation
from scalescope.records.timeline import BUSY, moments
from scalescope.simulator.sharded import Group, Segment, ShardedStep, replay
from scalescope.traces.trace import Issued, Trace

_AS_SEEN = 0.05  # Of a step by which its replay may differ, before nothing is concluded from it


class ShardedReplay(NamedTuple):
    """A step that was seen, from its first gather to that of the next one, and what it takes by FSDP2's rules."""

    step: ShardedStep
    seen_s: float
    replayed_s: float

    @property
    def is_as_seen(self) -> bool:
        """True if the rules explain the step."""
        return abs(self.replayed_s / self.seen_s - 1) <= _AS_SEEN

    def saved_s(self, changed: ShardedStep) -> float:
        """Seconds that a step takes less if it is changed so."""
        return self.replayed_s - replay(changed)


def sharded_replay_of(job: JobTraces, explanation: Explanation) -> ShardedReplay | None:
    """The typical steady step of the first rank; None where its trace does not say what FSDP2 did on a GPU."""
    trace = job.traces[0]
    if trace.device != "cuda" or trace.issued is None or len(trace.starts_s) <= explanation.warmup_steps:
        return None
    begins = _passes(trace, trace.issued, float(trace.starts_s[explanation.warmup_steps]))
    starts = np.flatnonzero(np.concatenate([[False], ~trace.issued.followed[begins[:-1]]])) if len(begins) else begins
    if len(starts) < 2:
        return None
    edges = trace.collectives.start_s[begins[starts]]
    lengths = np.diff(edges)
    at = int(np.argmin(np.abs(lengths - np.median(lengths))))
    passes = trace.collectives.start_s[begins[starts[at] : starts[at + 1]]]
    step = _step(job, trace, trace.issued, passes.tolist(), float(edges[at + 1]))
    return None if step is None else ShardedReplay(step, float(lengths[at]), replay(step))


def _passes(trace: Trace, issued: Issued, since_s: float) -> NDArray[np.int64]:
    """The first gather of every forward pass."""
    seen = trace.collectives
    gathers = np.flatnonzero((seen.operation == "allgather") & (issued.phase == "forward") & (seen.start_s >= since_s))
    gathers = gathers[np.argsort(seen.start_s[gathers])]
    scatters = np.sort(seen.start_s[(seen.operation == "reducescatter") & (issued.phase == "backward")])
    if not len(gathers) or not len(scatters):
        return gathers[:0]
    # A forward begins with the module that was gathered first after a reduction
    before = np.searchsorted(scatters, seen.start_s[gathers])
    first = issued.module[gathers[1:]][np.diff(before) > 0]
    return gathers[issued.module[gathers] == first[0]] if len(first) else gathers[:0]


def _step(job: JobTraces, trace: Trace, issued: Issued, passes: Sequence[float], end_s: float) -> ShardedStep | None:
    seen = trace.collectives
    inside = (seen.start_s >= passes[0]) & (seen.start_s < end_s) & (issued.phase != "")
    order = np.flatnonzero(inside)[np.argsort(seen.start_s[inside])]
    gathers = order[(seen.operation[order] == "allgather") & (issued.phase[order] == "forward")]
    scatters = order[(seen.operation[order] == "reducescatter") & (seen.start_s[order] >= passes[-1])]
    names = list(dict.fromkeys(issued.module[gathers].tolist()))
    # Where compute of the last pass reaches the parameters of a module, or has its gradients
    points = [copy for copy in issued.copies if passes[-1] <= copy[2] < end_s]
    modules, starts = [module for _, module, _ in points], np.array([start_s for _, _, start_s in points])
    if not len(scatters) or modules[: len(names)] != names:
        return None
    busy = moments(job.spans(0, passes[0], end_s), (*BUSY, "other"))
    spent = between(busy, starts[:-1], starts[1:]).tolist()
    forward = [Segment(names.index(module), spent[at]) for at, module in enumerate(modules[: len(names)])]
    backward, open_s = list[Segment](), 0.0
    for at, (kind, module, _) in enumerate(points[len(names) :], len(names)):
        open_s += spent[at - 1] if at > len(names) else 0.0
        if kind == "reduced" and module in names:
            backward.append(Segment(names.index(module), open_s))
            open_s = 0.0

    def mean(own: NDArray[np.bool_], operation: str, phase: str) -> float | None:
        those = own & (seen.operation == operation) & (issued.phase == phase)
        return float((seen.end_s - seen.start_s)[those].mean()) if those.any() else None

    groups = []
    for name in names:
        own = inside & (issued.module == name)
        again = mean(own, "allgather", "backward")
        groups.append(
            Group(
                name=name,
                bytes=int(seen.bytes[own].max()),
                gather_s=mean(own, "allgather", "forward") or 0.0,
                scatter_s=mean(own, "reducescatter", "backward") or 0.0,
                allreduce_s=mean(own, "allreduce", "backward") or 0.0,
                regather_s=again,
                reshards=again is not None,
            )
        )
    last = gathers[seen.start_s[gathers] >= passes[-1]]
    groups, forward, backward = _with_host(groups, forward, backward, trace, issued, last, scatters)
    return ShardedStep(
        groups=tuple(groups),
        forward=tuple(forward),
        backward=tuple(backward),
        optimizer_s=max(end_s - float(seen.end_s[order].max()), 0.0),
        passes=len(passes),
        syncs_every_pass=bool((seen.operation[order] == "reducescatter").sum() > len(scatters)),
        forward_prefetch=int(issued.prefetched[gathers].any()),
    )


def _with_host(
    groups: list[Group],
    forward: list[Segment],
    backward: list[Segment],
    trace: Trace,
    issued: Issued,
    gathers: NDArray[np.int64],
    scatters: NDArray[np.int64],
) -> tuple[list[Group], list[Segment], list[Segment]]:
    """With what the host needs from one point to the next, and how far it is ahead of the GPU when the step begins.

    Issuing a collective is the group's part of it, which goes with the collective.
    """
    times = np.concatenate([issued.issued_s[gathers], issued.issued_s[scatters]])
    if len(times) != len(forward) + len(backward) or not np.isfinite(times).all():
        return groups, forward, backward
    waits = issued.synchronized
    waited = between(waits, times[:-1], times[1:]) if waits is not None else np.zeros(len(times) - 1)
    needed = (np.diff(times) - waited).tolist()
    needed[0] -= float(trace.collectives.start_s[gathers[0]] - times[0])
    blocks = (waited > 0).tolist()
    issuing = {
        (kind, module): float(issued.issuing_s[those[issued.module[those] == module]].mean())
        for kind, those in (("gather", gathers), ("scatter", scatters))
        for module in set(issued.module[those].tolist())
    }
    groups = [
        replace(
            group,
            gather_launch_s=issuing.get(("gather", group.name), 0.0),
            scatter_launch_s=issuing.get(("scatter", group.name), 0.0),
        )
        for group in groups
    ]
    first = [
        replace(each, launch_s=needed[at] - float(groups[each.group].gather_launch_s), synchronizes=blocks[at])
        for at, each in enumerate(forward)
    ]
    # The first reduction is issued where its backward ends, which the last segment of the forward was counted to
    needed, blocks = [0.0, *needed[len(forward) :]], [False, *blocks[len(forward) :]]
    rest = []
    for at, each in enumerate(backward):
        group = groups[each.group]
        own_s = float(group.scatter_launch_s) + (float(group.gather_launch_s) if group.reshards else 0.0)
        rest.append(replace(each, launch_s=needed[at] - own_s, synchronizes=blocks[at]))
    return groups, first, rest
