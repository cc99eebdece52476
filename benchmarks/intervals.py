"""Do 90 % intervals of estimates hold 90 times in 100? Real checks of all sections, and simulated machines."""

import json
import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.accuracy import POINTS
from scalescope.engines import find_engine
from scalescope.estimation.probe import Group, findings
from scalescope.estimation.probe_ranks import Around, Line, Overlapped, Round, Timed
from scalescope.estimation.profile import assemble
from scalescope.estimation.profile_blocks import Block, Model
from scalescope.records.cluster import Cluster
from scalescope.records.job import Knobs
from scalescope.records.prediction import Cell
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.simulator.grid import Question, predict

SECTIONS = (
    "accuracy",
    "accuracy_unseen",
    "accuracy_horovod",
    "accuracy_hosts",
    "accuracy_cores",
    "estimates_repeat",
    "rank_zero",
)
_ENOUGH = 60


def intervals() -> list[dict[str, Any]]:
    """One row per section that has been run (make bench SECTION=... adds one), and all of them together."""
    kept = {name: json.loads(path.read_text()) for name in SECTIONS if (path := POINTS / f"{name}.json").exists()}
    missing = [name for name in SECTIONS if name not in kept]
    if missing:
        print(f"not run yet: {', '.join(missing)}")
    rows = [_checks(name, points) for name, points in kept.items()]
    together = [point for points in kept.values() for point in points]
    if together:
        rows.append(_checks(f"all (goal 85 to 95 % of {_ENOUGH} or more)", together))
    return rows


