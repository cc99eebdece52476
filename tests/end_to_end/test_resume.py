"""Measurements that are interrupted, at any moment, and continued."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalescope.records.run import Measurement, Run
from scalescope.records.store import load, load_lines

STUDY = ("mlp", "--np", "1,2", "--batch", "4", "--steps", "8", "--launches", "1", "-o", "out")


def write_training(folder: Path) -> None:
    """A training of one process that takes no time."""
    (folder / "train.py").write_text(
        "import torch\nw = torch.zeros(2, requires_grad=True); o = torch.optim.SGD([w], lr=1)\n"
        "for _ in range(8): w.sum().backward(); o.step()\n"
    )


def launched_from(folder: Path) -> list[int]:
    """Processes that work for a measurement in this folder."""
    mark, found = f"SCALESCOPE_FOLDER={folder}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_killed_at_random_moments_nothing_finished_is_lost_or_repeated(scalescope) -> None:
    generator = random.Random()
    folder = scalescope.folder / "out"
    words, kept = scalescope.words("measure", *STUDY), b""
    for _ in range(3):
        process = subprocess.Popen(words, cwd=scalescope.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            process.wait(timeout=generator.uniform(1, 8))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        runs = folder / "runs.jsonl"
        lines = runs.read_bytes() if runs.exists() else b""
        complete = lines[: lines.rfind(b"\n") + 1]
        assert complete.startswith(kept)
        kept = complete
        words = scalescope.words("measure", "--resume" if (folder / "plan.json").exists() else STUDY[0], *(
            ["out"] if (folder / "plan.json").exists() else STUDY[1:]
        ))  # fmt: skip
        deadline = time.monotonic() + 30
        while launched_from(folder) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not launched_from(folder), "ranks outlived a SIGKILL"
    done = scalescope("measure", "--resume", "out", "--json")
    runs = load_lines(folder / "runs.jsonl", Run)
    made = [(run.round, run.point.label) for run in runs]
    assert len(made) == len(set(made)) == 3
    assert (folder / "runs.jsonl").read_bytes().startswith(kept)
    assert {run.point.threads_per_rank for run in runs} == {1}
    assert len({run.steps for run in runs}) == 1
    assert all(point["launches"] == 1 for point in json.loads(done.stdout)["points"])
    assert len(load(folder / "measurement.json", Measurement).runs) == 3


def test_a_torn_line_is_no_launch(scalescope) -> None:
    scalescope("measure", *STUDY[:-4], "--launches", "1", "-o", "out", "--np", "1")
    runs = scalescope.folder / "out" / "runs.jsonl"
    whole = runs.read_bytes()
    runs.write_bytes(whole[:-40])
    scalescope("measure", "--resume", "out")
    assert [run.round for run in load_lines(runs, Run)] == [1] * whole.count(b"\n")


def test_more_launches_can_be_added_later_and_from_five_on_there_is_an_interval(scalescope) -> None:
    write_training(scalescope.folder)
    first = scalescope("measure", "--np", "1", "-o", "out", "--json", "--", sys.executable, "train.py")
    assert json.loads(first.stdout)["points"][0]["interval"] == "range"
    done = json.loads(scalescope("measure", "--resume", "out", "--launches", "5", "--json").stdout)
    assert [(point["launches"], point["interval"]) for point in done["points"]] == [(5, "t")]
    again = scalescope("measure", "--resume", "out", "--json")
    assert len(json.loads(again.stdout)["launches"]) == 5


def test_after_ctrl_c_the_line_to_go_on_with_is_shown(scalescope) -> None:
    process = subprocess.Popen(
        scalescope.words("measure", "mlp", "--np", "1", "--steps", "100000", "-o", "out", "--launches", "1"),
        cwd=scalescope.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while not list(scalescope.folder.glob("out/launches/*/agent-*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"scalescope measure --resume {scalescope.folder / 'out'}" in said
    assert not launched_from(scalescope.folder / "out")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--resume", "nowhere"], "holds no measurement"),
        (["--resume", ".", "mlp"], "leave the MODEL"),
        (["--resume", ".", "--np", "2"], "leave --np out"),
        (["--resume", ".", "--dry-run"], "leave --dry-run out"),
        (["mlp", "--precision", "5"], "--precision takes"),
        (["mlp", "--np", "2,4"], "has no baseline"),
        (["mlp", "--np", "1", "--quick"], "more than one"),
        (["mlp", "--quick", "--aa"], "leave --aa"),
        (["mlp", "--steps", "3"], "fewer than warm-up needs"),
        (["mlp", "--np", "1,2", "--batch", "31", "--scaling", "strong"], "take 30 or 32"),
        (["mlp", "--relative-to", "largest"], "--relative-to takes"),
        (["mlp", "--budget", "soon"], "--budget takes"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(scalescope, words: list[str], complaint: str) -> None:
    done = scalescope("measure", *words, code=2)
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_in_which_nothing_was_measured_may_be_used_again(scalescope) -> None:
    scalescope("measure", "--np", "1", "-o", "out", "--", "false", code=1)
    scalescope("measure", "mlp", "--np", "1", "--steps", "6", "-o", "out")
    again = scalescope("measure", "mlp", "--np", "1", "--steps", "6", "-o", "out", code=2)
    assert "already holds a measurement" in again.stderr


def test_it_goes_on_from_anywhere_as_it_was_begun(scalescope) -> None:
    write_training(scalescope.folder)
    scalescope("measure", "--np", "1", "-o", "out", "--", sys.executable, "train.py")
    words = scalescope.words("measure", "--resume", str(scalescope.folder / "out"), "--launches", "2", "--json")
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=120, check=True)
    assert [each["round"] for each in json.loads(done.stdout)["launches"]] == [1, 2]


def test_a_script_with_too_few_steps_is_told_so(scalescope, scripts) -> None:
    command = (sys.executable, str(scripts / "ddp.py"), "--steps", "3")
    done = scalescope("measure", "--np", "1", "--", *command, code=2)
    assert "only 3 steps" in done.stderr
