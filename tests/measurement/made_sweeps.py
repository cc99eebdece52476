"""Requests and settings of measurements that start nothing, and a listener that keeps what it is told."""

import sys
from typing import Any

from scalescope.jobs.plan import Settings
from scalescope.records.job import Knobs
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Failure, Point, Run

COMMAND = (sys.executable, "train.py")


def request(**more: Any) -> MeasureRequest:
    usual = {"command": COMMAND, "np": (1,), "engines": ("ddp",), "device": "cpu", "oversubscribe": True, "seed": 1}
    return MeasureRequest(**{**usual, "folder": "out", **more})


class Told:
    """Keeps what a measurement says."""

    def __init__(self) -> None:
        self.plans: list[tuple[int, int, int, int, float | None]] = []
        self.begun: list[tuple[int, Point, int | None]] = []
        self.ended: list[Run | Failure] = []

    def planned(self, points: int, fewest: int, most: int, done: int, seconds: float | None) -> None:
        self.plans.append((points, fewest, most, done, seconds))

    def begins(self, index: int, point: Point, steps: int | None) -> None:
        self.begun.append((index, point, steps))

    def ends(self, outcome: Run | Failure) -> None:
        self.ended.append(outcome)

    def steps(self, count: int) -> None: ...

    def line(self, source: str, text: str) -> None: ...


def settled(**more: Any) -> Settings:
    fields: dict[str, Any] = {
        "request": request(),
        "folder": "",
        "python": sys.executable,
        "engines": ("ddp",),
        "launchers": {"ddp": "torchrun"},
        "knobs": {"ddp": Knobs(engine="ddp")},
        "hosts": (),
        "slots": 2,
        "threads_per_rank": 1,
        "physical_cores": {},
        "named_hosts": False,
        "env": {},
    }
    return Settings(**{**fields, **more})
