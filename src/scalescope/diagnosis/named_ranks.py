"""Who is late according to a bare Horovod timeline: negotiations name the last rank, unless they were cached."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scalescope.intervals import Times
from scalescope.records.explanation import HorovodAccount
from scalescope.traces.horovod.accounting import CYCLES_S
from scalescope.traces.lateness import stands_out
from scalescope.traces.trace import Trace
from scalescope.units import format_share

_AGREED = 0.95  # Of the negotiations that name a rank must name the same one, before it stands for those that name none
_FEWEST_NAMED = 3
_CAPTURE = "`scalescope explain --np N --engine horovod -- COMMAND` compares the clocks of the ranks"


@dataclass(frozen=True)
class NamedRanks:
    """What the negotiations of a timeline tell about ranks."""

    straggler: int | None = None
    # Seconds of a steady step that wait for a rank alone, medians.
    late_s: Mapping[int, float] = field(default_factory=dict)
    # Steady step by steady step, how long ranks waited for whichever was last; empty where waiting cannot be told.
    skew_s: tuple[float, ...] = ()
    note: str = ""


NOBODY = NamedRanks()


def named_ranks(trace: Trace, account: HorovodAccount, warmup: int) -> NamedRanks:
    """The late rank, by its time in every step where negotiations name it, else by all that name one."""
    count = len(trace.starts_s)
    if trace.negotiated is None or count <= warmup:
        return NOBODY
    step_s = float(np.median((trace.ends_s - trace.starts_s)[warmup:]))
    told = trace.held_up
    waits = {rank: told.by_step(rank, count)[warmup:] for rank in np.unique(told.rank).tolist()} if told else {}
    late = {rank: float(np.median(each)) for rank, each in sorted(waits.items())}
    if waits:
        worst = max(late, key=lambda rank: late[rank])
        others = np.max([np.zeros(count - warmup), *(each for rank, each in waits.items() if rank != worst)], axis=0)
        if stands_out(waits[worst] - others, step_s):
            return NamedRanks(worst, late, tuple(trace.negotiated[warmup:].tolist()), _last_words(account))
    if not account.cached:
        return NamedRanks(None, late, tuple(trace.negotiated[warmup:].tolist()), _last_words(account))
    return _cached(account, np.maximum(trace.negotiated[warmup:] - CYCLES_S, 0.0), step_s)


def _cached(account: HorovodAccount, waiting: Times, step_s: float) -> NamedRanks:
    """Cached negotiations show the wait and hide the rank: it is named when all the others name the same one."""
    counts, whole = account.last_rank, sum(account.last_rank.values())
    last = max(counts, key=lambda rank: counts[rank], default=None)
    named = last is not None and whole >= _FEWEST_NAMED and counts[last] >= _AGREED * whole
    if last is None or not named or not stands_out(waiting, step_s):
        return NamedRanks(note=f"rank unknown: cached negotiation; {_CAPTURE}")
    note = f"named by the {whole:,} negotiations that were not cached: {counts[last]:,} waited for it"
    return NamedRanks(last, {last: float(np.median(waiting))}, (), note)


def _last_words(account: HorovodAccount) -> str:
    counts = account.last_rank
    if not counts:
        return ""
    last = max(counts, key=lambda rank: counts[rank])
    share = format_share(counts[last] / sum(counts.values()))
    return f"rank {last} was the last to be ready in {share} of the negotiations"
