"""Predicted against real steps on two ranks; profile, probe and truth interleaved in one run."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from benchmarks.accuracy_ranks import AccuracyTask, Case, Truth
from scalescope.engines import find_engine
from scalescope.measurement.link_probe import SIZES
from scalescope.measurement.probe import Group, findings, knobs_of, read_lines
from scalescope.measurement.profile import assemble, read_blocks
from scalescope.measurement.rank_program import RankProgram, run_ranks
from scalescope.prediction.costs import CostModel
from scalescope.prediction.step import steps
from scalescope.records.cluster import Cluster
from scalescope.records.knobs import Knobs
from scalescope.records.store import complete_lines
from scalescope.records.workload import WorkloadSpec

CASES = (
    Case(workload=WorkloadSpec(model="mlp"), batches=(16, 64, 128, 256)),
    Case(workload=WorkloadSpec(model="cnn"), batches=(8, 32, 64, 128)),
    Case(workload=WorkloadSpec(model="transformer"), batches=(2, 4, 8, 16)),
    Case(workload=WorkloadSpec(model="resnet18"), batches=(2, 4, 8, 16)),
)
FOLDER = Path("results") / "bench" / "accuracy"


def compare(
    cases: Sequence[Case], backend: str, ranks: int, rounds: int, folder: Path, **where: Any
) -> list[dict[str, Any]]:
    """One row per model and batch: predicted, measured, the seed's formula, how far the truth differs from itself."""
    knobs = knobs_of(backend)
    if backend == "gloo":
        knobs = Knobs(engine="ddp")
    task = AccuracyTask(cases=tuple(cases), engine=knobs.engine, knobs=dict(knobs.values), rounds=rounds, sizes=SIZES)
    run_ranks(
        RankProgram(
            module="benchmarks.accuracy_ranks",
            task=task,
            np=ranks,
            knobs=knobs,
            folder=folder.absolute(),
            writes="case*/*.jsonl",
            **where,
        ),
        lambda lines: None,
    )
    return analyse(cases, backend, ranks, knobs, folder)


def analyse(cases: Sequence[Case], backend: str, ranks: int, knobs: Knobs, folder: Path) -> list[dict[str, Any]]:
    """The rows, from what the ranks wrote."""
    group = Group(backend=backend, ranks=ranks, nodes=1)
    rows = []
    rest = read_lines(folder, ranks)
    for index, case in enumerate(cases):
        here = folder / f"case{index}"
        model, blocks = read_blocks(here, ranks)
        profile = assemble(case.workload, model, blocks, 1, 0.0)
        found = findings(group, [[*mine, *around] for mine, around in zip(read_lines(here, ranks), rest, strict=True)])
        cluster = Cluster(
            nodes=1,
            slots_per_node=ranks,
            cores_per_node=ranks,
            costs=found.costs,
            overlaps=(found.overlap,) if found.overlap else (),
            copy_s_per_byte=found.copy_s_per_byte,
        )
        exchange = find_engine(knobs.engine).exchange(profile, knobs.values)
        made = steps(profile, cluster, exchange, np.full(len(case.batches), ranks), np.array(case.batches))
        total = sum(gradient.bytes for gradient in profile.gradients)
        whole = float(CostModel(cluster, backend, "allreduce").seconds(float(total), ranks, 1))
        truth = _truth(here, ranks)
        for column, batch in enumerate(case.batches):
            alone = next(point.step_s for point in profile.points if point.batch == batch)
            predicted, real = float(made.step_s[column]), median(truth[batch])
            rows.append(
                {
                    "model": case.workload.model.rpartition("/")[2],
                    "batch": batch,
                    "alone ms": alone * 1e3,
                    "crowd": next((c.slowdown for c in profile.crowds if c.batch == batch), 1.0),
                    "exposed ms": float(made.exposed_s[column]) * 1e3,
                    "predicted ms": predicted * 1e3,
                    "measured ms": real * 1e3,
                    "error %": 100 * (predicted / real - 1),
                    "seed's formula %": 100 * ((alone + whole) / real - 1),
                    "truth's halves %": 100 * (median(truth[batch][::2]) / median(truth[batch][1::2]) - 1),
                    "S(2)": ranks * alone / real,
                    "sign": (alone * ranks > predicted) == (alone * ranks > real),
                }
            )
    return rows


def _truth(folder: Path, ranks: int) -> dict[int, list[float]]:
    """By batch: the median of the slowest rank in every block."""
    decode = msgspec.json.Decoder(Truth).decode
    of_ranks = [[decode(line) for line in complete_lines(folder / f"truth-rank{rank}.jsonl")] for rank in range(ranks)]
    found: dict[int, list[float]] = {}
    for together in zip(*of_ranks, strict=True):
        slowest = map(max, zip(*(block.seconds for block in together), strict=True))
        found.setdefault(together[0].batch, []).append(median(slowest))
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and 95th percentile of the errors, beside the seed's formula and the truth's own."""

    def of(column: str) -> list[float]:
        return sorted(abs(row[column]) for row in rows)

    errors = of("error %")
    return {
        "points": len(rows),
        "mean error %": fmean(errors),
        "95th percentile %": float(np.percentile(errors, 95)),
        "worst %": errors[-1],
        "seed's formula %": fmean(of("seed's formula %")),
        "truth's halves %": fmean(of("truth's halves %")),
        "sign right": f"{sum(row['sign'] for row in rows)} of {len(rows)}",
    }


def run() -> list[dict[str, Any]]:
    """DDP over gloo on two ranks of this machine."""
    from benchmarks.table import print_table

    rows = compare(CASES, "gloo", 2, 4, FOLDER / "gloo")
    print_table(rows)
    return [summary(rows)]
