"""scalescope tune as a user types it: real ranks, real switches, real launches."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import needs
import scalescope as api
from command_line import CommandLine
from scalescope.records.store import load
from scalescope.records.tuning import Tuning

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = Path(__file__).parents[1] / "scripts"
SHORT = ("--warmup-samples", "1", "--steps-per-sample", "4", "--max-samples", "3")


@pytest.fixture
def scalescope(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, dict]:
    """A model that was tuned into the folder `out`, and the document that was printed."""
    scalescope = CommandLine(tmp_path_factory.mktemp("tuned"))
    done = scalescope("tune", "mlp", "--np", "2", *SHORT, "-o", "out", "--json", pictures=True)
    return scalescope, json.loads(done.stdout)


def test_a_model_is_tuned_while_it_trains(tuned: tuple[CommandLine, dict]) -> None:
    scalescope, document = tuned
    record = load(scalescope.folder / "out" / "tuning.json", Tuning)
    assert record.complete
    assert record.method == "online"
    assert record.samples[0].values == {}
    assert record.samples[0].step_s
    assert document["decision"] == record.decision
    assert document["samples"] == len(record.samples)
    cost = record.cost
    assert document["steps"] == cost.warmup_steps + cost.search_steps + cost.confirm_steps
    assert set(document["gain"] or {"value", "low", "high"}) >= {"value", "low", "high"}
    assert any(sample.predicted_s for sample in record.samples)
    assert scalescope.processes() == []


def test_the_log_has_a_row_for_every_sample(tuned: tuple[CommandLine, dict]) -> None:
    scalescope, document = tuned
    rows = list(csv.DictReader((scalescope.folder / "out" / "tune.csv").read_text().splitlines()))
    assert len(rows) == document["samples"]
    assert rows[0]["phase"] == "default"
    assert all(float(row["step_ms"]) > 0 for row in rows if row["step_ms"])


def test_a_tuned_model_is_drawn(tuned: tuple[CommandLine, dict]) -> None:
    scalescope, _ = tuned
    for name in ("landscape", "convergence", "cost"):
        assert (scalescope.folder / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_script_trains_on_to_its_own_end_and_its_held_knobs_stay(scalescope: CommandLine) -> None:
    training = ("--epochs", "2", "--batch-size", "16", "--samples", "2400")
    words = ("--np", "2", "--bucket-cap-mb", "2", *SHORT, "-o", "out", "--json")
    done = scalescope("tune", *words, "--", sys.executable, str(EXAMPLES / "train_ddp.py"), *training)
    document = json.loads(done.stdout)
    assert document["held"] == {"bucket_cap_mb": 2}
    assert "Epoch 2" in (scalescope.folder / "out" / "training" / "rank0.out").read_text()
    assert "bucket_cap_mb" not in {knob.name for knob in load(scalescope.folder / "out" / "tuning.json", Tuning).knobs}


def test_a_script_without_ddp_is_told_what_was_seen(scalescope: CommandLine) -> None:
    script = scalescope.folder / "alone.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(6):\n    model(torch.ones(2, 4)).sum().backward(); optimizer.step()\n"
    )
    done = scalescope("tune", "--np", "2", "--", sys.executable, str(script), code=2)
    assert "DistributedDataParallel" in done.stderr
    assert scalescope.processes() == []


def test_a_training_that_is_too_short_is_told_how_long_it_must_be(scalescope: CommandLine) -> None:
    done = scalescope("tune", "--np", "2", "--", sys.executable, str(SCRIPTS / "ddp.py"), "--steps", "12", code=2)
    assert "the training made 12 steps and the first sample needs" in done.stderr


def test_when_a_rank_is_killed_finished_samples_are_kept_and_nothing_is_left(scalescope: CommandLine) -> None:
    training = ("--", sys.executable, str(SCRIPTS / "ddp.py"), "--steps", "100000")
    words = ("tune", "--np", "2", "--warmup-samples", "1", "--steps-per-sample", "4", "-o", "out", *training)
    running = subprocess.Popen(scalescope.words(*words), cwd=scalescope.folder, stderr=subprocess.PIPE, text=True)
    samples = scalescope.folder / "out" / "samples.jsonl"
    deadline = time.monotonic() + 90
    while not samples.exists():
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    hello = next((scalescope.folder / "out" / "training").glob("agent-*.jsonl")).read_text().splitlines()[0]
    os.kill(json.loads(hello)["pid"], signal.SIGKILL)
    _, said = running.communicate(timeout=90)
    assert running.returncode == 1
    assert "signal 9" in said
    assert "kept" in said
    assert (scalescope.folder / "out" / "tune.csv").read_text().count("\n") >= 2
    assert scalescope.processes() == []


def test_horovod_is_tuned_by_relaunch(scalescope: CommandLine) -> None:
    needs.horovod()
    words = ("--np", "2", "--engine", "horovod", "--steps-per-sample", "8", "--max-samples", "1", "-o", "out", "--json")
    document = json.loads(scalescope("tune", "mlp", *words).stdout)
    assert document["method"] == "offline"
    assert document["decision"] == "keep_default"
    assert "hierarchical_allreduce" in document["left_out"]
    record = load(scalescope.folder / "out" / "tuning.json", Tuning)
    assert len(record.samples) == 1
    assert {knob.name for knob in record.knobs} >= {"fusion_threshold_mb", "cycle_time_ms"}
    assert all(cell.predicted_s for cell in record.cells)


def test_a_search_by_relaunch_goes_on_where_it_was_interrupted(scalescope: CommandLine) -> None:
    training = ("--", sys.executable, str(SCRIPTS / "ddp.py"), "--steps", "1000")
    words = ("--np", "2", "--offline", "--steps-per-sample", "8", "-o", "out", *training)
    assert "tune --resume out" in interrupted_after(scalescope, 1, "tune", *words)
    first = (scalescope.folder / "out" / "samples.jsonl").read_text()
    interrupted_after(scalescope, 2, "tune", "--resume", "out")
    assert (scalescope.folder / "out" / "samples.jsonl").read_text().startswith(first)
    assert not load(scalescope.folder / "out" / "tuning.json", Tuning).complete
    assert scalescope.processes() == []


def test_a_setting_found_earlier_is_used_without_a_search(tmp_path: Path) -> None:
    training = (sys.executable, str(SCRIPTS / "ddp.py"), "--steps", "12")
    found = api.tune(command=training, np=2, start_from={"bucket_cap_mb": 1.0}, folder=tmp_path / "out")
    assert (found.decision, found.values, found.samples) == ("use", {"bucket_cap_mb": 1.0}, ())
    (command,) = (tmp_path / "out" / "launches").glob("*/command.txt")
    assert 'SCALESCOPE_KNOBS={"bucket_cap_mb": 1.0}' in command.read_text()
    assert found.winner_step_s


def test_a_script_tunes_itself_and_uses_what_was_found_elsewhere(scalescope: CommandLine) -> None:
    (scalescope.folder / "tuned.yaml").write_text("ddp:\n  bucket_cap_mb: 0.5\n  gradient_as_bucket_view: true\n")
    (scalescope.folder / "train.py").write_text(TUNES_ITSELF)
    words = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=scalescope.folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    record = load(scalescope.folder / "out" / "tuning.json", Tuning)
    assert record.complete
    assert record.samples[0].phase == "default"
    assert done.stdout.count("held 2.0") == 2
    assert done.stdout.count("applied 0.5 True") == 2


TUNES_ITSELF = """
import os, torch, scalescope, torch.distributed as dist
from scalescope.engines.ddp_live import current
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
limits = dict(warmup_samples=1, steps_per_sample=4, max_samples=2)
with scalescope.tuning(model, hold={"bucket_cap_mb": 2}, folder="out", **limits) as folder:
    decided = torch.zeros(1)
    while not decided:
        optimizer.zero_grad(); model(torch.ones(4, 64)).sum().backward(); optimizer.step()
        decided.fill_((folder / "tuning.json").exists())
        dist.broadcast(decided, 0)
    for _ in range(3):
        optimizer.zero_grad(); model(torch.ones(4, 64)).sum().backward(); optimizer.step()
print("held", current(model)["bucket_cap_mb"], flush=True)
scalescope.apply_tuned(model, "tuned.yaml")
print("applied", current(model)["bucket_cap_mb"], current(model)["gradient_as_bucket_view"], flush=True)
os._exit(0)  # torch's gloo threads abort now and then after this
"""


def interrupted_after(scalescope: CommandLine, samples: int, *words: str) -> str:
    """What it says when Ctrl-C comes after so many samples."""
    running = subprocess.Popen(
        scalescope.words(*words),
        cwd=scalescope.folder,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )
    path = scalescope.folder / "out" / "samples.jsonl"
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_text().count("\n") < samples:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    return said
