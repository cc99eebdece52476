"""Brings the clocks of ranks together on the ends of the same collectives."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scalescope.intervals import Times
from scalescope.records.explanation import Clock
from scalescope.traces.trace import Trace

Moment = TypeVar("Moment", float, Times)

_COMPARED = 1500  # Collectives of each rank, from the beginning, in which the offset is sought
_TOGETHER_S = 1e-3
_EQUAL = 0.97
_NEAREST_S = 5e-3
# No rank can end before all have begun; the root of a broadcast can.
_SYMMETRIC = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
# On one host, and where hosts keep their clocks well, files tell the same time: ends that differ are no clock's fault.
_SAME_CLOCK_S = 100e-6


class _Sequence(NamedTuple):
    """Collectives of one rank in the order in which it launched them."""

    keys: NDArray[np.int64]
    starts: Times
    ends: Times


def align(traces: Sequence[Trace]) -> tuple[Clock, ...]:
    """A clock for every trace; the first one's is the reference. Without collectives in common there are 0 pairs."""
    sequences = _sequences(traces, only=_SYMMETRIC)
    if not all(len(each.keys) for each in sequences):
        sequences = _sequences(traces)
    first = sequences[0]
    clocks = []
    for at, (trace, mine) in enumerate(zip(traces, sequences, strict=True)):
        rank = at if trace.rank is None else trace.rank
        if at == 0:
            clocks.append(Clock(rank=rank, offset_s=0.0, drift=0.0, residual_s=0.0, pairs=len(first.keys)))
            continue
        known = trace.epoch_s and traces[0].epoch_s
        guess = trace.epoch_s - traces[0].epoch_s if known else None
        clocks.append(_clock(rank, first, mine, guess))
    return tuple(clocks)


def on_common_clock(times: Moment, clock: Clock) -> Moment:
    """Moments of a rank on the first rank's clock."""
    return times + clock.offset_s


def same_collectives(traces: Sequence[Trace], clocks: Sequence[Clock]) -> tuple[NDArray[np.int64], Times, Times]:
    """Collectives that all ranks have in common, in the order of the first rank's starts.

    Returns:
        Which of each rank's collectives they are, in the order of its starts, and when each rank's part began and ended
        on the common clock; one column per rank.
    """
    sequences = [
        _Sequence(each.keys, on_common_clock(each.starts, clock), on_common_clock(each.ends, clock))
        for each, clock in zip(_sequences(traces), clocks, strict=True)
    ]
    first = sequences[0]
    chosen = np.full((len(first.keys), len(sequences)), -1)
    chosen[:, 0] = np.arange(len(first.keys))
    for at, mine in enumerate(sequences[1:], 1):
        if np.array_equal(first.keys, mine.keys):
            chosen[:, at] = chosen[:, 0]
        else:
            here, there = _nearest(first, mine, _NEAREST_S + 10 * clocks[at].residual_s)
            chosen[here, at] = there
    rows = chosen[(chosen >= 0).all(axis=1)]
    starts = np.stack([each.starts[rows[:, at]] for at, each in enumerate(sequences)], axis=1)
    ends = np.stack([each.ends[rows[:, at]] for at, each in enumerate(sequences)], axis=1)
    return rows, starts, ends


def _sequences(traces: Sequence[Trace], only: tuple[str, ...] = ()) -> list[_Sequence]:
    """Collectives as numbers that mean the same on every rank; sizes count where every trace says them."""
    sized = all((trace.collectives.bytes >= 0).all() for trace in traces)
    numbers: dict[tuple[str, int], int] = {}
    sequences = []
    for trace in traces:
        order = np.argsort(trace.collectives.start_s, kind="stable")
        if only:
            order = order[np.isin(trace.collectives.operation[order].astype(str), only)]
        sizes = trace.collectives.bytes[order] if sized else np.zeros(len(order), dtype=np.int64)
        named = zip(trace.collectives.operation[order].tolist(), sizes.tolist(), strict=True)
        keys = np.array([numbers.setdefault(each, len(numbers)) for each in named], dtype=np.int64)
        sequences.append(_Sequence(keys, trace.collectives.start_s[order], trace.collectives.end_s[order]))
    return sequences


