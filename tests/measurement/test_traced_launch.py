"""Which steps of a traced launch are captured, and what is made of their times."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.measurement.capture import choose_window, overhead


@pytest.mark.parametrize("timeline", [True, False])
def test_without_knowing_anything_steady_steps_and_steps_to_compare_are_chosen(timeline: bool) -> None:
    window = choose_window(timeline=timeline)
    assert window.steps == 20
    assert window.first >= 10
    assert window.total(timeline=timeline) < 80


@pytest.mark.parametrize(("step_s", "steps"), [(0.0001, 50), (0.25, 20), (30.0, 10)])
def test_the_captured_steps_take_about_five_seconds_within_limits(step_s: float, steps: int) -> None:
    assert choose_window(timeline=False, step_s=step_s).steps == steps


def test_warmup_that_was_seen_is_skipped() -> None:
    assert choose_window(timeline=True, warmup=37).first == 37
    first, *_ = choose_window(timeline=False, warmup=37).blocks(timeline=False)
    assert first == (37, 47, False)


@given(most=st.integers(5, 300), warmup=st.integers(0, 100), timeline=st.booleans())
def test_a_window_fits_into_the_steps_that_there_are(most: int, warmup: int, timeline: bool) -> None:
    window = choose_window(timeline=timeline, most=most, warmup=warmup)
    assert window.steps >= 1
    assert window.first >= (1 if timeline else 2)  # the profiler warms up in a step after the first
    assert window.end < most
    assert window.total(timeline=timeline) <= most
    blocks = window.blocks(timeline=timeline)
    assert blocks[0][0] >= 0
    assert all(begin < end for begin, end, _ in blocks)
    assert all(one[1] <= other[0] for one, other in pairwise(blocks))


def test_most_of_a_short_script_is_captured() -> None:
    assert choose_window(timeline=False, most=15).steps == 10
    assert choose_window(timeline=True, most=15).steps == 11


def test_the_overhead_of_tracing_has_an_interval_from_neighbouring_blocks() -> None:
    blocks = [(0, 4, False), (5, 9, True), (10, 14, False)]
    times = [1.0] * 4 + [9.0] + [1.2] * 4 + [9.0] + [1.1] * 4
    found = overhead(times, blocks)
    assert found is not None
    assert found.value == pytest.approx(1.2 / 1.05 - 1)
    assert (found.low, found.high) == pytest.approx((1.2 / 1.1 - 1, 0.2))


@pytest.mark.parametrize("times", [[], [1.0] * 4, [1.0] * 7])
def test_too_few_steps_tell_no_overhead(times: list[float]) -> None:
    assert overhead(times, [(0, 4, False), (5, 9, True), (10, 14, False)]) is None


@given(most=st.one_of(st.none(), st.integers(3, 200)), timeline=st.booleans())
def test_from_the_start_the_first_steps_are_captured_and_fit(most: int | None, timeline: bool) -> None:
    window = choose_window(timeline=timeline, most=most, warmup=17, from_start=True)
    assert window.first == 0
    assert window.steps >= 1
    if most is not None:
        assert window.total(timeline=timeline) <= most
    blocks = window.blocks(timeline=timeline)
    assert blocks[0][0] == 0
    assert all(one[1] <= other[0] for one, other in pairwise(blocks))


def test_detail_of_the_cpu_is_asked_for_as_the_agent_reads_it() -> None:
    assert str(choose_window(timeline=False, most=60, cpu_detail=True)).endswith(":full")
    assert str(choose_window(timeline=False, most=60)).count(":") == 2
