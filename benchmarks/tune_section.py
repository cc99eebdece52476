"""One landscape from end to end: real runs of `scalescope tune`, the measured grid, every method over its blocks."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.command import scalescope
from benchmarks.table import Unfinished, print_table
from benchmarks.tune_grid import Landscape, OutOfTime, Plan, Truth, truth_of
from benchmarks.tune_launches import landscape_by_launches
from benchmarks.tune_online import landscape_online
from benchmarks.tune_peers import compare, decide, drawing
from scalescope.logs.autotune import read_autotune
from scalescope.records.store import load
from scalescope.records.tuning import TuneRequest, Tuning, Values
from scalescope.tuner.native import LOG
from scalescope.tuner.search import OFFLINE, ONLINE, Options
from scalescope.tuner.settings import shown_value

RESULTS = Path("results") / "bench"
LONGEST_S = 16 * 60
DECISIONS = 40
COLUMNS = (
    *("landscape", "method", "runs", "samples, median", "90 %", "samples made", "from the best %", "search steps"),
    *("confirm steps", "throughput %", "worst sample", "gain %", "lower end %", "true gain %", "decision"),
)
GOAL = {
    "samples, median": "<= 8",
    "90 %": "<= 12",
    "search steps": "<= 250",
    "confirm steps": "<= 450 with the search",
    "throughput %": ">= 95",
    "worst sample": "<= 1.5",
    "lower end %": "> -3",
}


class Case(NamedTuple):
    """A training whose landscape is measured."""

    name: str
    request: TuneRequest
    plan: Plan
    steps: int  # Of a block of the grid, online
    runs: int  # Of `scalescope tune`
    native: bool = False  # Whether Horovod's own autotune has its turn too


def run_section(name: str, cases: Sequence[Case], study: "Callable[[Case, Path, float], Rows]") -> "Rows":
    """All cases of a section; what is measured is kept, and a section that ran out of time goes on where it was."""
    until = time.monotonic() + LONGEST_S
    folder = RESULTS / name
    if (folder / "finished").exists():
        shutil.rmtree(folder)
    rows: Rows = []
    for case in cases:
        try:
            found = study(case, folder / case.name.replace(" ", "_").replace("/", "_"), until)
        except OutOfTime:
            raise Unfinished(_table(rows)) from None
        print_table(_table(found))
        rows += found
    (folder / "finished").touch()
    return _table([*rows, {"landscape": "goal", **GOAL}])


Rows = list[dict[str, Any]]


def study(case: Case, folder: Path, until: float) -> Rows:
    """Real runs first, so that what they chose is measured in the grid too; then the grid and the replays."""
    tunings = real_runs(case, folder, until)
    native = native_run(case, folder, until) if case.native else None
    chosen = [tuning.values for tuning in tunings if tuning.values]
    offline = case.request.method == "offline"
    if offline:
        landscape = landscape_by_launches(case.request, case.plan, folder, chosen, until)
    else:
        landscape = landscape_online(case.request, case.plan, case.steps, folder, chosen, until)
    truth = truth_of(landscape)
    options = OFFLINE if offline else ONLINE
    kept = folder / "replays.json"
    if kept.exists():
        replays: Rows = msgspec.json.decode(kept.read_bytes())
    else:
        if time.monotonic() > until:
            raise OutOfTime
        replays = [*compare(landscape, truth, options), decisions(landscape, truth, options)]
        kept.write_bytes(msgspec.json.encode(replays))
    best = {
        "method": f"best of {len(landscape.space.settings)} ({landscape.all_settings}) settings",
        "runs": len(landscape.grid),
        "samples, median": f"{len(truth.good)} good ones",
        "decision": _shown(landscape.space.settings[truth.best]),
        "true gain %": 100 * truth.gain(truth.best),
    }
    real = [real_row(f"tune, run {number}", tuning, landscape, truth) for number, tuning in enumerate(tunings, 1)]
    if native:
        real += [native_row(native, folder / "native"), found_row(tunings, native, landscape, truth)]
    return [{"landscape": case.name, **row} for row in (best, *replays, *real)]


def decisions(landscape: Landscape, truth: Truth, options: Options) -> dict[str, Any]:
    """Whole searches over the blocks, with confirmation: what the decisions are really worth."""
    gains, ends = [], []
    for seed in range(DECISIONS):
        outcome, _ = decide(landscape.space, landscape.predicted, options, drawing(landscape, seed))
        if outcome.decision == "use" and outcome.gain:
            gains.append(truth.gain(landscape.space.settings.index(outcome.values)))
            ends.append(outcome.gain.low)
    worse = sum(gain < 0 for gain in gains)
    return {
        "method": "scalescope, decided",
        "runs": DECISIONS,
        "decision": f"{len(gains)} use another, {worse} of them slower than the default",
        "lower end %": 100 * min(ends) if ends else None,
        "true gain %": 100 * sum(gains) / DECISIONS,
    }


def real_runs(case: Case, folder: Path, until: float) -> list[Tuning]:
    """`scalescope tune` as a user runs it, several times; finished ones are kept."""
    return [tuned(case, folder / f"run{number}", until) for number in range(case.runs)]


def native_run(case: Case, folder: Path, until: float) -> Tuning:
    """Horovod's own autotune, and its choice launched beside the default."""
    return tuned(case, folder / "native", until, "--method", "native")


