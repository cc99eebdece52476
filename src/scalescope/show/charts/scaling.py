"""Charts of scaling: speedups and efficiency, throughput weak and strong, the batch, losses, phases."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from scalescope.records.run import TRAIN
from scalescope.records.scaling import (
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
    LOSS_COLOUR,
    PLAIN_NUMBER,
    SPEEDUP_COLOURS,
    SPEEDUP_SHAPES,
    Counts,
    Rows,
    counts_axis,
    curve_layers,
    curve_row,
    data,
    engine_colour,
    frame,
    logarithmic_domain,
    named,
    panel_title,
    processes_axis,
    rate_axis,
    ring,
    shared_axis,
)
from scalescope.show.document import Figure
from scalescope.show.scaling import (
    SHOWN_PHASES,
    baseline_words,
    batch_words,
    curve_estimates,
    curves_in_order,
    drawn_line,
    known_title,
    largest,
    phase_name,
    points_with_phases,
    waterfall_steps,
)
from scalescope.show.words import engine_name, engine_order, has_spread, interval_note
from scalescope.text import plain, plural
from scalescope.units import format_rate

_MEANINGS = {
    "steady": "steady: a long training",
    "train": "train: first to last step",
    "end_to_end": "end to end: launch to end",
}


def speedup_chart(scaling: Scaling) -> Any:
    """Every curve that has something to compare; None when there is none."""
    curves = [curve for curve in curves_in_order(scaling) if any(point.speedup for point in _compared(curve))]
    if not curves:
        return None
    there = {name for curve in curves for point in curve.points for name in point.speedup}
    names = [name for name in SPEEDUPS if name in there]
    below = alt.Legend(title=None, orient="bottom", symbolSize=90, symbolStrokeWidth=2, columns=5)
    look = {
        "color": named("kind", {_MEANINGS[name]: SPEEDUP_COLOURS[name] for name in names}, below),
        "shape": named("kind", {_MEANINGS[name]: SPEEDUP_SHAPES[name] for name in names}, below, alt.Shape),
    }
    estimates = [estimate for curve in curves for estimate in curve_estimates(curve)]
    baselines = {baseline_words(curve) for curve in curves}
    relative = f"relative to {baselines.pop()}; " if len(baselines) == 1 else ""
    return alt.concat(
        *(_row(curve, look) for curve in curves),
        columns=1,
        spacing=22,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared", shape="shared")),
        **frame(
            f"Speedup and efficiency: {plain(scaling.what, 60)}",
            f"{relative}dashed: the ideal",
            interval_note(estimates, **BARS),
        ),
    )


def _compared(curve: Curve) -> list[ScalingPoint]:
    return [point for point in curve.points if point is not curve.baseline]


def _row(curve: Curve, look: dict[str, Any]) -> Any:
    """Speedups of a curve, and its efficiency next to them."""
    counts, line = processes_axis(curve.points), drawn_line(curve)
    apart = APART if any(has_spread(each) for point in line for each in point.speedup.values()) else 0.0

    def row(point: ScalingPoint, name: str, estimate: Estimate, aside: float = 0.0) -> dict[str, Any]:
        words = f"{estimate.value:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"
        at = counts.next_to(point.np, aside)
        return curve_row(at, estimate, name, kind=_MEANINGS[name], processes=point.np, words=words)

    rows: Rows = [
        row(point, name, estimate, (SPEEDUPS.index(name) - 1) * apart)
        for point in line
        for name, estimate in point.speedup.items()
        if name in _MEANINGS and estimate.value > 0
    ]
    base = curve.baseline_np or line[0].np
    ideal: Rows = [{"at": point.np, "value": point.np / base} for point in line if point.np >= base]
    y = speedup_axis([each["value"] for each in ideal], rows, counts.logarithmic)
    panels = [alt.layer(*curve_layers(rows, ideal, counts.x, y, _TOOLTIP, **look), width=360, height=220)]
    if any(point.efficiency for point in _compared(curve)):
        rows = [row(point, "steady", point.efficiency) for point in line if point.efficiency]
        top = max([1.1, *(1.03 * each["high"] for each in rows)])
        y = shared_axis(alt.Y, "efficiency (steady)", alt.Scale(domain=[0, top], nice=False))
        layers = curve_layers(rows, [{**each, "value": 1.0} for each in ideal], counts.x, y, _TOOLTIP, **look)
        panels.append(alt.layer(*layers, width=260, height=220))
    return alt.hconcat(*panels, spacing=20, title=panel_title(known_title(curve), frame="bounds"))


_TOOLTIP = ("kind:N", "processes:Q", "words:N", "repetitions:Q")


def speedup_axis(ideal: Sequence[float], rows: Rows, logarithmic: bool) -> Callable[[str], alt.Y]:
    """The y axis of speedups; on a logarithmic one, intervals that reach nearly to zero are cut off in `rows`."""
    if not logarithmic:
        top = max([*ideal, *(row["high"] for row in rows)])
        return shared_axis(alt.Y, "speedup", alt.Scale(domain=[0, 1.05 * top], nice=False))
    floor = min([*ideal, *(row["value"] / 2 for row in rows)])
    for row in rows:
        row["low"] = max(row["low"], floor)
    domain = logarithmic_domain([*ideal, *(row[end] for row in rows for end in ("low", "high"))])
    scale = alt.Scale(type="log", base=2, domain=domain, nice=False)
    powers = range(math.ceil(math.log2(domain[0])), math.floor(math.log2(domain[1])) + 1)
    ticks = alt.Axis(values=[2.0**power for power in powers], labelExpr=PLAIN_NUMBER, labelOverlap="greedy")
    return shared_axis(alt.Y, "speedup", scale, ticks)


_RATE_TOOLTIP = ("engine:N", "processes:Q", "words:N", "repetitions:Q")
_BATCH_TOOLTIP = ("engine:N", "batch:Q", "words:N", "repetitions:Q")


def throughput_chart(scaling: Scaling) -> Any:
    """A panel for every batch of strong and of weak scaling, on the same axes; None when nothing can be compared."""
    curves = [
        curve
        for curve in curves_in_order(scaling)
        if curve.scaling and sum(point.throughput is not None for point in drawn_line(curve)) > 1
    ]
    if not curves:
        return None
    points = [point for curve in curves for point in curve.points if point.throughput]
    engines = sorted({point.engine for point in points}, key=engine_order)
    counts = processes_axis(points)
    rates = [edge for point in points if point.throughput for edge in (point.throughput.low, point.throughput.high)]
    rates += [row["value"] for curve in curves for row in _ideal_rates(curve)]
    y = rate_axis(rates, logarithmic=counts.logarithmic)
    color = engine_colour(engines, legend=engines != [""])
    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(", ".join([f"{curve.scaling} scaling", *batch_words(curve)]), []).append(curve)

    def panel(title: str, here: Sequence[Curve]) -> Any:
        rows = [row for curve in here for row in _rate_rows(curve, counts, engines)]
        alone = [row for row in rows if not row["series"]]  # engines share their baseline
        rows = [row for row in rows if row["series"]] + alone[:1]
        ideal = [row for curve in here for row in _ideal_rates(curve)]
        width, height = (500, 320) if len(panels) == 1 else (260, 240)
        layers = curve_layers(rows, ideal, counts.x, y, _RATE_TOOLTIP, color=color)
        return alt.layer(*layers, width=width, height=height, title=panel_title(title))

    return alt.concat(
        *(panel(title, here) for title, here in panels.items()),
        columns=2 if len(panels) <= 4 else 3,
        spacing=20,
        **frame(
            f"Throughput: {plain(scaling.what, 60)}",
            "dashed: in proportion to the smallest",
            interval_note([point.throughput for point in points], **BARS),
        ),
    )


def _rate_rows(curve: Curve, counts: Counts, engines: Sequence[str]) -> Rows:
    """The engine's own line; a baseline of another engine stands next to it as a point."""
    line, rows = drawn_line(curve), []
    for point in curve.points:
        if rate := point.throughput:
            on_line = point in line
            place = engines.index(curve.engine if on_line else point.engine) - (len(engines) - 1) / 2
            rows.append(
                curve_row(
                    counts.next_to(point.np, APART * place),
                    rate,
                    curve.engine or "only" if on_line else "",
                    engine=engine_name(point.engine),
                    processes=point.np,
                    words=f"{format_rate(rate.value)} samples/s",
                )
            )
    return rows


