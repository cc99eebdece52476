"""Collectives as FSDP2's ranges name them: the pass and the module of each, and whether it was prefetched."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.intervals import Intervals, Times, holding
from scalescope.traces.kineto.collector import Collector, Lanes, launched
from scalescope.traces.trace import Issued

ROOT = "root"  # The module that FSDP2 leaves unnamed in its ranges
_NAMED = re.compile(r"^FSDP::(\w+)(?: for (.*)| \((.*)\))?$")
_PHASES = {
    "pre_forward": "forward",
    "forward_prefetch": "forward",
    "pre_backward": "backward",
    "backward_prefetch": "backward",
    "post_backward_reduce": "backward",
}
_EXCHANGING = ("all_gather", "post_backward_reduce")
_PASS = "root_post_backward_callback"  # Ends every backward pass


class _Ranges(NamedTuple):
    """Ranges of one thread that do not overlap, ascending."""

    starts: Times
    ends: Times
    modules: NDArray[np.object_]

    def around(self, times: Times) -> NDArray[np.int64]:
        """The range that holds each moment; -1 where none does."""
        return holding(self.starts, self.ends, times)


def issued(
    found: Collector, called: dict[int, tuple[float, int | str]], waits: Intervals, kept: NDArray[np.int64]
) -> Issued:
    """For each of these collectives what FSDP2 did when it was issued.

    Args:
        found: All that the file holds.
        called: When and on which thread kernels were launched, by correlation; empty on CPUs.
        waits: When the host waited for its GPU.
        kept: The collectives wanted, by their index in the file.
    """
    issue_s, lanes = _issues(found, called)
    issue_s, lanes = issue_s[kept], lanes[kept]
    phase, module = np.full(len(kept), "", dtype=object), np.full(len(kept), "", dtype=object)
    prefetched, issuing_s = np.zeros(len(kept), dtype=bool), np.zeros(len(kept))
    for lane in set(found.sharding.lanes):
        mine = np.flatnonzero((lanes == lane) & np.isfinite(issue_s))
        exchanging = _ranges(found, lane, _EXCHANGING)
        holder = exchanging.around(issue_s[mine])
        mine, holder = mine[holder >= 0], holder[holder >= 0]
        module[mine] = exchanging.modules[holder]
        issuing_s[mine] = exchanging.ends[holder] - exchanging.starts[holder]
        began = np.full(len(mine), -np.inf)
        for name, step_phase in _PHASES.items():
            ranges = _ranges(found, lane, (name,))
            if not len(ranges.starts):
                continue
            around = ranges.around(issue_s[mine])
            start = np.where(around >= 0, ranges.starts[around], -np.inf)
            inner = start > began
            phase[mine[inner]], began[inner] = step_phase, start[inner]
            prefetched[mine] |= (around >= 0) & name.endswith("prefetch")
    group = np.array(found.groups, dtype=object)[kept]
    followed = _is_followed(found, issue_s)
    result = Issued(phase, module, prefetched, followed, group, issue_s, issuing_s, tuple(_copies(found)), waits)
    order = np.argsort(np.array(found.collectives.start_s)[kept], kind="stable")
    _fill(result, np.array(found.collectives.names, dtype=object)[kept], order)
    return result


def _copies(found: Collector) -> list[tuple[Literal["gathered", "reduced"], str, float]]:
    """Copies of the stream that copies out of gathers; another one reduces in a range of the same name."""
    kinds: dict[str, Literal["gathered", "reduced"]]
    kinds = {"all_gather_copy_out": "gathered", "post_backward_reduce": "reduced"}
    marks, copies = found.device_sharding, list[tuple[Literal["gathered", "reduced"], str, float]]()
    computing: int | str | None = None
    for at in marks.by_start():
        kind, module = _parsed(marks.names[at])
        if kind in kinds:
            computing = marks.lanes[at] if computing is None else computing
            if marks.lanes[at] == computing:
                copies.append((kinds[kind], module, marks.start_s[at]))
    return copies


def _fill(issued: Issued, operations: NDArray[np.object_], order: NDArray[np.int64]) -> None:
    """Fill in what a host that runs ahead launched before the trace began: what comes there in each later step."""
    known = np.flatnonzero(issued.phase[order] != "")
    if not len(known) or not known[0]:
        return
    first = int(known[0])
    columns = (operations[order].tolist(), issued.phase[order].tolist(), issued.module[order].tolist())
    keys = list(zip(*columns, strict=True))
    period = _period(keys[first:])
    for at in range(first if period else 0):
        like = at + period * -(-(first - at) // period)
        if keys[like][0] == keys[at][0]:
            for column in (issued.phase, issued.module, issued.prefetched, issued.followed, issued.group):
                column[order[at]] = column[order[like]]


def _period(keys: Sequence[object]) -> int:
    """The shortest distance at which a sequence repeats itself at least twice; 0 where it does not."""
    distances = (at for at in range(1, len(keys) // 2 + 1) if keys[at] == keys[0])
    return next((at for at in distances if keys[at:] == keys[:-at]), 0)


def blocked(found: Collector) -> Lanes:
    """By thread when FSDP2 waited for works of gloo: an operator of the autograd engine goes on meanwhile."""
    waits = Lanes()
    issue_s, lanes = _issues(found, {})
    ends = np.array(found.collectives.end_s)
    for lane in set(found.sharding.lanes):
        mine, ranges = np.flatnonzero(lanes == lane), _ranges(found, lane, _EXCHANGING)
        holder = ranges.around(issue_s[mine])
        mine, holder = mine[holder >= 0], holder[holder >= 0]
        if len(mine):
            waits.add(lane, issue_s[mine], np.minimum(ends[mine], ranges.ends[holder]))
    return waits


def exchanging(found: Collector) -> list[int]:
    """The ranges in which FSDP2 launches collectives, by their places among its ranges."""
    return [at for at, name in enumerate(found.sharding.names) if _parsed(name)[0] in _EXCHANGING]


@lru_cache(maxsize=1 << 14)
def _parsed(name: str) -> tuple[str, str]:
    """Split the name of FSDP2's range into what it does and for which module."""
    match = _NAMED.match(name)
    return ("", "") if match is None else (match[1], match[2] or match[3] or ROOT)


