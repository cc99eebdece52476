"""Writes spans of all ranks on one clock as a trace that Perfetto and chrome://tracing open."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scalescope.records.explanation import Clock
from scalescope.records.timeline import Activity, Span
from scalescope.traces.alignment import on_common_clock

_LANES: dict[Activity, str] = {
    "input": "input",
    "forward": "compute",
    "backward": "compute",
    "copy": "compute",
    "optimizer": "compute",
    "communication": "communication",
    "negotiation": "negotiation",
    "other": "other",
}
# Tells our exports from a user's own traces.
HEAD = b'{"displayTimeUnit":"ms","otherData":{"writer":"scalescope explain"},"traceEvents":[\n'
_LANES_APART = 100  # Numbers that each kind of lane has for spans that overlap


def export(spans: Iterable[Span], path: Path, clocks: Sequence[Clock] = ()) -> int:
    """A process per rank, a thread per lane; `clocks` bring ranks onto the first one's. Returns the number of spans."""
    by_rank = {clock.rank: clock for clock in clocks}
    moved = list[Span]()
    for span in spans:
        if clock := by_rank.get(span.rank):
            start_s, end_s = on_common_clock(span.start_s, clock), on_common_clock(span.end_s, clock)
            span = msgspec.structs.replace(span, start_s=start_s, end_s=end_s)
        moved.append(span)
    ordered = sorted(moved, key=lambda span: span.start_s)
    zero = ordered[0].start_s if ordered else 0.0
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        file.write(HEAD)
        for number, event in enumerate(_events(ordered, zero)):
            file.write((b",\n" if number else b"") + encoder.encode(event))
        file.write(b"\n]}\n")
    return len(ordered)


def _events(spans: list[Span], zero: float) -> Iterator[dict[str, Any]]:
    """Names of processes and threads before their first span."""
    busy_until: dict[tuple[int, int], float] = {}
    for rank in sorted({span.rank for span in spans}):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    kinds = list(dict.fromkeys(_LANES.values()))
    for span in spans:
        kind = _LANES[span.activity]
        first = _LANES_APART * kinds.index(kind)
        lane = next(
            (
                lane
                for lane in range(first, first + _LANES_APART)
                if busy_until.get((span.rank, lane), span.start_s) <= span.start_s
            ),
            first + _LANES_APART - 1,
        )
        if (span.rank, lane) not in busy_until:
            name = kind if lane == first else f"{kind} {lane - first + 1}"
            yield {"ph": "M", "name": "thread_name", "pid": span.rank, "tid": lane, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": span.rank, "tid": lane, "args": {"sort_index": lane}}
        busy_until[span.rank, lane] = span.end_s
        yield {
            "ph": "X",
            "cat": span.activity,
            "name": span.name or span.activity,
            "pid": span.rank,
            "tid": lane,
            "ts": round((span.start_s - zero) * 1e6, 3),
            "dur": round((span.end_s - span.start_s) * 1e6, 3),
            **({"args": {"bytes": span.bytes}} if span.bytes else {}),
        }
