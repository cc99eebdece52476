"""The program that ranks of a MODEL run, in this process."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from scalescope.engines import plain_live
from scalescope.errors import UsageError
from scalescope.jobs import train_model
from scalescope.jobs.interleaved import Interleaved
from scalescope.jobs.train_model import TrainingTask, check, device_named, main, moved
from scalescope.records.profile import WorkloadSpec

MLP = WorkloadSpec(model="mlp", model_args={"width": 8, "depth": 1})


def task(folder: Path, **changes: Any) -> Path:
    """A file with a task."""
    fields: dict[str, Any] = {"workload": MLP, "engine": "none", "knobs": {}, "batch": 4, "steps": 3, "device": "cpu"}
    path = folder / "task.json"
    path.write_bytes(msgspec.json.encode(TrainingTask(**{**fields, **changes})))
    return path


class Steps:
    """Counts optimizer steps, and what an engine is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.calls: list[object] = []
        monkeypatch.setattr(plain_live, "wrap", self.wrap)
        monkeypatch.setattr(plain_live, "finish", lambda: self.calls.append("finish"))

    def wrap(self, model: Any, make_optimizer: Any, knobs: Any, passes: int) -> tuple[Any, Any]:
        self.calls.append(passes)
        optimizer = make_optimizer(model.parameters())
        optimizer.register_step_post_hook(self._note)
        return model, optimizer

    def _note(self, *_: object) -> None:
        self.count += 1


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def test_a_rank_trains_the_steps_of_its_task(tmp_path: Path, steps: Steps) -> None:
    workload = msgspec.structs.replace(MLP, accumulate=2)
    assert main([str(task(tmp_path, workload=workload))]) == 0
    assert (steps.count, steps.calls) == (3, [2, "finish"])


def test_an_interleaved_rank_writes_blocks_into_its_folder(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def turns(together: Any, alone: Any, live: Any, peers: Any, rank: int, plan: Any, folder: Path) -> None:
        together()
        for _ in range(2):
            alone()
        seen.extend((live, rank, plan.precision, folder, steps.count))

    monkeypatch.setattr(train_model, "run_interleaved", turns)
    monkeypatch.setattr(train_model, "Peers", lambda *_: None)
    path = task(tmp_path, interleaved=Interleaved(precision=0.1))
    assert main([str(path)]) == 0
    assert seen == [plain_live, 0, 0.1, tmp_path, 1]
    assert steps.calls == [1, "finish"]


def test_a_check_makes_two_steps_and_prints_the_time_of_the_second(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([0.0, 100.0, 200.0, 203.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))
    assert main(["--check", str(task(tmp_path))]) == 0
    assert json.loads(capsys.readouterr().out) == {"step_s": 3.0}
    assert next(readings, None) is None


def test_an_error_is_one_line_and_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = task(tmp_path, workload=WorkloadSpec(model="mlpp"))
    assert main(["--check", str(path)]) == UsageError.exit_code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "mlpp" in shown.err
    refused = task(tmp_path, workload=msgspec.structs.replace(MLP, accumulate=8))
    with pytest.raises(UsageError):
        check(msgspec.json.decode(refused.read_bytes(), type=TrainingTask))


class Cuda:
    """A torch with two GPUs, or with none."""

    def __init__(self, patch: pytest.MonkeyPatch, gpus: int) -> None:
        self.current = 0
        patch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        patch.setattr(torch.cuda, "device_count", lambda: gpus)
        patch.setattr(torch.cuda, "current_device", lambda: self.current)
        patch.setattr(torch.cuda, "set_device", self._set)

    def _set(self, number: int) -> None:
        self.current = number


def test_auto_takes_the_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    Cuda(monkeypatch, 0)
    assert device_named("auto") == device_named("cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match="torch sees no GPU here: use --device cpu"):
        device_named("cuda")


@pytest.mark.parametrize(("local_rank", "number"), [(None, 0), ("1", 1), ("2", 0), ("3", 1)])
def test_ranks_share_the_gpus_of_their_host_in_turn(
    monkeypatch: pytest.MonkeyPatch, local_rank: str | None, number: int
) -> None:
    Cuda(monkeypatch, 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert device_named("auto") == device_named("cuda") == torch.device("cuda", number)
    assert device_named("cpu") == torch.device("cpu")


def test_tensors_are_moved_wherever_they_are() -> None:
    meta = torch.device("meta")
    found = moved([torch.zeros(2), (torch.zeros(1), "text"), 3], meta)
    assert isinstance(found, list)
    assert (found[0].device, found[1][0].device, found[1][1], found[2]) == (meta, meta, "text", 3)
    assert isinstance(found[1], tuple)


@pytest.mark.parametrize(("kind", "waits"), [("cuda", 1), ("cpu", 0)])
def test_only_a_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch, kind: str, waits: int) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("wait"))
    train_model._waited(lambda: order.append("step"), torch.device(kind))()
    assert order == ["step", *["wait"] * waits]
