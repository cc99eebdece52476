"""Landscapes of Horovod over MPI and Gloo, switched while it trains, beside Horovod's own autotune."""

from typing import Any

from benchmarks.tune_grid import Plan
from benchmarks.tune_section import Case, run_section, study
from scalescope.records.profile import WorkloadSpec
from scalescope.records.tuning import TuneRequest

SMALL = WorkloadSpec(model="benchmarks/tune_models.py:small_tensors", model_args={"layers": 30})
MID = WorkloadSpec(model="transformer", model_args={"layers": 2, "width": 128, "vocab": 2000, "sequence": 32})
PLAN = Plan(rounds=4, again=8, most_cells=20)
CASES = tuple(
    Case(
        f"Horovod over {moved_by}, {name}",
        TuneRequest(workload=workload, np=2, batch=16, engine="horovod", launcher=launcher),
        PLAN,
        steps=10,
        runs=5,
        native=True,
    )
    for moved_by, launcher in (("MPI", "mpirun"), ("Gloo", "horovodrun"))
    for name, workload in (("small", SMALL), ("mid", MID))
)


def run() -> list[dict[str, Any]]:
    """All four."""
    return run_section("tune_horovod", CASES, study)
