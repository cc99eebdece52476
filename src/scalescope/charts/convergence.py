"""The step time of every sample in order, the best so far, and the default it is compared with."""

from typing import Any

import altair as alt

from scalescope.charts.parts import IDEAL_DASH, RING_COLOUR, Rows, data, frame, key, named, shared_axis
from scalescope.records.tuning import Sample, Tuning
from scalescope.report.tuning import (
    confirming,
    digits,
    heading_lines,
    headline,
    is_default,
    searched,
    setting_words,
    with_error,
)
from scalescope.text import plain
from scalescope.units import format_seconds, unit_of

_HEIGHT = 300
_DEFAULT, _FOUND, _SEARCH, _CUT, _BEST = "#111111", RING_COLOUR, "#0072b2", "#d55e00", "#009e73"
_KINDS = {
    "the default": (_DEFAULT, "diamond"),
    "the winner": (_FOUND, "square"),
    "the finalist": (_FOUND, "square"),
    "another setting": (_SEARCH, "circle"),
    "cut: clearly worse": (_CUT, "triangle-up"),
    "failed": (_CUT, "M-1,-1L1,1M-1,1L1,-1"),
}
_LEAST_SPAN = 0.1  # Of the default's step: less would make a landscape of noise
_NEAR = 0.5  # Of the span of all others: samples that were cut further up are drawn at the edge
_NAME_ROOM = 24  # Pixels that the number of a sample beyond the axis takes
_TOOLTIP = [
    alt.Tooltip("sample:Q", title="sample"),
    alt.Tooltip("phase:N", title="phase"),
    alt.Tooltip("setting:N", title="setting"),
    alt.Tooltip("told:N", title="step"),
    alt.Tooltip("steps:Q", title="steps measured"),
    alt.Tooltip("decision:N", title="decision"),
]


def convergence_chart(tuning: Tuning) -> Any:
    """Points with two standard errors; None where no sample has a step time."""
    times = [sample.step_s for sample in tuning.samples if sample.step_s]
    if not times:
        return None
    unit, factor = unit_of(tuning.default_step_s or min(times))
    low, high = _limits(tuning, factor)
    rows = [_row(tuning, sample, factor, (low, high)) for sample in tuning.samples]
    count = max(sample.index for sample in tuning.samples) + 1
    x = alt.X(
        "sample:Q",
        title="sample",
        scale=alt.Scale(domain=[-0.6, count - 0.4], nice=False),
        axis=alt.Axis(grid=False, tickMinStep=1, format="d", tickCount=min(count, 20)),
    )
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    y = shared_axis(alt.Y, f"step time, {unit}", scale)
    width = max(560, min(900, 26 * count))
    kinds = [kind for kind in _KINDS if any(row["kind"] == kind for row in rows)]
    legend = alt.Legend(title=None, orient="bottom", symbolSize=70) if len(kinds) > 1 else None
    colour = named("kind", {kind: _KINDS[kind][0] for kind in kinds}, legend)
    shape = named("kind", {kind: _KINDS[kind][1] for kind in kinds}, legend, alt.Shape)
    base = alt.Chart(data(rows))
    layers: list[Any] = [
        *_confirmation(tuning, count, x),
        *_default_line(tuning, factor, y("time"), width),
        alt.Chart(data(_running_best(tuning, factor)))
        .mark_line(interpolate="step-after", color=_BEST, strokeWidth=2)
        .encode(x=x, y=y("time")),
        base.mark_rule(strokeWidth=1.4, clip=True).encode(x=x, y=y("low"), y2=alt.Y2("high"), color=colour),
        *(
            alt.Chart(data(here))
            .mark_point(size=60, filled=filled, opacity=1, strokeWidth=1.8)
            .encode(x=x, y=y("time"), color=colour, shape=shape, tooltip=_TOOLTIP)
            for filled in (True, False)
            if (here := [row for row in rows if (row["kind"] != "failed") is filled])
        ),
    ]
    beyond = [row for row in rows if row["beyond"]]
    if beyond and width / count >= _NAME_ROOM:
        names = alt.Chart(data(beyond)).mark_text(fontSize=11, baseline="bottom", color=_CUT)
        layers.append(names.encode(x=x, y=alt.value(-4), text="beyond:N"))
    return alt.layer(
        *layers,
        width=width,
        height=_HEIGHT,
        **frame(
            f"Step time of every sample: {headline(tuning)}",
            *heading_lines(tuning),
            key(
                {
                    "green: the best so far": True,
                    "dashed: the default's step": bool(tuning.default_step_s),
                    "bars: two standard errors": True,
                }
            ),
            key(
                {
                    "grey: the confirmation, finalist and default interleaved": bool(confirming(tuning)),
                    "at the upper edge: samples beyond it": bool(beyond),
                }
            ),
        ),
    )


