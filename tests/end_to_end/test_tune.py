"""scalescope tune as a user types it: real ranks, real switches, real launches."""

import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
import scalescope as api
from command_line import CommandLine
from scalescope import host
from scalescope.records.store import append, load, load_lines
from scalescope.records.tuning import Sample, Tuning
from scalescope.tuner.search import ONLINE
from small_disk import small_disk

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = Path(__file__).parents[1] / "scripts"
SMALL = ("mlp", "--model-arg", "width=512", "--model-arg", "features=64", "--batch", "4")
"""Several buckets, and steps of a few milliseconds."""
SHORT = ("--warmup-samples", "1", "--steps-per-sample", "4", "--max-samples", "3")


@pytest.fixture
def scalescope(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, dict]:
    """A model that was tuned into the folder `out`, and the document that was printed."""
    scalescope = CommandLine(tmp_path_factory.mktemp("tuned"))
    done = scalescope("tune", *SMALL, "--np", "2", *SHORT, "-o", "out", "--json", pictures=True)
    return scalescope, json.loads(done.stdout)


def test_a_model_is_tuned_while_it_trains(tuned: tuple[CommandLine, dict]) -> None:
    scalescope, document = tuned
    record = load(scalescope.folder / "out" / "tuning.json", Tuning)
    assert record.complete
    assert record.method == "online"
    assert record.samples[0].values == {}
    assert record.samples[0].step_s
    assert document["decision"] == record.decision
    assert document["samples"] == sum(sample.phase != "confirm" for sample in record.samples)
    cost = record.cost
    assert document["steps"] == cost.warmup_steps + cost.search_steps + cost.confirm_steps
    assert set(document["gain"] or {"value", "low", "high"}) >= {"value", "low", "high"}
    assert any(sample.predicted_s for sample in record.samples)
    assert scalescope.processes() == []


def test_the_log_has_a_row_for_every_sample(tuned: tuple[CommandLine, dict]) -> None:
    scalescope, document = tuned
    rows = list(csv.DictReader((scalescope.folder / "out" / "tune.csv").read_text().splitlines()))
    assert len(rows) == len(document["trials"])
    assert rows[0]["phase"] == "default"
    assert all(float(row["step_ms"]) > 0 for row in rows if row["step_ms"])


def test_a_comparison_that_was_not_decided_is_resumed_with_another_launch(tuned: tuple[CommandLine, dict]) -> None:
    scalescope, document = tuned
    folder = scalescope.folder / "again"
    shutil.copytree(scalescope.folder / "out", folder)
    searched = [sample for sample in load_lines(folder / "samples.jsonl", Sample) if sample.phase != "confirm"]
    finalist = document["cells"][1]["values"]
    pairs = []
    for pair in range(ONLINE.most_pairs):
        for values, step_s in (({}, 0.01), (finalist, 0.008 if pair % 2 else 0.012)):
            index = len(searched) + len(pairs)
            made = Sample(index=index, phase="confirm", pair=pair, values=values, step_s=step_s, error_s=1e-4, steps=4)
            pairs.append(made)
    (folder / "samples.jsonl").unlink()
    for sample in (*searched, *pairs):
        append(sample, folder / "samples.jsonl")
    resumed = json.loads(scalescope("tune", "--resume", "again", "--json").stdout)
    assert resumed["finalist"] == finalist
    assert resumed["pairs"] > ONLINE.most_pairs
    assert {trial["phase"] for trial in resumed["trials"][len(searched) :]} == {"confirm"}
    assert resumed["samples"] == len(searched)


def test_a_tuned_model_is_drawn(tuned: tuple[CommandLine, dict]) -> None:
    scalescope, _ = tuned
    assert (scalescope.folder / "out" / "convergence.png").read_bytes().startswith(b"\x89PNG")


def test_a_script_trains_on_to_its_own_end_and_its_held_knobs_stay(scalescope: CommandLine) -> None:
    training = ("--epochs", "2", "--batch-size", "16", "--samples", "1200")
    words = ("--np", "2", "--bucket-cap-mb", "2", *SHORT, "-o", "out", "--json")
    done = scalescope("tune", *words, "--", sys.executable, str(EXAMPLES / "train_ddp.py"), *training)
    document = json.loads(done.stdout)
    assert document["held"] == {"bucket_cap_mb": 2}
    assert "Epoch 2" in (scalescope.folder / "out" / "training" / "rank0.out").read_text()
    assert "bucket_cap_mb" not in {knob.name for knob in load(scalescope.folder / "out" / "tuning.json", Tuning).knobs}


