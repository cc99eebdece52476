"""Steady throughput: against processes, weak and strong, one panel per batch; of one process against the batch."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import altair as alt

from scalescope.charts.parts import (
    APART,
    BARS,
    IDEAL_COLOUR,
    IDEAL_DASH,
    Counts,
    Rows,
    counts_axis,
    data,
    engine_colour,
    frame,
    interval_fields,
    interval_marks,
    panel_title,
    point_marks,
    processes_axis,
    rate_axis,
    shared_axis,
)
from scalescope.records.scaling import BestBatch, Curve, Scaling, ScalingPoint, best_batch
from scalescope.report.phrases import (
    batch_words,
    curves_in_order,
    drawn_line,
    engine_name,
    engine_order,
    interval_note,
)
from scalescope.text import plain, plural
from scalescope.units import format_rate

_MEANING = {"strong": "the global batch is fixed", "weak": "the batch of a process is fixed"}
_TOOLTIP = ["engine:N", "processes:Q", "words:N", "repetitions:Q"]
_BATCH_TOOLTIP = ["engine:N", "batch:Q", "words:N", "repetitions:Q"]


class _Axes(NamedTuple):
    """What all panels share."""

    counts: Counts
    y: Callable[[str], alt.Y]
    color: alt.Color
    engines: list[str]


def throughput_chart(scaling: Scaling, kind: str) -> Any:
    """All curves of this kind of scaling in one figure; None when nothing can be compared."""
    curves = [
        curve for curve in curves_in_order(scaling) if curve.scaling == kind and len(_known(drawn_line(curve))) > 1
    ]
    if not curves:
        return None
    points = [point for curve in curves for point in _known(curve.points)]
    batches = list(dict.fromkeys(curve.batch for curve in curves))
    width, height = (500, 320) if len(batches) == 1 else (260, 240)
    axes = _axes(curves, points)
    panels = [
        alt.layer(
            *_layers(here, axes),
            width=width,
            height=height,
            title=panel_title("".join(batch_words(here[0]))),
        )
        for batch in batches
        if (here := [curve for curve in curves if curve.batch == batch])
    ]
    note = interval_note([point.throughput for point in points], **BARS)
    return alt.concat(
        *panels,
        columns=3,
        spacing=20,
        **frame(
            f"{kind.capitalize()} scaling: {plain(scaling.what, 60)}",
            f"{_MEANING[kind]}; {_headline(curves)}",
            f"dashed: in proportion to the smallest; {note}",
        ),
    )


def _known(points: Iterable[ScalingPoint]) -> list[ScalingPoint]:
    return [point for point in points if point.throughput]


def _axes(curves: Sequence[Curve], points: Sequence[ScalingPoint]) -> _Axes:
    counts = processes_axis(points)
    rates = [edge for point in points if point.throughput for edge in (point.throughput.low, point.throughput.high)]
    rates += [row["rate"] for curve in curves for row in _ideal(curve)]
    engines = sorted({point.engine for point in points}, key=engine_order)
    y = rate_axis(rates, logarithmic=counts.logarithmic)
    return _Axes(counts, y, engine_colour(engines, legend=engines != [""]), engines)


def _layers(curves: Sequence[Curve], axes: _Axes) -> list[alt.Chart]:
    """Ideal, lines, intervals and points of one batch."""
    ideal = [row for curve in curves for row in _ideal(curve)]
    rows = [row for curve in curves for row in _rows(curve, axes)]
    alone = [row for row in rows if not row["on_line"]]
    rows = [row for row in rows if row["on_line"]] + alone[:1]  # engines share their baseline
    x, y = axes.counts.x, axes.y
    dashed = alt.Chart(data(ideal)).mark_line(strokeDash=IDEAL_DASH, strokeWidth=1.3, color=IDEAL_COLOUR)
    lines = alt.Chart(data([row for row in rows if row["on_line"]])).mark_line(strokeWidth=2)
    return [
        dashed.encode(x=x, y=y("rate"), detail="series:N"),
        lines.encode(x=x, y=y("rate"), color=axes.color, detail="series:N"),
        *interval_marks(rows, x, y, color=axes.color),
        *point_marks(rows, x, y("rate"), color=axes.color, tooltip=_TOOLTIP),
    ]


def _rows(curve: Curve, axes: _Axes) -> Rows:
    """The engine's own line; a baseline of another engine stands next to it as a point."""
    line = drawn_line(curve)
    rows = []
    for point in curve.points:
        if point.throughput:
            place = axes.engines.index(curve.engine if point in line else point.engine) - (len(axes.engines) - 1) / 2
            rows.append(
                {
                    "at": axes.counts.next_to(point.np, APART * place),
                    "processes": point.np,
                    "rate": point.throughput.value,
                    "words": f"{format_rate(point.throughput.value)} samples/s",
                    "engine": engine_name(point.engine),
                    "series": curve.engine,
                    "on_line": point in line,
                    **interval_fields(point.throughput),
                }
            )
    return rows


