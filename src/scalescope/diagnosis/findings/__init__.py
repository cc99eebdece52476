"""Findings: plain functions in a list; each looks for one thing that costs time and says what to change."""

from scalescope.diagnosis.findings import messages, run, waiting
from scalescope.diagnosis.findings.case import Case, Look
from scalescope.records.explanation import Finding

FINDINGS: tuple[Look, ...] = (
    waiting.straggler,
    waiting.uneven_ranks,
    waiting.input_bound,
    waiting.long_cycle,
    waiting.negotiation,
    messages.small_messages,
    messages.large_bucket,
    messages.exposed_communication,
    messages.buffer_broadcasts,
    run.idle_device,
    run.oversubscribed_cores,
    run.first_epoch,
    run.slow_periods,
    run.changes,
    run.tracer,
)


def find(case: Case) -> tuple[Finding, ...]:
    """All that was found, the largest gain first; what has no gain stands at the end."""
    found = [finding for look in FINDINGS if (finding := look(case)) is not None]
    return tuple(sorted(found, key=lambda finding: -(finding.gain if finding.gain is not None else -1.0)))
