"""Charts of a search: step time over the knobs that matter, and every sample in its order."""

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import altair as alt

from scalescope.records.job import KnobValue
from scalescope.records.tuning import Cell, Sample, SearchedKnob, Tuning, Values, setting_words, value_words
from scalescope.show.charts.parts import (
    IDEAL_COLOUR,
    IDEAL_DASH,
    RING_COLOUR,
    Rows,
    data,
    frame,
    key,
    named,
    outline,
    panel_title,
    ring,
    shared_axis,
)
from scalescope.show.document import Figure
from scalescope.show.tuning import (
    conditions,
    is_default,
    searched,
    sentence,
)
from scalescope.text import plain
from scalescope.units import digits, format_seconds, unit_of, with_error

_WIDTH, _HEIGHT = 640, 300
_CELL_WIDTH, _CELL_HEIGHT = 62, 42
_WIDE = 520  # Pixels of a map from which the second one stands below the first
_LEAST_RATIO = 1.25  # Colours stretch over at least this ratio: noise must not look like a landscape
_LEAST_SPAN = 0.1  # Of the slowest step, for the same reason
_DARK = 0.55  # Part of the colours from which on letters are white
_TWO_LINES = "split(datum.label, '\\n')"
_DEFAULT, _SEARCH, _CUT, _BEST = "#111111", "#0072b2", "#d55e00", "#009e73"
_KINDS = {
    "the default": (_DEFAULT, "diamond"),
    "the winner": (RING_COLOUR, "square"),
    "the finalist": (RING_COLOUR, "square"),
    "another setting": (_SEARCH, "circle"),
    "cut: clearly worse": (_CUT, "triangle-up"),
    "failed": (_CUT, "cross"),
}


def _frame(tuning: Tuning, title: str, marks: Mapping[str, bool]) -> dict[str, Any]:
    """Title, the answer, and what marks mean as far as they are there."""
    held = f"; fixed: {plain(setting_words(tuning.held), 100)}" if tuning.held else ""
    meanings = wrap(key(marks), 110)
    return frame(
        f"{title}: {plain(tuning.what, 60)}", *wrap(sentence(tuning), 110), f"{conditions(tuning)}{held}", *meanings
    )


def _found(tuning: Tuning) -> str:
    return "the winner" if tuning.complete and tuning.decision == "use" else "the finalist"


def landscape_chart(tuning: Tuning) -> Any:
    """The expected step over the two knobs that say most; with one knob a line; None where nothing is known of any."""
    known = [cell for cell in tuning.cells if cell.expected_s]
    spreads = {knob: _spread(knob, known) for knob in tuning.knobs}
    telling = sorted((knob for knob in tuning.knobs if spreads[knob]), key=lambda knob: -spreads[knob])[:2]
    if not telling:
        return None
    telling.sort(key=lambda knob: -len(knob.values))
    answer = tuning.values or tuning.finalist
    best: dict[tuple[KnobValue | None, ...], Cell] = {}
    for cell in sorted(known, key=lambda cell: (cell.values != answer, bool(cell.values), cell.expected_s)):
        best.setdefault(tuple(_place(knob, cell.values) for knob in telling), cell)
    cells = list(best.values())
    return _line(tuning, telling[0], cells) if len(telling) == 1 else _map(tuning, telling, cells)


def _place(knob: SearchedKnob, values: Values) -> KnobValue | None:
    """A setting's value of this knob; what it does not name is the default."""
    value = values.get(knob.name)
    return (None if None in knob.values else knob.default) if value is None else value


def _spread(knob: SearchedKnob, known: Sequence[Cell]) -> float:
    """Ratio of the slowest and the fastest place along a knob, each with the best of the others; 0: one place."""
    best: dict[KnobValue | None, float] = {}
    for cell in known:
        place, step_s = _place(knob, cell.values), cell.expected_s or math.inf
        best[place] = min(step_s, best.get(place, math.inf))
    return max(best.values()) / min(best.values()) if len(best) > 1 else 0.0


def _labels(knob: SearchedKnob, cells: Sequence[Cell]) -> dict[KnobValue | None, str]:
    """Ticks in the knob's order: `4`, `on`, `as it is` with what that is on a line of its own."""
    used = dict.fromkeys(_place(knob, cell.values) for cell in cells)
    listed = [value for value in knob.values if value in used]
    usual = "" if knob.default is None else f"\n({value_words(knob.default)})"
    places = [*listed, *(value for value in used if value not in listed)]
    return {place: value_words(place) + (usual if place is None else "") for place in places}


