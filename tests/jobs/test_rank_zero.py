"""Scripts as rank 0 of N: nothing is written, what cannot run is refused in one line, and nothing is left running."""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.rank_zero import run_as_rank_zero
from scalescope.jobs.rank_zero_log import read_process
from scalescope.launchers.processes import carrying, of_folder
from scalescope.records.rank_zero import RankZero

BEGINNING = """
import os, sys, torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def train(model, steps=10**9, lr=1e-3, after=lambda step: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(steps):
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step)
"""

pytestmark = [pytest.mark.launches, pytest.mark.timeout(180)]


def run(folder: Path, script: str, np: int = 8, **options: object) -> RankZero:
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    (home / "train.py").write_text(BEGINNING + textwrap.dedent(script))
    usual = {"command": (sys.executable, "train.py"), "seconds": 0.0, "threads": 1, "timeout_s": 60.0}
    given = {**usual, "folder": folder / "records", "cwd": str(home), **options}
    try:
        return run_as_rank_zero(np=np, **given)  # type: ignore[arg-type]
    finally:
        assert list(carrying(of_folder(str(folder)))) == []


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder, by its hash, and every folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in folder.rglob("*")
    }


SAVES = """
import atexit, pathlib
from torch.distributed import checkpoint
import helper

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(32, 32))
state = torch.load("old.pt")
os.makedirs("runs/first", exist_ok=True)
pathlib.Path("runs/first/log.txt").write_text("begin")
with open("metrics.csv", "a") as file:
    file.write("2")
assert open("metrics.csv").read() == "12", "what was written is found again"
assert os.listdir("runs/first") == ["log.txt"]
os.replace("runs/first/log.txt", "runs/first/kept.txt")
assert pathlib.Path("runs/first/kept.txt").read_text() == "begin"
os.remove("old.txt")

def save(step):
    if step == 2:
        torch.save({"step": 2}, os.environ["ELSEWHERE"])
        assert torch.load(os.environ["ELSEWHERE"]) == {"step": 2}
        torch.save(model.state_dict(), "new.pt")
        with open("old.pt", "wb") as file:
            torch.save(model.state_dict(), file)
        checkpoint.save({"model": model.state_dict()}, checkpoint_id="sharded")

atexit.register(lambda: open("at_exit.txt", "w").close())
try:
    train(model, after=save)
finally:
    torch.save(model.state_dict(), "finally.pt")
"""


def test_a_script_that_saves_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "metrics.csv").write_text("1")
    (home / "old.txt").write_text("old")
    (home / "helper.py").write_text("value = 1\n")
    subprocess.run([sys.executable, "-c", "import torch; torch.save({}, 'old.pt')"], cwd=home, check=True)
    before = contents(home)
    elsewhere = Path(tempfile.gettempdir(), f"{tmp_path.name}.pt")
    record = run(tmp_path, SAVES, env={"ELSEWHERE": str(elsewhere)})
    after = contents(home)
    assert not elsewhere.exists()
    after.pop("train.py")
    assert after == before
    assert [line for line in record.saves if line.endswith("new.pt")] == [f"torch.save: {home / 'new.pt'}"]
    assert "torch.distributed.checkpoint.save: sharded" in record.saves
    assert f"remove of {home / 'old.txt'}" in record.saves
    assert not any("finally" in line or "at_exit" in line for line in record.saves)
    assert record.warnings == (f"the script loads {home / 'old.pt'}: it may go on from a checkpoint",)


def test_a_script_that_may_write_saves(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        """
        dist.init_process_group("gloo")
        torch.save({}, "new.pt")
        train(DistributedDataParallel(nn.Linear(32, 32)))
        """,
        allow_writes=True,
    )
    assert (tmp_path / "home" / "new.pt").exists()
    assert record.saves == ()


def test_one_of_the_ranks_that_a_script_starts_itself_is_enough(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        """
        def main(rank, size):
            dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29501", rank=rank, world_size=size)
            train(DistributedDataParallel(nn.Linear(32, 32)))

        if __name__ == "__main__":
            try:
                torch.multiprocessing.spawn(main, args=(2,), nprocs=2)
            finally:
                open("/tmp/" + os.environ["SEEN_BY"], "w").close()
        """,
        env={"SEEN_BY": tmp_path.name},
    )
    assert not Path("/tmp", tmp_path.name).exists()
    assert (record.np, record.engine) == (8, "ddp")
    assert [message.ranks for message in record.messages] == [8]
    assert "world_size=2" in record.warnings[0]


