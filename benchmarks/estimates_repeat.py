"""Estimates in a row of models that are not built in, each followed by real launches: do they repeat, and do they hold?

`REVISION=COMMIT` makes estimates and launches with the source of another commit, into a folder of its own.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median, stdev
from typing import Any

from benchmarks.accuracy import keep_points
from benchmarks.structure import ROOT, source_at
from benchmarks.table import Unfinished, print_table
from scalescope import host
from scalescope.records.cluster_file import load_cluster
from scalescope.records.profile import ModelProfile
from scalescope.records.run import QUIET, Run
from scalescope.records.store import load, load_lines
from scalescope.stats import PREDICTED, normal_width

FOLDER = (Path("results") / "bench" / "estimates_repeat").absolute()
MODELS = {"Recurrent": ("32x64", 32), "Separable": ("3x32x32", 16), "Halving": ("3x32x32", 16)}  # Inputs and batch
NP = "1,4,16" if host.cores().logical >= 16 else "1,2"
COUNT = 5
SECONDS = 18 * 60.0  # A run of this section begins no estimate after this; the next run continues


def run() -> list[dict[str, Any]]:
    """All estimates and launches; those of an interrupted run are kept."""
    revision = os.environ.get("REVISION", "")
    folder = FOLDER / (revision or "here")
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as unpacked:
        source = source_at(revision, Path(unpacked)) if revision else ROOT / "src"
        for number in range(1, COUNT + 1):
            for model in MODELS:
                if time.monotonic() - began > SECONDS and not (folder / f"{model}-{number}.json").exists():
                    raise Unfinished(_tables(folder))
                _make(folder, model, number, source)
    return _tables(folder)


def _make(folder: Path, model: str, number: int, source: Path) -> None:
    """One estimate, then one launch of the bare model, of one process under DDP, and of each larger size."""
    done = folder / f"{model}-{number}.json"
    if done.exists():
        return
    inputs, batch = MODELS[model]
    words = (f"benchmarks.unseen:{model}", "--input", inputs, "--np", NP, "--batch", str(batch))
    mark = f"{time.time():.0f}"
    kept: dict[str, Any] = {}
    for verb, more in (("estimate", ()), ("measure", ("--launches", "1"))):
        place, started = folder / f"{verb}-{model}-{number}-{mark}", time.monotonic()
        made = subprocess.run(
            [sys.executable, "-m", "scalescope", verb, "--json", *words, *more, "-o", str(place)],
            env={
                **os.environ,
                "PYTHONPATH": f"{source}:{ROOT}",
                "XDG_CACHE_HOME": str(folder / f"cache-{mark}"),  # none learns from another
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"scalescope {verb} of {model} ended with {made.returncode}:\n{made.stderr[-2000:]}")
        kept |= {verb: json.loads(made.stdout), f"{verb} folder": str(place)}
        kept[f"{verb} seconds"] = time.monotonic() - started
    done.write_text(json.dumps(kept))


def _tables(folder: Path) -> list[dict[str, Any]]:
    made = {
        model: [json.loads(path.read_text()) for path in sorted(folder.glob(f"{model}-?.json"))] for model in MODELS
    }
    checks = [check for model, kept in made.items() for one in kept for check in _checks(model, one)]
    if not checks:
        return []
    print_table(_variances(made))
    rows = []
    for cell in dict.fromkeys((check["model"], check["cell"]) for check in checks):
        of = [check for check in checks if (check["model"], check["cell"]) == cell]
        trusted = [check["predicted"] for check in of if check["trusted"]]
        real = [check["real"] for check in of]
        rows.append(
            {
                "model": cell[0],
                "cell": cell[1],
                "estimates": len(of),
                "predicted ms": 1e3 * geometric_mean([check["predicted"] for check in of]),
                "measured ms": 1e3 * geometric_mean(real),
                "largest over smallest trusted (goal 1.10)": max(trusted) / min(trusted) if trusted else None,
                "of the launches": max(real) / min(real),
                "inside": f"{sum(check['covered'] for check in of)} of {len(of)}",
                "median half-width %": median(check["half-width %"] for check in of),
            }
        )
    print_table(rows)
    keep_points("estimates_repeat", checks)
    inside, quiet = sum(check["covered"] for check in checks), [check for check in checks if check["quiet"]]
    low, high = wilson(inside, len(checks))
    once = [one for kept in made.values() for one in kept]
    return [
        {
            "estimates": len(once),
            "launches inside 90 %": f"{inside} of {len(checks)}",
            "its interval % (goal 85-95)": f"{100 * low:.0f} to {100 * high:.0f}",
            "median half-width %": median(check["half-width %"] for check in checks),
            "of several processes": median(
                check["half-width %"] for check in checks if check["cell"] not in ("bare", "ddp np 1")
            ),
            "trusted of the quiet % (goal 80)": 100 * fmean(check["trusted"] for check in quiet) if quiet else None,
            "worst repeat (goal 1.10)": max(row["largest over smallest trusted (goal 1.10)"] or 0 for row in rows),
            "worst of launches": max(row["of the launches"] for row in rows),
            "seconds of an estimate": median(one["estimate seconds"] for one in once),
        }
    ]


def _checks(model: str, kept: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A launch and what was predicted for it; of one process under DDP the bare step and what DDP itself costs."""
    document = kept["estimate"]
    cells = {cell["np"]: cell for cell in document["cells"]}
    profile = load(Path(kept["estimate folder"]) / "profile.json", ModelProfile)
    busy = max(point.foreign_cores for point in profile.points) > QUIET
    for launch in load_lines(Path(kept["measure folder"]) / "runs.jsonl", Run):
        cell, real = cells[launch.point.np], launch.mean_step_s
        added = (profile.ddp_s or 0.0) if launch.point.engine == "ddp" and launch.point.np == 1 else 0.0
        longer = 1 + max(added, 0.0) / cell["step_s"]
        low, high = cell["low_s"] * longer, cell["high_s"] * longer
        yield {
            "model": model,
            "cell": "bare" if launch.point.engine == "none" else f"ddp np {launch.point.np}",
            "predicted": cell["step_s"] * longer,
            "real": real,
            "covered": low <= real <= high,
            "half-width %": 100 * (math.sqrt(high / low) - 1),
            "error %": 100 * (cell["step_s"] * longer / real - 1),
            "trusted": document["trusted"],
            "quiet": not busy and (launch.load is None or launch.load.foreign_cores <= QUIET),
        }