def _clock(rank: int, first: _Sequence, mine: _Sequence, guess: float | None) -> Clock:
    """Clock of a rank, whose offset is taken to be constant: no recorded trace showed a drift that mattered."""
    offset = _likely_offset(first, mine, guess)
    if offset is None:
        return Clock(rank=rank, offset_s=guess or 0.0, drift=0.0, residual_s=0.0, pairs=0)
    here = there = np.arange(len(first.keys))
    in_order = np.array_equal(first.keys, mine.keys)
    if in_order:
        middle = float(np.median(first.ends - mine.ends))
        # Few ends meet where a slow link ends a message at different times: then they meet by chance elsewhere.
        is_nearer = guess is not None and abs(middle - guess) < abs(offset - guess)
        in_order = is_nearer or abs(middle - offset) < _NEAREST_S
    if not in_order:
        here, there = _nearest(first, _Sequence(mine.keys, mine.starts, mine.ends + offset), _NEAREST_S)
    difference = first.ends[here] - mine.ends[there]
    if len(difference):
        offset, _ = _densest(difference, 1 / 3)
    _, residual = _densest(difference, 1 / 2) if len(difference) else (0.0, 0.0)
    if guess is not None and abs(offset - guess) < max(_SAME_CLOCK_S, residual):
        offset = guess
    return Clock(rank=rank, offset_s=offset, drift=0.0, residual_s=residual, pairs=len(here))


def _densest(values: Times, share: float) -> tuple[float, float]:
    """Middle and half width of the shortest stretch with this share of the values.

    A busy rank writes down its ends late, and always late: the middle of all values would be pulled to one side.
    """
    ordered = np.sort(values)
    count = min(len(ordered), max(5, int(np.ceil(share * len(ordered)))))
    widths = ordered[count - 1 :] - ordered[: len(ordered) - count + 1]
    at = int(widths.argmin())
    return float(np.median(ordered[at : at + count])), float(widths[at]) / 2


def _likely_offset(first: _Sequence, mine: _Sequence, guess: float | None) -> float | None:
    """The offset at which most ends of equal collectives meet; the guess decides between equals."""
    ours, theirs = first.keys[:_COMPARED], mine.keys[:_COMPARED]
    apart = [
        np.subtract.outer(first.ends[:_COMPARED][ours == key], mine.ends[:_COMPARED][theirs == key]).ravel()
        for key in np.intersect1d(ours, theirs)
    ]
    if not apart:
        return None
    offsets = np.sort(np.concatenate(apart))
    counts = np.searchsorted(offsets, offsets + _TOGETHER_S, side="right") - np.arange(len(offsets))
    best = np.flatnonzero(counts >= _EQUAL * counts.max())
    at = int(best[np.abs(offsets[best] - guess).argmin()] if guess is not None else counts.argmax())
    return float(np.median(offsets[at : at + int(counts[at])]))


def _nearest(first: _Sequence, mine: _Sequence, within: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of equal collectives whose ends lie next to each other on one clock."""
    here: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    there: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    for key in np.intersect1d(first.keys, mine.keys):
        ours, theirs = np.flatnonzero(first.keys == key), np.flatnonzero(mine.keys == key)
        closest = _closest(first.ends[ours], mine.ends[theirs])
        back = _closest(mine.ends[theirs], first.ends[ours])
        mutual = back[closest] == np.arange(len(ours))
        close = np.abs(first.ends[ours] - mine.ends[theirs][closest]) <= within
        here.append(ours[mutual & close])
        there.append(theirs[closest][mutual & close])
    ordered = np.argsort(np.concatenate(here), kind="stable")
    return np.concatenate(here)[ordered], np.concatenate(there)[ordered]


def _closest(wanted: Times, times: Times) -> NDArray[np.int64]:
    """Find the index of the closest moment for each wanted one."""
    order = np.argsort(times, kind="stable")
    right = np.clip(np.searchsorted(times[order], wanted), 0, len(times) - 1)
    left = np.maximum(right - 1, 0)
    nearer = np.abs(times[order][left] - wanted) <= np.abs(times[order][right] - wanted)
    return np.asarray(order[np.where(nearer, left, right)])
