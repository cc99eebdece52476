"""Which batch suits one process: its throughput against the batch size."""

from typing import Any

import altair as alt

from scalescope.charts.parts import (
    APART,
    BARS,
    Rows,
    counts_axis,
    data,
    engine_colours,
    frame,
    interval_fields,
    interval_marks,
    point_marks,
)
from scalescope.records.scaling import Estimate, Scaling
from scalescope.report.phrases import engine_name, engine_order, has_spread, interval_note, shortened
from scalescope.units import format_rate, plural

_TOOLTIP = ["engine:N", "batch:Q", "words:N", "repetitions:Q"]
Sizes = dict[float, Estimate]  # Throughput by batch size


def batch_chart(scaling: Scaling) -> Any:
    """One line per engine; None below two batch sizes."""
    bases = [curve.baseline_np for curve in scaling.curves if curve.baseline_np is not None]
    if not bases:
        return None
    smallest = min(bases)
    lines = {engine: sizes for engine, sizes in _lines(scaling, smallest).items() if len(sizes) > 1}
    if not lines:
        return None
    judged = (
        "none" if "none" in lines else max(lines, key=lambda engine: max(each.value for each in lines[engine].values()))
    )
    best, words = _best(lines[judged])
    who = f" ({engine_name(judged)})" if len(lines) > 1 else ""
    note = interval_note([each for sizes in lines.values() for each in sizes.values()], **BARS)
    return alt.layer(
        *_layers(lines, {"judged": judged, "at": best, "rate": lines[judged][best].value}, smallest),
        width=440,
        height=280,
        **frame(f"Batch size on {plural(smallest, 'process')}: {shortened(scaling.what)}", f"ring: {words}{who}", note),
    )


def _lines(scaling: Scaling, np: int) -> dict[str, Sizes]:
    lines: dict[str, Sizes] = {}
    for curve in scaling.curves:
        for point in curve.points:
            if point.np == np and point.batch is not None and point.throughput:
                lines.setdefault(point.engine, {}).setdefault(point.batch, point.throughput)
    return lines


def _best(sizes: Sizes) -> tuple[float, str]:
    """The fastest batch, and a sentence that names those which may be as fast."""
    best = max(sizes, key=lambda size: sizes[size].value)
    rate = format_rate(sizes[best].value)
    close = [
        size
        for size, each in sorted(sizes.items())
        if size != best and has_spread(each) and has_spread(sizes[best]) and each.high >= sizes[best].low
    ]
    also = f"; not told apart from {', '.join(f'{size:g}' for size in close)}" if close else ""
    seen = "was the fastest in one launch each" if sizes[best].once else "is the fastest"
    return best, f"batch {best:g} {seen}, {rate} samples/s{also}"


def _layers(lines: dict[str, Sizes], best: dict[str, Any], np: int) -> list[alt.Chart]:
    counts = counts_axis("batch size of a process", [size for sizes in lines.values() for size in sizes])
    engines = sorted(lines, key=engine_order)
    places = {engine: APART * (index - (len(engines) - 1) / 2) for index, engine in enumerate(engines)}
    rows: Rows = [
        {
            "engine": engine_name(engine),
            "at": counts.beside(size, places[engine]),
            "batch": size,
            "rate": estimate.value,
            "words": f"{format_rate(estimate.value)} samples/s",
            **interval_fields(estimate),
        }
        for engine, sizes in lines.items()
        for size, estimate in sorted(sizes.items())
    ]
    scale = alt.Scale(domain=[0, 1.08 * max(row["high"] for row in rows)], nice=False)

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title=f"samples/s of {plural(np, 'process')}", scale=scale)

    legend = alt.Legend(title=None, orient="bottom", symbolSize=90) if len(engines) > 1 else None
    color = alt.Color("engine:N", scale=engine_colours(engines), legend=legend)
    ring = alt.Chart(data([{**best, "at": counts.beside(best["at"], places[best["judged"]])}]))
    return [
        alt.Chart(data(rows)).mark_line(strokeWidth=2).encode(x=counts.x, y=y("rate"), color=color),
        *interval_marks(rows, counts.x, y, color=color),
        *point_marks(rows, counts.x, y("rate"), color=color, tooltip=_TOOLTIP),
        ring.mark_point(size=260, strokeWidth=1.6, color="#222222").encode(x=counts.x, y=y("rate")),
    ]
