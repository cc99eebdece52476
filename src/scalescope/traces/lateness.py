"""Late arrivals of ranks at collectives, and how long the others waited and did nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalescope.intervals import Intervals, Times, before, holding, union
from scalescope.records.explanation import Clock
from scalescope.traces.alignment import on_common_clock, same_collectives
from scalescope.traces.trace import Trace

_LATE_S = 1e-3
_LATE_SHARE = 0.05
_LATE_STEPS = 0.95
_FEWEST_STEPS = 8
# Lateness of neighbouring steps is alike. So many deviations it must be, plus these over the number of steps: of two
# equal ranks whose lateness is correlated by 0.9 that names one in 1 to 4 of 100 traces (bench explain_truth).
_DEVIATIONS, _DEVIATIONS_OF_FEW = 1.0, 50.0
_OWN_SHARE = 0.25  # Of the time lost that a straggler must have spent on something of its own
_MOST_WAITING = 16  # Ranks whose waits for one rank are looked at, evenly chosen


@dataclass(frozen=True)
class Lateness:
    """Collectives that all ranks have in common, in the order of the first rank's starts; one column per rank."""

    ranks: tuple[int, ...]
    operation: NDArray[np.object_]
    bytes: NDArray[np.int64]
    late_s: Times  # How much later than the first one each rank came to each collective; shape (collectives, ranks)
    transfer_s: Times  # The shortest rank's time: what it takes once all are there
    wait_s: Times  # What the first rank waits for the last one
    # For each rank and each of its own steps: its exposed communication until the last rank had come
    waiting_s: tuple[Times, ...]
    # How long others waited for each rank in each step and did nothing else, in the mean; shape (steps, ranks)
    held_up_s: Times
    step_s: float  # The median step, in the mean over ranks; 0 without steps
    own_s: tuple[float, ...]  # For each rank the median over its steps of what is not exposed communication
    at: NDArray[np.int64]  # Of each collective: its place among those of the first rank's trace
    mean_wait_s: Times  # What ranks wait for the last one at each collective, in the mean

    @property
    def median_late_s(self) -> tuple[float, ...]:
        """Median over steps of how long others waited for each rank, over collectives without steps."""
        rows = self.held_up_s if len(self.held_up_s) else self.late_s
        return tuple(np.median(rows, axis=0).tolist()) if len(rows) else ()

    @property
    def straggler(self) -> int | None:
        """The rank that others wait for in most steps and for long enough to matter; None when there is none.

        It must be busy for longer as well: else only its threads for communication were late.
        """
        late, rows = np.array(self.median_late_s), self.held_up_s
        if not len(rows):
            return None
        worst = int(late.argmax())
        later = rows[:, worst] - np.delete(rows, worst, axis=1).max(axis=1)
        busier = self.own_s[worst] - min(self.own_s)
        named = stands_out(later, self.step_s) and busier > _OWN_SHARE * np.median(later)
        return self.ranks[worst] if named else None


def stands_out(later_s: Times, step_s: float) -> bool:
    """Test whether a rank that is later than every other one, step by step, is late by more than chance.

    In nearly all steps, by more than steps differ (the fewer there are the more), and long enough to matter.
    """
    if len(later_s) < _FEWEST_STEPS:
        return False
    low, typical, high = np.percentile(later_s, (25, 50, 75))
    deviation = (high - low) / 1.349
    return bool(
        typical > max(_LATE_S, _LATE_SHARE * step_s)
        and typical > (_DEVIATIONS + _DEVIATIONS_OF_FEW / len(later_s)) * deviation
        and float(np.mean(later_s > 0)) >= _LATE_STEPS
    )


def lateness(traces: Sequence[Trace], clocks: Sequence[Clock]) -> Lateness:
    """Compares starts of two or more ranks on the common clock; needs clocks that were aligned.

    A rank waits from its own start until the other one's, but no longer than it takes more than the shortest rank:
    that needs one clock only, so an error between clocks makes no wait.
    """
    rows, starts, ends = same_collectives(traces, clocks)
    order = np.argsort(traces[0].collectives.start_s, kind="stable")[rows[:, 0]]
    transfer = (ends - starts).min(axis=1)
    longest_until = ends - transfer[:, None]
    last = starts.max(axis=1)
    waits = np.maximum(np.minimum(last[:, None], longest_until) - starts, 0.0)
    steps = [
        (on_common_clock(trace.starts_s, clock), on_common_clock(trace.ends_s, clock))
        for trace, clock in zip(traces, clocks, strict=True)
    ]
    exposed = [
        None if trace.exposed is None else Intervals(*(on_common_clock(edge, clock) for edge in trace.exposed))
        for trace, clock in zip(traces, clocks, strict=True)
    ]

    def waited(rank: int, until: Times, at: int) -> Times:
        """Exposed communication of a rank until these moments, in each step of the rank `at`; no moment twice."""
        moments = union(starts[:, rank], np.minimum(until, longest_until[:, rank]))
        lengths, alone = moments.ends - moments.starts, exposed[rank]
        if alone is not None:
            lengths = before(alone, moments.ends) - before(alone, moments.starts)
        step = holding(*steps[at], moments.starts)
        inside = step >= 0
        return np.asarray(np.bincount(step[inside], lengths[inside], minlength=len(steps[at][0])), dtype=float)

    count = len(traces)
    looked_at = np.unique(np.linspace(0, count - 1, min(count, _MOST_WAITING)).astype(int)).tolist()
    held_up = [
        np.mean([waited(other, starts[:, rank], 0) for other in looked_at if other != rank], axis=0)
        for rank in range(count)
    ]
    lengths = [np.median(trace.ends_s - trace.starts_s) for trace in traces if len(trace.starts_s)]
    return Lateness(
        ranks=tuple(clock.rank for clock in clocks),
        operation=traces[0].collectives.operation[order],
        bytes=traces[0].collectives.bytes[order],
        late_s=starts - starts.min(axis=1, keepdims=True),
        transfer_s=transfer,
        wait_s=waits.max(axis=1),
        waiting_s=tuple(waited(rank, last, rank) for rank in range(count)),
        held_up_s=np.stack(held_up, axis=1),
        step_s=float(np.mean(lengths)) if lengths else 0.0,
        own_s=tuple(_own(trace) for trace in traces),
        at=order,
        mean_wait_s=waits.mean(axis=1),
    )


def _own(trace: Trace) -> float:
    exposed = 0.0 if trace.parts.exposed is None else trace.parts.exposed
    return float(np.median(trace.parts.step - exposed)) if len(trace.parts.step) else 0.0