def _title(knob: SearchedKnob) -> str:
    return plain(knob.name, 40) + (f", {plain(knob.unit, 12)}" if knob.unit else "")


def _told(tuning: Tuning, cell: Cell) -> dict[str, str]:
    """Text of a cell's tooltip."""
    own = [each for each in tuning.samples if each.values == cell.values and each.step_s]
    told = [f"{each.index}: {with_error(each.step_s or 0.0, each.error_s)}" for each in own]
    error = cell.error * (cell.expected_s or 0.0) if cell.error is not None else None
    return {
        "setting": setting_words(cell.values),
        "expected": with_error(cell.expected_s or 0.0, error),
        "predicted by the simulator": format_seconds(cell.predicted_s) if cell.predicted_s else "-",
        "samples": "; ".join(told[:4]) + (f"; {len(told) - 4} more" if len(told) > 4 else "") or "none",
    }


_TOOLTIP = ["setting:N", "expected:N", "predicted by the simulator:N", "samples:N"]


def _map(tuning: Tuning, knobs: Sequence[SearchedKnob], cells: Sequence[Cell]) -> Any:
    """One cell per place of two knobs, with the best of the others: expected, and predicted by the simulator alone."""
    (across, down), answer = knobs, tuning.values or tuning.finalist
    columns, lines = _labels(across, cells), _labels(down, cells)
    width, height = _CELL_WIDTH * len(columns), _CELL_HEIGHT * len(lines)
    times = [time for cell in cells for time in (cell.expected_s, cell.predicted_s) if time]
    unit, factor = unit_of(max(times))
    widen = max(1.0, math.sqrt(_LEAST_RATIO * min(times) / max(times)))
    low, high = factor * min(times) / widen, factor * max(times) * widen
    look: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelExpr": _TWO_LINES}
    axis = alt.Axis(labelAngle=0, labelLimit=_CELL_WIDTH, **look)
    x = alt.X("x:O", title=_title(across), scale=alt.Scale(domain=list(columns.values())), axis=axis)

    def y(band: float = 0.5) -> alt.Y:
        scale = alt.Scale(domain=[*lines.values()][::-1])
        return alt.Y("y:O", title=_title(down), scale=scale, axis=alt.Axis(**look), bandPosition=band)

    def at(values: Values) -> dict[str, str]:
        return {"x": columns[_place(across, values)], "y": lines[_place(down, values)]}

    ticks = [float(f"{low * (high / low) ** (step / 3):.3g}") for step in range(4)]
    legend = alt.Legend(title=f"step, {unit}", values=ticks, format=",.3~r", gradientLength=max(90, min(height, 200)))
    scale = alt.Scale(type="log", scheme="viridis", reverse=True, domain=[low, high])
    letters = alt.when("datum.dark").then(alt.value("white")).otherwise(alt.value("black"))
    sampled = [cell.values for cell in cells if any(each.values == cell.values for each in tuning.samples)]
    others = [knob for knob in tuning.knobs if knob not in knobs]
    shown = {id(cell): {**at(cell.values), **_told(tuning, cell)} for cell in cells}

    def panel(name: str, field: str) -> Any:
        rows: Rows = []
        for cell in cells:
            if time := factor * (getattr(cell, field) or 0.0):
                dark = math.log(time / low) > _DARK * math.log(high / low)
                rows.append({**shown[id(cell)], "time": time, "words": digits(time), "dark": dark})
        base = alt.Chart(data(rows))
        layers = [
            base.mark_rect(stroke="white").encode(
                x=x, y=y(), color=alt.Color("time:Q", scale=scale, legend=legend), tooltip=_TOOLTIP
            ),
            base.mark_text(fontSize=11).encode(x=x, y=y(0.6), text="words:N", color=letters),
        ]
        rings: list[tuple[Values, str, list[int]]] = [({}, _DEFAULT, [5, 3])]
        rings += [(answer, RING_COLOUR, [1, 0])] if answer else []
        for values, colour, dash in rings:
            layers += [each.encode(x=x, y=y()) for each in outline(at(values), colour, 2.6, dash)]
        dots = alt.Chart(data([at(values) for values in sampled]))
        layers.append(
            dots.mark_point(filled=True, color="white", stroke="#111111", size=28, opacity=1).encode(x=x, y=y(0.2))
        )
        return alt.layer(*layers, title=panel_title(name, 8, fontWeight="normal"), width=width, height=height)

    predicted = any(cell.predicted_s for cell in cells)
    panels = [panel("expected: simulator and samples" if predicted else "expected from the samples", "expected_s")]
    panels += [panel("predicted: the simulator alone", "predicted_s")] if predicted else []
    marks = {
        "bright: fast": True,
        "dots: sampled": bool(sampled),
        f"ring: {_found(tuning)}": bool(answer),
        "dashed: the default": True,
        f"with the best of {', '.join(plain(knob.name, 40) for knob in others)}": bool(others),
    }
    title = f"Step time over {plain(across.name, 40)} and {plain(down.name, 40)}"
    return alt.concat(*panels, columns=1 if width > _WIDE else 2, spacing=30, **_frame(tuning, title, marks))


