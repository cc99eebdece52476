"""Where wall time goes by phases, and what each loss takes away between ideal and real speedup."""

from typing import Any

import altair as alt

from scalescope.charts.parts import (
    GAIN_COLOUR,
    IDEAL_COLOUR,
    LOSS_COLOUR,
    SPEEDUP_COLOURS,
    Rows,
    data,
    frame,
    panel_title,
)
from scalescope.records.run import TRAIN
from scalescope.records.scaling import Curve, Scaling, ScalingPoint
from scalescope.report.phrases import (
    SHOWN_PHASES,
    Step,
    curves_in_order,
    known_title,
    largest,
    number,
    points_with_phases,
    waterfall_steps,
)
from scalescope.text import plain, plural

_COLOURS = {
    "launch": "#9aa5b1",
    "import": "#c3a6d8",
    "init": "#e8a33d",
    "build": "#8fc1e3",
    "warmup": "#f2d16b",
    TRAIN: "#2f7d4f",
    "steady": "#2f7d4f",
    "evaluation": "#4a7ebb",
    "pause": "#d9d9d9",
    "teardown": "#6b6b6b",
}
_MANY = 16  # Bars from which on they are thin


def phases_chart(scaling: Scaling) -> Any:
    """A bar's length is the wall time of a launch; None when no phases are known."""
    points = points_with_phases(scaling)
    if not points:
        return None
    measured = scaling.source in ("measurement", "quick")
    order = {phase: index for index, phase in enumerate(SHOWN_PHASES)}
    there = {phase for point in points.values() for phase, seconds in point.phases.items() if seconds > 0}
    shown = [phase for phase in SHOWN_PHASES if phase in there]
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
            f"Where the time went: {plain(scaling.what, 60)}",
            f"mean over ranks{launches}" if measured else "",
        ),
    )


def _name(phase: str) -> str:
    return "warm-up" if phase == "warmup" else phase


_STEPS_OF_LOSS = {"ideal": IDEAL_COLOUR, **SPEEDUP_COLOURS, "loss": LOSS_COLOUR, "gain": GAIN_COLOUR}


def waterfall_chart(scaling: Scaling) -> Any:
    """One panel per curve; None when no losses are known."""
    found = [(curve, point) for curve in curves_in_order(scaling) if (point := largest(curve)) and point.waterfall]
    if not found:
        return None
    gains = any(step.kind == "gain" for _, point in found for step in waterfall_steps(point))
    colours = "orange: what is lost on the way" + ("; light blue: what is gained" if gains else "")
    return alt.concat(
        *(_panel(curve, point, wide=len(found) == 1) for curve, point in found),
        columns=2,
        spacing=26,
        **frame(f"From ideal to real speedup: {plain(scaling.what, 60)}", f"full bars: speedups; {colours}"),
    )


def _panel(curve: Curve, point: ScalingPoint, *, wide: bool) -> Any:
    steps = waterfall_steps(point)
    rows: Rows = [
        {
            "step": step.name,
            "start": min(step.start, step.end),
            "end": max(step.start, step.end),
            "colour": _STEPS_OF_LOSS[step.kind],
            "words": _words(step),
        }
        for step in steps
    ]
    domain = [min(0.0, *(row["start"] for row in rows)), 1.2 * max(row["end"] for row in rows)]
    axis = alt.Axis(grid=False, tickCount=8)
    x = alt.X("start:Q", title="speedup", scale=alt.Scale(domain=domain, nice=False), axis=axis)
    y = alt.Y("step:N", title=None, sort=[step.name for step in steps], axis=alt.Axis(ticks=False, minExtent=80))
    bars = alt.Chart(data(rows)).mark_bar(height=alt.RelativeBandSize(0.72))
    words = alt.Chart(data(rows)).mark_text(align="left", dx=5, fontSize=11, color="#222222")
    where = ", ".join(filter(None, (known_title(curve), plural(point.np, "process"))))
    return alt.layer(
        bars.encode(x=x, x2="end", y=y, color=alt.Color("colour:N", scale=None), tooltip=["step:N", "words:N"]),
        words.encode(x="end:Q", y=y, text="words:N"),
        width=480 if wide else 330,
        height=alt.Step(24),
        title=panel_title(where, frame="bounds"),
    )


def _words(step: Step) -> str:
    if step.kind in ("loss", "gain"):
        return f"{'-' if step.kind == 'loss' else '+'} {number(abs(step.end - step.start), 2)}"
    return number(step.end, 2)