def _variances(made: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Relative standard deviations: as one estimate states them, from estimate to estimate, and of the launches."""
    rows = []
    for model, kept in made.items():
        profiles = [load(Path(one["estimate folder"]) / "profile.json", ModelProfile) for one in kept]
        clusters = [load_cluster(Path(one["estimate folder"]) / "cluster.toml") for one in kept]
        links = [next(costs for costs in each.costs if costs.operation == "allreduce") for each in clusters]
        parts: dict[str, tuple[list[float], list[float]]] = {
            "profile": ([each.points[0].step_s for each in profiles], [each.points[0].error for each in profiles]),
            "contention": ([each.crowds[0].slowdown for each in profiles], [each.crowds[0].error for each in profiles]),
            "links": ([geometric_mean(each.seconds) for each in links], [each.error for each in links]),
        }
        for name, (values, errors) in parts.items():
            rows.append({"model": model, "part": name, "within %": 100 * median(errors), "between %": _spread(values)})
        runs = [run for one in kept for run in load_lines(Path(one["measure folder"]) / "runs.jsonl", Run)]
        for engine, np in dict.fromkeys((each.point.engine, each.point.np) for each in runs):
            of = [each for each in runs if (each.point.engine, each.point.np) == (engine, np)]
            rows.append(
                {
                    "model": model,
                    "part": f"launches, {engine} np {np}",
                    "within %": 100 * median(_known_within(each.blocks) for each in of),
                    "between %": _spread([each.mean_step_s for each in of]),
                }
            )
    return rows


def _spread(values: Sequence[float]) -> float | None:
    return 100 * stdev(map(math.log, values)) if len(values) > 1 else None


def _known_within(blocks: Sequence[float]) -> float:
    """Relative standard error of a launch's mean step, by its blocks."""
    return stdev(map(math.log, blocks)) / math.sqrt(len(blocks)) if len(blocks) > 1 else math.nan


def wilson(count: int, of: int) -> tuple[float, float]:
    """The interval of a share, with the level of predictions."""
    z, share = normal_width(PREDICTED), count / of
    middle, half = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)
