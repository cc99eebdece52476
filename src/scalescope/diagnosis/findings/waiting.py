"""Time in which ranks wait: for each other, for input, for Horovod's thread."""

from statistics import median

from scalescope.diagnosis.findings.case import NOTEWORTHY, Case
from scalescope.records.explanation import Finding
from scalescope.traces.horovod.accounting import CYCLES_S
from scalescope.units import format_bytes, format_seconds, format_share

_INPUT_SHARE = 0.05
_LONG_CYCLE_S = 4e-3
_NEGOTIATION_SHARE = 0.1
_UNEVEN_SHARE = 0.1
_MOSTLY = 0.8  # Of the steps in which one rank is the last, from which on another one is no pattern
_CAUSE_SHARE = 0.6  # Of a rank's lateness that one part of its step must explain, before it is called the cause
_BECAUSE = {
    "input": " because it waits longer for its batch",
    "compute": " because it computes longer",
    "optimizer": " because its optimizer takes longer",
}
_DOES = {
    "input": "waits {} for its batch",
    "compute": "computes {}",
    "optimizer": "spends {} in its optimizer",
    "other": "is busy with something else for {}",
}
_APART = 0.03  # Of the mean wait, from which on a median is called one
_WORTH_NAMING = 0.3  # Of the wait that an excess of one rank explains, before it is named


def straggler(case: Case) -> Finding | None:
    """One rank comes late to the collectives, and all others wait for it."""
    explanation = case.explanation
    rank = explanation.straggler
    if rank is None:
        return None
    late = case.late_s
    lost = _late_by_s(case, rank)
    cause = _cause(case, rank)
    steps = next((account.steps for account in explanation.per_rank if account.rank == rank), len(explanation.skew_s))
    known = {each.rank: each.parts.compute_s for each in explanation.per_rank if each.parts.compute_s is not None}
    others = [compute_s for each, compute_s in known.items() if each != rank]
    computing = "unknown"
    if rank in known and others:
        computing = f"{format_seconds(known[rank])} against {format_seconds(median(others))}"
    return Finding(
        id="straggler",
        sentence=f"Rank {rank} comes {format_seconds(lost)} late to every step{_BECAUSE.get(cause, '')}, and the other "
        "ranks wait for it.",
        evidence={
            "late, by rank": ", ".join(f"{each}: {format_seconds(value)}" for each, value in late.items()),
            "its compute against the others'": computing,
            **({"its steps": str(steps)} if steps else {}),
            **({"source:": explanation.straggler_note} if explanation.straggler_note else {}),
            "seen in": case.shown,
        },
        change=_loader(case)
        if cause == "input"
        else f"{_does_more(case, rank, lost)}Look at what rank {rank} does and others do not (logging, evaluation, a "
        "slower host or GPU, another program on its cores, more data): give all ranks equal work.",
        gain=case.saving(lost),
        gain_from="accounting",
        parts=(case.part("waiting"), *((cause,) if cause == "other" else ())),
    )


def _late_by_s(case: Case, rank: int) -> float:
    """Seconds a step that are saved once this rank is no longer late.

    By as much as it is busy for longer than the others: that, and not all of their wait, ends with its lateness.
    """
    late, busier_s = case.late_s, case.step_s
    others = median([value for each, value in late.items() if each != rank] or [0.0])
    parts = {each.rank: each.parts for each in case.explanation.per_rank}
    busy = {each: of.step_s - of.exposed_s for each, of in parts.items() if of.exposed_s is not None}
    if rank in busy and len(busy) > 1:
        busier_s = max(busy[rank] - median(value for each, value in busy.items() if each != rank), 0.0)
    return min(late[rank] - others, busier_s)


def _cause(case: Case, rank: int) -> str:
    """On what the late rank spends most of what it is late by: compute, input, optimizer or other; empty if unknown."""
    most, own_s, others_s = _excess(case, rank)
    return most if own_s - others_s > _CAUSE_SHARE * _late_by_s(case, rank) else ""


