"""Scripts predicted from their steps as rank 0 of N, against real gloo ranks of this machine; nothing is fitted.

`python -m benchmarks.rank_zero "gpt, FSDP2"` runs some of the trainings alone.
"""

import math
import shutil
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.accuracy import keep_points
from benchmarks.shared import print_table
from scalescope import host
from scalescope.api import estimate, measure

FOLDER = Path("results") / "bench" / "rank_zero"
TRAININGS: dict[str, tuple[str, ...]] = {
    "cnn, DDP": ("examples/train_ddp.py", "--epochs", "4", "--samples", "16384"),
    "gpt, DDP": ("examples/train_gpt.py", "--engine", "ddp"),
    "gpt, FSDP2": ("examples/train_gpt.py", "--engine", "fsdp2"),
    "blocks, FSDP2": ("examples/slow_sharded.py", "--steps", "200", "--reshard"),
}
RANKS = (2, 4, 8)
TRUTHS = 3  # Launches of every training: one before it is predicted, the others after


def rank_zero(*names: str) -> list[dict[str, Any]]:
    """DDP and FSDP2 on 2 ranks, and on 4 and 8 where there are as many cores; all trainings, or those named."""
    cores = host.cores().physical
    counts = [count for count in RANKS if count <= cores]
    threads = host.threads_per_rank(cores, max(counts))
    shutil.rmtree(FOLDER, ignore_errors=True)
    rows: list[dict[str, Any]] = []
    for name in names or TRAININGS:
        command = [sys.executable, *TRAININGS[name]]
        place = FOLDER / name.replace(", ", "-").replace(" ", "-")

        def launched(
            number: int, launches: int, command: list[str] = command, place: Path = place
        ) -> dict[int, list[float]]:
            made = measure(
                command=command,
                np=counts,
                threads_per_rank=threads,
                launches=launches,
                smallest=True,
                folder=str(place / f"truth-{number}"),
            )
            return {np: [run.mean_step_s for run in made.runs if run.point.np == np] for np in counts}

        before = launched(1, 1)
        predicted = estimate(command=command, np=[1, *counts], threads_per_rank=threads, folder=str(place / "estimate"))
        after = launched(2, TRUTHS - 1)
        for cell in predicted.cells:
            if cell.np > 1:
                truth = sorted([*before[cell.np], *after[cell.np]])
                rows.append(_row(name, cell, truth, predicted))
        print_table(rows[-len(counts) :])
    keep_points("rank_zero", rows)
    errors = [abs(row["error %"]) for row in rows]
    inside = sum(row["covered"] for row in rows)
    return [
        {
            "points": len(rows),
            "mean error %": fmean(errors),
            "worst %": max(errors),
            "inside 90 % intervals": f"{inside} of {len(rows)}",
            "truth's own half-range %": fmean(row["truth +- %"] for row in rows),
        }
    ]


def _row(name: str, cell: Any, truth: list[float], predicted: Any) -> dict[str, Any]:
    middle = median(truth)
    return {
        "training": name,
        "ranks": cell.np,
        "predicted ms": 1e3 * cell.step_s,
        "low": 1e3 * cell.low_s,
        "high": 1e3 * cell.high_s,
        "measured ms": 1e3 * middle,
        "truth +- %": 100 * (truth[-1] - truth[0]) / 2 / middle,
        "error %": 100 * (cell.step_s / middle - 1),
        "half-width %": 100 * (math.sqrt(cell.high_s / cell.low_s) - 1),
        "covered": cell.low_s <= middle <= cell.high_s,
        "exposed ms": 1e3 * cell.exposed_s,
        "disturbed": "; ".join(predicted.doubts),
    }


if __name__ == "__main__":
    print_table(rank_zero(*sys.argv[1:]))
