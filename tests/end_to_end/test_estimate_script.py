"""estimate of a script as a user types it: it runs as rank 0 of N, and real ranks say how far the map is off."""

import json
import sys
from pathlib import Path

import msgspec
import pytest

from command_line import CommandLine
from scalescope import host
from scalescope.records.prediction import Prediction
from scalescope.records.rank_zero import RankZero
from scalescope.records.request import EstimatePlan
from scalescope.records.store import load, load_lines, save

ROOT = Path(__file__).parents[2]
SHARDED = str(ROOT / "examples" / "slow_sharded.py")
COMMAND = ("--", sys.executable, SHARDED, "--steps", "60", "--reshard")
SHORT_STEPS = ("--", sys.executable, SHARDED, "--steps", "40", "--reshard", "--batch", "2")
"""Parameters, and so memory, as above; hardly any compute for its four threads."""
TWO_NODES = ROOT / "examples" / "clusters" / "cpu-4x2.toml"


@pytest.fixture(scope="module")
def estimated(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, dict]:
    """The map of an FSDP2 script on one and two processes of this machine, one cell of it run for real."""
    line = CommandLine(tmp_path_factory.mktemp("estimate_script"))
    done = line("estimate", "--np", "1,2", "--verify", "1", "--launches", "1", "--json", "-o", "out", *COMMAND)
    return line, json.loads(done.stdout)


@pytest.mark.alone
def test_a_script_gets_the_map_of_its_steps_as_rank_0(estimated) -> None:
    line, answer = estimated
    assert answer["engine"] == "fsdp2"
    assert answer["ran_as"] == [1, 2]
    one, two = answer["cells"]
    assert (one["np"], two["np"], two["batch"], two["scaling"]) == (1, 2, 64, "weak")
    assert one["exposed_s"] == 0
    assert 0 < two["exposed_s"] < two["step_s"]
    assert two["memory_bytes"] > 0
    records = {record.np: record for record in load_lines(line.folder / "out" / "rank_zero.jsonl", RankZero)}
    operations = [message.operation for message in records[2].messages]
    # Four blocks and no root of its own: gathered in forward, again in backward, then reduced.
    assert (operations.count("all_gather"), operations.count("reduce_scatter")) == (8, 4)


@pytest.mark.alone
def test_real_ranks_take_about_the_predicted_step(estimated, capsys: pytest.CaptureFixture[str]) -> None:
    _, answer = estimated
    (check,) = answer["checks"]
    with capsys.disabled():
        predicted, measured = (1e3 * check[name] for name in ("predicted_s", "measured_s"))
        print(
            f" predicted {predicted:.1f} ms, two gloo ranks {measured:.1f} ms, error {100 * check['error']:+.0f} %",
            end="",
        )
    assert check["np"] == 2
    assert 1 / 3 < check["predicted_s"] / check["measured_s"] < 3


@pytest.mark.alone
def test_the_same_command_continues_and_uses_what_it_has_again(estimated) -> None:
    line, _ = estimated
    folder = line.folder / "out"
    plan, records = load(folder / "plan.json", EstimatePlan), (folder / "rank_zero.jsonl").read_text()
    save(msgspec.structs.replace(plan, finished=False), folder / "plan.json")
    done = line("estimate", "--np", "1,2", "--verify", "1", "--launches", "1", "-o", "out", *COMMAND)
    assert "Continuing the interrupted estimate" in done.stderr + done.stdout
    assert "fsdp2" in done.stdout
    assert (folder / "rank_zero.jsonl").read_text() == records


def test_a_described_cluster_is_mapped_beyond_this_machine_and_between_the_sizes_that_ran(line: CommandLine) -> None:
    words = "estimate", "--np", "1..8", "--cluster", str(TWO_NODES), "-o", "out", "--details", *SHORT_STEPS
    done = line(*words)
    made = load(line.folder / "out" / "estimate.json", Prediction)
    assert [cell.np for cell in made.cells] == list(range(1, 9))
    assert made.ran_as == (1, 2, 8)
    memory = [cell.memory_bytes for cell in made.cells if cell.np >= 2]
    assert memory == sorted(memory, reverse=True)  # shards get smaller
    assert "the sizes between them are interpolated" in done.stdout
    cores = host.cores()
    for record in load_lines(line.folder / "out" / "rank_zero.jsonl", RankZero):
        assert record.copies * record.threads <= max(cores.logical, record.threads), "copies have cores of their own"
    told = f"the script used 4 threads on {cores.physical} cores" in " ".join(done.stdout.split())
    assert told == (cores.physical < 4)
    following = "measure --np 1," if made.trusted else "estimate --np 1..8"  # again where the machine was busy
    assert f"Next: scalescope {following}" in done.stdout


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def test_a_dry_run_lists_the_runs_and_starts_none(line: CommandLine) -> None:
    done = line.in_this_process("estimate", "--np", "1..64", "--cluster", _many(line), "--dry-run", *COMMAND)
    runs = [row for row in done.stdout.splitlines() if row.startswith("as rank 0 of")]
    assert [row.split(":")[0] for row in runs] == [f"as rank 0 of {ranks}" for ranks in (1, 2, 8, 32, 64)]
    assert not list(line.folder.glob("results/*"))