def _excess(case: Case, rank: int) -> tuple[str, float, float]:
    """The part of a step in which a rank exceeds the others most, its seconds and theirs; empty where none is known."""
    own = next((account.parts for account in case.explanation.per_rank if account.rank == rank), None)
    others = [account.parts for account in case.explanation.per_rank if account.rank != rank]
    if own is None or not others or (own.compute_s is None and own.input_s is None):
        return "", 0.0, 0.0
    # Where compute is not known it is part of other, and nobody's cause.
    names = ("compute", "input", "optimizer", "other") if own.compute_s is not None else ("input", "optimizer")
    found = [
        (name, getattr(own, f"{name}_s") or 0.0, median(getattr(each, f"{name}_s") or 0.0 for each in others))
        for name in names
    ]
    return max(found, key=lambda each: each[1] - each[2])


def _does_more(case: Case, rank: int, lost_s: float) -> str:
    """`Rank 1 computes 30 ms a step, 19 ms more than the others. `; empty where that explains little of it."""
    part, own_s, others_s = _excess(case, rank)
    if own_s - others_s < max(_WORTH_NAMING * lost_s, 1e-9):
        return ""
    does = _DOES[part].format(f"{format_seconds(own_s)} a step")
    return f"Rank {rank} {does}, {format_seconds(own_s - others_s)} more than the others. "


def uneven_ranks(case: Case) -> Finding | None:
    """Ranks wait for whoever is last, which is no single rank, or not by enough to name it."""
    lost = case.waited_s
    if case.explanation.straggler is not None or not case.step_s or lost is None:
        return None
    nobody_named = case.explanation.horovod is not None and not case.explanation.skew_s  # see negotiation()
    if nobody_named or lost < _UNEVEN_SHARE * case.step_s:
        return None
    told = [each for each in case.explanation.transfers if each.wait_s is not None]
    waits = ", ".join(f"{format_bytes(each.bytes)}: {format_seconds(each.wait_s or 0.0)}" for each in told[:4])
    last = _last_ranks(case)
    most, steps = max(last, key=lambda rank: last[rank], default=0), sum(last.values())
    for_whom, look = "", ""
    if steps and last[most] >= _MOSTLY * steps:
        look = f"{_does_more(case, most, lost)}Look at rank {most} first. "
        for_whom = f", mostly for rank {most}"
    else:
        for_whom = ", now for one and now for another" if steps else ""
        excess = {each.rank: _excess(case, each.rank) for each in case.explanation.per_rank}
        busiest = max(excess, key=lambda rank: excess[rank][1] - excess[rank][2], default=0)
        look = _does_more(case, busiest, lost)
    mean = case.explanation.accounting and case.explanation.accounting.waiting_s
    base = " (median over steps)" if mean and abs(lost / mean - 1) >= _APART else ""  # the answer's share is of means
    return Finding(
        id="uneven_ranks",
        sentence=f"Ranks wait {format_seconds(lost)} a step for each other{for_whom}{base}.",
        evidence={
            **({"wait for the last rank, by size": waits} if waits else {}),
            **(
                {f"last, of {steps} steps": ", ".join(f"{rank}: {count}" for rank, count in last.items())}
                if last
                else {}
            ),
            "held up by, by rank": ", ".join(f"{rank}: {format_seconds(late)}" for rank, late in case.late_s.items()),
            "seen in": case.shown,
        },
        change=f"{look}Give ranks cores of their own and stop other programs there; batches of equal cost on every "
        "rank; garbage collection, logging and checkpoints at the same step on all.",
        gain=case.saving(lost),
        gain_from="accounting",
        parts=(case.part("waiting"),),
    )


def _last_ranks(case: Case) -> dict[int, int]:
    """The number of steady steps in which each rank was waited for longest; empty where clocks cannot be compared."""
    compared = case.job.compared
    if compared is None:
        return {}
    rows = compared.held_up_s[case.explanation.warmup_steps :]
    rows = rows[rows.max(axis=1) > 0] if len(rows) else rows
    last = rows.argmax(axis=1).tolist() if len(rows) else []
    return {rank: last.count(at) for at, rank in enumerate(compared.ranks)} if last else {}


def input_bound(case: Case) -> Finding | None:
    """The step waits for its batch; what makes one rank late is that rank's finding."""
    late = case.explanation.straggler
    if late is not None and _cause(case, late) != "input":
        late = None
    known = [account for account in case.explanation.per_rank if account.parts.input_s is not None]
    ranks = [account for account in known if account.rank != late]
    if not ranks or not case.step_s:
        return None
    waiting = max(ranks, key=lambda account: account.parts.input_s or 0.0)
    seconds = waiting.parts.input_s or 0.0
    if seconds < _INPUT_SHARE * case.step_s:
        return None
    return Finding(
        id="input_bound",
        sentence=f"Every step waits {format_seconds(seconds)} for its batch, "
        f"{format_share(seconds / case.step_s)} of the step (rank {waiting.rank}).",
        evidence={
            "wait for input, by rank": ", ".join(
                f"{account.rank}: {format_seconds(account.parts.input_s or 0.0)}" for account in ranks
            ),
            "step": format_seconds(case.step_s),
            "seen in": case.shown,
        },
        change=_loader(case),
        gain=case.saving(seconds),
        gain_from="accounting",
        parts=("input",),
    )


