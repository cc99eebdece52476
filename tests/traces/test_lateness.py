"""Who others wait for: what waits under compute costs nothing, and chance names nobody."""

from pathlib import Path

import numpy as np
import pytest

from scalescope.intervals import Intervals, Times, union
from scalescope.records.explanation import Clock
from scalescope.traces.lateness import Lateness, lateness, stands_out
from scalescope.traces.trace import Activities, Collectives, Trace, exposed_of, parts_of

STEP_S, BACKWARD_S, STEPS = 0.1, 0.08, 30
CHANCE = np.random.default_rng(11)


def rank_trace(rank: int, starts: Times, ends: Times, *, computes_until: Times | float) -> Trace:
    """A rank that computes from the beginning of each step; `starts` and `ends`: one row per step, in seconds of it."""
    begins = np.arange(len(starts)) * STEP_S
    from_, until = (starts + begins[:, None]).ravel(), (ends + begins[:, None]).ravel()
    activities = Activities(compute=Intervals(begins, begins + computes_until), exchange=union(from_, until))
    order = np.argsort(until, kind="stable")
    operation = np.array(["allreduce"] * len(until), dtype=object)
    return Trace(
        path=Path(f"rank{rank}.json"),
        rank=rank,
        world_size=2,
        backend="gloo",
        device="cpu",
        epoch_s=1.0,
        steps_from="marks",
        starts_s=begins,
        ends_s=begins + STEP_S,
        parts=parts_of(activities, begins, begins + STEP_S),
        collectives=Collectives(operation, np.full(len(until), 1000), from_[order], until[order]),
        exchange=union(from_, until),
        exposed=exposed_of(activities),
    )


def compared(traces: list[Trace], offsets: Times | None = None) -> Lateness:
    moved = np.zeros(len(traces)) if offsets is None else offsets
    return lateness(
        traces,
        [Clock(rank=at, offset_s=float(moved[at]), drift=0.0, residual_s=0.0, pairs=9) for at in range(len(traces))],
    )


def test_ranks_that_are_uneven_only_under_backward_wait_for_nothing() -> None:
    """Eight ranks come up to 20 ms apart to a message in the middle of backward, and end it together."""
    traces = []
    for rank in range(8):
        starts = np.stack([0.02 + 0.02 * CHANCE.random(STEPS), np.full(STEPS, BACKWARD_S)], axis=1)
        ends = np.tile([0.045, BACKWARD_S + 0.005], (STEPS, 1))
        traces.append(rank_trace(rank, starts, ends, computes_until=BACKWARD_S))
    found = compared(traces)
    assert np.median(found.wait_s[::2]) > 0.01, "in the messages themselves they do wait"
    assert found.held_up_s.max() < 1e-9
    assert max(each.max() for each in found.waiting_s) < 1e-9
    assert found.straggler is None


def late_last(late_s: Times) -> list[Trace]:
    """Two messages overlap at the end of backward; the last rank comes later to both by so much."""
    traces = []
    for rank in range(3):
        mine = late_s if rank == 2 else np.zeros(STEPS)
        starts = np.stack([mine + 0.060, mine + 0.061], axis=1)
        ends = np.stack([late_s + 0.062, late_s + 0.066], axis=1)
        traces.append(rank_trace(rank, starts, ends, computes_until=mine + 0.060))
    return traces


def test_a_moment_of_waiting_counts_once_however_many_messages_wait() -> None:
    found = compared(late_last(np.full(STEPS, 0.02)))
    for waiting, expected in zip(found.waiting_s, (0.02, 0.02, 0.0), strict=True):
        assert waiting == pytest.approx(np.full(STEPS, expected), abs=1.1e-3)
    assert found.median_late_s == pytest.approx((0.0, 0.0, 0.02), abs=1.1e-3)
    assert found.straggler == 2


def test_waits_do_not_grow_with_the_error_of_clocks() -> None:
    """What a rank takes longer than the shortest needs no second clock."""
    found = compared(late_last(np.zeros(STEPS)), offsets=np.array([0.0, 0.003, -0.003]))
    assert found.wait_s.max() < 1e-6
    assert max(each.max() for each in found.waiting_s) < 1e-6


def correlated(count: int, correlation: float, steps: int) -> Times:
    """Lateness of two equal ranks, one against the other, in so many jobs; in deviations."""
    values = np.zeros((count, steps))
    values[:, 0] = CHANCE.normal(size=count)
    for at in range(1, steps):
        values[:, at] = correlation * values[:, at - 1] + np.sqrt(1 - correlation**2) * CHANCE.normal(size=count)
    return values


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [5, 10, 20, 50])
def test_of_equal_ranks_hardly_one_stands_out_however_alike_neighbouring_steps_are(
    correlation: float, steps: int
) -> None:
    later = 0.010 * correlated(400, correlation, steps)
    named = [stands_out(each * np.sign(np.median(each)), step_s=0.05) for each in later]
    assert np.mean(named) <= 0.05


@pytest.mark.parametrize("steps", [10, 20, 50])
def test_a_rank_that_is_late_by_far_more_than_steps_differ_stands_out(steps: int) -> None:
    late = 0.020 + 0.001 * correlated(100, 0.5, steps)
    assert np.mean([stands_out(each, step_s=0.035) for each in late]) > 0.95
