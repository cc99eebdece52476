"""Planted truth: a rank that is 20 ms late is named in real jobs of both engines, and none in balanced ones."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.table import Unfinished
from scalescope.api import explain
from scalescope.records.explanation import Explanation

REPEATS = 20
LATE_MS = 20
LONGEST_S = 18 * 60
FOLDER = Path("results") / "bench" / "explain_truth"
JOBS = {"ddp": ("ddp", ""), "horovod over gloo": ("horovod", "horovodrun"), "horovod over mpi": ("horovod", "mpirun")}


def run() -> list[dict[str, Any]]:
    """Late and balanced jobs by turns; a run of this section that ends early goes on where it was."""
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "named.json"
    named: dict[str, list[int | None]] = json.loads(kept.read_text()) if kept.exists() else {}
    for _ in range(REPEATS):
        for job, (engine, launcher) in JOBS.items():
            for late_ms in (0, LATE_MS):
                key = f"{job}, {late_ms} ms late"
                if len(named.setdefault(key, [])) >= REPEATS:
                    continue
                if time.monotonic() - began > LONGEST_S:
                    raise Unfinished(_rows(named))
                named[key].append(_named(engine, launcher, late_ms))
                kept.write_text(json.dumps(named))
    rows = _rows(named)
    kept.unlink()
    return rows


def _named(engine: str, launcher: str, late_ms: int) -> int | None:
    found = explained(engine, launcher, "--late-ms", str(late_ms))
    return found.straggler


def explained(engine: str, launcher: str, *options: str, env: dict[str, str] | None = None) -> Explanation:
    """A traced run of the example."""
    command = (sys.executable, "examples/slow_training.py", "--engine", engine, *options)
    folder = FOLDER / "job"
    found = explain(
        command=command, np=(2,), engine=engine, launcher=launcher, env=env, folder=folder, threads_per_rank=1
    )
    assert isinstance(found, Explanation)
    return found


def _rows(named: dict[str, list[int | None]]) -> list[dict[str, Any]]:
    return [
        {
            "job": key,
            "runs": len(ranks),
            "rank 1 named": ranks.count(1),
            "rank 0 named": ranks.count(0),
            "none named": ranks.count(None),
        }
        for key, ranks in named.items()
    ]
