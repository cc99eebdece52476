"""Chart of a search: every sample in its order."""

from typing import Any

import altair as alt

from scalescope.records.tuning import Sample, Tuning, setting_words
from scalescope.show.charts.parts import IDEAL_DASH, RING_COLOUR, Rows, data, frame, named, shared_axis
from scalescope.show.document import Figure
from scalescope.show.tuning import conditions, found_words, is_default, searched
from scalescope.text import plain
from scalescope.units import unit_of, with_error

_WIDTH, _HEIGHT = 640, 300
_LEAST_SPAN = 0.1  # Of the slowest step: noise must not look like a landscape
_DEFAULT, _SEARCH, _CUT, _BEST = "#111111", "#0072b2", "#d55e00", "#009e73"
_KINDS = {
    "the default": (_DEFAULT, "diamond"),
    "the winner": (RING_COLOUR, "square"),
    "the finalist": (RING_COLOUR, "square"),
    "another setting": (_SEARCH, "circle"),
    "cut: clearly worse": (_CUT, "triangle-up"),
    "failed": (_CUT, "cross"),
}


def convergence_chart(tuning: Tuning) -> Any:
    """Every sample in its order with two standard errors and the best so far; None where none has a step time."""
    known = [sample for sample in tuning.samples if sample.step_s]
    if not known:
        return None
    unit, factor = unit_of(tuning.default_step_s or known[0].step_s or 0.0)

    def ends(sample: Sample) -> dict[str, float]:
        step_s, error_s = sample.step_s or 0.0, sample.error_s or 0.0
        times = {"time": step_s, "low": max(0.0, step_s - 2 * error_s), "high": step_s + 2 * error_s}
        return {name: factor * seconds for name, seconds in times.items()}

    whole = [ends(each) for each in known if not each.cut] or [ends(each) for each in known]  # far off: at the edge
    low, high = min(each["low"] for each in whole), max(each["high"] for each in whole)
    room = max(0.08 * (high - low), (_LEAST_SPAN * high - (high - low)) / 2)
    low, high = max(0.0, low - room), high + room
    rows: Rows = [
        {
            "sample": sample.index,
            **(ends(sample) if sample.step_s else {"time": high, "low": high, "high": high}),
            "kind": _kind(tuning, sample),
            "setting": "the default" if is_default(tuning, sample) else setting_words(sample.values),
            "step": with_error(sample.step_s, sample.error_s) if sample.step_s else "failed",
            "decision": plain(sample.problem or sample.decision, 100) or "-",
        }
        for sample in tuning.samples
    ]
    best: Rows = []
    for sample in searched(tuning):
        if sample.step_s and not sample.cut and (not best or factor * sample.step_s < best[-1]["time"]):
            best.append({"sample": sample.index, "time": factor * sample.step_s})
    best += [{"sample": searched(tuning)[-1].index + 0.5, "time": best[-1]["time"]}] if best else []
    last = tuning.samples[-1].index + 0.6
    confirming = [sample.index for sample in tuning.samples if sample.phase == "confirm"]
    field = [{"sample": min(confirming) - 0.5, "end": last}] if confirming else []
    default = [{"time": factor * tuning.default_step_s}] if tuning.default_step_s else []
    axis = alt.Axis(grid=False, tickMinStep=1, format="d")
    x = alt.X("sample:Q", title="sample", scale=alt.Scale(domain=[-0.6, last], nice=False), axis=axis)
    y = shared_axis(alt.Y, f"step time, {unit}", alt.Scale(domain=[low, high], nice=False, zero=False, clamp=True))
    looks = {kind: look for kind, look in _KINDS.items() if any(row["kind"] == kind for row in rows)}
    legend = alt.Legend(title=None, orient="bottom", symbolSize=70)
    color = named("kind", {kind: colour for kind, (colour, _) in looks.items()}, legend)
    shape = named("kind", {kind: shape for kind, (_, shape) in looks.items()}, legend, alt.Shape)
    base = alt.Chart(data(rows)).encode(x=x, color=color)
    points = base.mark_point(size=60, filled=True, opacity=1)
    held = f"; fixed: {plain(setting_words(tuning.held), 100)}" if tuning.held else ""
    return alt.layer(
        alt.Chart(data(field)).mark_rect(color="#e4e4e4", opacity=0.75).encode(x=x, x2="end"),
        alt.Chart(data(default)).mark_rule(color=_DEFAULT, strokeDash=IDEAL_DASH).encode(y=y("time")),
        alt.Chart(data(best)).mark_line(interpolate="step-after", color=_BEST).encode(x=x, y=y("time")),
        base.mark_rule().encode(y=y("low"), y2="high"),
        points.encode(y=y("time"), shape=shape, tooltip=["sample:Q", "setting:N", "step:N", "decision:N"]),
        width=_WIDTH,
        height=_HEIGHT,
        **frame(
            f"Step time of every sample: {plain(tuning.what, 60)}",
            f"{conditions(tuning)}{held}",
            "green: the best so far; dashed: the default's step; bars: two standard errors",
            "grey: the confirmation, finalist and default interleaved; at the upper edge: failed, or beyond it",
        ),
    )


def _kind(tuning: Tuning, sample: Sample) -> str:
    if sample.step_s is None:
        return "failed"
    if sample.cut:
        return "cut: clearly worse"
    if is_default(tuning, sample):
        return "the default"
    return f"the {found_words(tuning)}" if sample.values == tuning.finalist else "another setting"


CHARTS = (
    Figure(
        "convergence",
        "tuning",
        "Samples in the order in which they were tried, and the best so far.",
        convergence_chart,
        leads=True,
    ),
)
