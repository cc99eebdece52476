"""How a search is stopped, resumed, limited and taken up again."""

import math
from typing import Any

import pytest

from scalescope.records.tuning import Sample, Values
from scalescope.tuner.blocks import Block, score, typical_batch
from scalescope.tuner.confirmation import Lead, more_pairs, verdict
from scalescope.tuner.search import OFFLINE, ONLINE, Observation, Options, options_of, with_noise
from scalescope.tuner.tuner import Tuner
from tuner.landscapes import Training, predictions, space, valley
from tuner.made_launches import request

FINALIST: Values = {"bucket_cap_mb": 1.0}
DEEP = valley(1.0, 1.4)


def pair(tuner: Tuner, *steps_s: float) -> None:
    """Tell blocks of these steps, one after another: of the default the first, of the finalist the second."""
    default_s, finalist_s = steps_s
    for _ in range(2):
        asked = tuner.next()
        assert asked is not None
        step_s = finalist_s if asked.values else default_s
        tuner.tell(asked, Block(step_s=(step_s,) * asked.steps))


def begun(most_pairs: int = 4) -> Tuner:
    """A comparison after its sample of the default."""
    tuner = Tuner(space(), None, Options(most_pairs=most_pairs), FINALIST)
    asked = tuner.next()
    assert asked is not None
    tuner.tell(asked, Block(step_s=(0.1,) * asked.steps))
    return tuner


def test_a_stopped_search_is_undecided_and_reports_the_gain_so_far() -> None:
    tuner = begun()
    assert tuner.outcome().reason == "it is not decided yet"
    pair(tuner, 0.1, 0.08)
    pair(tuner, 0.1, 0.09)
    tuner.stop("no more time")
    assert tuner.next() is None
    found = tuner.outcome()
    assert (found.decision, found.values, found.finalist) == ("undecided", {}, FINALIST)
    assert found.gain is not None
    assert found.reason == (f"no more time ({found.gain.words})")
    assert found.more is not None
    tuner.stop("another reason")
    assert tuner.outcome().reason == found.reason


def test_a_stop_without_a_pair_reports_no_gain() -> None:
    tuner = begun()
    tuner.stop("no more time")
    assert tuner.outcome().reason == "no more time"
    assert tuner.outcome().more is None


def test_an_undecided_comparison_gets_as_many_pairs_again_and_a_decided_one_none() -> None:
    tuner = begun(4)
    for at in range(4):
        pair(tuner, 0.1, 0.05 if at % 2 else 0.16)
    assert tuner.outcome().decision == "undecided"
    assert tuner.outcome().reason.startswith("the pairs differ too much (")
    assert tuner.next() is None
    tuner.resume()
    assert tuner.outcome().decision == "keep_default"
    left = tuner.plan()
    assert next(asked.pair for asked in left) == 4
    won = begun(4)
    while won.next():
        pair(won, 0.1, 0.08)
    assert won.outcome().decision == "use"
    won.resume()
    assert won.next() is None


def test_a_stopped_comparison_with_pairs_left_gets_only_those() -> None:
    tuner = begun(4)
    pair(tuner, 0.1, 0.1)
    tuner.stop("no more switches")
    tuner.resume()
    assert max(asked.pair or 0 for asked in tuner.plan()) <= 3


def test_an_ended_search_continues_with_the_comparison() -> None:
    training = Training(DEEP, 1)
    tuner = training.tune(predictions(DEEP), most=4)
    tuner.end_search()
    asked = tuner.next()
    assert asked is not None
    assert asked.phase == "confirm"
    fresh = Tuner(space(), None, ONLINE)
    fresh.end_search()
    asked = fresh.next()
    assert asked is not None
    assert asked.phase == "default"


def test_the_best_so_far_is_the_default_until_something_is_known() -> None:
    assert Tuner(space(), None, ONLINE).best == ({}, 1.0)
    tuner = begun()
    assert tuner.best == (FINALIST, 1.0)
    pair(tuner, 0.1, 0.08)
    values, factor = tuner.best
    assert values == FINALIST
    assert factor == pytest.approx(1.25)


def test_a_setting_that_fails_in_the_comparison_ends_it() -> None:
    tuner = begun()
    while asked := tuner.next():
        failed = bool(asked.values)
        sample = tuner.tell(asked, Block(step_s=(), problem="out of memory") if failed else Block(step_s=(0.1,) * 10))
        if failed:
            assert sample.decision == "failed: not tried again"
            break
    assert tuner.next() is None
    found = tuner.outcome()
    assert found.decision == "keep_default"
    assert found.reason == "the best setting failed in the comparison with the default: out of memory"


def test_a_pair_whose_block_is_too_short_twice_does_not_count() -> None:
    tuner = begun()
    asked = tuner.next()
    assert asked is not None
    assert asked.pair == 0
    assert tuner.tell(asked, Block(step_s=(0.1,))).decision == "too short: once more"
    again = tuner.next()
    assert again is not None
    assert (again.pair, again.values) == (0, asked.values)
    sample = tuner.tell(again, Block(step_s=(0.1,)))
    assert sample.decision == "too short again: this pair does not count"
    assert sample.problem == f"only 1 of {again.steps} steps could be measured"
    following = tuner.next()
    assert following is not None
    assert following.pair == 1


def sample(index: int, step_s: float | None, **more: Any) -> Sample:
    fields: dict[str, Any] = {"phase": "search", "values": FINALIST, "steps": 10, "other_steps": 2, "error_s": 0.001}
    return Sample(index=index, step_s=step_s, **{**fields, **more})


