"""Traces of two launches: steps and parts with intervals from blocks of steps, and what stands out in one only."""

from statistics import fmean, stdev
from typing import Any

import made_explanation
import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.records.comparison import Pair
from scalescope.records.explanation import Explanation, Finding, StepAccount
from scalescope.records.results import Results
from scalescope.records.scaling import Curve, Estimate, Scaling, ScalingPoint
from scalescope.records.timeline import Breakdown
from scalescope.stats import MEASURED, t_width
from scalescope.studies.compare import compare


def parts(step_s: float = 1.0, **more: Any) -> Breakdown:
    known = dict.fromkeys(("compute_s", "exposed_s", "hidden_s", "input_s", "optimizer_s"), None)
    return Breakdown(**{**known, "other_s": 0.0, "step_s": step_s, **more})


def traced(*seconds: float, warmup: int = 0, **more: Any) -> Explanation:
    """Steps of these seconds on one rank."""
    steps = tuple(StepAccount(rank=0, index=at, start_s=0.0, parts=parts(each)) for at, each in enumerate(seconds))
    known = {"accounting": parts(fmean(seconds)), "steps": steps, "warmup_steps": warmup, "findings": ()}
    return msgspec.structs.replace(made_explanation.ddp(2, 6), **{**known, **more})


def of(*explanations: Explanation, name: str = "t") -> Results:
    return Results(name=name, explanations=explanations, traced_batches=(None,) * len(explanations))


def pairs(a: Explanation, b: Explanation) -> dict[str, Pair]:
    return {pair.what: pair for pair in compare(of(a), of(b)).pairs}


def step(a: Explanation, b: Explanation) -> Pair:
    return compare(of(a), of(b)).pairs[0]


EXACT = traced(*[1.0] * 5)


@pytest.mark.parametrize(("count", "size"), [(19, 1), (20, 2), (25, 2), (30, 3)])
def test_steps_are_cut_into_ten_blocks_or_more_and_each_counts_once(count: int, size: int) -> None:
    seconds = [100.0 + at for at in range(count)]
    means = [fmean(seconds[at : at + size]) for at in range(0, count - size + 1, size)]
    half = t_width(len(means) - 1, MEASURED) * stdev(means) / len(means) ** 0.5
    ratio = step(traced(*seconds), EXACT).ratio
    assert ratio
    assert (ratio.low, ratio.high) == pytest.approx((1 / (fmean(seconds) + half), 1 / (fmean(seconds) - half)))


def test_a_steps_interval_is_that_of_the_means_of_its_blocks() -> None:
    seconds = (1.0, 1.2, 0.8, 1.1, 0.9)
    ratio = step(traced(*seconds), EXACT).ratio
    assert ratio
    half = 2.7764 * stdev(seconds) / 5**0.5
    assert [ratio.low, ratio.value, ratio.high] == pytest.approx([1 / (1 + half), 1.0, 1 / (1 - half)], rel=1e-4)


def test_one_traced_launch_decides_nothing_however_many_steps_it_has() -> None:
    slow = traced(9.0, *[2.0] * 50, warmup=1, accounting=parts(2.0))
    both = compare(of(EXACT), of(slow))
    assert {(pair.verdict, pair.note) for pair in both.pairs} == {
        ("undecided", "one traced launch each, and launches differ: measure both with --launches 5")
    }
    assert not both.slower
    short = msgspec.structs.replace(slow, steps=slow.steps[:5])
    assert (step(short, EXACT).verdict, step(short, EXACT).note) == (
        "undecided",
        "fewer than 5 steady steps: trace more",
    )


def test_measured_steps_of_the_same_setting_decide() -> None:
    step_s = Estimate(value=1.0, low=1.0, high=1.0, interval="t", count=5)
    point = ScalingPoint(engine="ddp", np=2, batch=8, step_s=step_s)
    curve = Curve(engine="ddp", scaling="weak", baseline_np=None, points=(point,))
    scaling = Scaling(what="cnn", source="measurement", curves=(curve,))
    one, two = (msgspec.structs.replace(of(each), scaling=scaling) for each in (EXACT, traced(*[2.0] * 5)))
    both = compare(one, two)
    assert [(pair.what, pair.verdict) for pair in both.decisive] == [("step of 2 x ddp, batch 8 each", "same")]
    assert both.pairs[1].what == "traced step of 2 ranks, ddp over gloo"
    other = msgspec.structs.replace(two, traced_batches=(16,))
    assert "step of 2 ranks, ddp over gloo" in {pair.what for pair in compare(one, other).decisive}


def test_ranks_are_averaged_step_by_step_in_the_order_of_steps() -> None:
    steps = [
        StepAccount(rank=rank, index=at, start_s=0.0, parts=parts(seconds))
        for at in reversed(range(6))
        for rank, seconds in enumerate((1.0 + 0.1 * at, 1.0 - 0.1 * at) if at else (50.0, 70.0))
    ]
    ratio = step(traced(*[1.0] * 5, steps=tuple(steps), warmup=1), EXACT).ratio
    assert ratio
    assert [ratio.low, ratio.high] == pytest.approx([1.0, 1.0])


