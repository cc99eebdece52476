"""From traces to an Explanation: accounting per rank and step, ranks against each other, and over time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import msgspec
import numpy as np

from scalescope.diagnosis.exchanges import exchanges
from scalescope.diagnosis.first_steps import first_steps
from scalescope.diagnosis.late_ranks import late_ranks
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
from scalescope.traces.lateness import Lateness
from scalescope.traces.marks import untraced_parts
from scalescope.traces.trace import Parts, Trace, breakdowns, mean_parts
from scalescope.units import format_seconds
from scalescope.warmup import change_points, warmup_steps

_FEWEST_TO_WARM = 8
_TOO_HEAVY = 0.3  # What tracing may add to a step above which the shares of traced steps are not shown


def explained(job: JobTraces) -> Explanation:
    """Everything but the findings."""
    traces, first, record = job.traces, job.traces[0], job.record
    durations = step_times([trace.ends_s - trace.starts_s for trace in traces])
    from_start = first.whole_job or (record is not None and record.from_start)
    # The first step of all is never steady; a stretch from the middle may have none that is not.
    warmup = 1 if from_start and len(durations) > 1 else 0
    if len(durations) >= _FEWEST_TO_WARM:
        warmup = max(warmup_steps(durations), warmup)
    steady = durations[warmup:]
    steady_s = median(steady) if steady else None
    shown = None  # the steady step whose time is nearest to the median; the earlier of two
    if steady_s is not None:
        shown = warmup + min(range(len(steady)), key=lambda at: abs(steady[at] - steady_s))
    account = None
    if first.horovod is not None:  # of the steady steps that the accounting counts; of all where none is steady
        account = first.horovod(float(first.starts_s[warmup]) if len(first.starts_s) > warmup else -np.inf)
    ranks = late_ranks(job, account, warmup, steady)
    if account is not None:
        account = msgspec.structs.replace(account, late_s=dict(ranks.late_s) if ranks.is_named else {})
    untraced_s = record.untraced_step_s if record and steady_s else None
    overhead = record.overhead.value if record and record.overhead else None
    factor = untraced_s / steady_s if untraced_s and steady_s and first.device == "cpu" else 1.0
    parts, too_heavy = _without_tracer(job, warmup, untraced_s, factor, overhead)
    late_s = {rank: seconds * (factor if job.compared else 1.0) for rank, seconds in ranks.late_s.items()}
    engine, collectives = _engine(job), dict(Counter(first.collectives.operation.tolist()).most_common())
    hidden = first.possibly_hidden if first.parts.compute is None else None
    slow, command = slow_period(steady), record.command if record else ()
    losses = {str(trace.path): trace.loss for trace in traces}
    return Explanation(
        kind=job.kind,
        what=training_name(None, command) if command else record.what if record else first.path.name,
        command=command,
        files=tuple(losses),
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
        possibly_hidden_s=float(np.mean(hidden[warmup:])) if hidden is not None and len(hidden[warmup:]) else None,
        per_rank=_per_rank(job, parts, late_s) if any(len(trace.parts.step) for trace in traces) else (),
        steps=tuple(
            StepAccount(rank=rank, index=index, start_s=start, parts=each)
            for at, (trace, rank) in enumerate(zip(traces, job.ranks, strict=True))
            for index, (start, each) in enumerate(
                zip(_common(job, at, trace.starts_s).tolist(), breakdowns(trace.parts), strict=True)
            )
        ),
        transfers=transfers(traces, job.compared),
        exchanges=exchanges(job, warmup, factor),
        bucket_bytes=first.bucket_bytes,
        horovod=account,
        clocks=job.clocks,
        compiled=any(trace.compiled for trace in traces),
        skew_s=ranks.skew_s,
        straggler=ranks.straggler,
        straggler_note=ranks.note,
        changes=tuple(
            Change(step=warmup + at, before_s=before, after_s=after) for at, before, after in change_points(steady)
        ),
        periods=(Period(every=slow.every, excess_s=slow.excess_s, count=slow.number),) if slow else (),
        first_steps=first_steps(traces, warmup) if from_start else None,
        overhead=overhead,
        too_heavy=too_heavy,
        shown_step=_shown(job, shown) if shown is not None else None,
        shown_index=shown,
        network=record.network if record else None,
        lost=Loss(
            events=sum(loss.events for loss in losses.values()),
            bytes=sum(loss.bytes for loss in losses.values()),
            reason="; ".join(dict.fromkeys(loss.reason for loss in losses.values() if loss.reason)),
            files=job.skipped,
        ),
        notes=_notes(job, account, untraced_s),
    )


def _without_tracer(
    job: JobTraces, warmup: int, untraced_s: float | None, factor: float, overhead: float | None
) -> tuple[list[Parts], bool]:
    """The parts of steady steps as they are without the tracer, and whether traced ones cannot tell them at all."""
    steady = [trace.parts.since(warmup) for trace in job.traces]
    if not untraced_s:
        return steady, False
    if job.traces[0].device == "cuda":
        return [_with_less_idle(each, untraced_s) for each in steady], False
    marks = job.marks or job.profile_marks
    is_heavy = overhead is not None and overhead > _TOO_HEAVY and len(marks) == len(job.traces)
    if is_heavy and (untraced := untraced_parts(marks)):
        return untraced, True
    return [each.scaled(factor) for each in steady], False


def _common(job: JobTraces, at: int, times: Times) -> Times:
    return on_common_clock(times, job.clocks[at]) if job.clocks else times


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
    seen = [*([job.record.engine] if job.record else []), *(trace.engine for trace in job.traces)]
    named = [each for each in seen if each not in (PLAIN.name, COLLECTIVES.name)]
    if named:
        return named[0]
    return COLLECTIVES.name if COLLECTIVES.name in seen else PLAIN.name


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
    # Bytes that a link carries for each byte of a message, as nccl-tests counts it.
    once = (ranks - 1) / ranks
    bus = {"allreduce": 2 * once, "allgather": once, "reducescatter": once, "alltoall": once}
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
                    bus_bytes_per_s=size / typical * bus.get(name, 1.0),
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _shown(job: JobTraces, index: int) -> Timeline:
    """One step of every rank, on the common clock, from the moment at which the first rank begins it."""
    begins = [float(_common(job, at, trace.starts_s[[index]])[0]) for at, trace in enumerate(job.traces)]
    spans, steps = list[Span](), list[Step]()
    for at, (trace, rank, begin) in enumerate(zip(job.traces, job.ranks, begins, strict=True)):
        start, end = float(trace.starts_s[index]), float(trace.ends_s[index])
        by_s = begin - start - min(begins)
        steps.append(Step(rank=rank, start_s=start + by_s, end_s=end + by_s))
        spans += [
            msgspec.structs.replace(span, start_s=span.start_s + by_s, end_s=span.end_s + by_s)
            for span in job.spans(at, start, end)
        ]
    return Timeline(source=job.kind, spans=tuple(spans), steps=tuple(steps))


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
