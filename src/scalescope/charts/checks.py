"""Predictions against what was measured: on the diagonal they agree."""

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from scalescope.charts.parts import (
    IDEAL_COLOUR,
    IDEAL_DASH,
    LOSS_COLOUR,
    Rows,
    data,
    frame,
    is_logarithmic,
    named,
    round_numbers,
    shared_axis,
    tick_words,
)
from scalescope.records.prediction import Check, Prediction
from scalescope.report.prediction import check_words, configuration, headline, trust_words
from scalescope.units import format_seconds, unit_of

_MOST_ROWS = 30
_INSIDE, _OUTSIDE = "measured within the predicted interval", "outside it"
_LEGEND = alt.Legend(title=None, orient="bottom", symbolSize=90)
_COLOUR = named("inside", {_INSIDE: "#0072b2", _OUTSIDE: LOSS_COLOUR}, _LEGEND)
_TOOLTIP = ["configuration:N", "predicted_words:N", "measured_words:N", "error_words:N"]


def checks_chart(prediction: Prediction) -> Any:
    """Steps on both axes, and the errors by configuration; None where nothing was run."""
    if not prediction.checks:
        return None
    rows = [_fields(check) for check in prediction.checks]
    return alt.hconcat(
        _diagonal(rows),
        _errors(rows),
        spacing=40,
        **frame(
            f"Predicted and measured steps: {headline(prediction)}",
            check_words(prediction),
            trust_words(prediction) if prediction.calibration else "",
            f"the {_MOST_ROWS} largest errors are listed" if len(rows) > _MOST_ROWS else "",
        ),
    )


def _fields(check: Check) -> dict[str, Any]:
    return {
        "configuration": f"{check.scaling}, {configuration(check)}",
        "predicted": check.predicted_s,
        "low": check.low_s,
        "high": check.high_s,
        "measured": check.measured_s,
        "measured_low": check.measured_low_s,
        "measured_high": check.measured_high_s,
        "predicted_words": _words(check.predicted_s, check.low_s, check.high_s),
        "measured_words": _words(check.measured_s, check.measured_low_s, check.measured_high_s),
        "error": check.error,
        "error_low": check.low_s / check.measured_s - 1,
        "error_high": check.high_s / check.measured_s - 1,
        "error_words": f"{100 * check.error:+.1f} %",
        "inside": _INSIDE if check.inside else _OUTSIDE,
    }


def _words(middle: float, low: float, high: float) -> str:
    return f"{format_seconds(middle)} ({format_seconds(low)} to {format_seconds(high)})"


def _diagonal(rows: Rows) -> Any:
    """Predicted against measured, both with their intervals."""
    names = ("predicted", "low", "high", "measured", "measured_low", "measured_high")
    values = [row[name] for row in rows for name in names]
    low, high = min(values), max(values)
    unit, factor = unit_of(high)
    x, y, ends = _axes(low * factor, high * factor, unit)
    scaled = [{**row, **{name: row[name] * factor for name in names}} for row in rows]
    base = alt.Chart(data(scaled))
    line = alt.Chart(data([{"measured": end, "predicted": end} for end in ends]))
    return alt.layer(
        line.mark_line(strokeDash=IDEAL_DASH, strokeWidth=1.3, color=IDEAL_COLOUR).encode(
            x=x("measured"), y=y("predicted")
        ),
        base.mark_rule(strokeWidth=1.4).encode(x=x("measured"), y=y("low"), y2=alt.Y2("high"), color=_COLOUR),
        base.mark_rule(strokeWidth=1.4).encode(
            x=x("measured_low"), x2=alt.X2("measured_high"), y=y("predicted"), color=_COLOUR
        ),
        base.mark_point(filled=True, size=34, opacity=1).encode(
            x=x("measured"), y=y("predicted"), color=_COLOUR, tooltip=_TOOLTIP
        ),
        width=300,
        height=300,
    )


def _axes(low: float, high: float, unit: str) -> tuple[Callable[[str], alt.X], Callable[[str], alt.Y], Sequence[float]]:
    """Two equal axes, and where they end."""
    if is_logarithmic([low, high]):
        ends = [low / 1.2, high * 1.2]
        scale = alt.Scale(type="log", domain=ends, nice=False)
        axis = alt.Axis(values=round_numbers(*ends), format="~r", labelOverlap="greedy")
    else:
        ends = [0.0, 1.08 * high]
        scale, axis = alt.Scale(domain=ends, nice=False), alt.Axis(format="~r", tickCount=6)
    x = shared_axis(alt.X, f"measured step, {unit}", scale, axis)
    return x, shared_axis(alt.Y, f"predicted step, {unit}", scale, axis), ends


def _errors(rows: Rows) -> Any:
    """The relative error of every check with the predicted interval."""
    worst = sorted(rows, key=lambda row: -abs(row["error"]))[:_MOST_ROWS]
    shown = [{**row, "row": index} for index, row in enumerate(row for row in rows if row in worst)]
    labels = tick_words({row["row"]: row["configuration"] for row in shown})
    y = alt.Y("row:O", title=None, axis=alt.Axis(labelExpr=labels, ticks=False, domain=False, labelLimit=320))
    reach = 1.1 * max(abs(row[name]) for row in shown for name in ("error", "error_low", "error_high"))
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    axis = alt.Axis(labelExpr="datum.value == 0 ? '0' : format(datum.value, '+.0~%')", tickCount=5)
    x = shared_axis(alt.X, "error: predicted over measured, less one", scale, axis)
    base = alt.Chart(data(shown))
    zero = alt.Chart(data([{"error": 0.0}])).mark_rule(stroke=IDEAL_COLOUR, strokeDash=IDEAL_DASH, strokeWidth=1.3)
    return alt.layer(
        zero.encode(x=x("error")),
        base.mark_rule(strokeWidth=1.6).encode(x=x("error_low"), x2=alt.X2("error_high"), y=y, color=_COLOUR),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x("error"), y=y, color=_COLOUR, tooltip=_TOOLTIP),
        base.mark_text(align="left", fontSize=11).encode(x=alt.value(248), y=y, text="error_words:N", color=_COLOUR),
        width=240,
        height=max(120, min(300, 34 * len(shown))) if len(shown) <= 9 else 22 * len(shown),
    )
