"""Maps of predictions, and the predicted step."""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from scalescope.records.prediction import Cell, Prediction
from scalescope.show.charts.explanation import timelines_chart
from scalescope.show.charts.parts import (
    RING_COLOUR,
    Rows,
    data,
    frame,
    key,
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
    is_slower,
    recommended_cell,
    reduced,
    trust_words,
)
from scalescope.units import format_seconds

# What a map can show, by field of a cell: title, d3 format of a number, unit.
QUANTITIES = {
    "speedup": ("speedup", ".2f", ""),
    "efficiency": ("efficiency", ".0f", "%"),
    "step_s": ("step time", ".3~s", "s"),
    "throughput": ("samples per second", ".3~s", "/s"),
    "exposed_s": ("exposed communication", ".3~s", "s"),
    "memory_bytes": ("memory of a process", ".3~s", "B"),
    "device_hours": ("device-hours for a million samples", ".3~r", "h"),
}
_WITH_NUMBERS = 16  # Columns up to which cells hold numbers; twice as many rows


def map_chart(prediction: Prediction, most: int) -> Any:
    """Speedup, one map below the other; on the page any quantity can be chosen. Measured cells get a point."""
    titles = [title for title, _, _ in QUANTITIES.values()]
    choice = alt.binding_select(options=list(QUANTITIES), labels=titles, name="show ")
    quantity = alt.param(name="quantity", value="speedup", bind=choice)
    whole, best = grids(prediction), recommended_cell(prediction)
    side = int((most / len(whole)) ** 0.5)
    thinned = [reduced(grid, side, side, prediction) for grid in whole]
    cells = [cell for grid, _ in thinned for cell in grid.shown()]
    info = {
        name: {"title": title, "form": form, "unit": unit, **_range(name, cells, prediction)}
        for name, (title, form, unit) in QUANTITIES.items()
    }
    advice = [f"recommended: {advice_words(prediction)}"]
    return alt.concat(
        *(_panel(grid, prediction, best) for grid, _ in thinned),
        columns=1,
        spacing=24,
        params=[quantity.param, alt.param(name="info", expr=f"({json.dumps(info)})[quantity]").param],
        **frame(
            f"Prediction: {headline(prediction)}",
            *(["not to be trusted, so nothing is recommended:", *prediction.doubts] if prediction.doubts else advice),
            check_words(prediction) or trust_words(prediction),
            key(
                {
                    "black: slower than one process": any(map(is_slower, cells)),
                    "ring: recommended": best in cells,
                    "points: measured": bool(prediction.checks),
                    "grey: does not fit into memory": any(not cell.fits for cell in cells),
                    "=: measured": any(cell.verified for cell in cells),
                    "~: beyond the profiled batches": any(not cell.measured_batch for cell in cells),
                }
            ),
            *dict.fromkeys(left_out for _, left_out in thinned),
        ),
    )


def _range(name: str, cells: Sequence[Cell], prediction: Prediction) -> dict[str, float]:
    """From where to where colours go; what is below is black."""
    values = [float(getattr(cell, name)) for cell in cells if cell.fits] or [1.0]
    low, high = min(values), max(values)
    if name == "speedup":
        low = 1.0
    elif name == "efficiency":
        low, high = 100 * prediction.efficiency_goal, 100 * max(1.0, high)
    return {"low": low, "high": high if high > low else 2 * low or 1.0}


def with_unit(value: str, unit: str, form: str = "'.3~s'") -> str:
    """An expression that writes a value as `100 ms`; all three are expressions."""
    return f"replace(format({value}, {form}), regexp('[^0-9.]?$'), ' $&') + {unit}"


