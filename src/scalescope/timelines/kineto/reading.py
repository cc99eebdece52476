"""Reads traces of PyTorch's profiler: one file per rank, on CPU or CUDA, over gloo or NCCL."""

from pathlib import Path

import numpy as np

from scalescope.records.explanation import Loss
from scalescope.timelines.event_stream import EventStream
from scalescope.timelines.kineto.activities import account
from scalescope.timelines.kineto.collector import Collector
from scalescope.timelines.kineto.events import Event, facts_of
from scalescope.timelines.kineto.steps import bucket_bytes, collectives_of, steps_of
from scalescope.timelines.trace import Trace


def read(path: Path) -> Trace:
    """Reads as far as the file goes, with memory that does not grow with it."""
    stream, found = EventStream(path, Event), Collector()
    for events in stream:
        found.take(events)
    found.complete()
    facts = facts_of(stream.header + stream.footer, path)
    cut = bool(stream.loss.reason) and not stream.footer.strip()
    on_device = bool(found.device.moments) or (cut and found.calls_device)
    steps = steps_of(found, complete_until_s=_complete_until(found, on_device) if cut else np.inf)
    parts = account(found, steps.starts_s, steps.ends_s, on_device=on_device)
    collectives = collectives_of(found)
    notes = list(steps.notes)
    if on_device and len(found.optimizers) and parts.optimizer is None:
        notes.append("The trace does not say which kernels Optimizer.step launched: they count as compute.")
    if cut:
        notes.append("The file was cut: communication may be missing from the steps that are left.")
    return Trace(
        path=path,
        kind="kineto",
        is_empty=found.zero_us is None,
        rank=facts.rank,
        world_size=facts.world_size,
        backend=facts.backend,
        device="cuda" if on_device else "cpu",
        epoch_s=facts.epoch_s + (found.zero_us or 0.0) * 1e-6 if facts.epoch_s else 0.0,
        steps_from=steps.source,
        starts_s=steps.starts_s,
        ends_s=steps.ends_s,
        parts=parts,
        collectives=collectives,
        exchange=found.exchange.between(),
        compiled=found.compiled,
        bucket_bytes=bucket_bytes(found, collectives, steps),
        loss=_both(stream.loss, found.loss()),
        notes=tuple(notes),
    )


def _complete_until(found: Collector, on_device: bool) -> float:
    """How far a cut file is complete: its events are sorted by thread, and a GPU's come last."""
    threads = [found.last_s.get(lane, -np.inf) for lane in set(found.steps.lanes) | set(found.optimizers.lanes)]
    until = min(threads, default=-np.inf)
    if on_device:
        until = min(until, found.device.last())
    return until


def _both(stream: Loss, events: Loss) -> Loss:
    reasons = [each.reason for each in (stream, events) if each.reason]
    return Loss(events=stream.events + events.events, bytes=stream.bytes, reason="; ".join(reasons))
