"""The DDP script of the examples, tuned unchanged on two hosts with a slow link, then measured with what was found."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.command import scalescope_words
from scalescope.records.run import Measurement
from scalescope.records.store import load
from scalescope.records.tuning import Tuning
from scalescope.stats import of_logarithms

FOLDER = Path("results") / "bench" / "tune_example"
RATE = "50mbit"
SCRIPT = ("examples/train_ddp.py", "--epochs", "2", "--batch-size", "8", "--samples", "9600")
LIMITS = ("--launches", "5", "--steps", "80", "--quiet")


def run() -> list[dict[str, Any]]:
    """Everything is started on the first host, as a user would."""
    sys.path.insert(0, "tests")
    from hosts import Lab

    with tempfile.TemporaryDirectory() as name:
        lab = Lab(2, RATE, Path(name))
        try:
            found = load(_done(lab, "tune", "tune") / "tuning.json", Tuning)
            knobs = [word for knob, value in found.values.items() for word in ("--knob", f"{knob}={value}")]
            steps = {
                what: [run.step_s for run in load(_done(lab, what, "measure", *LIMITS, *words), Measurement).runs]
                for what, words in (("as it is", ()), ("with the winner", tuple(knobs)))
            }
        finally:
            lab.remove()
    ratios = [one / other for one, other in zip(*steps.values(), strict=True)]
    gain = of_logarithms(ratios)
    rows = [_tuned_row(found)]
    for what, times in steps.items():
        middle = of_logarithms(times)
        told = f"{1e3 * middle.middle:.1f} ({1e3 * middle.low:.1f} to {1e3 * middle.high:.1f})"
        rows.append({"what": f"measure, {what}", "step, ms": told})
    rows[-1]["gain"] = f"{gain.middle:.2f}x ({gain.low:.2f} to {gain.high:.2f})"
    return rows


def _done(lab: Any, name: str, verb: str, *words: str) -> Path:
    """Where a verb left its results for the script on both hosts."""
    folder = FOLDER / name
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    where = ("--np", "4", "--hosts", ",".join(f"{host}:2" for host in lab.names), "--threads-per-rank", "1")
    command = scalescope_words(verb, *words, *where, "-o", str(folder), "--", sys.executable, *SCRIPT)
    lab.run("h1", command, check=True, stdout=subprocess.DEVNULL)
    return folder if verb == "tune" else folder / "measurement.json"


def _tuned_row(found: Tuning) -> dict[str, Any]:
    setting = ", ".join(f"{name} {value}" for name, value in found.values.items()) or "keep the default"
    gain = found.gain
    return {
        "what": f"tune: {setting}",
        "step, ms": f"{1e3 * (found.default_step_s or 0):.1f} to {1e3 * (found.winner_step_s or 0):.1f}",
        "gain": f"{1 + gain.value:.2f}x ({1 + gain.low:.2f} to {1 + gain.high:.2f})" if gain else "",
        "samples": sum(sample.phase != "confirm" for sample in found.samples),
        "search steps": found.cost.search_steps,
        "confirmation steps": found.cost.confirm_steps,
        "time lost, s": found.cost.lost_s,
    }
