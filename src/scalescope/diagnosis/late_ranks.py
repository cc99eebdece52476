"""Ranks that are late: by their clocks, by their marks, or as Horovod's negotiations name them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from scalescope.diagnosis.traces import JobTraces
from scalescope.intervals import Times
from scalescope.records.explanation import HorovodAccount
from scalescope.traces.horovod.accounting import CYCLES_S
from scalescope.traces.lateness import stands_out
from scalescope.traces.marks import arrivals
from scalescope.traces.trace import Trace
from scalescope.units import format_share

_AGREED = 0.95  # Of the negotiations that name a rank must name the same one, before it stands for those that name none
_FEWEST_NAMED = 3
_CAPTURE = "`scalescope explain --np N --engine horovod -- COMMAND` compares the clocks of the ranks"


@dataclass(frozen=True)
class LateRanks:
    """Late ranks, as steady steps tell them."""

    straggler: int | None = None
    late_s: Mapping[int, float] = field(default_factory=dict)  # Of a step that waits for a rank, medians
    # Steady step by steady step, how long ranks waited for whichever was last; empty where waiting cannot be told.
    skew_s: tuple[float, ...] = ()
    note: str = ""
    is_named: bool = False  # Whether negotiations alone tell it


def late_ranks(job: JobTraces, account: HorovodAccount | None, warmup: int, steady_s: Sequence[float]) -> LateRanks:
    """The late rank of a job, as far as its traces tell.

    Args:
        job: Traces of one or more ranks.
        account: Of Horovod's timeline.
        warmup: Steps that do not count.
        steady_s: Seconds of those that do.
    """
    if (compared := job.compared) is not None:
        rows = compared.held_up_s
        skew_s = tuple(rows.max(axis=1).tolist()) if rows.size else ()
        return LateRanks(
            compared.straggler, dict(zip(compared.ranks, compared.median_late_s, strict=False)), skew_s=skew_s
        )
    if late := arrivals(job.marks, warmup=warmup):
        late_s = {rank: float(np.median(each)) for rank, each in late.items()}
        worst = max(late_s, key=lambda rank: late_s[rank])
        others = np.max([value for rank, value in late.items() if rank != worst], axis=0)
        is_late = bool(steady_s) and stands_out(late[worst] - others, median(steady_s))
        return LateRanks(worst if is_late else None, late_s, tuple(np.max(list(late.values()), axis=0).tolist()))
    if account is None:
        return LateRanks()
    return _named(job.traces[0], account, warmup)


def _named(trace: Trace, account: HorovodAccount, warmup: int) -> LateRanks:
    """The late rank, by its time in every step where negotiations name it, else by all that name one."""
    count, counts = len(trace.starts_s), account.last_rank
    if trace.negotiated is None or count <= warmup:
        return LateRanks(is_named=True)
    step_s, negotiated = float(np.median((trace.ends_s - trace.starts_s)[warmup:])), trace.negotiated[warmup:]
    held_up, waits = trace.held_up, dict[int, Times]()
    if held_up is not None:
        waits = {rank: held_up.by_step(rank, count)[warmup:] for rank in np.unique(held_up.rank).tolist()}
    late_s = {rank: float(np.median(each)) for rank, each in sorted(waits.items())}
    last, straggler, note = max(counts, key=lambda rank: counts[rank], default=None), None, ""
    if waits:
        worst = max(late_s, key=lambda rank: late_s[rank])
        others = np.max([np.zeros(count - warmup), *(each for rank, each in waits.items() if rank != worst)], axis=0)
        straggler = worst if stands_out(waits[worst] - others, step_s) else None
    if straggler is None and account.cached:
        return _cached(last, counts, np.maximum(negotiated - CYCLES_S, 0.0), step_s)
    if last is not None:
        share = format_share(counts[last] / sum(counts.values()))
        note = f"rank {last} was the last to be ready in {share} of the negotiations"
    return LateRanks(straggler, late_s, tuple(negotiated.tolist()), note, is_named=True)


def _cached(last: int | None, counts: Mapping[int, int], waiting: Times, step_s: float) -> LateRanks:
    """Cached negotiations show the wait and hide the rank: it is named when all the others name the same one."""
    whole = sum(counts.values())
    named = last is not None and whole >= _FEWEST_NAMED and counts[last] >= _AGREED * whole
    if last is None or not named or not stands_out(waiting, step_s):
        return LateRanks(note=f"rank unknown: cached negotiation; {_CAPTURE}", is_named=True)
    note = f"named by the {whole:,} negotiations that were not cached: {counts[last]:,} waited for it"
    return LateRanks(last, {last: float(np.median(waiting))}, (), note, is_named=True)
