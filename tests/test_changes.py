"""Changes of level and slow steps that come back, planted in made step times."""

import random

import pytest

from scalescope.steady import slow_period
from scalescope.warmup import change_points


def steps(count: int, seconds: float, *, seed: int = 0, noise: float = 0.03) -> list[float]:
    chance = random.Random(seed)
    return [seconds * (1 + chance.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_change_is_found_where_it_is(seed: int) -> None:
    found = change_points(steps(80, 0.1, seed=seed) + steps(60, 0.13, seed=seed + 100))
    assert len(found) == 1
    assert abs(found[0][0] - 80) <= 2
    assert found[0][1:] == (pytest.approx(0.1, rel=0.03), pytest.approx(0.13, rel=0.03))


def test_steady_steps_have_no_change_point() -> None:
    assert [seed for seed in range(40) if change_points(steps(120, 0.1, seed=seed, noise=0.08))] == []


def test_two_changes_are_told_apart() -> None:
    found = change_points(steps(60, 0.1) + steps(60, 0.2, seed=1) + steps(60, 0.1, seed=2))
    assert [round(at, -1) for at, _, _ in found] == [60, 120]
    assert found[0][2] > found[0][1]
    assert found[1][2] < found[1][1]


def test_a_single_slow_step_is_no_change() -> None:
    times = steps(100, 0.1)
    times[50] = 5.0
    assert change_points(times) == []


def test_slow_steps_at_equal_distances_are_a_period() -> None:
    times = [seconds + (0.06 if index % 25 == 24 else 0) for index, seconds in enumerate(steps(200, 0.1))]
    found = slow_period(times)
    assert found is not None
    assert (found.every, found.number) == (25, 8)
    assert found.excess_s == pytest.approx(0.06, rel=0.2)


def test_slow_steps_at_random_places_are_no_period() -> None:
    times = steps(200, 0.1)
    for index in (3, 17, 80, 95, 171):
        times[index] = 0.3
    assert slow_period(times) is None


def test_few_steps_have_no_change_point_and_no_period() -> None:
    assert change_points([0.1] * 5 + [0.2] * 5) == []
    assert slow_period([0.1, 0.5, 0.1]) is None


@pytest.mark.parametrize("count", [30, 50, 100])
def test_slow_steps_at_random_are_hardly_ever_a_period(count: int) -> None:
    chance = random.Random(count)
    found = 0
    for seed in range(400):
        times = steps(count, 0.1, seed=seed)
        for index in chance.sample(range(count), chance.randint(3, count // 6)):
            times[index] = 0.2
        found += slow_period(times) is not None
    assert found <= 8, "2 of 100"


def test_four_slow_steps_in_twenty_are_a_period_only_if_they_are_regular() -> None:
    regular = [0.2 if index % 5 == 4 else 0.1 for index in range(20)]
    assert slow_period(regular) is not None
    near = [0.2 if index in (4, 9, 15, 17) else 0.1 for index in range(20)]
    assert slow_period(near) is None