def _loader(case: Case) -> str:
    """A DataLoader that prepares batches in processes of its own, as many as there are cores for."""
    record, on_cpu = case.job.record, case.explanation.device == "cpu"
    workers, busy = 4, ""
    if record is not None and record.cores and on_cpu:
        free = record.cores * case.job.hosts // record.np - (record.point.threads_per_rank or 1)
        workers = min(max(free, 1), workers)
        busy = "" if free > 0 else " (they take cores from the ranks, which use all of them)"
    pinned = "" if on_cpu else ", pin_memory=True"
    return (
        f"DataLoader(..., num_workers={workers}, persistent_workers=True, prefetch_factor=4{pinned}){busy}; "
        "if workers are there already: more of them, or cheaper decoding."
    )


def long_cycle(case: Case) -> Finding | None:
    """Gradients that are ready wait for Horovod's next cycle."""
    account, accounting = case.explanation.horovod, case.explanation.accounting
    if account is None or accounting is None or accounting.exposed_s is None:
        return None
    if not account.cycles or not case.step_s:
        return None
    moving = case.sending_s or 0.0  # while it sends, the thread cannot look for gradients, whatever the setting
    cycle = max(case.step_s - moving, 0.0) / case.factor / account.cycles
    if cycle < _LONG_CYCLE_S:
        return None
    saved = min(accounting.exposed_s - moving - (case.waited_s or 0.0), cycle * case.factor) - CYCLES_S
    if saved <= 0 or case.saving(saved) < NOTEWORTHY:
        return None
    return Finding(
        id="long_cycle",
        sentence=f"Horovod's thread looks for gradients only every {format_seconds(cycle)}: what is ready waits.",
        evidence={
            "cycles per step": f"{account.cycles:.1f}",
            "of them without work": "unknown" if account.idle_cycles is None else f"{account.idle_cycles:.1f}",
            "exposed communication": format_seconds(accounting.exposed_s),
            "collectives and copies": format_seconds(moving),
            "seen in": case.shown,
        },
        change="HOROVOD_CYCLE_TIME=1 (milliseconds, the default), or horovodrun --cycle-time-ms 1",
        gain=case.saving(saved),
        gain_from="accounting",
        parts=(case.part("transfer"),),
    )


def negotiation(case: Case) -> Finding | None:
    """Ranks agree for longer than they exchange, and the trace does not say who is late.

    It advises no size of the cache: a timeline shows how long ranks wait, with the cache or without it, and not what
    the cache saves.
    """
    explanation = case.explanation
    account, accounting = explanation.horovod, explanation.accounting
    if account is None or accounting is None or accounting.exposed_s is None or not case.step_s:
        return None
    if not account.cached or explanation.straggler is not None or explanation.skew_s or long_cycle(case) is not None:
        return None
    moving = case.sending_s or 0.0
    exposed = accounting.exposed_s - moving - CYCLES_S
    if case.waited_s is not None:
        exposed = min(exposed, case.waited_s)  # few slow steps raise the mean
    if exposed < _NEGOTIATION_SHARE * case.step_s:
        return None
    negotiation_s = case.factor * account.negotiation_s
    return Finding(
        id="negotiation",
        sentence=f"Ranks negotiate {format_seconds(negotiation_s)} a step; "
        f"{format_seconds(exposed)} of that hides behind nothing.",
        evidence={
            "negotiation": format_seconds(negotiation_s),
            "collectives and copies": format_seconds(moving),
            "exposed communication": format_seconds(accounting.exposed_s),
            "who is late": explanation.straggler_note or "unknown",
            "seen in": case.shown,
        },
        change="Find the rank that is late: `scalescope explain --np N --engine horovod -- COMMAND` compares the "
        "clocks of all ranks.",
        gain=case.saving(exposed),
        gain_from="accounting",
        parts=(case.part("waiting"),),
    )
