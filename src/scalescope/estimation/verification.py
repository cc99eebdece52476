"""Checks of a map: the cells that decide its recommendation are run for real, through measure, and correct the map."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median

import msgspec

from scalescope.engines import find_engine
from scalescope.errors import UsageError
from scalescope.estimation.calibration import BELIEF
from scalescope.estimation.profile import USUAL_SPREAD
from scalescope.jobs.rank_program import Place
from scalescope.measurement.sweep import continue_measurement, measure
from scalescope.progress import Progress
from scalescope.records.files import PLAN
from scalescope.records.prediction import Advice, Cell, Check, Prediction
from scalescope.records.profile import ModelProfile
from scalescope.records.request import EstimateRequest, MeasureRequest
from scalescope.records.run import QUIET, Measurement, Run
from scalescope.simulator.compute import work
from scalescope.simulator.grid import most_efficient, recommend
from scalescope.stats import PREDICTED, normal_width
from scalescope.units import format_share

_BLOCKS_S = 4.0  # Of interleaved blocks in each launch
_PUSHES = (0.5, 1.0, 2.0, 4.0)  # Half-widths by which a cell is moved to see whether the recommendation changes
_CONFIRMING = 2  # Undisturbed checks that make up for a disturbed probe
_OFF = math.log(1.25)  # A check that a corrected map still misses by more is a reason not to trust it


def run_checks(
    request: EstimateRequest,
    prediction: Prediction,
    profile: ModelProfile,
    threads: int,
    slots: int,
    folder: Path,
    progress: Progress,
    place: Place,
) -> tuple[Check, ...]:
    """The cells that decide the recommendation, each launched some times; launches that are there already count.

    Args:
        request: What was asked for: how many cells, how many launches of each.
        prediction: The map.
        profile: Of one process.
        threads: Of each rank, as in the profile.
        slots: Ranks that this machine, or its hosts, take.
        folder: Of the estimate; a measurement for each number of processes goes below it.
        progress: Of the launches.
        place: Where they run.
    """
    chosen = deciding_cells(prediction, request.verify, slots)
    if not chosen:
        raise UsageError("--verify needs a cell with 2 or more processes that this machine can run: name one with --np")
    checks: list[Check] = []
    for count in sorted({cell.np for cell in chosen}):
        cells = [cell for cell in chosen if cell.np == count]
        made = _measure(request, cells, threads, folder / f"verify-np{count}", progress, place)
        for cell in cells:
            runs = [run for run in made.runs if run.point.batch == cell.batch]
            if runs:
                checks.append(
                    check_of(cell, runs, float(work(profile, [cell.batch], request.trained.accumulate).step_s[0]))
                )
    return tuple(checks)


def _measure(
    request: EstimateRequest, cells: Sequence[Cell], threads: int, folder: Path, progress: Progress, place: Place
) -> Measurement:
    """One measurement of cells with the same number of processes, continued where it was interrupted.

    One process and all of them step in interleaved blocks inside each launch, because the speed of a shared machine
    drifts by more between the profile and a launch than an estimate is wrong. Where an engine's threads poll, one
    process would not be alone there, and whole launches have to do.
    """
    if (folder / PLAN).exists():
        return continue_measurement(folder, {"timeout_s": request.timeout_s}, progress)
    batches = tuple(sorted({cell.batch for cell in cells}))
    interleaved = not find_engine(request.engine).polls
    asked = MeasureRequest(
        workload=request.trained,
        np=(cells[0].np,),
        batch=batches,
        engines=(request.engine,),
        knobs=request.knobs,
        threads_per_rank=threads,
        device=request.device,
        hosts=request.hosts,
        ssh=request.ssh,
        env=request.env,
        launcher=place.launcher,
        per_node=request.per_node,
        timeout_s=request.timeout_s,
        launches=request.launches,
        quick=interleaved,
        budget_s=_BLOCKS_S * len(batches) * request.launches if interleaved else None,
        folder=str(folder),
    )
    return measure(asked, progress)


def check_of(cell: Cell, runs: Sequence[Run], alone_s: float) -> Check:
    """Check a cell by the launches that no other program disturbed, or all of them when there is none.

    Interleaved launches tell how many times longer a step of all processes takes than one of a single process; the
    check compares at the pace that the profile saw, `alone_s` for a step of one process.
    """
    quiet = [run for run in runs if run.load is None or run.load.foreign_cores <= QUIET]
    used = quiet or runs
    measured_s = [
        median(all_s / one_s for one_s, all_s in run.pairs) * alone_s if run.pairs else run.step_s for run in used
    ]
    paces = [median(one_s for one_s, _ in run.pairs) / alone_s for run in used if run.pairs]
    return Check.of(cell, measured_s, pace=median(paces) if paces else None, disturbed=not quiet)


def deciding_cells(prediction: Prediction, count: int, slots: int) -> list[Cell]:
    """Cells to verify: the recommended one, then those whose error would change the recommendation first.

    Args:
        prediction: The map.
        count: How many cells to choose.
        slots: Processes that can be run; a cell of one process needs no check.

    Returns:
        At most `count` cells of 2 or more processes that fit, without repetition.
    """
    cells = prediction.cells
    possible = list({(cell.np, cell.batch): cell for cell in cells if 1 < cell.np <= slots and cell.fits}.values())
    advice = _advice(prediction, cells)
    chosen = [cell for cell in possible if advice and (cell.np, cell.batch) == (advice.np, advice.batch)]
    distances = {(cell.np, cell.batch): _distance(cell, prediction) for cell in possible if count}
    rivals = [cell for cell in possible if cell not in chosen and distances.get((cell.np, cell.batch), math.inf) < 9]
    chosen += sorted(rivals, key=lambda cell: distances[cell.np, cell.batch])
    return [*chosen, *_spread([cell for cell in possible if cell not in chosen], count - len(chosen))][:count]


def _advice(prediction: Prediction, cells: Sequence[Cell]) -> Advice | None:
    return recommend(cells, prediction.efficiency_goal, prediction.slots_per_node)


def _distance(cell: Cell, prediction: Prediction) -> float:
    """By how many half-widths of its interval a cell has to be wrong to change the recommendation."""
    cells, half = prediction.cells, math.log(cell.high_s / cell.step_s)
    now, at = _advice(prediction, cells), cells.index(cell)
    for push in _PUSHES:
        for sign in (-1, 1):
            moved = _moved(cell, math.exp(sign * push * half), 1.0)
            then = _advice(prediction, [*cells[:at], moved, *cells[at + 1 :]])
            if (then and (then.np, then.batch)) != (now and (now.np, now.batch)):
                return push
    return math.inf


def _spread(cells: Sequence[Cell], count: int) -> list[Cell]:
    """Cells spread over the batch sizes, the most processes first."""
    chosen: list[Cell] = []
    for np in sorted({cell.np for cell in cells}, reverse=True):
        of_np = sorted((cell for cell in cells if cell.np == np), key=lambda cell: cell.batch)
        left = min(count - len(chosen), len(of_np))
        places = {round(i * (len(of_np) - 1) / max(left - 1, 1)) for i in range(left)}
        chosen += [of_np[place] for place in sorted(places)]
    return chosen


def corrected(prediction: Prediction, checks: Sequence[Check], answered: Collection[str] = ()) -> Prediction:
    """The map after checks: what was run shows what was measured, the rest is moved and widened to agree with it.

    Where an undisturbed check lies outside its interval, all cells of several processes are multiplied by what the
    checks say in the middle; where all lie inside, by a part of that. Intervals are widened to hold every check.

    Args:
        prediction: The map before its checks.
        checks: Cells that were run.
        answered: Doubts that enough undisturbed checks dispel.
    """
    quiet = [check for check in checks if not check.disturbed]
    wrong = any(not check.inside for check in quiet)
    middle = median(check.log_error for check in quiet) if quiet else 0.0
    shift = middle if wrong else middle * len(quiet) / (len(quiet) + BELIEF)
    left = {id(check): abs(check.log_error - shift) for check in checks}
    wider = max([1.0, *(left[id(check)] / max(math.log(check.high_s / check.predicted_s), 1e-9) for check in checks)])
    measured = {(check.np, check.batch): check for check in quiet}
    cells = tuple(
        _with_step(cell, check.measured_s, *_interval(check), verified=True)
        if (check := measured.get((cell.np, cell.batch)))
        else _moved(cell, math.exp(shift), wider)
        if cell.np > 1
        else cell
        for cell in prediction.cells
    )
    doubts = [doubt for doubt in prediction.doubts if doubt not in answered or len(quiet) < _CONFIRMING]
    worst = max(left.values(), default=0.0)
    if worst > _OFF:
        off = f"after the checks the map is still {format_share(math.expm1(worst))} off one of them"
        doubts.append(off if quiet else f"{off}, and other programs were busy during every launch of it")
    goal = prediction.efficiency_goal
    return msgspec.structs.replace(
        prediction,
        cells=cells,
        checks=tuple(checks),
        correction=math.exp(shift),
        doubts=tuple(doubts),
        recommended=None if doubts else _advice(prediction, cells),
        most_efficient_np=most_efficient(cells, goal),
    )


def _interval(check: Check) -> tuple[float, float]:
    """From the smallest to the largest launch; of a single one, what launches usually differ by."""
    if check.measured_low_s < check.measured_high_s:
        return check.measured_low_s, check.measured_high_s
    half = math.exp(normal_width(PREDICTED) * USUAL_SPREAD)
    return check.measured_s / half, check.measured_s * half


def _moved(cell: Cell, factor: float, wider: float) -> Cell:
    """The cell with its step multiplied by a factor, and its interval widened by another."""
    step_s = cell.step_s * factor
    low_s, high_s = (step_s * (end / cell.step_s) ** wider for end in (cell.low_s, cell.high_s))
    return _with_step(cell, step_s, low_s, high_s, verified=False)


def _with_step(cell: Cell, step_s: float, low_s: float, high_s: float, *, verified: bool) -> Cell:
    """The cell with another step; everything else that follows from the step follows."""
    longer = step_s / cell.step_s
    speedup = cell.speedup / longer
    return msgspec.structs.replace(
        cell,
        step_s=step_s,
        low_s=low_s,
        high_s=high_s,
        speedup=speedup,
        speedup_low=speedup * step_s / high_s,
        speedup_high=speedup * step_s / low_s,
        efficiency=cell.efficiency / longer,
        throughput=cell.throughput / longer,
        exposed_s=cell.exposed_s * longer,
        hidden_s=cell.hidden_s * longer,
        device_hours=cell.device_hours * longer,
        verified=verified,
    )
