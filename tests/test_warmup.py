import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.steady import steadiness
from scalescope.warmup import enough_steps, warmup_steps

CONV = [51.0, 11.2, 6.88, 7.68, 8.3, 6.85, 11.2, 8.36, 6.67, 8.47, 7.92, 9.55, 6.5, 7.51, 7.13, 6.65, 6.58, 7.0, 9.19]
HOROVOD_1 = [99.3, 60.5, 22.7, 20.2, 19.9, 31.8, 20.4, 22.2, 19.1, 20.2, 18.1, 19.0, 18.2, 18.3, 17.4, 18.4, 18.7]
HOROVOD_2 = [390.0, 231, 171, 120, 107, 127, 135, 93.9, 148, 96, 99.9, 106, 140, 141, 99.9, 120, 104, 102, 110, 96, 108]
DISTURBED = [
    *[4.02, 0.769, 0.395, 0.369, 0.303, 0.321, 0.288, 0.294, 0.302, 0.277, 0.261, 0.312, 0.334, 0.264, 0.256, 0.31],
    *[0.442, 0.4, 0.433, 0.381, 0.368, 0.277, 0.26, 0.258, 0.298, 0.258, 0.255, 0.288, 0.269, 0.341, 0.272, 0.304],
    *[0.258, 0.257, 0.28, 0.272, 0.259, 0.259, 0.293, 0.293],
]
"""Milliseconds of real launches on shared cores; the last one with another program at steps 16 to 20."""


def noise(rng: np.random.Generator, count: int, deviation: float = 0.03, correlation: float = 0.5) -> np.ndarray:
    """Factors around 1, correlated from step to step."""
    values = rng.normal(size=count)
    for index in range(1, count):
        values[index] = correlation * values[index - 1] + math.sqrt(1 - correlation**2) * values[index]
    return np.exp(deviation * values)


def warmed(factors: list[float], count: int, seed: int, **scatter: float) -> list[float]:
    """Steps of which the first are slower by these factors."""
    steps = noise(np.random.default_rng(seed), count, **scatter)
    steps[: len(factors)] *= factors
    return list(steps)


@pytest.mark.parametrize(
    ("durations", "warmup"),
    [
        ([], 0),
        ([1.0], 0),
        ([2.0, 1.0], 1),
        ([1.0] * 20, 0),
        ([0.0] * 20, 0),
        ([5.0] + [1.0] * 4, 1),
        ([5.0] + [1.0] * 20, 1),
        ([5.0, 5.0, 5.0] + [1.0, 1.1] * 20, 3),
        ([5.0] * 10 + [1.0] * 10, 10),
        ([1.0] * 10 + [5.0] * 10, 0),
        ([30.0] * 2 + [1.5] * 6 + [1.0, 1.02, 0.99] * 20, 8),
        ([1.3, 5.0] + [1.0, 1.02] * 10, 2),
        ([0.1] + [1.0, 1.02, 0.98] * 10, 0),
    ],
)
def test_the_slow_beginning_is_found(durations: list[float], warmup: int) -> None:
    assert warmup_steps(durations) == warmup


@pytest.mark.parametrize(
    ("durations", "warmups"),
    [(CONV, {1, 2}), (HOROVOD_1, {2, 3}), (HOROVOD_2, {3, 4, 5}), (DISTURBED, {2, 3, 4, 5, 6})],
)
def test_warmup_of_real_launches_ends_where_a_person_says(durations: list[float], warmups: set[int]) -> None:
    assert warmup_steps(durations) in warmups


@pytest.mark.parametrize(
    "factors",
    [
        [2.0],
        [50.0],
        [1.25] * 8,
        [3.0] * 20,
        [20.0] * 2 + [1.5] * 10,
        [1 + 4 * 0.6**step for step in range(12)],
    ],
    ids=["first", "huge", "level", "long level", "two levels", "decay"],
)
@pytest.mark.parametrize("count", [50, 400])
def test_a_planted_end_is_found_within_one_step(factors: list[float], count: int) -> None:
    planted = next((step for step, factor in enumerate(factors) if factor - 1 < 0.015), len(factors))
    found = [warmup_steps(warmed(factors, count, seed)) for seed in range(20)]
    assert sum(abs(each - planted) <= 1 for each in found) >= 18


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("count", [12, 60, 500])
def test_noise_alone_is_no_warmup(count: int, correlation: float) -> None:
    found = [warmup_steps(warmed([], count, seed, deviation=0.08, correlation=correlation)) for seed in range(40)]
    assert sum(each > 1 for each in found) <= 3


@given(st.integers(2, 79), st.floats(1.5, 50), st.integers(0, 1000))
@settings(max_examples=40)
def test_one_slow_step_of_a_steady_series_is_no_warmup(at: int, factor: float, seed: int) -> None:
    durations = warmed([], 80, seed, correlation=0.0)
    disturbed = [*durations[:at], durations[at] * factor, *durations[at + 1 :]]
    assert warmup_steps(disturbed) <= max(warmup_steps(durations), 1)


