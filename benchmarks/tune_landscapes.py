"""Two real landscapes of DDP on this machine, 200 small tensors and the transformer, and every method on them."""

from typing import Any

from benchmarks.tune_grid import Plan
from benchmarks.tune_section import Case, run_section, study
from scalescope.records.profile import WorkloadSpec
from scalescope.records.tuning import TuneRequest
from scalescope.tuner.space import ON_REQUEST

SMALL = TuneRequest(
    workload=WorkloadSpec(model="benchmarks/tune_models.py:small_tensors"), np=2, batch=16, search=ON_REQUEST
)
TRANSFORMER = TuneRequest(
    workload=WorkloadSpec(model="transformer", model_args={"vocab": 8000}), np=2, batch=2, search=ON_REQUEST
)
CASES = (
    Case("200 small tensors", SMALL, Plan(rounds=6, again=15, most_cells=80), steps=10, runs=5),
    Case("transformer", TRANSFORMER, Plan(rounds=4, again=10, most_cells=40), steps=10, runs=3),
)


def run() -> list[dict[str, Any]]:
    """Both of them."""
    return run_section("tune_landscapes", CASES, study)
