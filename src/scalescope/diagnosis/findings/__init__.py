"""Findings: plain functions in a list; each looks for one thing that costs time and says what to change."""

from collections.abc import Collection, Sequence

import msgspec

from scalescope.diagnosis.findings import messages, network, run, sharding, waiting
from scalescope.diagnosis.findings.case import NOTEWORTHY, Case, Look
from scalescope.records.explanation import Finding
from scalescope.units import format_share

FINDINGS: tuple[Look, ...] = (
    waiting.straggler,
    waiting.uneven_ranks,
    waiting.input_bound,
    waiting.long_cycle,
    waiting.negotiation,
    sharding.synchronized_micro_batches,
    sharding.second_gathers,
    sharding.unprefetched_gathers,
    sharding.small_groups,
    network.slow_network,
    messages.small_messages,
    messages.large_bucket,
    messages.exposed_communication,
    messages.buffer_broadcasts,
    run.idle_device,
    run.oversubscribed_cores,
    run.first_epoch,
    run.slow_periods,
    run.changes,
)


# They say which collectives are needless or late: theirs before faster links, which are a guess about all of them.
_OF_SHARDING = (
    sharding.synchronized_micro_batches,
    sharding.second_gathers,
    sharding.unprefetched_gathers,
    sharding.small_groups,
)
# Their gains rest on what compute and messages take of a traced step.
_BY_SHARES = (
    *_OF_SHARDING,
    messages.small_messages,
    messages.large_bucket,
    messages.buffer_broadcasts,
)


def find(case: Case) -> tuple[Finding, ...]:
    """All that was found, the largest gain first; what has no gain stands at the end."""
    found, first = list[Finding](), set[str]()
    for look in FINDINGS:
        if (finding := look(case)) is not None:
            if case.explanation.too_heavy and look in _BY_SHARES:
                # As a share of traced steps its gain is not known where the tracer made them much longer.
                longer = f"traced steps took {format_share(case.explanation.overhead or 0.0)} longer"
                evidence = {**finding.evidence, "gain unknown": longer}
                finding = msgspec.structs.replace(finding, gain=None, gain_from="", evidence=evidence)
            found.append(finding)
            first |= {finding.id} if look in _OF_SHARDING else set()
    claiming = sorted(_by_gain(found), key=lambda finding: finding.id not in first)
    return tuple(_by_gain(_claimed_once(claiming, case, first)))


def _by_gain(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: -(finding.gain if finding.gain is not None else -1.0))


def _claimed_once(findings: Sequence[Finding], case: Case, exact: Collection[str]) -> list[Finding]:
    """The same seconds are gained once: those of a part of the step go to the findings in their order.

    What the `exact` ones leave of a part is what a guess takes to be half avoidable.
    """
    left, first = case.left_s, dict[str, str]()
    claimed = []
    for finding in findings:
        gain, known = finding.gain, [part for part in finding.parts if part in left]
        if gain is None or not known or not case.step_s:
            claimed.append(finding)
            continue
        wanted = case.step_s * gain / (1 + gain)
        halves = [2 if finding.gain_from == "guess" and first.get(part) in exact else 1 for part in known]
        given = min(wanted, *(left[part] / half for part, half in zip(known, halves, strict=True)))
        for part in known:
            left[part] -= given
        if given < wanted:
            gain = given / (case.step_s - given)
            others = ", ".join(dict.fromkeys(first[part] for part in known if part in first))
            counted = {"alone": f"{1 + (finding.gain or 0.0):.2f}x", "counted there": others} if others else {}
            finding = msgspec.structs.replace(
                finding,
                gain=gain if gain >= NOTEWORTHY else None,
                gain_from=finding.gain_from if gain >= NOTEWORTHY else "",
                evidence={**finding.evidence, **counted},
            )
        for part in known:
            first.setdefault(part, finding.id)
        claimed.append(finding)
    return claimed
