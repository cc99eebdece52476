"""Requests and settings of measurements that start nothing."""

import sys
from typing import Any

from scalescope.jobs.plan import Settings
from scalescope.records.job import Knobs
from scalescope.records.request import MeasureRequest

COMMAND = (sys.executable, "train.py")


def request(**more: Any) -> MeasureRequest:
    usual = {"command": COMMAND, "np": (1,), "engines": ("ddp",), "device": "cpu", "oversubscribe": True, "seed": 1}
    return MeasureRequest(**{**usual, "folder": "out", **more})


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
