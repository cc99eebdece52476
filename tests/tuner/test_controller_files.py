"""The files through which a search controls a training."""

import json
from pathlib import Path

import pytest

import scalescope
from scalescope.agent.search_files import FORMAT_VERSION, FileController
from scalescope.errors import UsageError
from scalescope.tuner.controller_files import ControllerFiles, TrainingEnded

HELLO = {"kind": "hello", "version": FORMAT_VERSION, "engine": "ddp", "world_size": 2, "fixed": {"a_knob": "why"}}


def test_directives_and_reports_arrive_at_the_other_end(tmp_path: Path) -> None:
    search, rank = ControllerFiles(tmp_path, lambda: False), FileController(str(tmp_path))
    assert rank.ask() is None
    assert search.send("warmup", steps=4) == 0
    assert search.send("sample", values={"bucket_cap_mb": 1.0}) == 1
    assert rank.ask() == {"id": 0, "kind": "warmup", "steps": 4}
    assert rank.ask() == {"id": 1, "kind": "sample", "values": {"bucket_cap_mb": 1.0}}
    rank.tell(HELLO)
    rank.tell({"kind": "sample", "id": 0, "step_ns": [1]})
    rank.tell({"kind": "sample", "id": 1, "step_ns": [2, 3], "fixed": {"a_knob": "why"}})
    assert search.hello().fixed == {"a_knob": "why"}
    found = search.sample(1)
    assert (found.step_ns, found.fixed) == ((2, 3), {"a_knob": "why"})


def test_a_training_that_ends_says_why_the_search_is_over(tmp_path: Path) -> None:
    search, rank = ControllerFiles(tmp_path, lambda: False), FileController(str(tmp_path))
    rank.tell({"kind": "end", "steps": 7, "problem": "no room"})
    with pytest.raises(TrainingEnded):
        search.sample(0)
    assert (search.steps, search.problem) == (7, "no room")


def test_a_line_that_was_torn_is_passed_over(tmp_path: Path) -> None:
    search, rank = ControllerFiles(tmp_path, lambda: True), FileController(str(tmp_path))
    rank.tell(HELLO)
    (report,) = tmp_path.iterdir()
    report.write_text(json.dumps(HELLO)[:20] + "\n" + json.dumps(HELLO) + "\n" + json.dumps(HELLO)[:20])
    assert search.hello().world_size == 2
    with pytest.raises(TrainingEnded):
        search.hello()


def test_ranks_of_a_newer_version_are_not_guessed_at(tmp_path: Path) -> None:
    FileController(str(tmp_path)).tell({**HELLO, "version": FORMAT_VERSION + 1})
    with pytest.raises(UsageError, match="upgrade"):
        ControllerFiles(tmp_path, lambda: False).hello()


def test_the_files_are_named_in_one_place() -> None:
    package = Path(scalescope.__file__).parent
    named = [path.name for path in package.rglob("*.py") if '"directive-' in path.read_text()]
    assert named == ["search_files.py"]
    assert [path.name for path in package.rglob("*.py") if '"reports.jsonl"' in path.read_text()] == named
