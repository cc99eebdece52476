"""Speedups with their intervals, the fastest batch, and engines against each other, worked out by hand."""

import math
from typing import Any

import pytest

from scalescope.records.scaling import (
    BestBatch,
    Curve,
    Estimate,
    ScalingPoint,
    best_batch,
    compared,
    engine_ratios,
    estimate,
)


def about(value: float, off: float = 0.0) -> Estimate:
    return Estimate(value=value, low=value - off, high=value + off)


def point(engine: str = "none", np: int = 1, batch: float | None = 8, rate: float = 0.0, **more: Any) -> ScalingPoint:
    """A rate of 0: nothing is known of it."""
    return ScalingPoint(engine=engine, np=np, batch=batch, **({"throughput": about(rate)} if rate else {}) | more)


def curve(
    *points: ScalingPoint, np: int | None = 1, engine: str = "none", own: str = "ddp", kind: str = "weak"
) -> Curve:
    return Curve(engine=own, scaling=kind, baseline_np=np, baseline_engine=engine, points=points)


def found(*points: ScalingPoint, np: int | None = 1) -> BestBatch:
    best = best_batch([curve(*points, np=np)])
    assert best is not None
    return best


def test_below_five_repetitions_there_is_the_median_and_the_range() -> None:
    assert estimate([4.0, 1.0, 2.0]) == Estimate(value=2.0, low=1.0, high=4.0, interval="range", count=3)
    assert estimate([1.0, 2.0, 4.0, 8.0]) == Estimate(value=math.sqrt(8), low=1.0, high=8.0, interval="range", count=4)


def test_from_five_repetitions_on_there_is_the_geometric_mean_and_a_t_interval() -> None:
    made = estimate([1.0, 2.0, 4.0, 8.0, 16.0])
    assert made
    assert (made.interval, made.count) == ("t", 5)
    assert made.value == pytest.approx(4.0)
    assert made.value**2 == pytest.approx(made.low * made.high)
    assert made.high == pytest.approx(15.6, rel=1e-3)  # 2.776 standard errors of 0.490 above, in logarithms


def test_a_target_that_was_reached_widens_the_interval() -> None:
    values = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0]
    usual, reached, missed = estimate(values), estimate(values, target=0.5), estimate(values, target=0.001)
    assert usual
    assert reached
    assert reached.high > usual.high
    assert missed == usual


def test_unknown_and_non_positive_values_do_not_count() -> None:
    assert estimate([None, 2.0, 0.0, -1.0]) == about(2.0)
    assert estimate([None, 0.0]) is None
    assert estimate([]) is None


@pytest.mark.parametrize(
    ("more", "once"),
    [({}, True), ({"count": 2}, False), ({"over": "blocks"}, False), ({"count": 2, "over": "blocks"}, False)],
)
def test_one_launch_is_once_and_one_block_is_not(more: dict[str, Any], once: bool) -> None:
    assert Estimate(value=1.0, low=1.0, high=1.0, **more).once is once


def test_the_global_batch_is_that_of_all_processes() -> None:
    assert point(np=4, batch=8).global_batch == 32
    assert point(np=4, batch=None).global_batch is None


def test_the_baseline_is_the_point_of_its_size_and_its_engine() -> None:
    alone, wrapped, two = point("none"), point("ddp"), point("ddp", 2)
    assert curve(alone, wrapped, two).baseline is alone
    assert curve(alone, wrapped, two, engine="ddp").baseline is wrapped
    assert curve(alone, wrapped, two, np=2, engine="ddp").baseline is two
    assert curve(alone, two, np=2).baseline is None
    assert curve(alone, np=None, engine="").baseline is None


def test_the_fastest_batch_is_that_of_the_smallest_baseline() -> None:
    points = (point(batch=8, rate=100), point(batch=16, rate=300), point(batch=32, rate=200))
    several = (point("ddp", 2, 8, 900), point("ddp", 2, 64, 1900))
    best = best_batch([curve(*several, np=2, engine="ddp"), curve(*points)])
    assert best
    assert (best.np, best.engine, best.batch, best.rivals) == (1, "none", 16, ())
    assert best.rate == about(300)
    assert {batch: rate.value for batch, rate in best.rates["none"].items()} == {8: 100, 16: 300, 32: 200}
    assert best.rates.keys() == {"none"}


def test_curves_without_a_baseline_do_not_decide_the_smallest() -> None:
    points = (point("ddp", 2, 8, 100), point("ddp", 2, 16, 300))
    best = best_batch([curve(*points, np=2), curve(point(batch=8, rate=1), point(batch=16, rate=2), np=None)])
    assert best
    assert (best.np, best.engine, best.batch) == (2, "ddp", 16)
    assert best_batch([curve(*points, np=None)]) is None