def test_single_slow_steps_do_not_hide_the_end() -> None:
    right = 0
    for seed in range(30):
        durations = warmed([2.0] * 7, 100, seed)
        for at in np.random.default_rng(seed).choice(np.arange(1, 100), 4, replace=False):
            durations[at] *= 3
        right += abs(warmup_steps(durations) - 7) <= 1
    assert right >= 26


@pytest.mark.parametrize("slow_share", [0.3, 0.6])
def test_steps_that_alternate_between_two_levels_have_no_warmup(slow_share: float) -> None:
    pattern = ([1.3] * round(40 * slow_share) + [1.0] * round(40 * (1 - slow_share))) * 5
    found = [warmup_steps(warmed(pattern, 200, seed, deviation=0.02)) for seed in range(20)]
    assert sum(each > 1 for each in found) <= 1


def test_warmup_before_alternating_steps_is_found() -> None:
    pattern = [4 * 1.3] * 5 + ([1.3] * 15 + [1.0] * 15) * 6
    found = [warmup_steps(warmed(pattern, 185, seed, deviation=0.02)) for seed in range(20)]
    assert sum(abs(each - 5) <= 1 for each in found) >= 18


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(
    ("later", "warmup"), [((1.33, 1.5, 1.6, 2.6), 0), ((1.2, 1.15, 1.22, 1.1), 6), ((1.0,) * 4, 6)], ids=str
)
def test_a_slow_beginning_is_no_warmup_where_steps_as_slow_come_back(
    later: tuple[float, ...], warmup: int, scale: float
) -> None:
    pattern = [1.5] * 6 + [1.0] * 30 + [factor for each in later * 2 for factor in [each] * 6 + [1.0] * 30]
    found = [warmup_steps([scale * each for each in warmed(pattern, 324, seed, deviation=0.02)]) for seed in range(4)]
    assert found == [warmup] * 4


def test_a_change_in_the_middle_is_a_change_point_and_no_warmup() -> None:
    for seed in range(10):
        durations = warmed([1.25] * 45, 100, seed, deviation=0.02)
        assert warmup_steps(durations) <= 1
        assert steadiness(durations).kind != "even"


@pytest.mark.parametrize("drift", [-0.1, 0.1])
def test_slow_drift_is_no_warmup(drift: float) -> None:
    found = [warmup_steps(warmed(list(np.linspace(1, 1 + drift, 300)), 300, seed)) for seed in range(20)]
    assert sum(each > 1 for each in found) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_warmup_does_not_depend_on_the_unit_of_time(seed: int) -> None:
    durations = warmed([6.0, 2.0, 1.4], 60, seed)
    assert warmup_steps([each * 1e-4 for each in durations]) == warmup_steps(durations)


def test_long_series_are_judged_by_their_first_steps() -> None:
    durations = warmed([3.0] * 1500, 100_000, 0)
    assert abs(warmup_steps(durations) - 1500) <= 1
    assert warmup_steps(durations) == warmup_steps(durations[:4000])


@given(st.lists(st.floats(0, 1e3), max_size=60))
@settings(max_examples=100)
def test_half_of_the_steps_always_remain(durations: list[float]) -> None:
    warmup = warmup_steps(durations)
    assert 0 <= warmup <= max(len(durations) // 2, 1)
    assert warmup < max(len(durations), 1)


@pytest.mark.parametrize(
    ("durations", "enough"),
    [
        ([3.0, 1.0, 1.0, 1.0], False),
        ([3.0, 1.0, 1.01, 0.99, 1.0], True),
        ([6.0, 3.0, 2.0, 1.6, 1.3, 1.1], False),
        ([6.8, 1.26, 1.24, 1.0, 0.86, 0.7], False),
        ([1 + 3 * 0.97**step for step in range(60)], False),
        ([1 + 3 * 0.5**step for step in range(60)], True),
        ([1.0] * 30 + [1.4] * 30, True),
    ],
)
def test_too_few_steps_to_tell_warmup_from_steady_state(durations: list[float], enough: bool) -> None:
    assert enough_steps(durations, warmup_steps(durations)) is enough


@pytest.mark.parametrize("count", [10, 40, 300])
def test_a_steady_launch_has_enough_steps(count: int) -> None:
    launches = [warmed([8.0], count, seed, deviation=0.06, correlation=0.7) for seed in range(60)]
    refused = [not enough_steps(launch, warmup_steps(launch)) for launch in launches]
    assert sum(refused) <= 3


def test_there_is_no_second_definition_of_warmup() -> None:
    package = Path(warmup_steps.__code__.co_filename).parent
    rule = re.compile(r"def \w*(warm_?up_steps|warmup_of|end_of_warmup|change_points|level_changes)\(")
    found = {path.name for path in package.rglob("*.py") if rule.search(path.read_text())}
    assert found == {"warmup.py"}
    thumb = re.compile(r"durations?\S* > \S+ \* (np\.)?median")  # a rule of thumb, as Horovod's table once had
    assert [path.name for path in package.rglob("*.py") if thumb.search(path.read_text())] == []
