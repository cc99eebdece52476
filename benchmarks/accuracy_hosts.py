"""Predicted against real steps on two hosts with two ranks each, over shaped links; compute is emulated by sleeping."""

import json
import subprocess
import sys
from typing import Any

from benchmarks.accuracy import FOLDER, compare, keep_points, summary
from benchmarks.accuracy_ranks import Case
from benchmarks.namespaces import lab_of
from benchmarks.table import print_table
from scalescope.estimation.link_probe import SIZES
from scalescope.estimation.probe import Group
from scalescope.records.job import Host
from scalescope.records.profile import WorkloadSpec

RATES = {"200 Mbit/s": "200mbit", "1 Gbit/s": "1gbit"}
MODEL = "benchmarks/emulated.py:emulated"
CASES = (
    Case(workload=WorkloadSpec(model=MODEL), batches=(8, 16, 32)),
    Case(workload=WorkloadSpec(model=MODEL, model_args={"layers": 4, "kilobytes": 2048}), batches=(16, 64)),
    Case(
        workload=WorkloadSpec(model=MODEL, model_args={"layers": 60, "kilobytes": 64, "microseconds": 50.0}),
        batches=(8, 32),
    ),
)
_LARGEST = 16 << 20  # Bytes: larger messages take seconds on the slow link, and none of the models sends one


def run() -> list[dict[str, Any]]:
    """One laboratory per rate; the ranks are started from its first host, as a user would."""
    rows, points = [], []
    for name, rate in RATES.items():
        with lab_of(2, rate) as lab:
            words = [sys.executable, "-m", "benchmarks.accuracy_hosts", *lab.names, rate]
            done = lab.run("h1", words, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print_table(found)
        points += found
        keep_points("accuracy_hosts", points)
        rows.append({"link": name, **summary(found)})
    return rows


def inside(names: list[str], rate: str) -> list[dict[str, Any]]:
    """On the first host: the comparison itself."""
    hosts = tuple(Host(name, 2) for name in names)
    group = Group(backend="gloo", ranks=2 * len(hosts), nodes=len(hosts), hosts=hosts)
    sizes = [size for size in SIZES if size <= _LARGEST]
    rows = compare(CASES, group, 3, FOLDER / rate, sizes)
    return [{**row, "sign right": bool(row["sign right"]), "covered": bool(row["covered"])} for row in rows]


if __name__ == "__main__":
    print(json.dumps(inside(sys.argv[1:-1], sys.argv[-1])))