def _line(tuning: Tuning, knob: SearchedKnob, cells: Sequence[Cell]) -> Any:
    """The expected step along one knob with two standard deviations, and the samples of the search."""
    labels, answer = _labels(knob, cells), tuning.values or tuning.finalist
    unit, factor = unit_of(max(cell.expected_s or 0.0 for cell in cells))
    places = list(labels)
    rows: Rows = []
    for cell in sorted(cells, key=lambda cell: places.index(_place(knob, cell.values))):
        ends = _ends(cell.expected_s or 0.0, (cell.error or 0.0) * (cell.expected_s or 0.0), factor)
        simulated = factor * cell.predicted_s if cell.predicted_s else None
        rows.append({"x": labels[_place(knob, cell.values)], **ends, "simulated": simulated, **_told(tuning, cell)})
    shown = [cell.values for cell in cells]
    samples = [
        {"x": labels[_place(knob, each.values)], **_ends(each.step_s, each.error_s or 0.0, factor)}
        for each in searched(tuning)
        if each.step_s and each.values in shown
    ]
    scale = alt.Scale(domain=list(labels.values()), type="point", padding=0.5)
    axis = alt.Axis(labelAngle=0, grid=False, labelExpr=_TWO_LINES)
    x = alt.X("x:O", title=_title(knob), scale=scale, axis=axis)
    y = shared_axis(alt.Y, f"step time, {unit}", alt.Scale(zero=False))
    base, dots = alt.Chart(data(rows)), alt.Chart(data(samples))
    default = alt.Chart(data([{"time": factor * tuning.default_step_s}] if tuning.default_step_s else []))
    layers: list[Any] = [
        base.mark_area(color=_SEARCH, opacity=0.16).encode(x=x, y=y("low"), y2="high"),
        base.mark_line(color=_SEARCH).encode(x=x, y=y("time")),
        base.mark_line(color=IDEAL_COLOUR, strokeDash=IDEAL_DASH).encode(x=x, y=y("simulated")),
        default.mark_rule(color=_DEFAULT, strokeDash=[2, 3]).encode(y=y("time")),
        dots.mark_rule(color=_DEFAULT).encode(x=x, y=y("low"), y2="high"),
        dots.mark_point(size=55, fill="white", stroke=_DEFAULT, opacity=1).encode(x=x, y=y("time")),
        base.mark_point(filled=True, size=30, color=_SEARCH, opacity=1).encode(x=x, y=y("time"), tooltip=_TOOLTIP),
    ]
    found = [row for row in samples if answer and row["x"] == labels[_place(knob, answer)]][:1]
    layers += [ring(row).encode(x=x, y=y("time")) for row in found]
    marks = {
        "blue: expected, two standard deviations": True,
        "circles: samples, two standard errors": bool(samples),
        "dashed: the simulator alone": any(row["simulated"] for row in rows),
        "dotted: the default's step": bool(tuning.default_step_s),
        f"ring: {_found(tuning)}": bool(found),
    }
    title = f"Step time over {plain(knob.name, 40)}"
    width = max(_WIDTH, 44 * len(labels))
    return alt.layer(*layers, width=width, height=_HEIGHT, **_frame(tuning, title, marks))


def _ends(step_s: float, error_s: float, factor: float) -> dict[str, float]:
    """A step with two standard errors on each side, in the chart's unit."""
    return {
        "time": factor * step_s,
        "low": factor * max(0.0, step_s - 2 * error_s),
        "high": factor * (step_s + 2 * error_s),
    }


