"""Charts of a search: step time over the knobs that matter, and every sample in its order."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from scalescope.records.job import KnobValue
from scalescope.records.tuning import Cell, Sample, SearchedKnob, Tuning, Values, setting_words, value_words
from scalescope.show.charts.parts import (
    IDEAL_DASH,
    RING_COLOUR,
    Rows,
    data,
    frame,
    named,
    outline,
    shared_axis,
)
from scalescope.show.document import Figure
from scalescope.show.tuning import (
    conditions,
    is_default,
    searched,
)
from scalescope.text import plain
from scalescope.units import digits, format_seconds, unit_of, with_error

_WIDTH, _HEIGHT = 640, 300
_CELL_WIDTH, _CELL_HEIGHT = 62, 42
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


def _frame(tuning: Tuning, title: str, *marks: str) -> dict[str, Any]:
    """Title, where it was searched, and what marks mean."""
    held = f"; fixed: {plain(setting_words(tuning.held), 100)}" if tuning.held else ""
    return frame(f"{title}: {plain(tuning.what, 60)}", f"{conditions(tuning)}{held}", *marks)


def _found(tuning: Tuning) -> str:
    return "the winner" if tuning.complete and tuning.decision == "use" else "the finalist"


def landscape_chart(tuning: Tuning) -> Any:
    """The expected step over the two knobs that say most, or the only one; None where nothing is known of any."""
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
    return _map(tuning, telling, list(best.values()))


def _place(knob: SearchedKnob, values: Values) -> KnobValue | None:
    """A setting's value of this knob; what it does not name is the default."""
    value = values.get(knob.name)
    return (None if None in knob.values else knob.default) if value is None else value


def _spread(knob: SearchedKnob, known: Sequence[Cell]) -> float:
    """Ratio of the slowest and the fastest place along a knob, each with the best of the others; 0: one place."""
    best: dict[KnobValue | None, float] = {}
    for cell in known:
        place = _place(knob, cell.values)
        best[place] = min(cell.expected_s or math.inf, best.get(place, math.inf))
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


_TOOLTIP = ["setting:N", "expected:N", "predicted by the simulator:N"]


