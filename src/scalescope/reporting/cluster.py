"""A probed cluster on the terminal."""

from rich.console import Console
from rich.table import Table

from scalescope.records.cluster import Cluster, Costs
from scalescope.units import format_bytes, format_seconds, plural

_LARGE = 16 << 20


def show(cluster: Cluster, console: Console) -> None:
    """Seconds by size, and what compute and messages do to each other."""
    sizes = sorted({size for costs in cluster.costs for size in costs.sizes_bytes})
    if sizes:
        table = Table(title="Seconds of a collective (CPU seconds per rank)", title_justify="left")
        table.add_column("size", justify="right")
        for costs in cluster.costs:
            table.add_column(f"{costs.backend}\n{costs.operation}\n{_where(costs)}", justify="right")
        for size in sizes:
            table.add_row(format_bytes(size), *(_at(costs, size) for costs in cluster.costs))
        console.print(table)
    for overlap in cluster.overlaps:
        idle = f"; its own thread slows compute {overlap.idle:.2f}x" if overlap.idle > 1.05 else ""
        console.print(
            f"{overlap.backend} on {plural(overlap.ranks, 'rank')}: while a message travels compute takes "
            f"{overlap.compute:.2f}x as long and the message {overlap.communication:.2f}x{idle}",
            highlight=False,
        )


def _where(costs: Costs) -> str:
    return plural(costs.ranks, "rank") + (f", {costs.nodes} nodes" if costs.nodes > 1 else "")


def _at(costs: Costs, size: int) -> str:
    if size not in costs.sizes_bytes:
        return ""
    at = costs.sizes_bytes.index(size)
    return f"{format_seconds(costs.seconds[at])} ({format_seconds(costs.cpu_seconds[at])})"


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
        f"{format_bytes(size / seconds)}/s, give or take {widest.error:.0%}."
    )
