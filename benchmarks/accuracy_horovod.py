"""Predicted against real steps of Horovod on two ranks, over Gloo and over MPI."""

from typing import Any

from benchmarks.accuracy import FOLDER, analyse, keep_points, launch, summary
from benchmarks.accuracy_ranks import AccuracyTask, Case
from benchmarks.table import print_table
from scalescope.engines import knobs_of
from scalescope.estimation.link_probe import SIZES
from scalescope.estimation.probe import Group
from scalescope.records.job import Knobs
from scalescope.records.profile import WorkloadSpec

CASES = (
    Case(workload=WorkloadSpec(model="mlp"), batches=(32, 128)),
    Case(workload=WorkloadSpec(model="cnn"), batches=(16, 64)),
    Case(workload=WorkloadSpec(model="transformer"), batches=(4, 8)),
    Case(workload=WorkloadSpec(model="resnet18"), batches=(4, 8)),
)
BACKENDS = ("horovod-gloo", "horovod-mpi")
ROUNDS = 3


def run() -> list[dict[str, Any]]:
    """Both controllers, one after the other; launches with Horovod and without take turns."""
    rows, points = [], []
    for backend in BACKENDS:
        group, knobs = Group(backend=backend, ranks=2, nodes=1), knobs_of(backend)
        folder = FOLDER / backend
        plain = [folder / f"plain{number}" for number in range(ROUNDS)]
        ours = [folder / f"horovod{number}" for number in range(ROUNDS)]
        for without, with_horovod in zip(plain, ours, strict=True):
            launch(_task(Knobs(engine="ddp"), ("profile",)), Group(backend="gloo", ranks=2, nodes=1), without)
            launch(_task(knobs, ("probe", "truth")), group, with_horovod)
        found = analyse(CASES, group, knobs, plain, ours)
        print_table(found)
        points += found
        keep_points("accuracy_horovod", points)
        rows.append({"backend": backend, **summary(found)})
    return rows


def _task(knobs: Knobs, parts: tuple[str, ...]) -> AccuracyTask:
    return AccuracyTask(cases=CASES, engine=knobs.engine, knobs=dict(knobs.values), rounds=1, sizes=SIZES, parts=parts)