def _map(tuning: Tuning, knobs: Sequence[SearchedKnob], cells: Sequence[Cell]) -> Any:
    """One cell per place of one or two knobs, with the best of the others."""
    across, down, answer = knobs[0], knobs[1] if len(knobs) > 1 else None, tuning.values or tuning.finalist
    columns = _labels(across, cells)
    lines: dict[KnobValue | None, str] = _labels(down, cells) if down else {None: ""}
    width, height = _CELL_WIDTH * len(columns), _CELL_HEIGHT * len(lines)
    times = [cell.expected_s for cell in cells if cell.expected_s]
    unit, factor = unit_of(max(times))
    widen = max(1.0, math.sqrt(_LEAST_RATIO * min(times) / max(times)))
    low, high = factor * min(times) / widen, factor * max(times) * widen

    def at(values: Values) -> dict[str, str]:
        return {"x": columns[_place(across, values)], "y": lines[_place(down, values) if down else None]}

    rows: Rows = []
    for cell in cells:
        expected_s = cell.expected_s or 0.0
        time = factor * expected_s
        rows.append(
            {
                **at(cell.values),
                "time": time,
                "words": digits(time),
                "dark": math.log(time / low) > _DARK * math.log(high / low),
                "setting": setting_words(cell.values),
                "expected": with_error(expected_s, None if cell.error is None else cell.error * expected_s),
                "predicted by the simulator": format_seconds(cell.predicted_s) if cell.predicted_s else "-",
            }
        )
    look: dict[str, Any] = {"ticks": False, "domain": False, "grid": False, "labelExpr": _TWO_LINES}
    axis = alt.Axis(labelAngle=0, labelLimit=_CELL_WIDTH, **look)
    x = alt.X("x:O", title=_title(across), scale=alt.Scale(domain=list(columns.values())), axis=axis)

    def y(band: float = 0.5) -> alt.Y:
        scale = alt.Scale(domain=[*lines.values()][::-1])
        title = _title(down) if down else None
        return alt.Y("y:O", title=title, scale=scale, axis=alt.Axis(**look), bandPosition=band)

    ticks = [float(f"{low * (high / low) ** (step / 3):.3g}") for step in range(4)]
    legend = alt.Legend(title=f"step, {unit}", values=ticks, format=",.3~r", gradientLength=max(90, min(height, 200)))
    scale = alt.Scale(type="log", scheme="viridis", reverse=True, domain=[low, high])
    color = alt.Color("time:Q", scale=scale, legend=legend)
    letters = alt.when("datum.dark").then(alt.value("white")).otherwise(alt.value("black"))
    sampled = [cell.values for cell in cells if any(each.values == cell.values for each in tuning.samples)]
    base, dots = alt.Chart(data(rows)), alt.Chart(data([at(values) for values in sampled]))
    rings = [*outline(at({}), _DEFAULT, 2.6, [5, 3]), *(outline(at(answer), RING_COLOUR, 2.6) if answer else [])]
    others = [plain(knob.name, 40) for knob in tuning.knobs if knob not in knobs]
    return alt.layer(
        base.mark_rect(stroke="white").encode(x=x, y=y(), color=color, tooltip=_TOOLTIP),
        base.mark_text(fontSize=11).encode(x=x, y=y(0.6), text="words:N", color=letters),
        *(ring.encode(x=x, y=y()) for ring in rings),
        dots.mark_point(filled=True, color="white", stroke="#111111", size=28, opacity=1).encode(x=x, y=y(0.2)),
        width=width,
        height=height,
        **_frame(
            tuning,
            f"Step time over {' and '.join(plain(knob.name, 40) for knob in knobs)}",
            f"bright: fast; dots: sampled; dashed: the default{f'; ring: {_found(tuning)}' if answer else ''}",
            f"with the best of {', '.join(others)}" if others else "",
        ),
    )


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
    whole = [each for each in known if not each.cut] or known  # samples that were cut far off do not decide the axis
    ends = [_ends(each.step_s or 0.0, each.error_s or 0.0, factor) for each in whole]
    low, high = min(each["low"] for each in ends), max(each["high"] for each in ends)
    room = max(0.08 * (high - low), (_LEAST_SPAN * high - (high - low)) / 2)
    low, high = max(0.0, low - room), high + room
    at_the_edge = {"time": high, "low": high, "high": high}
    rows: Rows = [
        {
            "sample": sample.index,
            **(_ends(sample.step_s, sample.error_s or 0.0, factor) if sample.step_s else at_the_edge),
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
    axis = alt.Axis(grid=False, tickMinStep=1, format="d")
    x = alt.X("sample:Q", title="sample", scale=alt.Scale(domain=[-0.6, last], nice=False), axis=axis)
    y = shared_axis(alt.Y, f"step time, {unit}", alt.Scale(domain=[low, high], nice=False, zero=False, clamp=True))
    looks = {kind: look for kind, look in _KINDS.items() if any(row["kind"] == kind for row in rows)}
    legend = alt.Legend(title=None, orient="bottom", symbolSize=70)
    color = named("kind", {kind: colour for kind, (colour, _) in looks.items()}, legend)
    shape = named("kind", {kind: shape for kind, (_, shape) in looks.items()}, legend, alt.Shape)
    tooltip = ["sample:Q", "setting:N", "step:N", "decision:N"]
    base, points = alt.Chart(data(rows)), {"x": x, "y": y("time"), "color": color}
    grey = alt.Chart(data(field)).mark_rect(color="#e4e4e4", opacity=0.75)
    so_far = alt.Chart(data(best)).mark_line(interpolate="step-after", color=_BEST)
    default = [{"time": factor * tuning.default_step_s}] if tuning.default_step_s else []
    usual = alt.Chart(data(default)).mark_rule(color=_DEFAULT, strokeDash=IDEAL_DASH)
    return alt.layer(
        grey.encode(x=x, x2="end"),
        usual.encode(y=y("time")),
        so_far.encode(x=x, y=y("time")),
        base.mark_rule().encode(x=x, y=y("low"), y2="high", color=color),
        base.mark_point(size=60, filled=True, opacity=1).encode(**points, shape=shape, tooltip=tooltip),
        width=_WIDTH,
        height=_HEIGHT,
        **_frame(
            tuning,
            "Step time of every sample",
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
