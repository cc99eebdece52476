"""Which batch suits one process: its throughput against the batch size."""

from typing import Any

import altair as alt

from scalescope.charts.parts import (
    APART,
    BARS,
    Rows,
    counts_axis,
    data,
    engine_colour,
    frame,
    interval_fields,
    interval_marks,
    point_marks,
    shared_axis,
)
from scalescope.records.scaling import BestBatch, Scaling, best_batch
from scalescope.report.phrases import engine_name, engine_order, interval_note
from scalescope.text import plain, plural
from scalescope.units import format_rate

_TOOLTIP = ["engine:N", "batch:Q", "words:N", "repetitions:Q"]


def batch_chart(scaling: Scaling) -> Any:
    """One line per engine; None below two batch sizes."""
    best = best_batch(scaling.curves)
    if best is None:
        return None
    note = interval_note([each for sizes in best.rates.values() for each in sizes.values()], **BARS)
    title = f"Batch size on {plural(best.np, 'process')}: {plain(scaling.what, 60)}"
    return alt.layer(*_layers(best), width=440, height=280, **frame(title, f"ring: {_words(best)}", note))


def _words(best: BestBatch) -> str:
    """The fastest batch, and those which may be as fast."""
    also = f"; not told apart from {', '.join(f'{size:g}' for size in best.rivals)}" if best.rivals else ""
    seen = "was the fastest in one launch each" if best.rate.once else "is the fastest"
    who = f" ({engine_name(best.engine)})" if len(best.rates) > 1 else ""
    return f"batch {best.batch:g} {seen}, {format_rate(best.rate.value)} samples/s{also}{who}"


def _layers(best: BestBatch) -> list[alt.Chart]:
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
        *point_marks(rows, counts.x, y("rate"), color=color, tooltip=_TOOLTIP),
        ring.mark_point(size=260, strokeWidth=1.6, color="#222222").encode(x=counts.x, y=y("rate")),
    ]
