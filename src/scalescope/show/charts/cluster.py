"""Measured costs of collectives on a cluster: time against size, and the bandwidth that it means."""

from typing import Any

import altair as alt

from scalescope.records.cluster import Cluster
from scalescope.show.charts.parts import Rows, data, frame, logarithmic_domain, named, palette, powers_of_ten, size_axis
from scalescope.show.charts.prediction import with_unit
from scalescope.show.document import Figure
from scalescope.text import plain, plural
from scalescope.units import format_bytes

_COLOURS = ("#0072b2", "#56b4e9", "#332288", "#e69f00", "#d55e00", "#882255", "#009e73", "#b0a000", "#cc79a7")
_DASHES = {"allreduce": [1, 0], "broadcast": [4, 3]}


def costs_chart(cluster: Cluster) -> Any:
    """Seconds and bus bandwidth, one line per backend, operation and group; None where nothing was measured."""
    rows: Rows = []
    for costs in cluster.costs:
        nodes = f" on {costs.nodes} nodes" if costs.nodes > 1 else ""
        moved = 2 * (costs.ranks - 1) / costs.ranks if costs.operation == "allreduce" else 1.0
        for size, seconds in zip(costs.sizes_bytes, costs.seconds, strict=True):
            rows.append(
                {
                    "line": f"{plain(costs.backend, 24)}, {plural(costs.ranks, 'rank')}{nodes}",
                    "operation": costs.operation,
                    "bytes": size,
                    "size": format_bytes(size),
                    "seconds": seconds,
                    "bandwidth": moved * size / seconds,
                }
            )
    if not rows:
        return None
    lines = list(dict.fromkeys(row["line"] for row in rows))
    dashes = {name: dash for name, dash in _DASHES.items() if any(row["operation"] == name for row in rows)}
    look = alt.Legend(title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=2.5, columns=3)
    color = named("line", dict(zip(lines, palette(_COLOURS, len(lines)), strict=True)), look)
    dash = named("operation", dashes, look if len(dashes) > 1 else None, alt.StrokeDash)
    sizes = [row["bytes"] for row in rows]
    powers = [power for power in range(0, 50, 4) if min(sizes) <= 2**power <= max(sizes)]
    x = size_axis(min(sizes) / 1.3, max(sizes) * 1.3, powers)
    tips = [
        alt.Tooltip("line:N", title="group"),
        "operation:N",
        "size:N",
        alt.Tooltip("seconds:Q", title="time (s)", format=".3~s"),
        alt.Tooltip("bandwidth:Q", title="bus bandwidth (B/s)", format=".3~s"),
    ]
    panels = []
    for field, title, unit in (("seconds", "time", "s"), ("bandwidth", "bus bandwidth", "B/s")):
        low, high = logarithmic_domain([row[field] for row in rows])
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        axis = alt.Axis(labelExpr=with_unit("datum.value", f"'{unit}'"), values=powers_of_ten(low, high, 6))
        y = alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)
        base = alt.Chart(data(rows))
        panels.append(
            alt.layer(
                base.mark_line(strokeWidth=2).encode(x=x, y=y, color=color, strokeDash=dash),
                base.mark_point(filled=True, size=26, opacity=1).encode(x=x, y=y, color=color, tooltip=tips),
                width=360,
                height=300,
            )
        )
    place = f"{plural(cluster.nodes, 'node')} with {plural(cluster.slots_per_node, 'slot')} each"
    return alt.hconcat(
        *panels,
        spacing=30,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared", strokeDash="shared")),
        **frame(
            f"What collectives cost: {plain(cluster.name, 60) or 'this machine'}",
            f"{place}, {plural(cluster.threads_per_rank, 'thread')} per rank while it was probed",
            "bus bandwidth: bytes over seconds, for an allreduce of n ranks times 2 (n - 1) / n",
        ),
    )


CHARTS = (
    Figure(
        "links", "links", "What a collective takes by message size: flat is latency, rising is bandwidth.", costs_chart
    ),
)
