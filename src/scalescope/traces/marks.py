"""The agent's marks of every rank, and what they add to a Horovod timeline, which alone knows no compute."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from scalescope.errors import UsageError
from scalescope.intervals import Intervals, Times, between, joined, union, without
from scalescope.traces.event_stream import UNREADABLE
from scalescope.traces.trace import Activities, Parts, Trace, exposed_of, parts_of

_LONGEST_LINE = 1 << 20
_ENOUGH = 10  # Steps without a tracer that say who is late
_FEWEST_UNTRACED = 5  # Steps without a tracer that say where their time goes

_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Spans = list[tuple[_Nanoseconds, _Nanoseconds]]


class _Line(msgspec.Struct):
    """Line of the file, of any kind; the kind says which fields count."""

    kind: str
    version: int = 0
    rank: Annotated[int, msgspec.Meta(ge=0, le=10**6)] = 0
    world_size: int = 1
    host: str = ""
    engine: str = ""
    device: str = "cpu"
    wall_ns: _Nanoseconds = 0
    n: _Nanoseconds = 0
    s: _Nanoseconds = 0
    t: _Nanoseconds = 0
    traced: int = 0
    input: _Spans = []
    forward: _Spans = []
    backward: _Spans = []
    synchronize: _Spans = []
    optimizer: _Spans = []


@dataclass(frozen=True)
class RankMarks:
    """Activities of one rank, in seconds since 1970."""

    path: Path
    rank: int
    world_size: int
    host: str
    engine: str
    device: str  # cuda: these are the times at which work was handed to the GPU
    numbers: NDArray[np.int64]  # Of the steps, ascending, from 0
    starts_s: Times
    ends_s: Times
    traced: NDArray[np.bool_]  # Whether the profiler or the timeline was on
    input: Intervals  # Waiting for a DataLoader; none at all may also mean that the script has no DataLoader
    forward: Intervals  # Of the outermost model
    backward: Intervals
    synchronize: Intervals  # Waiting for Horovod's handles, in the optimizer's step or elsewhere
    optimizer: Intervals


_PARTS = [each.name for each in dataclasses.fields(RankMarks) if each.type is Intervals]


def read_marks(path: Path) -> RankMarks:
    """One rank's file, as far as it goes."""
    decode = msgspec.json.Decoder(_Line).decode
    hello, steps = None, list[_Line]()  # In ascending order
    with open(path, "rb") as file:
        while data := file.readline(_LONGEST_LINE):
            try:
                line = decode(data)
            except UNREADABLE:  # torn by a kill or a full disk
                continue
            if line.kind == "hello":
                hello = line
            elif line.kind == "step" and line.t >= line.s and (not steps or line.s >= steps[-1].t):
                steps.append(line)
    if hello is None:
        raise UsageError(f"{path} holds no marks of a rank: name a folder that `scalescope measure --trace` made")
    offset_s = (hello.wall_ns - hello.t) * 1e-9

    def on_epoch(nanoseconds: Sequence[int]) -> Times:
        return np.asarray(np.array(nanoseconds, dtype=np.int64) * 1e-9 + offset_s, dtype=float)

    def spans(part: str) -> Intervals:
        found = [span for step in steps for span in getattr(step, part)]
        return union(on_epoch([span[0] for span in found]), on_epoch([span[1] for span in found]))

    return RankMarks(
        path,
        hello.rank,
        hello.world_size,
        hello.host,
        hello.engine,
        hello.device,
        numbers=np.array([step.n for step in steps], dtype=np.int64),
        starts_s=on_epoch([step.s for step in steps]),
        ends_s=on_epoch([step.t for step in steps]),
        traced=np.array([bool(step.traced) for step in steps], dtype=np.bool_),
        **{part: spans(part) for part in _PARTS},
    )


