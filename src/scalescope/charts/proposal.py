"""Speedup over nodes, relative to the smallest size, as a proposal shows it."""

from typing import Any

import altair as alt

from scalescope.charts.parts import IDEAL_COLOUR, IDEAL_DASH, Rows, counts_axis, data, frame, is_logarithmic, ticks_at
from scalescope.report.proposal import Study

_COLOUR = "#0072b2"


def proposal_chart(study: Study) -> Any:
    """Measured speedups with their intervals, and the ideal."""
    sizes = [row.units for row in study.rows]
    x = counts_axis("nodes" if study.unit == "node" else "processes", sizes).x
    wide = is_logarithmic(sizes)
    ideal: Rows = [{"at": size, "speedup": size / sizes[0]} for size in sizes]
    rows: Rows = [{"at": row.units, "speedup": row.speedup, "low": row.low, "high": row.high} for row in study.rows]
    top = max(*(row["speedup"] for row in ideal), *(row["high"] for row in rows))
    scale = (
        alt.Scale(type="log", base=2, domain=[0.8, 1.1 * top], nice=False)
        if wide
        else alt.Scale(domain=[0, 1.05 * top])
    )
    y = alt.Y(
        "speedup:Q", title=f"speedup over {sizes[0]}", scale=scale, axis=ticks_at([row["speedup"] for row in ideal])
    )
    measured = alt.Chart(data(rows))
    ends = measured.transform_filter("datum.low < datum.high").mark_rule(color=_COLOUR, strokeWidth=1.6)
    return alt.layer(
        alt.Chart(data(ideal)).mark_line(strokeDash=IDEAL_DASH, color=IDEAL_COLOUR, strokeWidth=1.5).encode(x=x, y=y),
        measured.mark_line(color=_COLOUR, strokeWidth=2).encode(x=x, y=y),
        ends.encode(x=x, y=alt.Y("low:Q", scale=scale), y2=alt.Y2("high")),
        measured.mark_point(color=_COLOUR, filled=True, size=60, opacity=1).encode(x=x, y=y),
        width=420,
        height=260,
        **frame("", "dashed: ideal; solid: measured, bars: intervals"),
    )
