"""What of a timeline is drawn as one step: which step, which ranks, and as many bars as can be told apart."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from scalescope.intervals import Intervals
from scalescope.records.timeline import BUSY, EXCHANGE, Activity, Span, Step, Timeline, exposed, moments
from scalescope.text import plural

_MOST_RANKS, _MOST_SPANS, _MOST_AT_ONCE = 32, 4000, 4
_PIXELS = 720  # Bars that are closer than one of them are drawn as one

Interval = tuple[float, float]


class OneStep(NamedTuple):
    """A step of some ranks; seconds after it began."""

    spans: list[Span]
    ends: dict[int, float]  # When each rank's step ended
    exchange_s: dict[int, float]  # How long each rank exchanged
    exposed: dict[int, list[Interval]]  # When each rank exchanged and nothing hid it
    compute_known: bool
    notes: list[str]

    @property
    def seconds(self) -> float:
        """Until the last rank was done."""
        return max([*self.ends.values(), *(span.end_s for span in self.spans)], default=0.0)


def one_step(timeline: Timeline, exposed_s: float | None = None) -> OneStep:
    """The step of median length, with as many ranks and activities as can be drawn; the slowest rank among them.

    `exposed_s`: where the timeline holds no compute, this much of the exchange at the step's end is exposed.
    """
    steps = _median_step(timeline.steps)
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
    known = any(span.activity in ("forward", "backward") for span in spans)  # copies are seen by a bare timeline, too
    by_rank = {rank: [span for span in spans if span.rank == rank] for rank in sorted(drawn)}
    exchange = {rank: moments(here, EXCHANGE) for rank, here in by_rank.items()}
    lost = {
        rank: _pairs(exposed(exchange[rank], moments(here, BUSY)))
        if known
        else _last(_pairs(exchange[rank]), exposed_s or 0.0)
        for rank, here in by_rank.items()
    }
    length = max((span.end_s for span in spans), default=0.0)
    fewer = [bar for here in by_rank.values() for bar in _fewer(here, length / _PIXELS)]
    longest = sorted(fewer, key=lambda span: span.start_s - span.end_s)[:_MOST_SPANS]
    notes = [f"{len(drawn)} of {plural(len(ranks), 'rank')} are drawn"] if len(drawn) < len(ranks) else []
    if len(longest) < len(fewer):
        notes.append(f"the {_MOST_SPANS:,} longest of {len(fewer):,} activities are drawn")
    ends = {rank: step.end_s - begin for rank, step in steps.items() if rank in drawn}
    return OneStep(longest, ends, {rank: each.length for rank, each in exchange.items()}, lost, known, notes)


def _pairs(intervals: Intervals) -> list[Interval]:
    return list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True))


def coarse(intervals: Iterable[Interval], gap: float) -> list[Interval]:
    """With gaps that cannot be seen closed."""
    found: list[Interval] = []
    for start, end in intervals:
        if found and start - found[-1][1] < gap:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def tracks(spans: Sequence[Span], apart: Activity) -> list[int]:
    """For spans in order of their start: the first track that is free then; one activity keeps above all others."""
    free: dict[bool, list[float]] = {True: [], False: []}
    found = []
    for span in spans:
        ends = free[span.activity == apart]
        track = next((index for index, end in enumerate(ends) if end <= span.start_s + 1e-9), len(ends))
        ends[track : track + 1] = [span.end_s]
        found.append(track)
    above = len(free[True])
    return [track if span.activity == apart else above + track for span, track in zip(spans, found, strict=True)]


def _median_step(steps: Sequence[Step]) -> dict[int, Step]:
    """One step by rank: that in which the first rank takes its median time."""
    by_rank: dict[int, list[Step]] = {}
    for step in sorted(steps, key=lambda step: step.start_s):
        by_rank.setdefault(step.rank, []).append(step)
    first = by_rank[min(by_rank)] if by_rank else []
    lengths = sorted(range(len(first)), key=lambda index: first[index].end_s - first[index].start_s)
    chosen = lengths[(len(lengths) - 1) // 2] if lengths else 0
    return {rank: own[chosen] for rank, own in by_rank.items() if chosen < len(own)}


def _last(intervals: Sequence[Interval], seconds: float) -> list[Interval]:
    """The last `seconds` of them."""
    left: list[Interval] = []
    for start, end in reversed(intervals):
        if seconds <= 0:
            break
        left.insert(0, (max(start, end - seconds), end))
        seconds -= end - start
    return left


def _fewer(spans: Sequence[Span], pixel: float) -> list[Span]:
    """The bars of one rank: slivers of one activity that touch, and what would be many at once, are joined."""
    found: list[Span] = []
    for exchanging in (False, True):
        lane = sorted((span for span in spans if (span.activity in EXCHANGE) == exchanging), key=lambda s: s.start_s)
        crowded = _at_once(lane) > _MOST_AT_ONCE
        for activity in dict.fromkeys(span.activity for span in lane):
            group: list[Span] = []
            until = 0.0
            for span in (span for span in lane if span.activity == activity):
                sliver = span.end_s - span.start_s < pixel and (not group or until - group[0].start_s < pixel)
                if group and not (span.start_s < until if crowded else sliver and span.start_s - until < pixel):
                    found.append(_joined(group))
                    group = []
                group.append(span)
                until = max(until, span.end_s) if len(group) > 1 else span.end_s
            if group:
                found.append(_joined(group))
    return found


def _at_once(spans: Sequence[Span]) -> int:
    """For spans in order of their start: how many go on at the same time at most."""
    going: list[float] = []
    most = 0
    for span in spans:
        while going and going[0] <= span.start_s:
            heappop(going)
        heappush(going, span.end_s)
        most = max(most, len(going))
    return most


def _joined(group: Sequence[Span]) -> Span:
    """One bar for all of them."""
    if len(group) == 1:
        return group[0]
    names = list(dict.fromkeys(span.name for span in group if span.name))
    name = names[0] if len(names) == 1 else f"{len(group):,} together" + (f": {names[0]} ..." if names else "")
    end = max(span.end_s for span in group)
    return msgspec.structs.replace(group[0], end_s=end, name=name, bytes=sum(span.bytes for span in group))
