"""A slow, plain reading of a Horovod timeline, to compare with."""

import gzip
import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalescope.records.explanation import HorovodAccount
from scalescope.traces.trace import Trace

SAMPLES = Path(__file__).parent.parent / "data" / "traces" / "horovod"


def text_of(name: str) -> bytes:
    path = next(SAMPLES.glob(f"{name}.json*"))
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def events_of(name: str) -> list[dict[str, Any]]:
    return list(json.loads(text_of(name)))


@dataclass
class Reference:
    activities: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """By name: begin and end of every activity."""
    submissions: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By name of the tensor: begins of its negotiations for a reduction."""
    messages: list[int] = field(default_factory=list)
    """When the collective of each message began."""
    last_ranks: Counter[int] = field(default_factory=Counter)
    cycles: list[int] = field(default_factory=list)


def reference(events: list[dict[str, Any]]) -> Reference:
    found = Reference()
    stacks: dict[int, list[tuple[str, int]]] = defaultdict(list)
    names: dict[int, str] = {}
    ticks: dict[int, int] = {}
    sending = 0
    for event in events:
        pid = event.get("pid", 0)
        if event["ph"] == "M":
            names[pid] = event["args"].get("name", names.get(pid))
        elif event["ph"] == "i":
            found.cycles.append(event["ts"])
        elif event["ph"] == "X":
            ticks[pid] = int(event["name"])
        elif event["ph"] == "B":
            name = event["name"]
            if name in ("NEGOTIATE_ALLREDUCE", "NEGOTIATE_ADASUM", "NEGOTIATE_REDUCESCATTER"):
                found.submissions[names[pid]].append(event["ts"])
            if is_collective(name):
                sending += 1
                if sending == 1:
                    found.messages.append(event["ts"])
            stacks[pid].append((name, event["ts"]))
        elif stacks[pid]:
            name, begin = stacks[pid].pop()
            sending -= is_collective(name)
            found.activities[name].append((begin, event["ts"]))
            if pid in ticks:
                found.last_ranks[ticks.pop(pid)] += 1
    return found


def is_collective(name: str) -> bool:
    return name.startswith(("MPI_", "GLOO_", "NCCL_", "CCL_"))


def covered(spans: list[tuple[int, int]], start: float, end: float) -> float:
    """How much of the window lies in any of the spans."""
    total, reached = 0.0, start
    for first, last in sorted(spans):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total += last - first
            reached = last
    return total


def steady_account(trace: Trace, warmup: int = 1) -> HorovodAccount:
    """What Horovod's thread did after the first steps."""
    assert trace.horovod is not None
    return trace.horovod(float(trace.starts_s[warmup]) if len(trace.starts_s) > warmup else -math.inf)
