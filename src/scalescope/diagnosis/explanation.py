"""From traces to an Explanation: accounting per rank and step, ranks against each other, and over time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import msgspec
import numpy as np

from scalescope.diagnosis.exchanges import exchanges
from scalescope.diagnosis.first_steps import first_steps
from scalescope.diagnosis.named_ranks import NOBODY, named_ranks
from scalescope.diagnosis.traces import JobTraces
from scalescope.engines import COLLECTIVES, PLAIN, engine_named
from scalescope.intervals import Times
from scalescope.records.explanation import (
    Change,
    Explanation,
    HorovodAccount,
    Loss,
    Period,
    RankAccount,
    StepAccount,
    Transfer,
)
from scalescope.records.timeline import Breakdown, Span, Step, Timeline
from scalescope.records.training_name import training_name
from scalescope.steady import slow_period, step_times
from scalescope.traces.alignment import on_common_clock
from scalescope.traces.lateness import Lateness, stands_out
from scalescope.traces.marks import arrivals, untraced_parts
from scalescope.traces.trace import Parts, Trace, breakdowns, mean_parts
from scalescope.units import format_seconds
from scalescope.warmup import change_points, warmup_steps

_FEWEST_TO_WARM = 8
_TOO_HEAVY = 0.3  # What tracing may add to a step before the shares of traced steps are not told


def explained(job: JobTraces) -> Explanation:
    """Everything but the findings."""
    traces, first, command = job.traces, job.traces[0], job.record.command if job.record else ()
    durations = step_times([trace.ends_s - trace.starts_s for trace in traces])
    from_start = first.whole_job or (job.record is not None and job.record.from_start)
    warmup = _warmup(durations, from_start=from_start)
    compared = job.compared
    account = None
    if first.horovod is not None:  # of the steady steps that the accounting counts; of all where none is steady
        account = first.horovod(float(first.starts_s[warmup]) if len(first.starts_s) > warmup else -np.inf)
    marked = arrivals(job.marks, warmup=warmup)
    named = named_ranks(first, account, warmup) if account and not marked else NOBODY
    late = dict(named.late_s) or {rank: float(np.median(each)) for rank, each in marked.items()}
    if compared is not None and compared.median_late_s:
        late = dict(zip(compared.ranks, compared.median_late_s, strict=True))
    shown = _shown_index(durations, warmup)
    slow = slow_period(durations[warmup:])
    engine, collectives = _engine(job), dict(Counter(first.collectives.operation.tolist()).most_common())
    steps = tuple(account for at in range(len(traces)) for account in _accounts(job, at))
    steady_s = median(durations[warmup:]) if durations[warmup:] else None
    untraced_s = job.record.untraced_step_s if job.record and steady_s else None
    overhead = job.record.overhead.value if job.record and job.record.overhead else None
    on_host = bool(untraced_s and steady_s and first.device == "cpu")
    factor = (untraced_s or 1.0) / (steady_s or 1.0) if on_host else 1.0
    parts, without_tracer = [trace.parts.since(warmup) for trace in traces], list[Parts]()
    if untraced_s and steady_s and first.device == "cuda":
        parts = [_with_less_idle(each, untraced_s) for each in parts]
    elif untraced_s and steady_s:
        parts = [each.scaled(untraced_s / steady_s) for each in parts]
        late = {rank: seconds * (untraced_s / steady_s if compared else 1.0) for rank, seconds in late.items()}
        marks = job.marks or job.profile_marks
        if overhead is not None and overhead > _TOO_HEAVY and len(marks) == len(traces):
            without_tracer = untraced_parts(marks)
            parts = without_tracer or parts
    return Explanation(
        kind=job.kind,
        what=training_name(None, command) if command else job.record.what if job.record else first.path.name,
        command=command,
        files=tuple(dict.fromkeys(str(trace.path) for trace in traces)),
        ranks=job.ranks,
        world_size=max((trace.world_size or 0 for trace in traces), default=0) or None,
        engine=engine,
        collectives=collectives,
        others=tuple(name for name in collectives if name not in engine_named(engine).operations),
        backend=first.backend,
        device=first.device,
        steps_from=first.steps_from,
        warmup_steps=warmup,
        step_s=untraced_s or steady_s,
        traced_step_s=steady_s if untraced_s else None,
        accounting=mean_parts(parts),
        possibly_hidden_s=_possibly_hidden(first, warmup),
        per_rank=_per_rank(job, parts, late) if steps else (),
        steps=steps,
        transfers=transfers(traces, compared),
        exchanges=exchanges(job, warmup, factor),
        bucket_bytes=first.bucket_bytes,
        horovod=account and msgspec.structs.replace(account, late_s=dict(named.late_s)),
        clocks=job.clocks,
        compiled=any(trace.compiled for trace in traces),
        skew_s=named.skew_s or _skew(marked, compared),
        straggler=named.straggler if named.straggler is not None else _straggler(marked, compared, durations[warmup:]),
        straggler_note=named.note,
        changes=tuple(
            Change(step=warmup + at, before_s=before, after_s=after)
            for at, before, after in change_points(durations[warmup:])
        ),
        periods=(Period(every=slow.every, excess_s=slow.excess_s, count=slow.number),) if slow else (),
        first_steps=first_steps(traces, warmup) if from_start else None,
        overhead=overhead,
        too_heavy=bool(without_tracer),
        shown_step=_shown(job, shown) if shown is not None else None,
        shown_index=shown,
        network=job.record.network if job.record else None,
        lost=_lost(job),
        notes=_notes(job, account, untraced_s),
    )


def _warmup(durations: Sequence[float], *, from_start: bool) -> int:
    """Steps that do not count as steady: the first one of all at least; a stretch from the middle may have none."""
    least = 1 if from_start and len(durations) > 1 else 0
    return max(warmup_steps(durations), least) if len(durations) >= _FEWEST_TO_WARM else least


def _shown_index(durations: Sequence[float], warmup: int) -> int | None:
    """The steady step whose time is nearest to the median; the earlier of two."""
    steady = durations[warmup:]
    if not steady:
        return None
    typical = median(steady)
    return warmup + min(range(len(steady)), key=lambda at: abs(steady[at] - typical))


def _common(job: JobTraces, at: int, times: Times) -> Times:
    return on_common_clock(times, job.clocks[at]) if job.clocks else times


def _accounts(job: JobTraces, at: int) -> list[StepAccount]:
    trace, rank = job.traces[at], job.ranks[at]
    starts = _common(job, at, trace.starts_s).tolist()
    return [
        StepAccount(rank=rank, index=index, start_s=start, parts=parts)
        for index, (start, parts) in enumerate(zip(starts, breakdowns(trace.parts), strict=True))
    ]


def _with_less_idle(parts: Parts, untraced_s: float) -> Parts:
    """The parts of a GPU's steps as they are without the tracer.

    What a GPU does takes as long with it; the host is slower, so the GPU waits for it longer.
    """
    if not len(parts.step):
        return parts
    busy = parts.step - parts.other
    step = np.maximum(busy, parts.step * untraced_s / float(np.mean(parts.step)))
    return replace(parts, step=step, other=step - busy)


def _per_rank(job: JobTraces, steady: Sequence[Parts], late: Mapping[int, float]) -> tuple[RankAccount, ...]:
    """The typical steady step of each rank; of all its steps where none is steady."""
    accounts = []
    for trace, rank, parts in zip(job.traces, job.ranks, steady, strict=True):
        known = parts if len(parts.step) else trace.parts
        mean = mean_parts([known]) or Breakdown(
            step_s=0.0, compute_s=None, exposed_s=None, hidden_s=None, input_s=None, optimizer_s=None, other_s=0.0
        )
        accounts.append(RankAccount(rank=rank, steps=len(known.step), parts=mean, late_s=late.get(rank)))
    return tuple(accounts)


def _engine(job: JobTraces) -> str:
    """As the ranks showed it when they were captured, or as any of the traces shows it."""
    told = [*([job.record.engine] if job.record else []), *(trace.engine for trace in job.traces)]
    vague = (PLAIN.name, COLLECTIVES.name)
    return next((each for each in told if each not in vague), max(told, key=(*vague, *told).index))


def _possibly_hidden(trace: Trace, warmup: int) -> float | None:
    if trace.possibly_hidden is None or trace.parts.compute is not None or not len(trace.possibly_hidden[warmup:]):
        return None
    return float(np.mean(trace.possibly_hidden[warmup:]))


def transfers(traces: Sequence[Trace], compared: Lateness | None = None) -> tuple[Transfer, ...]:
    """Collectives by operation and size, the largest first; what carries no known bytes is left out.

    Args:
        traces: Of the ranks; where they were not compared, the collectives of the first one stand for all.
        compared: Ranks against each other: then transfers are those that all have in common, without any wait.
    """
    if compared is None:
        seen = traces[0].collectives
        operation, sizes, seconds, waits = seen.operation, seen.bytes, seen.end_s - seen.start_s, None
    else:
        operation, sizes, seconds, waits = compared.operation, compared.bytes, compared.transfer_s, compared.wait_s
    ranks = max([trace.world_size or 1 for trace in traces] + [len(traces)])
    rows = []
    for name in sorted(set(operation.tolist())):
        named = operation == name
        for size in np.unique(sizes[named & (sizes > 0)]).tolist():
            those = named & (sizes == size)
            typical = float(np.median(seconds[those]))
            if typical <= 0:
                continue
            rows.append(
                Transfer(
                    operation=name,
                    bytes=size,
                    ranks=ranks,
                    count=int(those.sum()),
                    seconds=typical,
                    wait_s=None if waits is None else float(np.median(waits[those])),
                    algorithm_bytes_per_s=size / typical,
                    bus_bytes_per_s=size / typical * _bus_share(name, ranks),
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _bus_share(operation: str, ranks: int) -> float:
    """Bytes that a link carries for each byte of the message, as nccl-tests counts it."""
    once = (ranks - 1) / ranks
    return {"allreduce": 2 * once, "allgather": once, "reducescatter": once, "alltoall": once}.get(operation, 1.0)


def _skew(late: dict[int, Times], compared: Lateness | None) -> tuple[float, ...]:
    """Step by step, how long the others waited for whichever rank was last."""
    if compared is not None:
        rows = compared.held_up_s
        return tuple(rows.max(axis=1).tolist()) if rows.size else ()
    return tuple(np.max(list(late.values()), axis=0).tolist()) if late else ()


def _straggler(late: dict[int, Times], compared: Lateness | None, steady: Sequence[float]) -> int | None:
    if compared is not None:
        return compared.straggler
    if len(late) < 2 or not steady:
        return None
    worst = max(late, key=lambda rank: float(np.median(late[rank])))
    others = np.max([value for rank, value in late.items() if rank != worst], axis=0)
    return worst if stands_out(late[worst] - others, median(steady)) else None


def _shown(job: JobTraces, index: int) -> Timeline:
    """One step of every rank, on the common clock, from the moment at which the first rank begins it."""
    spans: list[Span] = []
    steps: list[Step] = []
    for at, (trace, rank) in enumerate(zip(job.traces, job.ranks, strict=True)):
        start, end = float(trace.starts_s[index]), float(trace.ends_s[index])
        moved = float(_common(job, at, np.array([start]))[0]) - start
        steps.append(Step(rank=rank, start_s=start + moved, end_s=end + moved))
        spans += [_moved(span, moved) for span in job.spans(at, start, end)]
    zero = min(step.start_s for step in steps)
    return Timeline(
        source=job.kind,
        spans=tuple(_moved(span, -zero) for span in spans),
        steps=tuple(Step(rank=step.rank, start_s=step.start_s - zero, end_s=step.end_s - zero) for step in steps),
    )


def _moved(span: Span, by_s: float) -> Span:
    return msgspec.structs.replace(span, start_s=span.start_s + by_s, end_s=span.end_s + by_s)


def _lost(job: JobTraces) -> Loss:
    losses = {str(trace.path): trace.loss for trace in job.traces}
    return Loss(
        events=sum(loss.events for loss in losses.values()),
        bytes=sum(loss.bytes for loss in losses.values()),
        reason="; ".join(dict.fromkeys(loss.reason for loss in losses.values() if loss.reason)),
        files=job.skipped,
    )


def _notes(job: JobTraces, account: HorovodAccount | None, untraced_s: float | None) -> tuple[str, ...]:
    notes = [note for trace in job.traces for note in trace.notes]
    if untraced_s is not None:
        notes.append(f"shares are those of a step without the tracer ({format_seconds(untraced_s)})")
    if job.record:
        notes += job.record.notes
    if account is not None and not account.cached and len(job.traces[0].starts_s) > _FEWEST_TO_WARM:
        notes.append(
            "Horovod's response cache was off or too small; `scalescope tune` measures whether that costs time"
        )
    ranks, world = len(job.traces), max((trace.world_size or 0 for trace in job.traces), default=0)
    if job.record is None and not job.traces[0].whole_job and world > ranks:
        notes.append(f"{ranks} of {world} ranks were given: name the traces of all ranks to see who waits for whom")
    return tuple(dict.fromkeys(notes))
