"""Searches over recorded landscapes; `tune_record` measures those that benchmarks/landscapes does not hold yet."""

import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from benchmarks.tune_landscape import Landscape, OutOfTime, Plan, Truth, landscape_online, load, save, truth_of
from benchmarks.tune_peers import compare, decide, drawing
from scalescope.records.profile import WorkloadSpec
from scalescope.records.tuning import TuneRequest
from scalescope.stats import relative_deviation
from scalescope.tuner.search import ONLINE

KEPT = Path(__file__).with_name("landscapes")
WORK = Path("results") / "bench" / "tune_record"
LONGEST_S = 18 * 60
MOST_SPREAD = 0.1  # Of the default's blocks: a landscape of a machine that others use tells nothing
STEPS, ROUNDS, AGAIN, CELLS = 6, 4, 4, 20


DECISIONS = 40
TENSORS = WorkloadSpec(model="benchmarks/models.py:small_tensors", model_args={"layers": 30}, inputs=("96",))
TRANSFORMER = WorkloadSpec(model="transformer", model_args={"layers": 2, "width": 128, "vocab": 2000, "sequence": 32})


class Recorded(NamedTuple):
    """A training whose landscape is kept."""

    name: str
    request: TuneRequest
    chosen_on: bool  # Whether constants were chosen on it; the others report


CNN = WorkloadSpec(model="cnn")
CASES = (
    Recorded("ddp_small_tensors", TuneRequest(workload=TENSORS, np=2, batch=16), True),
    Recorded("ddp_cnn", TuneRequest(workload=CNN, np=2, batch=8), False),
    Recorded("ddp_transformer", TuneRequest(workload=TRANSFORMER, np=2, batch=16), False),
    *(
        Recorded(
            f"horovod_{moved_by}_{name}",
            TuneRequest(workload=workload, np=2, batch=16, engine="horovod", launcher=launcher),
            name == "small_tensors",
        )
        for moved_by, launcher in (("mpi", "mpirun"), ("gloo", "horovodrun"))
        for name, workload in (("small_tensors", TENSORS), ("transformer", TRANSFORMER))
    ),
)


def tune_record() -> list[dict[str, Any]]:
    """Every case that is not kept yet, as far as the time goes; a case that was cut goes on where it was."""
    until = time.monotonic() + LONGEST_S
    rows = []
    for case in CASES:
        kept = KEPT / f"{case.name}.json"
        try:
            landscape = load(kept) or record(case, kept, until)
        except (OutOfTime, RuntimeError) as problem:
            rows.append({"landscape": case.name, "recorded": f"no: {problem}"})
            continue
        blocks = sum(len(each) for each in landscape.grid)
        rows.append({"landscape": case.name, "recorded": f"{len(landscape.space.settings)} settings, {blocks} blocks"})
    return rows


def record(case: Recorded, kept: Path, until: float) -> Landscape:
    """Rounds over the grid, then the best settings and the default once more; kept when it is whole."""
    folder = WORK / case.name
    folder.mkdir(parents=True, exist_ok=True)
    found = landscape_online(case.request, Plan(ROUNDS, AGAIN, CELLS), STEPS, folder, [], until)
    medians = [median(found.grid[at][0]) for at in range(len(found.grid))] + [median(each[0]) for each in found.again]
    if (spread := relative_deviation(medians)) > MOST_SPREAD:
        raise RuntimeError(
            f"the default's blocks differ by {spread:.0%}: remove {folder} and record on a quiet machine"
        )
    save(_rounded(found), kept)
    return found


def _rounded(landscape: Landscape) -> Landscape:
    """Four digits of every step are more than are sure."""
    short = [
        [{cell: [float(f"{step:.4g}") for step in steps] for cell, steps in each.items()} for each in rounds]
        for rounds in (landscape.grid, landscape.again)
    ]
    return msgspec.structs.replace(landscape, grid=short[0], again=short[1], predicted=None)


def tune_recorded() -> list[dict[str, Any]]:
    """Per landscape: how well the simulator orders it, and every method's samples to a good setting."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        landscape = load(KEPT / f"{case.name}.json")
        if landscape is None:
            continue
        assert landscape.survey
        landscape.predicted = landscape.space.predict(landscape.survey)  # by the simulator of today
        truth = truth_of(landscape)
        about = {
            "landscape": case.name,
            "constants": "chosen on it" if case.chosen_on else "held out",
            "settings": len(truth.step_s),
            "good": len(truth.good),
            "best gain %": 100 * truth.gain(truth.best),
            "order of the simulator": order(landscape.predicted or [], truth.step_s),
        }
        found = [*compare(landscape, truth, ONLINE), decisions(landscape, truth)]
        rows += [{**(about if row is found[0] else dict.fromkeys(about)), **_short(row)} for row in found]
    return rows


def order(predicted: list[float], measured: list[float]) -> float | None:
    """Spearman's rank correlation: 1 is the right order."""
    from scipy.stats import spearmanr

    return float(spearmanr(predicted, measured).statistic) if predicted else None


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = ("method", "samples, median", "90 %", "samples made", "from the best %", "true gain %", "decision")
    return {name: row.get(name) for name in names}


def decisions(landscape: Landscape, truth: Truth) -> dict[str, Any]:
    """Whole searches over the blocks, with confirmation: what the decisions are really worth."""
    gains, ends = [], []
    for seed in range(DECISIONS):
        outcome, _ = decide(landscape.space, landscape.predicted, ONLINE, drawing(landscape, seed))
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
