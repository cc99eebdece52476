"""What capturing costs on one GPU: steps of a compiled GPT without a tracer, captured light, and with CPU detail.

Every launch traces a stretch in its middle and compares it with the steps before and after it; the untraced launch
shows how much steps differ anyway. It runs the script and the agent only, so it needs torch and nothing else of ours.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shared import print_table

FIRST, STEPS, TOTAL = 80, 40, 180  # Of the captured steps
SETTLED = 40  # Steps after which compilation and clocks have settled
ROUNDS = 3
SCRIPT = Path(__file__).with_name("gpt_training.py")
HOOK = Path(__file__).parents[1] / "src" / "scalescope" / "agent" / "hook"
WINDOWS = {"untraced": "", "light": f"{FIRST}:{STEPS}:10", "full": f"{FIRST}:{STEPS}:10:full"}


def capture_gpu(*options: str, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """One row per kind of capture, medians over rounds in which the kinds take turns."""
    out = Path(os.environ.get("OUT") or Path("results") / "bench" / "capture_gpu")
    details: list[dict[str, Any]] = []
    for round_ in range(rounds):
        for kind, window in WINDOWS.items():
            folder = out / f"{kind}-{round_}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            details.append({"capture": kind, **_launch(folder, window, options)})
    print_table(details)
    numbers = [name for name, value in details[-1].items() if not isinstance(value, str)]
    return [
        {"capture": kind}
        | {
            name: median(told)
            for name in numbers
            if (told := [row[name] for row in details if row["capture"] == kind and row.get(name) is not None])
        }
        for kind in WINDOWS
    ]


def _launch(folder: Path, window: str, options: tuple[str, ...]) -> dict[str, Any]:
    around = {**os.environ, "SCALESCOPE_FOLDER": str(folder), "PYTHONPATH": str(HOOK), "SCALESCOPE_TRACE": window}
    words = [sys.executable, str(SCRIPT), "--steps", str(TOTAL), *options]
    done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    steps = _steps(folder)
    before, inside, after = steps[SETTLED : FIRST - 1], steps[FIRST : FIRST + STEPS], steps[FIRST + STEPS + 2 :]
    untraced = median([*before, *after])
    row = {
        "step ms around": 1e3 * untraced,
        "step ms inside": 1e3 * median(inside),
        "longer %": 100 * (median(inside) / untraced - 1),
    }
    trace = folder / "trace-rank0.json.gz"
    if trace.exists():
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        busy = sum(
            event.get("dur", 0) for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        )
        row |= {
            "events": len(events),
            "GPU busy ms a step": busy / 1e3 / STEPS,
            "GPU idle, % of traced": 100 * (1 - busy / 1e6 / sum(inside)),
            "GPU idle, % of untraced": 100 * (1 - busy / 1e6 / STEPS / untraced),
            "trace MB": trace.stat().st_size / 1e6,
        }
    return row


def _steps(folder: Path) -> list[float]:
    """Seconds of every step, as the agent wrote them."""
    lines = [line for path in folder.glob("agent-*.jsonl") for line in path.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    found: list[float] = []
    for event in events:
        if event.get("kind") == "step":
            found.append((event["t"] - event["s"]) * 1e-9)
        elif event.get("kind") == "steps":
            found += [(end - start) * 1e-9 for start, end in pairwise([event["s"], *event["ends"]])]
    return found


if __name__ == "__main__":
    print_table(capture_gpu(*sys.argv[1:]))
