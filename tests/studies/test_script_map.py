"""A script's map from surveys of its own steps."""

from typing import Any

import pytest

from scalescope.errors import WorkFailed
from scalescope.records.cluster import Cluster, Costs
from scalescope.records.job import Knobs
from scalescope.records.run import Measurement, Point, Run
from scalescope.studies.script_map import corrected_by, map_of_script, profile_of_script

MIB = 1 << 20


def survey(ranks: int, *, forward_s: float = 0.02, step_s: float = 0.11) -> dict[str, Any]:
    """Two layers of 8 MiB, whose gradients are ready after 30 and 60 ms; 20 ms of every step are input."""
    return {
        "gradients": [["b", 8 * MIB, 4], ["a", 8 * MIB, 4]],
        "ready_s": [0.03, 0.06],
        "forward_s": forward_s,
        "backward_s": 0.06,
        "optimizer_s": 0.01,
        "step_s": step_s,
        "samples": 64,
        "buffers_bytes": [],
        "engine": "ddp",
        "backend": "gloo",
        "hosts": 1,
        "ranks_per_host": ranks,
        "cores": 8,
        "threads": 1,
        "costs": {},
    }


def cluster(seconds: float) -> Cluster:
    costs = Costs(
        backend="gloo",
        ranks=2,
        nodes=1,
        operation="allreduce",
        sizes_bytes=(4096, 64 * MIB),
        seconds=(1e-4, seconds),
        cpu_seconds=(0.0, 0.0),
        error=0.05,
    )
    return Cluster(name="this machine", nodes=1, slots_per_node=4, cores_per_node=8, costs=(costs,))


@pytest.mark.parametrize(("seen", "kind"), [({"device": "gpu"}, "gpu"), ({"device": "cpu"}, "cpu"), ({}, "cpu")])
def test_the_profile_is_of_the_device_that_was_surveyed(seen: dict[str, str], kind: str) -> None:
    assert profile_of_script("train.py", {(1, None): {**survey(1), **seen}}).kind == kind


def test_one_process_is_as_it_was_surveyed_with_its_input() -> None:
    profile = profile_of_script("python train.py", {(1, None): survey(1), (2, None): survey(2, forward_s=0.024)})
    (point,) = profile.points
    assert (point.batch, point.step_s, point.backward_s) == (64, 0.11, 0.06)
    assert point.forward_s == pytest.approx(0.04)
    assert [(each.copies, round(each.slowdown, 3)) for each in profile.crowds] == [(2, 1.2)]
    assert profile.workload.model == "python train.py"


def test_slow_links_cost_the_predicted_speedup() -> None:
    profile = profile_of_script("train.py", {(1, None): survey(1)})
    fast, slow = (
        map_of_script(profile, cluster(seconds), Knobs(engine="ddp"), (1, 2, 4)).cells for seconds in (0.01, 0.8)
    )
    assert [cell.np for cell in fast] == [1, 2, 4]
    assert fast[0].speedup == slow[0].speedup == 1.0
    assert fast[1].speedup > 1.5 > slow[1].speedup
    assert {cell.batch for cell in fast} == {64}


def test_several_batches_make_several_columns() -> None:
    profile = profile_of_script("train.py", {(1, 16): survey(1, step_s=0.05), (1, 64): survey(1)})
    cells = map_of_script(profile, cluster(0.01), Knobs(engine="ddp"), (1, 2)).cells
    assert {(cell.np, cell.batch) for cell in cells} == {(1, 16), (2, 16), (1, 64), (2, 64)}


def test_a_measured_cell_corrects_the_map() -> None:
    profile = profile_of_script("train.py", {(1, None): survey(1)})
    before = map_of_script(profile, cluster(0.01), Knobs(engine="ddp"), (1, 2, 4))
    run = Run(
        point=Point(engine="ddp", np=2, batch=None, threads_per_rank=1),
        folder="launches/1",
        wall_s=10.0,
        phases={},
        steps=50,
        warmup_steps=5,
        step_s=0.3,
        mean_step_s=0.3,
        throughput=400.0,
        samples_per_step=128.0,
        engine_seen="ddp",
        backend="gloo",
        source="optimizer",
        ranks=(),
    )
    measurement = Measurement(
        what="train.py",
        scaling=("weak",),
        created="",
        scalescope="",
        torch="",
        host="",
        cores=8,
        launcher={},
        binding="none",
        runs=(run,),
    )
    after = corrected_by(before, measurement)
    assert [(check.np, check.measured_s) for check in after.checks] == [(2, 0.3)]
    cells = {cell.np: cell for cell in after.cells}
    assert cells[2].verified
    assert cells[2].step_s == 0.3
    assert cells[4].step_s > next(cell.step_s for cell in before.cells if cell.np == 4)


def test_without_a_survey_of_one_process_there_is_no_map() -> None:
    with pytest.raises(WorkFailed, match="one process"):
        profile_of_script("train.py", {(2, None): survey(2)})
