"""What ranks write down, on a made-up clock."""

import json
from pathlib import Path
from typing import Any

from scalescope.agent.recorder import clock_name
from scalescope.jobs.rank_log import RankLog
from scalescope.records.job import Ending

S = 1_000_000_000


def rank_log(
    folder: Path,
    *lines: dict[str, Any],
    pid: int = 1,
    rank: int = 0,
    began_s: int = 50,
    wall_s: int = 1000,
    clock: str | None = None,
) -> RankLog:
    path = folder / f"agent-h-{pid}.jsonl"
    hello: dict[str, Any] = {"kind": "hello", "version": 1, "host": "h", "pid": pid, "rank": rank}
    hello |= {"wall_ns": wall_s * S, "t": began_s * S, "clock": clock_name() if clock is None else clock}
    path.write_text("".join(json.dumps(line) + "\n" for line in (hello, *lines)))
    log = RankLog(path)
    log.poll()
    return log


def launch(started_s: float, ended_s: float, wall_s: float = 998) -> Ending:
    """Times of the monotonic clock, and what the wall showed at the start."""
    return Ending(started_ns=int(started_s * S), ended_ns=int(ended_s * S), started_wall_ns=int(wall_s * S))


def step(start: float, end: float, optimizer: int = 0, samples: int = 8) -> dict[str, Any]:
    times = {"s": int(start * S), "f": int(start * S), "o": int(end * S), "t": int(end * S)}
    return {"kind": "step", **times, "w": 0, "n": samples, "i": optimizer}


def span(kind: str, start: float, end: float) -> dict[str, Any]:
    return {"kind": kind, "s": int(start * S), "t": int(end * S)}
