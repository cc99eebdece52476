"""Backward and its messages to the second: a byte takes a second unless a test says otherwise."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.simulator.events import Outcome, OverlapSlowdown, Traffic, simulate

ALONE = OverlapSlowdown()


def run(
    work_s: float | Sequence[float],
    ready_s: Sequence[float] | Sequence[Sequence[float]],
    sizes: Sequence[float],
    slowdown: OverlapSlowdown = ALONE,
    **traffic: object,
) -> Outcome:
    work = np.atleast_1d(np.array(work_s, dtype=float))
    ready = np.array(ready_s, dtype=float).reshape(len(sizes), len(work))
    given = {"cost": lambda size, _: size, **traffic}
    return simulate(work, Traffic(ready_s=ready, bytes=np.array(sizes, dtype=float), **given), slowdown)


def travels(outcome: Outcome) -> list[tuple[float, float]]:
    """Start and end of each message in the first cell."""
    return list(zip(outcome.starts_s[:, 0].tolist(), outcome.ends_s[:, 0].tolist(), strict=True))


def totals(outcome: Outcome) -> tuple[float, float, float, float]:
    """End of backward, end of everything, hidden, exposed, in the first cell."""
    return tuple(float(part[0]) for part in (outcome.backward_s, outcome.sent_s, outcome.hidden_s, outcome.exposed_s))


def test_without_messages_there_is_only_backward() -> None:
    assert totals(run(10, [], [])) == (10, 10, 0, 0)


def test_a_message_that_is_ready_at_the_end_comes_after_it() -> None:
    outcome = run(10, [10], [3])
    assert travels(outcome) == [(10, 13)]
    assert totals(outcome) == (10, 13, 0, 3)


def test_a_message_is_hidden() -> None:
    outcome = run(10, [2], [3])
    assert travels(outcome) == [(2, 5)]
    assert totals(outcome) == (10, 10, 3, 0)


def test_a_message_is_hidden_as_far_as_backward_goes() -> None:
    outcome = run(10, [8], [3])
    assert travels(outcome) == [(8, 11)]
    assert totals(outcome) == (10, 11, 2, 1)


def test_a_message_waits_for_the_one_before() -> None:
    outcome = run(10, [2, 4, 9], [5, 1, 2])
    assert travels(outcome) == [(2, 7), (7, 8), (9, 11)]
    assert totals(outcome) == (10, 11, 7, 1)


def test_what_is_ready_after_backward_is_ready_at_its_end() -> None:
    assert travels(run(10, [12], [1])) == [(10, 11)]


def test_an_empty_message_takes_no_time() -> None:
    outcome = run(10, [2, 3, 10], [0, 4, 0])
    assert travels(outcome) == [(2, 2), (3, 7), (10, 10)]
    assert totals(outcome) == (10, 10, 4, 0)


def test_overlap_slowdown_slows_both_while_both_go_on() -> None:
    # From 4 on: 3 s of message take 4.5 s, in which backward does 2.25 s of its 6 s; the other 3.75 s go at full speed.
    outcome = run(10, [4], [3], OverlapSlowdown(compute=2.0, sending=1.5))
    assert travels(outcome) == [(4, 8.5)]
    assert totals(outcome) == (12.25, 12.25, 4.5, 0)


def test_overlap_slowdown_ends_with_backward() -> None:
    # The last 2 s of backward take 4 s, in which 1 s of the message is sent; the other 3 s go at full speed.
    outcome = run(10, [8], [4], OverlapSlowdown(compute=2.0, sending=4.0))
    assert travels(outcome) == [(8, 15)]
    assert totals(outcome) == (12, 15, 4, 3)


def test_every_cell_has_its_own_overlap_slowdown() -> None:
    slowdown = OverlapSlowdown(compute=np.array([1.0, 2.0]), sending=np.array([1.0, 4.0]))
    outcome = run([10, 10], [[8, 8]], [4], slowdown)
    assert outcome.sent_s.tolist() == [12, 15]


def test_messages_that_are_ready_together_travel_together() -> None:
    outcome = run(10, [1, 2, 3, 10], [4, 1, 1, 1], fuse_bytes=10)
    assert travels(outcome) == [(1, 5), (5, 7), (0, 0), (10, 11)]
    assert totals(outcome) == (10, 11, 6, 1)


def test_fusion_fills_a_message_to_the_threshold_and_never_splits_one() -> None:
    outcome = run(0, [0, 0, 0, 0, 0], [2, 1, 1, 3, 1], fuse_bytes=2)
    assert travels(outcome) == [(0, 2), (2, 4), (0, 0), (4, 7), (7, 8)]


def test_a_fused_message_costs_what_its_bytes_cost() -> None:
    outcome = run(0, [0, 0, 0], [1, 2, 3], fuse_bytes=6, cost=lambda size, _: 10 + size)
    assert travels(outcome) == [(0, 16), (0, 0), (0, 0)]


def test_every_cell_fuses_what_is_ready_there() -> None:
    outcome = run([10, 10], [[1, 1], [3, 6]], [4, 2], fuse_bytes=6, cycle_s=4)
    assert outcome.starts_s.tolist() == [[3, 3], [0, 7]]
    assert outcome.ends_s.tolist() == [[9, 7], [0, 9]]


def test_what_gets_ready_at_any_moment_waits_half_a_cycle() -> None:
    outcome = run(10, [1, 9], [3, 1], cycle_s=2)
    assert travels(outcome) == [(2, 5), (10, 11)]
    assert totals(outcome) == (10, 11, 3, 1)


def test_what_got_ready_while_another_travelled_leaves_at_once() -> None:
    assert travels(run(10, [1, 2], [3, 1], cycle_s=2)) == [(2, 5), (5, 6)]


def test_what_gets_ready_exactly_when_another_arrives_leaves_at_once() -> None:
    assert travels(run(10, [1, 5], [3, 1], cycle_s=2)) == [(2, 5), (5, 6)]
    assert travels(run(10, [2, 5], [3, 1])) == [(2, 5), (5, 6)]


def test_what_gets_ready_until_the_beat_travels_along() -> None:
    outcome = run(10, [1, 2, 2.5], [3, 1, 1], cycle_s=2, fuse_bytes=100)
    assert travels(outcome) == [(2, 6), (0, 0), (6, 7)]


def test_ranks_agree_on_every_message_before_it_leaves() -> None:
    outcome = run(10, [1, 2, 10], [3, 1, 1], cycle_s=2, agreement_s=0.5)
    assert travels(outcome) == [(2.5, 5.5), (6, 7), (11.5, 12.5)]
    assert totals(outcome) == (10, 12.5, 4, 2.5)


def test_every_cell_has_its_own_cycle_and_agreement() -> None:
    outcome = run([10, 10], [[1, 1]], [3], cycle_s=np.array([0.0, 2.0]), agreement_s=np.array([0.25, 0.5]))
    assert outcome.starts_s.tolist() == [[1.25, 2.5]]


def test_without_compute_messages_take_their_sum() -> None:
    outcome = run(0, [0, 0, 0], [3, 1, 5])
    assert totals(outcome) == (0, 9, 0, 9)


def test_endless_compute_hides_everything_but_the_last_message() -> None:
    outcome = run(1e6, [1e5, 5e5, 1e6], [30, 70, 50])
    assert totals(outcome) == (1e6, 1e6 + 50, 100, 50)


SECONDS = st.floats(0, 50).map(lambda value: round(value, 3))
FACTORS = st.floats(1, 4)


@st.composite
def traffics(draw: st.DrawFn) -> tuple[float, list[float], list[float]]:
    """Work, and when messages of some sizes are ready."""
    work = draw(SECONDS)
    sizes = draw(st.lists(SECONDS, min_size=1, max_size=6))
    shares = draw(st.lists(st.floats(0, 1), min_size=len(sizes), max_size=len(sizes)))
    return work, [work * share for share in sorted(shares)], sizes


def recurrence(ready: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Ends of messages when nothing slows anything."""
    ends, free = [], 0.0
    for when, seconds in zip(ready, sizes, strict=True):
        free = max(when, free) + seconds
        ends.append(free)
    return ends


