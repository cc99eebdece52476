"""Programs of ours in ranks: what they are started with, how far they are, and what is said when they fail."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from scalescope import host
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs import rank_program
from scalescope.jobs.folders import mark_of
from scalescope.jobs.plan import ALLOCATOR, CARRIED_TO_HOSTS
from scalescope.jobs.rank_program import USAGE_MARK, RankProgram, run_ranks, starting_s
from scalescope.launchers.runner import LAUNCHER_OUTPUT
from scalescope.records.job import Command, Ending, Host, Job, Knobs


class Task(msgspec.Struct):
    size: int


class Runner:
    """Stands in for what starts processes."""

    def __init__(self) -> None:
        self.problem = ""
        self.prints: dict[str, str] = {}
        self.seen: Any = None

    def run(self, commands: tuple[Command, ...], job: Job, watch: Any, *, timeout_s: float) -> Ending:
        self.seen = SimpleNamespace(commands=commands, job=job, timeout_s=timeout_s, stalled=watch.stalled(9.6))
        self.seen.ticks = [watch.tick()]
        for name, text in self.prints.items():
            Path(job.folder, name).write_text(text)
        self.seen.ticks.append(watch.tick())
        return Ending(started_ns=0, ended_ns=1, started_wall_ns=0, problem=self.problem)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    made = Runner()
    monkeypatch.setattr(rank_program, "run", made.run)
    return made


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., RankProgram]:
    def make(**changes: Any) -> RankProgram:
        fields = {"module": "some.module", "task": Task(size=3), "np": 2, "knobs": Knobs(engine="ddp")}
        return RankProgram(**{**fields, "folder": tmp_path / "probe", "writes": "lines-*.jsonl", **changes})

    return make


def test_ranks_get_their_task_and_their_environment(runner: Runner, program: Callable[..., RankProgram]) -> None:
    given = program(env={"TOKEN": "hunter2", "MALLOC_TOP_PAD_": "1"})
    run_ranks(given)
    job, folder = runner.seen.job, given.folder
    assert mark_of(folder) == "ranks"
    assert job.command == (sys.executable, "-m", "some.module", str(folder / "task.json"))
    assert msgspec.json.decode((folder / "task.json").read_bytes()) == {"size": 3}
    assert (job.np, job.folder, job.threads_per_rank, job.hosts, job.ssh) == (2, str(folder), 1, (), "ssh")
    assert (job.python, job.cwd, runner.seen.timeout_s) == (sys.executable, str(Path.cwd()), 600.0)
    assert job.launch.startswith("probe-")
    assert 0 < job.port < 65536
    assert job.env == {**ALLOCATOR, "GLOO_SOCKET_IFNAME": "lo", "TOKEN": "hunter2", "MALLOC_TOP_PAD_": "1"}
    assert "torch.distributed.run" in runner.seen.commands[0].argv
    written = (folder / "command.txt").read_text()
    assert "TOKEN=***" in written
    assert "hunter2" not in written


def test_ranks_on_hosts_get_paths_from_here_and_no_loopback(
    runner: Runner, program: Callable[..., RankProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CARRIED_TO_HOSTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    hosts = (Host("a", 1), Host("b", 1))
    run_ranks(program(hosts=hosts, launcher="mpirun", ssh="myssh", threads_per_rank=4))
    job = runner.seen.job
    assert job.env == {**ALLOCATOR, "VIRTUAL_ENV": "/venv"}
    assert (job.hosts, job.ssh, job.threads_per_rank) == (hosts, "myssh", 4)
    assert runner.seen.commands[0].argv[0] == "mpirun"
    run_ranks(program())
    assert "VIRTUAL_ENV" not in runner.seen.job.env


def test_whole_lines_of_all_ranks_show_that_it_goes_on(runner: Runner, program: Callable[..., RankProgram]) -> None:
    runner.prints = {"lines-0.jsonl": "{}\n{}\n", "lines-1.jsonl": "{}\n{", "other.jsonl": "{}\n"}
    run_ranks(program(timeout_s=5.0))
    assert runner.seen.ticks == [0, 3]
    assert runner.seen.timeout_s == 5.0
    assert runner.seen.stalled == ("nothing happened for 10 s: raise --timeout if it takes longer here", "")


def test_a_usage_error_of_a_rank_is_the_error_of_the_launch(
    runner: Runner, program: Callable[..., RankProgram]
) -> None:
    runner.problem = "exit code 2"
    runner.prints = {"rank0.out": "Error\n", "rank1.out": f"x\n{USAGE_MARK} no GPU here: use --device cpu\nmore\n"}
    with pytest.raises(UsageError) as told:
        run_ranks(program())
    assert str(told.value) == "no GPU here: use --device cpu"


def test_otherwise_the_last_words_of_all_ranks_or_of_the_launcher_are_shown(
    runner: Runner, program: Callable[..., RankProgram]
) -> None:
    runner.problem = "exit code 1"
    runner.prints = {"rank0.out": "".join(f"{number}\n" for number in range(20)), "rank1.out": "b\n"}
    given = program()
    with pytest.raises(WorkFailed) as told:
        run_ranks(given)
    lines = str(told.value).splitlines()
    assert lines == [f"exit code 1 (see {given.folder})", *map(str, range(5, 20)), "b"]
    runner.prints = {LAUNCHER_OUTPUT: "no such module\n"}
    with pytest.raises(WorkFailed, match=r"exit code 1 \(see .*\)\nno such module"):
        run_ranks(given)


@pytest.mark.parametrize(("cuda", "import_s"), [(True, 5.0), (False, 2.0)])
def test_starting_takes_longer_with_more_ranks_than_cores(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, import_s: float
) -> None:
    monkeypatch.setattr(rank_program, "torch_has_cuda", lambda: cuda)
    monkeypatch.setattr(host, "cores", lambda: host.Cores(2, 4, 4.0, 2, 4))
    assert starting_s(2) == pytest.approx(2 + import_s * 1.5)
    assert starting_s(8) == pytest.approx(2 + import_s * 3)
