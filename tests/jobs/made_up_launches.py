"""Launches in which what starts processes is replaced by what they would leave."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_up_ranks import S, rank_log, step

from scalescope.host import Cores
from scalescope.jobs.launch import launch
from scalescope.jobs.plan import Settings, points, resolve
from scalescope.launchers.runner import LAUNCHER_OUTPUT
from scalescope.progress import Progress
from scalescope.records.job import Command, Ending, Job
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Failure, Point, Run

MLP = WorkloadSpec(model="mlp")
HERE = Cores(2, 8, 8.0, 2, 8)
TORCHRUN = "  rank      : 0 (local_rank: 0)\n  exitcode  : {} (pid: 7)\n"
SCRIPT = (sys.executable, "x.py")


def settled(folder: Path, **fields: Any) -> Settings:
    model: dict[str, Any] = {} if "command" in fields else {"workload": MLP}
    request = MeasureRequest(**model, **fields)
    return resolve(request, folder, here=HERE, gpus=0, ask=lambda names, *_: (dict.fromkeys(names, HERE), []))


Does = Callable[[Job, Any], str]


class Runner:
    """Stands in for what starts processes: does one thing after the other, the last one again and again."""

    def __init__(self) -> None:
        self.does: list[Does] = []
        self.jobs: list[Job] = []
        self.first_words: list[str] = []
        self.timeouts: list[float] = []

    def run(self, commands: tuple[Command, ...], job: Job, watch: Any, *, timeout_s: float) -> Ending:
        self.jobs.append(job)
        self.timeouts.append(timeout_s)
        self.first_words.append(commands[0].argv[0])
        do = self.does.pop(0) if len(self.does) > 1 else self.does[0]
        problem = do(job, watch)
        watch.tick()
        return Ending(started_ns=48 * S, ended_ns=90 * S, started_wall_ns=998 * S, problem=problem)


def trains(job: Job, _: object, steps: int = 20) -> str:
    """Every rank makes steps of one second."""
    for rank in range(job.np):
        group = {"kind": "rank", "rank": rank, "world_size": job.np, "backend": "gloo"}
        made = [step(60 + at, 61 + at) for at in range(steps)]
        rank_log(Path(job.folder), group, *made, {"kind": "end", "t": 89 * S}, pid=rank + 1, rank=rank)
    return ""


def says(text: str, name: str = LAUNCHER_OUTPUT, problem: str = "exit code 1", trained: bool = False) -> Does:
    def do(job: Job, watch: object) -> str:
        if trained:
            trains(job, watch)
        Path(job.folder, name).write_text(text)
        return problem

    return do


def launched(settings: Settings, point: Point | None = None) -> Run | Failure:
    return launch(settings, 3, point or points(settings)[-1], 30, Progress())
