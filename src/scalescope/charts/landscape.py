"""Step time over the two most telling knobs: what the search expects, and what the simulator predicted."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt

from scalescope.charts.landscape_parts import Dimension, Slice, found_words, line_chart, slice_of
from scalescope.charts.parts import ON_MARK, RING_COLOUR, Rows, data, frame, key, outline, panel_title, round_numbers
from scalescope.records.tuning import Cell, Sample, Tuning, Values
from scalescope.report.tuning import digits, heading_lines, headline, held_words, setting_words, with_error
from scalescope.show.prediction import RAMP
from scalescope.units import format_seconds, unit_of

_DEFAULT_COLOUR, _ELSEWHERE_COLOUR = "#111111", "#bbbbbb"
_LEAST_SPAN = 1.25  # Colours stretch over at least this ratio: noise must not look like a landscape
_WIDE = 520  # Pixels of a panel from which the second one stands below the first
_LOW = 180  # Pixels of a panel below which the vertical axis has its title on top
_DARK = 0.4  # Cells that are worse than this need white letters
_TWO_LINES = "split(datum.label, '\\n')"
_TOOLTIP = [
    alt.Tooltip("setting:N", title="setting"),
    alt.Tooltip("expected:N", title="expected step"),
    alt.Tooltip("predicted:N", title="predicted by the simulator"),
    alt.Tooltip("measured:N", title="samples"),
]


class _Colours(NamedTuple):
    """One scale of step times for both panels, in the unit of the figure."""

    low: float
    high: float
    unit: str
    factor: float  # How many of the unit a second has

    def goodness(self, value: float) -> float:
        """1 for the fastest, 0 for the slowest."""
        return 1 - math.log(value / self.low) / math.log(self.high / self.low)

    def encoding(self, length: float) -> alt.Color:
        """Bright is fast; every ratio deserves the same change of colour."""
        last = len(RAMP) - 1
        places = [self.low * (self.high / self.low) ** (index / last) for index in range(len(RAMP))]
        scale = alt.Scale(type="log", domain=places, range=list(reversed(RAMP)), clamp=True)
        legend = alt.Legend(
            title=f"step time, {self.unit}", values=self._ticks(), format=",.3~r", gradientLength=length, offset=14
        )
        return alt.Color("time:Q", scale=scale, legend=legend)

    def _ticks(self) -> list[float]:
        ticks = round_numbers(self.low, self.high)
        if len(ticks) >= 3:
            return ticks
        steps = [self.low * (self.high / self.low) ** (index / 3) for index in range(4)]
        return [float(f"{step:.2g}") if self.high > 1.6 * self.low else float(f"{step:.3g}") for step in steps]


class _Grid(NamedTuple):
    """Both axes and their cells."""

    across: Dimension
    down: Dimension

    @property
    def cell(self) -> tuple[int, int]:
        """Pixels."""
        longest = max(len(line) for label in self.across.labels for line in label.split("\n"))
        return max(64 if len(self.across.places) <= 4 else 46, min(96, 10 + 7 * longest)), 42

    @property
    def width(self) -> int:
        return self.cell[0] * len(self.across.places)

    @property
    def height(self) -> int:
        return self.cell[1] * len(self.down.places)

    def x(self) -> alt.X:
        axis = alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False, labelExpr=_TWO_LINES, labelLimit=92)
        return alt.X("x:O", title=self.across.title, scale=alt.Scale(domain=self.across.labels), axis=axis)

    def y(self, band: float = 0.5) -> alt.Y:
        """The largest on top; band 0 is the upper edge of a row."""
        above = {"titleAngle": 0, "titleAlign": "left", "titleBaseline": "bottom", "titleX": 0, "titleY": -6}
        look: dict[str, Any] = above if self.height < _LOW else {}
        axis = alt.Axis(
            ticks=False, domain=False, grid=False, labelExpr=_TWO_LINES, labelLimit=130, labelPadding=6, **look
        )
        scale = alt.Scale(domain=self.down.labels[::-1])
        return alt.Y("y:O", title=self.down.title, scale=scale, axis=axis, bandPosition=band)

    def at(self, values: Values) -> dict[str, str]:
        """Where a setting stands."""
        across, down = self.across, self.down
        return {"x": across.label(across.place(values)), "y": down.label(down.place(values))}


def landscape_chart(tuning: Tuning) -> Any:
    """A map of the slice through the answer; with one knob a line; None where nothing is known of any."""
    part = slice_of(tuning)
    if part is None:
        return None
    if part.down is None:
        return line_chart(tuning, part)
    grid = _Grid(part.across, part.down)
    colours = _colours(part.cells)
    predicted = [cell for cell in part.cells if cell.predicted_s]
    together = "expected: simulator and samples together" if predicted else "expected from the samples"
    panels = [_panel(tuning, part, grid, colours, together, "expected_s")]
    if predicted:
        panels.append(_panel(tuning, part, grid, colours, "predicted: the simulator alone", "predicted_s"))
    return alt.concat(
        *panels,
        columns=1 if grid.width > _WIDE else 2,
        spacing=30,
        **frame(
            f"Step time over {_name(grid.across)} and {_name(grid.down)}: {headline(tuning)}",
            *heading_lines(tuning),
            _key(tuning, part, grid),
            *_not_drawn(tuning, part, grid),
        ),
    )


def _name(dimension: Dimension) -> str:
    return dimension.title.partition(",")[0]


def _colours(cells: Sequence[Cell]) -> _Colours:
    times = [time for cell in cells for time in (cell.expected_s, cell.predicted_s) if time]
    low, high = min(times), max(times)
    widen = max(1.0, math.sqrt(_LEAST_SPAN * low / high))
    unit, factor = unit_of(high)
    return _Colours(factor * low / widen, factor * high * widen, unit, factor)


def _key(tuning: Tuning, part: Slice, grid: _Grid) -> str:
    """What marks mean, as far as they are there."""
    whole = len(grid.across.places) * len(grid.down.places)
    return key(
        {
            "bright: fast": True,
            "circles: the number of a setting's first sample": bool(tuning.samples),
            f"ring: {found_words(tuning)}": bool(part.base),
            "dashed: the default": part.shows_default(),
            "blank: not a setting of its own": len(part.cells) < whole,
        }
    )


def _not_drawn(tuning: Tuning, part: Slice, grid: _Grid) -> list[str]:
    """The knobs that are not drawn, and what differs in them."""
    if not part.others:
        return [held_words(tuning)]
    grey = any(row["colour"] != "white" for row in _circle_rows(tuning, part, grid))
    marks = {
        "*: a cell with other values of these": any(not part.holds(cell.values) for cell in part.cells),
        "grey circles: samples with other values of these": grey,
        "the default lies behind the ring": not part.shows_default(),
    }
    return [f"drawn for {part.other_words()}", key(marks), held_words(tuning)]


def _panel(tuning: Tuning, part: Slice, grid: _Grid, colours: _Colours, name: str, field: str) -> Any:
    rows = _cell_rows(tuning, part, grid, colours, field)
    base = alt.Chart(data(rows))
    length = min(200.0, max(90.0, grid.height))
    x, y = grid.x(), grid.y()
    rect = base.mark_rect(stroke="white", strokeWidth=1)
    letters = alt.when("datum.dark").then(alt.value("white")).otherwise(alt.value("black"))
    low = grid.y(0.72) if field == "expected_s" else y
    words = base.mark_text(fontSize=11)
    layers = [
        rect.encode(x=x, y=y, color=colours.encoding(length), tooltip=_TOOLTIP),
        words.encode(x=x, y=low, text="words:N", color=letters),
        *_outlines(part, grid),
        *(_circles(_circle_rows(tuning, part, grid), grid) if field == "expected_s" else []),
    ]
    title = panel_title(name, 8, fontWeight="normal")
    return alt.layer(*layers, title=title, width=grid.width, height=grid.height)


def _cell_rows(tuning: Tuning, part: Slice, grid: _Grid, colours: _Colours, field: str) -> Rows:
    rows: Rows = []
    for cell in part.cells:
        time = getattr(cell, field)
        if not time:
            continue
        own = [sample for sample in tuning.samples if sample.values == cell.values]
        error = cell.error * cell.expected_s if cell.error is not None and cell.expected_s else None
        rows.append(
            {
                **grid.at(cell.values),
                "time": colours.factor * time,
                "words": digits(colours.factor * time) + ("" if part.holds(cell.values) else "*"),
                "dark": colours.goodness(colours.factor * time) < _DARK,
                "setting": setting_words(cell.values),
                "expected": with_error(cell.expected_s, error) if cell.expected_s else "-",
                "predicted": format_seconds(cell.predicted_s) if cell.predicted_s else "-",
                "measured": _sample_words(own),
            }
        )
    return rows


def _sample_words(samples: Sequence[Sample]) -> str:
    told = [f"{each.index}: {with_error(each.step_s, each.error_s)}" for each in samples if each.step_s]
    return "; ".join(told[:4]) + (f"; {len(told) - 4} more" if len(told) > 4 else "") or "none"


def _outlines(part: Slice, grid: _Grid) -> list[Any]:
    """A solid ring for what was found, a dashed one for the default."""
    layers = []
    looks: list[tuple[Values, str, list[int]]] = []
    looks += [({}, _DEFAULT_COLOUR, [5, 3])] if part.shows_default() else []
    looks += [(part.base, RING_COLOUR, [1, 0])] if part.base else []
    for values, colour, dash in looks:
        layers += [each.encode(x=grid.x(), y=grid.y()) for each in outline(grid.at(values), colour, 2.6, dash)]
    return layers


def _circle_rows(tuning: Tuning, part: Slice, grid: _Grid) -> Rows:
    """The first sample at every place; white where its setting is the one that is drawn."""
    first: dict[tuple[str, str], dict[str, Any]] = {}
    shown = [cell.values for cell in part.cells]
    known = [sample for sample in tuning.samples if sample.step_s]
    for sample in sorted(known, key=lambda sample: sample.values not in shown):
        place = grid.at(sample.values)
        if place["x"] in grid.across.labels and place["y"] in grid.down.labels:
            colour = "white" if sample.values in shown else _ELSEWHERE_COLOUR
            first.setdefault((place["x"], place["y"]), {**place, "number": str(sample.index), "colour": colour})
    return list(first.values())


def _circles(rows: Rows, grid: _Grid) -> list[Any]:
    """Numbers in circles in the upper half of their cells."""
    layers: list[Any] = []
    look: dict[str, Any] = {"size": 250, "stroke": "#111111", "strokeWidth": 1.1, "opacity": 1}
    for colour in ("white", _ELSEWHERE_COLOUR):
        here = [row for row in rows if row["colour"] == colour]
        if here:
            layers.append(alt.Chart(data(here)).mark_point(fill=colour, **look).encode(x=grid.x(), y=grid.y(0.3)))
    if rows:
        names = alt.Chart(data(rows)).mark_text(fontSize=10, color="#111111", style=ON_MARK)
        layers.append(names.encode(x=grid.x(), y=grid.y(0.3), text="number:N"))
    return layers
