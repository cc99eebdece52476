"""Reads Horovod timelines, plain or damaged: what rank 0 saw, and the spans of one stretch of time for drawing."""

from pathlib import Path

import numpy as np

from scalescope.intervals import NOTHING, Intervals, Times, joined, union
from scalescope.records.timeline import Activity, Span
from scalescope.traces.event_stream import EventStream, halves, is_object
from scalescope.traces.horovod.accounting import Accounting, waiting
from scalescope.traces.horovod.columns import (
    COLLECTIVE,
    COPY_IN,
    COPY_OUT,
    NEGOTIATION,
    Columns,
    Numbers,
    TimelineEvent,
    Vocabulary,
    backend_of,
    device_of,
    groups,
    operation_of,
    ranks,
)
from scalescope.traces.horovod.pairs import NO_ROWS, Pairing, Rows, together
from scalescope.traces.horovod.responses import Responses, message_of, responses
from scalescope.traces.horovod.scan import Scanner, Unusual
from scalescope.traces.marks import RankMarks
from scalescope.traces.trace import Collectives, HeldUp, Parts, Trace

_SMALL = 1 << 16
_SHORT = 200
_NO_STEPS = "no gradient tensors recur in this timeline: there are no steps, and Horovod's figures are for all of it"
MOST_SPANS = 4_000
MOST_ACTIVITIES = 500_000


def recognises(beginning: bytes) -> bool:
    """Recognise a timeline by its beginning: a list of events without threads, or one that has just begun."""
    inside = beginning.removeprefix(b"[").lstrip()
    if beginning.startswith(b"{") and is_object(beginning):
        return False
    if b'"ph"' not in inside:
        return beginning.startswith(b"[") and inside[:1] in (b"{", b"") and len(inside) < _SHORT
    return b'"tid"' not in inside or b"NEGOTIATE_" in inside


class HorovodStream(EventStream[TimelineEvent, Columns]):
    """The columns of a timeline, a chunk at a time; `vocabulary` is complete afterwards."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, TimelineEvent)
        self.vocabulary = Vocabulary()
        self._scanner = Scanner(self.vocabulary)

    def batch_of_piece(self, piece: bytes) -> Columns:
        """Read columns by array operations where possible, otherwise event by event, in parts as small as needed."""
        try:
            return self._scanner.columns(piece)
        except Unusual:
            if len(piece) > _SMALL and (parts := halves(piece)):
                return Columns(*map(np.concatenate, zip(*map(self.batch_of_piece, parts), strict=True)))
            return self.batch_of_events(self.decoded(piece))

    def batch_of_events(self, events: list[TimelineEvent]) -> Columns:
        """Read columns event by event."""
        return self.vocabulary.columns(events)


def read(path: Path, marks: RankMarks | None = None) -> Trace:
    """Read a timeline; files that are cut or damaged are read as far as they go.

    Marks of its ranks are laid next to it afterwards (traces/marks.py).
    """
    stream = HorovodStream(path)
    accounting = Accounting(stream.vocabulary)
    for columns in stream:
        if len(columns.time):
            stream.note_times(float(columns.time.min()), float(columns.time.max()))
        accounting.add(columns)
    accounting.finish()
    found, vocabulary = accounting.found, stream.vocabulary
    if vocabulary.strange:
        stream.lose(vocabulary.strange, 0, "some times are out of range")
    starts, ends = _seconds(found.start), _seconds(found.end)
    exposed_s = _seconds(found.exposed)
    step = ends - starts
    waiting_s = waiting(accounting.steps, step, _seconds(found.negotiated), _seconds(found.ticked))
    name, size, sent, received = (np.concatenate(column) for column in zip(*found.messages, strict=True))
    found.messages.clear()
    order = np.argsort(received, kind="stable")
    operations = np.array([operation_of(each) for each in vocabulary.names] or [""], dtype=object)
    notes = [] if found.start else [_NO_STEPS]
    if accounting.left_out:
        notes.append(f"{accounting.left_out:,} of the messages are counted and not kept one by one")
    held_up = [np.concatenate(column) for column in zip(*found.held_up, strict=True)]
    highest = int(ranks(vocabulary).max(initial=-1))
    return Trace(
        path=path,
        engine="horovod",
        whole_job=True,
        is_empty=not found.exchange or not len(joined(*found.exchange).starts),
        rank=0,
        world_size=highest + 1 if highest >= 0 else None,
        backend=backend_of(vocabulary),
        device=device_of(vocabulary),
        epoch_s=vocabulary.epoch_s,
        steps_from="gradients" if len(starts) else "none",
        starts_s=starts,
        ends_s=ends,
        parts=Parts(step, None, None, exposed_s, None, None, step - exposed_s, np.minimum(waiting_s, exposed_s)),
        collectives=Collectives(operations[name[order]], size[order], sent[order] / 1e6, received[order] / 1e6),
        exchange=_in_seconds(found.exchange),
        negotiation=_in_seconds(found.negotiation),
        horovod=accounting.account_since,
        possibly_hidden=_seconds(found.possibly_hidden),
        negotiated=_seconds(found.negotiated),
        held_up=HeldUp(*held_up) if held_up else None,
        bucket_bytes=accounting.bucket_bytes,
        loss=stream.loss,
        notes=tuple(notes),
        spans=lambda start_s, end_s: _window(stream, start_s, end_s),
    )


def _in_seconds(parts: list[Intervals]) -> Intervals:
    whole = joined(*parts) if parts else NOTHING
    return Intervals(whole.starts / 1e6, whole.ends / 1e6)


def _seconds(parts: list[Times]) -> Times:
    return np.concatenate(parts) / 1e6 if parts else np.zeros(0)


def _window(stream: HorovodStream, start_s: float, end_s: float) -> tuple[Span, ...]:
    """Spans between two moments, one for all tensors of a message; the longest when there are many."""
    pairing = Pairing()
    start, end = start_s * 1e6, end_s * 1e6
    kept: list[Rows] = []
    room = MOST_ACTIVITIES
    for columns in stream.again(start, end, around=1):
        rows = pairing.add(columns)
        kept.append(rows.only(np.flatnonzero((rows.end >= start) & (rows.begin <= end))[:room]))
        room -= len(kept[-1])
        if not room:
            break
    rows, vocabulary = together(kept) if kept else NO_ROWS, stream.vocabulary
    row_groups = groups(vocabulary)[rows.name]
    messages = responses(rows, row_groups, device_of(vocabulary) == "cuda")
    spans = _negotiations(rows.only(row_groups == NEGOTIATION), vocabulary)
    spans += _per_message(rows.in_order(row_groups == COLLECTIVE), messages, vocabulary, "communication")
    copies = rows.in_order((row_groups == COPY_IN) | (row_groups == COPY_OUT))
    spans += _per_message(copies, messages, vocabulary, "copy")
    longest = sorted(spans, key=lambda span: span.start_s - span.end_s)[:MOST_SPANS]
    return tuple(sorted(longest, key=lambda span: (span.start_s, span.end_s)))


def _negotiations(rows: Rows, vocabulary: Vocabulary) -> list[Span]:
    """One span for negotiations of the same kind that overlap."""
    spans = []
    for name in np.unique(rows.name).tolist():
        mine = rows.only(rows.name == name)
        moments = union(mine.begin, mine.end)
        at = np.searchsorted(moments.starts, mine.begin, side="right") - 1
        tensors = np.bincount(np.maximum(at, 0), minlength=len(moments.starts))
        for start, end, count in zip(*(column.tolist() for column in (*moments, tensors)), strict=False):
            spans.append(_span("negotiation", start, end, vocabulary.names[name], count))
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
