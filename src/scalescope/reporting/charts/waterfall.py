"""From ideal to real speedup: what each loss takes away at the largest number of processes."""

from typing import Any

import altair as alt

from scalescope.records.scaling import Curve, Scaling, ScalingPoint
from scalescope.reporting.charts.parts import (
    GAIN_COLOUR,
    IDEAL_COLOUR,
    LOSS_COLOUR,
    SPEEDUP_COLOURS,
    Rows,
    data,
    frame,
)
from scalescope.reporting.phrases import (
    Step,
    curves_in_order,
    known_title,
    largest,
    number,
    shortened,
    waterfall_steps,
)
from scalescope.units import plural

_COLOURS = {"ideal": IDEAL_COLOUR, **SPEEDUP_COLOURS, "loss": LOSS_COLOUR, "gain": GAIN_COLOUR}


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
        **frame(f"From ideal to real speedup: {shortened(scaling.what)}", f"full bars: speedups; {colours}"),
    )


def _panel(curve: Curve, point: ScalingPoint, *, wide: bool) -> Any:
    steps = waterfall_steps(point)
    rows: Rows = [
        {
            "step": step.name,
            "start": min(step.start, step.end),
            "end": max(step.start, step.end),
            "colour": _COLOURS[step.kind],
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
        title=alt.TitleParams(where, anchor="start", frame="bounds", fontSize=13, offset=6),
    )


def _words(step: Step) -> str:
    if step.kind in ("loss", "gain"):
        return f"{'-' if step.kind == 'loss' else '+'} {number(abs(step.end - step.start), 2)}"
    return number(step.end, 2)
