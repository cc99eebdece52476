"""Maps of predictions, predicted throughput, and how wrong predictions were."""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from scalescope.records.prediction import Cell, Check, Prediction
from scalescope.show.charts.explanation import timelines_chart
from scalescope.show.charts.parts import (
    IDEAL_COLOUR,
    IDEAL_DASH,
    LOSS_COLOUR,
    RING_COLOUR,
    Rows,
    counts_axis,
    data,
    frame,
    key,
    named,
    outline,
    panel_title,
    rate_axis,
    ring,
    shared_axis,
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
    configuration,
    grids,
    headline,
    is_slower,
    recommended_cell,
    reduced,
    trust_words,
)
from scalescope.stats import PREDICTED, percent
from scalescope.units import format_rate, format_seconds

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
_BATCH_COLOURS = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#e0b800")
_MOST_COUNTS, _MOST_TICKS = 128, 8  # Of a line
_MOST_CHECKS = 30
_INSIDE, _OUTSIDE = "measured within the predicted interval", "outside it"


def map_chart(prediction: Prediction, checks: Sequence[Check], most: int, launched: str = "") -> Any:
    """Speedup; on the page any quantity can be chosen instead. Cells that were measured get a point."""
    titles = [title for title, _, _ in QUANTITIES.values()]
    choice = alt.binding_select(options=list(QUANTITIES), labels=titles, name="show ")
    quantity = alt.param(name="quantity", value="speedup", bind=choice)
    black = "black: slower than one process" if any(map(is_slower, prediction.cells)) else ""
    return _map(prediction, "Prediction", quantity, black, checks, most, launched)


def efficiency_map(prediction: Prediction, most: int) -> Any:
    """Efficiency, black below the goal; None with a single process only."""
    if all(cell.np == 1 for cell in prediction.cells):
        return None
    black = f"black: efficiency below {100 * prediction.efficiency_goal:.0f} %"
    return _map(prediction, "Predicted efficiency", alt.param(name="quantity", value="efficiency"), black, (), most)


