"""A quantity over processes and batch sizes as a coloured map; the reader of the page chooses the quantity."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import altair as alt

from scalescope.charts.map_parts import LABEL_HEIGHT, QUANTITIES, Axes, cell_fields, cell_size, range_of, tooltip
from scalescope.charts.parts import RING_COLOUR, Rows, data, frame, key, outline, panel_title
from scalescope.records.prediction import Cell, Check, Prediction
from scalescope.report.prediction import (
    DOES_NOT_FIT_COLOUR,
    RAMP,
    SLOWER_COLOUR,
    Grid,
    advice_words,
    asked_batch,
    check_words,
    grids,
    headline,
    is_slower,
    left_out_words,
    recommended_cell,
    reduced,
    trust_words,
    verdict_words,
)
from scalescope.text import plural
from scalescope.units import format_seconds

_MOST_CELLS = 4096  # Of all maps in a figure: more would make a page of several megabytes
_SHADE = (
    "info.logarithmic ? log(datum[quantity] / info.low) / log(info.high / info.low)"
    " : (datum[quantity] - info.low) / (info.high - info.low)"
)
_IS_BLACK = "quantity == 'speedup' && datum.slower"


def map_chart(prediction: Prediction, *, checks: Sequence[Check] = (), most: int = _MOST_CELLS) -> Any:
    """Speedup; on the page any quantity can be chosen instead.

    Args:
        prediction: The map.
        checks: Cells that were measured: each gets a point that says how wrong the prediction was.
        most: Cells that are drawn.
    """
    names = list(QUANTITIES)
    choice = alt.binding_select(options=names, labels=[QUANTITIES[name].title for name in names], name="show ")
    black = any(map(is_slower, prediction.cells))
    return _figure(
        prediction,
        "Prediction",
        alt.param(name="quantity", value="speedup", bind=choice),
        lambda cell: not is_slower(cell),
        ["black: slower than one process", "bold line: speedup 1"] if black else [],
        checks,
        most,
    )


def efficiency_map(prediction: Prediction) -> Any:
    """Efficiency with the line of the goal; None with a single process only."""
    if all(cell.np == 1 for cell in prediction.cells):
        return None
    goal = prediction.efficiency_goal
    return _figure(
        prediction,
        "Predicted efficiency",
        alt.param(name="quantity", value="efficiency"),
        lambda cell: cell.efficiency >= goal,
        [f"bold line: efficiency {100 * goal:.0f} %"],
    )


def _figure(
    prediction: Prediction,
    title: str,
    quantity: alt.Parameter,
    inside: Callable[[Cell], bool],
    lines: list[str],
    checks: Sequence[Check] = (),
    most_cells: int = _MOST_CELLS,
) -> Any:
    """One map below the other; `inside` says on which side of the drawn line a cell lies."""
    whole = grids(prediction)
    most = int((most_cells / len(whole)) ** 0.5)
    shown = [reduced(grid, most, most, prediction) for grid in whole]
    if checks:
        lines = [*lines, "points: measured"]
    cells = [cell for grid in shown for cell in grid.shown()]
    best = recommended_cell(prediction)
    left_out = [words for grid, few in zip(whole, shown, strict=True) if (words := left_out_words(grid, few))]
    ranges = {name: range_of(name, [cell for cell in cells if cell.fits]) for name in QUANTITIES}
    info = alt.param(name="info", expr=f"({json.dumps(ranges)})[quantity]")
    return alt.concat(
        *(_panel(grid, best, inside, checks) for grid in shown),
        columns=1,
        spacing=24,
        params=[quantity.param, info.param],
        **frame(
            f"{title}: {headline(prediction)}",
            *_verdict(prediction),
            check_words(prediction) or trust_words(prediction),
            "; ".join(filter(None, [*lines, _key(shown, best)])),
            *dict.fromkeys(left_out),
        ),
    )


def _verdict(prediction: Prediction) -> list[str]:
    """What to do, or why nothing is recommended, a line each."""
    if not prediction.trusted:
        return ["not to be trusted, so nothing is recommended:", *prediction.doubts]
    return [verdict_words(prediction), f"recommended: {advice_words(prediction)}"]


def _key(shown: Sequence[Grid], best: Cell | None) -> str:
    cells = [cell for grid in shown for cell in grid.shown()]
    meanings = {
        "ring: recommended": best in cells,
        "grey: does not fit into memory": any(not cell.fits for cell in cells),
        "=: measured": any(cell_size(grid).has_text and cell.verified for grid in shown for cell in grid.shown()),
        "~: beyond the profiled batches": any(
            cell_size(grid).has_text and not (cell.measured_batch or cell.verified)
            for grid in shown
            for cell in grid.shown()
        ),
        "blank: fewer samples than processes": any(
            len(grid.shown()) < len(grid.counts) * len(grid.batches) for grid in shown
        ),
    }
    return key(meanings)


def _panel(grid: Grid, best: Cell | None, inside: Callable[[Cell], bool], checks: Sequence[Check]) -> Any:
    axes = Axes(grid, cell_size(grid))
    words = f"{grid.scaling} scaling: "
    title = panel_title(alt.expr(f"'{words}' + info.title"), 8)
    layers = [*_cells(grid, axes), *_nodes(grid, axes), *_line(grid, axes, inside)]
    if best and grid.cells.get((best.np, asked_batch(best))) is best:
        layers += _ring(best, axes)
    layers += _points(grid, axes, checks)
    return alt.layer(*layers, width=axes.width, height=axes.size.down * len(grid.counts), title=title)


def _cells(grid: Grid, axes: Axes) -> list[alt.Chart]:
    """Colours, numbers where there is room, and a stroke through what does not fit."""
    rows: Rows = [cell_fields(cell) for cell in grid.shown()]
    legend = alt.Legend(
        title=None,
        values=alt.expr("info.ticks"),
        labelExpr="info.labels[indexof(info.ticks, datum.value)]",
        gradientLength=min(200.0, max(110.0, axes.size.down * len(grid.counts))),
        offset=14,
    )
    places = [index / (len(RAMP) - 1) for index in range(len(RAMP))]
    scale = alt.Scale(domain=places, range=list(RAMP), clamp=True)
    flat = [{"test": "!datum.fits", "value": DOES_NOT_FIT_COLOUR}, {"test": _IS_BLACK, "value": SLOWER_COLOUR}]
    colour = alt.Color("shade:Q", scale=scale, legend=legend, condition=flat)
    source = data(rows)
    base = alt.Chart(source).transform_calculate(shade=_SHADE)
    rim: dict[str, Any] = {"stroke": "white", "strokeWidth": 1} if axes.size.has_text else {}
    layers = [base.mark_rect(**rim).encode(x=axes.x(), y=axes.y(), color=colour, tooltip=tooltip())]
    out = alt.Chart(source).transform_filter("!datum.fits")
    long = 0.5 * min(axes.size)
    slash = out.mark_point(shape="M-1,1L1,-1", size=long**2, stroke="#999999", strokeWidth=1.2)
    if any(not row["fits"] for row in rows):
        layers.append(slash.encode(x=axes.x(), y=axes.y()))
    if axes.size.has_text:
        light = alt.when(f"{_IS_BLACK}").then(alt.value("#b8b8b8"))
        letters = light.when("datum.shade < 0.4").then(alt.value("white")).otherwise(alt.value("black"))
        words = base.transform_filter("datum.fits").transform_calculate(
            words="datum.mark + split(datum[quantity + '_words'], ' (')[0]"
        )
        layers.append(words.mark_text(fontSize=11).encode(x=axes.x(), y=axes.y(), text="words:N", color=letters))
    return layers


def _nodes(grid: Grid, axes: Axes) -> list[alt.Chart]:
    """Lines between rows where more nodes begin to be used, labelled as far as there is room."""
    rows: Rows = []
    last = -LABEL_HEIGHT / axes.size.down
    for np, nodes in grid.boundaries().items():
        here = grid.counts.index(np)
        if (here - last) * axes.size.down >= LABEL_HEIGHT:
            rows.append({"np": np, "words": plural(nodes, "node")})
            last = here
    if not rows:
        return []
    base = alt.Chart(data(rows))
    edge: dict[str, Any] = {"x": alt.value(0), "y": axes.y(1.0), "x2": alt.value(axes.width + 54)}
    return [
        base.mark_rule(stroke="white", strokeWidth=3).encode(**{**edge, "x2": alt.value(axes.width)}),
        base.mark_rule(stroke="#333333", strokeWidth=1.2, strokeDash=[4, 2]).encode(**edge),
        base.mark_text(align="left", baseline="bottom", dy=-2, fontSize=11, color="#333333").encode(
            x=alt.value(axes.width + 6), y=axes.y(1.0), text="words:N"
        ),
    ]


def _line(grid: Grid, axes: Axes, inside: Callable[[Cell], bool]) -> list[alt.Chart]:
    """The line between cells that are inside and those that are not, along their edges."""

    def differ(first: tuple[int, int], second: tuple[int, int]) -> bool:
        pair = [grid.cells[place] for place in (first, second) if place in grid.cells]
        fitting = [inside(cell) for cell in pair if cell.fits]
        return len(fitting) == 2 and fitting[0] != fitting[1]

    flat: Rows = [
        {"np": low, "column": batch}
        for low, high in pairwise(grid.counts)
        for batch in grid.batches
        if differ((low, batch), (high, batch))
    ]
    upright: Rows = [
        {"np": np, "column": left}
        for left, right in pairwise(grid.batches)
        for np in grid.counts
        if differ((np, left), (np, right))
    ]
    layers = []
    for colour, width in (("white", 4.5), ("black", 1.8)):
        look: dict[str, Any] = {"stroke": colour, "strokeWidth": width, "strokeCap": "square"}
        if flat:
            edges = alt.Chart(data(flat)).mark_rule(**look)
            layers.append(edges.encode(x=axes.x(0.0), x2=alt.X2("column", bandPosition=1.0), y=axes.y(0.0)))
        if upright:
            edges = alt.Chart(data(upright)).mark_rule(**look)
            layers.append(edges.encode(x=axes.x(1.0), y=axes.y(0.0), y2=alt.Y2("np", bandPosition=1.0)))
    return layers


def _points(grid: Grid, axes: Axes, checks: Sequence[Check]) -> list[alt.Chart]:
    """A point for every cell that was measured, in its corner where it holds a number."""
    cells = {(cell.np, cell.batch): cell for cell in grid.shown()}
    rows: Rows = [
        {
            "np": check.np,
            "column": asked_batch(cells[check.np, check.batch]),
            "measured": format_seconds(check.measured_s),
            "predicted": format_seconds(check.predicted_s),
            "error": f"{100 * check.error:+.1f} %",
        }
        for check in checks
        if check.scaling == grid.scaling and (check.np, check.batch) in cells
    ]
    if not rows:
        return []
    size, across, up = (36, 0.88, 0.24) if axes.size.has_text else (20, 0.5, 0.5)
    point = alt.Chart(data(rows)).mark_point(
        filled=True, size=size, fill="#ffffff", stroke="#000000", strokeWidth=1.4, opacity=1
    )
    told = {"measured": "measured step", "predicted": "predicted step", "error": "prediction was off by"}
    tips = [alt.Tooltip(f"{name}:N", title=title) for name, title in told.items()]
    return [point.encode(x=axes.x(across), y=axes.y(up), tooltip=tips)]


def _ring(best: Cell, axes: Axes) -> list[alt.Chart]:
    place = {"np": best.np, "column": asked_batch(best)}
    return [each.encode(x=axes.x(), y=axes.y()) for each in outline(place, RING_COLOUR, 3.0)]
