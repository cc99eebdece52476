"""Records real landscapes once, small enough to be kept: grids of DDP and Horovod, switched while they train.

`make bench SECTION=tune_record` measures what benchmarks/landscapes does not hold yet; SECTION=tune_recorded searches
over what is recorded.
"""

import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from benchmarks.tune_grid import Landscape, OutOfTime, Plan, load, save
from benchmarks.tune_horovod import MID, SMALL
from benchmarks.tune_online import landscape_online
from scalescope.records.profile import WorkloadSpec
from scalescope.records.tuning import TuneRequest
from scalescope.stats import relative_deviation

KEPT = Path(__file__).with_name("landscapes")
WORK = Path("results") / "bench" / "tune_record"
LONGEST_S = 18 * 60
MOST_SPREAD = 0.1  # Of the default's blocks: a landscape of a machine that others use tells nothing
STEPS, ROUNDS, AGAIN, CELLS = 6, 4, 4, 20


class Recorded(NamedTuple):
    """A training whose landscape is kept."""

    name: str
    request: TuneRequest
    chosen_on: bool  # Whether constants were chosen on it; the others report


CNN = WorkloadSpec(model="cnn")
CASES = (
    Recorded("ddp_small_tensors", TuneRequest(workload=SMALL, np=2, batch=16), True),
    Recorded("ddp_cnn", TuneRequest(workload=CNN, np=2, batch=8), False),
    Recorded("ddp_transformer", TuneRequest(workload=MID, np=2, batch=16), False),
    *(
        Recorded(
            f"horovod_{moved_by}_{name}",
            TuneRequest(workload=workload, np=2, batch=16, engine="horovod", launcher=launcher),
            name == "small_tensors",
        )
        for moved_by, launcher in (("mpi", "mpirun"), ("gloo", "horovodrun"))
        for name, workload in (("small_tensors", SMALL), ("transformer", MID))
    ),
)


def run() -> list[dict[str, Any]]:
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
