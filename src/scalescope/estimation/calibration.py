"""How wrong earlier estimates on this machine were: kept in the user's cache, read by the next estimate.

The cache helps and never stops anything: what cannot be read or written is one warning.
What checks are for: the cells whose step decides the recommendation, and the map after some of them were run.
"""

import math
import os
import platform
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec

from scalescope.errors import ScalescopeError
from scalescope.records.prediction import Calibration, Cell, Check, Prediction, Residual
from scalescope.records.store import append, complete_lines, decode, drop_torn_line
from scalescope.simulator.grid import RESIDUAL, most_efficient, recommend
from scalescope.stats import robust_deviation

_BELIEF = 3  # Estimates that it takes until what they say counts more than that nothing is wrong
_LATEST = 40  # Older ones are forgotten: machines change


def file() -> Path:
    """Where they are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "scalescope" / "residuals-v2.jsonl"


def keep(checks: Sequence[Check], factor: float, engine: str, model: str) -> str:
    """Remember the undisturbed checks of one estimate as one residual; a warning when that fails, otherwise "".

    Args:
        checks: Of one estimate.
        factor: The calibration that their predictions already contain.
        engine: What was estimated.
        model: What was estimated.
    """
    errors = [check.log_error for check in checks if not check.disturbed]
    if not errors:
        return ""
    residual = Residual(
        hostname=platform.node(),
        engine=engine,
        model=model,
        checks=len(errors),
        log_error=median(errors) + math.log(factor),
        seconds_since_epoch=time.time(),
    )
    try:
        drop_torn_line(file())
        append(residual, file())
    except (OSError, ScalescopeError):
        return f"this estimate's error could not be remembered: {file()} cannot be written; make it writable"
    return ""


def calibration(engine: str) -> tuple[Calibration | None, str]:
    """What is remembered of this engine on this machine, and a warning when some of it cannot be read."""
    found, damaged = [], 0
    try:
        for line in complete_lines(file()):
            try:
                found.append(decode(line, Residual, str(file())))
            except ScalescopeError:
                damaged += 1
    except OSError as problem:
        return None, f"what earlier estimates here learned cannot be read ({file()}: {problem.strerror}); remove it"
    here = [one.log_error for one in found if (one.hostname, one.engine) == (platform.node(), engine)]
    said = f"{damaged} damaged lines of {file()} were skipped; remove that file to forget them" if damaged else ""
    return calibrate([error for error in here if math.isfinite(error)][-_LATEST:]), said


def calibrate(log_errors: Sequence[float]) -> Calibration | None:
    """A factor that is believed the more, the more estimates were checked, and what remains uncertain.

    Both come from medians: one estimate that went wrong moves neither.
    """
    if not log_errors:
        return None
    count, middle = len(log_errors), median(log_errors)
    believed = count / (count + _BELIEF)
    shift = believed * middle
    own = max(robust_deviation(log_errors), RESIDUAL / 2) if count > 2 else RESIDUAL
    spread = math.sqrt(believed * own**2 + (1 - believed) * RESIDUAL**2 + (middle - shift) ** 2)
    return Calibration(
        estimates=count,
        factor=math.exp(shift),
        spread=spread,
        mean_error=fmean(abs(math.expm1(-error)) for error in log_errors),
    )  # Checks that it takes until what they say counts half; those outside their intervals are believed at once


_PUSHES = (0.5, 1.0, 2.0, 4.0)  # Half-widths by which a cell is moved to see whether the recommendation changes
_CONFIRMING = 2  # Undisturbed checks that make up for a disturbed probe
_OFF = math.log(1.25)  # A check that a corrected map still misses by more is a reason not to trust it


def deciding_cells(cells: Sequence[Cell], count: int, slots: int, goal: float) -> list[Cell]:
    """Cells to verify: the recommended one, then those whose error would change the recommendation first.

    Args:
        cells: The map.
        count: How many cells to choose.
        slots: Processes that can be run; a cell of one process needs no check.
        goal: Efficiency of the recommendation.

    Returns:
        At most `count` cells of 2 or more processes that fit, without repetition.
    """
    possible = list({(cell.np, cell.batch): cell for cell in cells if 1 < cell.np <= slots and cell.fits}.values())
    advice = recommend(cells, goal)
    chosen = [cell for cell in possible if advice and (cell.np, cell.batch) == (advice.np, advice.batch)]
    distances = {(cell.np, cell.batch): _distance(cell, cells, goal) for cell in possible if count}
    rivals = [cell for cell in possible if cell not in chosen and distances.get((cell.np, cell.batch), math.inf) < 9]
    chosen += sorted(rivals, key=lambda cell: distances[cell.np, cell.batch])
    return [*chosen, *_spread([cell for cell in possible if cell not in chosen], count - len(chosen))][:count]


def _distance(cell: Cell, cells: Sequence[Cell], goal: float) -> float:
    """By how many half-widths of its interval a cell has to be wrong to change the recommendation."""
    now, half = recommend(cells, goal), math.log(cell.high_s / cell.step_s)
    at = cells.index(cell)
    for push in _PUSHES:
        for sign in (-1, 1):
            moved = _moved(cell, math.exp(sign * push * half), 1.0)
            then = recommend([*cells[:at], moved, *cells[at + 1 :]], goal)
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
    shift = middle if wrong else middle * len(quiet) / (len(quiet) + _BELIEF)
    left = {id(check): abs(check.log_error - shift) for check in checks}
    wider = max([1.0, *(left[id(check)] / max(math.log(check.high_s / check.predicted_s), 1e-9) for check in checks)])
    measured = {(check.np, check.batch): check for check in quiet}
    cells = tuple(
        _measured(cell, measured[cell.np, cell.batch])
        if (cell.np, cell.batch) in measured
        else _moved(cell, math.exp(shift), wider)
        if cell.np > 1
        else cell
        for cell in prediction.cells
    )
    doubts = [doubt for doubt in prediction.doubts if doubt not in answered or len(quiet) < _CONFIRMING]
    worst = max(left.values(), default=0.0)
    if worst > _OFF:
        off = f"after the checks the map is still {math.expm1(worst):.0%} off one of them"
        doubts.append(off if quiet else f"{off}, and other programs were busy during every launch of it")
    goal = prediction.efficiency_goal
    return msgspec.structs.replace(
        prediction,
        cells=cells,
        checks=tuple(checks),
        correction=math.exp(shift),
        doubts=tuple(doubts),
        recommended=None if doubts else recommend(cells, goal),
        most_efficient_np=most_efficient(cells, goal),
    )


def _moved(cell: Cell, factor: float, wider: float) -> Cell:
    """The cell with its step multiplied by a factor, and its interval widened by another."""
    step_s = cell.step_s * factor
    low_s, high_s = (step_s * (end / cell.step_s) ** wider for end in (cell.low_s, cell.high_s))
    return _with_step(cell, step_s, low_s, high_s, verified=False)


def _measured(cell: Cell, check: Check) -> Cell:
    return _with_step(cell, check.measured_s, check.measured_low_s, check.measured_high_s, verified=True)


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
