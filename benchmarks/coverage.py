"""Do 95 % intervals cover the truth 95 times in 100, with the stopping rule and noise as it is?"""

import math
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from benchmarks.simulated import Generator, run_from, step_times
from scalescope.measurement.study import points_of_round, study
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Measurement, Point, Run

STUDIES = 1000
STEPS = 100
RESAMPLES = 200
ALONE = Point(engine="none", np=1, batch=64, threads_per_rank=1)
TWO = Point(engine="ddp", np=2, batch=32, threads_per_rank=1)
TRUTH = 1.6


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
                point.speedup["steady"] for point in study(_measurement(runs)).curves[0].points if point.np == 2
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
    return rows


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
