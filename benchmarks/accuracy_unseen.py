"""Predicted against real steps of models that are not built in: DDP on two ranks."""

from typing import Any

from benchmarks.accuracy import FOLDER, compare, keep_points, summary
from benchmarks.accuracy_ranks import Case
from benchmarks.table import print_table
from scalescope.estimation.probe import Group
from scalescope.records.profile import WorkloadSpec

CASES = (
    Case(workload=WorkloadSpec(model="benchmarks.unseen:Recurrent", inputs=("32x64",)), batches=(8, 32, 128)),
    Case(workload=WorkloadSpec(model="benchmarks.unseen:Separable", inputs=("3x32x32",)), batches=(4, 16, 64)),
    Case(workload=WorkloadSpec(model="benchmarks.unseen:Halving", inputs=("3x32x32",)), batches=(4, 16, 64)),
)
ROUNDS = 5


def run() -> list[dict[str, Any]]:
    """Three models at three batch sizes; the goal is a mean error of 4 %."""
    rows = compare(CASES, Group(backend="gloo", ranks=2, nodes=1), ROUNDS, FOLDER / "unseen")
    print_table(rows)
    keep_points("accuracy_unseen", rows)
    return [{"models": "not built in", **summary(rows)}]
