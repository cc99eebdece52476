"""The page of a proposal as one figure: words, a table and a plot of every study, and how it was measured."""

import textwrap
from typing import Any

import altair as alt

from scalescope import __version__
from scalescope.records.results import Results
from scalescope.records.scaling import Estimate
from scalescope.show.charts.parts import Rows, counts_axis, curve_layers, curve_row, data, frame, panel_title
from scalescope.show.charts.scaling import speedup_axis
from scalescope.show.document import Column, cell
from scalescope.show.proposal import Study, shortcomings, studies
from scalescope.show.study import machine_facts, method_words
from scalescope.stats import MEASURED, percent
from scalescope.text import plain, plural
from scalescope.units import format_rate, format_seconds, format_share

_WIDTH, _LETTERS = 640, 105  # Of the page in pixels, and of a line
_COLOUR = "#0072b2"


def proposal_chart(results: Results) -> Any:
    """Every study with its table and plot, then method and machine."""
    parts = [part for study in studies(results) for part in (_table(study), _plot(study))]
    facts = "; ".join(f"{name}: {value}" for name, value in machine_facts(results))
    if results.measurement:
        method = _titled("Method", method_words(results), facts, f"Measured with scalescope {__version__}.")
    else:  # a table or logs of somebody's
        method = _titled("Method", f"Computed by scalescope {__version__} from {plain(results.what, 60)}.")
    parts.append(alt.Chart(data([{}])).mark_point(opacity=0).properties(width=_WIDTH, height=1, title=method))
    return alt.vconcat(*parts, spacing=24, **frame(f"Scaling of {plain(results.what, 60)}"))


def _titled(heading: str, *paragraphs: str) -> alt.TitleParams:
    """A heading, and paragraphs below it in lines that fit."""
    lines = [line for text in paragraphs for line in textwrap.wrap(text, _LETTERS)]
    return panel_title(heading, 10, subtitle=lines, subtitlePadding=5)


def _table(study: Study) -> Any:
    units = [Column("units", "nodes", write="{:,}".format)] if study.unit == "node" else []
    columns = [
        *units,
        Column("point.np", "processes", write="{:,}".format),
        Column("point.batch", "batch each", write="{:g}".format),
        Column("steps", "steps", write="{:,}".format),
        Column("point.launches", "launches"),
        Column("point.step_s.value", "step", write=format_seconds),
        Column("throughput", "samples/s", write=format_rate),
        Column("speedup", "speedup", write="{:.2f}".format),
        Column(lambda row: f"{row.low:.2f} to {row.high:.2f}" if row.low < row.high else None, "interval"),
        Column("efficiency", "efficiency", write=format_share),
    ]
    rows: Rows = [
        {"column": column.heading, "at": at, "text": cell(column, row) or "-"}
        for at, row in enumerate(study.rows)
        for column in columns
    ]
    head = alt.Axis(orient="top", labelAngle=0, labelFontWeight="bold", ticks=False)
    x = alt.X("column:N", title=None, scale=alt.Scale(domain=[column.heading for column in columns]), axis=head)
    most = study.rows[-1]
    reached = (
        f"Speedup relative to {plural(study.rows[0].units, study.unit)}, the smallest feasible size: "
        f"{most.speedup:.2f} on {plural(most.units, study.unit)}, a parallel efficiency of "
        f"{format_share(most.efficiency)}. Intervals over launches, {percent(MEASURED)}."
    )
    title = _titled(f"{study.title[0].upper()}{study.title[1:]}", reached, *shortcomings(study))
    words = alt.Chart(data(rows)).mark_text(fontSize=11)
    shown = words.encode(x=x, y=alt.Y("at:O", axis=None), text="text:N")
    return shown.properties(width=_WIDTH, height=alt.Step(18), title=title)


def _plot(study: Study) -> Any:
    """Measured speedups with their intervals, and the ideal."""
    sizes = [row.units for row in study.rows]
    counts = counts_axis("nodes" if study.unit == "node" else "processes", sizes)
    ideal: Rows = [{"at": size, "value": size / sizes[0]} for size in sizes]
    rows: Rows = [
        curve_row(row.units, Estimate(value=row.speedup, low=row.low, high=row.high, interval="t", count=2), "measured")
        for row in study.rows
    ]
    y = speedup_axis([row["value"] for row in ideal], rows, counts.logarithmic)
    layers = curve_layers(rows, ideal, counts.x, y, (), color=alt.value(_COLOUR))
    title = f"speedup over {sizes[0]}; dashed: ideal; solid: measured, bars: intervals"
    return alt.layer(*layers, width=420, height=230, title=panel_title(title, frame="group", fontWeight="normal"))
