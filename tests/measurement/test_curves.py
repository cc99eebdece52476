import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed import observation

from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation
from scalescope.measurement.verdict import what_stands_out
from scalescope.records.scaling import LOSSES

SECONDS = st.floats(0.01, 50)
RUN = st.tuples(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
FRAME = Frame(engine="ddp")
TABLE = Frame(engine="ddp", work="fitted")


def test_each_speedup_answers_its_question() -> None:
    alone = observation(1, 100, warmup=1, init=4, launch=1)  # 10 s of steps
    four = observation(4, 320, warmup=2, init=6, launch=2)  # 3.125 s
    point = make_curve([alone, four], FRAME).points[1]
    assert point.speedup["steady"].value == pytest.approx(3.2)
    assert point.speedup["train"].value == pytest.approx(11 / 5.125)
    assert point.speedup["end_to_end"].value == pytest.approx(16 / 13.125)
    assert point.efficiency
    assert point.efficiency.value == pytest.approx(0.8)


@given(st.lists(st.tuples(RUN, RUN), min_size=1, max_size=7), st.integers(2, 64))
def test_the_waterfall_adds_up_exactly(rounds: list[tuple[tuple[float, ...], ...]], np: int) -> None:
    observations = []
    for number, pair in enumerate(rounds):
        for count, (rate, warmup, fixed, init, launch) in zip((1, np), pair, strict=True):
            parts = {"warmup": warmup, "uneven": 0.1, "fixed": fixed, "init": init, "launch": launch}
            observations.append(observation(count, rate, round_=number, **parts))
    point = make_curve(observations, FRAME).points[1]
    assert [loss.name for loss in point.waterfall] == list(LOSSES)
    left = np
    for loss in point.waterfall:
        left -= loss.lost
        assert loss.left == pytest.approx(left, rel=1e-9)
    levels = {loss.name: loss.left for loss in point.waterfall}
    assert levels["efficiency"] == pytest.approx(point.speedup["steady"].value)
    assert levels["fixed"] == pytest.approx(point.speedup["train"].value)
    assert levels["launch"] == pytest.approx(point.speedup["end_to_end"].value)


@given(SECONDS, SECONDS, st.floats(1.1, 8))
def test_a_run_longer_by_the_factor_reaches_90_percent_of_the_steady_speedup(
    base_fixed: float, fixed: float, gain: float
) -> None:
    base, own = observation(1, 10, fixed=base_fixed), observation(8, 10 * gain, fixed=fixed)
    times = make_curve([base, own], FRAME).points[1].longer_for_90["train"].value
    base_s, own_s = base_fixed + times * 1000 / 10, fixed + times * 1000 / (10 * gain)
    reached = base_s / own_s / gain
    assert reached == pytest.approx(0.9) if times > 1 else reached >= 0.9 - 1e-9


@given(SECONDS, st.floats(1, 50), st.floats(1.1, 8))
def test_break_even_is_where_both_end_together(base_fixed: float, more: float, gain: float) -> None:
    base, own = observation(1, 10, fixed=base_fixed), observation(8, 10 * gain, fixed=base_fixed + more)
    work = make_curve([base, own], FRAME).points[1].break_even["train"].value
    assert work
    assert base_fixed + work / 10 == pytest.approx(base_fixed + more + work / (10 * gain))


def test_a_slower_size_never_breaks_even() -> None:
    point = make_curve([observation(1, 10, fixed=1), observation(2, 9, fixed=2)], FRAME).points[1]
    assert point.break_even["train"].value is None


def test_a_pace_that_start_up_cost_eats_up_stands_out() -> None:
    def told(launch_s: float) -> tuple[str, ...]:
        base, own = observation(1, 10, warmup=1, launch=0), observation(2, 20, warmup=1, launch=launch_s)
        return what_stands_out([make_curve([base, own], FRAME)])

    assert told(49.0) == ()
    assert told(60.0) == (
        "2 processes finished this job later than 1 (0.91x end to end) although their steady pace was 2.00x; it pays "
        "from 1,200 samples on (one launch each; launches differ)",
    )


def test_rounds_are_compared_with_themselves() -> None:
    """A machine that is twice as slow in one round changes no ratio."""
    observations = []
    for number, pace in enumerate((1.0, 0.5, 2.0, 1.0, 0.7)):
        observations += [
            observation(1, 100 * pace, round_=number, fixed=0.0),
            observation(2, 180 * pace, round_=number, fixed=0.0),
        ]
    steady = make_curve(observations, FRAME).points[1].speedup["steady"]
    assert (steady.interval, steady.count) == ("t", 5)
    assert steady.low == pytest.approx(1.8)
    assert steady.high == pytest.approx(1.8)


def test_below_five_launches_there_is_only_a_range() -> None:
    observations = [observation(1, 100, round_=number) for number in range(3)]
    observations += [observation(2, rate, round_=number) for number, rate in enumerate((150, 160, 190))]
    steady = make_curve(observations, FRAME).points[1].speedup["steady"]
    assert steady.interval == "range"
    assert (steady.low, steady.value, steady.high) == pytest.approx((1.5, 1.6, 1.9))


def test_unknown_parts_are_absent() -> None:
    rates = make_curve([observation(1, 100), observation(2, 190)], FRAME).points[1]
    assert set(rates.speedup) == {"steady"}
    assert rates.train_s is None
    times = [
        Observation(engine="ddp", np=np, rate=None, work=1, whole_train_s=seconds, parts={"init": 2.0})
        for np, seconds in ((1, 10.0), (2, 6.0))
    ]
    point = make_curve(times, FRAME).points[1]
    assert {name: each.value for name, each in point.speedup.items()} == pytest.approx(
        {"train": 10 / 6, "end_to_end": 12 / 8}
    )
    assert point.waterfall == ()


def test_without_one_process_the_smallest_is_the_measure() -> None:
    curve = make_curve([observation(2, 200), observation(8, 640)], FRAME)
    assert curve.baseline_np == 2
    efficiency = curve.points[1].efficiency
    assert efficiency
    assert efficiency.value == pytest.approx(0.8)


def test_the_fit_finds_fixed_cost_and_work() -> None:
    curve = make_curve([observation(np, 10.0 * np, fixed=7.0) for np in (1, 2, 4, 8)], TABLE)
    assert curve.fit
    assert curve.fit.fixed_s == pytest.approx(7)
    assert curve.fit.work == pytest.approx(1000)
    assert curve.fit.fixed_share["8"] == pytest.approx(7 / 19.5)


def test_in_weak_scaling_work_grows_and_the_fit_knows() -> None:
    curve = make_curve([observation(np, 9.0 * np, work=100.0 * np, fixed=7.0) for np in (1, 2, 4, 8)], TABLE)
    assert curve.fit is None  # steady time is the same at every size: cost and work cannot be told apart
    uneven = [observation(np, rate, work=100.0 * np, fixed=7.0) for np, rate in ((1, 10), (2, 16), (4, 25))]
    fit = make_curve(uneven, TABLE).fit
    assert fit
    assert (fit.fixed_s, fit.work) == pytest.approx((7, 100))


def test_no_fit_where_no_constant_cost_describes_the_times() -> None:
    observations = [observation(np, rate, fixed=fixed) for np, rate, fixed in ((1, 1, 2), (2, 2, 900), (4, 4, 1200))]
    assert make_curve(observations, TABLE).fit is None


def test_launches_tell_the_one_time_cost_of_every_point_and_no_fit() -> None:
    """A fit to launches would only give back the work that its own times were made of."""
    costs = {1: 2.0, 2: 6.0, 4: 6.0}
    observations = [
        observation(np, 10.0 * np, round_=number, fixed=costs[np] + 0.1 * (number - 3), init=1.0)
        for np in costs
        for number in range(1, 6)
    ]
    curve = make_curve(observations, FRAME)
    assert curve.fit is None
    for point in curve.points:
        assert point.one_time_s
        assert point.one_time_s.value == pytest.approx(costs[point.np] + 1.0)
        assert point.one_time_s.interval == "t"
        assert point.one_time_s.high - point.one_time_s.low == pytest.approx(
            2 * 2.776 * 0.1 * 2.5**0.5 / 5**0.5, rel=1e-3
        )


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ({1: 7.0, 2: 7.1, 4: 6.9, 8: 7.0, 16: 7.1}, ""),
        ({1: 2.0, 2: 6.0, 4: 6.0, 8: 6.0, 16: 6.0}, "the cost appears with more than 1"),
        ({1: 2.0, 2: 4.0, 4: 6.1, 8: 8.0, 16: 9.9}, "the cost grows with the processes"),
        ({1: 9.0, 2: 9.0, 4: 3.0, 8: 9.0, 16: 9.0}, "the fit is off by"),
    ],
)
def test_a_fit_says_where_one_cost_for_all_sizes_does_not_describe_a_table(costs: dict[int, float], said: str) -> None:
    rates = {np: 10.0 * np * 0.97**np for np in costs}
    fit = make_curve([observation(np, rates[np], fixed=cost) for np, cost in costs.items()], TABLE).fit
    assert fit
    assert fit.lack.startswith(said)
    assert bool(fit.lack) is bool(said)


