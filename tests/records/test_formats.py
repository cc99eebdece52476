"""What is on disk: the format of every kind of record, and what a file means that does not say everything."""

import importlib
import pkgutil
from typing import Any

import msgspec
import pytest

import scalescope.records as room
from scalescope.records import cluster, explanation, job, machine, prediction, profile, results, run, scaling, tuning
from scalescope.records.autotune import Setting
from scalescope.records.comparison import Pair
from scalescope.records.request import EstimatePlan, EstimateRequest, MeasureRequest, Plan, ProbeRequest
from scalescope.records.store import Record
from scalescope.records.study import StudyPart, StudyPlan, StudyRequest
from scalescope.records.timeline import Span

FORMATS = {
    "autotune": 1,
    "checkup": 1,
    "cluster": 1,
    "comparison": 1,
    "estimate_plan": 1,
    "explanation": 1,
    "failure": 1,
    "measurement": 2,
    "plan": 2,
    "prediction": 1,
    "profile": 1,
    "rank_zero": 1,
    "residual": 2,
    "run": 1,
    "sample": 1,
    "scaling": 2,
    "study": 1,
    "study_plan": 1,
    "submission": 1,
    "timeline": 1,
    "trace_folder": 1,
    "tuning": 1,
}


def test_a_format_changes_only_on_purpose() -> None:
    """Another number makes every file of that kind unreadable that users have."""
    modules = [importlib.import_module(f"{room.__name__}.{each.name}") for each in pkgutil.iter_modules(room.__path__)]
    kinds = {
        each.__struct_config__.tag: each.current_version
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Record) and each is not Record
    }
    assert kinds == FORMATS


# By type: fields that a file may leave out, and what it means then; None, texts, lists and tables are not in it.
UNSAID: list[tuple[type[Any], dict[str, Any]]] = [
    (Setting, {"out_of_range": False}),
    (cluster.Overlap, {"idle": 1.0, "idle_error": 0.0, "compute_error": 0.0, "communication_error": 0.0}),
    (
        cluster.Cluster,
        {"version": 0, "copy_s_per_byte": 0.0, "copy_s_per_tensor": 0.0, "threads_per_rank": 1, "memory_bytes": 0},
    ),
    (Pair, {"is_part": False}),
    (explanation.TraceFolder, {"version": 0, "from_start": False}),
    (explanation.Loss, {"events": 0, "bytes": 0}),
    (explanation.Explanation, {"version": 0, "compiled": False, "too_heavy": False}),
    (job.Knob, {"on_request": False, "is_argument": False, "modelled": True}),
    (job.Job, {"port": 29500, "oversubscribe": False}),
    (job.Ending, {"code": 0, "leftovers": 0}),
    (machine.Torch, {"gpus": 0}),
    (machine.Slurm, {"nodes": 1}),
    (prediction.Cell, {"fits": True, "measured_batch": True, "baseline_fits": True, "verified": False}),
    (prediction.Check, {"disturbed": False}),
    (prediction.Prediction, {"version": 0, "accumulate": 1, "correction": 1.0, "own_s": 0.0, "memory_shared_by": 1}),
    (profile.WorkloadSpec, {"accumulate": 1}),
    (profile.Gradient, {"element_bytes": 4}),
    (profile.ProfilePoint, {"remade": 0, "outlying": False, "foreign_cores": 0.0}),
    (profile.Contention, {"foreign_cores": 0.0}),
    (profile.ModelProfile, {"version": 0, "buffers": 0, "seconds": 0.0, "launch_spread": 0.0}),
    (
        MeasureRequest,
        {
            "timeout_s": 600.0,
            "oversubscribe": False,
            "quick": False,
            "smallest": False,
            "trace": False,
            "from_start": False,
            "cpu_detail": False,
            "no_wait": False,
            "per_point": False,
        },
    ),
    (Plan, {"version": 0, "steps": 0, "first_round": 1}),
    (ProbeRequest, {"threads_per_rank": 1, "seconds": 8.0, "rounds": 6, "timeout_s": 600.0, "no_wait": False}),
    (
        EstimateRequest,
        {
            "seconds": 18.0,
            "repeats": 8,
            "efficiency": 0.8,
            "verify": 0,
            "launches": 3,
            "timeout_s": 600.0,
            "allow_writes": False,
            "no_wait": False,
        },
    ),
    (EstimatePlan, {"version": 0, "finished": False}),
    (run.Run, {"version": 0, "round": 1}),
    (run.Failure, {"version": 0, "round": 1}),
    (run.Measurement, {"version": 0, "quick": False, "named_hosts": False}),
    (scaling.Estimate, {"count": 1}),
    (scaling.BreakEven, {"count": 1}),
    (scaling.ScalingPoint, {"launches": 1}),
    (StudyRequest, {"timeout_s": 600.0, "oversubscribe": False, "budget_s": 300.0, "no_wait": False}),
    (StudyPlan, {"version": 0}),
    (StudyPart, {"planned_s": 0.0, "used_s": 0.0}),
    (Span, {"bytes": 0}),
    (tuning.TuneRequest, {"np": 2, "timeout_s": 600.0, "oversubscribe": False, "no_wait": False}),
    (tuning.SearchedKnob, {"logarithmic": False}),
    (tuning.Sample, {"version": 0, "steps": 0, "other_steps": 0, "seconds": 0.0, "switch_s": 0.0, "cut": False}),
    (tuning.Gain, {"level": 0.0}),
    (tuning.TuningCost, {"warmup_steps": 0}),
    (tuning.Tuning, {"version": 0, "nodes": 1, "complete": True}),
    (results.RunInfo, {}),
]


@pytest.mark.parametrize(("kind", "unsaid"), UNSAID, ids=lambda each: getattr(each, "__name__", ""))
def test_defaults_of_absent_fields_stay_the_same(kind: type[Any], unsaid: dict[str, Any]) -> None:
    fields = msgspec.structs.fields(kind)
    assert {field.name: field.default for field in fields if isinstance(field.default, bool | int | float)} == unsaid


def test_numbers_of_a_request_are_those_that_its_help_names() -> None:
    assert MeasureRequest().np == (1, 2)
    workload = profile.WorkloadSpec(model="cnn")
    assert EstimateRequest(workload=workload).batch == (8, 16, 32, 64, 128, 256, 512)
    assert run.QUIET == 0.25


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_new_record_has_the_current_format_and_a_read_one_its_own(version: int) -> None:
    made = prediction.Residual(
        hostname="h", engine="ddp", model="m", checks=1, log_error=0.1, seconds_since_epoch=1.0, version=version
    )
    assert made.version == (version or 2)
