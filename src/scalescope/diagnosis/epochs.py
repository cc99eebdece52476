"""Epochs of a run's log, laid over its trace: which of them lost time, and to what."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np

from scalescope.diagnosis.material import Material
from scalescope.errors import UsageError
from scalescope.records.explanation import Epoch, Explanation
from scalescope.scaling.logs.lines import read_log
from scalescope.scaling.text_files import printable
from scalescope.timelines.intervals import between
from scalescope.timelines.trace import Trace


def with_epochs(explanation: Explanation, material: Material, log: Path, pattern: str) -> Explanation:
    """The explanation with the epochs that the log tells, counted from the first traced step."""
    told = read_log(log, explanation.world_size or 1, pattern)
    if not told.epochs:
        raise UsageError(f"'{printable(log.name)}' tells no epochs: name their lines with --pattern, or leave it out")
    trace = material.traces[0]
    if not len(trace.starts_s):
        return explanation
    edges = _edges(trace, told.epochs)
    starts, ends = edges[:-1], edges[1:]
    last = float(trace.ends_s[-1])
    covered = np.array([max(min(end, last) - start, 0.0) for start, end in zip(starts, ends, strict=True)])
    shares = {
        name: between(intervals, starts, ends)
        for name, intervals in (("negotiation", trace.negotiation), ("exchange", trace.exchange))
        if intervals is not None
    }
    exposed = trace.parts.exposed
    rows = []
    for at, seconds in enumerate(told.epochs):
        inside = (trace.starts_s >= starts[at]) & (trace.starts_s < ends[at])
        seen = covered[at] > 0
        rows.append(
            Epoch(
                number=at + 1,
                steps=int(inside.sum()),
                seconds=seconds,
                negotiation_share=float(shares["negotiation"][at] / covered[at])
                if seen and "negotiation" in shares
                else None,
                exposed_share=float(exposed[inside].sum() / covered[at]) if seen and exposed is not None else None,
            )
        )
    missed = sum(1 for row in rows if not row.steps)
    notes = explanation.notes
    if missed:
        notes = (*notes, f"{missed} of {len(rows)} epochs of the log lie after the end of the trace")
    return msgspec.structs.replace(explanation, epochs=tuple(rows), notes=notes)


def _edges(trace: Trace, epochs: Sequence[float]) -> list[float]:
    """Where epochs begin and the last one ends: at every n-th step when that fits, else as the times of the log say."""
    count = len(trace.starts_s)
    for steps in (count, count + 1):  # the last step of a timeline may be cut off
        if steps % len(epochs) == 0:
            each = steps // len(epochs)
            return [*map(float, trace.starts_s[::each][: len(epochs)]), float(trace.ends_s[-1])]
    return list(accumulate(epochs, initial=float(trace.starts_s[0])))