def _limits(tuning: Tuning, factor: float) -> tuple[float, float]:
    """Where the axis begins and ends: samples that were cut far off do not decide it."""
    known = [sample for sample in tuning.samples if sample.step_s]
    whole = [end for sample in known if not sample.cut for end in _bar(sample)]
    whole += [tuning.default_step_s] if tuning.default_step_s else []
    low, high = min(whole or _bar(known[0])), max(whole or _bar(known[0]))
    missing = max(0.0, _LEAST_SPAN * high - (high - low)) / 2
    low, high = low - missing, high + missing
    reach = high + _NEAR * (high - low)
    high = max([high, *(_bar(sample)[1] for sample in known if sample.cut and (sample.step_s or 0.0) <= reach)])
    room = 0.08 * (high - low)
    return factor * max(0.0, low - room), factor * (high + room)


def _bar(sample: Sample) -> tuple[float, float]:
    step, error = sample.step_s or 0.0, sample.error_s or 0.0
    return max(0.0, step - 2 * error), step + 2 * error


def _kind(tuning: Tuning, sample: Sample) -> str:
    if sample.step_s is None:
        return "failed"
    if sample.cut:
        return "cut: clearly worse"
    if is_default(tuning, sample):
        return "the default"
    if sample.values != tuning.finalist:
        return "another setting"
    return "the winner" if tuning.complete and tuning.decision == "use" else "the finalist"


def _row(tuning: Tuning, sample: Sample, factor: float, ends: tuple[float, float]) -> dict[str, Any]:
    """A sample as it is drawn: what failed or lies beyond the axis stands at its upper edge, without a bar."""
    low, high = ends
    edge = high - 0.03 * (high - low)
    step = factor * sample.step_s if sample.step_s else edge
    bar = tuple(factor * end for end in _bar(sample)) if sample.step_s else (edge, edge)
    beyond = bar[1] > high
    return {
        "sample": sample.index,
        "phase": {"default": "the default", "search": "search", "confirm": "confirmation"}[sample.phase],
        "kind": _kind(tuning, sample),
        "time": edge if beyond else step,
        "low": edge if beyond else bar[0],
        "high": edge if beyond else bar[1],
        "beyond": digits(step) if beyond else "",
        "setting": setting_words({} if is_default(tuning, sample) else sample.values),
        "told": with_error(sample.step_s, sample.error_s) if sample.step_s else "failed",
        "steps": sample.steps,
        "decision": plain(sample.problem or sample.decision, 100) or "-",
    }


def _running_best(tuning: Tuning, factor: float) -> Rows:
    """The fastest sample of the search until then; cut ones had too few steps to count."""
    rows: Rows = []
    for sample in searched(tuning):
        if sample.step_s and not sample.cut and (not rows or factor * sample.step_s < rows[-1]["time"]):
            rows.append({"sample": sample.index, "time": factor * sample.step_s})
    return [*rows, {"sample": searched(tuning)[-1].index + 0.5, "time": rows[-1]["time"]}] if rows else []


def _confirmation(tuning: Tuning, count: int, x: alt.X) -> list[Any]:
    """A grey field behind the confirmation, with its name above it."""
    samples = confirming(tuning)
    if not samples:
        return []
    begin = min(sample.index for sample in samples) - 0.5
    field = alt.Chart(data([{"sample": begin, "end": count - 0.4}]))
    middle = alt.Chart(data([{"sample": (begin + count - 0.4) / 2, "words": "confirmation"}]))
    return [
        field.mark_rect(color="#e4e4e4", opacity=0.75).encode(x=x, x2=alt.X2("end")),
        middle.mark_text(baseline="bottom", fontSize=11, color="#555555").encode(x=x, y=alt.value(-4), text="words:N"),
    ]


def _default_line(tuning: Tuning, factor: float, y: alt.Y, width: float) -> list[Any]:
    """The step to beat, named at the right edge."""
    if not tuning.default_step_s:
        return []
    line = alt.Chart(data([{"time": factor * tuning.default_step_s, "words": format_seconds(tuning.default_step_s)}]))
    name = line.mark_text(align="left", dx=5, fontSize=11, color=_DEFAULT)
    return [
        line.mark_rule(color=_DEFAULT, strokeDash=IDEAL_DASH, strokeWidth=1.3).encode(y=y),
        name.encode(x=alt.value(width), y=y, text="words:N"),
    ]