def _panel(grid: Grid, prediction: Prediction, best: Cell | None) -> Any:
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

    black = (
        f"(quantity == 'speedup' && datum.speedup < {READS_AS_ONE}"
        f" || quantity == 'efficiency' && datum.efficiency < {100 * prediction.efficiency_goal:.10g})"
    )
    base = alt.Chart(data([_cell(cell) for cell in grid.shown()])).transform_calculate(
        look=f"!datum.fits ? 'out' : {black} ? 'slow' : 'bright'",
        value="datum.look == 'bright' ? datum[quantity] : info.low",
    )
    tips = [
        *(alt.Tooltip(f"{name}:N", title=title) for name, title in _TOLD.items()),
        *(
            alt.Tooltip(f"{name}:Q", title=f"{title} ({unit or 'x'})", format=form)
            for name, (title, form, unit) in QUANTITIES.items()
        ),
    ]
    rim: dict[str, Any] = {"stroke": "white", "strokeWidth": 1} if has_numbers else {}
    legend = alt.Legend(
        title=None,
        labelExpr=with_unit("datum.value", "info.unit", "info.form == '.2f' ? '.3~r' : info.form"),
        offset=14,
    )
    low, high = alt.ExprRef("info.low"), alt.ExprRef("info.high")
    scale = alt.Scale(type="sqrt", range=list(RAMP), domainMin=low, domainMax=high, nice=False, clamp=True)
    flat = [
        {"test": "datum.look == 'out'", "value": DOES_NOT_FIT_COLOUR},
        {"test": "datum.look == 'slow'", "value": SLOWER_COLOUR},
    ]
    colour = alt.Color("value:Q", scale=scale, legend=legend, condition=flat)
    layers = [base.mark_rect(**rim).encode(**place(), color=colour, tooltip=tips)]
    if has_numbers:
        shade = "(sqrt(datum.value) - sqrt(info.low)) / (sqrt(info.high) - sqrt(info.low))"
        light = f"datum.look == 'slow' || datum.look == 'bright' && {shade} < 0.4"
        told = with_unit("datum[quantity]", "info.unit", "info.form")
        words = base.transform_calculate(words=f"datum.fits ? datum.mark + {told} : 'mem'")
        letters = alt.when(light).then(alt.value("white")).otherwise(alt.value("black"))
        layers.append(words.mark_text(fontSize=11).encode(**place(), text="words:N", color=letters))
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
        title=panel_title(alt.expr(f"{json.dumps(grid.words + ': ')} + info.title"), 8),
    )


_TOLD = {
    "np": "processes",
    "nodes": "nodes",
    "batch": "batch of a process",
    "global": "global batch",
    "speedup_words": "speedup, interval",
    "step_words": "step, interval",
    "hidden": "hidden communication",
}


def _cell(cell: Cell) -> dict[str, Any]:
    """A cell as a row of data."""
    return {
        "np": cell.np,
        "nodes": cell.nodes,
        "column": asked_batch(cell),
        "batch": cell.batch,
        "global": cell.global_batch,
        "fits": cell.fits,
        "mark": "=" if cell.verified else "" if cell.measured_batch else "~",
        **{name: float(f"{getattr(cell, name):.6g}") for name in QUANTITIES},
        "efficiency": float(f"{100 * cell.efficiency:.6g}"),
        "speedup_words": f"{cell.speedup_low:.3g} to {cell.speedup_high:.3g}",
        "step_words": f"{format_seconds(cell.low_s)} to {format_seconds(cell.high_s)}",
        "hidden": format_seconds(cell.hidden_s),
    }


CHARTS = (
    Figure(
        "map",
        "predicted",
        "Each cell is a setting; brighter is faster. Where a row is no brighter than the one below it, more processes "
        "do not pay.",
        lambda of: map_chart(of.prediction, of.most_cells),
        leads=True,
    ),
    Figure(
        "step",
        "step",
        "One step of every rank: compute above, exchange below. Red-orange marks exposed communication, in which "
        "nothing is computed. Ctrl and wheel, or the buttons, zoom; dragging moves.",
        lambda of: (
            timelines_chart({"": of.step}, f"One step, predicted: {headline(of.prediction)}") if of.step else None
        ),
        zooms=True,
    ),
)
