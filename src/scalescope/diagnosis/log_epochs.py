"""Epochs of a run's log, brought to its traces: where they begin, and testing, which is part of no step."""

import dataclasses
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
import numpy as np

from scalescope.diagnosis.traces import JobTraces
from scalescope.errors import UsageError
from scalescope.intervals import between
from scalescope.logs.lines import Reading, read_log
from scalescope.records.explanation import Epoch, Explanation
from scalescope.text import plain, plural
from scalescope.traces.trace import Trace

_A_MOMENT_S = 1e-6


def log_of(job: JobTraces, log: Path, pattern: str) -> Reading:
    """The log of the same run.

    Raises:
        UsageError: It tells no epochs.
    """
    (reading,) = read_log(log, max((trace.world_size or 1 for trace in job.traces), default=1), pattern)
    if not reading.epochs:
        raise UsageError(f"'{plain(log.name)}' tells no epochs: name their lines with --pattern, or leave it out")
    return reading


def without_testing(job: JobTraces, reading: Reading) -> JobTraces:
    """The job whose steps end before the testing that the log tells after each epoch.

    A timeline knows the gradients only, so that the last step of an epoch would reach to the first one of the next.
    """
    trace = job.traces[0]
    if not reading.tests or trace.steps_from != "gradients" or not len(trace.starts_s):
        return job
    cut = np.zeros(len(trace.starts_s))
    for edge, seconds in zip(_edges(trace, reading)[1:-1], reading.tests, strict=False):
        last = int(np.searchsorted(trace.starts_s, edge - _A_MOMENT_S)) - 1
        near = range(max(last - 1, 0), min(last + 2, len(cut)))  # times of a log are no exact moments
        at = max(near, key=lambda index: float(trace.parts.step[index]), default=0)
        cut[at] = seconds if trace.parts.step[at] > seconds else 0.0
    if not cut.any():
        return job
    other = np.maximum(trace.parts.other - cut, 0.0)
    left = cut - (trace.parts.other - other)  # of testing, in which ranks exchange what they found
    exposed, waiting = trace.parts.exposed, trace.parts.waiting
    if exposed is not None:
        exposed = np.maximum(exposed - left, 0.0)
        waiting = None if waiting is None else np.minimum(waiting, exposed)
    parts = dataclasses.replace(trace.parts, step=trace.parts.step - cut, other=other, exposed=exposed, waiting=waiting)
    note = f"testing after {plural(int((cut > 0).sum()), 'epoch')}, as the log tells it, is part of no step"
    changed = dataclasses.replace(trace, parts=parts, ends_s=trace.ends_s - cut, notes=(*trace.notes, note))
    return dataclasses.replace(job, traces=(changed, *job.traces[1:]))


def with_epochs(explanation: Explanation, job: JobTraces, reading: Reading) -> Explanation:
    """The explanation with the epochs that the log tells, counted from the first traced step."""
    trace = job.traces[0]
    if not len(trace.starts_s):
        return explanation
    edges, exposed, rows = _edges(trace, reading), trace.parts.exposed, []
    for at, ((start, end), seconds) in enumerate(zip(pairwise(edges), reading.epochs, strict=True)):
        inside = (trace.starts_s >= start) & (trace.starts_s < end)
        covered, negotiation, shown = min(end, float(trace.ends_s[-1])) - start, None, None
        if covered > 0 and trace.negotiation is not None:
            negotiation = float(between(trace.negotiation, start, end) / covered)
        if covered > 0 and exposed is not None:
            shown = float(exposed[inside].sum() / covered)
        rows.append(
            Epoch(
                number=at + 1,
                steps=int(inside.sum()),
                seconds=seconds,
                negotiation_share=negotiation,
                exposed_share=shown,
            )
        )
    missed = sum(1 for row in rows if not row.steps)
    notes = explanation.notes
    if missed:
        notes = (*notes, f"{missed} of {len(rows)} epochs of the log lie after the end of the trace")
    return msgspec.structs.replace(explanation, epochs=tuple(rows), notes=notes)


def _edges(trace: Trace, reading: Reading) -> list[float]:
    """Begins of epochs and the end of the last: at every n-th step when that fits, else as the times of the log say."""
    count, epochs = len(trace.starts_s), reading.epochs
    for steps in (count, count + 1):  # the last step of a timeline may be cut off
        if steps % len(epochs) == 0 and count >= len(epochs):
            each = steps // len(epochs)
            return [*map(float, trace.starts_s[::each][: len(epochs)]), float(trace.ends_s[-1])]
    tests = reading.tests or (0.0,) * len(epochs)
    return list(accumulate(map(sum, zip(epochs, tests, strict=True)), initial=float(trace.starts_s[0])))
