"""Estimates in a row of models that are not built in, each followed by real launches: do they repeat, do they hold?"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median, stdev
from typing import Any

import numpy as np

from benchmarks.accuracy import keep_points
from benchmarks.shared import LONGEST_S, ROOT, Unfinished, print_table, scalescope
from scalescope import host
from scalescope.jobs.train_model import LAUNCH_S, is_enough
from scalescope.records.cluster_file import load_cluster
from scalescope.records.profile import ModelProfile
from scalescope.records.run import QUIET, Run
from scalescope.records.store import load, load_lines
from scalescope.stats import PREDICTED, half_width, normal_width

FOLDER = (Path("results") / "bench" / "estimates_repeat").absolute()
MODELS = {"Recurrent": ("32x64", 32), "Separable": ("3x32x32", 16), "Halving": ("3x32x32", 16)}  # Inputs and batch
NP = "1,4,16" if host.cores().logical >= 16 else "1,2"
COUNT = 5


def estimates_repeat() -> list[dict[str, Any]]:
    """All estimates and launches; those of an interrupted run are kept."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for number in range(1, COUNT + 1):
        for model in MODELS:
            if (FOLDER / f"{model}-{number}.json").exists():
                continue
            if time.monotonic() - began > LONGEST_S:
                raise Unfinished(_tables())
            _make(model, number)
    return _tables()


def _make(model: str, number: int) -> None:
    """One estimate, then one launch of the bare model, of one process under DDP, and of each larger size."""
    inputs, batch = MODELS[model]
    words = (f"benchmarks.models:{model}", "--input", inputs, "--np", NP, "--batch", str(batch))
    mark = f"{time.time():.0f}"
    kept: dict[str, Any] = {}
    for verb, more in (("estimate", ()), ("measure", ("--launches", "1"))):
        place = str(FOLDER / f"{verb}-{model}-{number}-{mark}")
        # None learns from another's cache.
        around = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(FOLDER / f"cache-{mark}")}
        kept[verb], kept[f"{verb} seconds"] = scalescope(verb, *words, *more, "-o", place, env=around)
        kept[f"{verb} folder"] = place
    (FOLDER / f"{model}-{number}.json").write_text(json.dumps(kept))


def _tables() -> list[dict[str, Any]]:
    made = {
        model: [json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"{model}-?.json"))] for model in MODELS
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
        for engine, ranks in dict.fromkeys((each.point.engine, each.point.np) for each in runs):
            of = [each for each in runs if (each.point.engine, each.point.np) == (engine, ranks)]
            rows.append(
                {
                    "model": model,
                    "part": f"launches, {engine} np {ranks}",
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


STUDIES, LAUNCHES, STEP_S = 200, 5, 0.05
LOOKS = 20
BETWEEN = 0.025  # Relative standard deviation from launch to launch (estimates_repeat)
CASES = {"quiet": (0.03, 0.3), "noisy": (0.08, 0.3), "slow drift": (0.03, 0.9)}  # Noise of steps, and their memory


def launch_length() -> list[dict[str, Any]]:
    """Simulated studies of five launches each, then the launches that estimates_repeat kept."""
    print_table([_simulated(name, *case) for name, case in CASES.items()])
    runs = [run for path in sorted(FOLDER.glob("measure-*/runs.jsonl")) for run in load_lines(path, Run)]
    if not runs:
        print("no real launches yet: make bench SECTION=estimates_repeat")
    kinds = dict.fromkeys((run.point.engine, run.point.np) for run in runs)
    return [
        _real(f"{engine} np {np}", [run for run in runs if (run.point.engine, run.point.np) == (engine, np)])
        for engine, np in kinds
    ]


def _simulated(name: str, noise: float, memory: float) -> dict[str, Any]:
    random = np.random.default_rng(7)
    count = int(LAUNCH_S / STEP_S)
    looks = range(count // LOOKS, count + 1, count // LOOKS)
    share, bias = [], []
    spreads: dict[str, list[float]] = {"whole": [], "early": []}
    for _ in range(STUDIES):
        means: dict[str, list[float]] = {"whole": [], "early": []}
        for _ in range(LAUNCHES):
            pace, innovations = random.normal(1.0, BETWEEN), random.normal(0.0, noise, count)
            level, durations = 0.0, []
            for innovation in innovations:
                level = memory * level + float(innovation)
                durations.append(STEP_S * pace * max(1 + level, 0.1))
            early = next((durations[:at] for at in looks if is_enough(durations[:at])), durations)
            share.append(sum(early) / sum(durations))
            for kind, made in (("whole", durations), ("early", early)):
                means[kind].append(fmean(made[len(made) // 5 :]))
            bias.append(means["early"][-1] / means["whole"][-1] - 1)
        for kind, values in means.items():
            spreads[kind].append(stdev(values) / fmean(values))
    return {
        "simulated": name,
        "studies": STUDIES,
        "time of 10 s launches": fmean(share),
        "spread of theirs": fmean(spreads["early"]) / fmean(spreads["whole"]),
        "bias %": 100 * fmean(bias),
    }


def _real(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    steady_s = [run.phases["steady"] for run in runs]
    within = [100 * half_width(list(map(math.log, run.blocks))) for run in runs if len(run.blocks) > 1]
    return {
        "real launches": name,
        "of": len(runs),
        "median s of steps": median(steady_s),
        "ended before 10 s": sum(seconds < 0.95 * LAUNCH_S for seconds in steady_s),
        "mean known within %": median(within),
        "worst %": max(within),
    }
