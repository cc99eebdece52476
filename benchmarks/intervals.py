"""How many real steps lie inside their 90 % intervals, over all sections that compared predicted with real ones."""

import json
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.accuracy import POINTS

SECTIONS = (
    "accuracy",
    "accuracy_unseen",
    "accuracy_horovod",
    "accuracy_hosts",
    "accuracy_cores",
    "estimates_repeat",
    "estimates_busy",
)
_ENOUGH = 60


def run() -> list[dict[str, Any]]:
    """One row per section that has been run (make bench SECTION=... adds one), and all of them together."""
    kept = {name: json.loads(path.read_text()) for name in SECTIONS if (path := POINTS / f"{name}.json").exists()}
    missing = [name for name in SECTIONS if name not in kept]
    if missing:
        print(f"not run yet: {', '.join(missing)}")
    rows = [_row(name, points) for name, points in kept.items()]
    together = [point for points in kept.values() for point in points]
    if together:
        rows.append(_row(f"all ({_ENOUGH} wanted)", together))
    return rows


def _row(name: str, points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    inside = sum(point["inside"] for point in points)
    as_run = sum(point.get("inside as run", point["inside"]) for point in points)
    return {
        "section": name,
        "checks": len(points),
        "inside": inside,
        "inside % (goal 85-95)": 100 * inside / len(points),
        "at the speed of then": as_run,
        "its %": 100 * as_run / len(points),
        "median half-width % (goal 10)": median(point["half-width %"] for point in points),
        "mean error %": fmean(abs(point["error %"]) for point in points),
    }
