"""Do 95 % intervals cover the truth 95 times in 100, with the stopping rule and noise as it is?

And where they cannot: a launch in ten that is slow on one side only, and rounds that resemble the one before.
"""

import math
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from benchmarks.simulated import Generator, run_from, step_times
from scalescope.measurement.replication import points_of_round, warnings_of
from scalescope.measurement.scaling import scaling_of
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Measurement, Point, Run
from scalescope.stats import of_logarithms

STUDIES = 1000
STEPS = 100
RESAMPLES = 200
ALONE = Point(engine="none", np=1, batch=64, threads_per_rank=1)
TWO = Point(engine="ddp", np=2, batch=32, threads_per_rank=1)
TRUTH = 1.6
SLOWER = 1.3  # How much longer a slow launch takes


class Noise(NamedTuple):
    """How launches and steps of one machine differ; the figures are those that were measured on shared cores."""

    name: str
    launch_1: float  # Standard deviation of the log of a launch's level, on one rank
    launch_2: float  # On two ranks
    step: float
    memory: float
    drift: float  # How much a whole round is slower or faster than another


NOISES = (
    Noise("quiet: 3 % and 6 % between launches, steps +-5 %", 0.03, 0.06, 0.05, 0.6, 0.02),
    Noise("even quieter: 2 % and 3 %, steps +-3 %", 0.02, 0.03, 0.03, 0.5, 0.01),
    Noise("disturbed: 10 % and 10 %, steps +-17 %, long memory", 0.10, 0.10, 0.17, 0.9, 0.10),
    Noise("badly disturbed: 10 % and 31 %, steps +-17 %", 0.10, 0.31, 0.17, 0.9, 0.10),
)


def run() -> list[dict[str, Any]]:
    """One row per kind of noise: ours with the stopping rule, and the naive bootstrap over single steps."""
    rows = []
    for index, noise in enumerate(NOISES):
        rng = np.random.default_rng(1000 + index)
        ours, naive, launches, halves, naive_halves = 0, 0, [], [], []
        for number in range(STUDIES):
            runs, steps = _simulate(rng, noise, number)
            speedup = next(
                point.speedup["steady"] for point in scaling_of(_measurement(runs)).curves[0].points if point.np == 2
            )
            ours += speedup.low <= TRUTH <= speedup.high
            launches.append(speedup.count)
            halves.append((speedup.high - speedup.low) / 2 / speedup.value)
            low, high = _bootstrap(rng, steps[ALONE], steps[TWO])
            naive += low <= TRUTH <= high
            naive_halves.append((high - low) / 2 / TRUTH)
        rows.append(
            {
                "noise": noise.name,
                "studies": STUDIES,
                "covered %": 100 * ours / STUDIES,
                "launches, mean": float(np.mean(launches)),
                "half-width %": 100 * float(np.median(halves)),
                "bootstrap over steps: covered %": 100 * naive / STUDIES,
                "its half-width %": 100 * float(np.median(naive_halves)),
            }
        )
    return [*rows, *(_hard_row(case, 2000 + index) for index, case in enumerate(CASES))]


class Case(NamedTuple):
    """What a t-interval over launches takes to be otherwise."""

    name: str
    launches: int | None  # None: until speedups are known within 5 %
    noise: float  # Standard deviation of the log of a launch's level, on both sides
    slow: float = 0.0  # How many of the launches on two ranks are 30 % slow
    memory: float = 0.0  # Correlation of the ratio from round to round


CASES = (
    Case("5 launches, noise 3 %", 5, 0.03),
    *(Case(f"1 in 10 slow, 5 launches, noise {100 * noise:.0f} %", 5, noise, slow=0.1) for noise in (0.01, 0.03)),
    *(Case(f"1 in 10 slow, 8 launches, noise {100 * noise:.0f} %", 8, noise, slow=0.1) for noise in (0.01, 0.03)),
    Case("1 in 10 slow, --precision 5%, noise 1 %", None, 0.01, slow=0.1),
    Case("1 in 10 slow, --precision 5%, noise 3 %", None, 0.03, slow=0.1),
    *(
        Case(f"rounds correlated {memory}, {count} launches", count, 0.03, memory=memory)
        for memory in (0.5, 0.8)
        for count in (5, 20)
    ),
)


