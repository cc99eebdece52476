"""Landscapes of Horovod over MPI, small and mid-sized, every block a launch, beside Horovod's own autotune."""

from typing import Any

from benchmarks.tune_grid import Plan
from benchmarks.tune_section import Case, run_section, study
from scalescope.records.profile import WorkloadSpec
from scalescope.records.tuning import TuneRequest

SMALL = WorkloadSpec(model="benchmarks/tune_models.py:small_tensors", model_args={"layers": 30})
MID = WorkloadSpec(model="transformer", model_args={"layers": 2, "width": 128, "vocab": 2000, "sequence": 32})
PLAN = Plan(rounds=2, again=3, most_cells=20)
CASES = tuple(
    Case(
        name,
        TuneRequest(workload=workload, np=2, batch=16, engine="horovod", launcher="mpirun", method="offline"),
        PLAN,
        steps=0,
        runs=1,
        native=True,
    )
    for name, workload in (("Horovod, small", SMALL), ("Horovod, mid", MID))
)


def run() -> list[dict[str, Any]]:
    """Both of them."""
    return run_section("tune_horovod", CASES, study)
