import math
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.steady import blocks, find_modes, find_noise, steadiness, step_times

TWO_GPUS = [0.8957, 0.6789, 0.8882, 0.8954, 0.9122, 0.9106, 0.6734, 0.8935, 0.9055]
FOUR_GPUS = [0.4977, 0.5024, 0.5024, 0.4975, 0.5024, 0.5024, 0.5028, 0.5076, 0.4974]

times = st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=80)


def correlated(rng: np.random.Generator, count: int, correlation: float) -> np.ndarray:
    values = rng.normal(size=count)
    for index in range(1, count):
        values[index] = correlation * values[index - 1] + math.sqrt(1 - correlation**2) * values[index]
    return values


def one_kind(name: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Logarithms of steps of one kind."""
    match name:
        case "lognormal":
            return rng.normal(size=count) * 0.3
        case "correlated":
            return correlated(rng, count, 0.9) * 0.1
        case "heavy":
            return rng.standard_t(3, count) * 0.05
        case "skewed":
            return np.log1p(rng.exponential(size=count) * 0.3)
        case _:
            slow = rng.random(count) < 0.1
            return rng.normal(size=count) * 0.03 + slow * np.log1p(0.3 + 0.5 * rng.pareto(2, count))


def test_the_epochs_on_two_gpus_come_in_two_kinds() -> None:
    judged = steadiness(TWO_GPUS, noun="epoch")
    assert judged.kind == "bimodal"
    assert judged.sentence == "epochs come in two kinds: 22 % take 676 ms, 78 % take 896 ms"
    assert [mode.share for mode in judged.modes] == pytest.approx([2 / 9, 7 / 9])
    assert [mode.seconds for mode in judged.modes] == pytest.approx([0.676, 0.8957], rel=1e-3)


def test_modes_one_percent_apart_are_not_reported() -> None:
    judged = steadiness(FOUR_GPUS)
    assert (judged.kind, judged.sentence, judged.modes) == ("even", "", ())


@pytest.mark.parametrize("durations", [[], [1.0], [1.0, 9.0], [1.0] * 50, [0.0] * 50, [1, 1, 1, 1, 1, 1, 1, 1, 5]])
def test_few_or_equal_steps_are_even(durations: list[float]) -> None:
    assert steadiness(durations).kind == "even"


@pytest.mark.parametrize("name", ["lognormal", "correlated", "heavy", "skewed", "slow single steps"])
@pytest.mark.parametrize("count", [9, 20, 60, 400])
def test_one_kind_of_steps_is_called_even(name: str, count: int) -> None:
    rng = np.random.default_rng(count)
    judged = [steadiness(list(np.exp(one_kind(name, rng, count)))) for _ in range(150)]
    assert sum(bool(each.modes) for each in judged) <= 6
    assert sum(each.kind == "drifting" for each in judged) <= 10


@pytest.mark.parametrize(("count", "share"), [(9, 0.4), (20, 0.3), (60, 0.15), (400, 0.8)])
def test_two_kinds_are_found_with_their_times_and_shares(count: int, share: float) -> None:
    rng = np.random.default_rng(count)
    slow = round(count * share)
    found = 0
    for _ in range(50):
        logs = math.log(0.5) + 0.02 * rng.normal(size=count) + math.log(1.3) * rng.permutation(np.arange(count) < slow)
        judged = steadiness(list(np.exp(logs)))
        if judged.kind == "bimodal":
            found += 1
            assert [mode.seconds for mode in judged.modes] == pytest.approx([0.5, 0.65], rel=0.06)
            assert judged.modes[1].share == pytest.approx(slow / count)
    assert found >= 45


def test_two_kinds_are_found_among_slow_single_steps() -> None:
    rng = np.random.default_rng(1)
    steps = np.concatenate([np.full(60, 1.0), np.full(35, 1.3), [3.0, 4.0, 2.5, 8.0, 5.0]])
    modes = find_modes(list(rng.permutation(steps * np.exp(0.02 * rng.normal(size=100)))))
    assert [mode.seconds for mode in modes] == pytest.approx([1.0, 1.3], rel=0.03)


@given(st.permutations(TWO_GPUS), st.floats(1e-3, 1e3))
def test_modes_depend_on_neither_order_nor_unit(epochs: list[float], unit: float) -> None:
    fast, slow = find_modes([each * unit for each in epochs])
    assert (fast.share, slow.share) == pytest.approx((2 / 9, 7 / 9))
    assert slow.seconds / unit == pytest.approx(0.8957)


@pytest.mark.parametrize(("count", "total"), [(60, 0.15), (300, 0.08), (30_000, 0.05)])
@pytest.mark.parametrize("slower", [True, False])
def test_drift_is_found_with_its_size(count: int, total: float, slower: bool) -> None:
    rng = np.random.default_rng(count)
    course = np.linspace(0, math.log1p(total), count)
    steps = np.exp(0.02 * correlated(rng, count, 0.5) + course)
    judged = steadiness(list(steps if slower else steps[::-1]))
    assert judged.kind == "drifting"
    assert judged.drift == pytest.approx(total * 0.75 if slower else -total * 0.75, rel=0.4)
    assert judged.sentence.startswith("steps get slower: " if slower else "steps get faster: ")
    assert judged.sentence.endswith(f"{abs(judged.drift) * 100:.0f} % from the first to the last quarter")


def test_drift_below_three_percent_is_not_reported() -> None:
    assert steadiness(list(np.linspace(1, 1.02, 500))).kind == "even"


def test_steps_that_alternate_in_runs_do_not_drift() -> None:
    rng = np.random.default_rng(4)
    kinds = []
    for _ in range(60):
        runs = [np.full(int(rng.integers(3, 25)), rng.choice([1.0, 1.3])) for _ in range(20)]
        steps = np.concatenate(runs)
        kinds.append(steadiness(list(steps * np.exp(0.02 * rng.normal(size=len(steps))))).kind)
    assert kinds.count("drifting") <= 5
    assert kinds.count("bimodal") >= 50


@given(times, st.integers(1, 20))
@settings(max_examples=60)
def test_blocks_are_medians_of_consecutive_steps(durations: list[float], count: int) -> None:
    medians = blocks(durations, count)
    assert len(medians) == max(1, min(count, len(durations) // 3))
    lengths = [len(part) for part in np.array_split(durations, len(medians))]
    assert max(lengths) - min(lengths) <= 1
    start = 0
    for length, value in zip(lengths, medians, strict=True):
        assert value == pytest.approx(median(durations[start : start + length]))
        start += length


def test_blocks_of_ten_by_default_and_none_of_nothing() -> None:
    assert blocks([float(step) for step in range(30)]) == tuple(1.0 + 3 * block for block in range(10))
    assert blocks([5.0, 7.0]) == (6.0,)
    assert blocks([]) == ()


@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.8])
def test_noise_is_measured_in_spite_of_drift_and_slow_steps(correlation: float) -> None:
    rng = np.random.default_rng(2)
    logs = 0.05 * correlated(rng, 4000, correlation) + np.linspace(0, 0.2, 4000) + (rng.random(4000) < 0.03) * 1.5
    noise = find_noise(logs)
    assert noise.deviation == pytest.approx(0.05, rel=0.15)
    assert noise.correlation == pytest.approx(correlation, abs=0.07)


@pytest.mark.parametrize("ranks", [2, 16, 128])
def test_step_times_add_up_to_the_elapsed_time_and_the_maximum_over_ranks_to_more(ranks: int) -> None:
    chance = np.random.default_rng(ranks)
    met = np.cumsum(np.full(400, 1.0))[:, None]  # every step all ranks meet in the exchange of gradients
    ended = met + 0.03 * np.abs(chance.standard_normal((400, ranks)))  # and each ends it a little later
    of_ranks = np.diff(ended, axis=0).T
    elapsed_s = float(np.mean(ended[-1] - ended[0]))
    assert sum(step_times(of_ranks)) == pytest.approx(elapsed_s)
    assert of_ranks.max(axis=0).sum() > 1.01 * elapsed_s


def test_steps_count_as_far_as_all_ranks_have_them() -> None:
    assert step_times([[1.0, 2.0, 9.0], [2.0, 4.0]]) == [1.5, 3.0]
    assert step_times([[1.0], []]) == []
    assert step_times([]) == []
