"""What a prediction says, in words that terminal, tables and charts share."""

import msgspec

from scalescope.records.prediction import Advice, Check, Prediction
from scalescope.reporting.phrases import number, shortened
from scalescope.reporting.prediction.grid import is_slower, recommended_cell
from scalescope.units import format_bytes, format_rate, plural

_AS_FAST = 0.005
"""A regret below it would read 0 %."""


def sentence(prediction: Prediction) -> str:
    """The answer in one sentence."""
    what = headline(prediction)
    if not prediction.trusted:
        return f"{what}: {verdict_words(prediction)}"
    if prediction.was_wrong:
        corrected = msgspec.structs.replace(prediction, checks=())
        return f"{verdict_words(prediction)} {sentence(corrected)}"
    if prediction.recommended is None:
        limit = format_bytes(prediction.memory_limit_bytes)
        return f"{what}: no batch of the map fits into {limit} of memory; ask for smaller ones."
    several = [cell for cell in prediction.cells if cell.np > 1 and cell.fits]
    if several and prediction.recommended.np == 1:
        stay = f"{what}: stay with {configuration(prediction.recommended)}; up to"
        most, best = max(cell.np for cell in several), max(several, key=lambda cell: cell.speedup)
        if is_slower(best):
            return f"{stay} {plural(most, 'process')} no speedup above 1 is expected."
        goal = f"below the efficiency of {100 * prediction.efficiency_goal:.0f} % that was asked for"
        return f"{stay} {plural(most, 'process')} at most {speedup_number(best.speedup)}x is expected, {goal}."
    return f"{what}: {advice_words(prediction)}."


def verdict_words(prediction: Prediction) -> str:
    """What a reader has to know before the map: that it is not to be trusted, or that its checks proved it wrong."""
    if not prediction.trusted:
        return f"not to be trusted, so nothing is recommended: {'; '.join(prediction.doubts)}. {REPEAT}."
    if not prediction.was_wrong:
        return ""
    outside = [check for check in prediction.checks if not check.inside and not check.disturbed]
    errors = sorted(check.error for check in outside)
    by = _off(errors[0]) if len(errors) == 1 else f"{_off(errors[0])} to {_off(errors[-1])}"
    return (
        f"The prediction was wrong here: {len(outside)} of {plural(len(prediction.checks), 'checked cell')} "
        f"took another time than the interval allows, predicted {by}; "
        f"the map is corrected ({prediction.correction:.2f}x the predicted step)."
    )


def _off(error: float) -> str:
    return f"{100 * abs(error):.0f} % too {'slow' if error > 0 else 'fast'}"


REPEAT = "Repeat it while nothing else runs"


def headline(prediction: Prediction) -> str:
    """`cnn with ddp`."""
    return f"{shortened(prediction.what)} with {shortened(prediction.engine, 30)}"


def configuration(cell: Advice | Check) -> str:
    """`8 processes with batch 64 each`; advice on strong scaling says the global batch too."""
    each = " each" if cell.np > 1 else ""
    if not isinstance(cell, Advice) or cell.scaling == "weak" or cell.np == 1:
        return f"{plural(cell.np, 'process')} with batch {cell.batch:,}{each}"
    most = "" if cell.np * cell.batch == cell.global_batch else "at most "
    return f"{plural(cell.np, 'process')} with global batch {cell.global_batch:,}, {most}{cell.batch:,}{each}"


def advice_words(prediction: Prediction) -> str:
    """What the recommended configuration reaches, and what it gives up against the fastest."""
    advice, cell = prediction.recommended, recommended_cell(prediction)
    if advice is None:
        return "nothing fits into memory" if prediction.trusted else "nothing, because the map is not to be trusted"
    interval = f" ({speedup_number(cell.speedup_low)} to {speedup_number(cell.speedup_high)})" if cell else ""
    give = "gives" if advice.np == 1 else "give"
    reached = f"{configuration(advice)} {give} {speedup_number(advice.speedup)}x{interval}"
    return (
        f"{reached}, efficiency {100 * advice.efficiency:.0f} %, {format_rate(advice.throughput)} samples/s; "
        f"{regret_words(advice)}"
    )


def regret_words(advice: Advice) -> str:
    """`that is 4 % less throughput than the fastest cell (4,100 samples/s)`."""
    if advice.regret < _AS_FAST:
        return "no cell is faster"
    fastest = f" ({format_rate(advice.throughput / (1 - advice.regret))} samples/s)" if advice.regret < 1 else ""
    return f"{100 * advice.regret:.0f} % less throughput than the fastest cell{fastest}"


def efficient_words(prediction: Prediction) -> str:
    """Up to where more processes are worth it."""
    goal = f"an efficiency of {100 * prediction.efficiency_goal:.0f} %"
    np = prediction.most_efficient_np
    if np is None or (np == 1 and max(cell.np for cell in prediction.cells) > 1):
        return f"no number of processes above 1 keeps {goal}"
    if max(cell.efficiency for cell in prediction.cells if cell.np == np) < prediction.efficiency_goal:
        return f"largest efficient number of processes: {np:,}, whose interval holds {goal}"
    return f"largest efficient number of processes: {np:,}, with {goal} or more at its best batch"


def memory_words(prediction: Prediction) -> str:
    """The largest batch that fits; empty where the profile does not tell."""
    if prediction.largest_batch is None:
        return ""
    limit = f" into {format_bytes(prediction.memory_limit_bytes)}" if prediction.memory_limit_bytes else ""
    return f"largest batch of a process that fits{limit}: {prediction.largest_batch:,}"


def trust_words(prediction: Prediction) -> str:
    """How wrong the last checks were; empty when this map has the first ones."""
    known = prediction.calibration
    if known is None and prediction.checks:
        return ""
    if known is None:
        return "nothing was verified here yet: --verify 3 runs three cells for real"
    return (
        f"{plural(known.estimates, 'estimate')} checked here so far: wrong by {_percent(known.mean_error)} on average; "
        f"steps are multiplied by {known.factor:.3f} for that, a spread of {_percent(known.spread)} is left"
    )


def interval_words(prediction: Prediction) -> str:
    """What intervals hold and where they come from."""
    return f"intervals hold 90 %; {_percent(prediction.residual)} (one sigma) of them is the model's own error"


def check_words(prediction: Prediction) -> str:
    """How the cells that were run came out; empty without any."""
    checks = prediction.checks
    if not checks:
        return ""
    errors = [abs(check.error) for check in checks]
    inside = sum(check.inside for check in checks)
    worst = f", {_percent(max(errors))} at worst" if len(checks) > 1 else ""
    average = " on average" if len(checks) > 1 else ""
    return (
        f"{plural(len(checks), 'cell')} run for real: wrong by {_percent(sum(errors) / len(errors))}{average}{worst}; "
        f"{inside} of {len(checks)} inside the predicted interval"
    )


def speedup_number(speedup: float) -> str:
    """Three digits."""
    return number(speedup, 2 if speedup < 9.995 else 1 if speedup < 99.95 else 0)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
