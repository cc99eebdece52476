"""Step time along a single knob: what is expected with its band, what was predicted, and the samples."""

from typing import Any

import altair as alt

from scalescope.records.tuning import Tuning
from scalescope.reporting.charts.parts import IDEAL_COLOUR, IDEAL_DASH, Rows, data, frame
from scalescope.reporting.charts.tuning_slice import Slice
from scalescope.reporting.tuning.words import (
    heading_lines,
    headline,
    held_words,
    is_default,
    searched,
    setting_words,
    unit_of,
    with_error,
)
from scalescope.units import format_seconds

_WIDTH, _HEIGHT = 560, 300
_EXPECTED, _SAMPLE, _RING = "#0072b2", "#111111", "#e6007e"
_TWO_LINES = "split(datum.label, '\\n')"
_ABOVE = 6
"""Pixels between a sample and its number."""


def line_chart(tuning: Tuning, part: Slice) -> Any:
    """The expected step as a line with two standard deviations, samples of the search on top."""
    unit, factor = unit_of(max(cell.expected_s or 0.0 for cell in part.cells))
    dimension = part.across
    axis = alt.Axis(labelAngle=0, grid=False, labelExpr=_TWO_LINES)
    scale = alt.Scale(domain=dimension.labels, type="point", padding=0.5)
    x = alt.X("x:O", title=dimension.title, scale=scale, axis=axis)
    cells = _cell_rows(part, factor)
    samples = _sample_rows(tuning, part, factor)
    times = [row[name] for row in (*cells, *samples) for name in ("low", "high", "predicted") if row.get(name)]
    room = 0.06 * (max(times) - min(times))
    domain = alt.Scale(domain=[max(0.0, min(times) - room), max(times) + room], nice=True, zero=False)

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title=f"step time, {unit}", scale=domain)

    tooltip = [
        alt.Tooltip("setting:N"),
        alt.Tooltip("told:N", title="step"),
        alt.Tooltip("simulated:N", title="predicted"),
    ]
    base, dots = alt.Chart(data(cells)), alt.Chart(data(samples))
    layers: list[Any] = [
        base.mark_area(color=_EXPECTED, opacity=0.16).encode(x=x, y=y("low"), y2=alt.Y2("high")),
        base.mark_line(color=_EXPECTED, strokeWidth=1.8).encode(x=x, y=y("time")),
    ]
    predicted = any(row["predicted"] for row in cells)
    if predicted:
        dashed = base.mark_line(color=IDEAL_COLOUR, strokeDash=IDEAL_DASH, strokeWidth=1.5)
        layers.append(dashed.encode(x=x, y=y("predicted")))
    layers.append(
        base.mark_point(filled=True, size=30, color=_EXPECTED, opacity=1).encode(x=x, y=y("time"), tooltip=tooltip)
    )
    if tuning.default_step_s:
        rule = alt.Chart(data([{"time": factor * tuning.default_step_s}]))
        layers.append(rule.mark_rule(color=_SAMPLE, strokeDash=[2, 3], strokeWidth=1.2).encode(y=y("time")))
    layers += [
        dots.mark_rule(color=_SAMPLE, strokeWidth=1.4).encode(x=x, y=y("low"), y2=alt.Y2("high")),
        dots.mark_point(size=55, fill="white", stroke=_SAMPLE, strokeWidth=1.5, opacity=1).encode(
            x=x, y=y("time"), tooltip=tooltip
        ),
        dots.mark_text(fontSize=11, baseline="bottom", dy=-_ABOVE, color=_SAMPLE).encode(
            x=x, y=y("high"), text="number:N"
        ),
    ]
    found = [row for row in samples if part.base and row["found"]]
    if found:
        ring = alt.Chart(data(found[:1])).mark_point(size=260, fill=None, stroke=_RING, strokeWidth=2.4, opacity=1)
        layers.append(ring.encode(x=x, y=y("time")))
    return alt.layer(
        *layers,
        width=max(_WIDTH, 44 * len(dimension.places)),
        height=_HEIGHT,
        **frame(
            f"Step time over {dimension.title.partition(',')[0]}: {headline(tuning)}",
            *heading_lines(tuning),
            "blue: expected, two standard deviations; numbers: samples of the search, two standard errors",
            _key(tuning, predicted, bool(found)),
            f"drawn for {part.other_words()}" if part.others else "",
            held_words(tuning),
        ),
    )


def _key(tuning: Tuning, predicted: bool, ring: bool) -> str:
    won = tuning.complete and tuning.decision == "use"
    found = "the winner" if won else "the finalist" if tuning.finalist else "the fastest sample"
    parts = ["dashed: the simulator alone"] if predicted else []
    parts += ["dotted: the default's step"] if tuning.default_step_s else []
    return "; ".join([*parts, *([f"ring: {found}"] if ring else [])])


def _cell_rows(part: Slice, factor: float) -> Rows:
    rows: Rows = []
    order = {place: index for index, place in enumerate(part.across.places)}
    for cell in sorted(part.cells, key=lambda cell: order[part.across.place(cell.values)]):
        time = factor * (cell.expected_s or 0.0)
        error = time * (cell.error or 0.0)
        rows.append(
            {
                "x": part.across.label(part.across.place(cell.values)),
                "time": time,
                "low": max(0.0, time - 2 * error),
                "high": time + 2 * error,
                "predicted": factor * cell.predicted_s if cell.predicted_s else None,
                "setting": setting_words(cell.values),
                "told": with_error(time / factor, error / factor if cell.error is not None else None),
                "simulated": format_seconds(cell.predicted_s) if cell.predicted_s else "-",
            }
        )
    return rows


def _sample_rows(tuning: Tuning, part: Slice, factor: float) -> Rows:
    known = set(part.across.labels)
    rows: Rows = []
    for sample in searched(tuning):
        label = part.across.label(part.across.place(sample.values))
        if sample.step_s is None or label not in known or not part.holds(sample.values):
            continue
        time, error = factor * sample.step_s, factor * (sample.error_s or 0.0)
        rows.append(
            {
                "x": label,
                "time": time,
                "low": max(0.0, time - 2 * error),
                "high": time + 2 * error,
                "number": str(sample.index),
                "setting": setting_words({} if is_default(tuning, sample) else sample.values),
                "told": with_error(sample.step_s, sample.error_s),
                "simulated": format_seconds(sample.predicted_s) if sample.predicted_s else "-",
                "found": sample.values == part.base,
            }
        )
    return rows
