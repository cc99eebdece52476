"""Predicted throughput against processes."""

from itertools import pairwise
from math import log
from typing import Any

import altair as alt

from scalescope.charts.parts import (
    IDEAL_DASH,
    Counts,
    Rows,
    counts_axis,
    data,
    frame,
    named,
    panel_title,
    rate_axis,
)
from scalescope.records.prediction import Cell, Prediction
from scalescope.report.prediction import (
    BATCH_WORDS,
    Grid,
    asked_batch,
    grids,
    headline,
    recommended_cell,
    reduced,
    some_of,
)
from scalescope.stats import PREDICTED, percent
from scalescope.text import plural
from scalescope.units import format_rate

_MOST_COUNTS, _MOST_LINES = 128, 6
_MOST_TICKS = 8
_WIDTH, _LABEL_WIDTH = 380, 48
_BATCH_COLOURS = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#e0b800")
_TOOLTIP = ["batch:N", "processes:Q", "nodes:Q", "throughput:N", "interval:N", "speedup:Q"]


def predicted_throughput_chart(prediction: Prediction) -> Any:
    """One line per batch with its interval, one panel per kind of scaling; None where nothing can be compared."""
    whole = [grid for grid in grids(prediction) if any(len(line) > 1 for line in _lines(grid).values())]
    if not whole:
        return None
    shown = [reduced(grid, _MOST_COUNTS, _MOST_LINES, prediction) for grid in whole]
    fewer = any(len(few.batches) < len(grid.batches) for few, grid in zip(shown, whole, strict=True))
    best = recommended_cell(prediction)
    return alt.concat(
        *(_panel(grid, best) for grid in shown),
        columns=2,
        spacing=30,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="independent")),
        **frame(
            f"Predicted throughput: {headline(prediction)}",
            f"bands hold {percent(PREDICTED)}; dashed: in proportion to one process"
            + ("; ring: recommended" if best else ""),
            f"{_MOST_LINES} of {len(whole[0].batches):,} batches are drawn" if fewer else "",
        ),
    )


def _lines(grid: Grid) -> dict[int, list[Cell]]:
    """Cells that fit into memory by batch."""
    lines: dict[int, list[Cell]] = {}
    for cell in grid.shown():
        if cell.fits:
            lines.setdefault(asked_batch(cell), []).append(cell)
    return lines


def _panel(grid: Grid, best: Cell | None) -> Any:
    lines = _lines(grid)
    cells = [cell for line in lines.values() for cell in line]
    counts = counts_axis("processes", [float(np) for np in some_of(grid.counts, _MOST_TICKS)])
    rows: Rows = [_fields(cell) for cell in cells]
    ideal: Rows = [_ideal(cell) for cell in cells]
    rates = [row[field] for row in rows for field in ("low", "high")] + [row["rate"] for row in ideal]
    y = rate_axis(rates, logarithmic=counts.logarithmic)
    names = [f"{batch:,}" for batch in sorted(lines)]
    legend = alt.Legend(title=BATCH_WORDS[grid.scaling], symbolStrokeWidth=3, symbolType="stroke", symbolOpacity=1)
    color = named("batch", dict(zip(names, _colours(len(names)), strict=True)), legend)
    x, base = counts.x, alt.Chart(data(rows))
    dot = 36 if len(grid.counts) <= _MOST_TICKS else 10
    layers = [
        *_node_lines(grid, counts),
        base.mark_area(opacity=0.18).encode(x=x, y=y("low"), y2=alt.Y2("high"), color=color),
        alt.Chart(data(ideal))
        .mark_line(strokeDash=IDEAL_DASH, strokeWidth=1.1, opacity=0.75)
        .encode(x=x, y=y("rate"), color=color),
        base.mark_line(strokeWidth=2).encode(x=x, y=y("rate"), color=color),
        base.mark_point(filled=True, size=dot, opacity=1).encode(x=x, y=y("rate"), color=color, tooltip=_TOOLTIP),
    ]
    if best in cells:
        ring = alt.Chart(data([row for row, cell in zip(rows, cells, strict=True) if cell is best]))
        layers.append(ring.mark_point(size=260, strokeWidth=1.8, color="#222222").encode(x=x, y=y("rate")))
    return alt.layer(*layers, width=_WIDTH, height=300, title=panel_title(f"{grid.scaling} scaling", 8))


def _fields(cell: Cell) -> dict[str, Any]:
    low, high = cell.global_batch / cell.high_s, cell.global_batch / cell.low_s
    return {
        "at": cell.np,
        "processes": cell.np,
        "nodes": cell.nodes,
        "batch": f"{asked_batch(cell):,}",
        "rate": cell.throughput,
        "low": low,
        "high": high,
        "throughput": f"{format_rate(cell.throughput)} samples/s",
        "interval": f"{format_rate(low)} to {format_rate(high)}",
        "speedup": round(cell.speedup, 3),
    }


def _ideal(cell: Cell) -> dict[str, Any]:
    """What these processes would do if each did what one does alone."""
    return {"at": cell.np, "batch": f"{asked_batch(cell):,}", "rate": cell.np * cell.throughput / cell.speedup}


def _colours(count: int) -> list[str]:
    """From small to large batches, as far apart as there is room."""
    last = len(_BATCH_COLOURS) - 1
    return [_BATCH_COLOURS[round(index * last / max(1, count - 1))] for index in range(count)]


def _node_lines(grid: Grid, counts: Counts) -> list[alt.Chart]:
    """Where more nodes begin to be used, as far as there is room for labels."""
    boundaries = grid.boundaries()
    rows: Rows = []
    for before, np in pairwise(grid.counts):
        at = (before * np) ** 0.5 if counts.logarithmic else (before + np) / 2
        if np in boundaries and (not rows or _pixels(rows[-1]["at"], at, counts) >= _LABEL_WIDTH):
            rows.append({"at": at, "words": plural(boundaries[np], "node")})
    if not rows:
        return []
    base = alt.Chart(data(rows))
    return [
        base.mark_rule(stroke="#999999", strokeWidth=1, strokeDash=[2, 2]).encode(x=counts.x),
        base.mark_text(fontSize=10, color="#555555", baseline="bottom").encode(
            x=counts.x, y=alt.value(-3), text="words:N"
        ),
    ]


def _pixels(first: float, second: float, counts: Counts) -> float:
    """How far apart two numbers of processes are drawn."""
    if counts.logarithmic:
        return _WIDTH * log(second / first) / log(counts.high / counts.low)
    return _WIDTH * (second - first) / (counts.high - counts.low)
