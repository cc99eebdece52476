"""Real launches of a configuration against itself: how many of the intervals contain 1?"""

import random
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.command import scalescope_words
from benchmarks.table import Unfinished
from scalescope.records.run import Measurement
from scalescope.records.scaling import Estimate, estimate
from scalescope.records.store import load

STUDIES, ROUNDS, ARMS = 50, 5, "AB"
# One run of this section goes on for so long; the next one continues. Several may run at the same time.
SECONDS = 18 * 60
FOLDER = Path("results") / "bench" / "aa"
CONFIGURATION = ("mlp", "--np", "2", "--relative-to", "smallest", "--batch", "8", "--steps", "30", "--launches", "1")


def run() -> list[dict[str, Any]]:
    began = time.monotonic()
    for study in random.sample(range(STUDIES), STUDIES):
        for number in range(1, ROUNDS + 1):
            for arm in random.sample(ARMS, len(ARMS)):
                if time.monotonic() - began > SECONDS:
                    raise Unfinished(_rows())
                _launch(FOLDER / f"{study:02d}" / f"{number}{arm}")
    return _rows()


def _launch(folder: Path) -> None:
    """One launch; made again only where it was interrupted."""
    if (folder / "scaling.json").exists():
        return
    words = ("--resume", str(folder)) if (folder / "plan.json").exists() else (*CONFIGURATION, "-o", str(folder))
    done = subprocess.run(scalescope_words("measure", *words, "-q"), capture_output=True, text=True, check=False)
    print(f"  {folder.parent.name}/{folder.name}: {done.stdout.strip() or done.stderr.strip()}", flush=True)


def _rows() -> list[dict[str, Any]]:
    found = [ratio for folder in sorted(FOLDER.glob("*")) if (ratio := _ratio(folder))]
    widths = sorted((each.high - each.low) / 2 for each in found)
    return [
        {
            "A/A studies": len(found),
            "contain 1": sum(each.low <= 1 <= each.high for each in found),
            "goal": f"43 of {STUDIES}",
            "half-width, median": widths[len(widths) // 2] if widths else None,
            "launches of each arm": ROUNDS,
        }
    ]


def _ratio(study: Path) -> Estimate | None:
    """A over B, round by round; None before all launches are there."""
    steps = {
        path.parent.name: load(path, Measurement).runs[0].step_s for path in sorted(study.glob("*/measurement.json"))
    }
    rounds = [str(number) for number in range(1, ROUNDS + 1)]
    if not all(number + arm in steps for number in rounds for arm in ARMS):
        return None
    return estimate([steps[number + "A"] / steps[number + "B"] for number in rounds])
