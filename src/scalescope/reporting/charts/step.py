"""One step as lanes: what every rank computes and, below it, what it exchanges; predicted and traced steps alike."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import msgspec

from scalescope.records.timeline import COMPUTE, EXCHANGE, Activity, Span, Step, Timeline
from scalescope.reporting.charts.parts import LOSS_COLOUR, Rows, data, frame
from scalescope.reporting.phrases import shortened
from scalescope.units import format_bytes, format_seconds, plural

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
_MOST_RANKS, _MOST_SPANS = 8, 4000
_LETTER = 6.2
"""Pixels, so that names stand only where they fit."""
_RANK, _COMPUTE_LANE, _EXCHANGE_LANE, _MARK = 100, (8, 46), (50, 84), (86, 92)
"""Height of a rank, and of what is drawn in it."""
_TOOLTIP = [
    alt.Tooltip("rank:Q", title="rank"),
    alt.Tooltip("activity:N", title="activity"),
    alt.Tooltip("name:N", title="name"),
    alt.Tooltip("took:N", title="took"),
    alt.Tooltip("began:N", title="began after"),
    alt.Tooltip("size:N", title="size"),
]

Interval = tuple[float, float]


class _OneStep(NamedTuple):
    """A step of some ranks; seconds after it began."""

    spans: list[Span]
    ends: dict[int, float]
    """When each rank's step ended."""
    exposed: dict[int, list[Interval]]
    notes: list[str]

    @property
    def seconds(self) -> float:
        return max([*self.ends.values(), *(span.end_s for span in self.spans)], default=0.0)


def step_chart(timeline: Timeline, title: str, *lines: str) -> Any:
    """One step with all its ranks."""
    return step_charts({"": timeline}, title, *lines)


def step_charts(timelines: Mapping[str, Timeline], title: str, *lines: str) -> Any:
    """Steps one above the other on the same axis, such as predicted and measured; named by their keys."""
    steps = {name: _one_step(timeline) for name, timeline in timelines.items()}
    longest = max((step.seconds for step in steps.values()), default=0.0)
    there = {span.activity for step in steps.values() for span in step.spans}
    domain: list[str] = [activity for activity in _COLOURS if activity in there]
    colours = [colour for activity, colour in _COLOURS.items() if activity in there]
    if any(any(step.exposed.values()) for step in steps.values()):
        domain, colours = [*domain, _EXPOSED], [*colours, LOSS_COLOUR]
    legend = alt.Legend(title=None, orient="bottom", symbolType="square", columns=9)
    color = alt.Color("activity:N", scale=alt.Scale(domain=domain, range=colours), legend=legend)
    notes = [note for step in steps.values() for note in step.notes]
    return alt.vconcat(
        *(_panel(name, step, longest, color) for name, step in steps.items()),
        spacing=18,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared")),
        **frame(shortened(title, 100), *lines, "; ".join(dict.fromkeys(notes))),
    )


def exposed(spans: Iterable[Span]) -> list[Interval]:
    """When a rank exchanges while it neither computes nor updates parameters."""
    known = list(spans)
    return _without(_merged(known, EXCHANGE), _merged(known, (*COMPUTE, "optimizer")))


