"""When a launch of a MODEL may end: shown on made step times, launch by launch."""

from statistics import fmean, stdev

import numpy as np
import pytest

from scalescope.jobs.train_model import is_enough


def launch(seed: int, step_s: float = 0.05, noise: float = 0.03, memory: float = 0.3) -> list[float]:
    """Ten seconds of steps that resemble their neighbours, in a launch that differs from others by 2 %."""
    random = np.random.default_rng(seed)
    pace = random.normal(1.0, 0.02)
    innovations = random.normal(0.0, noise, int(10 / step_s))
    steps = [innovations[0]]
    for each in innovations[1:]:
        steps.append(memory * steps[-1] + each)
    return [step_s * pace * (1 + each) for each in steps]


def made(durations: list[float]) -> list[float]:
    """The steps until it is enough, looked at every twentieth."""
    looks = range(len(durations) // 20, len(durations) + 1, len(durations) // 20)
    return next((durations[:at] for at in looks if is_enough(durations[:at])), durations)


def test_intervals_over_launches_are_as_wide_as_with_ten_seconds_in_about_half_the_time() -> None:
    spread: dict[str, list[float]] = {"whole": [], "early": []}
    share = []
    for study in range(120):
        launches = [launch(5 * study + at) for at in range(5)]
        early = [made(each) for each in launches]
        share.append(fmean(sum(a) / sum(b) for a, b in zip(early, launches, strict=True)))
        for name, those in (("whole", launches), ("early", early)):
            means = [fmean(each[len(each) // 5 :]) for each in those]
            spread[name].append(stdev(means) / fmean(means))
    assert fmean(share) < 0.6
    assert fmean(spread["early"]) / fmean(spread["whole"]) == pytest.approx(1, abs=0.05)


def test_the_mean_of_launches_that_end_early_is_not_biased() -> None:
    apart = [fmean(made(launch(seed))) / fmean(launch(seed)) - 1 for seed in range(300)]
    assert abs(fmean(apart)) < 0.001


@pytest.mark.parametrize(
    ("durations", "enough"),
    [
        ([0.2] * 19, False),
        ([0.2] * 20, True),
        ([0.01] * 199, False),
        ([0.01] * 201, True),
        ([0.05, 0.1, 0.2, 0.05, 0.15] * 8, False),
        ([0.1, 0.3] * 25, True),
    ],
    ids=["19 steps", "20 steps", "below 2 s", "2 s", "not known", "10 s in any case"],
)
def test_a_launch_makes_twenty_steps_and_two_seconds_and_no_more_than_ten(durations: list[float], enough: bool) -> None:
    assert is_enough(durations) == enough