@given(traffics())
def test_without_overlap_slowdown_each_message_ends_as_the_recurrence_says(case) -> None:
    work, ready, sizes = case
    outcome = run(work, ready, sizes)
    ends = recurrence(ready, sizes)
    assert outcome.ends_s[:, 0] == pytest.approx(ends, abs=1e-9)
    assert outcome.backward_s[0] == pytest.approx(work, abs=1e-9)
    assert outcome.sent_s[0] == pytest.approx(max(work, *ends), abs=1e-9)


@given(traffics(), FACTORS, FACTORS)
def test_no_work_and_no_message_is_lost(case, compute: float, sending: float) -> None:
    work, ready, sizes = case
    outcome = run(work, ready, sizes, OverlapSlowdown(compute, sending))
    backward, sent, hidden, exposed = totals(outcome)
    assert backward - hidden + hidden / compute == pytest.approx(work, abs=1e-8)
    assert hidden / sending + exposed == pytest.approx(sum(sizes), abs=1e-8)
    assert hidden + exposed == pytest.approx(float((outcome.ends_s - outcome.starts_s).sum()), abs=1e-8)
    assert sent >= max(backward, work, ready[0] + sum(sizes)) - 1e-8


@given(traffics(), FACTORS, FACTORS, st.floats(0, 1), st.floats(0, 1))
def test_less_overlap_slowdown_is_never_slower(
    case, compute: float, sending: float, less: float, less_too: float
) -> None:
    work, ready, sizes = case
    smaller = OverlapSlowdown(1 + less * (compute - 1), 1 + less_too * (sending - 1))
    slower = run(work, ready, sizes, OverlapSlowdown(compute, sending))
    faster = run(work, ready, sizes, smaller)
    assert faster.backward_s[0] <= slower.backward_s[0] + 1e-8
    assert faster.sent_s[0] <= slower.sent_s[0] + 1e-8
    assert (faster.ends_s <= slower.ends_s + 1e-8).all()