def test_a_mean_with_a_wide_interval_stays_above_zero() -> None:
    ratio = step(traced(0.1, 9.0, 0.1, 0.1, 0.1), EXACT).ratio
    assert ratio
    assert 0 < ratio.low < ratio.value < ratio.high < float("inf")


def with_parts(**seconds: Any) -> Explanation:
    return traced(*[1.0] * 5, accounting=parts(**seconds))


def test_parts_are_shown_from_half_a_percent_of_one_of_the_steps_on() -> None:
    tiny, small = with_parts(input_s=0.004, optimizer_s=0.005), with_parts(input_s=0.001, optimizer_s=0.0)
    assert list(pairs(tiny, small))[1:] == ["optimizer"]
    assert list(pairs(small, tiny))[1:] == ["optimizer"]
    half = traced(*[2.0] * 5, accounting=parts(2.0, input_s=0.008, optimizer_s=0.0))
    assert list(pairs(half, half))[1:] == []
    assert list(pairs(small, traced(*[0.5] * 5, accounting=parts(0.5, input_s=0.004, optimizer_s=0.0))))[1:] == [
        "input"
    ]


def test_parts_that_one_source_does_not_tell_are_left_out_and_the_others_keep_their_order() -> None:
    everything = {"compute_s": 0.5, "exposed_s": 0.3, "waiting_s": 0.1, "input_s": 0.1, "optimizer_s": 0.1}
    one = with_parts(**everything, other_s=0.2)
    assert list(pairs(one, one))[1:] == [
        "compute",
        "waiting for other ranks",
        "exposed transfer",
        "input",
        "optimizer",
        "other",
    ]
    found = pairs(one, with_parts(**everything | {"waiting_s": None, "input_s": None}, other_s=0.1))
    assert list(found)[1:] == ["compute", "exposed communication", "optimizer", "other"]
    assert [pair.is_part for pair in found.values()] == [False, True, True, True, True]
    assert (found["other"].a, found["other"].b) == (0.2, 0.1)


def test_a_part_of_nothing_is_nothing() -> None:
    some, none = with_parts(input_s=0.2), with_parts(input_s=0.0)
    pair = pairs(some, none)["input"]
    assert (pair.a, pair.b, pair.ratio) == (0.2, 0.0, None)
    steps = [
        StepAccount(rank=0, index=at, start_s=0.0, parts=parts(input_s=seconds))
        for at, seconds in enumerate((0.0, None, 0.2, 0.4, 0.4))
    ]
    uneven = traced(*[1.0] * 5, accounting=parts(input_s=0.2), steps=tuple(steps))
    ratio = pairs(some, uneven)["input"].ratio
    assert ratio
    assert ratio.high == pytest.approx((0.2 + 2.7764 * 0.2 / 5**0.5) / 0.2, rel=1e-4)


def test_the_last_trace_of_each_is_compared() -> None:
    slow = traced(*[2.0] * 5)
    pair = compare(of(slow, EXACT), of(EXACT, slow)).pairs[0]
    assert (pair.a, pair.b) == (1.0, 2.0)


def test_a_trace_without_steps_has_nothing_to_compare() -> None:
    bare = msgspec.structs.replace(EXACT, accounting=None)
    for a, b in ((EXACT, bare), (bare, EXACT)):
        with pytest.raises(UsageError, match=r"t \(explanation\) and t \(explanation\) have no time in common"):
            compare(of(a), of(b))


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        ({}, {}, "step of 2 ranks, ddp over gloo"),
        ({"backend": ""}, {"backend": ""}, "step of 2 ranks, ddp"),
        ({"world_size": None, "ranks": (0,)}, {}, "step of 1 rank, ddp over gloo against 2 ranks, ddp over gloo"),
        ({}, {"world_size": 8}, "step of 2 ranks, ddp over gloo against 8 ranks, ddp over gloo"),
    ],
)
def test_a_step_is_called_by_the_ranks_and_the_engine_of_both(a: dict[str, Any], b: dict[str, Any], what: str) -> None:
    replace = msgspec.structs.replace
    assert step(replace(EXACT, **a), replace(EXACT, **b)).what == what


def test_findings_of_one_side_only_are_new_or_gone() -> None:
    def finding(name: str) -> Finding:
        return Finding(id=name, sentence=f"It is {name}.", evidence={}, change="", gain=None)

    first, second = (
        msgspec.structs.replace(EXACT, findings=tuple(map(finding, names)))
        for names in (("late", "small"), ("small", "cold"))
    )
    assert compare(of(first), of(second)).notes == ("new: It is cold.", "gone: It is late.")
    assert compare(of(first), of(first)).notes == ()
