"""Runs scripts under the agent, as a launcher's child would be, and reads what it wrote."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from scalescope.measurement.plan import AGENT_HOOK
from scalescope.measurement.rank_log import RankLog, read_rank_logs

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


def samples(log: RankLog) -> set[int]:
    """The numbers of samples of the steps that were looked at closely; 0 stands for the others."""
    return {step.samples for step in log.steps()} - {0}


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
            around |= {"SCALESCOPE_FOLDER": str(folder), "PYTHONPATH": str(AGENT_HOOK)}
        command = [word.replace("SCRIPT", str(path)) for word in words] or [sys.executable, str(path)]
        done = subprocess.run(
            command, cwd=tmp_path, env=around, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return Watched(done, read_rank_logs(folder))

    return run
