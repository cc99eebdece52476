"""Predicted against real steps of Horovod on two ranks, over Gloo and over MPI."""

from typing import Any

from benchmarks.accuracy import CASES, FOLDER, compare, summary
from benchmarks.table import print_table
from scalescope.measurement.probe import Group

BACKENDS = ("horovod-gloo", "horovod-mpi")


def run() -> list[dict[str, Any]]:
    """Both controllers, one after the other."""
    rows = []
    for backend in BACKENDS:
        found = compare(CASES, Group(backend=backend, ranks=2, nodes=1), 4, FOLDER / backend)
        print_table(found)
        rows.append({"backend": backend, **summary(found)})
    return rows