def test_a_script_without_ddp_trains_to_its_end_and_is_told_what_was_seen(scalescope: CommandLine) -> None:
    script = scalescope.folder / "own_exchange.py"
    script.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "model = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(800):\n    optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward()\n"
        "    for each in model.parameters(): dist.all_reduce(each.grad)\n    optimizer.step()\n"
        "print('at its end', flush=True)\n"
    )
    done = scalescope("tune", "--np", "2", "-o", "out", "--", sys.executable, str(script), code=2)
    assert "not tuned: the script made 5 steps without DistributedDataParallel" in done.stderr
    assert "wrap the model in DistributedDataParallel; the training ran to its end as it was" in done.stderr
    assert "the training goes on as it was" in done.stdout  # when that was found out
    assert "at its end" in (scalescope.folder / "out" / "training" / "rank1.out").read_text()
    assert scalescope.processes() == []


@pytest.fixture
def disk(scalescope: CommandLine) -> Iterator[Path]:
    """A disk with room for a hundred pages, on which a script can take all of them."""
    with small_disk(scalescope.folder, "400k") as disk:
        yield disk


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), open(disk / "full", "wb", buffering=0) as file:
        while True:
            file.write(b"0" * 4096)


def test_a_search_that_fails_lets_the_training_go_on(scalescope: CommandLine, disk: Path) -> None:
    fill(disk)
    training = ("--", sys.executable, str(SCRIPTS / "ddp.py"), "--steps", "150")
    done = scalescope("tune", "--np", "2", *SHORT, "-o", "out", "--log-file", str(disk / "tune.csv"), *training, code=1)
    assert "the search failed: the disk is full" in done.stderr
    assert "the training ran to its end as it was" in done.stderr
    reports = (scalescope.folder / "out" / "training" / "reports.jsonl").read_text().splitlines()
    last = json.loads(reports[-1])
    assert (last["kind"], last["steps"]) == ("end", 150)
    assert not any(json.loads(line)["kind"] == "sample" for line in reports)
    assert scalescope.processes() == []


@pytest.fixture(scope="module")
def itself(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A script that tunes itself, five times: its folder and what it printed. Root can fill a disk, too."""
    folder = tmp_path_factory.mktemp("itself")
    (folder / "tuned.yaml").write_text("ddp:\n  bucket_cap_mb: 0.5\n  gradient_as_bucket_view: true\n")
    (folder / "train.py").write_text(TUNES_ITSELF)
    words = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with small_disk(folder, "400k") if os.geteuid() == 0 else contextlib.nullcontext():
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_a_script_tunes_itself_and_uses_what_was_found_elsewhere(
    itself: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = itself
    record = load(folder / "out" / "tuning.json", Tuning)
    assert record.complete
    assert record.samples[0].phase == "default"
    assert done.stdout.count("held 2.0") == 2
    assert done.stdout.count("applied 0.5 True") == 2


def test_a_script_that_tunes_itself_goes_on_whatever_becomes_of_the_search(
    itself: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = itself
    for case in ("unused", "killed", "uneven"):
        assert done.stdout.count(f"{case}: the same True 25.0") == 2, done.stdout
    assert "ddp_find_unused_parameters=False" in done.stderr
    assert "the process of the search has ended; the training goes on as it was before" in done.stderr
    assert "uneven inputs" in done.stderr


def test_a_script_that_tunes_itself_goes_on_when_the_disk_is_full(
    itself: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    needs.root()
    _, done = itself
    assert done.stdout.count("full: the same True 25.0") == 2, done.stdout
    assert "the search failed: the disk is full" in done.stderr.lower()


TUNES_ITSELF = """
import os, signal, torch, scalescope, torch.distributed as dist
from pathlib import Path
from scalescope.engines.ddp_live import current
dist.init_process_group("gloo")
rank = dist.get_rank()
limits = dict(warmup_samples=30, steps_per_sample=4)  # harm comes while it warms up

class Training:
    def __init__(self, **options):
        torch.manual_seed(0)
        self.plain = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
        self.model = torch.nn.parallel.DistributedDataParallel(self.plain, **options)
        self.optimizer = torch.optim.SGD(self.plain.parameters(), lr=0.01)
        self.data, self.steps = torch.Generator().manual_seed(rank), 0
    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 64, generator=self.data)).square().mean().backward()
        self.optimizer.step()
        self.steps += 1
    def until(self, folder):
        there = torch.zeros(1)
        while not there:
            self.step()
            there.fill_((folder / "training" / "directive-00001.json").exists())
            dist.broadcast(there, 0)
    def parameters(self):
        return torch.cat([each.detach().flatten() for each in self.plain.parameters()])