def convergence_chart(tuning: Tuning) -> Any:
    """Every sample in its order with two standard errors and the best so far; None where none has a step time."""
    known = [sample for sample in tuning.samples if sample.step_s]
    if not known:
        return None
    unit, factor = unit_of(tuning.default_step_s or known[0].step_s or 0.0)
    default = [factor * tuning.default_step_s] if tuning.default_step_s else []
    whole = [each for each in known if not each.cut] or known  # samples that were cut far off do not decide the axis
    ends = [_ends(each.step_s or 0.0, each.error_s or 0.0, factor) for each in whole]
    low, high = min([*default, *(each["low"] for each in ends)]), max([*default, *(each["high"] for each in ends)])
    room = max(0.08 * (high - low), (_LEAST_SPAN * high - (high - low)) / 2)
    low, high = max(0.0, low - room), high + room
    rows: Rows = []
    for sample in tuning.samples:
        drawn = (
            _ends(sample.step_s, sample.error_s or 0.0, factor)
            if sample.step_s
            else dict.fromkeys(("time", "low", "high"), high)
        )
        rows.append(
            {
                "sample": sample.index,
                **drawn,
                "kind": _kind(tuning, sample),
                "phase": {"default": "the default", "search": "search", "confirm": "confirmation"}[sample.phase],
                "setting": "the default" if is_default(tuning, sample) else setting_words(sample.values),
                "step": with_error(sample.step_s, sample.error_s) if sample.step_s else "failed",
                "steps measured": sample.steps,
                "decision": plain(sample.problem or sample.decision, 100) or "-",
            }
        )
    best: Rows = []
    for sample in searched(tuning):
        if sample.step_s and not sample.cut and (not best or factor * sample.step_s < best[-1]["time"]):
            best.append({"sample": sample.index, "time": factor * sample.step_s})
    best += [{"sample": searched(tuning)[-1].index + 0.5, "time": best[-1]["time"]}] if best else []
    last = tuning.samples[-1].index + 0.6
    confirming = [sample.index for sample in tuning.samples if sample.phase == "confirm"]
    field = [{"sample": min(confirming) - 0.5, "end": last}] if confirming else []
    axis = alt.Axis(grid=False, tickMinStep=1, format="d")
    x = alt.X("sample:Q", title="sample", scale=alt.Scale(domain=[-0.6, last], nice=False), axis=axis)
    y = shared_axis(alt.Y, f"step time, {unit}", alt.Scale(domain=[low, high], nice=False, zero=False, clamp=True))
    looks = {kind: look for kind, look in _KINDS.items() if any(row["kind"] == kind for row in rows)}
    legend = alt.Legend(title=None, orient="bottom", symbolSize=70)
    colour = named("kind", {kind: colour for kind, (colour, _) in looks.items()}, legend)
    shape = named("kind", {kind: shape for kind, (_, shape) in looks.items()}, legend, alt.Shape)
    base = alt.Chart(data(rows))
    tooltip = ["sample:Q", "phase:N", "setting:N", "step:N", "steps measured:Q", "decision:N"]
    layers = [
        alt.Chart(data(field)).mark_rect(color="#e4e4e4", opacity=0.75).encode(x=x, x2="end"),
        alt.Chart(data([{"time": each} for each in default]))
        .mark_rule(color=_DEFAULT, strokeDash=IDEAL_DASH)
        .encode(y=y("time")),
        alt.Chart(data(best)).mark_line(interpolate="step-after", color=_BEST).encode(x=x, y=y("time")),
        base.mark_rule().encode(x=x, y=y("low"), y2="high", color=colour),
        base.mark_point(size=60, filled=True, opacity=1).encode(
            x=x, y=y("time"), color=colour, shape=shape, tooltip=tooltip
        ),
    ]
    marks = {
        "green: the best so far": bool(best),
        f"dashed: the default's step, {format_seconds(tuning.default_step_s or 0.0)}": bool(default),
        "bars: two standard errors": True,
        "grey: the confirmation, finalist and default interleaved": bool(field),
        "at the upper edge: failed, or beyond it": any(row["high"] >= high for row in rows),
    }
    return alt.layer(*layers, width=_WIDTH, height=_HEIGHT, **_frame(tuning, "Step time of every sample", marks))


def _kind(tuning: Tuning, sample: Sample) -> str:
    if sample.step_s is None:
        return "failed"
    if sample.cut:
        return "cut: clearly worse"
    if is_default(tuning, sample):
        return "the default"
    return _found(tuning) if sample.values == tuning.finalist else "another setting"


CHARTS = (
    Figure(
        "landscape",
        "tuning",
        "Step time over the knobs that matter; the ring marks what was found.",
        landscape_chart,
        leads=True,
    ),
    Figure(
        "convergence",
        "tuning",
        "Samples in the order in which they were tried, and the best so far.",
        convergence_chart,
    ),
)
