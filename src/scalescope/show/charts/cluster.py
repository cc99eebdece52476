"""Measured costs of collectives on a cluster: time against size."""

from typing import Any

import altair as alt

from scalescope.records.cluster import Cluster
from scalescope.show.charts.parts import (
    Rows,
    data,
    frame,
    logarithmic_domain,
    named,
    palette,
    powers_of_ten,
    tick_words,
)
from scalescope.show.document import Figure
from scalescope.text import plain, plural
from scalescope.units import format_bytes, format_seconds

_COLOURS = ("#0072b2", "#56b4e9", "#332288", "#e69f00", "#d55e00", "#882255", "#009e73", "#b0a000", "#cc79a7")
_DASHES = {"allreduce": [1, 0], "broadcast": [4, 3]}


def costs_chart(cluster: Cluster) -> Any:
    """Seconds over bytes, one line per backend, operation and group; None where nothing was measured."""
    rows: Rows = [
        {
            "line": f"{plain(costs.backend, 24)}, {plural(costs.ranks, 'rank')}"
            + (f" on {costs.nodes} nodes" if costs.nodes > 1 else ""),
            "operation": costs.operation,
            "bytes": size,
            "size": format_bytes(size),
            "seconds": seconds,
            "took": format_seconds(seconds),
            "rate": f"{format_bytes(size / seconds)}/s",
        }
        for costs in cluster.costs
        for size, seconds in zip(costs.sizes_bytes, costs.seconds, strict=True)
    ]
    if not rows:
        return None
    lines = list(dict.fromkeys(row["line"] for row in rows))
    dashes = {name: dash for name, dash in _DASHES.items() if any(row["operation"] == name for row in rows)}
    look = alt.Legend(title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=2.5, columns=3)
    color = named("line", dict(zip(lines, palette(_COLOURS, len(lines)), strict=True)), look)
    dash = named("operation", dashes, look if len(dashes) > 1 else None, alt.StrokeDash)
    sizes = logarithmic_domain([row["bytes"] for row in rows])
    ticks = {4**power: format_bytes(4**power) for power in range(25) if sizes[0] <= 4**power <= sizes[1]}
    x = alt.X(
        "bytes:Q",
        title="size of the message",
        scale=alt.Scale(type="log", base=2, domain=sizes, nice=False),
        axis=alt.Axis(values=list(ticks), labelExpr=tick_words(ticks), labelOverlap="greedy"),
    )
    low, high = logarithmic_domain([row["seconds"] for row in rows])
    times = {tick: format_seconds(tick) for tick in powers_of_ten(low, high, 6)}
    y = alt.Y(
        "seconds:Q",
        title="time",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=list(times), labelExpr=tick_words(times)),
    )
    titles = {"line": "group", "operation": "operation", "size": "size", "took": "time", "rate": "bytes over time"}
    tips = [alt.Tooltip(f"{field}:N", title=title) for field, title in titles.items()]
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=color)
    place = f"{plural(cluster.nodes, 'node')} with {plural(cluster.slots_per_node, 'slot')} each"
    return alt.layer(
        base.mark_line(strokeWidth=2).encode(strokeDash=dash),
        base.mark_point(filled=True, size=26, opacity=1).encode(tooltip=tips),
        width=560,
        height=320,
        **frame(
            f"What collectives cost: {plain(cluster.name, 60) or 'this machine'}",
            f"{place}, {plural(cluster.threads_per_rank, 'thread')} per rank while it was probed",
        ),
    )


CHARTS = (
    Figure(
        "links", "links", "What a collective takes by message size: flat is latency, rising is bandwidth.", costs_chart
    ),
)
