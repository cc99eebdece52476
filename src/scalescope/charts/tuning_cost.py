"""Time that a tuning lost or gained against the default, up to the step at which it has paid for itself."""

from typing import Any, NamedTuple

import altair as alt

from scalescope.charts.parts import IDEAL_DASH, Rows, data, frame, ring
from scalescope.records.tuning import Sample, Tuning
from scalescope.report.tuning import (
    break_even_words,
    heading_lines,
    headline,
    lost_words,
    setting_words,
    times,
)
from scalescope.units import format_seconds, unit_of

_WIDTH, _HEIGHT = 640, 280
_PHASE_COLOURS = {"search": "#dce9f4", "confirmation": "#e4e4e4", "with the winner": "#dff1e8"}
_LINE, _WINNER = "#0072b2", "#009e73"
_FAR = 4.0  # A break-even point further away than this many times the tuning's own steps is told and not drawn
_ONWARDS = 0.4  # Of the tuning's own steps: how far the winner is drawn beyond that
_LEAST_SPAN = 0.05  # Of the tuning's seconds: less would make a mountain of a small loss
_LETTER = 7.5  # Pixels of a letter in a phase's name
_TOOLTIP = [
    alt.Tooltip("step:Q", title="steps of the tuning", format=","),
    alt.Tooltip("told:N", title="lost so far"),
    alt.Tooltip("setting:N", title="sample"),
]


class _Axes(NamedTuple):
    """Both axes; times in their unit."""

    last: float  # Step at the right edge
    low: float
    high: float
    title: str

    @property
    def x(self) -> alt.X:
        axis = alt.Axis(grid=False, format=",~d", tickCount=8, tickMinStep=1)
        scale = alt.Scale(domain=[0, max(1.0, self.last)], nice=False)
        return alt.X("step:Q", title="steps since the first sample", scale=scale, axis=axis)

    @property
    def y(self) -> alt.Y:
        scale = alt.Scale(domain=[self.low, self.high], nice=False)
        return alt.Y("lost:Q", title=self.title, scale=scale, axis=alt.Axis(format=",~r"))


def cost_chart(tuning: Tuning) -> Any:
    """Time lost, added up over the steps of the tuning; None without samples or the default's step time."""
    pace = tuning.default_step_s
    if not pace or not any(sample.steps for sample in tuning.samples):
        return None
    path = _path(tuning, pace)
    onwards = _onwards(tuning, pace, path[-1])
    unit, factor = _unit(max(abs(row["seconds"]) for row in (*path, *onwards)))
    for row in (*path, *onwards):
        row["lost"] = factor * row["seconds"]
    axes = _axes(tuning, path + onwards, unit, factor)
    walked = alt.Chart(data(path))
    layers: list[Any] = [
        *_phases(path, onwards, axes),
        alt.Chart(data([{"lost": 0.0}])).mark_rule(color="#111111", strokeWidth=1.2).encode(y=axes.y),
        walked.mark_line(color=_LINE, strokeWidth=2).encode(x=axes.x, y=axes.y),
        walked.mark_point(color=_LINE, filled=True, size=26, opacity=1).encode(x=axes.x, y=axes.y, tooltip=_TOOLTIP),
    ]
    if onwards:
        dashed = alt.Chart(data(onwards)).mark_line(color=_WINNER, strokeWidth=2.2, strokeDash=IDEAL_DASH)
        layers += [dashed.encode(x=axes.x, y=axes.y), *_break_even(tuning, path[-1], onwards[-1], axes)]
    return alt.layer(
        *layers,
        width=_WIDTH,
        height=_HEIGHT,
        **frame(
            f"What tuning cost: {headline(tuning)}",
            *heading_lines(tuning),
            _spent(tuning),
            break_even_words(tuning),
            "points: ends of samples; above zero: time lost" + ("; dashed: with the winner" if onwards else ""),
        ),
    )


def _spent(tuning: Tuning) -> str:
    cost = tuning.cost
    spent = f"{format_seconds(cost.seconds)} for all launches" if tuning.method == "offline" else lost_words(tuning)
    return spent + (f"; slowest sample {times(cost.worst)} as long as the default" if cost.worst is not None else "")


def _unit(seconds: float) -> tuple[str, float]:
    if seconds >= 2 * 3600:
        return "hours", 1 / 3600
    return ("minutes", 1 / 60) if seconds >= 300 else unit_of(seconds)


def _axes(tuning: Tuning, rows: Rows, unit: str, factor: float) -> _Axes:
    least = _LEAST_SPAN * factor * tuning.cost.seconds
    lost = [row["lost"] for row in rows]
    low, high = min(-least / 2, *lost), max(least, *lost)
    room = 0.1 * (high - low) or 1.0
    name = "time lost against the default" if tuning.method != "offline" else "time spent on launches"
    return _Axes(max(row["step"] for row in rows), low - room, high + room, f"{name}, {unit}")