def _hard_row(case: Case, seed: int) -> dict[str, Any]:
    """How often the interval holds the mean over all launches and the usual launch, and how often it is warned of."""
    rng = np.random.default_rng(seed)
    mean = TRUTH * math.exp(-case.slow * math.log(SLOWER))
    held, usual, warned, silent, counts = 0, 0, 0, [], []
    for number in range(STUDIES):
        runs = _launches(rng, case, number)
        alone, two = ([run.mean_step_s for run in runs if run.point == point] for point in (ALONE, TWO))
        speedup = of_logarithms(
            [a / b for a, b in zip(alone, two, strict=True)], target=None if case.launches else 0.05
        )
        said = warnings_of((ALONE, TWO), ("strong",), runs)
        held += speedup.low <= mean <= speedup.high
        usual += speedup.low <= TRUTH <= speedup.high
        warned += bool(said)
        counts.append(len(two))
        if not said:
            silent.append(speedup.low <= mean <= speedup.high)
    return {
        "noise": case.name,
        "studies": STUDIES,
        "covered %": 100 * held / STUDIES,
        "launches, mean": float(np.mean(counts)),
        "usual launch covered %": 100 * usual / STUDIES,
        "warned %": 100 * warned / STUDIES,
        "covered % without a warning": 100 * float(np.mean(silent)) if silent else None,
    }


def _launches(rng: Generator, case: Case, seed: int) -> list[Run]:
    """Launches of even steps: the study sees their means only."""
    request = MeasureRequest(
        np=(1, 2), batch=(64,), scaling=("strong",), seed=seed, launches=case.launches,
        precision=None if case.launches else 0.05,
    )  # fmt: skip
    runs: list[Run] = []
    drift = rng.normal(0, case.noise)
    for number in count(1):
        wanted = points_of_round(number, (ALONE, TWO), runs, [], request)
        if not wanted:
            return runs
        drift = case.memory * drift + math.sqrt(1 - case.memory**2) * rng.normal(0, case.noise)
        for point in wanted:
            noise = drift if point is TWO else 0.0 if case.memory else rng.normal(0, case.noise)
            slow = point is TWO and rng.random() < case.slow
            step_s = (0.064 if point is ALONE else 0.064 / TRUTH) * math.exp(noise) * (SLOWER if slow else 1.0)
            runs.append(run_from(point, number, [step_s] * 10))
    raise AssertionError("the rule ends every study")


def _simulate(rng: Generator, noise: Noise, seed: int) -> tuple[list[Run], dict[Point, list[float]]]:
    """Launches until the stopping rule has enough: the same rule that a real measurement follows."""
    request = MeasureRequest(np=(1, 2), batch=(64,), scaling=("strong",), precision=0.05, seed=seed)
    levels = {ALONE: (0.064, noise.launch_1), TWO: (0.064 / TRUTH, noise.launch_2)}
    runs: list[Run] = []
    steps: dict[Point, list[float]] = {ALONE: [], TWO: []}
    for number in count(1):
        wanted = points_of_round(number, (ALONE, TWO), runs, [], request)
        if not wanted:
            return runs, steps
        drift = rng.normal(0, noise.drift)
        for point in wanted:
            level, spread = levels[point]
            step_s = level * math.exp(drift + rng.normal(0, spread))
            times = step_times(rng, STEPS, step_s, noise=noise.step, memory=noise.memory)
            runs.append(run_from(point, number, times))
            steps[point] += times
    raise AssertionError("the rule ends every study")


def _measurement(runs: list[Run]) -> Measurement:
    return Measurement(
        what="simulated",
        scaling=("strong",),
        batch=(64,),
        precision=0.05,
        created="",
        scalescope="",
        torch="",
        host="",
        cores=2,
        launcher={},
        binding="none",
        runs=tuple(runs),
    )


def _bootstrap(rng: Generator, alone: list[float], two: list[float]) -> tuple[float, float]:
    """What is often published: steps of all launches in one bag, drawn again and again."""
    a, b = np.array(alone), np.array(two)
    drawn_a = np.median(rng.choice(a, (RESAMPLES, a.size)), axis=1)
    drawn_b = np.median(rng.choice(b, (RESAMPLES, b.size)), axis=1)
    low, high = np.quantile(drawn_a / drawn_b, [0.025, 0.975])
    return float(low), float(high)