def _map(
    prediction: Prediction,
    title: str,
    quantity: alt.Parameter,
    black: str,
    checks: Sequence[Check],
    most: int,
    launched: str = "",
) -> Any:
    """One map below the other."""
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
        *(_panel(grid, prediction, best, checks) for grid, _ in thinned),
        columns=1,
        spacing=24,
        params=[quantity.param, alt.param(name="info", expr=f"({json.dumps(info)})[quantity]").param],
        **frame(
            f"{title}: {headline(prediction)}",
            *(["not to be trusted, so nothing is recommended:", *prediction.doubts] if prediction.doubts else advice),
            check_words(prediction) or trust_words(prediction),
            launched,
            key(
                {
                    black: bool(black),
                    "ring: recommended": best in cells,
                    "points: measured": bool(checks),
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


def _panel(grid: Grid, prediction: Prediction, best: Cell | None, checks: Sequence[Check]) -> Any:
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
        f"quantity == 'speedup' && datum.speedup < {READS_AS_ONE}"
        f" || quantity == 'efficiency' && datum.efficiency < {100 * prediction.efficiency_goal:.10g}"
    )
    base = alt.Chart(data([_cell(cell) for cell in grid.shown()])).transform_calculate(
        value=f"!datum.fits || ({black}) ? null : datum[quantity]"
    )
    tips = [
        *(alt.Tooltip(f"{name}:Q", title=title, format=",") for name, title in _PLACES.items()),
        *(alt.Tooltip(f"{name}:N", title=title) for name, title in _TOLD.items()),
        *(
            alt.Tooltip(f"{name}:Q", title=f"{title} ({unit or 'x'})", format=form)
            for name, (title, form, unit) in QUANTITIES.items()
        ),
        alt.Tooltip("note:N"),
    ]
    rim: dict[str, Any] = {"stroke": "white", "strokeWidth": 1} if has_numbers else {}
    flat = alt.when("datum.fits").then(alt.value(SLOWER_COLOUR)).otherwise(alt.value(DOES_NOT_FIT_COLOUR))
    legend = alt.Legend(
        title=None,
        labelExpr=with_unit("datum.value", "info.unit", "info.form == '.2f' ? '.3~r' : info.form"),
        offset=14,
    )
    low, high = alt.ExprRef("info.low"), alt.ExprRef("info.high")
    scale = alt.Scale(type="sqrt", range=list(RAMP), domainMin=low, domainMax=high, nice=False, clamp=True)
    bright = alt.Color("value:Q", scale=scale, legend=legend)
    layers = [
        base.transform_filter("datum.value === null").mark_rect(**rim).encode(**place(), color=flat, tooltip=tips),
        base.transform_filter("datum.value !== null").mark_rect(**rim).encode(**place(), color=bright, tooltip=tips),
    ]
    if has_numbers:
        shade = "(sqrt(datum.value) - sqrt(info.low)) / (sqrt(info.high) - sqrt(info.low))"
        light = f"datum.fits && (datum.value === null || {shade} < 0.4)"
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
        for check in checks
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


_PLACES = {"np": "processes", "nodes": "nodes", "batch": "batch of a process", "global": "global batch"}
_TOLD = {"speedup_words": "speedup, interval", "step_words": "step, interval", "hidden": "hidden communication"}


def _cell(cell: Cell) -> dict[str, Any]:
    """A cell as a row of data."""
    notes = {
        "measured": cell.verified,
        "does not fit into memory": not cell.fits,
        "beyond the profiled batches": not cell.measured_batch,
    }
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
        "note": key(notes) or "-",
    }


def throughput_chart(prediction: Prediction) -> Any:
    """One line per batch with its interval, one panel per kind of scaling; None where nothing can be compared."""
    most = len(_BATCH_COLOURS)
    panels, notes, best = [], [], recommended_cell(prediction)
    for grid in grids(prediction):
        shown, left_out = reduced(grid, _MOST_COUNTS, most, prediction)
        ticks = reduced(grid, _MOST_TICKS, most, prediction)[0].counts
        cells = [cell for cell in shown.shown() if cell.fits]
        if len({cell.np for cell in cells}) > 1:
            panels.append(_lines(shown, cells, ticks, best))
            notes.append(left_out)
    if not panels:
        return None
    told = f"bands hold {percent(PREDICTED)}; dashed: in proportion to one process"
    return alt.concat(
        *panels,
        columns=2,
        spacing=30,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="independent")),
        **frame(
            f"Predicted throughput: {headline(prediction)}",
            told + ("; ring: recommended" if best else ""),
            *dict.fromkeys(notes),
        ),
    )


def _lines(grid: Grid, cells: Sequence[Cell], ticks: Sequence[int], best: Cell | None) -> Any:
    rows: Rows = [
        {
            "at": cell.np,
            "nodes": cell.nodes,
            "batch": f"{asked_batch(cell):,}",
            "rate": cell.throughput,
            "low": cell.global_batch / cell.high_s,
            "high": cell.global_batch / cell.low_s,
            "ideal": cell.np * cell.throughput / cell.speedup,  # each process does what one does alone
            "throughput": f"{format_rate(cell.throughput)} samples/s",
            "speedup": round(cell.speedup, 3),
        }
        for cell in cells
    ]
    nodes = grid.nodes()
    several = max(nodes.values()) > 1
    labels = {float(np): f"{np} ({count})" for np, count in nodes.items()} if several else {}
    counts = counts_axis("processes (nodes)" if several else "processes", ticks, labels)
    rates = [row[field] for row in rows for field in ("low", "high", "ideal")]
    x, y = counts.x, rate_axis(rates, logarithmic=counts.logarithmic)
    batches = sorted({asked_batch(cell) for cell in cells})
    last = len(_BATCH_COLOURS) - 1
    colours = {
        f"{each:,}": _BATCH_COLOURS[round(at * last / max(1, len(batches) - 1))] for at, each in enumerate(batches)
    }
    legend = alt.Legend(title=BATCH_WORDS[grid.scaling], symbolStrokeWidth=3, symbolType="stroke", symbolOpacity=1)
    color = named("batch", colours, legend)
    base = alt.Chart(data(rows))
    tips = ["batch:N", alt.Tooltip("at:Q", title="processes"), "nodes:Q", "throughput:N", "speedup:Q"]
    layers = [
        base.mark_area(opacity=0.18).encode(x=x, y=y("low"), y2=alt.Y2("high"), color=color),
        base.mark_line(strokeDash=IDEAL_DASH, strokeWidth=1.1, opacity=0.75).encode(x=x, y=y("ideal"), color=color),
        base.mark_line(strokeWidth=2).encode(x=x, y=y("rate"), color=color),
        base.mark_point(filled=True, size=14, opacity=1).encode(x=x, y=y("rate"), color=color, tooltip=tips),
        *(ring(row).encode(x=x, y=y("rate")) for row, cell in zip(rows, cells, strict=True) if cell is best),
    ]
    return alt.layer(*layers, width=380, height=300, title=panel_title(grid.words, 8))