def test_failed_and_cut_settings_are_not_tried_after_a_restart() -> None:
    bad: list[Values] = [{"bucket_cap_mb": 1.0}, {"bucket_cap_mb": 2.0}]
    default = sample(0, 0.1, phase="default", values={})
    tuner = Tuner(space(), predictions(DEEP), ONLINE)
    tuner.restore([default, sample(1, None, values=bad[0]), sample(2, 0.3, values=bad[1], cut=True)])
    training = Training(DEEP)
    training.go_on(tuner)
    assert training.asked[0].index == 3
    assert all(asked.values not in bad for asked in training.asked)
    flat = valley(1.0, 1.4, hierarchy=1.3)
    forgiven = Tuner(space(), predictions(flat), ONLINE)
    forgiven.restore([default, sample(1, None), sample(2, 0.07), sample(3, 0.1, values={"gone": 1.0})])
    training = Training(flat)
    training.go_on(forgiven)
    assert training.asked[0].index == 4
    assert forgiven.outcome().values == FINALIST, "it was measured after it had failed"


def test_a_knob_that_is_fixed_is_in_no_further_setting() -> None:
    training = Training(DEEP, 1)
    tuner = training.tune(predictions(DEEP), most=2)
    tuner.fix("bucket_cap_mb")
    training.go_on(tuner)
    assert all("bucket_cap_mb" not in asked.values for asked in training.asked[2:])


def test_the_users_options_replace_those_of_the_method() -> None:
    assert options_of(request(), ONLINE) == ONLINE
    assert options_of(request(), OFFLINE) == OFFLINE
    told = options_of(request(steps_per_sample=6, max_samples=7, gp_noise=0.2, autotune_noise=0.25), ONLINE)
    assert (told.steps_per_sample, told.confirm_steps, told.all_steps) == (6, 6, 0)
    assert (told.max_samples, told.gp_noise, told.most_pairs) == (7, 0.2, 24)
    assert options_of(request(autotune_noise=0.25), ONLINE).gp_noise == pytest.approx(0.12 * 0.5)
    assert options_of(request(autotune_noise=0.0), ONLINE).gp_noise is None


@pytest.mark.parametrize(("searched", "steps"), [(0, 7), (66, 6), (160, 4), (450, 4), (-1000, 10)])
def test_blocks_of_pairs_fit_into_the_steps_that_the_search_has_left(searched: int, steps: int) -> None:
    assert ONLINE.pair_steps(searched) == steps
    assert OFFLINE.pair_steps(searched) == 40


def test_samples_of_one_setting_that_differ_are_as_uncertain_as_they_differ() -> None:
    alone = [Observation(0, 0.0, 1e-4), Observation(1, 0.5, 4e-4)]
    assert [each.variance for each in with_noise(alone)] == pytest.approx([2.5e-4, 4e-4])
    twice = [Observation(0, 0.0, 1e-4), Observation(0, 0.2, 1e-4), Observation(1, 0.5, 4e-2)]
    between = (1e-4 + 2 * 0.1**2) / (1 + 1)
    assert [each.variance for each in with_noise(twice)] == pytest.approx([between, between, 4e-2])


def test_the_error_of_a_block_is_that_of_its_steps_and_at_least_the_minimum() -> None:
    still = score(Block(step_s=(0.1,) * 8), None, 0.02)
    assert (still.step_s, still.error_s) == pytest.approx((0.1, 0.002))
    restless = score(Block(step_s=(0.09, 0.11) * 8), None, 0.0)
    longer = score(Block(step_s=(0.09, 0.11) * 32), None, 0.0)
    assert restless.error_s == pytest.approx(2 * longer.error_s, rel=0.1)
    unknown = score(Block(step_s=(0.1, 0.1), samples=(0, 8)), 8.0, 0.0)
    assert unknown.step_s == pytest.approx(0.1)
    assert typical_batch((8, 8)) is None
    assert typical_batch((0, 8)) is None
    assert typical_batch(()) is None
    assert typical_batch((8, 16, 32)) == 16.0


def test_an_interval_has_the_width_of_its_look_on_both_sides() -> None:
    lead = Lead.over([0.1, 0.2, 0.3], 20)
    assert lead.mean == pytest.approx(0.2)
    assert lead.error == pytest.approx(0.1 / math.sqrt(3))
    assert lead.typical == 0.2
    gain = Lead(0.01, 0.02, 2.0, 0.01).gain(5)
    assert (gain.low, gain.value, gain.high) == pytest.approx((math.expm1(-0.03), math.expm1(0.01), math.expm1(0.05)))
    assert gain.pairs == 5
    assert not Lead(0.04, 0.02, 2.0, 0.04).wins, "its lower end is at zero"
    assert Lead(0.041, 0.02, 2.0, 0.041).wins
    assert Lead(0.2, 0.01, 2.0, 0.1).wins
    assert Lead(0.2, 0.01, 2.0, 0.099).rests_on_few
    assert Lead(1e9, 1.0, 2.0, 1e9).gain(3).high < math.inf


def test_two_pairs_at_least_are_compared() -> None:
    assert verdict([], 0) == verdict([0.1], 1) == "undecided"
    assert verdict([], 4) == verdict([0.1], 4) == "open"
    assert verdict([0.5, 0.5], 2) == "wins"
    two = more_pairs([0.1, -0.1], 20)
    assert two is not None
    assert two.pairs >= 1
