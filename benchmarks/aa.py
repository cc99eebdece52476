"""Real launches of a configuration against itself: how many of the intervals contain 1?"""

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.command import scalescope
from benchmarks.table import Unfinished

STUDIES = 50
SECONDS = 18 * 60
"""One run of this section goes on for so long; the next one continues."""
FOLDER = Path("results") / "bench" / "aa"


def run() -> list[dict[str, Any]]:
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for number in range(STUDIES):
        path = FOLDER / f"{number:02d}.json"
        if path.exists():
            continue
        if time.monotonic() - began > SECONDS:
            raise Unfinished(_rows())
        folder = FOLDER / f"{number:02d}-{time.time_ns()}"
        words = ("mlp", "--aa", "--np", "2", "--batch", "8", "--steps", "30", "--launches", "5", "--seed", str(number))
        document, _ = scalescope("measure", *words, "-o", str(folder))
        (found,) = document["self_comparisons"]
        path.write_text(json.dumps(found))
        print(f"  {number + 1}: {found['ratio']['low']:.3f} to {found['ratio']['high']:.3f}", flush=True)
    return _rows()


def _rows() -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("??.json"))]
    widths = sorted((each["ratio"]["high"] - each["ratio"]["low"]) / 2 for each in found)
    return [
        {
            "A/A studies": len(found),
            "contain 1": sum(each["covers_one"] for each in found),
            "goal": f"43 of {STUDIES}",
            "half-width, median": widths[len(widths) // 2] if widths else None,
            "launches of each arm": 5,
        }
    ]
