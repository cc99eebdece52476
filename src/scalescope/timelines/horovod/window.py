"""The spans of one stretch of time of a Horovod timeline, for drawing."""

from pathlib import Path

import numpy as np

from scalescope.records.timeline import Activity, Span
from scalescope.timelines.horovod.columns import Numbers, Vocabulary
from scalescope.timelines.horovod.names import COLLECTIVE, COPY_IN, COPY_OUT, NEGOTIATION, device_of, groups
from scalescope.timelines.horovod.pairs import NO_ROWS, Pairing, Rows, together
from scalescope.timelines.horovod.responses import Responses, message_of, responses
from scalescope.timelines.horovod.stream import HorovodStream
from scalescope.timelines.intervals import union

MOST_SPANS = 4_000
MOST_ACTIVITIES = 500_000
_LATER = 10.0
"""Seconds after the stretch at which reading ends: threads write a little out of order."""


def window(path: Path, start_s: float, end_s: float) -> tuple[Span, ...]:
    """What happened between two moments, one span for all tensors of a message; the longest when there are many."""
    stream, pairing = HorovodStream(path), Pairing()
    start, end = start_s * 1e6, end_s * 1e6
    kept: list[Rows] = []
    room = MOST_ACTIVITIES
    for columns in stream:
        rows = pairing.add(columns)
        kept.append(rows.only(np.flatnonzero((rows.end >= start) & (rows.begin <= end))[:room]))
        room -= len(kept[-1])
        if not room or (len(columns.time) and columns.time.min() > end + _LATER * 1e6):
            break
    rows = together(kept) if kept else NO_ROWS
    spans = _spans(rows, stream.vocabulary)
    longest = sorted(spans, key=lambda span: span.start_s - span.end_s)[:MOST_SPANS]
    return tuple(sorted(longest, key=lambda span: (span.start_s, span.end_s)))


def _spans(rows: Rows, vocabulary: Vocabulary) -> list[Span]:
    row_groups = groups(vocabulary)[rows.name]
    messages = responses(rows, row_groups, device_of(vocabulary) == "cuda")
    spans = _negotiations(rows.only(row_groups == NEGOTIATION), vocabulary)
    spans += _per_message(rows.in_order(row_groups == COLLECTIVE), messages, vocabulary, "communication")
    copies = rows.in_order((row_groups == COPY_IN) | (row_groups == COPY_OUT))
    return spans + _per_message(copies, messages, vocabulary, "copy")


def _negotiations(rows: Rows, vocabulary: Vocabulary) -> list[Span]:
    """One span for negotiations of the same kind that overlap."""
    spans = []
    for name in np.unique(rows.name).tolist():
        mine = rows.only(rows.name == name)
        moments = union(mine.begin, mine.end)
        tensors = np.bincount(
            np.maximum(np.searchsorted(moments.starts, mine.begin, side="right") - 1, 0), minlength=len(moments.starts)
        )
        for at, (start, end) in enumerate(zip(moments.starts.tolist(), moments.ends.tolist(), strict=True)):
            spans.append(_span("negotiation", start, end, vocabulary.names[name], int(tensors[at])))
    return spans


def _per_message(rows: Rows, messages: Responses, vocabulary: Vocabulary, activity: Activity) -> list[Span]:
    """One span for the same activity of all tensors of a message."""
    if not len(rows):
        return []
    key = message_of(rows, messages.first) * len(vocabulary.names) + rows.name
    order = np.argsort(key, kind="stable")
    rows, key = rows.only(order), key[order]
    first: Numbers = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    begins, ends = np.minimum.reduceat(rows.begin, first), np.maximum.reduceat(rows.end, first)
    tensors = np.diff(np.append(first, len(rows)))
    spans = []
    for at, begin, end, count in zip(first.tolist(), begins.tolist(), ends.tolist(), tensors.tolist(), strict=True):
        message = int(key[at]) // len(vocabulary.names)
        size = int(messages.bytes[message]) if message >= 0 else 0
        spans.append(_span(activity, begin, end, vocabulary.names[rows.name[at]], count, max(0, size)))
    return spans


def _span(activity: Activity, start: float, end: float, name: str, tensors: int, size: int = 0) -> Span:
    shown = name if tensors == 1 else f"{name} of {tensors} tensors"
    return Span(rank=0, activity=activity, start_s=start / 1e6, end_s=end / 1e6, name=shown, bytes=size)
