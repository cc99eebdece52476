"""Maps from known step times: nothing is profiled."""

from pathlib import Path

import pytest

from command_line import CommandLine
from scalescope.errors import UsageError
from scalescope.estimation.estimate import dry_run, estimate, estimate_request
from scalescope.estimation.step_time import profile_from_step_times
from scalescope.progress import Progress
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.records.store import load, save
from simulator.made import gradients, point, profile

CLUSTER = "examples/clusters/dgx1-v100.toml"


def test_shares_are_counted_on_the_layers_and_the_time_is_the_one_given() -> None:
    made = profile_from_step_times(WorkloadSpec(model="mlp"), {32: 0.2, 64: 0.3}, device="V100", threads=1)
    assert [(each.batch, each.step_s) for each in made.points] == [(32, 0.2), (64, 0.3)]
    for each in made.points:
        assert each.forward_s + each.backward_s + each.optimizer_s == pytest.approx(each.step_s)
        assert each.ready_s[-1] == pytest.approx(each.backward_s)
    assert len(made.gradients) == 10
    assert (made.device, made.memory_limit_bytes) == ("V100", 0)


def test_shares_of_a_profile_are_used_instead() -> None:
    other = profile(point(8, 2.0, 4.0, 1.0), gradients=gradients(1, 1, 1, 1))
    made = profile_from_step_times(other.workload, {8: 0.07}, device="V100", threads=1, given=other)
    (only,) = made.points
    assert (only.forward_s, only.backward_s, only.optimizer_s) == pytest.approx((0.02, 0.04, 0.01))
    assert only.ready_s == pytest.approx((0.01, 0.02, 0.03, 0.04))
    assert made.gradients == other.gradients


def test_a_map_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    asked = estimate_request(
        model="mlp", step_time="20ms", batch="32", np="1,2,16", cluster=CLUSTER, folder=str(tmp_path / "out")
    )
    made = estimate(asked, Progress())
    folder = made.folder
    assert folder
    assert [cell.np for cell in made.cells] == [1, 2, 16]
    assert made.cells[0].step_s == pytest.approx(0.02)
    assert made.cells[0].step_s < made.cells[1].step_s < made.cells[2].step_s
    assert all(cell.fits for cell in made.cells)
    assert made.largest_batch is None
    assert made.own_s > 0
    assert any("given, not measured" in warning for warning in made.warnings)
    kept = load(folder / "profile.json", ModelProfile)
    assert kept.points[0].step_s == 0.02


def test_gpus_without_a_profile_of_one_take_step_times(tmp_path: Path) -> None:
    scalescope = CommandLine(tmp_path)
    cluster = str(Path(CLUSTER).absolute())
    words = ("estimate", "mlp", "--np", "1..2", "--batch", "1,2,4,8", "--cluster", cluster, "--formats", "html")
    refused = scalescope.in_this_process(*words, "-o", "out", code=2)
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert "dgx1-v100.toml describes GPUs" in refused.stderr
    assert "--step-time 32=20ms,64=30ms" in refused.stderr
    answer = scalescope.in_this_process(*words, "--step-time", "1=20ms,8=97ms", "-o", "out").stdout
    assert "mlp with ddp" in answer
    assert load(tmp_path / "out" / "profile.json", ModelProfile).points[-1].step_s == 0.097


def test_a_profile_of_another_torch_gives_its_shares(tmp_path: Path) -> None:
    old = profile(point(8), workload=WorkloadSpec(model="mlp"), torch="1.4.0")
    save(old, tmp_path / "profile.json")
    told = {"batch": "8", "np": "1,2", "cluster": CLUSTER, "profile": tmp_path / "profile.json"}
    with pytest.raises(UsageError, match=r"torch 1\.4\.0"):
        estimate(estimate_request(model="mlp", folder=str(tmp_path / "a"), **told), Progress())
    made = estimate(estimate_request(model="mlp", step_time="70ms", folder=str(tmp_path / "b"), **told), Progress())
    assert made.cells[0].step_s == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("step_time", "more", "said"),
    [
        ("97ms", {}, "add --batch 32"),
        ("97ms", {"batch": "32,64"}, "add --batch 32"),
        ("fast", {"batch": "32"}, "--step-time takes a time above 0"),
        ("x=97ms", {}, "BATCH=TIME for each such as 32=97ms,64=180ms, not 'x=97ms'"),
        ("97ms,64=180ms", {}, "--step-time takes NAME=VALUE, for example 32=97ms,64=180ms"),
        ("32=97ms,64=90ms", {}, "batch 64 takes less time than batch 32"),
        ("97ms", {"batch": "32", "verify": 2}, "--verify measures on this machine"),
    ],
)
def test_a_time_that_cannot_be_used_is_one_clear_line(step_time: str, more: dict, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        estimate_request(model="mlp", step_time=step_time, **more)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_batches_of_the_times_are_those_of_the_map_unless_others_are_asked_for() -> None:
    assert estimate_request(model="mlp", step_time="64=180ms,32=97ms").batch == (32, 64)
    asked = estimate_request(model="mlp", step_time={32: 0.097, 64: 0.18}, batch="16,32")
    assert (asked.batch, asked.step_time) == ((16, 32), {32: 0.097, 64: 0.18})
    assert dry_run(asked)[0] == "profile of mlp: by --step-time"