def _merged(spans: Iterable[Span], activities: Sequence[Activity]) -> list[Interval]:
    """Times at which at least one of these activities goes on."""
    merged: list[Interval] = []
    for start, end in sorted((span.start_s, span.end_s) for span in spans if span.activity in activities):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _without(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """What of the first is in none of the second; both merged and in order."""
    left = []
    for start, end in intervals:
        for other_start, other_end in others:
            if other_end > start and other_start < end:
                if other_start > start:
                    left.append((start, other_start))
                start = other_end
        if start < end:
            left.append((start, end))
    return left


def _one_step(timeline: Timeline) -> _OneStep:
    """The step of median length, with as many ranks and activities as can be drawn; the slowest rank among them."""
    by_rank: dict[int, list[Step]] = {}
    for step in sorted(timeline.steps, key=lambda step: step.start_s):
        by_rank.setdefault(step.rank, []).append(step)
    first = by_rank[min(by_rank)] if by_rank else []
    lengths = sorted(range(len(first)), key=lambda index: first[index].end_s - first[index].start_s)
    chosen = lengths[(len(lengths) - 1) // 2] if lengths else 0
    steps = {rank: own[chosen] for rank, own in by_rank.items() if chosen < len(own)}
    begin = min([step.start_s for step in steps.values()] or [span.start_s for span in timeline.spans], default=0.0)
    whole = Step(rank=-1, start_s=begin, end_s=max((span.end_s for span in timeline.spans), default=begin))
    ranks = sorted(set(steps) or {span.rank for span in timeline.spans})
    drawn = set(ranks)
    if len(ranks) > _MOST_RANKS:
        slowest = max(steps, key=lambda rank: steps[rank].end_s) if steps else ranks[-1]
        drawn = {*ranks[: _MOST_RANKS - 1], slowest}
    clipped = [
        (span, max(span.start_s, own.start_s), min(span.end_s, own.end_s))
        for span in timeline.spans
        if span.rank in drawn and (own := steps.get(span.rank, whole))
    ]
    spans = [
        msgspec.structs.replace(span, start_s=since - begin, end_s=until - begin)
        for span, since, until in clipped
        if since < until
    ]
    lost = {rank: exposed(span for span in spans if span.rank == rank) for rank in sorted(drawn)}
    longest = sorted(spans, key=lambda span: span.start_s - span.end_s)[:_MOST_SPANS]
    notes = [f"{len(drawn)} of {plural(len(ranks), 'rank')} are drawn"] if len(drawn) < len(ranks) else []
    if len(longest) < len(spans):
        notes.append(f"the {_MOST_SPANS:,} longest of {len(spans):,} activities are drawn")
    return _OneStep(longest, {rank: step.end_s - begin for rank, step in steps.items() if rank in drawn}, lost, notes)


def _headline(step: _OneStep) -> str:
    """The slowest rank in numbers."""
    rank = max(step.ends, key=lambda rank: step.ends[rank], default=min(step.exposed, default=0))
    own = [span for span in step.spans if span.rank == rank]
    shown = sum(end - start for start, end in step.exposed.get(rank, []))
    all_of_it = sum(end - start for start, end in _merged(own, EXCHANGE))
    whole = step.ends.get(rank, step.seconds)
    part = f" ({100 * shown / whole:.0f} %)" if whole else ""
    told = f"{format_seconds(whole)}, of it {format_seconds(shown)}{part} {_EXPOSED}"
    hidden = f"; {format_seconds(all_of_it - shown)} of communication is hidden" if all_of_it > shown else ""
    return told + hidden + (f" (rank {rank}, the slowest)" if len(step.exposed) > 1 else "")


def _panel(name: str, step: _OneStep, longest: float, color: alt.Color) -> Any:
    unit, factor = ("s", 1.0) if longest >= 1 else ("ms", 1e3) if longest >= 1e-3 else ("us", 1e6)
    ranks = sorted(step.exposed)
    scale = alt.Scale(domain=[0, longest * factor or 1.0], nice=False)
    y = _lane_axis(ranks)

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title=f"time in the step, {unit}", scale=scale, axis=alt.Axis(tickCount=8))

    rows = [{**row, **{each: row[each] * factor for each in ("start", "end")}} for row in _rows(step, ranks, longest)]
    ends = [
        {"end": end * factor, "top": ranks.index(rank) * _RANK + 4, "bottom": ranks.index(rank) * _RANK + 94}
        for rank, end in step.ends.items()
    ]
    base = alt.Chart(data(rows))
    place = {"x": x("start"), "x2": alt.X2("end"), "y": y, "y2": alt.Y2("bottom")}
    layers = [
        base.mark_rect(stroke="white", strokeWidth=0.6).encode(**place, color=color, tooltip=_TOOLTIP),
        base.transform_filter("datum.label != ''")
        .transform_calculate(middle="(datum.top + datum.bottom) / 2")
        .mark_text(align="left", dx=4, fontSize=10, color="#222222")
        .encode(x=x("start"), y=alt.Y("middle:Q"), text="label:N"),
    ]
    if ends:
        rule = alt.Chart(data(ends)).mark_rule(stroke="#222222", strokeWidth=1.5)
        layers.append(rule.encode(x=x("end"), y=y, y2=alt.Y2("bottom")))
    words = f"{name}: {_headline(step)}" if name else _headline(step)
    title = alt.TitleParams(words, anchor="start", fontSize=13, fontWeight="normal", offset=6)
    return alt.layer(*layers, width=_WIDTH, height=min(76, 560 // max(1, len(ranks))) * len(ranks) or 76, title=title)


def _lane_axis(ranks: Sequence[int]) -> alt.Y:
    """Two labels per rank: its number with what it computes, and the exchange below."""
    labels = {}
    for index, rank in enumerate(ranks):
        labels[index * _RANK + sum(_COMPUTE_LANE) // 2] = f"rank {rank}: compute"
        labels[index * _RANK + sum(_EXCHANGE_LANE) // 2] = "exchange"
    cases = "".join(f"datum.value == {value} ? '{text}' : " for value, text in labels.items()) + "''"
    axis = alt.Axis(values=list(labels), labelExpr=cases, ticks=False, domain=False, grid=False)
    scale = alt.Scale(domain=[0, _RANK * max(1, len(ranks))], reverse=True, nice=False)
    return alt.Y("top:Q", title=None, scale=scale, axis=axis)


def _rows(step: _OneStep, ranks: Sequence[int], longest: float) -> Rows:
    """Bars in their lanes; what goes on at the same time shares the lane's height."""
    rows: Rows = []
    for index, rank in enumerate(ranks):
        own = sorted((span for span in step.spans if span.rank == rank), key=lambda span: span.start_s)
        for lane, exchanging in ((_COMPUTE_LANE, False), (_EXCHANGE_LANE, True)):
            spans = [span for span in own if (span.activity in EXCHANGE) == exchanging]
            tracks = _tracks(spans)
            thick = (lane[1] - lane[0]) / (max(tracks, default=0) + 1)
            for span, track in zip(spans, tracks, strict=True):
                top = index * _RANK + lane[0] + track * thick
                rows.append({**_fields(span, longest), "top": top, "bottom": top + thick})
        for start, end in step.exposed[rank]:
            mark = Span(rank=rank, activity="communication", start_s=start, end_s=end)
            place = {"top": index * _RANK + _MARK[0], "bottom": index * _RANK + _MARK[1]}
            rows.append({**_fields(mark, longest), **place, "activity": _EXPOSED, "label": ""})
    return rows


def _tracks(spans: Sequence[Span]) -> list[int]:
    """For spans in order of their start: the first track that is free then."""
    free: list[float] = []
    tracks = []
    for span in spans:
        track = next((index for index, end in enumerate(free) if end <= span.start_s + 1e-9), len(free))
        free[track : track + 1] = [span.end_s]
        tracks.append(track)
    return tracks


def _fields(span: Span, longest: float) -> dict[str, Any]:
    room = _WIDTH * (span.end_s - span.start_s) / longest if longest else 0.0
    names = (shortened(span.name, 40), span.activity)
    return {
        "rank": span.rank,
        "activity": span.activity,
        "name": span.name or "-",
        "start": span.start_s,
        "end": span.end_s,
        "took": format_seconds(span.end_s - span.start_s),
        "began": format_seconds(span.start_s),
        "size": format_bytes(span.bytes) if span.bytes else "-",
        "label": next((name for name in names if name and _LETTER * len(name) + 8 <= room), ""),
    }
