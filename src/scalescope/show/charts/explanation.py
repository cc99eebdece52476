"""Figures of an explanation: parts of a step by rank, one step as lanes, step times over a run, bandwidths."""

import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

import altair as alt
import msgspec

from scalescope.intervals import Intervals
from scalescope.records.explanation import Explanation
from scalescope.records.timeline import (
    BUSY,
    EXCHANGE,
    EXPOSED,
    HIDDEN,
    PARTS,
    Breakdown,
    Span,
    Step,
    Timeline,
    exposed,
    moments,
    parts_of,
)
from scalescope.show.charts.parts import (
    LOSS_COLOUR,
    Rows,
    data,
    frame,
    named,
    panel_title,
    shared_axis,
)
from scalescope.show.document import Figure
from scalescope.show.explanation import (
    MOST_RANKS,
    engine_words,
    first_steady,
    ranks_in_order,
    step_seconds,
    straggler_words,
)
from scalescope.text import plain, plural
from scalescope.units import format_bytes, format_seconds, format_share, unit_of

_WIDTH = 720
_BELOW = alt.Legend(title=None, orient="bottom", symbolType="square", columns=5, labelLimit=200)


def _tooltip(**titles: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in titles.items()]


def accounting_chart(explanation: Explanation) -> Any:
    """The typical steady step of every rank; None without steps."""
    if explanation.accounting is None:
        return None
    shown = sorted(ranks_in_order(explanation)[:MOST_RANKS], key=lambda account: account.rank)
    late = {explanation.straggler: " (straggler)"}
    bars = {f"rank {account.rank}{late.get(account.rank, '')}": account.parts for account in shown}
    count = len(explanation.per_rank)
    return _accounting(
        bars or {"mean": explanation.accounting},
        f"Where a step goes: {plain(explanation.what, 60)}",
        f"mean over steady steps, {engine_words(explanation)}",
        straggler_words(explanation),
        f"{len(shown)} of {count:,} ranks are drawn" if len(shown) < count else "",
    )


def accounting_over_np(explanations: Sequence[Explanation], names: Sequence[str] = ()) -> Any:
    """The mean step of several jobs, from few ranks to many; None without steps.

    Args:
        explanations: The jobs.
        names: Of their files or folders.
    """
    jobs = [
        (each.world_size or len(each.ranks), each, plain(name, 40), each.accounting)
        for each, name in zip(explanations, names or [""] * len(explanations), strict=True)
        if each.accounting
    ]
    if not jobs:
        return None
    jobs.sort(key=lambda job: (job[0], job[1].engine))
    bars: dict[str, Breakdown] = {}
    for size, each, name, parts in jobs[:MOST_RANKS]:
        label = ", ".join(filter(None, [name, plural(size, "rank"), plain(each.engine, 24)]))
        numbered = (f"{label} #{count}" for count in range(2, len(jobs) + 1))
        bars[next(free for free in (label, *numbered) if free not in bars)] = parts
    models = dict.fromkeys(plain(each.what, 40) for _, each, *_ in jobs)
    return _accounting(bars, f"Where a step goes over ranks: {', '.join(models)}", "mean over steady steps and ranks")


def _accounting(bars: Mapping[str, Breakdown], title: str, *lines: str) -> Any:
    """Bars of parts one after the other, by their labels; a thin one below is the communication that they hide."""
    unit, factor = unit_of(max(step.step_s for step in bars.values()))
    shown = parts_of(list(bars.values()))
    labelled = {f"{name}: {format_seconds(step.step_s)}": step for name, step in bars.items()}
    rows: Rows = []
    for label, step in labelled.items():
        parts = [(part.name, part.seconds(step) or 0.0) for part in shown]
        starts = accumulate((seconds for _, seconds in parts), initial=0.0)
        placed = [(name, start, seconds) for (name, seconds), start in zip(parts, starts, strict=False)]
        rows += [
            {
                "rank": label,
                "part": name,
                "start": factor * start,
                "end": factor * (start + seconds),
                "took": format_seconds(seconds),
                "percent": f"{100 * seconds / step.step_s:.1f} %",
                "below": name == HIDDEN.name,
            }
            for name, start, seconds in [*placed, (HIDDEN.name, 0.0, step.hidden_s)]
            if seconds
        ]
    there = {row["part"] for row in rows}
    x = alt.X("start:Q", title=f"{unit} of a step", axis=alt.Axis(grid=False))
    axis = alt.Axis(title=None, labelLimit=320, ticks=False, domain=False)
    y = alt.Y("rank:N", scale=alt.Scale(domain=list(labelled)), axis=axis)
    color = named("part", {part.name: part.colour for part in (*shown, HIDDEN) if part.name in there}, _BELOW)
    tooltip = _tooltip(rank="step of", part="part", took="time", percent="of the step")
    absent = [part.name for part in PARTS if all(part.seconds(step) is None for step in bars.values())]
    note = f"not told by this source, and in other: {', '.join(absent)}" if absent else ""
    base = alt.Chart(data(rows)).encode(x=x, x2=alt.X2("end"), y=y, color=color, tooltip=tooltip)
    return alt.layer(
        base.mark_bar(size=16, stroke="white", strokeWidth=0.6).transform_filter("!datum.below"),
        base.mark_bar(size=4, yOffset=11).transform_filter("datum.below"),
        width=_WIDTH,
        height=alt.Step(28),
        **frame(title, *lines, note),
    )