def tuned(case: Case, folder: Path, until: float, *options: str) -> Tuning:
    """One run."""
    record = folder / "tuning.json"
    if not record.exists():
        if time.monotonic() > until:
            raise OutOfTime
        shutil.rmtree(folder, ignore_errors=True)
        scalescope("tune", *words_of(case.request), *options, "-o", str(folder))
    return load(record, Tuning)


def words_of(request: TuneRequest) -> list[str]:
    """The request as it is written on a command line."""
    assert request.workload
    words = [request.workload.model, "--np", str(request.np), "--batch", str(request.batch), "--device", "cpu"]
    for name, value in request.workload.model_args.items():
        words += ["--model-arg", f"{name}={value}"]
    if request.hosts:
        words += ["--hosts", ",".join(f"{host.name}:{host.slots}" for host in request.hosts)]
    words += ["--engine", request.engine] if request.engine else []
    words += ["--launcher", request.launcher] if request.launcher else []
    words += ["--threads-per-rank", str(request.threads_per_rank)] if request.threads_per_rank else []
    return words


def real_row(name: str, tuning: Tuning, landscape: Landscape, truth: Truth) -> dict[str, Any]:
    """What a real run took and gave."""
    searched = [sample for sample in tuning.samples if sample.phase != "confirm"]
    good = [landscape.space.complete(landscape.space.settings[cell]) for cell in truth.good]
    visits = (n for n, each in enumerate(searched, 1) if landscape.space.complete(each.values) in good)
    cost = tuning.cost
    default_s = (tuning.default_step_s or 0.0) * landscape.mean_over_median()
    steps = cost.search_steps + cost.confirm_steps
    chosen = landscape.cell_of(tuning.values)
    online = tuning.method == "online"
    return {
        "method": name,
        "runs": 1,
        "samples, median": next(visits, "not found"),
        "samples made": len(searched),
        "from the best %": None if chosen is None else 100 * truth.regret(chosen),
        "search steps": cost.search_steps,
        "confirm steps": cost.confirm_steps,
        "throughput %": 100 * steps * default_s / cost.seconds if online and cost.seconds else None,
        "worst sample": cost.worst,
        "decision": _shown(tuning.values),
        "gain %": 100 * tuning.gain.value if tuning.gain else None,
        "lower end %": 100 * tuning.gain.low if tuning.gain else None,
        "true gain %": None if chosen is None else 100 * truth.gain(chosen),
    }


def native_row(tuning: Tuning, folder: Path) -> dict[str, Any]:
    """Horovod's autotune: what it chose, and what that is worth when it is launched in turns with the default."""
    return {
        "method": "Horovod autotune",
        "runs": 1,
        "samples made": len(read_autotune(folder / LOG).samples),
        "search steps": tuning.cost.warmup_steps,
        "decision": _shown(tuning.finalist),
        "gain %": 100 * tuning.gain.value if tuning.gain else None,
        "lower end %": 100 * tuning.gain.low if tuning.gain else None,
        "true gain %": 100 * tuning.gain.value if tuning.gain else None,
    }


def found_row(tunings: Sequence[Tuning], native: Tuning, landscape: Landscape, truth: Truth) -> dict[str, Any]:
    """In how many runs a good setting was used, and the steps of a search as a part of native's."""
    cells = [landscape.cell_of(tuning.values) for tuning in tunings]
    steps = [tuning.cost.search_steps + tuning.cost.confirm_steps for tuning in tunings]
    return {
        "method": f"found in {sum(cell in truth.good for cell in cells)} of {len(cells)} runs (goal: 4 of 5)",
        "search steps": f"{sum(steps) / len(steps) / max(native.cost.warmup_steps, 1):.2f} of native's (<= 0.33)",
    }


def _shown(values: Values) -> str:
    """A setting in one line; a switch that is on by its name alone."""
    words = [name if value is True else f"{name}={shown_value(value)}" for name, value in values.items()]
    return " ".join(words) or "the default"


def _table(rows: Rows) -> Rows:
    return [{column: row.get(column) for column in COLUMNS} for row in rows]
