"""What collectives reached: bus bandwidth against the size of the message, and what a probe of the links reached."""

from typing import Any

import altair as alt

from scalescope.records.explanation import Explanation, Transfer
from scalescope.report.explanation import engine_words
from scalescope.show.charts.parts import (
    IDEAL_DASH,
    Rows,
    data,
    frame,
    logarithmic_domain,
    named,
    powers_of_ten,
    size_axis,
)
from scalescope.text import plain
from scalescope.units import format_bytes, format_seconds

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b0a000", "#332288", "#56b4e9", "#808080")
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
_WIDTH, _HEIGHT = 520, 320
_MOST, _MOST_OPERATIONS = 1000, len(_COLOURS)
_FEW = 8  # Ticks that an axis takes
_TOOLTIP = [
    alt.Tooltip("operation:N", title="operation"),
    alt.Tooltip("size:N", title="size"),
    alt.Tooltip("ranks:Q", title="ranks"),
    alt.Tooltip("count:Q", title="count"),
    alt.Tooltip("took:N", title="time of one"),
    alt.Tooltip("wait:N", title="wait for the last rank"),
    alt.Tooltip("bus:N", title="bus bandwidth"),
    alt.Tooltip("algorithm:N", title="algorithm bandwidth"),
    alt.Tooltip("probed:N", title="the probe's time"),
]


def transfers_chart(explanation: Explanation) -> Any:
    """Points for what the job reached, dashed lines for what the probe did; None where no sizes are known."""
    known = [each for each in explanation.transfers if each.bytes > 0 and each.bus_bytes_per_s > 0]
    if not known:
        return None
    known.sort(key=lambda each: -each.count * each.seconds)
    drawn = known[:_MOST]
    operations = list(dict.fromkeys(each.operation for each in drawn))
    names = {operation: _name(index, operation) for index, operation in enumerate(operations)}
    rows = [_row(each, names[each.operation]) for each in drawn]
    probed: Rows = sorted(
        (
            {**_row(each, names[each.operation]), "bandwidth": each.bus_bytes_per_s * each.seconds / each.probed_s}
            for each in drawn
            if each.probed_s
        ),
        key=lambda row: row["bytes"],
    )
    domain = list(dict.fromkeys(names.values()))
    legend = alt.Legend(title=None, orient="bottom", columns=4) if len(domain) > 1 else None
    color = named("operation", dict(zip(domain, _COLOURS, strict=False)), legend)
    shape = named("operation", dict(zip(domain, _SHAPES, strict=False)), legend, alt.Shape)
    size = alt.Size("spent:Q", scale=alt.Scale(type="sqrt", range=[40, 240]), legend=None)
    x, y = _sizes(rows), _bandwidths([row["bandwidth"] for row in [*rows, *probed]])
    points = alt.Chart(data(rows)).mark_point(filled=True, opacity=0.85, stroke="white", strokeWidth=0.7)
    layers = [points.encode(x=x, y=y, color=color, shape=shape, size=size, tooltip=_TOOLTIP)]
    if probed:
        line = alt.Chart(data(probed))
        group = alt.Detail("ranks:N")
        layers += [
            line.mark_line(strokeDash=IDEAL_DASH, strokeWidth=1.5).encode(x=x, y=y, color=color, detail=group),
            line.mark_point(size=34, opacity=1, fill="white", strokeWidth=1.5).encode(
                x=x, y=y, color=color, tooltip=_TOOLTIP
            ),
        ]
    only = "" if len(domain) > 1 else f"{domain[0]}s; "
    return alt.layer(
        *layers,
        width=_WIDTH,
        height=_HEIGHT,
        **frame(
            f"What transfers reach: {plain(explanation.what, 60)}",
            f"{only}the larger a point, the more time is spent in all; {engine_words(explanation)}",
            "hollow, dashed: what the probe of these links reached" if probed else "",
            f"the {_MOST:,} longest of {len(known):,} are drawn" if len(drawn) < len(known) else "",
        ),
    )


def _name(index: int, operation: str) -> str:
    """Those that there is no colour for are one."""
    return plain(operation, 30) if index < _MOST_OPERATIONS - 1 else "others"


def _row(transfer: Transfer, name: str) -> dict[str, Any]:
    return {
        "operation": name,
        "bytes": transfer.bytes,
        "bandwidth": transfer.bus_bytes_per_s,
        "spent": transfer.count * transfer.seconds,
        "size": format_bytes(transfer.bytes),
        "ranks": transfer.ranks,
        "count": transfer.count,
        "took": format_seconds(transfer.seconds),
        "wait": "-" if transfer.wait_s is None else format_seconds(transfer.wait_s),
        "bus": _rate(transfer.bus_bytes_per_s),
        "algorithm": _rate(transfer.algorithm_bytes_per_s),
        "probed": "-" if transfer.probed_s is None else format_seconds(transfer.probed_s),
    }


def _rate(bytes_per_s: float) -> str:
    for unit, factor in (("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_s >= 0.9995 * factor:
            return f"{bytes_per_s / factor:.3g} {unit}"
    return f"{bytes_per_s / 1e3:.3g} kB/s"


def _sizes(rows: Rows) -> alt.X:
    """Powers of two from the smallest to the largest message."""
    sizes = [row["bytes"] for row in rows]
    low, high = min(sizes) / 2, max(sizes) * 2
    powers = [power for power in range(60) if low < 2**power < high]
    every = 1 + len(powers) // _FEW
    return size_axis(low, high, [power for power in powers if power % every == 0])


def _bandwidths(values: list[float]) -> alt.Y:
    """Round numbers from the slowest to the fastest."""
    low, high = logarithmic_domain(values)
    room = 1.3 if high > 10 * low else 3.0
    low, high = low / room, high * room
    ticks = powers_of_ten(low, high, _FEW)
    labels = "".join(f"abs(datum.value / {tick:g} - 1) < 1e-6 ? '{_rate(tick)}' : " for tick in ticks) + "''"
    return alt.Y(
        "bandwidth:Q",
        title="bus bandwidth",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=ticks, labelExpr=labels),
    )