def _ideal(curve: Curve) -> Rows:
    """The baseline's throughput times as many processes."""
    first = curve.baseline or drawn_line(curve)[0]
    if not first.throughput:
        return []
    rate = first.throughput.value / first.np
    counts = sorted({point.np for point in curve.points if point.np >= first.np})
    return [{"at": np, "rate": rate * np, "series": f"{rate}"} for np in counts]


def _headline(curves: Sequence[Curve]) -> str:
    """The fastest point there is."""
    points = [(point.throughput.value, point, curve) for curve in curves for point in curve.points if point.throughput]
    rate, best, curve = max(points, key=lambda each: each[0])
    engine = [f"with {plain(best.engine, 30)}"] if best.engine not in ("", "none") else []
    where = " ".join([f"on {plural(best.np, 'process')}", *engine])
    return ", ".join([f"fastest: {format_rate(rate)} samples/s {where}", *batch_words(curve)])


def batch_chart(scaling: Scaling) -> Any:
    """One line per engine; None below two batch sizes."""
    best = best_batch(scaling.curves)
    if best is None:
        return None
    note = interval_note([each for sizes in best.rates.values() for each in sizes.values()], **BARS)
    title = f"Batch size on {plural(best.np, 'process')}: {plain(scaling.what, 60)}"
    return alt.layer(*_batch_layers(best), width=440, height=280, **frame(title, f"ring: {_fastest_batch(best)}", note))


def _fastest_batch(best: BestBatch) -> str:
    """The fastest batch, and those which may be as fast."""
    also = f"; not told apart from {', '.join(f'{size:g}' for size in best.rivals)}" if best.rivals else ""
    seen = "was the fastest in one launch each" if best.rate.once else "is the fastest"
    who = f" ({engine_name(best.engine)})" if len(best.rates) > 1 else ""
    return f"batch {best.batch:g} {seen}, {format_rate(best.rate.value)} samples/s{also}{who}"


def _batch_layers(best: BestBatch) -> list[alt.Chart]:
    lines = best.rates
    counts = counts_axis("batch size of a process", [size for sizes in lines.values() for size in sizes])
    engines = sorted(lines, key=engine_order)
    places = {engine: APART * (index - (len(engines) - 1) / 2) for index, engine in enumerate(engines)}
    rows: Rows = [
        {
            "engine": engine_name(engine),
            "at": counts.next_to(size, places[engine]),
            "batch": size,
            "rate": estimate.value,
            "words": f"{format_rate(estimate.value)} samples/s",
            **interval_fields(estimate),
        }
        for engine, sizes in lines.items()
        for size, estimate in sorted(sizes.items())
    ]
    scale = alt.Scale(domain=[0, 1.08 * max(row["high"] for row in rows)], nice=False)
    y = shared_axis(alt.Y, f"samples/s of {plural(best.np, 'process')}", scale)
    color = engine_colour(engines, legend=len(engines) > 1)
    at = counts.next_to(best.batch, places[best.engine])
    ring = alt.Chart(data([{"at": at, "rate": best.rate.value}]))
    return [
        alt.Chart(data(rows)).mark_line(strokeWidth=2).encode(x=counts.x, y=y("rate"), color=color),
        *interval_marks(rows, counts.x, y, color=color),
        *point_marks(rows, counts.x, y("rate"), color=color, tooltip=_BATCH_TOOLTIP),
        ring.mark_point(size=260, strokeWidth=1.6, color="#222222").encode(x=counts.x, y=y("rate")),
    ]
