"""Charts of scaling: speedups and efficiency, throughput weak and strong, the batch, losses, phases."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import altair as alt

from scalescope.records.job import NO_ENGINE
from scalescope.records.run import TRAIN
from scalescope.records.scaling import (
    SPEEDUP_NAMES,
    SPEEDUPS,
    BestBatch,
    Curve,
    Estimate,
    Scaling,
    ScalingPoint,
    best_batch,
)
from scalescope.show.charts.parts import (
    APART,
    BARS,
    GAIN_COLOUR,
    IDEAL_COLOUR,
    IDEAL_DASH,
    LOSS_COLOUR,
    SPEEDUP_COLOURS,
    SPEEDUP_SHAPES,
    Counts,
    Rows,
    counts_axis,
    data,
    engine_colour,
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
    rate_axis,
    shared_axis,
    ticks_at,
)
from scalescope.show.document import Figure
from scalescope.show.proposal import Study
from scalescope.show.scaling import (
    SHOWN_PHASES,
    Step,
    baseline_words,
    batch_words,
    curve_estimates,
    curves_in_order,
    drawn_line,
    known_title,
    largest,
    other_efficiency,
    points_with_phases,
    waterfall_steps,
)
from scalescope.show.words import engine_name, engine_order, has_spread, interval_note, number
from scalescope.text import plain, plural
from scalescope.units import format_rate

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
    """Say what the largest point reached; with several curves, from the worst to the best."""
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


_MEANING = {"strong": "the global batch is fixed", "weak": "the batch of a process is fixed"}
_RATE_TOOLTIP = ["engine:N", "processes:Q", "words:N", "repetitions:Q"]
_BATCH_TOOLTIP = ["engine:N", "batch:Q", "words:N", "repetitions:Q"]


class _Axes(NamedTuple):
    """Scales and colours that all panels share."""

    counts: Counts
    y: Callable[[str], alt.Y]
    color: alt.Color
    engines: list[str]


def throughput_chart(scaling: Scaling, *kinds: str) -> Any:
    """All curves of these kinds of scaling in one figure; None when nothing of one of them can be compared."""
    curves = [curve for curve in curves_in_order(scaling) if len(_known(drawn_line(curve))) > 1]
    curves = [curve for kind in kinds for curve in curves if curve.scaling == kind]
    if {curve.scaling for curve in curves} != set(kinds):
        return None
    points, several = [point for curve in curves for point in _known(curve.points)], len(kinds) > 1
    parts = list(dict.fromkeys((curve.scaling, curve.batch) for curve in curves))
    width, height = (500, 320) if len(parts) == 1 else (260, 240)
    axes = _axes(curves, points)
    panels = [
        alt.layer(
            *_rate_layers(here, axes),
            width=width,
            height=height,
            title=panel_title(
                ", ".join([f"{kind} scaling" if several else "", *batch_words(here[0])]).removeprefix(", ")
            ),
        )
        for kind, batch in parts
        if (here := [curve for curve in curves if (curve.scaling, curve.batch) == (kind, batch)])
    ]
    note = interval_note([point.throughput for point in points], **BARS)
    fixed = "" if several else f"{_MEANING[kinds[0]]}; "
    return alt.concat(
        *panels,
        columns=2 if several and len(parts) <= 4 else 3,
        spacing=20,
        **frame(
            f"{' and '.join(kinds).capitalize()} scaling: {plain(scaling.what, 60)}",
            f"{fixed}{_fastest_words(curves)}",
            f"dashed: in proportion to the smallest; {note}",
        ),
    )


def _known(points: Iterable[ScalingPoint]) -> list[ScalingPoint]:
    return [point for point in points if point.throughput]


def _axes(curves: Sequence[Curve], points: Sequence[ScalingPoint]) -> _Axes:
    counts = processes_axis(points)
    rates = [edge for point in points if point.throughput for edge in (point.throughput.low, point.throughput.high)]
    rates += [row["rate"] for curve in curves for row in _ideal_rates(curve)]
    engines = sorted({point.engine for point in points}, key=engine_order)
    y = rate_axis(rates, logarithmic=counts.logarithmic)
    return _Axes(counts, y, engine_colour(engines, legend=engines != [""]), engines)


def _rate_layers(curves: Sequence[Curve], axes: _Axes) -> list[alt.Chart]:
    """Ideal, lines, intervals and points of one batch."""
    ideal = [row for curve in curves for row in _ideal_rates(curve)]
    rows = [row for curve in curves for row in _rate_rows(curve, axes)]
    alone = [row for row in rows if not row["on_line"]]
    rows = [row for row in rows if row["on_line"]] + alone[:1]  # engines share their baseline
    x, y = axes.counts.x, axes.y
    dashed = alt.Chart(data(ideal)).mark_line(strokeDash=IDEAL_DASH, strokeWidth=1.3, color=IDEAL_COLOUR)
    lines = alt.Chart(data([row for row in rows if row["on_line"]])).mark_line(strokeWidth=2)
    return [
        dashed.encode(x=x, y=y("rate"), detail="series:N"),
        lines.encode(x=x, y=y("rate"), color=axes.color, detail="series:N"),
        *interval_marks(rows, x, y, color=axes.color),
        *point_marks(rows, x, y("rate"), color=axes.color, tooltip=_RATE_TOOLTIP),
    ]


def _rate_rows(curve: Curve, axes: _Axes) -> Rows:
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


def _ideal_rates(curve: Curve) -> Rows:
    """The baseline's throughput times as many processes."""
    first = curve.baseline or drawn_line(curve)[0]
    if not first.throughput:
        return []
    rate = first.throughput.value / first.np
    counts = sorted({point.np for point in curve.points if point.np >= first.np})
    return [{"at": np, "rate": rate * np, "series": f"{rate}"} for np in counts]


