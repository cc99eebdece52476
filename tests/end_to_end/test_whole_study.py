"""Whole studies: of a model, killed in the middle and resumed; of unchanged DDP and Horovod scripts; refusals."""

import json
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from command_line import CommandLine
from scalescope.records.prediction import Prediction
from scalescope.records.run import Measurement
from scalescope.records.store import load
from scalescope.records.study import STUDY, Study
from scalescope.studies.results import read_results

pytestmark = pytest.mark.timeout(900)  # On busy cores a study takes longer than its budget

STUDIED = ("study", "mlp", "--np", "1,2", "--batch", "8,16", "--engine", "ddp", "--steps", "12", "-o", "out")


class Resumed(NamedTuple):
    """A study that was killed in its measurement, and the same one resumed."""

    line: CommandLine
    killed: Study
    finished_before: dict[str, float]  # When files of finished parts were written last
    runs_before: bytes
    document: dict[str, Any]
    said: str


@pytest.fixture(scope="module")
def resumed(tmp_path_factory) -> Resumed:
    line = CommandLine(tmp_path_factory.mktemp("study"))
    folder = line.folder / "out"
    words = line.words(*STUDIED, "--budget", "10s", pictures=True)
    running = subprocess.Popen(words, cwd=line.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    runs, deadline = folder / "measure" / "runs.jsonl", time.monotonic() + 600
    while not runs.exists() or not runs.read_bytes().count(b"\n"):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running.send_signal(signal.SIGKILL)
    running.wait()
    killed, before = load(folder / STUDY, Study), runs.read_bytes()
    written = {name: (folder / "estimate" / name).stat().st_mtime for name in ("profile.json", "cluster.toml")}
    done = line("study", "--resume", "out", "--budget", "10s", "--json", timeout=900, pictures=True)
    return Resumed(line, killed, written, before, json.loads(done.stdout), done.stderr)


def test_a_killed_study_keeps_finished_parts_and_does_not_repeat_them(resumed: Resumed) -> None:
    folder = resumed.line.folder / "out"
    assert resumed.killed.part("estimate").state == "done"
    assert resumed.killed.part("measure").state == "running"
    assert {name: (folder / "estimate" / name).stat().st_mtime for name in resumed.finished_before} == (
        resumed.finished_before
    )
    assert (folder / "measure" / "runs.jsonl").read_bytes().startswith(resumed.runs_before)
    assert resumed.line.processes() == []


def test_a_resumed_study_ends_with_every_part_the_answer_and_the_page(resumed: Resumed) -> None:
    parts = {part["name"]: part for part in resumed.document["parts"]}
    assert list(parts) == ["estimate", "measure", "explain", "tune", "check", "refine", "strong", "engines"]
    assert parts["estimate"]["state"] == parts["measure"]["state"] == "done"
    assert all(part["state"] == "done" or part["why"] for part in parts.values())
    answer = resumed.document["answer"]["sentence"]
    assert answer.startswith("Use ") or ("Not certain: " in answer and " So far " in answer), "tests disturb each other"
    assert {point["np"] for point in resumed.document["measure"]["points"]} == {1, 2}
    assert {cell["batch"] for cell in resumed.document["estimate"]["cells"]} == {8, 16}
    assert resumed.document["left_out"]  # Horovod, or more launches of every point, are more than this budget holds
    page = Path(resumed.document["page"]).read_text()
    assert resumed.document["left_out"][0].split(":")[0] in page
    assert ('data-figure="map' in page) == resumed.document["estimate"]["trusted"], "an untrusted map is one line"


def test_the_answer_of_a_study_fits_a_screen_and_opens_its_page(resumed: Resumed) -> None:
    ending = resumed.said[resumed.said.index(resumed.document["answer"]["sentence"]) :]
    assert len(ending.strip().splitlines()) <= 20
    assert "Page: out/report.html" in ending
    assert "Next: scalescope " in ending
    shown = resumed.line("report", "out", "--json", "-o", "again.html", pictures=True)
    (told,) = json.loads(shown.stdout)["results"]
    assert told["answer"] == resumed.document["answer"]["sentence"]
    assert told["why"] == resumed.document["answer"]["why"]


def test_a_study_is_not_begun_twice_and_not_resumed_as_another(resumed: Resumed) -> None:
    line = resumed.line
    again = line(*STUDIED, code=2)
    assert "already holds a study" in again.stderr
    assert "--resume" in again.stderr
    assert "leave the MODEL out" in line("study", "cnn", "--resume", "out", code=2).stderr
    assert "leave --np out" in line("study", "--resume", "out", "--np", "2", code=2).stderr


def test_an_unchanged_script_gets_its_map_from_its_own_steps(scalescope, scripts) -> None:
    """Of Horovod where it is installed: a study does the same with a script of any engine that it can map."""
    words = ("--launcher", "horovodrun") if find_spec("horovod") else ()
    script = scripts / ("hvd.py" if words else "ddp.py")
    command = ("--", sys.executable, str(script))
    done = scalescope("study", "--budget", "10s", "-o", "out", "--json", *words, *command, timeout=900, pictures=True)
    document = json.loads(done.stdout)
    states = {part["name"]: part["state"] for part in document["parts"]}
    assert (states["estimate"], states["measure"]) == ("done", "done")
    prediction = load(scalescope.folder / "out" / "estimate" / "estimate.json", Prediction)
    assert {cell.batch for cell in prediction.cells} == {8}
    assert [check.np for check in prediction.checks] == [2]
    measured = load(scalescope.folder / "out" / "measure" / "measurement.json", Measurement)
    assert {run.engine_seen for run in measured.runs if run.point.np == 2} == {prediction.engine}
    engines = {run.point.np: run.engine_seen for run in measured.runs}
    answer = document["answer"]
    seen = engines.get(answer["np"])  # None: neither is known to be faster
    assert answer["engine"] == seen or (answer["np"], answer["engine"]) == (1, "none")
    assert scalescope.processes() == []
    (results,) = read_results([scalescope.folder / "out"])
    assert {"prediction", "scaling"} <= results.kinds


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name one thing to study"),
        (("nonsense",), "nonsense"),
        (("mlp", "--engine", "none"), "--engine takes ddp, horovod or fsdp2"),
        (("mlp", "--np", "1"), "a study needs 2 or more processes"),
        (("mlp", "--budget", "2s"), "--budget 2s is too short"),
        (("--resume", "nowhere"), "holds no study to resume"),
        (("--resume",), "--resume takes the folder to resume"),
        (("--", "python-that-is-not-there", "train.py"), "python-that-is-not-there"),
    ],
)
def test_what_cannot_be_studied_is_refused_before_anything_is_launched(words, said: str, scalescope) -> None:
    done = scalescope.in_this_process("study", *words, code=2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(scalescope.folder.iterdir())
