"""Real launches of a configuration against itself: how many of the intervals contain 1?"""

import random
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.command import scalescope_words
from benchmarks.table import Unfinished
from scalescope.records.scaling import Scaling, SelfComparison
from scalescope.records.store import load

STUDIES = 50
# One run of this section goes on for so long; the next one continues. Several may run beside each other.
SECONDS = 18 * 60
FOLDER = Path("results") / "bench" / "aa"


def run() -> list[dict[str, Any]]:
    began = time.monotonic()
    for number in random.sample(range(STUDIES), STUDIES):
        folder = FOLDER / f"{number:02d}"
        if (folder / "scaling.json").exists():
            continue
        if time.monotonic() - began > SECONDS:
            raise Unfinished(_rows())
        words = ("mlp", "--aa", "--np", "2", "--batch", "8", "--steps", "30", "--launches", "5", "-o", str(folder))
        words = ("--resume", str(folder)) if (folder / "plan.json").exists() else words
        done = subprocess.run(scalescope_words("measure", *words, "-q"), capture_output=True, text=True, check=False)
        print(f"  {number}: {done.stdout.strip() or done.stderr.strip()}", flush=True)
    return _rows()


def _rows() -> list[dict[str, Any]]:
    found = [_comparison(path) for path in sorted(FOLDER.glob("*/scaling.json"))]
    widths = sorted((each.ratio.high - each.ratio.low) / 2 for each in found)
    return [
        {
            "A/A studies": len(found),
            "contain 1": sum(each.covers_one for each in found),
            "goal": f"43 of {STUDIES}",
            "half-width, median": widths[len(widths) // 2] if widths else None,
            "launches of each arm": 5,
        }
    ]


def _comparison(path: Path) -> SelfComparison:
    return load(path, Scaling).self_comparisons[0]
