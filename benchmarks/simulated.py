"""Launches as a noisy machine makes them: what benchmarks of the statistics are fed with."""

import math

import numpy as np

from scalescope.records.run import Point, Run
from scalescope.steady import blocks

Generator = np.random.Generator


def step_times(
    rng: Generator, count: int, step_s: float, *, noise: float, memory: float, outliers: float = 0.02
) -> list[float]:
    """Autocorrelated, heavy-tailed step times around a level; `memory` is the correlation from step to step."""
    innovation = rng.standard_t(5, count) * math.sqrt(3 / 5) * noise * math.sqrt(1 - memory**2)
    logs = np.empty(count)
    value = rng.normal(0, noise)
    for index in range(count):
        value = memory * value + innovation[index]
        logs[index] = value
    seconds = step_s * np.exp(logs)
    slow = rng.random(count) < outliers
    seconds[slow] *= 1 + rng.exponential(0.5, int(slow.sum()))
    return [float(value) for value in seconds]


def run_from(point: Point, round_: int, steps: list[float]) -> Run:
    """A launch that took these steady steps."""
    medians, mean_step_s = blocks(steps), sum(steps) / len(steps)
    samples = float(point.global_batch or 1)
    return Run(
        point=point,
        round=round_,
        folder="",
        wall_s=sum(steps),
        phases={"steady": sum(steps)},
        steps=len(steps),
        warmup_steps=0,
        step_s=float(np.median(medians)),
        mean_step_s=mean_step_s,
        blocks=medians,
        throughput=samples / mean_step_s,
        samples_per_step=samples,
        engine_seen=point.engine,
        backend="gloo",
        source="optimizer",
        ranks=(),
    )
