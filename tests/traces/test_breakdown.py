"""Where the time of a step goes."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakdowns import break_down
from scalescope.records.timeline import COMPUTE, EXCHANGE, Activity, Breakdown, Span, Step, Timeline


def span(activity: Activity, start_s: float, end_s: float, rank: int = 0) -> Span:
    return Span(rank=rank, activity=activity, start_s=start_s, end_s=end_s)


def parts(*spans: Span, start_s: float = 0.0, end_s: float = 10.0) -> Breakdown:
    step = Step(rank=0, start_s=start_s, end_s=end_s)
    return break_down(Timeline(source="made", spans=spans, steps=(step,)), step)


def test_each_part_gets_its_time_and_the_rest_is_other() -> None:
    found = parts(
        span("input", 0, 1),
        span("forward", 1, 3),
        span("backward", 3, 6),
        span("communication", 5, 7),
        span("copy", 7, 7.5),
        span("optimizer", 7.5, 9),
        span("other", 9, 9.5),
    )
    assert found == Breakdown(
        step_s=10, compute_s=5.5, exposed_s=1, hidden_s=1, input_s=1, optimizer_s=1.5, other_s=pytest.approx(1)
    )


def test_negotiation_counts_as_communication() -> None:
    found = parts(span("backward", 0, 4), span("negotiation", 3, 5), span("communication", 5, 8))
    assert (found.exposed_s, found.hidden_s, found.other_s) == (4, 1, 2)


def test_messages_at_the_same_time_count_once() -> None:
    found = parts(span("backward", 0, 4), span("communication", 3, 6), span("communication", 2, 7))
    assert (found.exposed_s, found.hidden_s) == (3, 2)


def test_communication_under_the_optimizer_is_hidden() -> None:
    found = parts(span("optimizer", 2, 6), span("communication", 4, 8))
    assert (found.optimizer_s, found.exposed_s, found.hidden_s) == (4, 2, 2)


def test_compute_goes_before_the_optimizer_and_input_comes_last() -> None:
    found = parts(span("backward", 0, 4), span("optimizer", 3, 6), span("communication", 5, 8), span("input", 0, 9))
    assert (found.compute_s, found.optimizer_s, found.exposed_s, found.input_s, found.other_s) == (4, 2, 2, 1, 1)


def test_only_what_lies_in_the_step_and_in_the_rank_counts() -> None:
    found = parts(span("forward", 0, 4), span("backward", 8, 20), span("communication", 4, 8, rank=1), start_s=3)
    assert (found.step_s, found.compute_s, found.exposed_s, found.hidden_s, found.other_s) == (7, 3, 0, 0, 4)


ACTIVITIES = st.sampled_from(get_args(Activity))
MOMENTS = st.integers(-5, 25)
SPANS = st.lists(st.builds(span, ACTIVITIES, MOMENTS, MOMENTS, st.integers(0, 1)), max_size=12)


@given(SPANS, st.integers(0, 10), st.integers(0, 12))
def test_parts_equal_a_count_second_by_second(spans: list[Span], start: int, seconds: int) -> None:
    found = parts(*spans, start_s=start, end_s=start + seconds)
    counted = dict.fromkeys(("compute", "optimizer", "exposed", "hidden", "input", "other"), 0)
    for second in range(start, start + seconds):
        on = {each.activity for each in spans if each.rank == 0 and each.start_s <= second < each.end_s}
        busy = "compute" if on & set(COMPUTE) else "optimizer" if "optimizer" in on else ""
        talks = bool(on & set(EXCHANGE))
        counted["hidden"] += talks and bool(busy)
        counted[busy or ("exposed" if talks else "input" if "input" in on else "other")] += 1
    assert counted == {
        "compute": found.compute_s,
        "optimizer": found.optimizer_s,
        "exposed": found.exposed_s,
        "hidden": found.hidden_s,
        "input": found.input_s,
        "other": found.other_s,
    }
    assert found.step_s == seconds


@given(st.lists(st.builds(span, ACTIVITIES, st.floats(0, 9), st.floats(0, 11)), max_size=20))
def test_the_parts_add_up_to_the_step(spans: list[Span]) -> None:
    found = parts(*spans)
    own = [found.compute_s, found.exposed_s, found.optimizer_s, found.input_s]
    assert sum(own) + found.other_s == pytest.approx(found.step_s, rel=1e-12)
    assert min([*own, found.hidden_s]) >= -1e-9
    assert found.other_s >= -1e-9
