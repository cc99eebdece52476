"""Landscapes of 2 hosts x 2 ranks over shaped links, started on the first host; compute is emulated by sleeping."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.namespaces import lab_of
from benchmarks.tune_grid import OutOfTime, Plan
from benchmarks.tune_section import Case, Rows, run_section, study
from scalescope.records.job import Host
from scalescope.records.profile import WorkloadSpec
from scalescope.records.tuning import TuneRequest
from scalescope.tuner.space import ON_REQUEST

# 6.8 MB of gradients.
MODEL = WorkloadSpec(model="benchmarks/emulated.py:emulated", model_args={"layers": 13, "kilobytes": 512})
REQUEST = TuneRequest(workload=MODEL, np=4, batch=8, threads_per_rank=1, search=ON_REQUEST)
CASES = (
    Case("2 hosts, 200 Mbit/s", REQUEST, Plan(rounds=2, again=6, most_cells=48), steps=5, runs=3),
    Case("2 hosts, 1 Gbit/s", REQUEST, Plan(rounds=3, again=8, most_cells=48), steps=6, runs=3),
)
RATES = {"2 hosts, 200 Mbit/s": "200mbit", "2 hosts, 1 Gbit/s": "1gbit"}
GOAL_GAIN = {"landscape": "goal at 200 Mbit/s", "true gain %": ">= 50"}


def run() -> list[dict[str, Any]]:
    """One laboratory per rate."""
    return [*run_section("tune_hosts", CASES, in_laboratory), GOAL_GAIN]


def in_laboratory(case: Case, folder: Path, until: float) -> Rows:
    """The study on the first of two hosts."""
    folder.mkdir(parents=True, exist_ok=True)
    with lab_of(2, RATES[case.name]) as lab:
        left = str(until - time.monotonic())
        words = [sys.executable, "-m", "benchmarks.tune_hosts", case.name, str(folder), left, *lab.names]
        done = lab.run("h1", words, check=True, stdout=subprocess.PIPE, text=True)
    found: Rows | None = json.loads(done.stdout.splitlines()[-1])
    if found is None:
        raise OutOfTime
    return found


def inside(name: str, folder: Path, seconds: float, hosts: list[str]) -> Rows | None:
    """On the first host; None: out of time."""
    case = next(case for case in CASES if case.name == name)
    request = msgspec.structs.replace(case.request, hosts=tuple(Host(host, 2) for host in hosts))
    try:
        return study(case._replace(request=request), folder, time.monotonic() + seconds)
    except OutOfTime:
        return None


if __name__ == "__main__":
    print(json.dumps(inside(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])))
