"""Autotune logs for tests: real ones, and some whose true landscape and noise are known."""

import math
import random
from collections.abc import Callable
from pathlib import Path

from scalescope.logs.autotune import read_autotune
from scalescope.records.autotune import Autotune

DATA = Path(__file__).parent.parent / "data" / "autotune"
WALKED, HELD_SWITCHES, HELD_FUSION = (
    DATA / f"{name}.csv" for name in ("gloo_switches_walked", "mpi_switches_held", "gloo_fusion_held")
)
OLDER = "hierarchical_allreduce,hierarchical_allgather,cache_enabled,cycle_time_ms,tensor_fusion_threshold,score"
"""The header before 0.26."""

HEADER = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
    "cycle_time_ms,tensor_fusion_threshold,score"
)
FIRST_POINTS = ((5.0, 4.0), (50.0, 32.0), (25.0, 16.0), (10.0, 8.0))
"""Cycle time and fusion threshold that Horovod always begins with."""

Truth = Callable[[float, float], float]


def flat(cycle_ms: float, fusion_mb: float) -> float:
    return 100.0


def sloping(cycle_ms: float, fusion_mb: float) -> float:
    """A step of 20 ms that waits for half a cycle and is slower with little fusion."""
    return 4000.0 / (20.0 + cycle_ms / 2 + 8.0 / (1 + fusion_mb))


def planted_log(truth: Truth, noise: float, seed: int, samples: int = 21) -> str:
    """What Horovod would write: its first points, others at random or near the best so far, and its choice."""
    chance = random.Random(seed)
    tried: list[tuple[float, float, float]] = []
    for index in range(samples):
        if index < len(FIRST_POINTS):
            cycle, fusion = FIRST_POINTS[index]
        elif chance.random() < 0.25:
            cycle, fusion, _ = max(tried, key=lambda each: each[2])
            cycle, fusion = cycle * (1 + chance.uniform(-1e-4, 1e-4)), fusion * (1 + chance.uniform(-1e-4, 1e-4))
        else:
            cycle, fusion = chance.uniform(1, 100), chance.uniform(0, 64)
        tried.append((cycle, fusion, truth(cycle, fusion) * math.exp(chance.gauss(0.0, noise))))
    rows = [*tried, max(tried, key=lambda each: each[2])]
    lines = [f"0,0,0, 1,{cycle:.6g},{fusion:.6g},{score:.6g}" for cycle, fusion, score in rows]
    return "\n".join([HEADER, *lines, ""])


def judged(tmp_path: Path, text: str | bytes) -> Autotune:
    """What a file with this text says."""
    path = tmp_path / "autotune.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_autotune(path)


def scores(record: Autotune) -> list[float]:
    return [sample.score for sample in record.samples]