def _checks(name: str, points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    inside = sum(point["inside"] for point in points)
    return {
        "section": name,
        "checks": len(points),
        "inside": inside,
        "inside %": 100 * inside / len(points),
        "median half-width % (goal 10)": median(point["half-width %"] for point in points),
        "mean error %": fmean(abs(point["error %"]) for point in points),
    }


STUDIES = 200
BATCHES, STEPS = (8, 32), 8
SIZES = (4, 1 << 20, 16 << 20)
GRADIENT_BYTES, GRADIENTS = 4 << 20, 4
DDP = Knobs(engine="ddp")
MISSED = 0.04  # What the model of an engine misses, relative standard deviation


class Machine(NamedTuple):
    """How much parts of one machine vary, as logarithms' standard deviations."""

    name: str
    rounds: int  # Of the profile and of the probe
    block: float  # From block to block of a profile, and of what copies do to each other
    probe: float  # From round to round of a probe
    overlap: float
    launch: float  # From launch to launch
    ranks: int = 2
    beyond: float = 0.0  # By doubling of ranks that were not probed: how far costs and contention are off the line


MACHINES = (
    Machine("quiet, 3 rounds", 3, 0.02, 0.05, 0.08, 0.03),
    Machine("quiet, 5 rounds", 5, 0.02, 0.05, 0.08, 0.03),
    Machine("noisy, 3 rounds", 3, 0.06, 0.15, 0.20, 0.03),
    Machine("noisy, 5 rounds", 5, 0.06, 0.15, 0.20, 0.03),
    Machine("quiet, twice the probed ranks", 4, 0.02, 0.05, 0.08, 0.03, ranks=4, beyond=0.17),
    Machine("quiet, four times the probed ranks", 4, 0.02, 0.05, 0.08, 0.03, ranks=8, beyond=0.17),
)


def coverage_estimate() -> list[dict[str, Any]]:
    """One row per machine."""
    rows = []
    for index, machine in enumerate(MACHINES):
        rng = np.random.default_rng(2000 + index)
        made = [_study(rng, machine) for _ in range(STUDIES)]
        rows.append(
            {
                "machine": machine.name,
                "studies": STUDIES,
                "covered %": 100 * float(np.mean([cell.low_s <= real <= cell.high_s for cell, real in made])),
                "half-width %": 100 * median(cell.high_s / cell.step_s - 1 for cell, _ in made),
            }
        )
    return rows


def _study(rng: np.random.Generator, machine: Machine) -> tuple[Cell, float]:
    """The predicted cell, and what a launch really takes."""
    exact = np.random.default_rng(0)
    silent = machine._replace(block=0.0, probe=0.0, overlap=0.0, launch=0.0)
    far = math.exp(rng.normal(0, machine.beyond * math.log2(machine.ranks / 2))) if machine.ranks > 2 else 1.0
    truth = _predicted(*_parts(exact, silent), machine.ranks).step_s
    drawn = math.hypot(MISSED, machine.launch)
    real = truth * far * math.exp(rng.normal(0, drawn))
    return _predicted(*_parts(rng, machine), machine.ranks), real


def _predicted(profile: ModelProfile, cluster: Cluster, ranks: int) -> Cell:
    return predict(Question(profile=profile, cluster=cluster, knobs=DDP, np=(ranks,), batches=BATCHES[-1:])).cells[0]


def _parts(rng: np.random.Generator, machine: Machine) -> tuple[ModelProfile, Cluster]:
    """A profile and a cluster as they were found."""

    def vary(deviation: float) -> float:
        return math.exp(rng.normal(0, deviation))

    launch = vary(machine.launch)
    first: list[Block] = []
    second: list[Block] = []
    for batch in BATCHES:
        first.append(_block(rng, batch, 1, launch * vary(machine.block)))
        for _ in range(machine.rounds):
            together = 1.05 * launch * vary(machine.block)
            first += [_block(rng, batch, 2, together), _block(rng, batch, 1, launch * vary(machine.block))]
            second.append(_block(rng, batch, 2, together))
    model = Model(
        names=[f"layer{index}" for index in range(GRADIENTS)],
        bytes=[GRADIENT_BYTES] * GRADIENTS,
        element_bytes=[4] * GRADIENTS,
        buffers_bytes=[],
        torch="",
        device="cpu",
        hostname="",
        memory_limit_bytes=1 << 40,
    )
    profile = assemble(WorkloadSpec(model="simulated"), model, [first, second], 1, 0.0)
    lines: list[Line] = [Around(copy_s_per_byte=1e-10)]
    for _ in range(machine.rounds):
        slow = vary(machine.probe)
        lines += [
            Timed(operation=operation, bytes=size, seconds=[slow * (3e-4 + size / 1.6e9)] * 5, cpu_seconds=[0.0] * 5)
            for operation in ("allreduce", "broadcast")
            for size in SIZES
        ]
        busy, sent = 1.4 * vary(machine.overlap), 1.6 * vary(machine.overlap)
        lines += [Overlapped(layer_s=1.0, layer_overlapped_s=busy, message_s=1.0, message_overlapped_s=sent)]
        lines += [Round(foreign_cores=0.0)]
    found = findings(Group(backend="gloo", ranks=2, nodes=1), [lines, lines])
    assert found.overlap
    cluster = Cluster(
        nodes=1,
        slots_per_node=8,
        cores_per_node=8,
        costs=found.costs,
        overlaps=(found.overlap,),
        copy_s_per_byte=found.copy_s_per_byte,
    )
    return profile, cluster


def _block(rng: np.random.Generator, batch: int, copies: int, factor: float) -> Block:
    """Steps of 3 ms a sample, of which a third is forward."""
    steps = [0.003 * batch * factor * math.exp(rng.normal(0, 0.005)) for _ in range(STEPS)]
    middle = median(steps)
    return Block(
        batch=batch,
        copies=copies,
        forward_s=[0.3 * step for step in steps],
        backward_s=[0.6 * step for step in steps],
        optimizer_s=[0.1 * step for step in steps],
        cpu_s=steps,
        ready_s={str(index): 0.6 * middle * (index + 1) / GRADIENTS for index in range(GRADIENTS)},
        memory_bytes=1 << 30,
    )


assert find_engine(DDP.engine).model_error >= MISSED