def _ideal_rates(curve: Curve) -> Rows:
    """The baseline's throughput times as many processes."""
    first = curve.baseline or drawn_line(curve)[0]
    if not first.throughput:
        return []
    rate = first.throughput.value / first.np
    counts = sorted({point.np for point in curve.points if point.np >= first.np})
    return [{"at": np, "value": rate * np, "series": f"{rate}"} for np in counts]


def batch_chart(scaling: Scaling) -> Any:
    """One line per engine; None below two batch sizes."""
    best = best_batch(scaling.curves)
    if best is None:
        return None
    counts = counts_axis("batch size of a process", [size for sizes in best.rates.values() for size in sizes])
    engines = sorted(best.rates, key=engine_order)
    rows: Rows = [
        curve_row(
            counts.next_to(size, APART * (at - (len(engines) - 1) / 2)),
            rate,
            engine or "only",
            engine=engine_name(engine),
            batch=size,
            words=f"{format_rate(rate.value)} samples/s",
        )
        for at, engine in enumerate(engines)
        for size, rate in sorted(best.rates[engine].items())
    ]
    found = next(row for row in rows if (row["batch"], row["value"]) == (best.batch, best.rate.value))
    scale = alt.Scale(domain=[0, 1.08 * max(row["high"] for row in rows)], nice=False)
    y = shared_axis(alt.Y, f"samples/s of {plural(best.np, 'process')}", scale)
    color = engine_colour(engines, legend=len(engines) > 1)
    return alt.layer(
        *curve_layers(rows, [], counts.x, y, _BATCH_TOOLTIP, color=color),
        ring(found, colour="#222222", width=1.6).encode(x=counts.x, y=y("value")),
        width=440,
        height=280,
        **frame(
            f"Batch size on {plural(best.np, 'process')}: {plain(scaling.what, 60)}",
            f"ring: {_fastest_batch(best)}",
            interval_note([each for sizes in best.rates.values() for each in sizes.values()], **BARS),
        ),
    )


