"""Ten estimates of the cnn in a row next to a program that takes one core in bursts.

Which cell do they recommend, how wrong are they, and do they say so?
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.accuracy import keep_points
from benchmarks.shared import Unfinished, print_table, scalescope
from scalescope.records.prediction import Advice, Cell
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EFFICIENCY_GOAL
from scalescope.records.run import Run
from scalescope.records.store import load, load_lines
from scalescope.simulator.grid import profile_doubts, recommend

FOLDER = (Path("results") / "bench" / "estimates").absolute()
COUNT = 10
GRID = ("--np", "1,2", "--batch", "8,16,...,256")
LAUNCHES = "2"
TRUTH = ("--budget", "150s")
SECONDS = 17 * 60.0  # A run of a section begins no estimate after this; the next run continues
OFF = 0.25  # An error that has to be announced
BURSTS = """
import random, time
chance = random.Random(7)
while True:
    ends = time.monotonic() + chance.uniform(0.5, 3.0)
    while time.monotonic() < ends:
        pass
    time.sleep(chance.uniform(1.0, 5.0))
"""  # One core is busy about a third of the time


def estimates_busy() -> list[dict[str, Any]]:
    """Ten estimates; those that an interrupted run finished are kept."""
    folder = FOLDER / "busy"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # they learn from each other, and from nothing else
    truth, began, points = _truth(), time.monotonic(), []
    rows: list[dict[str, Any]] = []
    for number in range(1, COUNT + 1):
        path = folder / f"{number}.json"
        if not path.exists():
            if time.monotonic() - began > SECONDS:
                raise Unfinished(rows)
            with _bursts():
                place, more = folder / f"{number}-{time.time():.0f}", ("--launches", LAUNCHES)
                document, seconds = scalescope("estimate", "cnn", *GRID, "--verify", "2", *more, "-o", str(place))
            path.write_text(json.dumps({**document, "seconds": seconds}))
        (profile,) = folder.glob(f"{number}-*/profile.json")
        doubts = profile_doubts(load(profile, ModelProfile))
        made = json.loads(path.read_text())
        rows.append(_row(number, made, doubts, truth))
        points += [
            {
                "covered": check["inside"],
                "covered as run": _inside_as_run(check),
                "half-width %": 100 * (math.sqrt(check["high_s"] / check["low_s"]) - 1),
                "error %": 100 * check["error"],
            }
            for check in made["checks"]
        ]
        print_table(rows[-1:])
    print_table(rows)
    keep_points("estimates_busy", points)
    return [{"estimates": "busy", **summary(rows)}]


@contextmanager
def _bursts() -> Iterator[None]:
    program = subprocess.Popen([sys.executable, "-c", BURSTS])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def _truth() -> dict[tuple[int, int], float]:
    """Measured seconds of a step of every cell, on the quiet machine; taken once.

    One process and two step in interleaved blocks, because the machine's own speed drifts.
    """
    path = FOLDER / "truth.json"
    if not path.exists():
        place = FOLDER / f"truth-{time.time():.0f}"
        scalescope("measure", "cnn", "--np", "2", *GRID[2:], "--quick", "--launches", "3", *TRUTH, "-o", str(place))
        steps = []
        runs = load_lines(place / "runs.jsonl", Run)
        for batch in sorted({run.point.batch or 0 for run in runs}):
            pairs = [pair for run in runs if run.point.batch == batch for pair in run.pairs]
            alone_s = median(alone for alone, _ in pairs)
            steps += [(1, batch, alone_s), (2, batch, alone_s * median(both / alone for alone, both in pairs))]
        path.write_text(json.dumps(steps))
    return {(np, batch): step_s for np, batch, step_s in json.loads(path.read_text())}


def _truly_best(cells: Sequence[Cell], truth: dict[tuple[int, int], float]) -> Advice | None:
    """What the same rule recommends from measured steps."""
    real = []
    for cell in cells:
        step_s = truth[cell.np, cell.batch]
        speedup = cell.np * truth[1, cell.batch] / step_s
        real.append(
            msgspec.structs.replace(
                cell,
                step_s=step_s,
                speedup=speedup,
                speedup_high=speedup,
                efficiency=speedup / cell.np,
                throughput=cell.global_batch / step_s,
            )
        )
    return recommend(real, EFFICIENCY_GOAL, len(real))


def _row(
    number: int, document: dict[str, Any], doubts: Sequence[str], truth: dict[tuple[int, int], float]
) -> dict[str, Any]:
    cells = [msgspec.convert(cell, Cell) for cell in document["cells"]]
    best = _truly_best(cells, truth)
    trusted = document["trusted"] and not doubts  # by today's rules, also of an older map
    advice = recommend(cells, EFFICIENCY_GOAL, len(cells)) if trusted else None
    assert best
    checks = document["checks"]
    halves = [math.sqrt(check["high_s"] / check["low_s"]) - 1 for check in checks]
    before = [doubt for doubt in document["doubts"] if not doubt.startswith("after the checks")]
    rate = advice.global_batch / truth[advice.np, advice.batch] if advice else None
    return {
        "number": number,
        "seconds": document["seconds"],
        "recommended": f"{advice.np} x {advice.batch}" if advice else "nothing",
        "truly best": f"{best.np} x {best.batch}",
        "its true rate over the best's": rate / best.throughput if rate else None,
        "errors %": ", ".join(f"{100 * check['error']:+.1f}" for check in checks),
        "inside": sum(check["inside"] for check in checks),
        "inside as run": sum(map(_inside_as_run, checks)),
        "checks": len(checks),
        "half-width %": 100 * median(halves),
        "paces": ", ".join(f"{check['pace'] or 1:.2f}" for check in checks),
        "worst": max(abs(check["error"]) for check in checks),
        "worst as run": max(abs(check["predicted_s"] / _as_run(check) - 1) for check in checks),
        "trusted before": not before and not doubts,
        "trusted": trusted,
        "called wrong": any(not check["inside"] and not check["disturbed"] for check in checks),
    }


def _as_run(check: dict[str, Any]) -> float:
    """The step as the launches had it, at the machine's speed at that time instead of the profile's."""
    return float(check["measured_s"] * (check["pace"] or 1.0))


def _inside_as_run(check: dict[str, Any]) -> bool:
    return bool(check["low_s"] <= _as_run(check) <= check["high_s"])


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the goals speak of."""
    checks, inside, as_run = (sum(row[name] for row in rows) for name in ("checks", "inside", "inside as run"))
    near = [row["its true rate over the best's"] for row in rows if row["its true rate over the best's"]]
    return {
        "of": len(rows),
        "truly best recommended": sum(row["recommended"] == row["truly best"] for row in rows),
        "within 5 % of its rate": sum(rate >= 0.95 for rate in near),
        "nothing recommended": sum(row["recommended"] == "nothing" for row in rows),
        "checks inside 90 %": f"{inside} of {checks} ({100 * inside / checks:.0f} %, goal 85)",
        "as run": f"{as_run} of {checks}",
        "median half-width % (goal 15)": median(row["half-width %"] for row in rows),
        "worst error %": 100 * max(row["worst"] for row in rows),
        "as run, %": 100 * max(row["worst as run"] for row in rows),
        "off by > 25 %": sum(row["worst"] > OFF for row in rows),
        "without saying so (goal 0)": sum(
            row["worst"] > OFF and row["trusted"] and not row["called wrong"] for row in rows
        ),
        "off by > 25 % and trusted before the checks": sum(
            row["worst"] > OFF and row["trusted before"] for row in rows
        ),
        "not trusted": sum(not row["trusted"] for row in rows),
        "median seconds": median(row["seconds"] for row in rows),
    }
