import math
import random
from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalescope.stats import (
    PREDICTED,
    crossing,
    fit_line,
    is_autocorrelated,
    normal_width,
    of_logarithms,
    outlying,
    relative_half_width,
    standard_error,
    standard_errors,
)

POSITIVE = st.floats(1e-3, 1e3)


def test_five_values_give_students_interval() -> None:
    values = [math.exp(value) for value in (1, 2, 3, 4, 5)]
    found = of_logarithms(values)
    assert math.log(found.middle) == pytest.approx(3)
    assert math.log(found.high) - 3 == pytest.approx(2.776445 * math.sqrt(2.5 / 5))
    assert not found.is_range


def test_four_values_give_a_range_and_say_so() -> None:
    assert of_logarithms([1.0, 2.0, 3.0, 9.0])[1:] == (1.0, 9.0, True)


def test_optional_stopping_widens_intervals_from_the_sixth_value_on() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert relative_half_width(values, looked=True) == relative_half_width(values)
    assert relative_half_width([*values, 3.0], looked=True) > 1.05 * relative_half_width([*values, 3.0])


def test_only_stopping_for_precision_widens_intervals() -> None:
    values = [1.00, 1.01, 1.02, 0.99, 1.00, 1.01]
    plain = of_logarithms(values)
    assert of_logarithms(values, target=0.05).high > plain.high
    assert of_logarithms(values, target=0.001) == plain


@given(st.lists(POSITIVE, min_size=1, max_size=12))
def test_the_geometric_mean_lies_inside(values: list[float]) -> None:
    found = of_logarithms(values)
    assert found.low <= found.middle * (1 + 1e-9)
    assert found.middle <= found.high * (1 + 1e-9)


@given(st.lists(POSITIVE, min_size=5, max_size=12), POSITIVE)
def test_units_do_not_matter(values: list[float], unit: float) -> None:
    scaled = [value * unit for value in values]
    assert relative_half_width(scaled) == pytest.approx(relative_half_width(values), rel=1e-6, abs=1e-9)


def test_one_value_says_nothing_about_its_spread() -> None:
    assert relative_half_width([2.0]) == math.inf


@given(st.floats(-5, 5), st.floats(0.1, 5), st.lists(st.floats(0, 10), min_size=3, max_size=20, unique=True))
def test_points_on_a_line_give_the_line(intercept: float, slope: float, x: list[float]) -> None:
    assume(max(x) - min(x) >= 0.5)
    line = fit_line(x, [intercept + slope * value for value in x])
    assert line
    assert line.intercept == pytest.approx(intercept, abs=1e-6)
    assert line.slope == pytest.approx(slope, abs=1e-6)
    assert line.slope_error == pytest.approx(0, abs=1e-5)


def test_standard_errors_are_those_of_repeated_fits() -> None:
    generator, x = random.Random(1), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    fits = [fit_line(x, [2 + 3 * value + generator.gauss(0, 1) for value in x]) for _ in range(2000)]
    slopes = [fit.slope for fit in fits if fit]
    spread = math.sqrt(fmean((slope - 3) ** 2 for slope in slopes))
    claimed = math.sqrt(fmean((fit.slope_error or 0) ** 2 for fit in fits if fit))
    assert claimed == pytest.approx(spread, rel=0.1)


def test_no_line_through_one_place() -> None:
    assert fit_line([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


@pytest.mark.parametrize("counts", [(3,), (2, 2, 2), (1, 3, 6)], ids=str)
def test_standard_errors_hold_ninety_percent_for_few_values(counts: tuple[int, ...]) -> None:
    generator, inside = random.Random(3), 0
    for _ in range(2000):
        groups = [[math.exp(generator.gauss(0, 0.1)) for _ in range(count)] for count in counts]
        errors = standard_errors(groups) or []
        inside += sum(
            abs(fmean(map(math.log, group))) <= normal_width(PREDICTED) * error
            for group, error in zip(groups, errors, strict=True)
        )
    assert inside / 2000 / len(counts) == pytest.approx(0.90, abs=0.02)


def test_single_values_tell_no_error_and_one_group_is_a_group() -> None:
    assert standard_errors([[1.0], [2.0]]) is None
    assert standard_errors([[1.0, 1.2, 1.1]]) == [standard_error([1.0, 1.2, 1.1])]


def test_a_value_unlike_the_others_is_found_and_chance_seldom_makes_one() -> None:
    chance = random.Random(3)
    even = [[chance.gauss(0, 1) for _ in range(5)] for _ in range(2000)]
    assert 0.03 < sum(bool(outlying(values)) for values in even) / 2000 < 0.07
    assert sum(bool(outlying(values, 10)) for values in even) / 2000 < 0.01
    assert all(outlying([*values[:2], 40.0, *values[2:]]) == [2] for values in even[:100])
    assert sorted(outlying([0.1, -0.2, 40.0, 0.3, 41.0, -0.1, 0.2, 0.0])) == [2, 4]  # which hide each other
    assert outlying([1.0] * 5) == []


def test_autocorrelated_values_are_found_with_few_false_alarms() -> None:
    chance = random.Random(4)

    def found(count: int, correlation: float) -> float:
        seen = 0
        for _ in range(1000):
            values = [chance.gauss(0, 1)]
            while len(values) < count:
                values.append(correlation * values[-1] + math.sqrt(1 - correlation**2) * chance.gauss(0, 1))
            seen += is_autocorrelated(values)
        return seen / 1000

    assert 0.02 < found(5, 0.0) < 0.07
    assert 0.02 < found(20, 0.0) < 0.07
    assert found(5, 0.8) > 0.15
    assert found(20, 0.8) > 0.85
    assert not is_autocorrelated([1.0] * 6)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(("cost", "gain", "middle"), [(10.0, 2.0, 5.0), (-10.0, 2.0, 0.0), (10.0, -2.0, None)])
def test_a_cost_is_made_up_for_after_cost_over_gain(count: int, cost: float, gain: float, middle: float | None) -> None:
    found = crossing([cost] * count, [gain] * count)
    assert (found.middle, found.low, found.high) == (middle, middle, middle)
