"""Searches on landscapes whose truth is known."""

import math

import pytest

from scalescope.tuner.blocks import Block
from scalescope.tuner.search import OFFLINE, ONLINE, Options
from scalescope.tuner.space import Space
from scalescope.tuner.tuner import Tuner
from tuner.landscapes import Training, predictions, space, valley

DEEP = valley(1.0, 1.4)
FLAT = valley(25.0, 1.3)


def test_the_default_is_sample_zero() -> None:
    asked = Tuner(space(), predictions(DEEP), ONLINE).next()
    assert asked is not None
    assert (asked.index, asked.phase, asked.values, asked.limit_s) == (0, "default", {}, None)
    assert asked.predicted_s == pytest.approx(0.1)


@pytest.mark.parametrize("seed", range(3))
def test_a_good_setting_is_found_confirmed_and_used(seed: int) -> None:
    training = Training(DEEP, seed)
    outcome = training.tune(predictions(DEEP, 0.1, seed)).outcome()
    assert outcome.decision == "use"
    assert DEEP(outcome.values) < 0.08
    assert outcome.gain is not None
    assert outcome.gain.low > 0
    assert outcome.gain.pairs >= 3
    assert outcome.default_step_s == pytest.approx(0.1, rel=0.05)
    assert outcome.winner_step_s == pytest.approx(DEEP(outcome.values), rel=0.05)
    assert outcome.reason.startswith("a gain of +")


@pytest.mark.parametrize("seed", range(2))
def test_without_predictions_the_search_moves_outwards_from_the_default(seed: int) -> None:
    training = Training(DEEP, seed)
    outcome = training.tune(None).outcome()
    assert DEEP(outcome.values) < 0.085
    first = next(each for each in training.asked if each.phase == "search")
    assert 4 <= float(first.values.get("bucket_cap_mb", 25.0)) <= 50


def test_a_best_default_is_kept_in_spite_of_predictions() -> None:
    wins = 0
    for seed in range(12):
        outcome = Training(FLAT, seed).tune(predictions(DEEP)).outcome()
        wins += outcome.decision == "use"
        assert outcome.decision == "use" or outcome.values == {}
        assert outcome.reason.startswith(("no s", "a gain"))
    assert wins <= 1


def test_a_kept_default_is_reported_with_the_measured_gain() -> None:
    training = Training(lambda values: 0.1, seed=1, noise=0.02)
    told = training.go_on(Tuner(space(), None, ONLINE, finalist={"bucket_cap_mb": 1.0})).outcome()
    assert told.decision == "keep_default"
    assert told.finalist == {"bucket_cap_mb": 1.0}
    assert told.gain is not None
    assert told.gain.low < 0 < told.gain.high
    assert told.reason.startswith("no significant gain (")


def test_a_given_finalist_is_compared_with_the_default_without_a_search() -> None:
    training = Training(DEEP)
    tuner = training.go_on(Tuner(space(), None, OFFLINE, finalist={"bucket_cap_mb": 1.0}))
    assert {asked.phase for asked in training.asked[1:]} == {"confirm"}
    assert tuner.outcome().values == {"bucket_cap_mb": 1.0}


def test_either_side_of_a_pair_may_begin_and_all_pairs_until_the_next_look_are_planned_at_once() -> None:
    training = Training(lambda values: 0.1, seed=2, noise=0.05)
    tuner = Tuner(space(), None, ONLINE, finalist={"bucket_cap_mb": 1.0})
    training.go_on(tuner, 1)
    planned = tuner.plan()
    assert [asked.pair for asked in planned] == [0, 0, 1, 1, 2, 2]
    assert [asked.index for asked in planned] == [1, 2, 3, 4, 5, 6]
    training.go_on(tuner)
    firsts = [bool(asked.values) for asked in training.asked[1::2]]
    assert 3 <= sum(firsts) <= len(firsts) - 3
    seconds = [bool(asked.values) for asked in training.asked[2::2]]
    assert [not each for each in firsts] == seconds


def test_the_search_keeps_to_its_steps() -> None:
    for seed in range(4):
        training = Training(valley(4.0, 1.1), seed, noise=0.05)
        training.tune(predictions(DEEP, 0.2, seed))
        steps = {"default": 0, "search": 0, "confirm": 0}
        for sample in training.samples:
            steps[sample.phase] += sample.steps + sample.other_steps
        assert steps["default"] + steps["search"] <= 250
        assert sum(steps.values()) <= 450


def test_nothing_that_is_predicted_to_be_bad_is_tried() -> None:
    steep = valley(25.0, 3.0, hierarchy=2.0)
    training = Training(steep)
    training.tune(predictions(steep, 0.05))
    assert max(steep(asked.values) for asked in training.asked) < 1.5 * 0.1


