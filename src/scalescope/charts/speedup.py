"""Three speedups against processes, and the efficiency, one row per curve; the one of a proposal against nodes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import altair as alt

from scalescope.charts.parts import (
    APART,
    BARS,
    IDEAL_COLOUR,
    IDEAL_DASH,
    SPEEDUP_COLOURS,
    SPEEDUP_SHAPES,
    Counts,
    Rows,
    counts_axis,
    data,
    frame,
    interval_fields,
    interval_marks,
    is_logarithmic,
    logarithmic_domain,
    named,
    panel_title,
    point_marks,
    powers_of_two,
    processes_axis,
    shared_axis,
    ticks_at,
)
from scalescope.records.scaling import SPEEDUP_NAMES, SPEEDUPS, Curve, Estimate, Scaling, ScalingPoint
from scalescope.report.phrases import (
    baseline_words,
    curve_estimates,
    curves_in_order,
    drawn_line,
    has_spread,
    interval_note,
    known_title,
    largest,
    other_efficiency,
)
from scalescope.report.proposal import Study
from scalescope.text import plain, plural

_MEANINGS = {
    "steady": "steady: a long training",
    "train": "train: first to last step",
    "end_to_end": "end to end: launch to end",
}
_IDEAL = "ideal"
_PROPOSED = "#0072b2"
_BY_OTHER = {"mean": "steady by mean steps", "median": "steady by median steps"}
_FEW_TICKS = 3  # With no more ideal speedups than that, ticks stand between them too
_MANY = 6  # Curves up to which every one has a row of its own


class _Size(NamedTuple):
    """Pixels of the two panels of a curve."""

    speedup: int
    efficiency: int
    height: int


_TALL, _MIDDLE, _SMALL = _Size(360, 260, 240), _Size(360, 260, 190), _Size(230, 160, 140)


def speedup_chart(scaling: Scaling) -> Any:
    """Every curve that has something to compare; None when there is none."""
    curves = [curve for curve in curves_in_order(scaling) if any(point.speedup for point in _compared(curve))]
    if not curves:
        return None
    many = len(curves) > _MANY
    size = _SMALL if many else _TALL if len(curves) <= 2 else _MIDDLE
    legend = _legend(curves)
    rows = [_row(curve, size, legend) for curve in curves]
    estimates = [estimate for curve in curves for estimate in curve_estimates(curve)]
    note = interval_note(estimates, **BARS)
    return alt.concat(
        *rows,
        columns=2 if many else 1,
        spacing=22,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared", shape="shared")),
        **frame(f"Speedup and efficiency: {plain(scaling.what, 60)}", _headline(curves), note),
    )


def _compared(curve: Curve) -> list[ScalingPoint]:
    return [point for point in curve.points if point is not curve.baseline]


def _headline(curves: Sequence[Curve]) -> str:
    """What the largest point reached; with several curves, from the worst to the best."""
    points = [point for curve in curves if (point := largest(curve)) and point.speedup]
    most = max((point.np for point in points), default=0)
    parts = []
    for name in SPEEDUPS:
        values = [point.speedup[name].value for point in points if point.np == most and name in point.speedup]
        if values:
            span = f"{min(values):.2f}" + (f" to {max(values):.2f}" if len(values) > 1 else "")
            parts.append(f"{span} x {SPEEDUP_NAMES[name]}")
    baselines = sorted({baseline_words(curve) for curve in curves})
    relative = f", relative to {baselines[0]}" if len(baselines) == 1 and baselines[0] else ""
    return f"on {plural(most, 'process')} {', '.join(parts)}{relative}" if parts else ""


def _legend(curves: Sequence[Curve]) -> dict[str, Any]:
    """One legend for colours and shapes of what is there."""
    there = {name for curve in curves for point in curve.points for name in point.speedup}
    names = [name for name in SPEEDUPS if name in there]
    colours = {_IDEAL: IDEAL_COLOUR, **{_MEANINGS[name]: SPEEDUP_COLOURS[name] for name in names}}
    shapes = {_IDEAL: "stroke", **{_MEANINGS[name]: SPEEDUP_SHAPES[name] for name in names}}
    for name, _ in filter(None, (other_efficiency(point) for curve in curves for point in drawn_line(curve))):
        colours[_BY_OTHER[name]], shapes[_BY_OTHER[name]] = SPEEDUP_COLOURS["steady"], "diamond"
    look = alt.Legend(
        title=None, orient="bottom", direction="horizontal", symbolSize=90, symbolStrokeWidth=2, columns=5
    )
    return {"color": named("kind", colours, look), "shape": named("kind", shapes, look, alt.Shape)}


def _row(curve: Curve, size: _Size, legend: dict[str, Any]) -> Any:
    counts = processes_axis(curve.points)
    panels = [alt.layer(*_speedups(curve, counts, legend), width=size.speedup, height=size.height)]
    if any(point.efficiency for point in _compared(curve)):
        layers = _efficiency(curve, counts, legend)
        panels.append(alt.layer(*layers, width=size.efficiency, height=size.height))
    return alt.hconcat(*panels, spacing=20, title=panel_title(known_title(curve), frame="bounds"))


def _speedups(curve: Curve, counts: Counts, legend: dict[str, Any]) -> list[alt.Chart]:
    line = drawn_line(curve)
    apart = APART if any(has_spread(each) for point in line for each in point.speedup.values()) else 0.0
    rows: Rows = [
        _row_of(point.np, estimate, _MEANINGS[name], counts.next_to(point.np, (SPEEDUPS.index(name) - 1) * apart))
        for point in line
        for name, estimate in point.speedup.items()
        if name in _MEANINGS and estimate.value > 0
    ]
    base = curve.baseline_np or line[0].np
    ideal: Rows = [{"at": point.np, "value": point.np / base, "kind": _IDEAL} for point in line if point.np >= base]
    y = _speedup_axis([row["value"] for row in ideal], rows, counts.logarithmic)
    return _layers(rows, ideal, counts, y, legend)


def _efficiency(curve: Curve, counts: Counts, legend: dict[str, Any]) -> list[alt.Chart]:
    line = drawn_line(curve)
    rows: Rows = [
        _row_of(point.np, point.efficiency, _MEANINGS["steady"], point.np) for point in line if point.efficiency
    ]
    by_other = [
        _row_of(point.np, Estimate(value=other[1], low=other[1], high=other[1]), _BY_OTHER[other[0]], point.np)
        for point in line
        if (other := other_efficiency(point))
    ]
    scale = alt.Scale(domain=[0, max([1.1, *(1.03 * row["high"] for row in [*rows, *by_other])])], nice=False)
    ideal = [{"at": point.np, "value": 1.0, "kind": _IDEAL} for point in line]
    y = shared_axis(alt.Y, "efficiency (steady)", scale)
    return [
        *_layers(rows, ideal, counts, y, legend),
        *point_marks(by_other, counts.x, y("value"), **legend, tooltip=_TOOLTIP),
    ]


_TOOLTIP = ["kind:N", "processes:Q", "words:N", "repetitions:Q"]


def _row_of(np: int, estimate: Estimate, kind: str, at: float) -> dict[str, Any]:
    words = f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"
    return {
        "at": at,
        "processes": np,
        "kind": kind,
        "value": estimate.value,
        "words": words,
        **interval_fields(estimate),
    }


def _layers(
    rows: Rows, ideal: Rows, counts: Counts, y: Callable[[str], alt.Y], legend: dict[str, Any]
) -> list[alt.Chart]:
    """Ideal, lines, intervals and points, from back to front."""
    dashed = alt.Chart(data(ideal)).mark_line(strokeDash=IDEAL_DASH, strokeWidth=1.5)
    lines = alt.Chart(data(rows)).mark_line(strokeWidth=2)
    return [
        dashed.encode(x=counts.x, y=y("value"), color=legend["color"]),
        lines.encode(x=counts.x, y=y("value"), color=legend["color"]),
        *interval_marks(rows, counts.x, y, color=legend["color"]),
        *point_marks(rows, counts.x, y("value"), **legend, tooltip=_TOOLTIP),
    ]


def _speedup_axis(ideal: Sequence[float], rows: Rows, logarithmic: bool) -> Callable[[str], alt.Y]:
    """The y axis of speedups; on a logarithmic one, intervals that reach nearly to zero are cut off in `rows`."""
    values = [row[field] for row in rows for field in ("value", "low", "high")]
    if not logarithmic:
        scale = alt.Scale(domain=[0, max([*ideal, *values]) * 1.05], nice=False)
        ticks = sorted({0.0, *ideal})
        axis = ticks_at(ticks) if len(ticks) > _FEW_TICKS else alt.Undefined
        return shared_axis(alt.Y, "speedup", scale, axis)
    floor = min([*ideal, *(row["value"] / 2 for row in rows)])
    for row in rows:
        row["low"] = max(row["low"], floor)
    shown = [row[field] for row in rows for field in ("low", "high")]
    domain = logarithmic_domain([*ideal, *shown])
    scale = alt.Scale(type="log", base=2, domain=domain, nice=False)
    return shared_axis(alt.Y, "speedup", scale, ticks_at(powers_of_two(*domain)))


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
    ends = measured.transform_filter("datum.low < datum.high").mark_rule(color=_PROPOSED, strokeWidth=1.6)
    return alt.layer(
        alt.Chart(data(ideal)).mark_line(strokeDash=IDEAL_DASH, color=IDEAL_COLOUR, strokeWidth=1.5).encode(x=x, y=y),
        measured.mark_line(color=_PROPOSED, strokeWidth=2).encode(x=x, y=y),
        ends.encode(x=x, y=alt.Y("low:Q", scale=scale), y2=alt.Y2("high")),
        measured.mark_point(color=_PROPOSED, filled=True, size=60, opacity=1).encode(x=x, y=y),
        width=420,
        height=260,
        **frame("", "dashed: ideal; solid: measured, bars: intervals"),
    )
