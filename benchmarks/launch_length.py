"""Launches of a MODEL that end once their mean is known: simulated against 10 s each, and as real launches ended."""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from benchmarks.estimates_repeat import FOLDER
from benchmarks.table import print_table
from scalescope.jobs.train_model import LAUNCH_S, is_enough
from scalescope.records.run import Run
from scalescope.records.store import load_lines
from scalescope.stats import half_width

STUDIES, LAUNCHES, STEP_S = 200, 5, 0.05
LOOKS = 20
BETWEEN = 0.025  # Relative standard deviation from launch to launch (estimates_repeat)
CASES = {"quiet": (0.03, 0.3), "noisy": (0.08, 0.3), "slow drift": (0.03, 0.9)}  # Noise of steps, and their memory


def run() -> list[dict[str, Any]]:
    """Simulated studies of five launches each, then the launches that estimates_repeat kept."""
    print_table([_simulated(name, *case) for name, case in CASES.items()])
    runs = [run for path in sorted(FOLDER.glob("here/measure-*/runs.jsonl")) for run in load_lines(path, Run)]
    if not runs:
        print("no real launches yet: make bench SECTION=estimates_repeat")
    kinds = dict.fromkeys((run.point.engine, run.point.np) for run in runs)
    return [
        _real(f"{engine} np {np}", [run for run in runs if (run.point.engine, run.point.np) == (engine, np)])
        for engine, np in kinds
    ]


def _simulated(name: str, noise: float, memory: float) -> dict[str, Any]:
    random = np.random.default_rng(7)
    count = int(LAUNCH_S / STEP_S)
    looks = range(count // LOOKS, count + 1, count // LOOKS)
    share, bias = [], []
    spreads: dict[str, list[float]] = {"whole": [], "early": []}
    for _ in range(STUDIES):
        means: dict[str, list[float]] = {"whole": [], "early": []}
        for _ in range(LAUNCHES):
            pace, innovations = random.normal(1.0, BETWEEN), random.normal(0.0, noise, count)
            level, durations = 0.0, []
            for innovation in innovations:
                level = memory * level + float(innovation)
                durations.append(STEP_S * pace * max(1 + level, 0.1))
            early = next((durations[:at] for at in looks if is_enough(durations[:at])), durations)
            share.append(sum(early) / sum(durations))
            for kind, made in (("whole", durations), ("early", early)):
                means[kind].append(fmean(made[len(made) // 5 :]))
            bias.append(means["early"][-1] / means["whole"][-1] - 1)
        for kind, values in means.items():
            spreads[kind].append(stdev(values) / fmean(values))
    return {
        "simulated": name,
        "studies": STUDIES,
        "time of 10 s launches": fmean(share),
        "spread of theirs": fmean(spreads["early"]) / fmean(spreads["whole"]),
        "bias %": 100 * fmean(bias),
    }


def _real(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    steady_s = [run.phases["steady"] for run in runs]
    within = [100 * half_width(list(map(math.log, run.blocks))) for run in runs if len(run.blocks) > 1]
    return {
        "real launches": name,
        "of": len(runs),
        "median s of steps": median(steady_s),
        "ended before 10 s": sum(seconds < 0.95 * LAUNCH_S for seconds in steady_s),
        "mean known within %": median(within),
        "worst %": max(within),
    }
