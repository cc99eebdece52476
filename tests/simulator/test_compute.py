"""The profile between and beyond what it measured, alone and among other ranks of a host."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.simulator.compute import contention as slowed
from scalescope.simulator.compute import work
from simulator.made import GIB, contention, point, profile, proportional

SMALL = point(8, 2.0, 4.0, 1.0, (1.0, 2.0, 3.0, 4.0), error=0.01, memory_bytes=GIB)
MIDDLE = point(16, 4.0, 6.0, 1.0, (2.0, 3.0, 5.0, 6.0), error=0.03, memory_bytes=2 * GIB)
LARGE = point(64, 8.0, 30.0, 2.0, (6.0, 12.0, 20.0, 30.0), error=0.01, memory_bytes=5 * GIB)
THREE = profile(SMALL, MIDDLE, LARGE, interpolation_error=0.04)


@pytest.mark.parametrize("measured", [SMALL, MIDDLE, LARGE], ids=lambda point: str(point.batch))
def test_a_measured_batch_is_what_was_measured(measured) -> None:
    found = work(THREE, [measured.batch])
    assert found.forward_s[0] == pytest.approx(measured.forward_s, rel=1e-12)
    assert found.backward_s[0] == pytest.approx(measured.backward_s, rel=1e-12)
    assert found.optimizer_s[0] == pytest.approx(measured.optimizer_s, rel=1e-12)
    assert found.step_s[0] == pytest.approx(measured.step_s, rel=1e-12)
    assert found.ready_s[:, 0] == pytest.approx(measured.ready_s, rel=1e-12)
    assert found.memory_bytes[0] == measured.memory_bytes
    assert found.error[0] == pytest.approx(measured.error)


def test_between_measured_batches_lies_a_line_with_an_error_of_its_own() -> None:
    found = work(THREE, [12, 28])
    assert found.forward_s.tolist() == [3, 5]
    assert found.backward_s.tolist() == [5, 12]
    assert found.optimizer_s.tolist() == [1, 1.25]
    assert found.step_s.tolist() == [9, 18.25]
    assert found.ready_s.T.tolist() == [[1.5, 2.5, 4, 5], [3, 5.25, 8.75, 12]]
    assert found.memory_bytes.tolist() == [1.5 * GIB, 2.75 * GIB]
    assert found.error[0] == pytest.approx(math.hypot(0.02, 0.04))


def test_beyond_measured_batches_the_lines_go_on_and_the_error_grows() -> None:
    found = work(THREE, [4, 64, 128, 256])
    assert found.forward_s[[0, 2]] == pytest.approx([1, 8 + 64 / 12])
    assert found.backward_s[[0, 2]] == pytest.approx([3, 62])
    expected = [math.hypot(0.01, 0.04, 0.05), 0.01, math.hypot(0.01, 0.04, 0.05), math.hypot(0.01, 0.04, 0.1)]
    assert found.error == pytest.approx(expected)


def test_nothing_gets_negative_below_the_smallest_batch() -> None:
    steep = profile(point(8, 1.0, 1.0, 1.0, (0.1, 0.2, 0.3, 1.0)), point(16, 9.0, 9.0, 1.0, (1.0, 2.0, 3.0, 9.0)))
    found = work(steep, [1])
    assert (found.forward_s[0], found.backward_s[0], found.optimizer_s[0]) == (0, 0, 1)
    assert found.ready_s.tolist() == [[0], [0], [0], [0]]


def test_one_point_tells_larger_batches_in_proportion_and_smaller_ones_not_at_all() -> None:
    found = work(profile(SMALL), [4, 8, 24])
    assert found.step_s.tolist() == [7, 7, 21]
    assert work(profile(SMALL), [8, 32]).error == pytest.approx([0.01, math.hypot(0.01, 0.1)])


def test_gradients_are_ready_in_order_and_not_after_backward() -> None:
    odd = profile(point(ready_s=(2.0, 1.0, 3.0, 9.0)))
    assert work(odd, [8]).ready_s[:, 0].tolist() == [2, 2, 3, 4]


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=6))
def test_many_batches_at_once_are_what_each_is_alone(batches: list[int]) -> None:
    together = work(THREE, batches)
    for column, batch in enumerate(batches):
        alone = work(THREE, [batch])
        assert together.step_s[column] == alone.step_s[0]
        assert together.error[column] == alone.error[0]
        assert together.ready_s[:, column].tolist() == alone.ready_s[:, 0].tolist()


@given(st.integers(1, 4096))
def test_where_every_sample_costs_the_same_any_two_points_tell_all(batch: int) -> None:
    assert work(proportional(8, 64, sample_s=0.25), [batch]).step_s[0] == pytest.approx(0.25 * batch)


def among(model, copies: list[float], batch: int = 8):
    return slowed(model, np.array(copies, dtype=float), np.full(len(copies), float(batch)))


CONTENDED = profile(point(noise=0.02), crowds=(contention(2, 1.2, error=0.01), contention(8, 1.6, error=0.03)))


def test_without_contention_ranks_do_not_disturb_each_other() -> None:
    found = among(profile(point(noise=0.02)), [1, 2, 64])
    assert found.slowdown.tolist() == [1, 1, 1]
    assert found.error.tolist() == [0, 0, 0]


def test_contention_are_met_where_they_were_measured_and_a_rank_alone_is_alone() -> None:
    found = among(CONTENDED, [1, 2, 8])
    assert found.slowdown.tolist() == [1, 1.2, 1.6]
    assert found.error.tolist() == [0, 0.01, 0.03]


def test_contention_in_between_count_by_their_doublings() -> None:
    found = among(CONTENDED, [4])
    assert found.slowdown[0] == pytest.approx(1.4)
    assert found.error[0] == pytest.approx(0.02)


def test_beyond_the_largest_contention_it_gets_worse_as_it_did_and_less_certain() -> None:
    found = among(CONTENDED, [16, 32])
    assert found.slowdown == pytest.approx([1.8, 2.0])
    assert found.error == pytest.approx([0.23, 0.43])


def test_contention_that_falls_does_not_go_on_falling() -> None:
    falling = profile(crowds=(contention(2, 1.5), contention(4, 1.2)))
    assert among(falling, [2, 4, 64]).slowdown == pytest.approx([1.5, 1.2, 1.2])


def test_contention_that_seems_faster_than_one_alone_is_not() -> None:
    assert among(profile(crowds=(contention(2, 0.97),)), [2]).slowdown[0] == 1


def test_passes_of_a_step_are_steps_of_a_part_of_the_batch_with_one_optimizer_step() -> None:
    found, part = work(THREE, [32], passes=4), work(THREE, [8])
    assert found.step_s[0] == 4 * (SMALL.forward_s + SMALL.backward_s) + SMALL.optimizer_s
    assert (found.backward_s[0], found.memory_bytes[0]) == (part.backward_s[0], part.memory_bytes[0])
    assert found.ready_s.tolist() == part.ready_s.tolist()
    assert work(THREE, [30], passes=4).step_s[0] == found.step_s[0], "8 samples in the largest pass"


def test_contention_at_two_batches_tell_those_in_between() -> None:
    model = profile(crowds=(contention(2, 1.2, 8), contention(2, 2.0, 128, error=0.02)))
    for batch, slowdown in {1: 1.2, 8: 1.2, 32: 1.6, 128: 2.0, 1024: 2.0}.items():
        assert among(model, [2], batch).slowdown[0] == pytest.approx(slowdown)
    assert among(model, [2]).error[0] == pytest.approx(0.02)
