"""FSDP2 as an engine: what is sharded, that it trains as DDP does, and how scripts that shard are named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from command_line import CommandLine
from scalescope.engines import find_engine, sharded_live
from scalescope.engines.fsdp2_live import blocks_of
from scalescope.workloads import load
from scalescope.workloads.loading import spec_from_options


def kinds(model: nn.Module) -> list[str]:
    return [type(block).__name__ for block in blocks_of(model)]


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        ("gpt", ["Block"] * 4),
        ("transformer", ["TransformerEncoderLayer"] * 4),
        ("mlp", ["Linear"] * 5),
        ("resnet18", ["Sequential", *["Residual"] * 8, "Linear"]),
    ],
)
def test_members_of_outermost_lists_are_blocks(model: str, blocks: list[str]) -> None:
    assert kinds(load(spec_from_options(model)).model) == blocks


def test_lists_of_lists_are_opened_and_what_has_no_parameters_is_left_out() -> None:
    deep = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU())]), nn.Identity()])
    holder = nn.Module()
    holder.first, holder.deep = nn.Linear(2, 2), deep
    assert kinds(holder) == ["Linear", "Sequential"]
    assert kinds(nn.Linear(2, 2)) == kinds(nn.TransformerEncoderLayer(4, 2)) == []


def test_fsdp2_is_launched_and_not_tuned() -> None:
    engine = find_engine("fsdp2")
    assert [knob.name for knob in engine.knobs] == ["reshard_after_forward", "backend"]
    assert not engine.is_tuned
    assert engine.sections == ()


def test_its_knobs_are_not_set_in_scripts(scalescope: CommandLine) -> None:
    words = ("--engine", "fsdp2", "--knob", "reshard_after_forward=false", "--np", "2", "--dry-run")
    said = scalescope.in_this_process("measure", *words, "--", sys.executable, "train.py", code=2).stderr
    assert "knobs of fsdp2 go with a MODEL: set reshard_after_forward in your script, or leave it out" in said
    assert scalescope.in_this_process("measure", "mlp", *words).stdout


def test_a_model_that_nobody_shards_has_no_engine() -> None:
    assert sharded_live.engine_of(nn.Sequential(nn.Linear(2, 2))) == sharded_live.engine_of(None) == ""


TRAINED = """
import importlib, sys, torch
ddp, fsdp2 = map(importlib.import_module, sys.argv[1:3])
rank, size = ddp.start("cpu", {})
found = []
for live, knobs in ((ddp, {}), (fsdp2, {}), (fsdp2, {"reshard_after_forward": False})):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(15, 31), torch.nn.Tanh(), torch.nn.Linear(31, 5))
    model, optimizer = live.wrap(model, lambda each: torch.optim.Adagrad(each, lr=0.1), knobs, passes=2)
    data = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.randn(4, 15, generator=data)).square().mean().backward()
            early = [each.grad for each in model.parameters() if each.grad is not None]
        model(torch.randn(4, 15, generator=data)).square().mean().backward()
        optimizer.step()
    final = [each.full_tensor() if hasattr(each, "full_tensor") else each.detach() for each in model.parameters()]
    found.append({"final": final, "early": len(early)})
torch.save(found, f"rank{rank}.pt")
fsdp2.finish()
"""


@pytest.mark.launches
def test_it_trains_as_ddp_does_and_exchanges_after_the_last_pass_only(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINED)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    words = [*start, *(find_engine(engine).live_module for engine in ("ddp", "fsdp2"))]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    (ddp, *_), _ = ranks
    assert ddp["early"] == 4
    for _, *sharded in ranks:
        for found in sharded:
            torch.testing.assert_close(found["final"], ddp["final"])
            assert found["early"] == 0, "a pass that is not the last leaves no reduced gradients"


BEGINNING = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
dist.init_process_group("gloo")
size = dist.get_world_size()
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
"""
TRAINING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
BLOCKS = "for block in model: fully_shard(block, mesh=mesh)\nfully_shard(model, mesh=mesh)\n"
SCRIPTS = {
    "hsdp": ('mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("copies", "shards"))\n' + BLOCKS, 4),
    "replicate": (
        "from torch.distributed._composable.replicate_with_fsdp import replicate\n"
        'mesh = init_device_mesh("cpu", (size,))\n' + BLOCKS.replace("fully_shard", "replicate"),
        2,
    ),
    "fsdp": ("model = FullyShardedDataParallel(model, device_id=torch.device('cpu'))\n", 2),
    "ddp": ("from torch.distributed._composable.replicate import replicate\nreplicate(model)\n", 2),
}
GATHERED = {("forward", "allgather"), ("backward", "allgather")}
EXCHANGED = {
    "hsdp": {*GATHERED, ("backward", "reducescatter"), ("backward", "allreduce")},
    "replicate": {("backward", "allreduce")},
}


