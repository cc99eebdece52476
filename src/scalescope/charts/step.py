"""One step as lanes: what every rank computes and, below it, what it exchanges; predicted and traced steps alike."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from scalescope.charts.step_spans import OneStep, coarse, one_step, tracks
from scalescope.records.explanation import Explanation
from scalescope.records.timeline import EXCHANGE, Activity, Span, Timeline
from scalescope.show.charts.parts import (
    LOSS_COLOUR,
    ON_MARK,
    Rows,
    data,
    frame,
    lane_axis,
    named,
    panel_title,
    shared_axis,
)
from scalescope.text import plain
from scalescope.units import format_bytes, format_seconds, unit_of

_COLOURS: dict[Activity, str] = {
    "input": "#999999",
    "forward": "#8fc7ea",
    "backward": "#3b87c0",
    "copy": "#cc79a7",
    "optimizer": "#3fae8a",
    "communication": "#f0b83c",
    "negotiation": "#f3e488",
    "other": "#d0d0d0",
}
_EXPOSED = "exposed communication"
_WIDTH = 720
# Pixels, so that names stand only where they fit, and borders do not hide what they surround.
_LETTER, _LINE, _SLIVER = 6.2, 11, 3
# Height of a rank, and of what is drawn in it.
_RANK, _COMPUTE_LANE, _EXCHANGE_LANE, _MARK, _END = 100, (8, 46), (50, 82), (84, 92), (4, 94)
# Pixels of a rank alone, of all ranks together while none is lower than that, and from which on lanes are named.
_TALL, _ALL, _LOW, _TWO_LABELS = 76, 560, 30, 46
_TOOLTIP = [
    alt.Tooltip("rank:Q", title="rank"),
    alt.Tooltip("activity:N", title="activity"),
    alt.Tooltip("name:N", title="name"),
    alt.Tooltip("took:N", title="took"),
    alt.Tooltip("began:N", title="began after"),
    alt.Tooltip("size:N", title="size"),
]


def step_chart(timeline: Timeline, title: str, *lines: str) -> Any:
    """One step with all its ranks."""
    return step_charts({"": timeline}, title, *lines)


def explained_step_chart(explanation: Explanation) -> Any:
    """The representative step, with the predicted one above it where there is one."""
    shown, predicted = explanation.shown_step, explanation.predicted_step
    if shown is None or not shown.spans:
        return None
    index = explanation.shown_index
    measured = "" if predicted is None else "measured"
    timelines = {measured: shown} if predicted is None else {"predicted": predicted, measured: shown}
    own = [step.parts.exposed_s for step in explanation.steps if step.index == index and step.parts.exposed_s]
    return step_charts(
        timelines,
        f"One step: {plain(explanation.what, 60)}",
        "" if index is None else f"step {index:,}, a representative one{_straggler(explanation)}",
        exposed_s={measured: max(own, default=0.0)},
    )


def _straggler(explanation: Explanation) -> str:
    late = explanation.straggler
    return "" if late is None else f"; rank {late} is the straggler: the others wait for it"


def step_charts(
    timelines: Mapping[str, Timeline], title: str, *lines: str, exposed_s: Mapping[str, float] | None = None
) -> Any:
    """Steps one above the other on the same axis, such as predicted and measured; named by their keys.

    `exposed_s` says by name how much of the exchange is exposed where the timeline holds no compute.
    """
    steps = {name: one_step(timeline, (exposed_s or {}).get(name)) for name, timeline in timelines.items()}
    longest = max((step.seconds for step in steps.values()), default=0.0)
    there = {span.activity for step in steps.values() for span in step.spans}
    colours: dict[str, str] = {activity: colour for activity, colour in _COLOURS.items() if activity in there}
    if any(any(step.exposed.values()) for step in steps.values()):
        colours[_EXPOSED] = LOSS_COLOUR
    legend = alt.Legend(title=None, orient="bottom", symbolType="square", columns=9)
    color = named("activity", colours, legend)
    notes = [note for step in steps.values() for note in step.notes]
    if any(_height(step) < _TWO_LABELS for step in steps.values()):
        notes.append("of every rank: compute above, exchange below")
    panels = [_panel(name, step, longest, color) for name, step in steps.items()]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Automatically deduplicated selection")  # panels zoom together
        return alt.vconcat(
            *panels,
            spacing=18,
            resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared")),
            **frame(plain(title, 100), *lines, "; ".join(dict.fromkeys(notes))),
        )


def _height(step: OneStep) -> int:
    """Of a rank, in pixels."""
    return max(_LOW, min(_TALL, _ALL // max(1, len(step.exposed))))


def _headline(step: OneStep) -> str:
    """The rank that ends last in numbers."""
    rank = max(step.ends, key=lambda rank: step.ends[rank], default=min(step.exposed, default=0))
    shown = sum(end - start for start, end in step.exposed.get(rank, []))
    whole = step.ends.get(rank, step.seconds)
    part = f" ({100 * shown / whole:.0f} %)" if whole else ""
    if not step.exchange_s.get(rank):
        return f"{format_seconds(whole)}, no communication"
    told = f"{format_seconds(whole)}, of it {format_seconds(shown)}{part} {_EXPOSED}"
    left = step.exchange_s.get(rank, 0.0) - shown
    under = "hidden" if step.compute_known else "possibly hidden"
    hidden = f"; {format_seconds(left)} of communication is {under}" if left > 1e-9 else ""
    return told + hidden + (f" (rank {rank})" if len(step.exposed) > 1 else "")


def _panel(name: str, step: OneStep, longest: float, color: alt.Color) -> Any:
    unit, factor = unit_of(longest)
    ranks = sorted(step.exposed)
    scale = alt.Scale(domain=[0, longest * factor or 1.0], nice=False)
    y = _lane_axis(step, ranks)
    border = alt.condition("datum.sliver", alt.value(0), alt.value(0.6))
    zoom = alt.selection_interval(name="zoom", bind="scales", encodings=["x"])
    x = shared_axis(alt.X, f"time in the step, {unit}", scale, alt.Axis(tickCount=8))
    rows = [{**row, **{each: row[each] * factor for each in ("start", "end")}} for row in _rows(step, ranks, longest)]
    ends = [
        {"end": end * factor, "top": index * _RANK + _END[0], "bottom": index * _RANK + _END[1]}
        for index, rank in enumerate(ranks)
        if (end := step.ends.get(rank)) is not None
    ]
    base = alt.Chart(data(rows))
    place = {"x": x("start"), "x2": alt.X2("end"), "y": y, "y2": alt.Y2("bottom")}
    layers = [
        base.mark_rect(stroke="white", clip=True)
        .encode(**place, color=color, tooltip=_TOOLTIP, strokeWidth=border)
        .add_params(zoom),
        base.transform_filter("datum.label != ''")
        .transform_calculate(middle="(datum.top + datum.bottom) / 2")
        .mark_text(align="left", dx=4, fontSize=10, color="#222222", clip=True, style=ON_MARK)
        .encode(x=x("start"), y=alt.Y("middle:Q"), text="label:N"),
    ]
    if ends:
        rule = alt.Chart(data(ends)).mark_rule(stroke="#222222", strokeWidth=1.5, clip=True)
        layers.append(rule.encode(x=x("end"), y=y, y2=alt.Y2("bottom")))
    words = f"{name}: {_headline(step)}" if name else _headline(step)
    title = panel_title(words, fontWeight="normal")
    return alt.layer(*layers, width=_WIDTH, height=_height(step) * max(1, len(ranks)), title=title)


def _lane_axis(step: OneStep, ranks: Sequence[int]) -> alt.Y:
    """Two labels per rank, its number with what it computes and the exchange below; one where ranks are low."""
    labels: dict[float, str] = {}
    for index, rank in enumerate(ranks):
        if _height(step) < _TWO_LABELS:
            labels[index * _RANK + (_COMPUTE_LANE[0] + _MARK[1]) // 2] = f"rank {rank}"
            continue
        compute = "compute" if step.compute_known else "compute not told"
        labels[index * _RANK + sum(_COMPUTE_LANE) // 2] = f"rank {rank}: {compute}"
        labels[index * _RANK + sum(_EXCHANGE_LANE) // 2] = "exchange"
    return lane_axis(labels, _RANK * max(1, len(ranks)))


def _rows(step: OneStep, ranks: Sequence[int], longest: float) -> Rows:
    """Bars in their lanes; what goes on at the same time shares the lane's height."""
    rows: Rows = []
    by_rank: dict[int, list[Span]] = {rank: [] for rank in ranks}
    for span in sorted(step.spans, key=lambda span: span.start_s):
        by_rank[span.rank].append(span)
    for index, rank in enumerate(ranks):
        for lane, exchanging in ((_COMPUTE_LANE, False), (_EXCHANGE_LANE, True)):
            spans = [span for span in by_rank[rank] if (span.activity in EXCHANGE) == exchanging]
            lanes = tracks(spans, apart="negotiation")
            thick = (lane[1] - lane[0]) / (max(lanes, default=0) + 1)
            named = thick * _height(step) / _RANK >= _LINE
            for span, track in zip(spans, lanes, strict=True):
                top = index * _RANK + lane[0] + track * thick
                rows.append({**_fields(span, longest, named), "top": top, "bottom": top + thick})
        for start, end in coarse(step.exposed[rank], longest / (4 * _WIDTH)):
            mark = Span(rank=rank, activity="communication", start_s=start, end_s=end)
            place = {"top": index * _RANK + _MARK[0], "bottom": index * _RANK + _MARK[1]}
            rows.append({**_fields(mark, longest, False), **place, "activity": _EXPOSED})
    return rows


def _fields(span: Span, longest: float, named: bool) -> dict[str, Any]:
    wide = _WIDTH * (span.end_s - span.start_s) / longest if longest else 0.0
    room = wide if named else 0.0
    names = (plain(span.name, 40), span.activity)
    return {
        "rank": span.rank,
        "activity": span.activity,
        "name": plain(span.name, 120) or "-",
        "start": span.start_s,
        "end": span.end_s,
        "took": format_seconds(span.end_s - span.start_s),
        "began": format_seconds(span.start_s),
        "size": format_bytes(span.bytes) if span.bytes else "-",
        "sliver": bool(wide < _SLIVER),
        "label": next((name for name in names if name and _LETTER * len(name) + 8 <= room), ""),
    }
