"""What collectives were measured to cost on a cluster: time against size, and the bandwidth that it means."""

from functools import partial
from typing import Any

import altair as alt

from scalescope.charts.parts import Rows, data, frame, logarithmic_domain, named, palette, powers_of_ten, size_axis
from scalescope.records.cluster import Cluster, Costs
from scalescope.text import plain, plural
from scalescope.units import format_bytes, format_seconds

_COLOURS = ("#0072b2", "#56b4e9", "#332288", "#e69f00", "#d55e00", "#882255", "#009e73", "#b0a000", "#cc79a7")
_DASHES = {"allreduce": [1, 0], "broadcast": [4, 3]}
_WIDTH, _HEIGHT = 360, 300
_FEW = 6  # Round numbers up to which all of them are ticks
_TOOLTIP = [
    alt.Tooltip("line:N", title="group"),
    alt.Tooltip("operation:N", title="operation"),
    alt.Tooltip("bytes_words:N", title="size"),
    alt.Tooltip("seconds_words:N", title="time"),
    alt.Tooltip("cpu_words:N", title="CPU time of a rank"),
    alt.Tooltip("bandwidth_words:N", title="bus bandwidth"),
    alt.Tooltip("error_words:N", title="standard error"),
]


def costs_chart(cluster: Cluster) -> Any:
    """Seconds and bus bandwidth, one line per backend, operation and group; None where nothing was measured."""
    rows = [row for costs in cluster.costs for row in _rows(costs)]
    if not rows:
        return None
    lines = list(dict.fromkeys(row["line"] for row in rows))
    dashes = {name: dash for name, dash in _DASHES.items() if any(row["operation"] == name for row in rows)}
    colours = dict(zip(lines, palette(_COLOURS, len(lines)), strict=True))
    legend = partial(alt.Legend, title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=2.5, columns=3)
    look = {
        "color": named("line", colours, legend()),
        "strokeDash": named("operation", dashes, legend() if len(dashes) > 1 else None, alt.StrokeDash),
    }
    panels = [
        _panel(rows, "seconds", "time", ("us", "ms", "s"), (1e-6, 1e-3, 1.0), look),
        _panel(rows, "bandwidth", "bus bandwidth", ("kB/s", "MB/s", "GB/s"), (1e3, 1e6, 1e9), look),
    ]
    where = plain(cluster.name, 60) or "this machine"
    place = f"{plural(cluster.nodes, 'node')} with {plural(cluster.slots_per_node, 'slot')} each"
    return alt.hconcat(
        *panels,
        spacing=30,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared", strokeDash="shared")),
        **frame(
            f"What collectives cost: {where}",
            f"{place}, {plural(cluster.threads_per_rank, 'thread')} per rank while it was probed",
            "bus bandwidth: bytes over seconds, for an allreduce of n ranks times 2 (n - 1) / n",
        ),
    )


def _rows(costs: Costs) -> Rows:
    """One row per size above 0."""
    nodes = f" on {costs.nodes} nodes" if costs.nodes > 1 else ""
    moved = 2 * (costs.ranks - 1) / costs.ranks if costs.operation == "allreduce" else 1.0
    rows: Rows = []
    for size, seconds, cpu in zip(costs.sizes_bytes, costs.seconds, costs.cpu_seconds, strict=True):
        if size > 0 and seconds > 0:
            bandwidth = moved * size / seconds
            rows.append(
                {
                    "line": f"{plain(costs.backend, 24)}, {plural(costs.ranks, 'rank')}{nodes}",
                    "operation": costs.operation,
                    "bytes": size,
                    "seconds": seconds,
                    "bandwidth": bandwidth,
                    "bytes_words": format_bytes(size),
                    "seconds_words": format_seconds(seconds),
                    "cpu_words": format_seconds(cpu),
                    "bandwidth_words": f"{bandwidth / 1e6:,.3g} MB/s",
                    "error_words": f"{100 * costs.error:.1f} %",
                }
            )
    return rows


def _panel(
    rows: Rows, field: str, title: str, units: tuple[str, ...], factors: tuple[float, ...], look: dict[str, Any]
) -> Any:
    """A field against the size, both logarithmic."""
    low, high = logarithmic_domain([row[field] for row in rows if row[field] > 0])
    named = "".join(
        f"datum.value < {1000 * factor:g} * 0.999 ? format(datum.value / {factor:g}, '~g') + ' {unit}' : "
        for unit, factor in zip(units[:-1], factors[:-1], strict=True)
    )
    words = f"{named}format(datum.value / {factors[-1]:g}, '~g') + ' {units[-1]}'"
    y = alt.Y(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(labelExpr=words, values=powers_of_ten(low, high, _FEW)),
    )
    sizes = [row["bytes"] for row in rows]
    powers = [power for power in range(0, 50, 4) if min(sizes) <= 2**power <= max(sizes)]
    x = size_axis(min(sizes) / 1.3, max(sizes) * 1.3, powers)
    base = alt.Chart(data(rows))
    return alt.layer(
        base.mark_line(strokeWidth=2).encode(x=x, y=y, **look),
        base.mark_point(filled=True, size=26, opacity=1).encode(x=x, y=y, color=look["color"], tooltip=_TOOLTIP),
        width=_WIDTH,
        height=_HEIGHT,
    )