@pytest.mark.launches
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", SCRIPTS)
def test_scripts_that_shard_are_named_as_what_they_are(scalescope: CommandLine, engine: str) -> None:
    wrapping, np = SCRIPTS[engine]
    (scalescope.folder / "train.py").write_text(BEGINNING + wrapping + TRAINING)
    words = ("--np", str(np), "--oversubscribe", "--threads-per-rank", "1", "-o", "out", "--json")
    captured = json.loads(scalescope("explain", *words, "--", sys.executable, "train.py").stdout)
    files = sorted(str(path) for path in scalescope.folder.glob("out/traces/*/trace-rank*"))
    assert len(files) == np
    found = json.loads(scalescope.in_this_process("explain", *files, "--json").stdout)  # as files of others
    assert found["engine"] == captured["engine"] == engine
    passes = {(each["phase"], each["operation"]) for each in found["exchanges"]}
    if engine in EXCHANGED:
        assert passes == EXCHANGED[engine]
    assert scalescope.processes() == []


@pytest.mark.launches
def test_a_root_that_is_sharded_as_a_whole_with_copies_is_hsdp(scalescope: CommandLine) -> None:
    mesh = 'mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "shards"))\n'
    (scalescope.folder / "train.py").write_text(BEGINNING + mesh + "fully_shard(model, mesh=mesh)\n" + TRAINING)
    done = scalescope(
        "measure", "--np", "2", "--launches", "1", "-o", "out", "--json", "--", sys.executable, "train.py"
    )
    assert [point["engine"] for point in json.loads(done.stdout)["points"]] == ["hsdp"]


@pytest.mark.launches
def test_a_model_without_blocks_is_sharded_as_a_whole_and_this_is_said(scalescope: CommandLine) -> None:
    (scalescope.folder / "whole.py").write_text(
        "import torch\nclass Whole(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Linear(64, 64)\n"
        "    def forward(self, x): return self.layer(x)\n"
    )
    words = ("--engine", "fsdp2", "--np", "2", "--launches", "1", "--steps", "30", "-o", "out")
    done = scalescope("measure", "whole.py:Whole", "--input", "64", *words)
    assert "fsdp2 on 2 processes" in done.stdout, "names of engines stay as they are written"
    (run,) = json.loads((scalescope.folder / "out" / "measurement.json").read_text())["runs"]
    assert (
        "Whole has no blocks in a ModuleList or Sequential: FSDP2 shards and gathers it as a whole" in run["warnings"]
    )
    assert (run["engine_seen"], run["point"]["engine"], run["backend"]) == ("fsdp2", "fsdp2", "gloo")


MIXED = (
    """
other = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
mesh = init_device_mesh("cpu", (size,))
"""
    + BLOCKS
    + TRAINING.replace(
        "    optimizer.step()", "    other(torch.randn(8, 64)).square().mean().backward()\n    optimizer.step()"
    )
    .replace("model.parameters()", "[*model.parameters(), *other.parameters()]")
    .replace("lr=0.01", "lr=0.01, foreach=False")
    .replace("range(60)", "range(int(sys.argv[1]))")
)


@pytest.mark.launches
def test_of_a_script_that_mixes_ddp_and_fsdp_the_ddp_is_measured_and_tuned(scalescope: CommandLine) -> None:
    (scalescope.folder / "train.py").write_text(BEGINNING + MIXED + "print('reached its end')\n")
    training = ("--", sys.executable, "train.py")
    done = scalescope("measure", "--np", "2", "-o", "measured", "--launches", "1", "--json", *training, "20")
    assert [point["engine"] for point in json.loads(done.stdout)["points"]] == ["ddp"]
    short = ("--warmup-samples", "1", "--steps-per-sample", "4", "--max-samples", "2")
    done = scalescope("tune", "--np", "2", "-o", "tuned", *short, "--show-output", *training, "300")
    assert done.stdout.count("reached its end") + done.stderr.count("reached its end") == 2
    assert scalescope.processes() == []


@pytest.mark.launches
def test_tune_by_relaunch_ends_after_one_launch_of_a_script_that_shards(scalescope: CommandLine) -> None:
    mesh = 'mesh = init_device_mesh("cpu", (size,))\n'
    (scalescope.folder / "train.py").write_text(BEGINNING + mesh + BLOCKS + TRAINING)
    done = scalescope("tune", "--offline", "--np", "2", "-o", "out", "--", sys.executable, "train.py", code=2)
    said = " ".join((done.stdout + done.stderr).split())
    assert "the script trains with FSDP2, which has no knobs that tune can change" in said
    assert len(list((scalescope.folder / "out" / "launches").iterdir())) == 1
