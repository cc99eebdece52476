"""Configurations against themselves: does the interval hold 1?"""

from typing import Any

import altair as alt

from scalescope.records.scaling import Scaling
from scalescope.reporting.charts.parts import GAIN_COLOUR, IDEAL_COLOUR, IDEAL_DASH, LOSS_COLOUR, Rows, data, frame
from scalescope.reporting.phrases import engine_name, shortened

_FEW = "too few launches to tell"


def itself_chart(scaling: Scaling) -> Any:
    """One interval per configuration around the line at 1; None when nothing was compared with itself."""
    if not scaling.self_comparisons:
        return None
    rows: Rows = []
    for each in scaling.self_comparisons:
        batch = "" if each.batch is None else f", batch {each.batch} each"
        rows.append(
            {
                "what": f"{each.np} x {engine_name(each.engine)}{batch}",
                "ratio": each.ratio.value,
                "low": each.ratio.low,
                "high": each.ratio.high,
                "says": "does not hold 1" if each.covers_one is False else "holds 1" if each.covers_one else _FEW,
            }
        )
    low = min(0.98, *(0.98 * row["low"] for row in rows))
    high = max(1.02, *(1.02 * row["high"] for row in rows))
    scale = alt.Scale(domain=[low, high], nice=False)
    x = alt.X("ratio:Q", title="step time of A over step time of B", scale=scale)
    y = alt.Y("what:N", title=None, axis=alt.Axis(labelLimit=320))
    colour = alt.Color(
        "says:N",
        title=None,
        scale=alt.Scale(domain=["holds 1", "does not hold 1", _FEW], range=[GAIN_COLOUR, LOSS_COLOUR, IDEAL_COLOUR]),
    )
    chart = alt.Chart(data(rows))
    bars = chart.mark_errorbar(thickness=2, ticks=True).encode(
        x=alt.X("low:Q", title="step time of A over step time of B", scale=scale), x2="high", y=y, color=colour
    )
    points = chart.mark_point(size=70, filled=True, opacity=1).encode(x=x, y=y, color=colour)
    one = alt.Chart(data([{"ratio": 1.0}])).mark_rule(strokeDash=IDEAL_DASH, color=IDEAL_COLOUR).encode(x=x)
    kinds = {each.ratio.interval for each in scaling.self_comparisons}
    note = "95 % t-intervals over launches" if kinds == {"t"} else "ranges of fewer than 5 launches, no intervals"
    title = f"Against itself: {shortened(scaling.what)}"
    return alt.layer(one, bars, points, width=460, height=alt.Step(36), **frame(title, note))
