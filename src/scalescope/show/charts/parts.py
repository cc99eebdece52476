"""Parts of figures: colours, axes of counts, lines, intervals, titles."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt

from scalescope.engines import KNOWN
from scalescope.records.scaling import Estimate, ScalingPoint
from scalescope.show.scaling import nodes_matter
from scalescope.show.words import engine_name, engine_order, has_spread

Rows = list[dict[str, Any]]

IDEAL_COLOUR = "#767676"
SPEEDUP_COLOURS = {"steady": "#009e73", "train": "#aa4499", "end_to_end": "#333333"}
SPEEDUP_SHAPES = {"steady": "circle", "train": "square", "end_to_end": "triangle-up"}
LOSS_COLOUR = "#d55e00"
GAIN_COLOUR = "#56b4e9"
IDEAL_DASH = [5, 4]
RING_COLOUR = "#e6007e"  # Around what is recommended or was found
_ENGINE_COLOURS = {engine.name: engine.colour for engine in KNOWN.values()}
_OTHER_COLOURS = ("#cc79a7", "#009e73", "#332288", "#56b4e9", "#882255", "#b0a000")
APART = 0.012  # Of an x axis, between intervals at one tick, so that they do not hide each other
_BELOW = alt.Legend(title=None, orient="bottom", symbolSize=90)
PLAIN_NUMBER = "format(datum.value, '~g')"
_LOG_FROM = 8  # Axes become logarithmic when the largest number is that many times the smallest


def data(rows: Rows) -> alt.InlineData:
    """Rows as a chart's data, without pandas."""
    return alt.InlineData(values=rows)


def engine_colour(engines: Iterable[str], *, legend: bool) -> alt.Color:
    """Stable colours over the field `engine`: the same engine looks the same in every figure."""
    names = sorted(set(engines), key=engine_order)
    others = iter(palette(_OTHER_COLOURS, len(names)))
    looks = {engine_name(name): _ENGINE_COLOURS.get(name) or next(others) for name in names}
    colour: alt.Color = named("engine", looks, _BELOW if legend else None)
    return colour


class Counts(NamedTuple):
    """An x axis of counts with ticks only at what was measured; logarithmic when it spans much."""

    x: alt.X
    low: float
    high: float
    logarithmic: bool

    def next_to(self, count: float, fraction: float) -> float:
        """Place to draw next to the count; on a logarithmic axis at it, because elsewhere it would look faster."""
        return count if self.logarithmic else count + (self.high - self.low) * fraction


def counts_axis(title: str, counts: Iterable[float], labels: dict[float, str] | None = None) -> Counts:
    """The axis for these counts, over the field `at`; `labels` replace numbers at ticks."""
    ticks = sorted(set(counts))
    low, high = ticks[0], ticks[-1]
    logarithmic = 0 < low * _LOG_FROM <= high
    if logarithmic:
        reach = (high / low) ** 0.04
        low, high = low / reach, high * reach
        scale = alt.Scale(type="log", base=2, domain=[low, high], nice=False)
    else:
        room = 0.06 * (high - low) or 0.5
        low, high = low - room, high + room
        scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    axis = alt.Axis(values=ticks, labelExpr=tick_words(labels or {}, PLAIN_NUMBER), labelOverlap="greedy")
    return Counts(alt.X("at:Q", title=title, scale=scale, axis=axis), low, high, logarithmic)


def tick_words(labels: Mapping[Any, str], otherwise: str = "''") -> str:
    """An expression for a tick's label; the axis' own format would round ticks to their distance."""
    return "".join(f"datum.value == {value:.10g} ? {json.dumps(text)} : " for value, text in labels.items()) + otherwise


def shared_axis(kind: type[Any], title: str, scale: alt.Scale, axis: Any = alt.Undefined) -> Callable[[str], Any]:
    """An axis for the fields of several marks; `kind` is alt.X or alt.Y."""

    def of_field(field: str) -> Any:
        return kind(f"{field}:Q", title=title, scale=scale, axis=axis)

    return of_field


def rate_axis(rates: Sequence[float], *, logarithmic: bool) -> Callable[[str], alt.Y]:
    """The y axis of throughputs."""
    scale, axis = alt.Scale(domain=[0, 1.05 * max(rates)], nice=False), alt.Axis(format=",~r")
    if logarithmic:
        domain = logarithmic_domain(rates)
        scale = alt.Scale(type="log", base=2, domain=domain, nice=False)
        axis = alt.Axis(format=",~r", values=round_numbers(*domain))
    return shared_axis(alt.Y, "samples/s over all processes", scale, axis)


def processes_axis(points: Sequence[ScalingPoint]) -> Counts:
    """The x axis of processes, with nodes in its labels when they matter."""
    counts = [float(point.np) for point in points]
    if not nodes_matter(points):
        return counts_axis("processes", counts)
    nodes: dict[float, set[int]] = {}
    for point in points:
        if point.nodes is not None:
            nodes.setdefault(float(point.np), set()).add(point.nodes)
    labels = {count: f"{count:g} ({', '.join(map(str, sorted(here)))})" for count, here in nodes.items()}
    return counts_axis("processes (nodes)", counts, labels)


def logarithmic_domain(values: Iterable[float]) -> list[float]:
    """From the smallest value above 0 to the largest, with some room."""
    known = [value for value in values if value > 0]
    return [min(known) / 1.15, max(known) * 1.15]


