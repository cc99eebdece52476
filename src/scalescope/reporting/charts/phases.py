"""Where the time went: one bar per point, cut into phases."""

from typing import Any

import altair as alt

from scalescope.records.run import PHASES
from scalescope.records.scaling import Scaling
from scalescope.reporting.charts.parts import data, frame
from scalescope.reporting.phrases import points_with_phases, shortened

_COLOURS = {
    "launch": "#9aa5b1",
    "import": "#c3a6d8",
    "init": "#e8a33d",
    "build": "#8fc1e3",
    "warmup": "#f2d16b",
    "steady": "#2f7d4f",
    "evaluation": "#4a7ebb",
    "pause": "#d9d9d9",
    "teardown": "#6b6b6b",
}
_MANY = 16
"""Bars from which on they are thin."""


def phases_chart(scaling: Scaling) -> Any:
    """A bar's length is the wall time of a launch; None when no phases are known."""
    points = points_with_phases(scaling)
    if not points:
        return None
    measured = scaling.source in ("measurement", "quick")
    order = {phase: index for index, phase in enumerate(PHASES)}
    there = {phase for point in points.values() for phase, seconds in point.phases.items() if seconds > 0}
    shown = [phase for phase in PHASES if phase in there]
    rows = [
        {"point": label, "phase": _name(phase), "seconds": point.phases[phase], "order": order[phase]}
        for label, point in points.items()
        for phase in shown
        if point.phases.get(phase, 0.0) > 0
    ]
    walls = {label: sum(seconds for seconds in point.phases.values() if seconds > 0) for label, point in points.items()}
    totals = [
        {"point": label, "seconds": wall, "words": f"{wall:,.0f} s" if wall >= 100 else f"{wall:.3g} s"}
        for label, wall in walls.items()
    ]
    x = alt.X(
        "seconds:Q",
        title="seconds from the launcher's start to its end" if measured else "seconds",
        scale=alt.Scale(domain=[0, 1.12 * max(walls.values())], nice=False),
    )
    y = alt.Y("point:N", title=None, sort=list(points), axis=alt.Axis(labelLimit=320, domain=False, ticks=False))
    colours = alt.Scale(domain=[_name(phase) for phase in shown], range=[_COLOURS[phase] for phase in shown])
    bars = (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            x=x.stack("zero"),
            y=y,
            color=alt.Color("phase:N", title="phase", scale=colours),
            order=alt.Order("order:Q"),
            tooltip=["point:N", "phase:N", alt.Tooltip("seconds:Q", format=".3f")],
        )
    )
    ends = alt.Chart(data(totals)).mark_text(align="left", dx=5, fontSize=11, color="#333333")
    launches = " and launches" if any(point.launches > 1 for point in points.values()) else ""
    return alt.layer(
        bars,
        ends.encode(x=x, y=y, text="words:N"),
        width=520,
        height=alt.Step(28 if len(points) <= _MANY else 18),
        **frame(
            f"Where the time went: {shortened(scaling.what)}",
            f"mean over ranks{launches}" if measured else "",
        ),
    )


def _name(phase: str) -> str:
    return "warm-up" if phase == "warmup" else phase
