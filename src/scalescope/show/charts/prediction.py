"""Maps of predictions, and the predicted step."""

from typing import Any

import altair as alt

from scalescope.records.prediction import Cell, Prediction
from scalescope.show.charts.explanation import timelines_chart
from scalescope.show.charts.parts import (
    RING_COLOUR,
    Rows,
    data,
    frame,
    outline,
    panel_title,
    tick_words,
)
from scalescope.show.document import Figure
from scalescope.show.prediction import (
    BATCH_WORDS,
    DOES_NOT_FIT_COLOUR,
    RAMP,
    READS_AS_ONE,
    SLOWER_COLOUR,
    Grid,
    advice_words,
    asked_batch,
    check_words,
    grids,
    headline,
    recommended_cell,
    reduced,
    trust_words,
)
from scalescope.units import digits, format_bytes, format_rate, format_seconds, format_share

_WITH_NUMBERS = 16  # Columns up to which cells hold numbers; twice as many rows
_DARK = 0.4  # Part of the colours below which letters are white
_TOLD = {
    "np": "processes",
    "nodes": "nodes",
    "batch": "batch of a process",
    "global_batch": "global batch",
    "speedup_words": "speedup",
    "step": "step time",
    "efficiency": "efficiency",
    "throughput": "samples per second",
    "exposed": "exposed communication",
    "hidden": "hidden communication",
    "memory": "memory of a process",
    "hours": "device-hours for a million samples",
}  # When the pointer is on a cell


def map_chart(prediction: Prediction, most: int) -> Any:
    """Speedup, one map below the other. Measured cells get a point."""
    whole, best = grids(prediction), recommended_cell(prediction)
    side = int((most / len(whole)) ** 0.5)
    thinned = [reduced(grid, side, side, prediction) for grid in whole]
    cells = [cell for grid, _ in thinned for cell in grid.shown()]
    top = max((cell.speedup for cell in cells if cell.fits), default=1.0)
    return alt.concat(
        *(_panel(grid, prediction, best, top if top > 1 else 2.0) for grid, _ in thinned),
        columns=1,
        spacing=24,
        **frame(
            f"Prediction: {headline(prediction)}",
            f"recommended: {advice_words(prediction)}",
            *prediction.doubts,
            check_words(prediction) or trust_words(prediction),
            "black: slower than one process; grey: does not fit into memory; ring: recommended",
            "points, =: measured; ~: beyond the profiled batches",
            *dict.fromkeys(left_out for _, left_out in thinned),
        ),
    )