def _ranges(found: Collector, lane: int | str, names: tuple[str, ...]) -> _Ranges:
    marks = found.sharding
    own = [at for at in marks.by_start() if marks.lanes[at] == lane and _parsed(marks.names[at])[0] in names]
    modules = np.array([_parsed(marks.names[at])[1] for at in own], dtype=object)
    return _Ranges(np.array(marks.start_s)[own], np.array(marks.end_s)[own], modules)


def _issues(
    found: Collector, called: dict[int, tuple[float, int | str]]
) -> "tuple[Times, np.ndarray[tuple[int], np.dtype[np.object_]]]":
    """Time and thread at which each collective was issued; NaN where that is not known.

    A kernel knows its call. Works of gloo do not: those of one operation are first in, first out.
    """
    works = found.collectives
    issue_s, lanes = np.full(len(works), np.nan), np.full(len(works), None, dtype=object)
    for at, correlation in enumerate(found.correlations):
        if correlation in called:
            issue_s[at], lanes[at] = called[correlation]
    if called:
        return issue_s, lanes
    marks = found.launches
    for operation in set(works.names):
        until, launches = dict[int | str, float](), list[int]()
        for at in marks.by_start():  # without those inside another one
            if marks.names[at] == operation and marks.start_s[at] >= until.get(marks.lanes[at], -np.inf):
                launches.append(at)
                until[marks.lanes[at]] = marks.end_s[at]
        own = [at for at in works.by_start() if works.names[at] == operation]
        for at, launch in launched([marks.start_s[at] for at in launches], [works.start_s[at] for at in own]):
            issue_s[own[at]], lanes[own[at]] = marks.start_s[launches[launch]], marks.lanes[launches[launch]]
    return issue_s, lanes


def _is_followed(found: Collector, issue_s: Times) -> NDArray[np.bool_]:
    """Mark collectives that another backward pass follows before the next step of an optimizer."""
    marks = found.sharding
    passes = np.sort([end for name, end in zip(marks.names, marks.end_s, strict=True) if name == f"FSDP::{_PASS}"])
    updates = np.sort(np.array(found.optimizers.start_s))
    if not len(passes) or not len(updates):
        return np.zeros(len(issue_s), dtype=bool)
    known = np.where(np.isfinite(issue_s), issue_s, np.inf)
    own = np.searchsorted(passes, known)  # The pass that it belongs to
    update = np.searchsorted(updates, known)
    until = np.append(updates, -np.inf)[update]  # Nothing is known of what follows the last step of the optimizer
    following = np.append(passes, np.inf)[np.minimum(own + 1, len(passes))]
    return np.asarray(following < until)
