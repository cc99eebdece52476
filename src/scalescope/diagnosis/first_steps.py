"""Extra cost of the first steps over later ones, in parts that add up to the whole."""

from collections.abc import Sequence

import numpy as np

from scalescope.intervals import Times, between
from scalescope.records.explanation import FirstSteps
from scalescope.traces.trace import Trace

# What takes longer at first, by the part of the step that it lengthens.
_DATA, _CONNECTIONS, _NEGOTIATION = "cold data", "connection set-up", "first negotiation"
_CALLS = "first calls (algorithm selection, memory)"
_HOST = "host before the GPU has work (kernel loading, compilation, algorithm selection)"
_RANKS, _STATE, _OTHER = "waiting for other ranks", "optimizer state", "other"
_UNKNOWN = "compute and input, which a timeline does not tell"


def first_steps(traces: Sequence[Trace], warmup: int) -> FirstSteps | None:
    """Excess of the steps before steady ones, in the mean over ranks; None where there are none, or none is steady."""
    if not warmup or any(len(trace.parts.step) <= warmup for trace in traces):
        return None
    each = [_excesses(trace, warmup) for trace in traces]
    names = list(dict.fromkeys(name for excesses in each for name in excesses))
    parts = {name: float(np.mean([excesses.get(name, 0.0) for excesses in each])) for name in names}
    return FirstSteps(steps=warmup, excess_s=sum(parts.values()), parts_s=parts)


def _excesses(trace: Trace, warmup: int) -> dict[str, float]:
    """Excess of one rank: every part of its first steps without what steady steps spend on it."""

    def excess(seconds: Times | None) -> float | None:
        return None if seconds is None else float(seconds[:warmup].sum() - warmup * seconds[warmup:].mean())

    parts = trace.parts
    negotiated = None
    if trace.negotiation is not None and parts.exposed is not None:
        negotiated = np.minimum(between(trace.negotiation, trace.starts_s, trace.ends_s), parts.exposed)
        if parts.waiting is not None:
            negotiated = np.minimum(negotiated, parts.exposed - parts.waiting)
    waiting = 0.0 if parts.waiting is None else parts.waiting
    sent = None if parts.exposed is None else parts.exposed - waiting - (0.0 if negotiated is None else negotiated)
    rest = _OTHER if parts.compute is not None and trace.device == "cpu" else _HOST
    found = {
        _DATA: excess(parts.input),
        _CONNECTIONS: excess(sent),
        _NEGOTIATION: excess(negotiated),
        _RANKS: excess(parts.waiting),
        _CALLS: excess(parts.compute),
        _STATE: excess(parts.optimizer),
        _UNKNOWN if parts.compute is None and trace.device == "cpu" else rest: excess(parts.other),
    }
    return {name: seconds for name, seconds in found.items() if seconds is not None}
