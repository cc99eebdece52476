"""How long steps take over a run: warm-up, lasting changes and slow steps that come back are marked."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

import altair as alt

from scalescope.records.explanation import Explanation, Period
from scalescope.report.explanation import first_steady, step_seconds
from scalescope.show.charts.parts import Rows, data, frame, shared_axis
from scalescope.text import plain
from scalescope.units import format_seconds, unit_of

_WIDTH, _HEIGHT = 720, 260
_FEW_POINTS, _MOST_POINTS = 150, 600  # Steps that are drawn large, and one by one; more of them share a place
_MOST_RINGS, _MOST_CHANGES, _MOST_BEYOND = 150, 12, 60
_FAR = 4.0  # The axis ends at this many median steps: longer ones would squeeze all others
_STEP_AXIS = alt.Axis(format=",d", grid=False, tickCount=10, tickMinStep=1, labelOverlap="greedy")
_STEP, _OTHERS, _CHANGE, _PERIODIC, _EPOCH = "#0072b2", "#9fb8c9", "#d55e00", "#aa4499", "#555555"
_LABEL = 62  # Pixels that the label of a change or an epoch takes


class _Place(NamedTuple):
    """One step, or some that follow each other, on the x axis; in seconds."""

    first: int
    last: int
    seconds: float  # The median of these steps
    top: float
    bottom: float  # Of the fastest rank in the fastest step
    rank: int  # The slowest in the longest of these steps


def step_times_chart(explanation: Explanation) -> Any:
    """Steps as a line, all ranks as a band behind it; None with fewer than two steps."""
    places = _places(explanation)
    if len(places) < 2:
        return None
    end = _limit(explanation, places)
    unit, factor = unit_of(end)
    limit = factor * end
    rows = [_row(place, factor, limit) for place in places]
    several = len(explanation.per_rank) > 1
    binned = any(place.last > place.first for place in places)
    axis = _Axis(places, limit, unit)
    layers: list[alt.Chart] = _warmup(explanation, places, axis)
    base = alt.Chart(data(rows))
    if several or binned:
        area = base.mark_area(color=_OTHERS, opacity=0.55, clip=True)
        layers.append(area.encode(x=axis.x("step"), y=axis.y("bottom"), y2=alt.Y2("top")))
    line = base.mark_line(color=_STEP, strokeWidth=1.3, clip=True)
    size = 14 if len(rows) <= _FEW_POINTS else 5
    dots = base.mark_point(color=_STEP, filled=True, opacity=1, clip=True, size=size)
    layers += [
        line.encode(x=axis.x("step"), y=axis.y("seconds")),
        dots.encode(x=axis.x("step"), y=axis.y("seconds"), tooltip=_tooltip(several)),
        *_epochs(explanation, axis),
        *_changes(explanation, axis, rows),
        *_periodic(explanation, axis, factor),
        *_beyond(rows, axis, several),
    ]
    lines = _lines(explanation, places, several, any(row["beyond"] for row in rows))
    return alt.layer(
        *layers,
        width=_WIDTH,
        height=_HEIGHT,
        **frame(f"Step time over the run: {plain(explanation.what, 60)}", *lines),
    )


def _lines(explanation: Explanation, places: Sequence[_Place], several: bool, beyond: bool) -> list[str]:
    """What the colours mean, and what was marked."""
    share = places[0].last - places[0].first + 1
    line = "blue: step time" + (", mean over ranks" if several else "")
    band = "; band: from the fastest rank to the slowest" if several else ""
    if share > 1:
        line += f", median of {share} steps each"
        band = "; band: from the fastest to the slowest" + (" of all ranks" if several else "")
    marks = ["grey: warm-up"] if explanation.warmup_steps else []
    marks += ["orange: a lasting change"] if explanation.changes else []
    marks += ["dotted: a new epoch, by the log"] if _epoch_begins(explanation) else []
    for period in explanation.periods:
        excess = format_seconds(period.excess_s)
        marks.append(f"rings: every {period.every:,} steps one takes {excess} longer")
    marks += ["triangles: beyond the axis"] if beyond else []
    return [line + band, "; ".join(marks)]


def _places(explanation: Explanation) -> list[_Place]:
    """Steps, or groups of equal length where there are too many."""
    by_step: dict[int, list[tuple[float, int]]] = {}
    for step in explanation.steps:
        by_step.setdefault(step.index, []).append((step.parts.step_s, step.rank))
    steps = step_seconds(explanation)
    indices = list(steps)
    together = max(1, -(-len(indices) // _MOST_POINTS))
    places = []
    for start in range(0, len(indices), together):
        here = indices[start : start + together]
        top, rank = max(max(by_step[index]) for index in here)
        bottom = min(min(by_step[index])[0] for index in here)
        places.append(_Place(here[0], here[-1], median(steps[index] for index in here), top, bottom, rank))
    return places


def _limit(explanation: Explanation, places: Sequence[_Place]) -> float:
    """Where the axis ends, in seconds: steady steps are on it, unless they take several times the median one."""
    steady = [place for place in places if place.first >= first_steady(explanation)] or list(places)
    typical = median(place.seconds for place in steady)
    return 1.06 * min(max(place.top for place in steady), max(_FAR * typical, 1e-9))


def _row(place: _Place, factor: float, limit: float) -> dict[str, Any]:
    steps = f"{place.first:,}" if place.first == place.last else f"{place.first:,} to {place.last:,}"
    return {
        "step": (place.first + place.last) / 2,
        "seconds": factor * place.seconds,
        "top": factor * place.top,
        "bottom": factor * place.bottom,
        "beyond": max(0.0, factor * place.top - limit),
        "steps": steps,
        "took": format_seconds(place.seconds),
        "longest": format_seconds(place.top),
        "shortest": format_seconds(place.bottom),
        "rank": place.rank,
    }


def _tooltip(several: bool) -> list[alt.Tooltip]:
    rank = [alt.Tooltip("rank:Q", title="slowest rank")] if several else []
    ends = [alt.Tooltip("shortest:N", title="shortest"), alt.Tooltip("longest:N", title="longest")]
    return [alt.Tooltip("steps:N", title="step"), alt.Tooltip("took:N", title="step time"), *ends, *rank]


class _Axis:
    """Both axes."""

    def __init__(self, places: Sequence[_Place], limit: float, unit: str) -> None:
        self.first, self.last = places[0].first, places[-1].last
        room = 0.01 * (self.last - self.first)
        steps = alt.Scale(domain=[self.first - room, self.last + room], nice=False, zero=False)
        times = alt.Scale(domain=[0, limit], nice=False)
        self.x = shared_axis(alt.X, "step", steps, _STEP_AXIS)
        self.y = shared_axis(alt.Y, f"step time, {unit}", times, alt.Axis(format=",~r"))

    def pixels(self, steps: float) -> float:
        """How wide that many steps are drawn."""
        return _WIDTH * steps / max(1e-9, self.last - self.first)


def _warmup(explanation: Explanation, places: Sequence[_Place], axis: _Axis) -> list[alt.Chart]:
    """A grey field behind the steps that are left out of the accounting."""
    if not explanation.warmup_steps:
        return []
    end = min(first_steady(explanation), places[-1].last + 1) - 0.5
    begin = places[0].first - 0.5
    row = {"step": begin, "end": max(end, begin + 2 / axis.pixels(1.0))}
    field = alt.Chart(data([row])).mark_rect(color="#cccccc", opacity=0.5, clip=True)
    return [field.encode(x=axis.x("step"), x2=alt.X2("end"))]


def _epoch_begins(explanation: Explanation) -> dict[int, int]:
    """The first step of every epoch after the first that has steps, by its number."""
    begins: dict[int, int] = {}
    at = min((step.index for step in explanation.steps), default=0)
    for epoch in explanation.epochs:
        if epoch.steps and epoch.number > 1:
            begins[epoch.number] = at
        at += epoch.steps
    return begins


def _epochs(explanation: Explanation, axis: _Axis) -> list[alt.Chart]:
    """A dotted line where an epoch begins, numbered as far as there is room."""
    rows: Rows = []
    last: float = -_LABEL
    for number, step in _epoch_begins(explanation).items():
        at = axis.pixels(step - axis.first)
        fits = at - last >= _LABEL and _WIDTH - at >= _LABEL
        last = at if fits else last
        rows.append({"step": step - 0.5, "words": f"epoch {number:,}" if fits else ""})
    if not rows:
        return []
    base = alt.Chart(data(rows))
    return [
        base.mark_rule(stroke=_EPOCH, strokeWidth=1.2, strokeDash=[2, 3]).encode(x=axis.x("step")),
        base.mark_text(fontSize=11, color=_EPOCH, align="left", baseline="top", dx=4).encode(
            x=axis.x("step"), y=alt.value(2), text="words:N"
        ),
    ]


def _changes(explanation: Explanation, axis: _Axis, rows: Rows) -> list[alt.Chart]:
    """A line where steps begin to take another time, named above as far as there is room."""
    lines: Rows = []
    taken = [axis.pixels(row["step"] - axis.first) for row in _beyond_axis(rows)[:1]]
    for change in explanation.changes[:_MOST_CHANGES]:
        at = axis.pixels(change.step - axis.first)
        words = f"{100 * (change.after_s / change.before_s - 1):+.0f} %" if change.before_s > 0 else ""
        fits = all(abs(at - other) >= _LABEL for other in taken)
        taken += [at] if fits else []
        lines.append({"step": change.step - 0.5, "words": words if fits else ""})
    if not lines:
        return []
    base = alt.Chart(data(lines))
    return [
        base.mark_rule(stroke=_CHANGE, strokeWidth=1.4, strokeDash=[5, 3]).encode(x=axis.x("step")),
        base.mark_text(fontSize=11, color=_CHANGE, baseline="bottom").encode(
            x=axis.x("step"), y=alt.value(-3), text="words:N"
        ),
    ]


def _beyond_axis(rows: Rows) -> Rows:
    """Places whose longest step ends above the axis, the longest first."""
    return sorted((row for row in rows if row["beyond"]), key=lambda row: -row["beyond"])[:_MOST_BEYOND]


def _beyond(rows: Rows, axis: _Axis, several: bool) -> list[alt.Chart]:
    """Triangles at the upper edge for steps that end above it; the longest says its time."""
    found = _beyond_axis(rows)
    if not found:
        return []
    marks = alt.Chart(data(found)).mark_point(shape="triangle-up", size=60, filled=True, opacity=1, color=_STEP)
    right = axis.pixels(found[0]["step"] - axis.first) > _WIDTH / 2
    name = alt.Chart(data(found[:1])).mark_text(
        fontSize=11, color=_STEP, baseline="bottom", align="right" if right else "left", dx=5 if right else -5
    )
    return [
        marks.encode(x=axis.x("step"), y=alt.value(4), tooltip=_tooltip(several)),
        name.encode(x=axis.x("step"), y=alt.value(-3), text="longest:N"),
    ]


def _periodic(explanation: Explanation, axis: _Axis, factor: float) -> list[alt.Chart]:
    """Rings around the slow steps that come back."""
    steps = step_seconds(explanation)
    rows: Rows = []
    for period in explanation.periods:
        rows += [
            {
                "step": index,
                "seconds": factor * steps[index],
                "steps": f"{index:,}",
                "took": format_seconds(steps[index]),
            }
            for index in _returning(period, steps, explanation)
        ]
    if not rows:
        return []
    rings = alt.Chart(data(rows)).mark_point(size=46, strokeWidth=1.5, color=_PERIODIC, opacity=1, clip=True)
    tooltip = [alt.Tooltip("steps:N", title="step"), alt.Tooltip("took:N", title="step time")]
    return [rings.encode(x=axis.x("step"), y=axis.y("seconds"), tooltip=tooltip)]


def _returning(period: Period, steps: dict[int, float], explanation: Explanation) -> list[int]:
    """Steps that the period speaks of: of all places in it the one whose steady steps take longest."""
    steady = first_steady(explanation)
    by_place: dict[int, list[int]] = {}
    for index in steps:
        if index >= steady:
            by_place.setdefault(index % max(1, period.every), []).append(index)
    if not by_place:
        return []
    place = max(by_place, key=lambda place: fmean(steps[index] for index in by_place[place]))
    found = by_place[place]
    return found[:: -(-len(found) // _MOST_RINGS)]
