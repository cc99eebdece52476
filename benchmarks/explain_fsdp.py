"""Planted truth of FSDP2: 20 trainings of each kind on two real gloo ranks, and what explain says of each.

Needless synchronization, second gathers, small groups and a late rank are to be found; balanced trainings, and an
accumulation that synchronizes once, are to get none of these. Trainings of one launch follow each other.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.shared import Unfinished
from scalescope.api import explain
from scalescope.records.explanation import Explanation

REPEATS = 20
LONGEST_S = float(os.environ.get("SECONDS_LONG", 18 * 60))
FOLDER = Path("results") / "bench" / "explain_fsdp"
SCRIPT = Path(__file__).parents[1] / "tests" / "scripts" / "sharded.py"
PLANTED = {
    "synchronized": "synchronized_micro_batches",
    "gathered_twice": "second_gathers",
    "small_groups": "small_groups",
    "late": "straggler",
    "balanced": "",
    "synchronized_once": "",
}
# What is said of such trainings and true: two ranks on two cores do exchange, and on a busy machine do wait.
TRUE = ("exposed_communication", "uneven_ranks")


def explain_fsdp() -> list[dict[str, Any]]:
    """All kinds in turn; a run of this section that ends early is continued by the next one."""
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "found.json"
    found: dict[str, list[list[str]]] = json.loads(kept.read_text()) if kept.exists() else {}
    while len(found.setdefault("balanced", [])) < REPEATS:
        if time.monotonic() - began > LONGEST_S:
            raise Unfinished(_rows(found))
        for kind, findings in _found().items():
            found.setdefault(kind, []).append(findings)
        kept.write_text(json.dumps(found))
    rows = _rows(found)
    kept.unlink()
    return rows


def _found() -> dict[str, list[str]]:
    """Names of the findings of one training of each kind."""
    folder = FOLDER / "traces"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    around = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([*start, str(SCRIPT), str(folder), *PLANTED], check=True, env=around, capture_output=True)
    found = {}
    for kind in PLANTED:
        told = explain([str(folder / f"{kind}.rank{rank}.json") for rank in range(2)])
        assert isinstance(told, Explanation)
        found[kind] = [finding.id for finding in told.findings]
    return found


def _rows(found: dict[str, list[list[str]]]) -> list[dict[str, Any]]:
    rows = []
    for kind, planted in PLANTED.items():
        runs = found.get(kind, [])
        false = [[name for name in each if name not in (*TRUE, planted)] for each in runs]
        names = sorted({name for each in false for name in each})
        rows.append(
            {
                "planted": kind,
                "trainings": len(runs),
                "found": sum(planted in each for each in runs) if planted else "-",
                "with another finding": sum(map(bool, false)),
                "which": ", ".join(f"{name} {sum(name in each for each in false)}" for name in names) or "none",
                "uneven ranks": sum("uneven_ranks" in each for each in runs),
                "nothing at all": sum(not each for each in runs),
            }
        )
    return rows