_OF_PARTS = {part.key: part.colour for part in PARTS}
_ACTIVITIES = {
    "input": _OF_PARTS["input"],
    "forward": "#8fc7ea",
    "backward": _OF_PARTS["compute"],
    "copy": "#cc79a7",
    "optimizer": _OF_PARTS["optimizer"],
    "communication": HIDDEN.colour,
    "negotiation": "#f3e488",
    "other": _OF_PARTS["other"],
}
_MOST_LANES, _MOST_SPANS, _MOST_AT_ONCE = 32, 4000, 4  # Ranks, bars in all, and bars one below the other
# Of a rank's height: what it computes, what it exchanges, what of that is exposed.
_COMPUTE, _EXCHANGE, _LOST = (0.06, 0.46), (0.5, 0.82), (0.85, 0.93)

Interval = tuple[float, float]


class OneStep(NamedTuple):
    """A step of some ranks; seconds after it began."""

    spans: list[Span]
    ends: dict[int, float]  # When each rank's step ended
    exchange_s: dict[int, float]  # How long each rank exchanged
    exposed: dict[int, list[Interval]]  # When each rank exchanged and nothing hid it; of a bare timeline not known
    compute_known: bool
    notes: list[str]

    @property
    def seconds(self) -> float:
        """Until the last rank was done."""
        return max([*self.ends.values(), *(span.end_s for span in self.spans)], default=0.0)


def step_chart(explanation: Explanation) -> Any:
    """The representative step, with the predicted one above it where there is one; None without one."""
    shown, predicted, late = explanation.shown_step, explanation.predicted_step, explanation.straggler
    if shown is None or not shown.spans:
        return None
    index = explanation.shown_index
    waited = "" if late is None else f"; rank {late} is the straggler: the others wait for it"
    return timelines_chart(
        {"": shown} if predicted is None else {"predicted": predicted, "measured": shown},
        f"One step: {plain(explanation.what, 60)}",
        "" if index is None else f"step {index:,}, a representative one{waited}",
    )


