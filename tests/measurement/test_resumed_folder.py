"""The folder of a measurement: begun, refused a second time, and resumed with new limits."""

import platform
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from measurement.made_sweeps import request
from measurement.observed import launch as observed
from scalescope.errors import UsageError
from scalescope.measurement.fingerprint import check_resume, fingerprint_here
from scalescope.measurement.resume import begin, plan_of, resume
from scalescope.records.job import Host
from scalescope.records.store import append, save


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(**more: Any) -> Path:
    with begin(request(**more)) as started:
        return started.folder


def test_a_fingerprint_is_of_this_machine_and_this_python() -> None:
    found = fingerprint_here((sys.executable, "train.py"), "cpu")
    assert found == fingerprint_here((), "cpu")
    assert (found.host, found.python, found.gpus) == (platform.node(), platform.python_version(), ())
    assert found.torch
    assert found.cores >= 1
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    assert found.cpu == (models[0] if models else "")


def test_a_new_measurement_has_a_plan_with_seed_folder_and_time(here: Path) -> None:
    before = time.time_ns()
    with begin(request(seed=None)) as started:
        plan = started.plan
        assert (started.folder, started.runs, plan.cwd) == (here / "out", (), str(here))
        assert plan_of(started.folder) == plan
    assert before <= plan.since_ns <= time.time_ns()
    assert plan.request.seed is not None
    assert plan.request.folder == str(here / "out")
    assert plan.fingerprint == fingerprint_here(plan.request.command, "cpu")
    assert plan_of(begun(seed=7, folder="other")).request.seed == 7
    with begin(request(folder=""), "explain") as unnamed:
        assert unnamed.folder.parent == here / "results"
        assert unnamed.folder.name.startswith("explain-")


def test_a_folder_with_a_measurement_is_refused_for_a_new_one(here: Path) -> None:
    folder = begun()
    assert begun() == folder, "nothing was measured in it"
    append(observed(), folder / "runs.jsonl")
    with pytest.raises(UsageError, match="out already holds a measurement: resume it with --resume, or choose another"):
        begun()
    (here / "copied").mkdir()
    (here / "copied" / "measurement.json").write_text("{}")
    with pytest.raises(UsageError, match="copied already holds a measurement"):
        begun(folder="copied")


def test_a_resumed_folder_has_its_runs_new_limits_and_its_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = begun(launches=3)
    append(observed(), folder / "runs.jsonl")
    with open(folder / "runs.jsonl", "a") as file:
        file.write('{"torn')
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    with resume(folder, {"budget_s": 60.0, "precision": 0.1}) as started:
        assert Path.cwd() == here
        assert started.runs == (observed(),)
        assert (started.plan.request.budget_s, started.plan.request.precision) == (60.0, 0.1)
        assert started.plan.request.launches is None, "a precision decides how many"
        assert plan_of(folder) == started.plan
    assert Path.cwd() == here / "elsewhere"
    assert (folder / "runs.jsonl").read_text().count("\n") == 1
    with resume(folder, {"precision": 0.1, "launches": 9}) as started:
        assert started.plan.request.launches == 9
    with resume(folder, {}) as started:
        assert (started.plan.request.launches, started.plan.notes) == (9, ())


def test_a_folder_that_cannot_be_resumed_is_refused(here: Path) -> None:
    with pytest.raises(UsageError, match="holds no measurement to resume: name the folder that was given with -o"):
        resume(here, {}).__enter__()
    folder = begun()
    save(msgspec.structs.replace(plan_of(folder), cwd=str(here / "gone")), folder / "plan.json")
    with pytest.raises(UsageError, match="gone, where the measurement was started, does not exist: create it"):
        resume(folder, {}).__enter__()


def test_a_plan_of_another_host_is_resumed_with_a_note_and_of_other_software_not(here: Path) -> None:
    folder = begun()
    plan = plan_of(folder)
    assert plan.fingerprint is not None
    there = msgspec.structs.replace(plan.fingerprint, host="there")
    save(msgspec.structs.replace(plan, fingerprint=there), folder / "plan.json")
    for _ in range(2):
        with resume(folder, {}) as started:
            (note,) = started.plan.notes
            assert note.startswith(f"started on host there and resumed on {platform.node()}, with the same CPU")
            assert started.plan.fingerprint == there
    save(msgspec.structs.replace(plan, fingerprint=msgspec.structs.replace(there, torch="0.1")), folder / "plan.json")
    with pytest.raises(UsageError, match=r"torch .* instead of 0\.1"):
        resume(folder, {}).__enter__()


def test_a_plan_without_a_fingerprint_gets_that_of_here(here: Path) -> None:
    assert check_resume(None, request(), here) == (fingerprint_here((), "cpu"), ())
    now = fingerprint_here((), "cpu")
    other = msgspec.structs.replace(now, cores=now.cores + 1)
    with pytest.raises(UsageError, match="cores"):
        check_resume(other, request(), here)
    assert check_resume(other, request(hosts=(Host("a", 2),)), here) == (other, ())