def _panel(grid: Grid, prediction: Prediction, best: Cell | None, top: float) -> Any:
    columns, rows = len(grid.batches), len(grid.counts)
    has_numbers = columns <= _WITH_NUMBERS and rows <= 2 * _WITH_NUMBERS
    width = columns * max(50, min(90, 480 // columns)) if columns <= _WITH_NUMBERS else 640
    nodes = grid.nodes()
    several = max(nodes.values()) > 1
    labels = {float(np): f"{np} ({nodes[np]})" if several else f"{np}" for np in grid.counts if np in nodes}
    plain_axis: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelOverlap": "greedy"}

    def place(across: float = 0.5, down: float = 0.5) -> dict[str, Any]:
        """Small batches left, most processes on top; 0 is the left or upper edge of a cell."""
        return {
            "x": alt.X(
                "column:O",
                title=BATCH_WORDS[grid.scaling],
                scale=alt.Scale(domain=list(grid.batches)),
                axis=alt.Axis(labelAngle=0, **plain_axis),
                bandPosition=across,
            ),
            "y": alt.Y(
                "np:O",
                title="processes (nodes)" if several else "processes",
                scale=alt.Scale(domain=list(reversed(grid.counts))),
                axis=alt.Axis(labelExpr=tick_words(labels), **plain_axis),
                bandPosition=down,
            ),
        }

    base = alt.Chart(data([_row(cell, top) for cell in grid.shown()]))
    rim: dict[str, Any] = {"stroke": "white", "strokeWidth": 1} if has_numbers else {}
    scale = alt.Scale(type="sqrt", range=list(RAMP), domain=[1, top], nice=False, clamp=True)
    flat = [
        {"test": "!datum.fits", "value": DOES_NOT_FIT_COLOUR},
        {"test": f"datum.speedup < {READS_AS_ONE}", "value": SLOWER_COLOUR},
    ]
    legend = alt.Legend(title=None, format=".3~r", offset=14)
    colour = alt.Color("speedup:Q", scale=scale, legend=legend, condition=flat)
    tips = [alt.Tooltip(f"{name}:N", title=title) for name, title in _TOLD.items()]
    layers = [base.mark_rect(**rim).encode(**place(), color=colour, tooltip=tips)]
    if has_numbers:
        letters = alt.when("datum.dark").then(alt.value("white")).otherwise(alt.value("black"))
        layers.append(base.mark_text(fontSize=11).encode(**place(), text="words:N", color=letters))
    if boundaries := grid.boundaries():
        edges = alt.Chart(data([{"np": np} for np in boundaries]))
        rule = edges.mark_rule(stroke="#333333", strokeWidth=1.2, strokeDash=[4, 2])
        layers.append(rule.encode(x=alt.value(0), x2=alt.value(width), y=place(down=1.0)["y"]))
    if best and grid.cells.get((best.np, asked_batch(best))) is best:
        where = {"np": best.np, "column": asked_batch(best)}
        layers += [each.encode(**place()) for each in outline(where, RING_COLOUR, 3.0)]
    shown = {(cell.np, cell.batch): cell for cell in grid.shown()}
    points: Rows = [
        {
            "np": check.np,
            "column": asked_batch(shown[check.np, check.batch]),
            "measured": format_seconds(check.measured_s),
            "predicted": format_seconds(check.predicted_s),
            "error": f"{100 * check.error:+.1f} %",
        }
        for check in prediction.checks
        if check.scaling == grid.scaling and (check.np, check.batch) in shown
    ]
    if points:
        dot = alt.Chart(data(points)).mark_point(
            filled=True, size=30, fill="#ffffff", stroke="#000000", strokeWidth=1.4, opacity=1
        )
        corner = place(0.88, 0.24) if has_numbers else place()
        layers.append(dot.encode(**corner, tooltip=["measured:N", "predicted:N", "error:N"]))
    return alt.layer(
        *layers,
        width=width,
        height=rows * min(28 if rows > 2 else 44, 560 // rows),
        title=panel_title(f"{grid.words}: speedup", 8),
    )


def _row(cell: Cell, top: float) -> dict[str, Any]:
    """A cell as a row of data."""
    mark = "=" if cell.verified else "" if cell.measured_batch else "~"
    is_low = (max(cell.speedup, 1.0) ** 0.5 - 1) / (top**0.5 - 1) < _DARK
    return {
        "np": cell.np,
        "nodes": cell.nodes,
        "column": asked_batch(cell),
        "batch": cell.batch,
        "global_batch": cell.global_batch,
        "fits": cell.fits,
        "speedup": float(f"{cell.speedup:.6g}"),
        "words": f"{mark}{cell.speedup:.2f}" if cell.fits else "mem",
        "dark": cell.fits and is_low,
        "speedup_words": f"{cell.speedup:.2f} ({cell.speedup_low:.3g} to {cell.speedup_high:.3g})",
        "step": f"{format_seconds(cell.step_s)} ({format_seconds(cell.low_s)} to {format_seconds(cell.high_s)})",
        "efficiency": format_share(cell.efficiency),
        "throughput": format_rate(cell.throughput),
        "exposed": format_seconds(cell.exposed_s),
        "hidden": format_seconds(cell.hidden_s),
        "memory": format_bytes(cell.memory_bytes) if cell.memory_bytes else "-",
        "hours": digits(cell.device_hours),
    }


CHARTS = (
    Figure(
        "map",
        "predicted",
        "Each cell is a setting; brighter is faster. Where a row is no brighter than the one below it, more processes "
        "do not pay.",
        lambda prediction, step, most: map_chart(prediction, most),
        leads=True,
    ),
    Figure(
        "step",
        "step",
        "One step of every rank: compute above, exchange below. Red-orange marks exposed communication, in which "
        "nothing is computed. Ctrl and wheel, or the buttons, zoom; dragging moves.",
        lambda prediction, step, most: (
            timelines_chart({"": step}, f"One step, predicted: {headline(prediction)}") if step else None
        ),
        zooms=True,
    ),
)