def round_numbers(low: float, high: float) -> list[float]:
    """Ticks for a logarithmic axis of amounts: 1, 2, 5, 10, 20, 50 and so on."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for power in decades for digit in (1, 2, 5) if low <= (tick := digit * 10.0**power) <= high]


def powers_of_ten(low: float, high: float, most: int) -> list[float]:
    """Ticks for a logarithmic axis that spans much; of fewer than `most` round numbers all."""
    rounds = round_numbers(low, high)
    tens = [tick for tick in rounds if f"{tick:e}".startswith("1.0")]
    return tens if len(rounds) > most else rounds


def curve_row(at: float, estimate: Estimate, series: str, **fields: Any) -> dict[str, Any]:
    """A row of `curve_layers`: where it stands, its value with the interval, and the line that it is on, if any."""
    shown = estimate.interval if has_spread(estimate) else ""
    return {
        "at": at,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "interval": shown,
        "repetitions": estimate.count,
        "series": series,
        **fields,
    }


def curve_layers(
    rows: Rows, ideal: Rows, x: alt.X, y: Callable[[str], alt.Y], tooltip: Sequence[str], **look: Any
) -> list[alt.Chart]:
    """The ideal, lines by `series`, intervals and points, from back to front; `look` is colour and shape.

    T-intervals are solid bars with caps, ranges thin bars without and hollow points.
    """
    colour = {"color": look["color"]}
    layers = []
    if ideal:
        dashed = alt.Chart(data(ideal)).mark_line(strokeDash=IDEAL_DASH, strokeWidth=1.4, color=IDEAL_COLOUR)
        layers.append(dashed.encode(x=x, y=y("value"), detail="series:N"))
    lines = alt.Chart(data([row for row in rows if row["series"]])).mark_line(strokeWidth=2)
    layers.append(lines.encode(x=x, y=y("value"), detail="series:N", **colour))
    bars: dict[str, dict[str, Any]] = {
        "t": {"thickness": 1.6, "ticks": alt.MarkConfig(size=6, opacity=1)},
        "range": {"thickness": 1.0, "ticks": False},
    }
    for interval, bar in bars.items():
        if here := [row for row in rows if row["interval"] == interval]:
            chart = alt.Chart(data(here)).mark_errorbar(**bar)
            layers.append(chart.encode(x=x, y=y("low"), y2=alt.Y2("high"), **colour))
    for hollow, point in ((True, {"fill": "white", "strokeWidth": 1.6}), (False, {"filled": True})):
        if here := [row for row in rows if (row["interval"] == "range") == hollow]:
            chart = alt.Chart(data(here)).mark_point(size=50, opacity=1, **point)
            layers.append(chart.encode(x=x, y=y("value"), **look, tooltip=list(tooltip)))
    return layers


def ring(row: Mapping[str, Any], *, colour: str = RING_COLOUR, width: float = 2.2) -> Any:
    """A ring around one point; still to be encoded."""
    return alt.Chart(data([dict(row)])).mark_point(size=260, fill=None, stroke=colour, strokeWidth=width, opacity=1)


def outline(row: Mapping[str, Any], colour: str, width: float, dash: Sequence[int] = (1, 0)) -> list[alt.Chart]:
    """A frame around one cell of a map, on a white one so that it is seen on any colour; still to be encoded."""
    cell = alt.Chart(data([dict(row)]))
    look: dict[str, Any] = {"fillOpacity": 0, "cornerRadius": 3}
    return [
        cell.mark_rect(stroke="white", strokeWidth=5.5, **look),
        cell.mark_rect(stroke=colour, strokeWidth=width, strokeDash=list(dash), **look),
    ]


def palette(colours: Sequence[str], count: int) -> list[str]:
    """As many colours as are needed, from the first on again."""
    return [colours[index % len(colours)] for index in range(count)]


def named(field: str, looks: Mapping[str, Any], legend: Any, kind: type[Any] = alt.Color) -> Any:
    """Colours or shapes by name, in this order; `kind` is alt.Color or alt.Shape."""
    return kind(f"{field}:N", scale=alt.Scale(domain=list(looks), range=list(looks.values())), legend=legend)


def panel_title(text: Any, offset: int = 6, **look: Any) -> alt.TitleParams:
    """The title of one panel of a figure."""
    return alt.TitleParams(text, anchor="start", fontSize=13, offset=offset, **look)


# How intervals and ranges look, for the note below a title.
BARS = {"t": "solid bars", "span": "hollow points with thin bars"}


def frame(title: str, *lines: str) -> dict[str, Any]:
    """Keywords of the outermost chart: its title, what it says below it, the look that all figures share.

    Given to the constructor because every later change of a large chart copies it whole.
    """
    subtitle = [line for line in lines if line]
    return {
        "title": alt.TitleParams(
            title, subtitle=subtitle or alt.Undefined, anchor="start", frame="bounds", offset=14, subtitlePadding=5
        ),
        "background": "white",
        "padding": 8,
        "config": alt.Config(
            title=alt.TitleConfig(fontSize=15, subtitleFontSize=12, subtitleColor="#444444", subtitleLineHeight=16),
            axis=alt.AxisConfig(
                labelFontSize=11,
                titleFontSize=12,
                titleFontWeight="normal",
                labelFlush=False,
                gridColor="#e8e8e8",
                domainColor="#888888",
                tickColor="#888888",
            ),
            view=alt.ViewConfig(stroke=None),
            legend=alt.LegendConfig(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", labelLimit=300),
        ),
    }
