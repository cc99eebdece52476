"""Predicted against real steps of Horovod on two ranks, over Gloo and over MPI."""

from typing import Any

from benchmarks.accuracy import FOLDER, compare, summary
from benchmarks.accuracy_ranks import Case
from benchmarks.table import print_table
from scalescope.measurement.probe import Group
from scalescope.records.workload import WorkloadSpec

CASES = (
    Case(workload=WorkloadSpec(model="mlp"), batches=(32, 128)),
    Case(workload=WorkloadSpec(model="cnn"), batches=(16, 64)),
    Case(workload=WorkloadSpec(model="transformer"), batches=(4, 8)),
    Case(workload=WorkloadSpec(model="resnet18"), batches=(4, 8)),
)
BACKENDS = ("horovod-gloo", "horovod-mpi")


def run() -> list[dict[str, Any]]:
    """Both controllers, one after the other."""
    rows = []
    for backend in BACKENDS:
        found = compare(CASES, Group(backend=backend, ranks=2, nodes=1), 4, FOLDER / backend)
        print_table(found)
        rows.append({"backend": backend, **summary(found)})
    return rows