def _fastest_batch(best: BestBatch) -> str:
    """The fastest batch, and those which may be as fast."""
    also = f"; not told apart from {', '.join(f'{size:g}' for size in best.rivals)}" if best.rivals else ""
    seen = "was the fastest in one launch each" if best.rate.once else "is the fastest"
    who = f" ({engine_name(best.engine)})" if len(best.rates) > 1 else ""
    return f"batch {best.batch:g} {seen}, {format_rate(best.rate.value)} samples/s{also}{who}"


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
    rows: Rows = [
        {"point": label, "phase": phase_name(phase), "seconds": point.phases[phase], "order": order}
        for label, point in points.items()
        for order, phase in enumerate(SHOWN_PHASES)
        if point.phases.get(phase, 0.0) > 0
    ]
    walls = {label: sum(row["seconds"] for row in rows if row["point"] == label) for label in points}
    totals = [
        {"point": label, "seconds": wall, "words": f"{wall:,.0f} s" if wall >= 100 else f"{wall:.3g} s"}
        for label, wall in walls.items()
    ]
    title = "seconds from the launcher's start to its end" if measured else "seconds"
    x = alt.X("seconds:Q", title=title, scale=alt.Scale(domain=[0, 1.12 * max(walls.values())], nice=False))
    y = alt.Y("point:N", title=None, sort=list(points), axis=alt.Axis(labelLimit=320, domain=False, ticks=False))
    there = {row["phase"] for row in rows}
    looks = {phase_name(phase): _PHASE_COLOURS[phase] for phase in SHOWN_PHASES if phase_name(phase) in there}
    color = named("phase", looks, alt.Legend(title="phase"))
    tooltip = ["point:N", "phase:N", alt.Tooltip("seconds:Q", format=".3f")]
    bars = alt.Chart(data(rows)).mark_bar()
    ends = alt.Chart(data(totals)).mark_text(align="left", dx=5, fontSize=11, color="#333333")
    launches = " and launches" if any(point.launches > 1 for point in points.values()) else ""
    return alt.layer(
        bars.encode(x=x.stack("zero"), y=y, color=color, order=alt.Order("order:Q"), tooltip=tooltip),
        ends.encode(x=x, y=y, text="words:N"),
        width=520,
        height=alt.Step(28 if len(points) <= _MANY_BARS else 18),
        **frame(f"Where the time went: {plain(scaling.what, 60)}", f"mean over ranks{launches}" if measured else ""),
    )


_STEPS_OF_LOSS = {"ideal": IDEAL_COLOUR, **SPEEDUP_COLOURS, "loss": LOSS_COLOUR, "gain": GAIN_COLOUR}


def waterfall_chart(scaling: Scaling) -> Any:
    """One panel per curve; None when no losses are known."""
    found = [(curve, point) for curve in curves_in_order(scaling) if (point := largest(curve)) and point.waterfall]
    if not found:
        return None
    gains = any(step.kind == "gain" for _, point in found for step in waterfall_steps(point))
    colours = "orange: what is lost on the way" + ("; light blue: what is gained" if gains else "")
    return alt.concat(
        *(_waterfall_panel(curve, point) for curve, point in found),
        columns=2,
        spacing=26,
        **frame(f"From ideal to real speedup: {plain(scaling.what, 60)}", f"full bars: speedups; {colours}"),
    )


def _waterfall_panel(curve: Curve, point: ScalingPoint) -> Any:
    steps = waterfall_steps(point)
    rows: Rows = [
        {
            "step": step.name,
            "start": min(step.start, step.end),
            "end": max(step.start, step.end),
            "colour": _STEPS_OF_LOSS[step.kind],
            "words": step.words,
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
        width=400,
        height=alt.Step(24),
        title=panel_title(where, frame="bounds"),
    )


CHARTS = (
    Figure(
        "throughput",
        "scaling",
        "Strong scaling keeps the global batch, weak scaling that of a process: the further below the dashed line, the "
        "more is lost.",
        throughput_chart,
        leads=True,
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
