"""Findings about the whole run: its beginning, slow steps that come back, devices and cores."""

import math
from statistics import median

from scalescope.diagnosis.findings.case import Case
from scalescope.records.explanation import Finding
from scalescope.text import plural
from scalescope.units import format_seconds, format_share

_FIRST_FACTOR = 3.0
_FIRST_SHARE = 0.05
_FIRST_WORTH = 0.5  # Of a step that the first ones must cost more, when they were asked for
_PERIODIC_SHARE = 0.03
_IDLE_SHARE = 0.2


def first_epoch(case: Case) -> Finding | None:
    """The beginning takes much longer than its steps do later."""
    explanation = case.explanation
    durations = [account.parts.step_s for account in explanation.steps if account.rank == explanation.ranks[0]]
    warmup = explanation.warmup_steps
    if len(explanation.epochs) > 1:
        return _slow_first_epoch(case)
    first_steps = explanation.first_steps
    if first_steps is None or len(durations) <= warmup or not case.step_s:
        return None
    excess, record = first_steps.excess_s, case.job.record
    asked = record is not None and record.from_start
    if not asked and (durations[0] < _FIRST_FACTOR * case.traced_s or excess < _FIRST_SHARE * sum(durations)):
        return None
    if excess < _FIRST_WORTH * case.traced_s:
        return None
    order = sorted(first_steps.parts_s.items(), key=lambda part: -part[1])
    most = [f"{format_seconds(seconds)} {name}" for name, seconds in order if seconds > _FIRST_SHARE * excess]
    first = "step costs" if warmup == 1 else f"{plural(warmup, 'step')} cost"
    evidence = {
        "first step": format_seconds(durations[0]),
        "steady step": format_seconds(case.traced_s),
        "steps until steady": str(warmup),
        "seen in": f"step 0 of {case.where}",
        **{name: f"{'-' if seconds < 0 else ''}{format_seconds(abs(seconds))}" for name, seconds in order},
    }
    if record is not None and record.before_s:
        before = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in record.before_s.items())
        evidence["before the first step"] = before
    return Finding(
        id="first_epoch",
        sentence=f"The first {first} {format_seconds(excess)} more than later ones, "
        f"{format_share(excess / sum(durations))} of what was traced: {', '.join(most)}.",
        evidence=evidence,
        change="It is paid once per run: leave it out when you compare speeds; start workers and load data before the "
        "first step.",
        gain=None,
    )


def _slow_first_epoch(case: Case) -> Finding | None:
    first, *later = case.explanation.epochs
    usual = median(epoch.seconds for epoch in later)
    total = sum(epoch.seconds for epoch in case.explanation.epochs)
    excess = first.seconds - usual
    if excess < _FIRST_SHARE * total:
        return None
    shares = [epoch.negotiation_share for epoch in later if epoch.negotiation_share is not None]
    evidence = {
        "first epoch": format_seconds(first.seconds),
        "later epochs": format_seconds(usual),
        "seen in": case.where,
    }
    if first.negotiation_share is not None and shares:
        evidence["negotiation"] = (
            f"{format_share(first.negotiation_share)} of the first epoch, {format_share(median(shares))} of later ones"
        )
    return Finding(
        id="first_epoch",
        sentence=f"The first epoch takes {format_seconds(excess)} longer than later ones, "
        f"{format_share(excess / total)} of the run.",
        evidence=evidence,
        change="It is paid once per run (start of workers, cold caches, first negotiation): cache the data set before "
        "the first step, and leave the first epoch out when you compare speeds.",
        gain=None,
    )


def slow_periods(case: Case) -> Finding | None:
    """Slow steps that come back at equal distances."""
    for period in case.explanation.periods:
        share = period.excess_s / period.every / case.traced_s if case.traced_s else 0.0
        if share > _PERIODIC_SHARE:
            return Finding(
                id="slow_periods",
                sentence=f"Every {period.every} steps one takes {format_seconds(period.excess_s)} longer.",
                evidence={"slow steps": str(period.count), "seen in": case.where},
                change=f"Look at what the script does every {period.every} steps (logging, checkpoint, evaluation, "
                "a new epoch's workers) and do it less often, or in the background.",
                gain=share,
                gain_from="accounting",
            )
    return None


def changes(case: Case) -> Finding | None:
    """From some step on, steps are slower."""
    slower = [each for each in case.explanation.changes if each.after_s > each.before_s]
    # A profiler makes a program ask for memory anew, and a virtual machine may have to get that from its host first: it
    # is the tracer where steps after the traced ones take what steps took before the change.
    if record := case.job.record:
        after_s = record.untraced_after_s or math.inf
        slower = [each for each in slower if after_s**2 >= each.before_s * each.after_s]
    if not slower:
        return None
    worst = max(slower, key=lambda change: change.after_s / change.before_s)
    return Finding(
        id="slower_since",
        sentence=f"From step {worst.step} on steps take {format_seconds(worst.after_s)} instead of "
        f"{format_seconds(worst.before_s)}.",
        evidence={"changes": str(len(case.explanation.changes)), "seen in": f"step {worst.step} of {case.where}"},
        change="Look at what began then: another program on the machine, a hotter device, longer inputs, "
        "a growing list.",
        gain=worst.after_s / worst.before_s - 1,
        gain_from="accounting",
    )


def oversubscribed_cores(case: Case) -> Finding | None:
    """More busy threads than cores on a host."""
    record = case.job.record
    if record is None or record.cores is None or case.explanation.device != "cpu":
        return None
    each = record.point.threads_per_rank
    if each is None:
        return None
    hosts = case.job.hosts
    threads = each * record.np / hosts
    if threads <= record.cores:
        return None
    fitting = max(record.cores * hosts // record.np, 1)
    enough = record.np / hosts <= record.cores
    change = f"--threads-per-rank {fitting} (OMP_NUM_THREADS={fitting})" if enough else "fewer processes per host"
    return Finding(
        id="oversubscribed_cores",
        sentence=f"{record.np / hosts:.0f} processes with {plural(each, 'thread')} each share "
        f"{plural(record.cores, 'core')} of a host.",
        evidence={"threads per host": f"{threads:.0f}", "cores per host": str(record.cores), "seen in": case.where},
        change=change,
        gain=None,
    )


def idle_device(case: Case) -> Finding | None:
    """The GPU has nothing to do for much of the step, and that is not for want of messages or input."""
    accounting = case.explanation.accounting
    if accounting is None or case.explanation.device != "cuda" or accounting.compute_s is None:
        return None
    share = accounting.other_s / accounting.step_s if accounting.step_s else 0.0
    if share < _IDLE_SHARE:
        return None
    launches = "torch.compile(model) or CUDA graphs, so that fewer kernels are launched"
    if case.explanation.compiled:
        launches = (
            "fewer graph breaks (TORCH_LOGS=graph_breaks), or CUDA graphs (torch.compile's mode='reduce-overhead')"
        )
    return Finding(
        id="idle_device",
        sentence=f"The GPU has nothing to do for {format_share(share)} of a step "
        f"({format_seconds(accounting.other_s)}): the host does not feed it fast enough.",
        evidence={
            "compute on the GPU": format_seconds(accounting.compute_s),
            "neither compute nor communication": format_seconds(accounting.other_s),
            "seen in": case.shown,
        },
        change=f"A larger batch per process; {launches}; no .item(), .cpu() or print of tensors in the step.",
        gain=case.saving(accounting.other_s / 2),
        gain_from="guess",
        parts=("other",),
    )
