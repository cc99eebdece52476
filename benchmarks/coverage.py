"""Do 95 % intervals cover the truth 95 times in 100, with the stopping rule and noise as it is?

Where they cannot: a launch in ten that is slow on one side only, and correlated rounds. And real launches of a
configuration against itself (`aa`): of every two launches in a row a coin calls one A and the other B, so a 95 %
interval of A over B should contain 1 in 95 of 100 studies.
"""

import json
import math
import random
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.shared import LONGEST_S, Unfinished
from scalescope import host
from scalescope.measurement.replication import points_of_round, warnings_of
from scalescope.measurement.scaling import scaling_of
from scalescope.measurement.sweep import continue_measurement, measure
from scalescope.progress import Progress
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Measurement, Point, Run
from scalescope.records.scaling import Estimate, estimate
from scalescope.records.store import load
from scalescope.stats import of_logarithms
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


def coverage() -> list[dict[str, Any]]:
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


AA_STUDIES, ROUNDS = 50, 5
FOLDER = Path("results") / "bench" / "aa"
NAMED = "study"
SCRIPT = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as ranks
def train(rank, count, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(64, 64)
    for _ in range(200):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    dist.barrier()
if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks.start_processes(train, args=(int(sys.argv[1]), port), nprocs=int(sys.argv[1]), start_method="fork")
"""


def aa() -> list[dict[str, Any]]:
    """Several studies at a time where there are cores for them: most of a launch is importing torch."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + LONGEST_S
    at_once = max(3 * host.cores().logical // 4, 1) if host.cores().logical > 2 else 1
    left = [
        FOLDER / f"{NAMED}{number:02d}"
        for number in range(AA_STUDIES)
        if _pairs(FOLDER / f"{NAMED}{number:02d}") is None
    ]
    running: list[subprocess.Popen[bytes]] = []
    while (left and time.monotonic() < until) or running:
        running = [each for each in running if each.poll() is None]
        if time.monotonic() > until:
            for each in running:
                each.terminate()  # a measurement keeps its finished launches
                each.wait()
        elif left and len(running) < at_once:
            words = [sys.executable, "-m", "benchmarks.coverage", str(left.pop(0)), str(until - time.monotonic())]
            running.append(subprocess.Popen(words))
        time.sleep(0.2)
    rows = _rows()
    if rows[0]["A/A studies"] < AA_STUDIES:
        raise Unfinished(rows)
    return rows


def _study(folder: Path, seconds: float) -> None:
    """The launches of one study that are not there yet."""
    script = folder.parent.absolute() / "train.py"
    if not script.exists():
        script.write_text(SCRIPT)
    request = MeasureRequest(
        command=(sys.executable, str(script), "{np}"),
        np=(2,),
        batch=(64,),
        engines=("ddp",),
        launcher="own",
        device="cpu",
        launches=2 * ROUNDS,
        budget_s=seconds,
        folder=str(folder),
    )
    if (folder / "plan.json").exists():
        continue_measurement(folder, {"budget_s": seconds}, Progress())
    else:
        measure(request, Progress())
    pairs = _pairs(folder)
    print(f"  {folder.name}: {json.dumps([[round(1e6 * each) for each in pair] for pair in pairs or []])}", flush=True)


def _pairs(folder: Path) -> list[tuple[float, float]] | None:
    """Seconds per step of A and of B, round by round; None before all launches are there."""
    path = folder / "measurement.json"
    runs = load(path, Measurement).runs if path.exists() else ()
    if len(runs) < 2 * ROUNDS:
        return None
    coin = random.Random(folder.name)
    seconds = [run.mean_step_s for run in sorted(runs, key=lambda run: run.round)]
    pairs = [tuple(coin.sample(seconds[at : at + 2], 2)) for at in range(0, 2 * ROUNDS, 2)]
    return [(a, b) for a, b in pairs]


def _ratio(folder: Path) -> Estimate | None:
    pairs = _pairs(folder)
    return estimate([a / b for a, b in pairs]) if pairs else None


def _rows() -> list[dict[str, Any]]:
    found = [ratio for folder in sorted(FOLDER.glob(f"{NAMED}*")) if (ratio := _ratio(folder))]
    widths = sorted((each.high - each.low) / 2 for each in found)
    return [
        {
            "A/A studies": len(found),
            "contain 1": sum(each.low <= 1 <= each.high for each in found),
            "goal": f"43 of {AA_STUDIES}",
            "half-width, median": widths[len(widths) // 2] if widths else None,
            "launches of each arm": ROUNDS,
        }
    ]


if __name__ == "__main__":
    _study(Path(sys.argv[1]), float(sys.argv[2]))