def test_below_two_batch_sizes_none_is_the_fastest() -> None:
    assert best_batch([]) is None
    assert best_batch([curve(point(batch=8, rate=100), point("ddp", batch=16, rate=200))]) is None
    assert best_batch([curve(point(batch=None, rate=100), point(batch=16, rate=200))]) is None
    assert best_batch([curve(point(batch=8), point(batch=16, rate=200))]) is None


def test_rates_without_an_engine_decide_where_there_are_any() -> None:
    plain = (point(batch=8, rate=100), point(batch=16, rate=50))
    ddp = (point("ddp", batch=8, rate=400), point("ddp", batch=16, rate=500))
    horovod = (point("horovod", batch=8, rate=600), point("horovod", batch=16, rate=10))
    assert (found(*plain, *ddp).engine, found(*plain, *ddp).batch) == ("none", 8)
    assert (found(*ddp, *horovod).engine, found(*ddp, *horovod).batch) == ("horovod", 8)  # its best is the best of all
    assert (found(*ddp, horovod[1]).engine, found(*ddp, horovod[1]).batch) == ("ddp", 16)
    assert found(*ddp, *horovod).rates.keys() == {"ddp", "horovod"}


def test_the_rate_of_a_batch_comes_from_the_first_curve_that_has_it() -> None:
    first, second = curve(point(batch=8, rate=100), point(batch=16, rate=50)), curve(point(batch=8, rate=1))
    best = best_batch([first, second])
    assert best
    assert best.rate.value == 100


def test_a_batch_is_a_rival_unless_its_own_interval_lies_below() -> None:
    best = point(batch=16, throughput=about(100, 10))
    over = point(batch=8, throughput=about(85, 10))
    touching = point(batch=4, throughput=about(80, 10))
    below = point(batch=32, throughput=about(79, 10))
    assert found(best, over, touching, below).rivals == (4, 8)


def test_rounds_tell_batches_apart_that_intervals_do_not() -> None:
    best = point(batch=16, throughput=about(100, 50), rates={1: 100.0, 2: 60.0, 3: 110.0})
    always = point(batch=8, throughput=about(90, 50), rates={1: 95.0, 2: 55.0, 3: 100.0})
    mostly = point(batch=32, throughput=about(90, 50), rates={1: 95.0, 2: 65.0})
    equal = point(batch=64, throughput=about(40, 1), rates={1: 100.0})
    assert found(best, always, mostly, equal).rivals == (32, 64)


def test_points_are_compared_within_rounds_that_both_have() -> None:
    one, other = point(rates={1: 30.0, 2: 80.0, 4: 1.0}), point(rates={1: 10.0, 2: 20.0, 3: 1.0})
    assert compared(one, other) == Estimate(value=math.sqrt(12), low=3.0, high=4.0, count=2)
    assert compared(one, point(rates={9: 1.0})) is None


def engine(name: str, rate: float, **more: Any) -> Curve:
    """Two processes with one engine, after one process alone."""
    made = point(name, 2, 8, rate, rates={1: rate}, **more)
    return curve(point(rate=50, rates={1: 50.0}), made, own=name)


def test_the_fastest_engine_is_set_against_each_other_one() -> None:
    ratios = engine_ratios([engine("ddp", 100), engine("horovod", 400), engine("third", 200)])
    assert [(each.engine, each.than, each.ratio.value) for each in ratios] == [
        ("horovod", "ddp", 4.0),
        ("horovod", "third", 2.0),
    ]
    assert {(each.scaling, each.np, each.batch) for each in ratios} == {("weak", 2, 8)}


def test_engines_are_set_against_each_other_where_they_made_the_same_steps_together() -> None:
    other_size = curve(point("horovod", 4, 8, 400, rates={1: 400.0}), own="horovod")
    other_kind = curve(point("horovod", 2, 8, 400, rates={1: 400.0}), own="horovod", kind="strong")
    other_batch = curve(point("horovod", 2, 16, 400, rates={1: 400.0}), own="horovod")
    other_round = curve(point("horovod", 2, 8, 400, rates={2: 400.0}), own="horovod")
    unknown = curve(point("horovod", 2, 8, rates={1: 400.0}), own="horovod")
    nameless = curve(point("", 2, 8, 400, rates={1: 400.0}), own="")
    alone = curve(point("none", 2, 8, 400, rates={1: 400.0}), own="none")
    of_another = curve(point("horovod", 2, 8, 400, rates={1: 400.0}), own="ddp")
    others = [other_size, other_kind, other_batch, other_round, unknown, nameless, alone, of_another]
    assert [engine_ratios([engine("ddp", 100), other]) for other in others] == [()] * len(others)


def test_the_ratio_of_two_launches_each_is_that_of_their_rates() -> None:
    alone, both = (548.0, 1121.0), (1250.0, 885.0)
    ratio = estimate([two / one for one, two in zip(alone, both, strict=True)])
    rates = [each.value for each in (estimate(alone), estimate(both)) if each]
    assert ratio
    assert ratio.value == pytest.approx(rates[1] / rates[0])
