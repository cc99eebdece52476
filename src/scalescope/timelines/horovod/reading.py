"""Reads Horovod timelines: what rank 0 saw."""

from pathlib import Path

import numpy as np

from scalescope.timelines.breakdown import Parts
from scalescope.timelines.horovod.accounting import Accounting
from scalescope.timelines.horovod.columns import Vocabulary
from scalescope.timelines.horovod.names import backend_of, device_of, operation_of, ranks
from scalescope.timelines.horovod.responses import Message
from scalescope.timelines.horovod.stream import HorovodStream
from scalescope.timelines.intervals import NOTHING, Intervals, Times, joined
from scalescope.timelines.trace import Collectives, HeldUp, Trace

_NO_STEPS = "no gradient tensors recur in this timeline: there are no steps, and Horovod's figures are for all of it"


def read(path: Path) -> Trace:
    """Everything that a timeline tells; files that are cut or damaged are read as far as they go."""
    stream = HorovodStream(path)
    accounting = Accounting(stream.vocabulary)
    for columns in stream:
        accounting.add(columns)
    accounting.finish()
    found, vocabulary = accounting.found, stream.vocabulary
    starts, ends = _seconds(found.start), _seconds(found.end)
    exposed = _seconds(found.exposed)
    step = ends - starts
    sums = accounting.steady if accounting.steady.steps else accounting.whole
    highest = int(ranks(vocabulary).max(initial=-1))
    return Trace(
        path=path,
        kind="horovod",
        is_empty=not found.exchange or not len(joined(*found.exchange).starts),
        rank=0,
        world_size=highest + 1 if highest >= 0 else None,
        backend=backend_of(vocabulary),
        device=device_of(vocabulary),
        epoch_s=vocabulary.epoch_s,
        steps_from="gradients" if len(starts) else "none",
        starts_s=starts,
        ends_s=ends,
        parts=Parts(step, None, None, exposed, None, None, step - exposed),
        collectives=_collectives(found.messages, vocabulary),
        exchange=_in_seconds(found.exchange),
        negotiation=_in_seconds(found.negotiation),
        horovod=sums.account(
            vocabulary,
            accounting.last_rank,
            accounting.first_negotiation,
            accounting.tensors.accounts(vocabulary),
        ),
        possibly_hidden=_seconds(found.possibly_hidden),
        waiting=_seconds(found.waiting),
        held_up=HeldUp(*(np.concatenate(column) for column in zip(*found.held_up, strict=True)))
        if found.held_up
        else None,
        bucket_bytes=accounting.bucket_bytes,
        loss=stream.loss,
        notes=_notes(accounting),
    )


def _in_seconds(parts: list[Intervals]) -> Intervals:
    whole = joined(*parts) if parts else NOTHING
    return Intervals(whole.starts / 1e6, whole.ends / 1e6)


def _seconds(parts: list[Times]) -> Times:
    return np.concatenate(parts) / 1e6 if parts else np.zeros(0)


def _collectives(messages: list[Message], vocabulary: Vocabulary) -> Collectives:
    """In the order in which they ended."""
    name, size, start, end = (np.concatenate(column) for column in zip(*messages, strict=True))
    messages.clear()
    order = np.argsort(end, kind="stable")
    operations = np.array([operation_of(each) for each in vocabulary.names] or [""], dtype=object)
    return Collectives(operations[name[order]], size[order], start[order] / 1e6, end[order] / 1e6)


def _notes(accounting: Accounting) -> tuple[str, ...]:
    notes = [] if accounting.found.start else [_NO_STEPS]
    if accounting.left_out:
        notes.append(f"{accounting.left_out:,} of the messages are counted and not kept one by one")
    return tuple(notes)
