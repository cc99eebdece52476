"""Measurements that are interrupted, at any moment, and continued."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import needs
from scalescope.measurement.fingerprint import fingerprint_here
from scalescope.records.request import MeasureRequest, Plan
from scalescope.records.run import Measurement, Run
from scalescope.records.store import load, load_lines, save
from scalescope.records.tuning import TuneRequest
from scalescope.tuner.journal import TunePlan

QUICK = ("--np", "1", "--launcher", "own", "--pattern", r"took (?P<step_s>\S+) s", "-o", "out", "--json")
"""Options for a training without torch, which starts at once."""


def write_training(folder: Path, pause: float = 0.01) -> tuple[str, ...]:
    """A training of one process that takes hardly any time; its command."""
    (folder / "train.py").write_text(
        "import time\nfor _ in range(8):\n"
        f"    began = time.perf_counter(); time.sleep({pause})\n"
        "    print(f'step took {time.perf_counter() - began:.6f} s', flush=True)\n"
    )
    return "--", sys.executable, "train.py"


def test_killed_at_random_moments_nothing_finished_is_lost_or_repeated(scalescope) -> None:
    generator = random.Random()
    folder = scalescope.folder / "out"
    begin = (
        "measure",
        *QUICK,
        "--launches",
        "1",
        "--batch",
        "1,2,4,8",
        *write_training(scalescope.folder, pause=0.05),
        "{batch}",
    )
    kept = b""

    def words() -> tuple[str, ...]:
        return ("measure", "--resume", "out", "--json") if (folder / "plan.json").exists() else begin

    for _ in range(5):
        command = scalescope.words(*words())
        process = subprocess.Popen(command, cwd=scalescope.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=generator.uniform(0.3, 2.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        runs = folder / "runs.jsonl"
        lines = runs.read_bytes() if runs.exists() else b""
        complete = lines[: lines.rfind(b"\n") + 1]
        assert complete.startswith(kept)
        kept = complete
    done = scalescope(*words())
    assert scalescope.processes() == []
    runs = load_lines(folder / "runs.jsonl", Run)
    made = [(run.round, run.point.label) for run in runs]
    assert len(made) == len(set(made)) == 4
    assert (folder / "runs.jsonl").read_bytes().startswith(kept)
    assert len({run.point.threads_per_rank for run in runs}) == 1
    assert {run.steps for run in runs} == {8}
    assert all(point["launches"] == 1 for point in json.loads(done.stdout)["points"])
    assert len(load(folder / "measurement.json", Measurement).runs) == 4


def test_a_torn_line_is_launched_again(scalescope) -> None:
    command = (*write_training(scalescope.folder), "{batch}")
    scalescope("measure", *QUICK, "--batch", "2,4", *command)
    runs = scalescope.folder / "out" / "runs.jsonl"
    whole = runs.read_bytes()
    runs.write_bytes(whole[:-40])
    scalescope("measure", "--resume", "out")
    assert [run.round for run in load_lines(runs, Run)] == [1, 1]
    assert runs.read_bytes().startswith(whole[: whole.index(b"\n") + 1])
    assert runs.read_bytes() != whole


def test_more_launches_can_be_added_later_and_from_five_on_there_is_an_interval(scalescope) -> None:
    first = scalescope("measure", *QUICK, *write_training(scalescope.folder))
    assert json.loads(first.stdout)["points"][0]["interval"] == "range"
    done = json.loads(scalescope("measure", "--resume", "out", "--launches", "5", "--json").stdout)
    assert [(point["launches"], point["interval"]) for point in done["points"]] == [(5, "t")]
    again = scalescope("measure", "--resume", "out", "--json")
    assert len(json.loads(again.stdout)["launches"]) == 5


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--resume", "nowhere"], "holds no measurement"),
        (["--resume", ".", "mlp"], "leave the MODEL"),
        (["--resume", ".", "--knob", "first_bucket_mb=2"], "leave --knob out"),
        (["--resume", ".", "--dry-run"], "leave --dry-run out"),
        (["mlp", "--precision", "5"], "--precision takes"),
        (["mlp", "--np", "2,4"], "has no baseline"),
        (["mlp", "--steps", "3"], "fewer than warm-up needs"),
        (["mlp", "--np", "1,2", "--batch", "31", "--scaling", "strong"], "take 30 or 32"),
        (["mlp", "--relative-to", "largest"], "--relative-to takes"),
        (["mlp", "--budget", "soon"], "--budget takes"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(scalescope, words: list[str], complaint: str) -> None:
    done = scalescope.in_this_process("measure", *words, code=2)
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_in_which_nothing_was_measured_may_be_used_again(scalescope) -> None:
    scalescope("measure", *QUICK, "--", "false", code=1)
    command = write_training(scalescope.folder)
    scalescope("measure", *QUICK, *command)
    again = scalescope("measure", *QUICK, *command, code=2)
    assert "already holds a measurement" in again.stderr


def test_a_measurement_is_resumed_from_any_folder_with_its_own_options(scalescope) -> None:
    scalescope("measure", *QUICK, *write_training(scalescope.folder))
    words = scalescope.words("measure", "--resume", str(scalescope.folder / "out"), "--launches", "2", "--json")
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=120, check=True)
    assert [each["round"] for each in json.loads(done.stdout)["launches"]] == [1, 2]


def test_batches_are_added_to_a_measurement_and_earlier_launches_stay(scalescope) -> None:
    scalescope("measure", *QUICK, "--batch", "2,4", "--launches", "2", *write_training(scalescope.folder), "{batch}")
    runs = scalescope.folder / "out" / "runs.jsonl"
    kept = runs.read_bytes()
    document = json.loads(scalescope("measure", "--resume", "out", "--batch", "8", "--json").stdout)
    assert [(each["round"], each["batch"]) for each in document["launches"]][-2:] == [(3, 8), (4, 8)]
    assert [point["launches"] for point in document["points"]] == [2, 2, 2]
    assert runs.read_bytes().startswith(kept)
    said = scalescope("measure", "--resume", "out", "--np", "2", "--batch", "16", code=2).stderr
    assert said.count("\n") == 1
    assert runs.read_bytes().startswith(kept)


def test_a_script_with_too_few_steps_is_told_so(scalescope) -> None:
    (scalescope.folder / "short.py").write_text(
        "import torch\nw = torch.zeros(2, requires_grad=True); o = torch.optim.SGD([w], lr=1)\n"
        "for _ in range(3): w.sum().backward(); o.step()\n"
    )
    done = scalescope("measure", "--np", "1", "--launcher", "own", "--", sys.executable, "short.py", code=2)
    assert "only 3 steps" in done.stderr


def test_resuming_with_another_torch_is_refused_and_on_another_host_is_warned(scalescope) -> None:
    scalescope("measure", *QUICK, *write_training(scalescope.folder))
    path = scalescope.folder / "out" / "plan.json"
    plan = load(path, Plan)
    assert plan.fingerprint == fingerprint_here(plan.request.command, "auto")
    resume = ("measure", "--resume", "out", "--launches", "2")
    save(msgspec.structs.replace(plan, fingerprint=msgspec.structs.replace(plan.fingerprint, torch="1.0")), path)
    kept = path.read_bytes()
    said = scalescope.in_this_process(*resume, code=2).stderr
    assert "instead of 1.0): resume it with the original setup" in said
    assert said.count("\n") == 1
    assert path.read_bytes() == kept
    save(msgspec.structs.replace(plan, fingerprint=msgspec.structs.replace(plan.fingerprint, host="login1")), path)
    document = json.loads(scalescope(*resume, "--json").stdout)
    noted = "started on host login1 and resumed on "
    assert any(noted in warning for warning in document["warnings"])
    (warning,) = load(scalescope.folder / "out" / "measurement.json", Measurement).warnings
    assert noted in warning


def test_resuming_with_fewer_cores_is_refused(scalescope) -> None:
    needs.need(len(os.sched_getaffinity(0)) > 1, "two cores")
    (scalescope.folder / "out").mkdir()
    here, cores = str(scalescope.folder), os.sched_getaffinity(0)
    tuned = TunePlan(
        request=TuneRequest(command=(sys.executable, "train.py"), np=2, method="offline"),
        cwd=here,
        fingerprint=fingerprint_here((sys.executable,), "auto"),
    )
    measured = Plan(request=MeasureRequest(), cwd=here, since_ns=0, fingerprint=fingerprint_here((), "auto"))
    os.sched_setaffinity(0, {min(cores)})
    try:
        for verb, plan in (("measure", measured), ("tune", tuned)):
            save(plan, scalescope.folder / "out" / "plan.json")
            said = scalescope.in_this_process(verb, "--resume", "out", code=2).stderr
            assert f"cores 1 instead of {len(cores)}" in said
    finally:
        os.sched_setaffinity(0, cores)
