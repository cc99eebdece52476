"""Launches of a training that were never made: what a search by relaunch asks for, and how long a step took."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scalescope.engines.horovod import Horovod
from scalescope.jobs.plan import Settings
from scalescope.records.job import Knobs
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Failure, Point, Run
from scalescope.records.tuning import TuneRequest, Values
from scalescope.tuner import offline

COMMAND = (sys.executable, "train.py")


def point(engine: str = "ddp") -> Point:
    """Two ranks of one thread."""
    return Point(engine=engine, np=2, batch=None, threads_per_rank=1)


def settings(folder: Path, engine: str = "ddp", **knobs: Any) -> Settings:
    """Of a training on this machine."""
    return Settings(
        request=MeasureRequest(command=COMMAND, np=(2,), env={"OURS": "yes"}),
        folder=str(folder),
        python=sys.executable,
        engines=(engine,),
        launchers={engine: "torchrun"},
        knobs={engine: Knobs(engine=engine, values=knobs)},
        hosts=(),
        slots=2,
        threads_per_rank=1,
        physical_cores={},
        named_hosts=False,
        env={},
        cwd=str(folder),
    )


def request(**more: Any) -> TuneRequest:
    """What is asked of tune."""
    return TuneRequest(**{"command": COMMAND, "np": 2, **more})


def run(at: Point, step_s: float, *, steps: int = 80, warmup_steps: int = 40, wall_s: float = 5.0) -> Run:
    """A launch with this step."""
    return Run(
        point=at,
        folder="",
        wall_s=wall_s,
        phases={"steady": wall_s},
        steps=steps,
        warmup_steps=warmup_steps,
        step_s=step_s,
        mean_step_s=step_s,
        throughput=None,
        samples_per_step=None,
        engine_seen=at.engine,
        backend="gloo",
        source="optimizer",
        ranks=(),
        warnings=("a warning",),
    )


class MadeLaunches:
    """Takes the place of `launch`, which starts ranks: keeps what is asked for and answers by the knobs."""

    def __init__(self, step_s: Callable[[Values], float | str]) -> None:
        self._step_s = step_s
        self.asked: list[tuple[Settings, int, Point, int]] = []
        self.on_launch: Callable[[Settings], object] = lambda settings: None

    def __call__(self, settings: Settings, number: int, at: Point, steps: int, progress: object) -> Run | Failure:
        """A run, or a failure where the answer is a text."""
        self.asked.append((settings, number, at, steps))
        self.on_launch(settings)
        answer = self._step_s(settings.knobs[at.engine].values)
        if isinstance(answer, str):
            return Failure(point=at, folder="", problem=answer, details="its last lines")
        return run(at, answer, steps=steps or 80)

    @property
    def values(self) -> Sequence[Values]:
        """Knobs of every launch."""
        return [settings.knobs[at.engine].values for settings, _, at, _ in self.asked]


def made(monkeypatch: pytest.MonkeyPatch, step_s: Callable[[Values], float | str]) -> MadeLaunches:
    """No process is started: neither ranks, nor one that asks Horovod how it was built."""
    launches = MadeLaunches(step_s)
    monkeypatch.setattr(offline, "launch", launches)
    monkeypatch.setattr(Horovod, "built_with", lambda *_: False)
    return launches
