"""Finalist against default, pair by pair: how often what wins, and what an undecided comparison says."""

import math
from statistics import fmean

import numpy as np
import pytest

from scalescope.records.tuning import Gain
from scalescope.tuner.blocks import midmean
from scalescope.tuner.confirmation import Confirmation, Lead, Verdict, more_pairs, verdict
from scalescope.tuner.search import OFFLINE, ONLINE


def compared(gain: float, deviation: float, most: int, cases: int) -> list[tuple[Verdict, list[float]]]:
    """Comparisons of a true gain over pairs whose log-ratios vary by this much."""
    rng = np.random.default_rng(int(1e4 * abs(gain) + 1e6 * deviation))
    found = []
    for _ in range(cases):
        ratios: list[float] = []
        while (so_far := verdict(ratios, most)) == "open":
            ratios.append(math.log1p(gain) + float(rng.normal(0, deviation)))
        found.append((so_far, ratios))
    return found


def wins(gain: float, deviation: float, most: int = ONLINE.most_pairs, cases: int = 600) -> float:
    """The part that wins."""
    return fmean(so_far == "wins" for so_far, _ in compared(gain, deviation, most, cases))


def test_real_gains_win_at_a_pair_deviation_of_10_percent() -> None:
    assert wins(0.05, 0.1) > 0.5
    assert wins(0.13, 0.1) > 0.97
    assert wins(0.43, 0.28, OFFLINE.most_pairs) > 0.97


def test_settings_without_a_gain_hardly_ever_win() -> None:
    assert wins(0.0, 0.1, cases=2500) < 0.033  # 2.1 %, and four standard errors
    assert wins(-0.02, 0.1, cases=1500) < 0.008


def test_a_gain_that_rests_on_a_few_slow_blocks_of_the_default_does_not_win() -> None:
    rng = np.random.default_rng(5)
    outcomes = []
    for _ in range(300):
        race = Confirmation(ONLINE.most_pairs)
        race.race([1])
        while race.verdict == "open":
            at = len(race.ratios)
            slow = rng.random() < 0.2  # Horovod over MPI after a switch: 62 ms instead of 24, the finalist 25
            race.add(at, 0, float((0.062 if slow else 0.024) * rng.lognormal(0, 0.05)))
            race.add(at, 1, float(0.025 * rng.lognormal(0, 0.02)))
        outcomes.append((race.verdict, race.why_undecided))
    assert fmean(verdict == "wins" for verdict, _ in outcomes) < 0.02
    told = [why for verdict, why in outcomes if verdict == "undecided"]
    assert sum("a few slow blocks" in why for why in told) > 20


def test_a_lower_end_above_zero_wins_and_only_at_a_look() -> None:
    clear = [0.1, 0.102, 0.1, 0.101, 0.1, 0.101]
    assert verdict(clear[:2], 24) == "open"
    assert verdict(clear[:5], 24) == "wins"
    assert verdict(clear, 24) == "open"  # no look after six pairs
    assert verdict(clear, 6) == "wins"
    assert verdict([-0.05, -0.06, -0.05], 24) == "gains nothing"
    assert verdict([0.1, -0.1] * 12, 24) == "undecided"
    assert verdict([0.01, -0.01] * 12, 24) == "gains nothing"


def told(ratios: list[float]) -> Gain:
    return Lead.over(ratios, 24).gain(len(ratios))


def test_a_winners_gain_is_shrunk_but_not_below_its_lower_end() -> None:
    narrow, wide = [0.1, 0.102, 0.1, 0.101, 0.1], [0.3, 0.26, 0.33, 0.29, 0.31]
    assert 0 < math.expm1(fmean(narrow)) - told(narrow).value < 1e-4
    assert told(wide).low < told(wide).value < math.expm1(fmean(wide))
    lost = [0.1, -0.1, 0.2]
    assert told(lost).value == pytest.approx(math.expm1(fmean(lost)))
    assert told(wide).level == pytest.approx(0.95)


def test_a_useless_interval_is_described_in_words() -> None:
    few = [-0.05, -0.08, -0.06]
    assert verdict(few, 24) == "gains nothing"
    assert told(few).high - told(few).low > 2
    assert told(few).words == "-6.1 %, too few pairs to tell how much"
    assert told([0.01, -0.01] * 12).words == "0.0 % +- 0.5 %"
    assert told([0.3, 0.26, 0.33, 0.29, 0.31]).words.startswith("+3")


@pytest.mark.parametrize("gain", [0.05, 0.13])
def test_reported_gains_of_winners_are_near_the_true_ones(gain: float) -> None:
    won = [ratios for so_far, ratios in compared(gain, 0.1, 24, 400) if so_far == "wins"]
    shrunk = fmean(told(ratios).value for ratios in won)
    plain = math.expm1(fmean(fmean(ratios) for ratios in won))
    assert abs(shrunk - gain) < 0.02
    assert shrunk < plain


def test_an_undecided_comparison_estimates_the_pairs_it_still_takes() -> None:
    rng = np.random.default_rng(3)
    noisy = [float(each) for each in rng.normal(0.01, 0.2, 6)]
    more = more_pairs(noisy, 20)
    assert more is not None
    assert more.tells == 0.1
    assert 20 < more.pairs < 90
    finer = more_pairs([0.1, -0.1] * 12, 24)
    assert finer is not None
    assert finer.tells == 0.03
    assert more_pairs([0.1], 20) is None


def test_three_finalists_race_until_the_best_is_left() -> None:
    race, rng = Confirmation(20), np.random.default_rng(1)
    race.race([1, 2, 3])
    truth = {0: 1.0, 1: 0.99, 2: 0.8, 3: 0.95}
    seen: list[int] = []
    while race.verdict == "open":
        for at, setting in race.upcoming():
            race.add(at, setting, truth[setting] * math.exp(rng.normal(0, 0.03)))
            seen.append(setting)
    assert race.verdict == "wins"
    assert race.leader == 2
    assert seen.count(2) == seen.count(0)
    assert 3 <= seen.count(1) <= 5


def test_rivals_share_the_error_and_a_resumed_comparison_needs_more() -> None:
    alone, raced, resumed = (Lead.over([0.1, 0.08, 0.12], 20, *each).width for each in ((1, 0), (3, 0), (1, 1)))
    assert alone < raced
    assert alone < resumed


def test_a_comparison_that_is_resumed_takes_as_many_pairs_again() -> None:
    pairs = Confirmation(6)
    pairs.race([4])
    for at in range(6):
        pairs.add(at, 0, 1.0)
        pairs.add(at, 4, 1.1 if at % 2 else 0.9)
    assert pairs.verdict == "undecided"
    pairs.resume()
    assert pairs.verdict == "open"
    assert pairs.most == 12
    assert {at for at, _ in pairs.upcoming()} == {6}


def test_a_lost_pair_is_not_made_up_for() -> None:
    pairs = Confirmation(4)
    pairs.race([1])
    pairs.lose(0)
    assert pairs.most == 3
    assert {at for at, _ in pairs.upcoming()} == {1, 2, 3}


def test_the_midmean_is_the_mean_of_the_middle_half() -> None:
    assert midmean([1.0]) == 1.0
    assert midmean([1.0, 2.0, 3.0, 100.0]) == 2.5
    assert midmean([5.0, 1.0, 2.0, 3.0, 4.0, 90.0]) == pytest.approx(3.5)
    assert midmean([1.0, 2.0, 3.0]) == 2.0
