"""A probed cluster: what collectives of every size take, and what compute and messages do to each other."""

from functools import partial

import msgspec

from scalescope.records.cluster import Cluster, Costs, Overlap
from scalescope.show.document import Column, Document, Section, Table, charted
from scalescope.text import plural
from scalescope.units import format_bytes, format_seconds, format_share

_LARGE = 16 << 20


def document(cluster: Cluster) -> Document:
    """Speed of a large gradient, small and large messages of every backend, and what overlap costs."""
    allreduces = [costs for costs in cluster.costs if costs.operation == "allreduce"]
    widest = {costs.backend: costs for costs in sorted(allreduces, key=lambda each: (each.nodes, each.ranks))}
    why = []
    for costs in widest.values():
        ends = dict.fromkeys((0, len(costs.sizes_bytes) - 1))
        told = [f"{format_bytes(costs.sizes_bytes[at])} in {format_seconds(costs.seconds[at])}" for at in ends]
        why.append(f"{_group(costs)}: {', '.join(told)}")
    overlaps = [_overlap_words(overlap) for overlap in cluster.overlaps]
    return Document(
        answer=sentence(cluster),
        why=[*why, *overlaps[-1:]],
        warnings=[cluster.disturbed] if cluster.disturbed else [],
        sections=charted("cluster", [Section("links", "Links", tables=[_table(cluster)], facts=overlaps)], cluster),
        json=lambda: msgspec.to_builtins(cluster),
    )


def _table(cluster: Cluster) -> Table:
    """A column for every size."""

    def at(costs: Costs, size: int) -> float | None:
        return costs.seconds[costs.sizes_bytes.index(size)] if size in costs.sizes_bytes else None

    sizes = sorted({size for costs in cluster.costs for size in costs.sizes_bytes})
    title = "Time of a collective by size; CPU: part of it that a rank computes, at the largest"
    return Table(
        [
            Column(_group, "group", words=True),
            *(Column(partial(at, size=size), format_bytes(size), write=format_seconds) for size in sizes),
            Column(lambda costs: costs.cpu_seconds[-1] / costs.seconds[-1], "CPU", write=format_share),
        ],
        cluster.costs,
        f"{title}.",
        title,
        noun="group",
    )


def sentence(cluster: Cluster) -> str:
    """One sentence: how fast a large gradient travels among the most ranks that were probed."""
    measured = [costs for costs in cluster.costs if costs.operation == "allreduce"]
    if not measured:
        return "One rank fills this node: there is no link to probe."
    widest = max(measured, key=lambda costs: (costs.nodes, costs.ranks))
    at = min(range(len(widest.sizes_bytes)), key=lambda index: abs(widest.sizes_bytes[index] - _LARGE))
    size, seconds = widest.sizes_bytes[at], widest.seconds[at]
    return (
        f"{widest.backend} sums {format_bytes(size)} over {_where(widest)} in {format_seconds(seconds)}, "
        f"{format_bytes(size / seconds)}/s, give or take {format_share(widest.error)}."
    )


def _group(costs: Costs) -> str:
    return f"{costs.backend} {costs.operation} over {_where(costs)}"


def _where(costs: Costs) -> str:
    return plural(costs.ranks, "rank") + (f", {costs.nodes} nodes" if costs.nodes > 1 else "")


def _overlap_words(overlap: Overlap) -> str:
    idle = f"; its own thread slows compute {overlap.idle:.2f}x" if overlap.idle > 1.05 else ""
    return (
        f"{overlap.backend} on {plural(overlap.ranks, 'rank')}: while a message travels compute takes "
        f"{overlap.compute:.2f}x as long and the message {overlap.communication:.2f}x{idle}"
    )
