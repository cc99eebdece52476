"""Runs scripts under the agent, as a launcher's child would be, and reads what it wrote."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scalescope.jobs.plan import AGENT_HOOK
from scalescope.jobs.rank_log import RankLog, read_rank_logs

BEGINNING = """
import os, sys, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step(n=4):
    optimizer.zero_grad()
    model(torch.randn(n, 8)).square().mean().backward()
    optimizer.step()
"""


HOOKED = os.pathsep.join(filter(None, [str(AGENT_HOOK), os.environ.get("PYTHONPATH", "")]))
"""PYTHONPATH of ranks with the agent: what all tests have comes after it."""


def samples(log: RankLog) -> set[int]:
    """The numbers of samples of the steps that were looked at closely; 0 stands for the others."""
    return {step.samples for step in log.steps()} - {0}


SERVER = """
import atexit, gc, json, os, sys, torch, torch._dynamo
gc.freeze()
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        exec(compile(json.loads(line), "script.py", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        atexit._run_exitfuncs(); os._exit(0)  # taking the interpreter apart takes a second
    print(child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Every line is a script that runs in a fork of this process, where torch is imported already."""


class Watched:
    """One script run under the agent."""

    def __init__(self, done: subprocess.CompletedProcess[str], logs: list[RankLog]) -> None:
        self.stdout, self.stderr, self.code, self.logs = done.stdout, done.stderr, done.returncode, logs

    @property
    def log(self) -> RankLog:
        assert len(self.logs) == 1, [log.pid for log in self.logs]
        return self.logs[0]


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., Watched]:
    def run(script: str, *words: str, code: int = 0, agent: bool = True, **env: str) -> Watched:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(script))
        folder = tmp_path / "records"
        folder.mkdir(exist_ok=True)
        around = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        if agent:
            around |= {"SCALESCOPE_FOLDER": str(folder), "PYTHONPATH": HOOKED}
        command = [word.replace("SCRIPT", str(path)) for word in words] or [sys.executable, str(path)]
        done = subprocess.run(
            command, cwd=tmp_path, env=around, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return Watched(done, read_rank_logs(folder))

    return run


class Forked:
    """Like `watch`, for scripts that need no start of their own: a forked rank is a rank, torch is slow to import."""

    def __init__(self, folder: Path, *, agent: bool = True) -> None:
        self.folder = folder
        around = {**os.environ, "OMP_NUM_THREADS": "1"}
        if agent:
            around |= {"SCALESCOPE_FOLDER": str(folder), "PYTHONPATH": HOOKED}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=folder, env=around, text=True, **pipes)

    def run(self, script: str, code: int = 0) -> int:
        """Its process id."""
        self.server.stdin.write(json.dumps(textwrap.dedent(script)) + "\n")
        self.server.stdin.flush()
        pid, ended_with = map(int, self.server.stdout.readline().split())
        assert ended_with == code, self.stderr
        return pid

    def __call__(self, script: str, code: int = 0) -> RankLog:
        pid = self.run(script, code)
        (log,) = (log for log in read_rank_logs(self.folder) if log.pid == pid)
        return log

    def ranks(self, script: str) -> list[RankLog]:
        """For a script that forks: what all of its processes wrote."""
        before = {log.pid for log in read_rank_logs(self.folder)}
        self.run(script)
        return [log for log in read_rank_logs(self.folder) if log.pid not in before]

    @property
    def stdout(self) -> str:
        """What the newest script printed."""
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    forked = Forked(tmp_path_factory.mktemp("forked"))
    with forked.server:  # closes its input, which ends it
        yield forked


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """The same without the agent."""
    plain = Forked(tmp_path_factory.mktemp("plain"), agent=False)
    with plain.server:
        yield plain


TWO_RANKS = """
import os, torch.distributed as dist
meeting = f"file://{os.getcwd()}/meeting-{os.getpid()}"
other = os.fork()
rank = int(other == 0)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
"""
"""The beginning of a script that forks a second rank."""

END_OF_TWO = """
import atexit
dist.barrier()
if rank == 0 and os.waitpid(other, 0)[1]: raise SystemExit("rank 1 failed")
atexit._run_exitfuncs(); os._exit(0)  # torch's gloo threads abort now and then after this
"""
