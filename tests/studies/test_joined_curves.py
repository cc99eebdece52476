"""Measurements of one training that were made apart, read as one curve or kept apart with the reason."""

from pathlib import Path
from typing import Any

import made_explanation
import msgspec
import pytest
from made_results import MACHINE

from measurement.observed import launch
from measurement.observed import measurement as of_runs
from scalescope.jobs.folders import result_folder
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import Fingerprint, MeasureRequest, Plan
from scalescope.records.run import RankHost, Run
from scalescope.records.store import save
from scalescope.show import document_of
from scalescope.show.study import report_json
from scalescope.studies.results import read_results

HOST = RankHost(name="n1", cpu="Xeon", cores=8, gpus=("H100", "H100"), ranks=(0,))


def part(
    folder: Path,
    *counts: int,
    launches: int = 5,
    here: Fingerprint = MACHINE,
    host: RankHost = HOST,
    steps: int = 20,
    job: str = "",
    launcher: str = "torchrun",
    changes: dict[str, Any] = {},  # noqa: B006
    **request: Any,
) -> Path:
    """The folder of a measurement of these numbers of processes."""

    def made(np: int, number: int) -> Run:
        engine = "none" if np == 1 else "ddp"
        run = launch(engine, np, number, 0.1 + 0.001 * number)
        return msgspec.structs.replace(run, hosts=(host,), batch_job=job, **changes)

    runs = [made(np, number) for number in range(1, launches + 1) for np in counts]
    asked = {"workload": WorkloadSpec(model="cnn"), "np": counts, "batch": (8,), **request}
    with result_folder("measure", str(folder)):
        save(
            Plan(request=MeasureRequest(**asked), cwd="/", since_ns=0, fingerprint=here, steps=steps),
            folder / "plan.json",
        )
        save(msgspec.structs.replace(of_runs(runs), launcher={"ddp": launcher}), folder / "measurement.json")
    return folder


def test_folders_of_separate_jobs_make_one_curve(tmp_path: Path) -> None:
    paths = [part(tmp_path / f"np{np}", np, job=f"slurm {np}") for np in (1, 2, 4)]
    (found,) = read_results(paths)
    assert found.measurement
    assert found.scaling
    assert [run.round for run in found.measurement.runs] == list(range(1, 16))
    (curve,) = found.scaling.curves
    assert [(point.np, point.launches) for point in curve.points] == [(1, 5), (2, 5), (4, 5)]
    assert [point.speedup["steady"].interval for point in curve.points] == ["t"] * 3
    assert "ddp-np2-b8, ddp-np4-b8: measured apart from none-np1-b8, the baseline" in "".join(found.scaling.warnings)
    assert [each.folder for each in found.done] == [str(path) for path in paths]
    told = document_of(found.scaling, measurement=found.measurement).json()
    assert {point["np"]: point["batch_jobs"] for point in told["points"]} == {
        1: ["slurm 1"],
        2: ["slurm 2"],
        4: ["slurm 4"],
    }
    assert told["launches"][0]["hosts"][0] == {**msgspec.to_builtins(HOST), "gpus": ("H100", "H100"), "ranks": (0,)}
    (document,) = report_json([found], tmp_path, None)["results"]
    assert [point["np"] for point in document["points"]] == [1, 2, 4]


def test_measurements_with_traces_make_one_curve_too(tmp_path: Path) -> None:
    paths = [part(tmp_path / f"np{np}", np) for np in (1, 2)]
    for path in paths:
        save(made_explanation.ddp(), path / "explanation.json")
    (found,) = read_results(paths)
    assert found.kinds == {"scaling", "explanation"}
    assert len(found.explanations) == 2
    assert found.scaling
    assert [point.np for point in found.scaling.curves[0].points] == [1, 2]


def test_every_job_that_measured_the_baseline_is_compared_with_its_own(tmp_path: Path) -> None:
    (found,) = read_results([part(tmp_path / "a", 1, 2), part(tmp_path / "b", 1, 4)])
    assert found.scaling
    assert [(each.np, each.launches) for each in found.scaling.curves[0].points] == [(1, 10), (2, 5), (4, 5)]
    assert "apart" not in "".join(found.scaling.warnings)
    assert [each.name for each in read_results([part(tmp_path / "c", 2, 4, smallest=True), tmp_path / "a"])] == ["c"]


def test_the_same_points_again_are_compared_not_joined(tmp_path: Path) -> None:
    before, after, less = part(tmp_path / "before", 1, 2), part(tmp_path / "after", 1, 2), part(tmp_path / "less", 1, 2)
    found = read_results([before, after])
    assert [each.name for each in found] == ["before", "after"]
    assert [each.apart for each in found] == [(), ()]
    assert len(read_results([part(tmp_path / "more", 1, 2, 4), less])) == 2
    other = {"point": launch("horovod", 4).point}
    assert len(read_results([before, part(tmp_path / "engine", 4, changes=other)])) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"here": msgspec.structs.replace(MACHINE, torch="2.4.0")}, "torch 2.4.0 instead of 2.13.0"),
        ({"here": msgspec.structs.replace(MACHINE, python="3.12.1")}, "Python 3.12.1 instead of 3.11.7"),
        (
            {"host": msgspec.structs.replace(HOST, cpu="EPYC", gpus=())},
            "hosts with 8 cores of EPYC instead of 8 cores of Xeon and 2 GPUs: H100",
        ),
        (
            {"changes": {"point": msgspec.structs.replace(launch("ddp", 4).point, threads_per_rank=2)}},
            "threads per rank 2 instead of 1",
        ),
        ({"knobs": ("bucket_cap_mb=4",)}, "knobs bucket_cap_mb=4 instead of none"),
        (
            {"workload": WorkloadSpec(model="cnn", model_args={"width": 8})},
            "model_args of the model width=8 instead of none",
        ),
        ({"device": "cpu"}, "device cpu instead of auto"),
    ],
)
def test_what_is_not_alike_is_shown_by_itself_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    found = read_results([part(tmp_path / "a", 1, 2), part(tmp_path / "b", 4, **changes)])
    assert [each.name for each in found] == ["a", "b"]
    assert [each.apart for each in found] == [(), (f"b is not joined with a: it was measured with {why}",)]
    told = report_json(found, tmp_path, None)["results"]
    assert found[1].apart[0] in told[1]["warnings"]


def test_differences_that_leave_steady_speedups_alone_are_named(tmp_path: Path) -> None:
    (found,) = read_results([part(tmp_path / "a", 1, 2), part(tmp_path / "b", 1, 4, steps=40)])
    assert found.scaling
    assert "launches in b make 40 steps and those in a 20: compare steady speedups" in found.scaling.warnings[0]
    (found,) = read_results([part(tmp_path / "c", 1, 2), part(tmp_path / "d", 1, 4, launcher="mpirun")])
    assert found.scaling
    assert "d was started by mpirun and c by torchrun: compare steady speedups" in found.scaling.warnings[0]
