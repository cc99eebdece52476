"""Runs cells of a map for real, through measure."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from scalescope.engines import find_engine
from scalescope.errors import UsageError
from scalescope.estimation.calibration import deciding_cells
from scalescope.jobs.rank_program import ALLOCATOR
from scalescope.measurement.sweep import Audience, continue_measurement, measure
from scalescope.records.prediction import Cell, Check, Prediction
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EstimateRequest, MeasureRequest
from scalescope.records.run import QUIET, Measurement, Run
from scalescope.simulator.compute import work

_BLOCKS_S = 4.0  # Of interleaved blocks in each launch


def run_checks(
    request: EstimateRequest,
    prediction: Prediction,
    profile: ModelProfile,
    threads: int,
    slots: int,
    folder: Path,
    audience: Audience,
) -> tuple[Check, ...]:
    """The cells that decide the recommendation, each launched some times; launches that are there already count.

    Args:
        request: What was asked for: how many cells, how many launches of each.
        prediction: The map.
        profile: Of one process.
        threads: Of each rank, as in the profile.
        slots: Ranks that this machine takes.
        folder: Of the estimate; a measurement for each number of processes goes below it.
        audience: Told how the launches go.
    """
    chosen = deciding_cells(prediction.cells, request.verify, slots, prediction.efficiency_goal)
    if not chosen:
        raise UsageError("--verify needs a cell with 2 or more processes that this machine can run: name one with --np")
    checks: list[Check] = []
    for count in sorted({cell.np for cell in chosen}):
        cells = [cell for cell in chosen if cell.np == count]
        made = _measure(request, cells, threads, folder / f"verify-np{count}", audience)
        for cell in cells:
            runs = [run for run in made.runs if run.point.batch == cell.batch]
            if runs:
                checks.append(check_of(cell, runs, float(work(profile, [cell.batch]).step_s[0])))
    return tuple(checks)


def _measure(
    request: EstimateRequest, cells: Sequence[Cell], threads: int, folder: Path, audience: Audience
) -> Measurement:
    """One measurement of cells with the same number of processes, continued where it was interrupted.

    One process and all of them step in interleaved blocks inside each launch, because the speed of a shared machine
    drifts by more between the profile and a launch than an estimate is wrong. Where an engine's threads poll, one
    process would not be alone there, and whole launches have to do.
    """
    if (folder / "plan.json").exists():
        return continue_measurement(folder, {"timeout_s": request.timeout_s}, audience)[1]
    batches = tuple(sorted({cell.batch for cell in cells}))
    interleaved = not find_engine(request.engine).polls
    asked = MeasureRequest(
        workload=request.workload,
        np=(cells[0].np,),
        batch=batches,
        engines=(request.engine,),
        knobs=request.knobs,
        threads_per_rank=threads,
        env=ALLOCATOR,
        device=request.device,
        timeout_s=request.timeout_s,
        launches=request.launches,
        quick=interleaved,
        budget_s=_BLOCKS_S * len(batches) * request.launches if interleaved else None,
        folder=str(folder),
    )
    return measure(asked, audience)[1]


def check_of(cell: Cell, runs: Sequence[Run], alone_s: float) -> Check:
    """What the launches say that no other program disturbed, or all of them when there is none.

    Interleaved launches tell how many times longer a step of all processes takes than one of a single process; the
    check compares at the pace that the profile saw, `alone_s` for a step of one process.
    """
    quiet = [run for run in runs if run.load is None or run.load.foreign_cores <= QUIET]
    used = quiet or runs
    measured_s = [
        median(all_s / one_s for one_s, all_s in run.pairs) * alone_s if run.pairs else run.step_s for run in used
    ]
    paces = [median(one_s for one_s, _ in run.pairs) / alone_s for run in used if run.pairs]
    return Check(
        np=cell.np,
        batch=cell.batch,
        scaling=cell.scaling,
        predicted_s=cell.step_s,
        low_s=cell.low_s,
        high_s=cell.high_s,
        measured_s=median(measured_s),
        measured_low_s=min(measured_s),
        measured_high_s=max(measured_s),
        pace=median(paces) if paces else None,
        disturbed=not quiet,
    )
