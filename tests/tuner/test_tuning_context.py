"""`tuning()` and `apply_tuned` inside a script of one process, and the search that runs next to it."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scalescope.agent.search_files import REPORTS
from scalescope.errors import UsageError
from scalescope.records.files import PLAN
from scalescope.records.store import load, save
from scalescope.tuner import context
from scalescope.tuner.context import apply_tuned, search_for, tuning
from scalescope.tuner.journal import TunePlan
from scalescope.tuner.settings import write_settings
from told import Told
from tuner.made_launches import request
from tuner.made_ranks import HELLO


@pytest.fixture
def model(tmp_path: Path) -> Iterator[DistributedDataParallel]:
    """Wrapped, in a group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield DistributedDataParallel(torch.nn.Linear(8, 8))
    dist.destroy_process_group()


class Process:
    """Takes the place of the process of a search."""

    def __init__(self, hangs: bool = False) -> None:
        self._hangs = hangs
        self.happened: list[str] = []
        self.stdin = self

    def close(self) -> None:
        self.happened.append("input closed")

    def poll(self) -> int | None:
        return None

    def kill(self) -> None:
        self.happened.append("killed")

    def wait(self, timeout: float | None = None) -> int:
        self.happened.append(f"waited {timeout}")
        if self._hangs and timeout:
            raise subprocess.TimeoutExpired("search", timeout)
        return 0


def test_only_a_wrapped_model_is_tuned(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="takes the model that DistributedDataParallel made: wrap it first"),
        tuning(torch.nn.Linear(2, 2), folder=tmp_path / "out"),
    ):
        pass
    assert not (tmp_path / "out").exists()


def test_the_search_gets_a_plan_and_the_model_stays_as_it_was(
    model: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    process = Process()

    def popen(words: list[str], **more: Any) -> Process:
        begun.append(words)
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    with tuning(
        model, knobs={"gradient_as_bucket_view": True}, max_samples=5, steps_per_sample=6, folder=tmp_path / "out"
    ) as place:
        assert model.gradient_as_bucket_view
        assert process.happened == []
    assert place == tmp_path / "out"
    assert begun == [[sys.executable, "-m", "scalescope", "tune", "--join", str(place)]]
    asked = load(place / PLAN, TunePlan).request
    assert (asked.np, asked.engine, asked.knobs) == (1, "ddp", ("gradient_as_bucket_view=true",))
    assert (asked.max_samples, asked.steps_per_sample, asked.folder) == (5, 6, str(place))
    assert (place / "training").is_dir()
    assert process.happened == ["input closed", "waited 120.0"]
    last = json.loads((place / "training" / REPORTS).read_text().splitlines()[-1])
    assert last["kind"] == "end"


def test_a_folder_of_another_kind_is_refused_before_anything_is_tuned(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="did not write"), tuning(model, folder=tmp_path / "out"):
        pass
    with (
        pytest.raises(UsageError, match="both fixed and to be searched"),
        tuning(model, knobs={"gradient_as_bucket_view": True}, search=["gradient_as_bucket_view"]),
    ):
        pass


def test_a_search_that_cannot_begin_does_not_keep_the_body_from_training(
    model: DistributedDataParallel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def popen(words: list[str], **more: Any) -> Process:
        raise OSError("no process")

    monkeypatch.setattr(subprocess, "Popen", popen)
    trained = False
    with tuning(model, folder=tmp_path / "out"):
        trained = True
    assert trained
    assert "not tuned: no process; the training goes on as it is" in capfd.readouterr().err


def test_a_found_setting_is_given_to_a_wrapped_model(model: DistributedDataParallel, tmp_path: Path) -> None:
    write_settings(tmp_path, "ddp", {"gradient_as_bucket_view": True})
    assert not model.gradient_as_bucket_view
    apply_tuned(model, tmp_path)
    assert model.gradient_as_bucket_view


def test_a_setting_of_horovod_is_not_given_to_a_wrapped_model(tmp_path: Path) -> None:
    write_settings(tmp_path, "horovod", {"cycle_time_ms": 2.0})
    with pytest.raises(UsageError, match=r"is a setting of horovod: its variables are in the \.env file next to it"):
        apply_tuned(None, tmp_path)


def test_a_search_that_does_not_end_is_ended() -> None:
    patient, hanging = Process(), Process(hangs=True)
    context._finish(patient)  # type: ignore[arg-type]
    context._finish(hanging)  # type: ignore[arg-type]
    assert patient.happened == ["input closed", "waited 120.0"]
    assert hanging.happened == ["input closed", "waited 120.0", "killed", "waited None"]


@contextlib.contextmanager
def joined(folder: Path, monkeypatch: pytest.MonkeyPatch, *reports: dict[str, Any]) -> Iterator[None]:
    """A folder of `tuning`, whose rank 0 has said this and closed the input of the search."""
    monkeypatch.setattr(os, "read", lambda number, most: b"")
    (folder / context.TRAINING).mkdir()
    (folder / context.TRAINING / REPORTS).write_text("".join(json.dumps(each) + "\n" for each in reports))
    save(TunePlan(request=request(knobs=("static_graph=true",)), cwd=str(folder)), folder / PLAN)
    yield


def test_a_search_that_ranks_refuse_is_given_up_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with joined(tmp_path, monkeypatch, {"kind": "hello", **HELLO, "refused": "a hook"}):
        told = Told()
        assert search_for(tmp_path, told) is None
    assert told.notes == ["Not tuned: a hook; the training goes on as it was."]


def test_a_search_whose_training_ended_too_early_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        joined(tmp_path, monkeypatch, {"kind": "hello", **HELLO}, {"kind": "end", "steps": 4}),
        pytest.raises(UsageError, match="the training made 4 steps and the first sample needs 35"),
    ):
        search_for(tmp_path, Told())


def test_the_training_is_over_when_the_input_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    left, over = [b"some", b"more", b""], threading.Event()

    def read(number: int, most: int) -> bytes:
        assert not over.is_set()
        return left.pop(0)

    monkeypatch.setattr(os, "read", read)
    context._wait_for_the_end(over)
    assert over.is_set()
    assert left == []
