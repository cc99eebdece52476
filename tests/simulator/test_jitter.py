"""The slowest of many ranks: from the steps that were seen, with a tail beyond them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.records.profile import Residuals
from scalescope.simulator.jitter import grouped, jitter, slowest
from simulator.made import contention, described, point, profile, stepped

RANKS = np.array([1.0, 2.0, 16.0, 64.0, 1000.0])


def drawn(count: int, seed: int, kind: str) -> np.ndarray:
    """Steps that vary by 2 %; spikes: one in fifty takes half as long again on average, as in benchmarks.coverage."""
    rng = np.random.default_rng(seed)
    steps = np.exp(rng.normal(0, 0.02, count))
    if kind == "spikes":
        hit = rng.random(count) < 0.02
        steps[hit] *= 1 + rng.exponential(0.5, int(hit.sum()))
    if kind == "rare":
        steps[rng.random(count) < 0.001] *= 2
    return steps


def seen(count: int, seed: int, kind: str) -> Residuals:
    steps = drawn(count, seed, kind)
    return grouped(steps / np.median(steps))


@pytest.mark.parametrize(
    ("kind", "truth"),
    [
        ("even", [1, 1.011, 1.036, 1.048, 1.067]),
        ("spikes", [1, 1.021, 1.165, 1.485, 2.79]),
        ("rare", [1, 1.012, 1.050, 1.106, 1.635]),
    ],
)
def test_it_is_the_mean_of_the_slowest_of_real_draws(kind: str, truth: list[float]) -> None:
    whole = drawn(2_000_000, 1, kind)
    real = [whole[: int(p) * (len(whole) // int(p))].reshape(-1, int(p)).max(axis=1).mean() for p in RANKS]
    assert np.array(real) / real[0] == pytest.approx(truth, rel=0.03)
    found = np.mean([slowest(seen(1000, seed, kind), RANKS)[0] for seed in range(100)], axis=0)
    assert found == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("kind", ["even", "spikes"])
def test_its_error_holds_what_other_profiles_of_the_same_machine_say(kind: str) -> None:
    made = [slowest(seen(1000, seed, kind), RANKS) for seed in range(100)]
    middle = np.mean([factor for factor, _ in made], axis=0)
    inside = [abs(np.log(factor / middle)) <= 1.645 * error + 1e-3 for factor, error in made]
    assert (np.mean(inside, axis=0) > 0.8).all()


def test_more_ranks_than_steps_find_slower_steps_than_any_that_was_seen() -> None:
    few = seen(100, 3, "even")
    factors, errors = slowest(few, np.array([100.0, 1e4, 1e6]))
    assert factors[2] > factors[1] > factors[0]
    assert factors[2] > max(few.levels)
    assert errors[2] > errors[1] > errors[0]


def test_the_tail_is_as_long_as_that_of_the_largest_fiftieth() -> None:
    levels = [1.1 - 0.001 * place for place in range(100)]
    found = Residuals(counts=(*[1] * 100, 900), levels=(*levels, 1.0))  # 20 of 1000 make the tail
    mean = np.dot(found.counts, found.levels) / 1000
    factors, _ = slowest(found, np.array([1e5, 1e6]))
    tail = np.mean(levels[:20]) - levels[20]
    assert factors[1] - factors[0] == pytest.approx(tail * math.log(10) / mean, rel=0.02)


def test_groups_keep_every_step_and_the_mean() -> None:
    steps = drawn(777, 5, "spikes")
    found = grouped(steps)
    assert sum(found.counts) == 777
    assert np.dot(found.counts, found.levels) == pytest.approx(steps.sum(), rel=1e-5)
    assert len(found.counts) < 45
    assert list(found.levels) == sorted(found.levels, reverse=True)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60))
def test_more_ranks_are_never_faster(steps: list[float]) -> None:
    factors, errors = slowest(grouped(steps), RANKS)
    assert factors[0] == pytest.approx(1)
    assert (np.diff(factors) >= -1e-9).all()
    assert (errors >= 0).all()


def test_a_standard_deviation_alone_means_normal_steps() -> None:
    model = profile(point(noise=0.1))
    factor, _ = jitter(model, np.ones(2), np.array([1.0, 2.0]), np.full(2, 8.0))
    assert factor == pytest.approx([1, 1 + 0.1 / math.sqrt(math.pi)], rel=1e-3)  # of two, in the mean


UNEVEN, EVEN = seen(1000, 1, "spikes"), seen(1000, 1, "even")


def test_residuals_come_from_the_nearest_copies_and_from_the_batches_on_both_sides() -> None:
    model = profile(
        point(8, residuals=EVEN),
        point(32, residuals=EVEN),
        crowds=(contention(2, 1.0, 8, residuals=UNEVEN), contention(2, 1.0, 32, residuals=EVEN)),
    )

    def factor(copies: int, ranks: int, batch: int) -> float:
        return float(jitter(model, np.array([float(copies)]), np.array([float(ranks)]), np.array([float(batch)]))[0][0])

    (even,), (uneven,) = (slowest(each, np.array([64.0]))[0] for each in (EVEN, UNEVEN))
    assert factor(1, 64, 8) == pytest.approx(even)
    assert factor(4, 64, 8) == factor(2, 64, 8) == factor(2, 64, 2) == pytest.approx(uneven)
    assert factor(2, 64, 32) == pytest.approx(even)
    assert factor(2, 64, 16) == pytest.approx((even + uneven) / 2)


def test_a_step_of_many_ranks_takes_what_the_slowest_takes() -> None:
    model = profile(point(residuals=UNEVEN))
    alone, many = stepped(model, described(1e9, slots=1, nodes=1000), [1, 1000]).step_s
    assert alone == 7
    assert many / alone == pytest.approx(2.78, rel=0.15)