def _many(line: CommandLine) -> str:
    path = line.folder / "many.toml"
    path.write_text(TWO_NODES.read_text().replace("nodes = 4", "nodes = 32", 1))
    return str(path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--batch", "8", *COMMAND), "--batch goes with a MODEL"),
        (("--engine", "ddp", *COMMAND), "--engine goes with a MODEL"),
        (("mlp", *COMMAND), "name one thing to estimate"),
        (("mlp", "--allow-writes"), "--allow-writes goes with a script"),
        (("--cluster", str(ROOT / "examples/clusters/gpu-16x8.toml"), *COMMAND), "describes GPUs"),
        (("--np", "1000", *COMMAND), "more than the"),
        (("--", "no_such_program"), "there is no program 'no_such_program' here"),
        (("--", sys.executable, "no_such.py"), "there is no file 'no_such.py' here"),
        (
            ("--verify", "1", "--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", SHARDED),
            "--verify starts the ranks itself",
        ),
        (("--np", "1", "--verify", "1", *COMMAND), "--verify needs a size of 2 or more processes"),
        (("--", sys.executable, str(ROOT / "examples/train_horovod.py")), "scalescope measure"),
    ],
)
def test_what_a_script_cannot_be_asked_is_one_line(line: CommandLine, words: tuple[str, ...], told: str) -> None:
    done = line.in_this_process("estimate", *words, code=2)
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(line.folder.glob("results/*"))


def test_a_script_that_never_steps_is_one_line_and_leaves_nothing_running(line: CommandLine) -> None:
    (line.folder / "idle.py").write_text("import torch\nprint(torch.ones(1))\n")
    done = line("estimate", "--np", "1,2", "-o", "out", "--", sys.executable, "idle.py", code=2)
    assert "no optimizer step" in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert line.processes() == []


def test_a_script_that_fails_as_every_rank_0_is_one_line(line: CommandLine) -> None:
    (line.folder / "fails.py").write_text("import torch\nraise RuntimeError('no such data')\n")
    done = line("estimate", "--np", "1,2", "-o", "out", "--", sys.executable, "fails.py", code=1)
    assert "no such data" in done.stderr
    assert line.processes() == []


TRAINING = """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(40):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FOURS = """
import os, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]) // 4, 4), mesh_dim_names=("copies", "shards"))
model = fully_shard(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)), mesh=mesh)
"""


def test_numbers_that_a_mesh_does_not_divide_are_left_out_and_said(line: CommandLine) -> None:
    (line.folder / "fours.py").write_text(FOURS + TRAINING)
    words = "--np", "2..8", "--cluster", str(TWO_NODES), "-o", "out", "--details"
    done = line("estimate", *words, "--", sys.executable, "fours.py")
    made = load(line.folder / "out" / "estimate.json", Prediction)
    assert (made.engine, made.ran_as, [cell.np for cell in made.cells]) == ("hsdp", (4, 8), [4, 8])
    assert "left out: as rank 0 of 2 the script failed" in " ".join(done.stdout.split())


PEERS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
names = [None] * dist.get_world_size()
dist.all_gather_object(names, dist.get_rank())
assert names == list(range(dist.get_world_size())), f"only {names}"
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
"""


def test_a_script_that_runs_as_one_process_only_gets_no_map(line: CommandLine) -> None:
    (line.folder / "peers.py").write_text(PEERS + TRAINING)
    words = "--np", "1,2,4", "--cluster", str(TWO_NODES), "-o", "out"
    done = line("estimate", *words, "--", sys.executable, "peers.py", code=2)
    assert "the script runs as one process only: as rank 0 of 4 the script failed: AssertionError: only" in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert line.processes() == []