def timelines_chart(timelines: Mapping[str, Timeline], title: str, *lines: str) -> Any:
    """Steps one above the other on the same axis, such as predicted and measured; named by their keys."""
    steps = {name: one_step(timeline) for name, timeline in timelines.items()}
    longest = max((step.seconds for step in steps.values()), default=0.0)
    there = {span.activity for step in steps.values() for span in step.spans}
    colours: dict[str, str] = {activity: colour for activity, colour in _ACTIVITIES.items() if activity in there}
    if any(any(step.exposed.values()) for step in steps.values()):
        colours[EXPOSED.name] = EXPOSED.colour
    color = named("activity", colours, _BELOW)
    notes = dict.fromkeys(note for step in steps.values() for note in step.notes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Automatically deduplicated selection")  # panels zoom together
        return alt.vconcat(
            *(_lanes(name, step, longest, color) for name, step in steps.items()),
            spacing=18,
            resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared")),
            **frame(plain(title, 100), *lines, "; ".join(["of every rank: compute above, exchange below", *notes])),
        )


def _lanes(name: str, step: OneStep, longest: float, color: alt.Color) -> Any:
    """One step: two lanes for each rank, and a mark below what is exposed."""
    unit, factor = unit_of(longest)
    ranks = sorted(step.exposed)
    rows: Rows = []

    def add(span: Span, activity: str, top: float, bottom: float) -> None:
        rows.append(
            {
                "rank": span.rank,
                "activity": activity,
                "name": plain(span.name, 120) or "-",
                "start": factor * span.start_s,
                "end": factor * span.end_s,
                "took": format_seconds(span.end_s - span.start_s),
                "began": format_seconds(span.start_s),
                "size": format_bytes(span.bytes) if span.bytes else "-",
                "top": top,
                "bottom": bottom,
            }
        )

    for at, rank in enumerate(ranks):
        own = sorted((span for span in step.spans if span.rank == rank), key=lambda span: span.start_s)
        for (top, bottom), exchanging in ((_COMPUTE, False), (_EXCHANGE, True)):
            spans = [span for span in own if (span.activity in EXCHANGE) == exchanging]
            tracks = _tracks(spans)
            thick = (bottom - top) / (max(tracks, default=0) + 1)
            for span, track in zip(spans, tracks, strict=True):
                add(span, span.activity, at + top + track * thick, at + top + (track + 1) * thick)
        lost = [
            Span(rank=rank, activity="communication", start_s=start, end_s=end) for start, end in step.exposed[rank]
        ]
        for span in _joined(lost, longest / _WIDTH):
            add(span, EXPOSED.name, at + _LOST[0], at + _LOST[1])
    ends = [
        {"end": factor * step.ends[rank], "top": at, "bottom": at + 1}
        for at, rank in enumerate(ranks)
        if rank in step.ends
    ]
    scale = alt.Scale(domain=[0, longest * factor or 1.0], nice=False)
    x = shared_axis(alt.X, f"time in the step, {unit}", scale, alt.Axis(tickCount=8))
    names = "".join(f"abs(datum.value - {at + 0.5}) < 0.01 ? 'rank {rank}' : " for at, rank in enumerate(ranks))
    axis = alt.Axis(
        values=[at + 0.5 for at in range(len(ranks))],
        tickCount=len(ranks),
        labelExpr=f"{names}''",
        labelOverlap=False,
        ticks=False,
        domain=False,
        grid=False,
    )
    y = alt.Y("top:Q", title=None, axis=axis, scale=alt.Scale(domain=[0, max(1, len(ranks))], reverse=True, nice=False))
    tooltip = _tooltip(rank="rank", activity="activity", name="name", took="took", began="began after", size="size")
    # Borders would hide the bars that are narrower than they.
    border = alt.condition(f"datum.end - datum.start < {longest * factor / _WIDTH * 3}", alt.value(0), alt.value(0.6))
    # A bare wheel scrolls the page
    zoom = alt.selection_interval(name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.ctrlKey]")
    bars = alt.Chart(data(rows)).mark_rect(stroke="white", clip=True).add_params(zoom)
    rule = alt.Chart(data(ends)).mark_rule(stroke="#222222", strokeWidth=1.5, clip=True)
    return alt.layer(
        bars.encode(
            x=x("start"), x2=alt.X2("end"), y=y, y2=alt.Y2("bottom"), color=color, tooltip=tooltip, strokeWidth=border
        ),
        rule.encode(x=x("end"), y=y, y2=alt.Y2("bottom")),
        width=_WIDTH,
        height=max(30, min(76, 560 // max(1, len(ranks)))) * max(1, len(ranks)),
        title=panel_title(f"{name}: {_headline(step)}" if name else _headline(step), fontWeight="normal"),
    )


def _headline(step: OneStep) -> str:
    """The rank that ends last in numbers."""
    rank = max(step.ends, key=lambda rank: step.ends[rank], default=min(step.exposed, default=0))
    whole, exchange = step.ends.get(rank, step.seconds), step.exchange_s.get(rank, 0.0)
    told = f"{format_seconds(whole)}, {format_seconds(exchange)} of communication"
    if step.compute_known and exchange:
        lost = sum(end - start for start, end in step.exposed[rank])
        told = f"{format_seconds(whole)}, of it {format_seconds(lost)} ({format_share(lost / whole)}) {EXPOSED.name}"
        if exchange - lost > 1e-9:
            told += f"; {format_seconds(exchange - lost)} of communication is hidden"
    return told + (f" (rank {rank})" if len(step.exposed) > 1 else "")


def one_step(timeline: Timeline) -> OneStep:
    """The step of a timeline, with as many ranks and activities as can be drawn; the slowest rank among them."""
    steps = {step.rank: step for step in timeline.steps}
    begin = min([step.start_s for step in steps.values()] or [span.start_s for span in timeline.spans], default=0.0)
    whole = Step(rank=-1, start_s=begin, end_s=max((span.end_s for span in timeline.spans), default=begin))
    ranks = sorted(set(steps) or {span.rank for span in timeline.spans})
    drawn = set(ranks)
    if len(ranks) > _MOST_LANES:
        slowest = max(steps, key=lambda rank: steps[rank].end_s) if steps else ranks[-1]
        drawn = {*ranks[: _MOST_LANES - 1], slowest}
    by_rank: dict[int, list[Span]] = {rank: [] for rank in sorted(drawn)}
    for span in sorted(timeline.spans, key=lambda span: span.start_s):
        own = steps.get(span.rank, whole)
        since, until = max(span.start_s, own.start_s), min(span.end_s, own.end_s)
        if span.rank in drawn and since < until:
            by_rank[span.rank].append(msgspec.structs.replace(span, start_s=since - begin, end_s=until - begin))
    # Copies are seen by a bare timeline, too.
    known = any(span.activity in ("forward", "backward") for here in by_rank.values() for span in here)
    exchange = {rank: moments(here, EXCHANGE) for rank, here in by_rank.items()}
    lost = {
        rank: _pairs(exposed(exchange[rank], moments(here, BUSY))) if known else [] for rank, here in by_rank.items()
    }
    length = max((span.end_s for here in by_rank.values() for span in here), default=0.0)
    fewer = [
        bar
        for here in by_rank.values()
        for exchanging in (False, True)
        for bar in _joined([span for span in here if (span.activity in EXCHANGE) == exchanging], length / _WIDTH)
    ]
    longest = sorted(fewer, key=lambda span: span.start_s - span.end_s)[:_MOST_SPANS]
    notes = [f"{len(drawn)} of {plural(len(ranks), 'rank')} are drawn"] if len(drawn) < len(ranks) else []
    if len(longest) < len(fewer):
        notes.append(f"the {_MOST_SPANS:,} longest of {len(fewer):,} activities are drawn")
    ends = {rank: step.end_s - begin for rank, step in steps.items() if rank in drawn}
    return OneStep(longest, ends, {rank: each.length for rank, each in exchange.items()}, lost, known, notes)


def _pairs(intervals: Intervals) -> list[Interval]:
    return list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True))


def _joined(lane: Sequence[Span], pixel: float) -> list[Span]:
    """Fewer bars of one lane: those of one activity within a pixel, or which overlap where there are too many."""
    changes = sorted([(span.start_s, 1) for span in lane] + [(span.end_s, -1) for span in lane])
    crowded = max(accumulate(change for _, change in changes), default=0) > _MOST_AT_ONCE
    groups: list[list[Span]] = []
    for activity in dict.fromkeys(span.activity for span in lane):
        until = 0.0
        group: list[Span] = []
        for span in (span for span in lane if span.activity == activity):
            if not group or not (span.start_s < until if crowded else span.end_s - group[0].start_s < pixel):
                groups.append(group := [])
            group.append(span)
            until = max(until, span.end_s)
    found = []
    for group in groups:
        names = list(dict.fromkeys(span.name for span in group if span.name))
        name = f"{len(group):,} together: {names[0]} ..." if len(names) > 1 else group[0].name
        end_s, size = max(span.end_s for span in group), sum(span.bytes for span in group)
        found.append(msgspec.structs.replace(group[0], end_s=end_s, name=name, bytes=size))
    return found


def _tracks(spans: Sequence[Span]) -> list[int]:
    """For spans in order of their start: the first track that is free then."""
    free: list[float] = []
    found = []
    for span in spans:
        track = next((index for index, end in enumerate(free) if end <= span.start_s + 1e-9), len(free))
        free[track : track + 1] = [span.end_s]
        found.append(track)
    return found


_MOST_PLACES = 600  # Steps that are drawn one by one; more of them share a place
_MOST_CHANGES = 150
_FAR = 4.0  # The axis ends at this many median steps: longer ones would squeeze all others
_LINE, _BAND = "#0072b2", "#9fb8c9"


def step_times_chart(explanation: Explanation) -> Any:
    """Steps as a line, from the fastest rank to the slowest as a band, with warm-up and changes.

    None with fewer than two steps.
    """
    steps, steady = step_seconds(explanation), first_steady(explanation)
    if len(steps) < 2:
        return None
    of_ranks: dict[int, list[float]] = {}
    for step in explanation.steps:
        of_ranks.setdefault(step.index, []).append(step.parts.step_s)
    indices, together = list(steps), -(-len(steps) // _MOST_PLACES)
    usual = [index for index in indices if index >= steady] or indices
    longest = max(max(of_ranks[index]) for index in usual)
    limit_s = 1.06 * min(longest, max(_FAR * median(steps[index] for index in usual), 1e-9))
    unit, factor = unit_of(limit_s)
    rows: Rows = []
    for at in range(0, len(indices), together):
        place = indices[at : at + together]
        low, high = (choose(choose(of_ranks[index]) for index in place) for choose in (min, max))
        middle = median(steps[index] for index in place)
        rows.append(
            {
                "step": (place[0] + place[-1]) / 2,
                "seconds": factor * middle,
                "bottom": factor * low,
                "top": factor * high,
                "took": format_seconds(middle),
                "range": f"{format_seconds(low)} to {format_seconds(high)}",
            }
        )
    lines: Rows = [
        {
            "step": change.step - 0.5,
            "what": f"{format_seconds(change.before_s)} to {format_seconds(change.after_s)}",
        }
        for change in explanation.changes[:_MOST_CHANGES]
    ]
    warmup = [{"step": indices[0] - 0.5, "end": min(steady, indices[-1] + 1) - 0.5}] if explanation.warmup_steps else []
    room = 0.01 * (indices[-1] - indices[0])
    of_steps = alt.Scale(domain=[indices[0] - room, indices[-1] + room], nice=False, zero=False)
    ticks = alt.Axis(format=",d", grid=False, tickCount=10, tickMinStep=1, labelOverlap="greedy")
    x = alt.X("step:Q", title="step", scale=of_steps, axis=ticks)
    of_times = alt.Scale(domain=[0, factor * limit_s], nice=False)
    y = shared_axis(alt.Y, f"step time, {unit}", of_times, alt.Axis(format=",~r"))
    tooltip = [alt.Tooltip("step:Q"), *_tooltip(took="step time", range="of all ranks")]
    base = alt.Chart(data(rows)).encode(x=x)
    field = alt.Chart(data(warmup)).mark_rect(color="#cccccc", opacity=0.5, clip=True)
    rules = alt.Chart(data(lines)).mark_rule(stroke=LOSS_COLOUR, strokeWidth=1.4, strokeDash=[4, 3])
    each = f", median of {together} steps each" if together > 1 else ""
    return alt.layer(
        field.encode(x=x, x2=alt.X2("end")),
        base.mark_area(color=_BAND, opacity=0.55, clip=True).encode(y=y("bottom"), y2=alt.Y2("top")),
        base.mark_line(color=_LINE, strokeWidth=1.3, clip=True).encode(y=y("seconds")),
        base.mark_point(color=_LINE, filled=True, opacity=1, clip=True, size=8).encode(y=y("seconds"), tooltip=tooltip),
        rules.encode(x=x, tooltip=_tooltip(what="from here on")),
        width=_WIDTH,
        height=260,
        **frame(
            f"Step time over the run: {plain(explanation.what, 60)}",
            f"blue: mean over ranks{each}; band: from the fastest to the slowest",
            "grey: warm-up; orange: a lasting change; longer steps end above the axis",
        ),
    )


CHARTS = (
    Figure(
        "step",
        "step",
        "One step of every rank: compute above, exchange below. Red-orange marks exposed communication, in which "
        "nothing is computed.",
        step_chart,
        zooms=True,
    ),
    Figure(
        "accounting",
        "accounting",
        "Where a step goes on every rank; the longest part is the first to work on.",
        accounting_chart,
        leads=True,
    ),
    Figure(
        "step_times",
        "over_time",
        "Every step in its order: look for a slow start, sudden changes and slow steps that come back.",
        step_times_chart,
    ),
    Figure(
        "accounting_over_np",
        "over_np",
        "The mean step of every traced launch: which part grows with the ranks?",
        accounting_over_np,
    ),
    Figure(
        "accounting_compared",
        "compared",
        "The mean step of each result, in one accounting: the part that differs is the reason.",
        accounting_over_np,
    ),
)