def separate(trace: Trace, marks: Sequence[RankMarks]) -> list[Trace]:
    """One trace per rank from Horovod's timeline and all ranks' marks, with every part of a step apart.

    Compute is forward and backward without any wait, and the optimizer is without the wait for gradients. Exchange is
    every wait of the rank, and what the timeline has while the rank takes part: what others negotiate before its
    backward begins is none of its time.
    """
    if not marks:
        return [trace]
    if not trace.epoch_s:
        note = "the timeline does not say when it began, so the ranks' own clocks cannot be brought to its clock"
        return [dataclasses.replace(trace, notes=(*trace.notes, note))]
    ordered = sorted(marks, key=lambda rank: rank.rank)
    offsets = [_clock_offset(rank, ordered[0]) for rank in ordered]
    last = _last_arrivals(ordered, offsets)
    return [_separated(trace, rank, offset, last) for rank, offset in zip(ordered, offsets, strict=True)]


def _last_arrivals(marks: Sequence[RankMarks], offsets: Sequence[float]) -> dict[int, float]:
    """Moments when the last rank had its gradients, on the first rank's clock; only steps that every rank tells of."""
    last: dict[int, float] = {}
    if len(marks) < 2:
        return last
    each = [
        dict(zip(rank.numbers.tolist(), (_last_wait(rank)[0] - offset).tolist(), strict=True))
        for rank, offset in zip(marks, offsets, strict=True)
    ]
    for number in set.intersection(*map(set, each)):
        latest = max(arrived[number] for arrived in each)
        if not any(np.isnan(arrived[number]) for arrived in each):
            last[number] = latest
    return last


def _separated(trace: Trace, marks: RankMarks, offset_s: float, last: Mapping[int, float]) -> Trace:
    zero_s = trace.epoch_s + offset_s

    def here(intervals: Intervals) -> Intervals:
        return Intervals(intervals.starts - zero_s, intervals.ends - zero_s)

    starts, ends = marks.starts_s - zero_s, marks.ends_s - zero_s
    kept = marks.traced.copy()
    if len(trace.exchange.starts):
        kept &= (starts < trace.exchange.ends[-1]) & (ends > trace.exchange.starts[0])
    waiting, fetching = here(marks.synchronize), here(marks.input)
    # Before its first backward a rank takes part in nothing, apart from what a model exchanges in its forward.
    backward = np.append(marks.backward.starts, np.inf)[np.searchsorted(marks.backward.starts, marks.starts_s)]
    before = without(union(marks.starts_s, np.minimum(backward, marks.ends_s)), marks.forward)
    exchange = joined(without(trace.exchange, here(before)), waiting)
    on_host = marks.device == "cpu"
    activities = Activities(
        compute=without(here(joined(marks.forward, marks.backward)), joined(waiting, fetching)) if on_host else None,
        optimizer=without(here(marks.optimizer), waiting) if on_host else None,
        exchange=exchange,
        input=fetching if len(fetching.starts) else None,
    )
    alone = exposed_of(activities)
    arrived = _last_wait(marks)[0] - zero_s
    until = np.array([last.get(number, np.nan) for number in marks.numbers.tolist()]) - trace.epoch_s
    is_known = bool(kept.any()) and not np.isnan((arrived + until)[kept]).any()
    unsent = without(alone, union(trace.collectives.start_s, trace.collectives.end_s))
    waited = between(unsent, arrived[kept], np.clip(until, arrived, ends)[kept]) if is_known else None
    moved = (
        f"rank {marks.rank}'s clock was moved by {-offset_s:.6f} s, to where gradients are there on all ranks at once"
    )
    return dataclasses.replace(
        trace,
        rank=marks.rank,
        world_size=marks.world_size,
        steps_from="marks",
        starts_s=starts[kept],
        ends_s=ends[kept],
        parts=dataclasses.replace(parts_of(activities, starts[kept], ends[kept], alone), waiting=waited),
        exchange=exchange,
        exposed=alone,
        notes=(*trace.notes, moved) if offset_s else trace.notes,
    )