@given(traffics(), FACTORS, st.floats(0, 1))
def test_faster_messages_are_never_slower(case, slowdown: float, share: float) -> None:
    work, ready, sizes = case
    both = OverlapSlowdown(slowdown, slowdown)
    assert run(work, ready, sizes, both, cost=lambda size, _: share * size).sent_s[0] <= (
        run(work, ready, sizes, both).sent_s[0] + 1e-8
    )


@st.composite
def many_cells(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[float], dict, dict]:
    width, count = draw(st.integers(2, 5)), draw(st.integers(1, 5))
    row = st.lists(SECONDS, min_size=width, max_size=width)
    factors = st.lists(FACTORS, min_size=width, max_size=width)
    work = np.array(draw(row))
    shares = np.array([draw(st.lists(st.floats(0, 1), min_size=width, max_size=width)) for _ in range(count)])
    sizes = draw(st.lists(SECONDS, min_size=count, max_size=count))
    slowdown = {name: np.array(draw(factors)) for name in ("compute", "sending")}
    rules = {
        "fuse_bytes": draw(st.sampled_from([0.0, 20.0, 1e9])),
        "cycle_s": draw(st.sampled_from([0.0, 2.0])),
        "agreement_s": np.array(draw(row)) / 10,
    }
    return work, np.sort(shares, axis=0) * work, sizes, slowdown, rules


@given(many_cells())
def test_many_cells_at_once_are_what_each_is_alone(case) -> None:
    work, ready, sizes, slowdown, rules = case
    together = run(work, ready, sizes, OverlapSlowdown(**slowdown), **rules)
    for cell in range(len(work)):
        own = {name: factors[cell : cell + 1] for name, factors in slowdown.items()}
        mine = {**rules, "agreement_s": rules["agreement_s"][cell : cell + 1]}
        alone = run(work[cell], ready[:, cell], sizes, OverlapSlowdown(**own), **mine)
        for name in ("backward_s", "sent_s", "hidden_s", "exposed_s"):
            assert getattr(together, name)[cell] == getattr(alone, name)[0], name
        assert (together.starts_s[:, cell] == alone.starts_s[:, 0]).all()
        assert (together.ends_s[:, cell] == alone.ends_s[:, 0]).all()


@given(many_cells())
def test_with_fusion_and_cycles_all_bytes_travel_once_and_in_order(case) -> None:
    work, ready, sizes, slowdown, rules = case
    outcome = run(work, ready, sizes, OverlapSlowdown(**slowdown), **rules)
    for cell in range(len(work)):
        sent = outcome.hidden_s[cell] / slowdown["sending"][cell]
        times = [
            (start, end)
            for start, end in zip(outcome.starts_s[:, cell], outcome.ends_s[:, cell], strict=True)
            if end > start
        ]
        waited = sum(end - start for start, end in times) - outcome.hidden_s[cell]
        assert sent + waited == pytest.approx(sum(sizes), abs=1e-8)
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(times))
