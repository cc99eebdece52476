"""Runs scripts as ranks of a search: directives lie in a folder, and what the ranks tell is read there."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from watched import HOOKED

SERVER = """
import atexit, gc, json, os, signal, sys, torch, torch._dynamo
import torch.nn.parallel, torch.distributed
gc.freeze()
for line in sys.stdin:
    task = json.loads(line)
    os.environ.update(task["env"])
    children = []
    for rank in range(task["ranks"]):
        os.environ["RANK"] = str(rank)
        child = os.fork()
        if child == 0:
            exec(compile(task["script"], "script.py", "exec"), {"__name__": "__main__"})
            atexit._run_exitfuncs(); os._exit(0)  # torch's gloo threads abort now and then after this
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps(codes), flush=True)
"""
"""Every line is a script that runs in forks of this process, one for each rank, where torch is imported already."""

BEGINNING = """
import hashlib, json, os, sys, time, torch
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["SIZE"])
dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=size)
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 64) for _ in range(12)]
plain = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
def wrapped(**options):
    return torch.nn.parallel.DistributedDataParallel(plain, **options)
def note(name, value):
    with open(f"{name}-{rank}", "w") as file:
        file.write(str(value))
def sha():
    return hashlib.sha1(b"".join(each.detach().numpy().tobytes() for each in plain.parameters())).hexdigest()
"""


class Ranks:
    """Runs scripts as ranks with the agent, in a folder in which directives lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = 0
        self.env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "SCALESCOPE_TUNE": "1"}
        around = {**os.environ, **self.env, "SCALESCOPE_FOLDER": str(folder), "PYTHONPATH": HOOKED}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with (folder / "stderr").open("w") as errors:
            self.server = subprocess.Popen(
                [sys.executable, "-c", SERVER], cwd=folder, env=around, text=True, stderr=errors, **pipes
            )

    def start(self, script: str, directives: list[dict[str, Any]], ranks: int = 2, **env: str) -> None:
        self._runs += 1
        for path in [*self.folder.glob("directive-*"), self.folder / "reports.jsonl", self.folder / "survey.json"]:
            path.unlink(missing_ok=True)
        for directive in directives:
            self.direct(directive)
        none = {"SCALESCOPE_KNOBS": "", "SCALESCOPE_SURVEY": "", "SCALESCOPE_TUNE": "1"}
        around = {**none, "MEETING": str(self.folder / f"meeting-{self._runs}"), "SIZE": str(ranks), **env}
        task = {"script": script, "env": around, "ranks": ranks}
        self.server.stdin.write(json.dumps(task) + "\n")
        self.server.stdin.flush()

    def finish(self) -> list[int]:
        return json.loads(self.server.stdout.readline())

    def run(self, script: str, directives: list[dict[str, Any]], ranks: int = 2, **env: str) -> list[dict[str, Any]]:
        self.start(script, directives, ranks, **env)
        assert self.finish() == [0] * ranks, self.errors
        return self.lines()

    def direct(self, directive: dict[str, Any]) -> None:
        path = self.folder / f"directive-{directive['id']:05d}.json"
        path.with_suffix(".partial").write_text(json.dumps(directive))
        path.with_suffix(".partial").replace(path)

    def lines(self) -> list[dict[str, Any]]:
        path = self.folder / "reports.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def noted(self, name: str, rank: int = 0) -> str:
        return (self.folder / f"{name}-{rank}").read_text()

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path_factory.mktemp("ranks"))
    with ranks.server:  # closes its input, which ends it
        yield ranks


def sample(number: int, values: dict[str, Any], steps: int = 6, **more: Any) -> dict[str, Any]:
    return {"id": number, "kind": "sample", "values": values, "discard": 2, "steps": steps, "check": 3, **more}


def one(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (line for line in lines if line["kind"] == kind)
    return found