def _clock_offset(marks: RankMarks, first: RankMarks) -> float:
    """Estimate by how much a rank on another host is ahead: gradients are there on all ranks at the same time."""
    if marks.host == first.host:
        return 0.0
    _, ours, theirs = np.intersect1d(marks.numbers, first.numbers, return_indices=True)
    apart = _last_wait(marks)[1][ours] - _last_wait(first)[1][theirs]
    return float(np.median(apart[~np.isnan(apart)])) if not np.all(np.isnan(apart)) else 0.0


def _last_wait(marks: RankMarks) -> tuple[Times, Times]:
    """Per step when the wait for gradients began and ended: its last one; nan without one."""
    begun, over = marks.synchronize
    at = np.searchsorted(over, marks.ends_s, side="right") - 1
    begins, ends = (np.append(times, np.nan)[at] for times in (begun, over))
    inside = (at >= 0) & (begins >= marks.starts_s)
    return np.where(inside, begins, np.nan), np.where(inside, ends, np.nan)


def untraced_parts(marks: Sequence[RankMarks]) -> list[Parts]:
    """The parts of each rank's steps next to the traced ones, as far as marks tell them apart; empty if there are few.

    With Horovod the wait for gradients is exposed communication. Other engines wait inside backward, which then holds
    compute and communication; one process alone only computes there.
    """
    ordered = sorted(marks, key=lambda rank: rank.rank)
    offsets = [_clock_offset(rank, ordered[0]) for rank in ordered]
    last = _last_arrivals(ordered, offsets)
    found = []
    for rank, offset in zip(ordered, offsets, strict=True):
        traced = rank.numbers[rank.traced]
        if not len(traced):
            return []
        first = int(traced[0]) - len(traced) // 2
        kept = ~rank.traced & (rank.numbers >= first) & (np.abs(rank.numbers - int(traced[-1]) - 1) > 1)
        if kept.sum() < _FEWEST_UNTRACED or rank.device != "cpu":
            return []
        waits, alone = bool(len(rank.synchronize.starts)), rank.world_size < 2
        computing = without(joined(rank.forward, rank.backward), joined(rank.synchronize, rank.input))
        activities = Activities(
            compute=computing if waits or alone else None,
            optimizer=without(rank.optimizer, rank.synchronize),
            exchange=rank.synchronize if waits else None,
            input=rank.input if len(rank.input.starts) else None,
        )
        starts, ends = rank.starts_s[kept], rank.ends_s[kept]
        parts = parts_of(activities, starts, ends)
        until = np.array([last.get(number, np.nan) for number in rank.numbers[kept].tolist()]) + offset
        arrived = _last_wait(rank)[0][kept]
        if waits and not np.isnan(arrived + until).any():
            waited = between(rank.synchronize, arrived, np.clip(until, arrived, ends))
            parts = dataclasses.replace(parts, waiting=waited)
        found.append(parts)
    return found


def arrivals(marks: Sequence[RankMarks], *, warmup: int = 0) -> dict[int, Times]:
    """Per rank when it had its gradients in each step, after the first rank had them; empty if unknown.

    Steps that were not traced tell it, where there are enough of them: a timeline is written by rank 0, which is late
    for that alone.
    """
    ordered = sorted(marks, key=lambda rank: rank.rank)
    if len(ordered) < 2:
        return {}
    common = set.intersection(*(set(rank.numbers[rank.numbers >= warmup].tolist()) for rank in ordered))
    traced = {number for rank in ordered for number in rank.numbers[rank.traced].tolist()}
    wanted = np.array(sorted(common - traced if len(common - traced) >= _ENOUGH else common))
    if not len(wanted):
        return {}
    times = np.array(
        [
            (_last_wait(rank)[0] - _clock_offset(rank, ordered[0]))[np.searchsorted(rank.numbers, wanted)]
            for rank in ordered
        ]
    )
    times = times[:, ~np.isnan(times).any(axis=0)]
    if not times.shape[1]:
        return {}
    return {rank.rank: late for rank, late in zip(ordered, times - times.min(axis=0), strict=True)}