def _path(tuning: Tuning, pace: float) -> Rows:
    """After every sample: steps made and seconds lost so far; the last row is the decision."""
    rows: Rows = [_row(0, 0.0, "the first sample begins", "search")]
    steps, lost = 0, 0.0
    for sample in tuning.samples:
        here = sample.steps + sample.other_steps
        steps += here
        lost += sample.seconds - (here * pace if tuning.method != "offline" else 0.0)
        rows.append(_row(steps, lost, _sample_words(sample), "confirmation" if sample.phase == "confirm" else "search"))
    decided = max(steps, tuning.cost.search_steps + tuning.cost.confirm_steps)
    return [*rows, _row(decided, tuning.cost.lost_s, "decided" if tuning.complete else "ended", rows[-1]["phase"])]


def _row(step: int, seconds: float, setting: str, phase: str) -> dict[str, Any]:
    told = format_seconds(seconds) if seconds >= 0 else f"{format_seconds(-seconds)} gained"
    return {"step": step, "seconds": seconds, "setting": setting, "phase": phase, "told": told}


def _sample_words(sample: Sample) -> str:
    return f"{sample.index}: {setting_words(sample.values)}"


def _is_near(tuning: Tuning, decided: dict[str, Any]) -> bool:
    """Whether the break-even point can be drawn."""
    steps = tuning.cost.break_even_steps
    return steps is not None and 0 < steps <= _FAR * max(1, decided["step"])


def _onwards(tuning: Tuning, pace: float, decided: dict[str, Any]) -> Rows:
    """From the decision on with the winner, past the break-even point or as far as there is room."""
    if tuning.cost.break_even_steps is None or not tuning.winner_step_s:
        return []
    past = tuning.cost.break_even_steps if _is_near(tuning, decided) else 0
    more = past + max(1, round(_ONWARDS * decided["step"]))
    gained = more * (pace - tuning.winner_step_s)
    return [
        {"step": decided["step"], "seconds": decided["seconds"]},
        {"step": decided["step"] + more, "seconds": decided["seconds"] - gained},
    ]


def _phases(path: Rows, onwards: Rows, axes: _Axes) -> list[Any]:
    """Fields behind the phases, named above as far as there is room."""
    searched = max(row["step"] for row in path if row["phase"] == "search")
    ends = {"search": (0, searched)}
    if path[-1]["phase"] == "confirmation":
        ends["confirmation"] = (searched, path[-1]["step"])
    if onwards:
        ends["with the winner"] = (path[-1]["step"], onwards[-1]["step"])
    rows: Rows = []
    for name, (begin, end) in ends.items():
        fits = _WIDTH * (end - begin) / max(1.0, axes.last) >= _LETTER * len(name)
        rows.append({"step": begin, "end": end, "name": name, "words": name if fits else ""})
    scale = alt.Scale(domain=list(ends), range=[_PHASE_COLOURS[name] for name in ends])
    fields = alt.Chart(data(rows))
    words = fields.mark_text(align="left", baseline="bottom", dx=2, fontSize=11, color="#444444")
    return [
        fields.mark_rect(opacity=0.85).encode(
            x=axes.x, x2=alt.X2("end"), color=alt.Color("name:N", scale=scale, legend=None)
        ),
        words.encode(x=axes.x, y=alt.value(-4), text="words:N"),
    ]


def _break_even(tuning: Tuning, decided: dict[str, Any], last: dict[str, Any], axes: _Axes) -> list[Any]:
    """A ring where the loss is recovered, or words that say how far away that is."""
    steps = tuning.cost.break_even_steps or 0
    if steps <= 0:
        return []
    if not _is_near(tuning, decided):
        far = alt.Chart(data([{**last, "words": f"break-even only after {steps:,} more steps"}]))
        text = far.mark_text(align="right", baseline="bottom", dx=-8, dy=-8, fontSize=12, color="#111111")
        return [text.encode(x=axes.x, y=axes.y, text="words:N")]
    at = decided["step"] + steps
    place = alt.Chart(data([{"step": at, "lost": 0.0, "words": f"break-even after {steps:,} more steps"}]))
    below = place.mark_text(align="right", baseline="top", dx=-6, dy=9, fontSize=12, color="#111111")
    mark = ring({"step": at, "lost": 0.0}, size=150, width=2.4)
    return [below.encode(x=axes.x, y=axes.y, text="words:N"), mark.encode(x=axes.x, y=axes.y)]
