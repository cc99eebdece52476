"""An estimate from its request to its files; a profile, a probe and launches are played."""

import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from scalescope import host
from scalescope.engines import find_engine
from scalescope.errors import UsageError
from scalescope.estimation import estimate as estimating
from scalescope.estimation import places
from scalescope.estimation.estimate import checked, dry_run, estimate
from scalescope.estimation.profile_blocks import ProfileTask, Sharding
from scalescope.estimation.script import dry_run_script
from scalescope.jobs.interpreter import torch_version
from scalescope.jobs.rank_program import starting_s
from scalescope.records.cluster import Cluster
from scalescope.records.cluster_file import load_cluster, write_cluster
from scalescope.records.prediction import Calibration, Check, Prediction, Residual
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.records.request import EstimatePlan, EstimateRequest, Fingerprint, ProbeRequest
from scalescope.records.store import append, load, load_lines, save
from simulator.made import described, point, profile, proportional
from told import Told

MLP = WorkloadSpec(model="mlp")
HERE = Fingerprint(host="here", cpu="", cores=4, gpus=(), python="3", torch="2")


class Machine:
    """Four slots on four cores, or more; what would be profiled and probed is noted."""

    def __init__(self) -> None:
        self.cores, self.logical, self.gpus = 4, 4, 0
        self.profile: ModelProfile = proportional(8, 128)
        self.cluster: Cluster = described(slots=4)
        self.tasks: list[ProfileTask] = []
        self.options: list[dict[str, Any]] = []
        self.probes: list[ProbeRequest] = []
        self.operations: list[Sequence[str]] = []

    def take_profile(self, task: ProfileTask, **options: Any) -> ModelProfile:
        self.tasks.append(task)
        self.options.append(options)
        return self.profile

    def probe_cluster(self, asked: ProbeRequest, progress: Any, operations: Sequence[str]) -> Cluster:
        self.probes.append(asked)
        self.operations.append(operations)
        return self.cluster


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(estimating, "take_profile", made.take_profile)
    monkeypatch.setattr(places, "probe_cluster", made.probe_cluster)
    monkeypatch.setattr(host, "cores", lambda: SimpleNamespace(physical=made.cores, logical=made.logical))
    monkeypatch.setattr(host, "gpus", lambda: made.gpus)
    monkeypatch.setattr(estimating, "fingerprint_here", lambda *_: HERE)
    monkeypatch.setattr(estimating, "end_orphans", lambda *_: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def request(at: Path, **more: Any) -> EstimateRequest:
    given = {"np": (1, 2, 4), "batch": (8, 16), "folder": str(at / "out"), "seconds": 20.0, **more}
    return EstimateRequest(workload=given.pop("workload", MLP), **given)


def test_variables_of_ranks_hold_in_the_profile_and_the_probe_and_stay_off_the_plan(
    tmp_path: Path, machine: Machine
) -> None:
    estimate(request(tmp_path, env={"A": "secret"}), Told())
    assert machine.options[0]["env"] == machine.probes[0].env == {"A": "secret"}
    assert "secret" not in (tmp_path / "out" / "plan.json").read_text()


def test_what_shards_is_profiled_sharded_and_its_collectives_are_probed(tmp_path: Path, machine: Machine) -> None:
    made = estimate(request(tmp_path, engine="fsdp2"), Told())
    assert machine.tasks[0].sharding == Sharding(live_module=find_engine("fsdp2").live_module, ranks=(2, 4))
    assert machine.operations == [("allgather", "reducescatter")]
    memory = {cell.np: cell.memory_bytes for cell in made.cells if cell.batch == 8}
    assert memory[4] < memory[2] < memory[1]


def test_a_machine_is_profiled_probed_and_mapped_and_every_part_is_kept(tmp_path: Path, machine: Machine) -> None:
    told = Told()
    made = estimate(request(tmp_path), told)
    folder = made.folder
    assert folder
    assert [(cell.np, cell.batch) for cell in made.cells] == [(np, batch) for batch in (8, 16) for np in (1, 2, 4)]
    assert load(folder / "profile.json", ModelProfile) == machine.profile
    assert load_cluster(folder / "cluster.toml").slots == 4
    assert load(folder / "estimate.json", Prediction) == made
    assert (folder / "step.json").exists()
    assert load(folder / "plan.json", EstimatePlan).finished
    assert told.stages == [("profile of mlp on one process", 20.0 + 3 * starting_s(4), None)]
    assert told.notes == []


def test_a_profile_is_taken_of_each_batch_alone_and_with_others(tmp_path: Path, machine: Machine) -> None:
    estimate(request(tmp_path, repeats=5, timeout_s=77.0), Told())
    (task,) = machine.tasks
    assert (task.batches, task.together, task.repeats) == ((8, 16), (2, 4), 2)
    assert (task.launches, task.seconds) == (3, pytest.approx(20 / 3))
    assert machine.options[0]["threads_per_rank"] == 1
    assert machine.options[0]["timeout_s"] == 77.0
    assert machine.options[0]["folder"] == tmp_path / "out" / "profile"


@pytest.mark.parametrize(
    ("more", "logical", "together"),
    [
        ({"np": (1,)}, 4, ()),
        ({"np": (1, 2)}, 4, (2,)),
        ({"np": (3,)}, 4, (2, 3)),
        ({"np": (6,)}, 8, (2, 4, 6)),
        ({"np": (1, 2, 4)}, 4, (2, 4)),
    ],
)
def test_as_many_ranks_step_together_as_the_map_has(
    tmp_path: Path, machine: Machine, more: dict[str, Any], logical: int, together: tuple[int, ...]
) -> None:
    machine.logical, machine.cluster = logical, described(slots=logical)
    estimate(request(tmp_path, **more), Told())
    assert machine.tasks[0].together == together


def test_a_strong_speedup_divides_the_batch_and_passes_divide_it_again(tmp_path: Path, machine: Machine) -> None:
    several = msgspec.structs.replace(MLP, accumulate=3)
    estimate(request(tmp_path, np=(1, 4), batch=(10,), scaling=("strong",), workload=several), Told())
    assert machine.tasks[0].batches == (1, 4), "10 and 3 samples in three passes"
    assert machine.tasks[0].workload.accumulate == 1
    with pytest.raises(UsageError, match="--accumulate 30 is more than the samples of any batch"):
        estimate(
            request(tmp_path, folder=str(tmp_path / "b"), workload=msgspec.structs.replace(MLP, accumulate=30)), Told()
        )


def test_a_machine_is_probed_as_far_as_the_question_needs_it(tmp_path: Path, machine: Machine) -> None:
    estimate(request(tmp_path, np=(1, 2), seconds=20.0), Told())
    (asked,) = machine.probes
    assert (asked.backends, asked.slots, asked.threads_per_rank, asked.device) == (("gloo",), 2, 2, "cpu")
    assert (asked.seconds, asked.folder) == (8.0, str(tmp_path / "out" / "probe"))
    estimate(request(tmp_path, np=(1,), seconds=60.0, folder=str(tmp_path / "one")), Told())
    assert (machine.probes[1].backends, machine.probes[1].seconds, machine.probes[1].slots) == ((), 8.0, 1)


def test_finished_parts_of_an_interrupted_estimate_are_used_again(tmp_path: Path, machine: Machine) -> None:
    asked = request(tmp_path)
    made = estimate(asked, Told())
    folder = made.folder
    assert folder
    plan = load(folder / "plan.json", EstimatePlan)
    assert (plan.request.folder, plan.request.timeout_s) == ("", 0.0)
    save(msgspec.structs.replace(plan, finished=False), folder / "plan.json")
    told = Told()
    again = estimate(msgspec.structs.replace(asked, timeout_s=1.0), told)
    assert (again.folder, again) == (folder, made)
    assert told.notes == [f"Continuing the interrupted estimate in {folder}: what it finished is used again."]
    assert (len(machine.tasks), len(machine.probes)) == (1, 1)


def test_blocks_that_were_measured_again_are_noted(tmp_path: Path, machine: Machine) -> None:
    machine.profile = profile(point(8, remade=2), point(16, remade=1))
    told = Told()
    estimate(request(tmp_path), told)
    assert told.notes == ["Profile: 3 blocks of steps measured again, other programs were busy."]


def test_earlier_checks_count_here_and_not_on_a_cluster_that_is_described(tmp_path: Path, machine: Machine) -> None:
    cache = tmp_path / "cache" / "scalescope" / "residuals-v2.jsonl"
    kept: Any = {"hostname": platform.node(), "engine": "ddp", "model": "mlp"}
    append(Residual(**kept, checks=1, log_error=0.2, seconds_since_epoch=0.0), cache)
    made = estimate(request(tmp_path), Told())
    assert made.calibration is not None
    file = tmp_path / "cluster.toml"
    write_cluster(machine.cluster, file)
    other = estimate(request(tmp_path, cluster=str(file), folder=str(tmp_path / "other")), Told())
    assert other.calibration is None
    assert len(machine.probes) == 1


def test_a_profile_with_more_threads_than_cores_is_warned_about(tmp_path: Path, machine: Machine) -> None:
    said = "the profile used 5 threads on 4 cores: take it on a machine like the cluster's"
    assert said in estimate(request(tmp_path, threads_per_rank=5), Told()).warnings
    enough = estimate(request(tmp_path, threads_per_rank=4, folder=str(tmp_path / "b")), Told())
    assert not any("threads" in warning for warning in enough.warnings)
    machine.profile = msgspec.structs.replace(machine.profile, device="NVIDIA H200")
    machine.cluster, machine.gpus = described(slots=4, device="gpu"), 4
    on_gpu = request(tmp_path, threads_per_rank=5, folder=str(tmp_path / "c"))
    assert said not in estimate(on_gpu, Told()).warnings


def test_a_dry_run_lists_the_parts_of_an_estimate(tmp_path: Path, machine: Machine) -> None:
    asked = request(tmp_path)
    lines = ["profile of mlp: taken here, 20 s, 1 threads", "cluster: this machine, probed"]
    lines.append("map: ddp on 3 numbers of processes x 2 batch sizes")
    assert dry_run(asked) == lines
    verified = msgspec.structs.replace(asked, verify=2)
    assert dry_run(verified) == [*lines, "verified: 2 cells, 3 launches each on this machine"]
    save(proportional(8, 16, torch=torch_version()), tmp_path / "p.json")
    kept = str(tmp_path / "p.json")
    assert dry_run(msgspec.structs.replace(asked, profile=kept))[0] == f"profile of mlp: {kept}"
    known = dry_run(msgspec.structs.replace(asked, step_time={8: 0.02, 16: 0.03}))
    assert known[0] == "profile of mlp: by --step-time"
    assert machine.tasks == []


def test_a_dry_run_of_a_script_lists_its_runs_and_refuses_a_check_without_a_size_to_launch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    asked = EstimateRequest(command=(sys.executable, str(tmp_path / "train.py")), np=(1, 2, 4), verify=2)
    lines = dry_run_script(asked)
    assert lines[0].startswith("as rank 0 of 1: ")
    assert {"map: 3 numbers of processes", "verified: 2 cells, 3 launches each"} < {*lines}
    with pytest.raises(UsageError, match="--verify needs a size of 2 or more processes"):
        dry_run_script(msgspec.structs.replace(asked, np=(1,)))


def numbers(tmp_path: Path, slots: int, nodes: int = 1, **more: Any) -> list[str]:
    file = tmp_path / "cluster.toml"
    write_cluster(described(slots=slots, nodes=nodes), file)
    return dry_run(request(tmp_path, cluster=str(file), **more))


def test_without_np_every_number_of_processes_is_shown_up_to_64_and_then_doublings(tmp_path: Path) -> None:
    assert "on 8 numbers" in numbers(tmp_path, 8, np=())[-1]
    assert "on 64 numbers" in numbers(tmp_path, 8, 8, np=())[-1]
    assert "on 8 numbers" in numbers(tmp_path, 65, np=())[-1]
    assert "on 4 numbers" in dry_run(request(tmp_path, np=()))[-1]


def test_more_processes_than_slots_are_refused(tmp_path: Path) -> None:
    assert numbers(tmp_path, 8, np=(8,))
    with pytest.raises(UsageError, match=r"--np 9 is more than the 8 slots of .*toml: lower it"):
        numbers(tmp_path, 8, np=(2, 9, 3))
    with pytest.raises(UsageError, match=r"--np 5 is more than the 4 slots of this machine: .* with --cluster"):
        dry_run(request(tmp_path, np=(5,)))


@pytest.mark.parametrize(
    ("slots", "cores", "more", "threads"),
    [(4, 16, {}, 4), (4, 3, {}, 1), (4, 16, {"threads_per_rank": 7}, 7), (3, 16, {"np": (1,)}, 5)],
)
def test_ranks_have_the_threads_of_the_clusters_cores(
    tmp_path: Path, slots: int, cores: int, more: dict[str, Any], threads: int
) -> None:
    file = tmp_path / "cluster.toml"
    write_cluster(described(slots=slots, cores_per_node=cores), file)
    assert f", {threads} threads" in dry_run(request(tmp_path, cluster=str(file), **{"np": (1, 2), **more}))[0]


def test_ranks_share_the_cores_of_this_machine(tmp_path: Path, machine: Machine) -> None:
    machine.cores, machine.logical = 6, 12
    for most, threads in ((1, 6), (2, 3), (4, 1), (12, 1)):
        assert f", {threads} threads" in dry_run(request(tmp_path, np=(1, most)))[0]


def on_devices(tmp_path: Path, kind: str, **more: Any) -> EstimateRequest:
    """A request for a described cluster of such devices."""
    file = tmp_path / "cluster.toml"
    write_cluster(described(slots=4, device=kind), file)
    return request(tmp_path, cluster=str(file), **more)


@pytest.mark.parametrize(
    ("device", "gpus", "more", "said"),
    [
        ("gpu", 0, {}, "cluster.toml describes GPUs and the profile would be of this machine's CPU: .* --step-time"),
        ("gpu", 0, {"device": "cuda"}, "GPUs and the profile would be of this machine's CPU"),
        (
            "gpu",
            2,
            {"device": "cpu"},
            "would be of this machine's CPU: profile its GPU, --device auto",
        ),
        ("cpu", 2, {}, "describes CPUs and the profile would be of this machine's GPU: profile its CPU, --device cpu"),
    ],
)
def test_a_profile_of_another_kind_of_device_than_the_clusters_is_not_taken(
    tmp_path: Path, machine: Machine, device: str, gpus: int, more: dict[str, Any], said: str
) -> None:
    machine.gpus = gpus
    asked = on_devices(tmp_path, device, **more)
    for verb in (dry_run, lambda request: estimate(request, Told())):
        with pytest.raises(UsageError, match=said):
            verb(asked)
    assert machine.tasks == []
    assert not Path(asked.folder).exists()


@pytest.mark.parametrize(("device", "profiled"), [("gpu", "cpu"), ("cpu", "NVIDIA H200")])
def test_a_profile_file_of_another_kind_of_device_than_the_clusters_is_refused(
    tmp_path: Path, device: str, profiled: str
) -> None:
    file = tmp_path / "profile.json"
    save(proportional(8, 16, device=profiled, torch=torch_version()), file)
    asked = on_devices(tmp_path, device, profile=str(file))
    with pytest.raises(UsageError, match=rf"profile.json is of a .PU: .* one {device.upper()}"):
        estimate(asked, Told())
    assert not Path(asked.folder).exists()
    made = estimate(msgspec.structs.replace(asked, step_time={8: 0.02, 16: 0.04}), Told())
    assert made.cells[0].step_s == pytest.approx(0.02)


@pytest.mark.parametrize(("device", "profiled"), [("cpu", "cpu"), ("gpu", "NVIDIA H200")])
def test_a_profile_file_of_the_clusters_kind_of_device_is_used(
    tmp_path: Path, machine: Machine, device: str, profiled: str
) -> None:
    file = tmp_path / "profile.json"
    save(proportional(8, 16, device=profiled, torch=torch_version()), file)
    made = estimate(on_devices(tmp_path, device, profile=str(file)), Told())
    assert made.trusted
    assert machine.tasks == []


def test_a_gpus_profile_needs_a_cluster_where_no_gpu_is(tmp_path: Path, machine: Machine) -> None:
    file = tmp_path / "profile.json"
    save(proportional(8, 16, device="NVIDIA H200", torch=torch_version()), file)
    with pytest.raises(UsageError, match=r"profile.json is of a GPU and this machine has none: .* --cluster"):
        estimate(request(tmp_path, profile=str(file)), Told())
    assert machine.probes == []


def test_one_process_alone_is_no_engine_to_estimate(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--engine takes ddp, horovod or fsdp2: one process alone is the baseline"):
        dry_run(request(tmp_path, engine="none"))
    with pytest.raises(UsageError, match="did you mean horovod"):
        dry_run(request(tmp_path, engine="horovood"))


def ran(monkeypatch: pytest.MonkeyPatch, prediction: Prediction, measured: float, **how: Any) -> None:
    cell = next(cell for cell in prediction.cells if cell.np == 2)
    checks = (Check.of(cell, [measured * cell.step_s], **how),)
    monkeypatch.setattr(estimating, "run_checks", lambda *_: checks)


def test_checks_correct_the_map_and_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(tmp_path, verify=1)
    plain = estimate(msgspec.structs.replace(asked, verify=0, folder=str(tmp_path / "plain")), Told())
    ran(monkeypatch, plain, 1.1)
    told = Told()
    made = estimate(asked, told)
    assert plain.recommended
    assert told.notes == [
        f"Before its checks the map recommends 4 processes with batch 16: {plain.recommended.speedup:.2f}x."
    ]
    assert len(made.checks) == 1
    assert made.correction > 1
    (kept,) = load_lines(tmp_path / "cache" / "scalescope" / "residuals-v2.jsonl", Residual)
    assert (kept.engine, kept.model, kept.checks) == ("ddp", "mlp", 1)
    assert kept.log_error == pytest.approx(0.0953, rel=1e-3)


def test_a_map_that_is_not_trusted_teaches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache" / "scalescope" / "residuals-v2.jsonl"
    plain = estimate(request(tmp_path), Told())
    ran(monkeypatch, plain, 1.1)
    rest: Any = (proportional(8, 128), 1, described(slots=4), tmp_path, Told())
    doubted = checked(request(tmp_path), msgspec.structs.replace(plain, doubts=("busy",)), *rest)
    assert not cache.exists()
    assert doubted.doubts == ("busy",)
    known = Calibration(estimates=1, factor=1.1, spread=0.1, mean_error=0.1)
    checked(request(tmp_path), msgspec.structs.replace(plain, calibration=known), *rest)
    (kept,) = load_lines(cache, Residual)
    assert kept.log_error == pytest.approx(2 * 0.0953, rel=1e-3), "over what was predicted without the factor"