def checks_chart(prediction: Prediction) -> Any:
    """The relative error of every check with its predicted interval; None where nothing was run."""
    worst = sorted(prediction.checks, key=lambda check: -abs(check.error))[:_MOST_CHECKS]
    if not worst:
        return None
    rows: Rows = [
        {
            "configuration": f"{check.scaling}, {configuration(check)}",
            "predicted": format_seconds(check.predicted_s),
            "measured": format_seconds(check.measured_s),
            "error": check.error,
            "low": check.low_s / check.measured_s - 1,
            "high": check.high_s / check.measured_s - 1,
            "inside": _INSIDE if check.inside else _OUTSIDE,
        }
        for check in prediction.checks
        if check in worst
    ]
    reach = 1.1 * max(abs(row[name]) for row in rows for name in ("error", "low", "high"))
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    axis = alt.Axis(labelExpr="datum.value == 0 ? '0' : format(100 * datum.value, '+.0f') + ' %'", tickCount=5)
    x = shared_axis(alt.X, "error: predicted over measured, less one", scale, axis)
    y = alt.Y("configuration:N", title=None, sort=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=320))
    legend = alt.Legend(title=None, orient="bottom", symbolSize=90)
    color = named("inside", {_INSIDE: "#0072b2", _OUTSIDE: LOSS_COLOUR}, legend)
    tips = ["configuration:N", "predicted:N", "measured:N", alt.Tooltip("error:Q", format="+.1%")]
    base = alt.Chart(data(rows))
    zero = alt.Chart(data([{"error": 0.0}])).mark_rule(stroke=IDEAL_COLOUR, strokeDash=IDEAL_DASH, strokeWidth=1.3)
    few = f"the {_MOST_CHECKS} largest errors are shown" if len(prediction.checks) > _MOST_CHECKS else ""
    return alt.layer(
        zero.encode(x=x("error")),
        base.mark_rule(strokeWidth=1.6).encode(x=x("low"), x2=alt.X2("high"), y=y, color=color),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x("error"), y=y, color=color, tooltip=tips),
        width=420,
        height=max(120, 24 * len(rows)),
        **frame(
            f"Predicted and measured steps: {headline(prediction)}",
            check_words(prediction),
            trust_words(prediction) if prediction.calibration else "",
            few,
        ),
    )


CHARTS = (
    Figure(
        "map",
        "predicted",
        "Each cell is a setting; brighter is faster. Where a row is no brighter than the one below it, more processes "
        "do not pay.",
        lambda of: map_chart(of.prediction, of.checked.checks, of.most_cells, of.launched),
        leads=True,
    ),
    Figure(
        "efficiency",
        "predicted",
        "Speedup over processes: black cells stay below the efficiency that was asked for.",
        lambda of: efficiency_map(of.prediction, of.most_cells),
        on_page=False,
    ),
    Figure(
        "throughput",
        "predicted",
        "Samples per second: the further below the dashed line, the more is lost.",
        lambda of: throughput_chart(of.prediction),
        on_page=False,
    ),
    Figure(
        "checks",
        "checks",
        "A point on the dashed line was predicted right; bars are predicted intervals.",
        lambda of: checks_chart(of.checked),
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
