"""What a study expects before anything was launched, and how it counts what it launches."""

import sys
from pathlib import Path

import pytest
from test_measurement import measurement, run

from scalescope.jobs.plan import points, resolve_here
from scalescope.records.profile import WorkloadSpec
from scalescope.records.store import save
from scalescope.records.study import StudyPlan, StudyRequest
from scalescope.studies.parts import Parts
from scalescope.studies.run import _batches

MODEL = WorkloadSpec(model="mlp")


def expectations(folder: Path, request: StudyRequest, **changes: object) -> Parts:
    settled = {"engines": ("ddp",), "np": (1, 2), "batches": (8, 16, 32), "start_s": 5.0, "sample_s": 0.001}
    return Parts(StudyPlan(request=request, cwd="/", **(settled | changes)), folder)


@pytest.mark.parametrize("counts", [(1, 2), (1, 2, 4, 8), (2, 4)])
@pytest.mark.parametrize("model", [True, False])
def test_points_are_counted_as_measure_makes_them(tmp_path: Path, counts, model: bool) -> None:
    command = () if model else (sys.executable, "x", "{batch}")
    request = StudyRequest(workload=MODEL if model else None, command=command, oversubscribe=True)
    expected = expectations(tmp_path, request, np=counts, batches=(32,))

    def made(**changes: object) -> int:
        return len(points(resolve_here(expected._measured(**changes), tmp_path)))

    launch_s, weak = expected._launch_s(), made()
    assert expected.seconds("measure") == pytest.approx(3 * weak * launch_s + 2.5)
    assert expected.seconds("refine") == pytest.approx(2 * weak * launch_s)
    assert expected.seconds("strong") == pytest.approx(3 * (1 + made(scaling=("strong", "weak")) - weak) * launch_s)


def test_an_engine_without_knobs_is_not_tuned(tmp_path: Path) -> None:
    found = expectations(tmp_path, StudyRequest(workload=MODEL), engines=("fsdp2",))
    assert found.skip_reason("tune") == found.skip_reason("check") == "FSDP2 has no knobs that tune can change"


def test_a_script_has_strong_scaling_only_when_it_takes_its_batch(tmp_path: Path) -> None:
    told = StudyRequest(command=("python", "x.py", "--batch-size", "{batch}"))
    assert expectations(tmp_path, told, batches=(32,)).skip_reason("strong") == ""
    assert "batch 33 cannot be divided among 1 and 2" in expectations(tmp_path, told, batches=(33,)).skip_reason(
        "strong"
    )
    bare = expectations(tmp_path, StudyRequest(command=("python", "x.py")), batches=())
    assert bare.skip_reason("strong") == "the command does not take its batch from {batch}"
    assert expectations(tmp_path, StudyRequest(workload=MODEL)).skip_reason("strong") == ""


def test_other_engines_are_launched_next_to_ddp_only(tmp_path: Path) -> None:
    request = StudyRequest(workload=MODEL)
    both = expectations(tmp_path, request, engines=("ddp", "horovod"))
    assert both.skip_reason("engines") == ""
    assert both.seconds("engines") == pytest.approx((1 + 2) * 3 * both._launch_s()), "next to the baseline"
    assert expectations(tmp_path, request, engines=("horovod",)).skip_reason("engines") != ""


@pytest.mark.parametrize(
    ("sample_s", "last"), [(1e-4, 512), (1.5 / 130, 128), (0.5, 32)], ids=["small", "medium", "large"]
)
def test_batches_whose_steps_are_too_long_for_the_budget_are_not_in_the_map(sample_s: float, last: int) -> None:
    assert _batches(StudyRequest(workload=MODEL, budget_s=300.0), sample_s)[-1] == last
    assert _batches(StudyRequest(workload=MODEL, batch=(1024,)), sample_s) == (1024,)


def test_finished_launches_predict_the_time_of_the_next_ones(tmp_path: Path) -> None:
    request = StudyRequest(workload=MODEL)
    before = expectations(tmp_path, request)
    runs = [run("none", 1, 80, wall_s=31.0), run("ddp", 2, 80, wall_s=32.0)]  # 10 steps of 0.1 and of 0.2 s
    save(measurement(*runs), tmp_path / "measure" / "measurement.json")
    after = expectations(tmp_path, request)
    assert after._launch_s() == 31.5
    assert after._target == (2, 8)
    assert after.seconds("explain") == pytest.approx(30 + 80 * 0.2 + 15 + 5)
    assert after.seconds("explain") > before.seconds("explain")
