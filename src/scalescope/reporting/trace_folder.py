"""What is to be said about a traced launch."""

from scalescope.records.trace_folder import TraceFolder
from scalescope.units import format_seconds, plural


def sentence_of_trace(trace: TraceFolder, folder: str) -> str:
    """How much was captured where, and what that cost."""
    what = f"{plural(trace.steps, 'step')} of {plural(len(trace.ranks), 'rank')}"
    return f"Traced {trace.point.label}: {what} in {folder}; {sentence_of_overhead(trace)}."


def sentence_of_overhead(trace: TraceFolder) -> str:
    """What tracing added to a step, or that it cannot be told."""
    overhead = trace.overhead
    if not overhead or not trace.untraced_step_s:
        return "what tracing cost is not known: too few steps were made without it"
    step = f"a step of {format_seconds(trace.untraced_step_s)}"
    span = f"{overhead.low:+.0%} to {overhead.high:+.0%}"
    if overhead.low <= 0:
        return f"what tracing added to {step} is within the noise ({span})"
    return f"tracing added {overhead.value:.0%} to {step} ({span})"
