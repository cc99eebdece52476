"""Which batch sizes a profile measures, played through with made-up models."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.estimation.profile_plan import _doubt, expected_bytes, misses_of, next_batch

DOUBLINGS = (8, 16, 32, 64, 128, 256, 512)


def played(step_s: Callable[[int], float], wanted: Sequence[int], affordable_s: float = 1e9) -> list[int]:
    """Batch sizes in the order in which they are measured."""
    steps: dict[int, float] = {}
    order = []
    while (batch := next_batch(steps, wanted, affordable_s)) is not None:
        assert batch not in steps
        steps[batch] = step_s(batch)
        order.append(batch)
    return order


def straight(batch: int) -> float:
    return 1.0 + 0.1 * batch


def bent(batch: int) -> float:
    """Nothing is gained below 64: the device is not full."""
    return max(6.4, 0.1 * batch)


def test_the_ends_come_first_without_a_leap_of_more_than_eight() -> None:
    assert played(straight, DOUBLINGS)[:3] == [8, 64, 512]
    assert played(straight, (1, 2, 4, 1000))[:5] == [1, 4, 32, 256, 1000]


def test_a_straight_line_needs_nothing_but_its_ends() -> None:
    assert played(straight, DOUBLINGS) == [8, 64, 512]


def test_two_ends_without_anything_between_are_not_trusted() -> None:
    order = played(straight, (8, 16, 32))
    assert order == [8, 32, 16]


def test_points_go_where_the_curve_bends() -> None:
    order = played(bent, range(1, 513))
    assert order[:4] == [1, 8, 64, 512]
    near = [batch for batch in order[4:] if 32 <= batch <= 128]
    assert len(near) > len(order[4:]) / 2
    steps = {batch: bent(batch) for batch in order}
    assert max(map(abs, misses_of(steps).values())) < 0.3
    assert len(order) < 40


def test_a_planted_kink_draws_the_next_points() -> None:
    steps = {8: 1.8, 64: 7.4, 512: 52.2}
    assert next_batch(steps, DOUBLINGS, 1e9) is None
    steps[64] *= 1.3
    assert next_batch(steps, DOUBLINGS, 1e9) in (16, 32, 128, 256)


def test_a_single_size_is_measured_once() -> None:
    assert played(straight, (32,)) == [32]
    assert played(straight, (32, 32)) == [32]


def test_two_sizes_are_measured_both() -> None:
    assert played(straight, (8, 16)) == [8, 16]


def test_nothing_wanted_is_nothing_measured() -> None:
    assert next_batch({}, (), 1.0) is None


def test_batches_that_take_too_long_are_left_out_except_the_smallest() -> None:
    assert played(lambda batch: 0.1 * batch, DOUBLINGS, affordable_s=9) == [8, 64, 32]
    assert played(lambda batch: 100.0, DOUBLINGS, affordable_s=10) == [8]


def test_the_largest_affordable_batch_is_measured_where_it_is_worth_it() -> None:
    assert played(lambda batch: 0.1 * batch, DOUBLINGS, affordable_s=10) == [8, 64, 100]
    assert played(lambda batch: 0.1 * batch, (8, 1000), affordable_s=3) == [8, 30]
    assert played(lambda batch: 0.1 * batch, (8, 1000), affordable_s=1) == [8]


def test_a_step_that_hardly_grows_is_not_taken_for_one_in_proportion() -> None:
    assert played(lambda batch: 5.0 + 0.001 * batch, DOUBLINGS, affordable_s=100)[:3] == [8, 64, 512]
    assert max(played(lambda batch: 5.0 + 0.001 * batch, DOUBLINGS, affordable_s=10)) == 512


def test_a_miss_is_how_far_a_point_lies_off_the_line_between_its_neighbours() -> None:
    assert misses_of({8: 1.0, 16: 3.0, 32: 4.0}) == {16: pytest.approx(3 / 2 - 1)}
    assert misses_of({32: 4.0, 8: 1.0, 64: 8.0, 16: 2.0}) == {16: pytest.approx(0), 32: pytest.approx(0)}
    assert misses_of({8: 1.0, 16: 2.0}) == {}


SIZES = st.lists(st.integers(1, 2000), min_size=1, max_size=12)


@given(SIZES, st.floats(0, 5), st.floats(1e-3, 1), st.floats(1, 500))
def test_no_batch_but_the_smallest_takes_longer_than_affordable(
    wanted: list[int], fixed: float, per_sample: float, affordable: float
) -> None:
    order = played(lambda batch: fixed + per_sample * batch, wanted, affordable)
    assert all(fixed + per_sample * batch <= affordable * (1 + 1e-9) for batch in order[1:])


@given(SIZES, st.lists(st.floats(0.1, 10), min_size=3, max_size=3), st.floats(1, 500))
def test_every_plan_starts_at_the_smallest_climbs_in_leaps_and_ends(
    wanted: list[int], jumps: list[float], affordable: float
) -> None:
    def step_s(batch: int) -> float:
        return 0.05 * batch * jumps[batch % 3]

    order = played(step_s, wanted, affordable)
    assert order[0] == min(wanted)
    assert max(order) <= max(wanted)
    highest = order[0]
    for batch in order[1:]:
        assert batch <= 8 * highest
        assert batch > highest or batch in wanted
        highest = max(highest, batch)


def test_no_batch_is_larger_than_is_worth_it_or_can_be_reached() -> None:
    # One sample takes a second: 12 are affordable, which is half as much again as 8, and 11 are not worth it.
    assert next_batch({8: 8.0}, (8, 100), 12.0) == 12
    assert next_batch({8: 8.0}, (8, 100), 11.9) is None
    assert next_batch({8: 8.0}, (8, 12), 12.0) == 12
    assert next_batch({8: 8.0}, (8, 100), 1e9) == 64, "eight times the largest"
    assert next_batch({8: 8.0}, (8, 64, 65), 1e9) == 64
    assert next_batch({8: 8.0}, (8, 100), 7.0) is None, "what was measured took too long already"


def test_the_slope_of_two_steps_tells_what_the_next_may_take() -> None:
    # From 8 to 16 samples 4 s more, half a second each: 20 s are affordable at 16 + 8 / 0.5.
    assert next_batch({8: 8.0, 16: 12.0}, (8, 16, 128), 20.0) == 32
    # A slope above the proportion is not believed: a sample costs 1 s at most.
    assert next_batch({8: 1.0, 16: 16.0}, (8, 16, 128), 32.0) == 32
    # Nor is one of nothing: an eighth of the proportion at least, 0.125 s.
    assert next_batch({8: 16.0, 16: 16.0}, (8, 16, 512), 20.0) == 48


def test_the_point_that_is_least_certain_comes_next() -> None:
    # Off the line by a fifth at 64: 16 lies in the middle of its gap, 32 and 256 do not.
    bent_at_64 = {4: 1.0, 64: 1.2 * (1 + 60 / 508 * 7.0), 512: 8.0}
    assert next_batch(bent_at_64, (4, 16, 32, 64, 256, 512), 1e9) == 16
    # In gaps as wide and with the same miss at their end, the larger batch size.
    assert next_batch({8: 1.0, 64: 3.0, 512: 8.0}, (8, 16, 64, 128, 512), 1e9) == 128


@pytest.mark.parametrize(
    ("size", "measured", "misses", "doubt"),
    [
        (16, (8, 32), {}, 0.5 * 0.5 * 2 / 2),  # in the middle of two doublings, where nothing is known
        (16, (8, 32), {8: -0.1}, 0.1 * 0.5 * 2 / 2),
        (16, (8, 32), {8: 0.1, 32: -0.3}, 0.3 * 0.5 * 2 / 2),
        (16, (8, 32, 64), {64: 0.9}, 0.5 * 0.5 * 2 / 2),  # not next to it
        (16, (8, 64), {8: 0.1}, 0.1 * 1 / 3 * 3 / 2),
        (32, (8, 64), {8: 0.1}, 0.1 * 1 / 3 * 3 / 2),
        (32, (1, 1024), {1: 0.1}, 0.1 * 0.5 * 4 / 2),  # a gap of more than four doublings counts as four
        (16, (4, 8, 32, 64), {4: 9.0, 32: 0.1, 64: 9.0}, 0.1 * 0.5 * 2 / 2),
    ],
)
def test_doubt_grows_with_the_misses_nearby_and_towards_the_middle_of_a_gap(
    size: int, measured: tuple[int, ...], misses: dict[int, float], doubt: float
) -> None:
    assert _doubt(size, measured, misses) == pytest.approx(doubt)


def test_two_percent_are_good_enough() -> None:
    # The doubt at 16 is half of the miss at 32, which is relative to the line.
    line = 1.0 + 24 / 56 * 7.0
    assert next_batch({8: 1.0, 32: 1.041 * line, 64: 8.0}, (8, 16, 32, 64), 1e9) == 16
    assert next_batch({8: 1.0, 32: 1.039 * line, 64: 8.0}, (8, 16, 32, 64), 1e9) is None


def test_memory_is_foreseen_on_the_line_through_the_ends() -> None:
    assert expected_bytes({8: 100.0, 16: 180.0}, 32) == 180 + 10 * 16
    assert expected_bytes({16: 180.0, 12: 999.0, 8: 100.0}, 17) == 190
    assert expected_bytes({8: 100.0, 16: 180.0}, 16) == 0.0
    assert expected_bytes({8: 100.0, 16: 180.0}, 4) == 0.0
    assert expected_bytes({8: 100.0}, 32) == expected_bytes({}, 32) == 0.0