def _launches(gain: float, cost_s: float, noise: float, number: int) -> list[Observation]:
    chance = np.random.default_rng(number)
    return [
        observation(count, rate * math.exp(noise * chance.standard_normal()), round_=at, fixed=fixed)
        for at in range(6)
        for count, rate, fixed in ((1, 10.0, 1.0), (2, 10.0 * gain, 1.0 + cost_s))
    ]


def test_break_even_has_an_interval_over_launches_that_holds_the_truth() -> None:
    truth = 20 / (1 / 10 - 1 / 12)
    found = [make_curve(_launches(1.2, 20.0, 0.02, at), FRAME).points[1].break_even["train"] for at in range(400)]
    held = sum((each.low or 0.0) <= truth and (each.high is None or truth <= each.high) for each in found)
    assert 0.92 <= held / len(found) <= 0.98
    assert {each.interval for each in found} == {"t"}


def test_break_even_may_be_never_where_the_gain_may_be_nothing() -> None:
    found = [make_curve(_launches(1.02, 20.0, 0.02, at), FRAME).points[1].break_even["train"] for at in range(40)]
    assert sum(each.high is None for each in found) > 20
    slower = make_curve(_launches(0.5, 20.0, 0.02, 1), FRAME).points[1].break_even["train"]
    assert (slower.value, slower.low, slower.high) == (None, None, None)


def test_how_much_longer_has_an_interval_over_launches() -> None:
    point = make_curve(_launches(1.8, 20.0, 0.02, 1), FRAME).points[1]
    longer = point.longer_for_90["train"]
    assert 1 < longer.low < longer.value < longer.high
    assert longer.count == 6


def test_uneven_steps_count_in_break_even_and_in_how_much_longer() -> None:
    """Two sizes of equal median steps, of which one has slow steps too: it is the slower one."""
    base, own = observation(1, 10, fixed=1, uneven=0.0), observation(2, 10.5, fixed=9, uneven=10.0)
    point = make_curve([base, own], FRAME).points[1]
    assert point.break_even["train"].value is None
    even = make_curve([base, observation(2, 10.5, fixed=9, uneven=0.0)], FRAME).points[1]
    assert even.break_even["train"].value
    assert point.longer_for_90["train"].value > 1.5 * even.longer_for_90["train"].value