def _fastest_words(curves: Sequence[Curve]) -> str:
    """The fastest point there is."""
    points = [(point.throughput.value, point, curve) for curve in curves for point in curve.points if point.throughput]
    rate, best, curve = max(points, key=lambda each: each[0])
    engine = [f"with {plain(best.engine, 30)}"] if best.engine not in ("", NO_ENGINE) else []
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


_PHASE_COLOURS = {
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
_MANY_BARS = 16  # Bars from which on they are thin


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
        {"point": label, "phase": _phase_name(phase), "seconds": point.phases[phase], "order": order[phase]}
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
    names, looks = [_phase_name(phase) for phase in shown], [_PHASE_COLOURS[phase] for phase in shown]
    colours = alt.Scale(domain=names, range=looks)
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
        height=alt.Step(28 if len(points) <= _MANY_BARS else 18),
        **frame(
            f"Where the time went: {plain(scaling.what, 60)}",
            f"mean over ranks{launches}" if measured else "",
        ),
    )


def _phase_name(phase: str) -> str:
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
        *(_waterfall_panel(curve, point, wide=len(found) == 1) for curve, point in found),
        columns=2,
        spacing=26,
        **frame(f"From ideal to real speedup: {plain(scaling.what, 60)}", f"full bars: speedups; {colours}"),
    )


def _waterfall_panel(curve: Curve, point: ScalingPoint, *, wide: bool) -> Any:
    steps = waterfall_steps(point)
    rows: Rows = [
        {
            "step": step.name,
            "start": min(step.start, step.end),
            "end": max(step.start, step.end),
            "colour": _STEPS_OF_LOSS[step.kind],
            "words": _bar_words(step),
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


def _bar_words(step: Step) -> str:
    if step.kind in ("loss", "gain"):
        return f"{'-' if step.kind == 'loss' else '+'} {number(abs(step.end - step.start), 2)}"
    return number(step.end, 2)


CHARTS = (
    Figure(
        "strong",
        "scaling",
        "The same work on more processes: the further below the dashed line, the more is lost.",
        lambda scaling: throughput_chart(scaling, "strong"),
    ),
    Figure(
        "weak",
        "scaling",
        "Work that grows with the processes: the further below the dashed line, the more is lost.",
        lambda scaling: throughput_chart(scaling, "weak"),
        leads=True,
    ),
    Figure(
        "both",
        "scaling",
        "Strong scaling next to weak scaling, every engine on the same scale.",
        lambda scaling: throughput_chart(scaling, "strong", "weak"),
    ),
    Figure(
        "batch",
        "scaling",
        "How fast the smallest size runs at every batch size; the ring marks the fastest.",
        batch_chart,
    ),
    Figure(
        "speedup",
        "speedups",
        "Three answers to how much faster it is: for a long training, from the first to the last step, and from launch "
        "to end. The gap between them is one-time cost.",
        speedup_chart,
    ),
    Figure(
        "waterfall",
        "speedups",
        "From ideal to real: each orange bar is speedup that is lost, named by what takes it.",
        waterfall_chart,
    ),
    Figure(
        "phases",
        "phases",
        "Where the wall time of a launch went; only the steady part is training at full speed.",
        phases_chart,
    ),
)
