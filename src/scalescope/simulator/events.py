"""Backward and the exchange of gradients during it, simulated for many configurations at once.

Two things go on in a rank: backward computes, and messages travel one after another. Each goes at full speed alone
and slower while the other is under way, because they share cores. Every pass of the loop goes on to the next moment
at which something begins or ends, in every configuration (cell) at its own pace. Times are in seconds from the start
of backward; arrays have one column per cell.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Cells = NDArray[np.int_]
# From the bytes of a message in each of some cells to its seconds when nothing else goes on.
Cost = Callable[[Floats, Cells], Floats]

_IDLE, _PAUSING, _SENDING = 0, 1, 2
_TINY = 1e-12


@dataclass(frozen=True)
class Traffic:
    """Messages to send: one row per message in its order, one column per cell."""

    ready_s: Floats  # Work that backward has done when a message is ready; never less than the row before
    bytes: Floats  # One per message
    cost: Cost
    fuse_bytes: float = 0.0  # Messages that are ready together travel as one up to this size; 0: each for itself
    cycle_s: Floats | float = 0.0  # Messages leave at the end of a cycle; 0: at once
    agreement_s: Floats | float = 0.0  # What ranks take to agree on a message before it leaves
    # Since the last cycle began, when backward begins; None: not known, half a cycle is waited for on average.
    since_cycle_s: Floats | float | None = None


@dataclass(frozen=True)
class OverlapSlowdown:
    """Slowdown of each side by the other; a number, or one per cell."""

    compute: Floats | float = 1.0  # Backward, while a message travels
    sending: Floats | float = 1.0  # A message, while backward computes


@dataclass(frozen=True)
class Outcome:
    """End of compute and messages, in each cell."""

    backward_s: Floats  # End of backward
    sent_s: Floats  # End of the last message, or of backward where that comes later
    hidden_s: Floats  # Time in which a message travelled under backward
    starts_s: Floats  # One row per message; of messages that travel together only the first has a time, the others 0
    ends_s: Floats
    since_cycle_s: Floats  # Since the last cycle began, at the end of all; 0 where that is not known

    @property
    def exposed_s(self) -> Floats:
        """Exchange without compute (records.timeline.exposed): all messages are ready when backward ends."""
        return self.sent_s - self.backward_s


def simulate(work_s: Floats, traffic: Traffic, slowdown: OverlapSlowdown) -> Outcome:
    """Run backward, `work_s` of work in each cell, and its messages to their ends."""
    width, count = len(work_s), len(traffic.bytes)
    cells = np.arange(width)
    ready = np.vstack([np.minimum(traffic.ready_s, work_s), np.full(width, np.inf)])
    travelled = np.concatenate([[0.0], np.cumsum(traffic.bytes)])
    starts, ends = np.zeros((count, width)), np.zeros((count, width))
    now, done, left, hidden, backward = (np.zeros(width) for _ in range(5))
    since_message = np.full(width, np.inf)
    cycle_s = np.broadcast_to(np.asarray(traffic.cycle_s, dtype=float), width)
    locked = traffic.since_cycle_s is not None and bool((cycle_s > 0).all())
    cycle_began = -np.broadcast_to(np.asarray(traffic.since_cycle_s or 0.0, dtype=float), width).copy()
    first, after = np.zeros(width, dtype=int), np.zeros(width, dtype=int)
    state = np.full(width, _IDLE)
    for _ in range(4 * count + 4):
        computing = done < work_s - _TINY
        if not computing.any() and (first >= count).all():
            break
        next_ready = ready[first, cells]
        wakes = (state == _IDLE) & (done >= next_ready - _TINY)
        state[wakes] = _PAUSING
        wait = _until_next(cycle_s, now - cycle_began) if locked else _until_cycle(traffic.cycle_s, since_message)
        cycle_began = np.where(wakes, now + wait, cycle_began)
        left = np.where(wakes, wait + traffic.agreement_s, left)
        leaves = (state == _PAUSING) & (left <= _TINY)
        if leaves.any():
            here = np.flatnonzero(leaves)
            after[here] = _fused(traffic, ready, travelled, first[here], done[here], here)
            left[here] = traffic.cost(travelled[after[here]] - travelled[first[here]], here)
            state[here] = _SENDING
            starts[first[here], here] = now[here]
        sending, busy = state == _SENDING, state != _IDLE
        both = sending & computing
        compute_rate = np.where(both, 1 / slowdown.compute, 1.0)
        rate = np.where(both, 1 / slowdown.sending, 1.0)
        goal = np.where(busy, work_s, np.minimum(next_ready, work_s))
        compute_left = np.where(computing, (goal - done) / compute_rate, np.inf)
        step = np.minimum(compute_left, np.where(busy, left / rate, np.inf))
        step = np.where(np.isfinite(step), np.maximum(step, 0.0), 0.0)
        now += step
        done += np.where(computing, step * compute_rate, 0.0)
        left -= np.where(busy, step * rate, 0.0)
        hidden += np.where(both, step, 0.0)
        since_message += step
        backward = np.where(computing, now, backward)
        arrived = sending & (left <= _TINY)
        ends[first[arrived], cells[arrived]] = now[arrived]
        since_message[arrived] = 0.0
        cycle_began = np.where(arrived & (now - cycle_began >= cycle_s), now, cycle_began)  # no pause when it is late
        first = np.where(arrived, after, first)
        state[arrived] = _IDLE
    sent = np.maximum(now, backward)
    since = np.mod(sent - cycle_began, cycle_s) if locked else np.zeros(width)
    return Outcome(backward, sent, hidden, starts, ends, since)


def _until_cycle(cycle_s: Floats | float, since_message: Floats) -> Floats:
    """Until the ranks look again: half a cycle on average for what gets ready at any moment, nothing for what waits."""
    return np.where(since_message < _TINY, 0.0, cycle_s / 2)


def _until_next(cycle_s: Floats, since_cycle: Floats) -> Floats:
    """Until the next cycle begins, of cycles that follow each other."""
    return np.asarray(np.maximum(np.ceil(since_cycle / cycle_s - _TINY) * cycle_s - since_cycle, 0.0))


def _fused(traffic: Traffic, ready: Floats, travelled: Floats, first: Cells, done: Floats, cells: Cells) -> Cells:
    """Index after the last message that travels together with the first one of each of these cells."""
    if not traffic.fuse_bytes:
        return first + 1
    low, high = first.copy(), np.full(len(first), len(ready) - 1)
    while (low < high).any():  # the first message that is not ready yet, by halving
        middle = (low + high) // 2
        there = ready[middle, cells] <= done + _TINY
        low, high = np.where(there & (low < high), middle + 1, low), np.where(there, high, middle)
    fits = np.searchsorted(travelled, travelled[first] + traffic.fuse_bytes + 0.5, side="right") - 1
    return np.asarray(np.maximum(np.minimum(low, fits), first + 1))