def test_a_line_of_torchrun_for_many_nodes_is_one_process(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        """
        dist.init_process_group("gloo")
        train(DistributedDataParallel(nn.Linear(32, 32)))
        """,
        np=64,
        command=(
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=8", "--node-rank", "3", "--rdzv-endpoint=far:1"),
            *("--nproc-per-node", "8", "train.py"),
        ),
    )
    assert [(message.operation, message.ranks) for message in record.messages] == [("all_reduce", 64)]


def test_options_of_a_module_that_torchrun_starts_stay_its_own(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=4", "--rdzv-id", "17")
    script = """
    assert sys.argv[1:] == ["--nnodes", "2"], sys.argv
    dist.init_process_group("gloo")
    train(DistributedDataParallel(nn.Linear(32, 32)))
    """
    assert run(tmp_path, script, command=(*launcher, "-m", "train", "--nnodes", "2")).engine == "ddp"


def test_copies_of_a_script_train_at_the_same_time(tmp_path: Path) -> None:
    script = """
    dist.init_process_group("gloo")
    train(DistributedDataParallel(nn.Linear(32, 32)))
    """
    record = run(tmp_path, script, copies=2)
    assert record.copies == 2
    assert len(list((tmp_path / "records").glob("agent-*.jsonl"))) == 2
    assert len(record.steps_s) > 3


def test_shards_take_less_memory_on_more_ranks(tmp_path: Path) -> None:
    script = """
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(32, 1024), *(nn.Linear(1024, 1024) for _ in range(16)))
    for layer in model:
        fully_shard(layer)
    optimizer = torch.optim.AdamW(fully_shard(model).parameters(), foreach=False)
    while True:
        model(torch.randn(4, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    alone, of_many = (run(tmp_path / str(np), script, np=np).memory_bytes >> 20 for np in (1, 64))
    # Parameters, gradients and two moments are 256 MiB; a rank of 64 has 4 of them and whole layers of 4 MiB.
    assert 180 < alone - of_many < 300


def test_a_script_that_ends_while_its_memory_is_weighed_ends_well(tmp_path: Path) -> None:
    script = """
    dist.init_process_group("gloo")
    train(DistributedDataParallel(nn.Linear(32, 32)), 10)
    """
    record = run(tmp_path, script)
    assert "ended by itself after 10 steps" in record.warnings[0]
    assert "callback is not found" not in (tmp_path / "records" / "launcher.out").read_text()


def test_memory_that_runs_out_is_an_answer(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        """
        dist.init_process_group("gloo")
        train(DistributedDataParallel(nn.Linear(32, 32)), after=lambda step: torch.empty(2**50))
        """,
    )
    assert not record.fits
    assert record.out_of_memory == "can't allocate memory: you tried to allocate 4503599627370496 bytes"


def test_a_loss_that_is_no_number_is_reported(tmp_path: Path) -> None:
    script = """
    dist.init_process_group("gloo")
    train(DistributedDataParallel(nn.Linear(32, 32)), lr=1e30)
    """
    assert not run(tmp_path, script).finite


REFUSED = {
    "made no optimizer step": 'dist.init_process_group("gloo")',
    "started no process group and trained alone": "train(nn.Linear(32, 32), 100)",
    "an epoch is one short batch (13 of 32 samples)": """
        dist.init_process_group("gloo")
        data = TensorDataset(torch.randn(100, 32))
        model = DistributedDataParallel(nn.Linear(32, 32))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
        for epoch in range(300):
            for (batch,) in loader:
                model(batch).square().mean().backward()
                optimizer.step()
        """,
    "an epoch has no batch: 8 ranks with 32 samples each": """
        dist.init_process_group("gloo")
        data = TensorDataset(torch.randn(100, 32))
        for batch in DataLoader(data, batch_size=32, sampler=DistributedSampler(data), drop_last=True):
            pass
        """,
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_script_that_says_nothing_as_rank_zero_is_refused(why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        run(tmp_path, REFUSED[why])
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_copies_that_make_no_step_are_refused_as_one_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"made no optimizer step: it has to train with torch\.optim"):
        run(tmp_path, 'dist.init_process_group("gloo")', copies=2)


NEEDING = {
    "waits for what another rank puts into the store": 'dist.distributed_c10d._get_default_store().get("of another")',
    "objects that another rank broadcasts are not known": """
        told = [None]
        dist.broadcast_object_list(told, src=7)
        assert told[0] == "train"
        """,
    "what another rank scatters (scatter) is not known": "dist.scatter_object_list([None], None, src=7)",
    "what another rank sends (recv) is not known": """
        steps = torch.zeros(1)
        dist.recv(steps, src=7)
        train(DistributedDataParallel(nn.Linear(32, 32)), int(steps))
        """,
}


@pytest.mark.parametrize("why", NEEDING)
def test_a_script_that_needs_what_another_rank_would_tell_it_is_refused(why: str, tmp_path: Path) -> None:
    script = f'dist.init_process_group("gloo")\n{textwrap.dedent(NEEDING[why])}'
    with pytest.raises(UsageError) as refused:
        run(tmp_path, script)
    assert "it needs real ranks" in str(refused.value)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_script_that_shards_one_model_and_wraps_another_in_ddp_is_told_apart(tmp_path: Path) -> None:
    record = run(
        tmp_path,
        """
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("gloo")
        sharded = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        for layer in sharded:
            fully_shard(layer)
        whole, sharded = DistributedDataParallel(nn.Linear(32, 32)), fully_shard(sharded)
        optimizer = torch.optim.SGD([*whole.parameters(), *sharded.parameters()], lr=1e-3, foreach=False)
        while True:
            (sharded(torch.randn(8, 32)).square().mean() + whole(torch.randn(8, 32)).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    assert record.engine == "ddp"
    assert {message.operation for message in record.messages} == {"all_reduce", "all_gather", "reduce_scatter"}
    assert any("sharded by FSDP2" in warning for warning in record.warnings)


FAILING = {
    "RuntimeError: Mesh should not be bigger than default world size": """
        from torch.distributed.device_mesh import init_device_mesh
        init_device_mesh("cpu", (3, 4))
        """,
    "hangs in <module> (train.py, line": """
        import time
        dist.init_process_group("gloo")
        print("asleep", flush=True)
        time.sleep(600)
        """,
}
ALIVE = 'until grep -qs asleep ../records/launcher.out; do echo not yet; sleep 2; done & exec "$@"'
"""Signs of life until the script sleeps: importing torch takes long on a busy machine."""


@pytest.mark.parametrize("why", FAILING)
def test_a_script_that_needs_other_ranks_ends_with_the_reason(why: str, tmp_path: Path) -> None:
    sleeping = {"command": ("sh", "-c", ALIVE, "sh", sys.executable, "train.py"), "timeout_s": 8.0}
    with pytest.raises(WorkFailed) as failed:
        run(tmp_path, FAILING[why], **sleeping if "sleep" in FAILING[why] else {})
    assert why in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_line_that_other_programs_start_ranks_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave mpirun out of the command"):
        run(tmp_path, "", command=("mpirun", "-np", "4", "python", "train.py"))


def test_an_interrupt_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f'{BEGINNING}\ndist.init_process_group("gloo")\ntrain(DistributedDataParallel(nn.Linear(32, 32)))\n'
    )
    code = (
        "from pathlib import Path; from scalescope.jobs.rank_zero import run_as_rank_zero; "
        f"run_as_rank_zero(({sys.executable!r}, 'train.py'), np=8, folder=Path('records').absolute(), seconds=600.0)"
    )
    started = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL)
    mark, limit = of_folder(str(tmp_path)), time.monotonic() + 60
    while not list((tmp_path / "records").glob("agent-*")) and time.monotonic() < limit:
        time.sleep(0.1)
    assert list(carrying(mark))
    os.kill(started.pid, signal.SIGINT)
    started.wait(60)
    assert list(carrying(mark)) == []


def test_a_torn_line_of_a_full_disk_leaves_the_rest_readable(tmp_path: Path) -> None:
    path = tmp_path / "agent-host-1.jsonl"
    path.write_text('{"kind": "rank_zero_step", "samples": 3\n{"kind": "rank_zero_end", "why": "enough"}\n')
    seen = read_process(path)
    assert seen is not None
    assert seen.end.why == "enough"
