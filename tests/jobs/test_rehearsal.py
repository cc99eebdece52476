"""What a model's rehearsal in one process decides, and what is said about a launch itself."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from test_plan import MLP, cores, settled

from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs import launch as launching
from scalescope.jobs.launch import _notes, _shared_cores, rehearse
from scalescope.jobs.plan import Settings, points
from scalescope.records.job import Host
from scalescope.records.run import Point


class Rehearsal:
    """Stands in for the process that makes two steps; it takes two seconds."""

    def __init__(self) -> None:
        self.answer: tuple[int, str, str] | None = (0, 'noise\n{"step_s": 0.5}\n', "")
        self.now = 100.0
        self.words: tuple[str, ...] = ()
        self.options: dict[str, Any] = {}

    def run(self, words: tuple[str, ...], **options: Any) -> subprocess.CompletedProcess[str]:
        self.words, self.options = words, options
        self.now += 2.0
        if self.answer is None:
            raise subprocess.TimeoutExpired(words, options["timeout"])
        return subprocess.CompletedProcess(words, *self.answer)


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    made = Rehearsal()
    monkeypatch.setattr(subprocess, "run", made.run)
    monkeypatch.setattr(launching, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def settings_in(folder: Path, **request: Any) -> Settings:
    found: Settings = msgspec.structs.replace(settled(workload=MLP, **request), folder=str(folder))
    return found


def test_steps_fill_ten_seconds_of_the_largest_batch(tmp_path: Path, rehearsal: Rehearsal) -> None:
    settings = settings_in(tmp_path, np=(1, 2), batch=(16, 4), env={"A": "1"}, threads_per_rank=3, timeout_s=50.0)
    rehearsal.answer = (0, '{"step_s": 0.05}', "")  # 0.2 s for the batch of 16
    steps, seconds = rehearse(settings, points(settings))
    assert steps == 50
    # six points of two batches: each launch has the overhead twice
    assert seconds == pytest.approx(6 * 2 * 2.0 + 50 * 3 * (0.05 + 0.2))
    path = tmp_path / "rehearsal.json"
    assert rehearsal.words == (sys.executable, "-m", "scalescope.jobs.train_model", "--check", str(path))
    task = json.loads(path.read_text())
    assert (task["batch"], task["steps"]) == (4, 1)
    assert (rehearsal.options["env"]["A"], rehearsal.options["env"]["OMP_NUM_THREADS"]) == ("1", "3")
    assert (rehearsal.options["timeout"], rehearsal.options["cwd"]) == (50.0, None)


def test_what_a_model_prints_before_and_at_its_end_is_no_answer(tmp_path: Path, rehearsal: Rehearsal) -> None:
    settings = settings_in(tmp_path, np=(1,), batch=(8,))
    rehearsal.answer = (0, 'loading{"x": 1}\n{"step_s": 0.25}\nbye\n', "")
    assert rehearse(settings, points(settings))[0] == 40


@pytest.mark.parametrize(("step_s", "steps"), [(9.0, 20), (0.25, 40), (0.101, 99), (0.0001, 5000), (0.0, 5000)])
def test_there_are_neither_too_few_steps_nor_too_many(
    tmp_path: Path, rehearsal: Rehearsal, step_s: float, steps: int
) -> None:
    settings = settings_in(tmp_path, np=(1,), batch=(8,))
    rehearsal.answer = (0, json.dumps({"step_s": step_s}), "")
    assert rehearse(settings, points(settings))[0] == steps


def test_steps_that_were_asked_for_are_made(tmp_path: Path, rehearsal: Rehearsal) -> None:
    settings = msgspec.structs.replace(settings_in(tmp_path, np=(1,), batch=(8,), steps=7), cwd="/there")
    steps, seconds = rehearse(settings, points(settings))
    assert steps == 7
    assert seconds == pytest.approx(2 * (2 * 2.0 + 7 * 0.5))
    assert rehearsal.options["cwd"] == "/there"


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((2, "", "noise\nscalescope-usage: no model 'mlp': use cnn\nbye\n"), UsageError, "no model 'mlp': use cnn"),
        ((2, "", ""), UsageError, "mlp cannot be built"),
        ((-signal.SIGILL, "", ""), WorkFailed, "try --env ONEDNN_MAX_CPU_ISA=AVX512_CORE"),
        ((1, "", "Traceback\nValueError: x"), WorkFailed, "failed on its own:\nTraceback\nValueError: x"),
        ((1, "", ""), WorkFailed, "it ended with exit code 1"),
        (None, WorkFailed, "the model mlp made no step within 50 s in one process: give it longer with --timeout"),
    ],
)
def test_a_model_that_fails_in_one_process_is_refused_before_ranks_start(
    tmp_path: Path, rehearsal: Rehearsal, answer: tuple[int, str, str] | None, error: type[Exception], said: str
) -> None:
    settings = settings_in(tmp_path, np=(1,), timeout_s=50.0)
    rehearsal.answer = answer
    with pytest.raises(error) as told:
        rehearse(settings, points(settings))
    assert said in str(told.value)
    assert type(told.value) is error


def shared(np: int, settings: Settings) -> list[str]:
    return list(_shared_cores(settings, Point(engine="ddp", np=np, batch=8, threads_per_rank=1)))


def test_ranks_that_share_cores_trigger_a_warning() -> None:
    here = settled(physical=2, logical=8, workload=MLP, np=(1, 4))
    assert shared(2, here) == []
    (warning,) = shared(3, here)
    assert warning.startswith("3 ranks share 2 physical cores: hyperthreads are not full cores")
    assert warning.endswith("on 3 cores")
    assert shared(4, settled(gpus=4, physical=2, workload=MLP, np=(1, 4))) == []


def test_each_host_that_is_too_small_is_named_after_the_general_warnings() -> None:
    hosts, have = (Host("a", 3), Host("b", 3)), {"a": cores(2), "b": cores(1)}
    settings = settled(hosts_have=have, workload=MLP, np=(1, 6), hosts=hosts)
    settings = msgspec.structs.replace(settings, warnings=("c was silent",))
    found = shared(6, settings)
    assert found[0] == "c was silent"
    assert [warning.split(":")[0] for warning in found[1:]] == [
        "3 ranks share 2 physical cores of a",
        "3 ranks share 1 physical core of b",
    ]
    assert shared(2, settings) == ["c was silent"]


def test_restarts_and_harmless_crashes_are_warned_of_in_order(tmp_path: Path) -> None:
    job = SimpleNamespace(folder=str(tmp_path))
    settings = settled(workload=MLP, np=(1, 2))
    watch = SimpleNamespace(restarted=2)
    made: Any = SimpleNamespace(job=job, as_it_is="because", harmless="it crashed late", watch=watch)
    run: Any = SimpleNamespace(point=points(settings)[-1], source="optimizer")
    first, second, third = _notes(settings, made, run)
    assert (first, second) == ("because", "it crashed late")
    assert third.startswith("2 ranks had to be started again during the launch: steps of the last start count")
    quiet: Any = SimpleNamespace(job=job, as_it_is="", harmless="", watch=SimpleNamespace(restarted=0))
    assert list(_notes(settings, quiet, run)) == []