def kill(training):
    for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)

def fill(training):
    try:
        with open(f"disk/full-{rank}", "wb", buffering=0) as file:
            while True: file.write(b"0" * 4096)
    except OSError: pass

def join(training):
    with training.model.join():
        for _ in range(10 + 20 * rank): training.step()

def run(case, folder, harm, **options):
    tuned = Training(**options)
    with scalescope.tuning(tuned.model, folder=folder, **limits) as place:
        if harm: tuned.until(place)
        before = tuned.steps
        if harm: harm(tuned)
        for _ in range(150): tuned.step()
    plain = Training(**options)
    for _ in range(before): plain.step()
    if harm is join: join(plain)
    for _ in range(150): plain.step()
    same = torch.equal(tuned.parameters(), plain.parameters())
    print(f"{case}: the same {same} {current(tuned.model)['bucket_cap_mb']}", flush=True)

well = Training()
few = dict(warmup_samples=1, steps_per_sample=4, max_samples=2)
with scalescope.tuning(well.model, knobs={"bucket_cap_mb": 2}, folder="out", **few) as folder:
    decided = torch.zeros(1)
    while not decided:
        well.step()
        decided.fill_((folder / "tuning.json").exists())
        dist.broadcast(decided, 0)
    for _ in range(3): well.step()
print("held", current(well.model)["bucket_cap_mb"], flush=True)
scalescope.apply_tuned(well.model, "tuned.yaml")
print("applied", current(well.model)["bucket_cap_mb"], current(well.model)["gradient_as_bucket_view"], flush=True)

