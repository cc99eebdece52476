"""What a profile from stated step times takes over, and whose device it is of."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from scalescope import host
from scalescope.errors import UsageError
from scalescope.estimation import profile as profiling
from scalescope.estimation.profile import _is_outlying, _pooled, take_profile
from scalescope.estimation.profile_blocks import Block, Model, ProfileTask, file_of
from scalescope.estimation.step_time import device_of, known_times, profile_from_step_times, stated_warning
from scalescope.jobs.rank_program import RankProgram
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.records.request import EstimateRequest
from simulator.made import GIB, contention, described, gradients, point, profile

MLP = WorkloadSpec(model="mlp")


def known(**more: Any) -> ModelProfile:
    """Batches of 8 and 64, of which the larger takes eight times as long and twice the memory."""
    made: ModelProfile = profile(
        point(8, 2.0, 4.0, 1.0, (1.0, 4.0), noise=0.1, outlying=True, remade=3, foreign_cores=0.9),
        point(64, 16.0, 32.0, 8.0, (8.0, 32.0), noise=0.2, memory_bytes=2 * GIB),
        **{
            "gradients": gradients(1, 1),
            "crowds": (contention(2, 1.5),),
            "interpolation_error": 0.3,
            "too_large": 128,
            "seconds": 30.0,
            **more,
        },
    )
    return made


def stated(times_s: dict[int, float], on: str = "V100", **more: Any) -> ModelProfile:
    return profile_from_step_times(MLP, times_s, device=on, threads=3, given=known(**more))


def test_parts_are_scaled_to_the_time_that_is_stated() -> None:
    small, large = stated({64: 0.56, 8: 0.14}).points
    assert (small.batch, small.step_s, large.batch, large.step_s) == (8, 0.14, 64, 0.56)
    assert (small.forward_s, small.backward_s, small.optimizer_s) == pytest.approx((0.04, 0.08, 0.02))
    assert small.ready_s == pytest.approx((0.02, 0.08))
    assert large.ready_s == pytest.approx((0.08, 0.32))
    assert (small.memory_bytes, large.memory_bytes) == (GIB, 2 * GIB)


def test_a_stated_profile_keeps_nothing_that_was_measured_elsewhere() -> None:
    made = stated({8: 0.14}, launch_spread=0.02, ddp_s=0.1)
    assert (made.launch_spread, made.ddp_s) == (0.0, None)
    assert (made.device, made.hostname, made.threads_per_rank) == ("V100", "", 3)
    assert (made.interpolation_error, made.memory_limit_bytes, made.too_large, made.seconds) == (0.0, 0, None, 0.0)
    (only,) = made.points
    assert (only.error, only.cores_used, only.remade, only.outlying, only.foreign_cores) == (0.01, 3.0, 0, False, 0.0)


def test_noise_is_that_of_the_nearest_batch() -> None:
    for batch, noise in ((1, 0.1), (22, 0.1), (23, 0.2), (500, 0.2)):
        assert stated({batch: 1.0}).points[0].noise == noise


def test_contention_carries_over_from_a_cpu_to_a_cpu_only() -> None:
    assert stated({8: 1.0}, "cpu").crowds == (contention(2, 1.5),)
    assert stated({8: 1.0}, "V100").crowds == ()
    assert stated({8: 1.0}, "cpu", device="V100").crowds == ()


def test_the_device_is_the_clusters_or_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = EstimateRequest(workload=MLP)
    assert device_of(asked, described(device="gpu", gpu="H200")) == "H200"
    assert device_of(asked, described(device="gpu")) == "GPU"
    assert device_of(asked, described()) == "cpu"
    monkeypatch.setattr(host, "gpus", lambda: 2)
    assert device_of(asked, None) == "GPU"
    assert device_of(msgspec.structs.replace(asked, device="cpu"), None) == "cpu"
    monkeypatch.setattr(host, "gpus", lambda: 0)
    assert device_of(asked, None) == "cpu"


def test_stated_times_are_warned_about_with_their_source() -> None:
    asked = EstimateRequest(workload=MLP)
    assert stated_warning(asked) == ""
    told = msgspec.structs.replace(asked, step_time={8: 1.0})
    assert stated_warning(told).endswith("what a step consists of: counted on the model's layers")
    assert stated_warning(msgspec.structs.replace(told, profile="p.json")).endswith("consists of: p.json")


def test_times_are_read_in_every_form() -> None:
    assert known_times(0.5, (32,)) == {"step_time": {32: 0.5}}
    assert known_times("500ms", (32,)) == {"step_time": {32: 0.5}}
    assert known_times("8=1s", ()) == {"step_time": {8: 1.0}, "batch": (8,)}
    assert known_times({16: 2, 8: 2}, (4,)) == {"step_time": {8: 2.0, 16: 2.0}, "batch": (4,)}
    for text in ("0=1s", "-8=1s", "²=1s"):
        with pytest.raises(UsageError, match="--step-time takes one time, or BATCH=TIME"):
            known_times(text, ())


def test_a_profile_is_launched_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(
        names=["a"],
        bytes=[4],
        element_bytes=[4],
        buffers_bytes=[],
        torch="2",
        device="cpu",
        hostname="h",
        memory_limit_bytes=9,
    )
    block = Block(
        batch=8, copies=1, forward_s=[1.0], backward_s=[2.0], optimizer_s=[1.0], cpu_s=[4.0], ready_s={"0": 2.0}
    )
    programs: list[RankProgram] = []

    def run(program: RankProgram) -> None:
        programs.append(program)
        for rank in range(program.np):
            lines = [model, block] if rank == 0 else []
            (program.folder / file_of(rank)).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))

    monkeypatch.setattr(profiling, "run_ranks", run)
    task = ProfileTask(workload=MLP, batches=(8,), device="cpu", seconds=1.0, repeats=1, together=(2, 3))
    made = take_profile(task, threads_per_rank=2, folder=tmp_path, timeout_s=5.0, env={"A": "1"})
    assert [(each.batch, each.step_s) for each in made.points] == [(8, 4.0)]
    assert made.seconds >= 0
    (program,) = programs
    assert (program.np, program.threads_per_rank, program.timeout_s, program.knobs.engine) == (3, 2, 5.0, "ddp")
    assert program.env == {"A": "1"}
    alone = msgspec.structs.replace(task, together=())
    take_profile(alone, threads_per_rank=2, folder=tmp_path)
    assert (programs[1].np, programs[1].timeout_s) == (1, 600.0)


def test_a_point_is_outlying_above_a_twentieth_when_the_others_agree_without_it() -> None:
    line = {8: 0.8, 16: 1.6, 32: 3.2, 64: 6.4}
    assert not _is_outlying(16, line)
    assert _is_outlying(16, {**line, 16: 1.6 * 1.051})
    assert not _is_outlying(16, {**line, 16: 1.6 * 1.049})
    assert not _is_outlying(8, {**line, 8: 9.0}), "an end has no neighbours on both sides"
    assert not _is_outlying(16, {8: 0.8, 16: 3.0, 32: 3.2}), "nothing is left to agree"
    # Without it the others miss by a fifth: it may be they that are wrong.
    assert not _is_outlying(16, {8: 0.8, 16: 1.6 * 1.3, 32: 3.2 * 1.2, 64: 6.4})


def test_uncertain_contention_is_pooled_towards_the_mean() -> None:
    assert _pooled([(1.5, 0.1)], (1.5, 0.1)) == pytest.approx((1.5, 0.1)), "nobody else is there"
    # An error as large as the differences between batches: half its own, half the mean, in logarithms.
    slowdown, error = _pooled([(1.0, 0.04), (2.25, 0.04)], (1.0, 0.04))
    assert slowdown == pytest.approx(2.25**0.25)
    assert error == pytest.approx(0.04 * 0.75**0.5)
    assert _pooled([(1.0, 0.0), (2.0, 0.0)], (1.0, 0.0)) == (1.0, 0.0)