def test_a_clearly_bad_sample_is_cut_and_never_tried_again() -> None:
    awful = {"bucket_cap_mb": 1.0}
    training = Training(lambda values: 0.1 if values != awful else 0.3)
    training.tune(predictions(lambda values: 0.08 if values == awful else 0.1))
    cut = [sample for sample in training.samples if sample.values == awful]
    assert [sample.cut for sample in cut] == [True]
    assert cut[0].steps == 3
    assert cut[0].decision.startswith("cut after 3 steps: ")
    assert training.asked[2].limit_s == pytest.approx(0.15, rel=0.1)


def test_a_setting_that_fails_is_recorded_and_never_tried_again() -> None:
    tuner = Tuner(space(), predictions(DEEP), ONLINE)
    training, failed = Training(DEEP), []
    while asked := tuner.next():
        block = training.block(asked)
        if asked.values.get("bucket_cap_mb") == 1.0:
            block = Block(step_s=(), problem="out of memory")
        sample = tuner.tell(asked, block)
        if sample.problem:
            failed.append(sample)
    assert failed
    assert len({str(sample.values) for sample in failed}) == len(failed)
    assert failed[0].problem == "out of memory"
    assert failed[0].step_s is None
    assert tuner.outcome().values.get("bucket_cap_mb") != 1.0


def test_a_default_that_fails_ends_the_search() -> None:
    tuner = Tuner(space(), None, ONLINE)
    asked = tuner.next()
    assert asked is not None
    tuner.tell(asked, Block(step_s=(), problem="rank 1 died"))
    assert tuner.next() is None
    assert "rank 1 died" in tuner.outcome().reason


def test_a_block_with_too_few_steps_is_asked_for_once_more() -> None:
    tuner = Tuner(space(), None, ONLINE)
    first = tuner.next()
    assert first is not None
    assert tuner.tell(first, Block(step_s=(0.1,))).decision == "too short: once more"
    again = tuner.next()
    assert again is not None
    assert (again.index, again.values, again.phase) == (1, {}, "default")
    assert tuner.tell(again, Block(step_s=(0.1,))).decision == "failed: not tried again"
    assert tuner.next() is None


def test_where_batches_vary_time_per_sample_counts() -> None:
    tuner = Tuner(space(), None, ONLINE)
    asked = tuner.next()
    assert asked is not None
    batches = (8, 16, 32, 16, 8, 32)
    sample = tuner.tell(asked, Block(step_s=tuple(0.01 * batch for batch in batches), samples=batches))
    assert sample.step_s == pytest.approx(0.16)
    asked = tuner.next()
    assert asked is not None
    longer = (64,) * 6
    sample = tuner.tell(asked, Block(step_s=tuple(0.01 * batch for batch in longer), samples=longer))
    assert sample.step_s == pytest.approx(0.16)


def test_an_interrupted_search_resumes_where_it_stopped() -> None:
    whole = Training(DEEP, 5)
    end = whole.tune(predictions(DEEP, 0.1)).outcome()
    for at in (1, 3, len(whole.samples) - 2):
        tuner = Tuner(space(), predictions(DEEP, 0.1), ONLINE)
        tuner.restore(whole.samples[:at])
        asked = tuner.next()
        assert asked == whole.asked[at]
    tuner = Tuner(space(), predictions(DEEP, 0.1), ONLINE)
    tuner.restore(whole.samples)
    assert tuner.next() is None
    assert tuner.outcome().values == end.values
    assert tuner.outcome().gain == end.gain


def test_samples_of_an_interrupted_search_are_known_as_well_as_they_were_measured() -> None:
    training = Training(DEEP, 5)
    expected = training.tune(predictions(DEEP, 0.1), most=4).outcome().cells
    errors = [sample.error_s or 0.0 for sample in training.samples]
    assert max(errors) > 1.2 * min(errors)
    tuner = Tuner(space(), predictions(DEEP, 0.1), ONLINE)
    tuner.restore(training.samples)
    assert tuner.outcome().cells == expected


def test_a_space_with_the_default_alone_is_decided_at_once() -> None:
    alone = Space(engine="ddp", knobs=(), settings=({},))
    tuner = Tuner(alone, None, ONLINE)
    training = Training(lambda values: 0.1)
    training.go_on(tuner)
    assert len(training.samples) == 2
    assert tuner.outcome().reason == "there is nothing to search"


def test_the_outcome_holds_the_posterior_of_every_setting() -> None:
    tuner = Training(DEEP, 1).tune(predictions(DEEP, 0.1), most=6)
    cells = tuner.outcome().cells
    assert [cell.values for cell in cells] == list(space().settings)
    assert all(cell.expected_s and cell.error and cell.predicted_s for cell in cells)
    values, factor = tuner.best
    assert factor == pytest.approx(0.1 / DEEP(values), rel=0.1)


def test_the_users_noise_takes_the_place_of_the_measured_one() -> None:
    def uncertain(noise: float) -> float:
        tuner = Training(DEEP, 1).tune(predictions(DEEP), Options(gp_noise=noise), most=1)
        return tuner.outcome().cells[0].error or math.nan

    assert uncertain(0.2) > 2 * uncertain(0.01)