run("unused", "unused", None, find_unused_parameters=True)
run("killed", "killed", kill)
if os.path.isdir("disk"): run("full", "disk/full_folder", fill)
run("uneven", "uneven", join)
dist.barrier()
os._exit(0)  # torch's gloo threads abort now and then after this
"""


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
    assert "killed by SIGKILL" in said
    assert "kept" in said
    assert (scalescope.folder / "out" / "tune.csv").read_text().count("\n") >= 2
    assert scalescope.processes() == []


def test_a_horovod_script_is_tuned_while_it_trains_and_ends_its_training(scalescope: CommandLine) -> None:
    needs.horovod()
    needs.openmpi()
    words = ("--np", "2", "--launcher", "mpirun", *SHORT, "-o", "out", "--json")
    training = ("--", sys.executable, str(SCRIPTS / "hvd.py"), "--steps", "160")
    done = scalescope("tune", *words, *training)
    document = json.loads(done.stdout)
    assert document["method"] == "online"
    record = load(scalescope.folder / "out" / "tuning.json", Tuning)
    assert {knob.name for knob in record.knobs} <= {"fusion_threshold_mb", "cycle_time_ms", "cache_capacity"}
    assert any(sample.switch_s > 0 for sample in record.samples)
    last = (scalescope.folder / "out" / "training" / "reports.jsonl").read_text().splitlines()[-1]
    assert json.loads(last) == {"kind": "end", "steps": 160}
    assert scalescope.processes() == []


def test_ranks_of_gloo_that_share_cores_are_not_switched_and_train_to_their_end(scalescope: CommandLine) -> None:
    needs.horovod()
    words = ("--np", str(host.cores().logical + 1), "--oversubscribe", "--launcher", "horovodrun", "-o", "out")
    done = scalescope("tune", *words, "--", sys.executable, str(SCRIPTS / "hvd.py"), "--steps", "20", code=2)
    assert "not tuned: there are more ranks than cores" in done.stderr
    assert "the training ran to its end as it was" in done.stderr
    assert scalescope.processes() == []


def test_horovods_own_autotune_and_the_comparison_share_one_launch(scalescope: CommandLine) -> None:
    needs.horovod()
    words = ("--np", "2", "--launcher", "horovodrun", "--method", "native", *SHORT, "-o", "out", "--json")
    training = ("--", sys.executable, str(SCRIPTS / "hvd.py"), "--steps", "220")
    done = scalescope("tune", *words, *training)
    assert json.loads(done.stdout)["method"] == "native"
    record = load(scalescope.folder / "out" / "tuning.json", Tuning)
    assert [sample.phase for sample in record.samples[:3]] == ["default", "confirm", "confirm"]
    assert len({str(sample.values) for sample in record.samples}) == 2
    assert "Horovod's autotune finished" in record.notes[0]
    assert not (scalescope.folder / "out" / "launches").exists()
    reports = (scalescope.folder / "out" / "training" / "reports.jsonl").read_text().splitlines()
    assert json.loads(reports[-1]) == {"kind": "end", "steps": 220}


def test_horovod_is_tuned_by_relaunch(scalescope: CommandLine) -> None:
    needs.horovod()
    words = ("--np", "2", "--engine", "horovod", "--steps-per-sample", "8", "--max-samples", "1", "-o", "out", "--json")
    document = json.loads(scalescope("tune", *SMALL, "--offline", *words).stdout)
    assert document["method"] == "offline"
    assert document["decision"] == "keep_default"
    assert "hierarchical_allreduce" in document["left_out"]
    record = load(scalescope.folder / "out" / "tuning.json", Tuning)
    assert len(record.samples) == 1
    assert {knob.name for knob in record.knobs} >= {"fusion_threshold_mb", "cycle_time_ms"}
    assert all(cell.predicted_s for cell in record.cells)


def test_a_search_by_relaunch_goes_on_where_it_was_interrupted(scalescope: CommandLine) -> None:
    training = ("--", sys.executable, str(SCRIPTS / "ddp.py"), "--steps", "1000")
    enough = ("--search", "gradient_as_bucket_view")  # settings for more than two samples
    words = ("--np", "2", "--offline", *enough, "--steps-per-sample", "8", "-o", "out", *training)
    assert "tune --resume out" in interrupted_after(scalescope, 1, "tune", *words)
    first = (scalescope.folder / "out" / "samples.jsonl").read_text()
    interrupted_after(scalescope, 2, "tune", "--resume", "out")
    assert (scalescope.folder / "out" / "samples.jsonl").read_text().startswith(first)
    assert not load(scalescope.folder / "out" / "tuning.json", Tuning).complete
    assert scalescope.processes() == []


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuning]:
    """A script that ran with a setting found earlier: its folder and what was told of it."""
    folder = tmp_path_factory.mktemp("used") / "out"
    training = (sys.executable, "-u", str(SCRIPTS / "ddp.py"), "--steps", "12")
    return folder, api.tune(command=training, np=2, start_from={"bucket_cap_mb": 1.0}, folder=folder)


def test_a_setting_found_earlier_is_used_without_a_search(used: tuple[Path, Tuning]) -> None:
    folder, found = used
    assert (found.decision, found.values, found.samples) == ("use", {"bucket_cap_mb": 1.0}, ())
    (command,) = (folder / "launches").glob("*/command.txt")
    assert 'SCALESCOPE_KNOBS={"bucket_cap_mb": 1.0}' in command.read_text()


def test_the_users_own_launch_line_is_measured_and_one_training_with_its_tuning_on_the_page(
    used: tuple[Path, Tuning], scalescope: CommandLine
) -> None:
    folder, found = used
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "{np}", str(SCRIPTS / "ddp.py"), "--steps", "12")
    measured = scalescope("measure", "--np", "2", "-o", "measured", "--json", "--", sys.executable, *launch)
    document = json.loads(measured.stdout)
    (point,) = document["points"]
    assert (point["np"], point["engine_seen"], point["steps"]) == (2, "ddp", 12)
    assert document["what"] == found.what == "ddp.py --steps 12"
    report = scalescope.in_this_process("report", "measured", str(folder), "-o", "page.html", "--json")
    (training,) = json.loads(report.stdout)["results"]
    assert training["holds"] == ["scaling", "tuning"]
    assert found.winner_step_s


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
