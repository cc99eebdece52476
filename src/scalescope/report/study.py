"""What all results of one training say together: the setting to use, why it is not faster, what to change."""

from typing import Any

import msgspec

from scalescope.records.prediction import Cell, Check, Prediction, device_hours
from scalescope.records.results import Results
from scalescope.records.scaling import Scaling, ScalingPoint
from scalescope.report import autotune, explanation_show, machine, prediction_show, scaling, tuning_show
from scalescope.report.explanation import sentence as where_the_time_goes
from scalescope.report.phrases import fastest, has_spread
from scalescope.report.prediction import recommended_cell, speedup_number
from scalescope.report.study_parts import check_words, omission_lines
from scalescope.report.terminal import Answer, answered
from scalescope.report.tuning import sentence as what_to_use
from scalescope.stats import MEASURED, percent
from scalescope.text import listed, plain, plural
from scalescope.units import format_seconds

_ALIKE = 1.5  # Times by which steps of a traced launch may differ from those of the measurement


def answer(results: Results) -> Answer:
    """The first screen: of one kind of result what its verb ends with, of several the same facts in one answer."""
    answers = _single(results)
    if len(answers) == 1:
        told = answers[0]
        return told._replace(warnings=(*told.warnings, *_omitted(results)))
    use = use_words(results)
    why = [where_the_time_goes(results.explanations[-1])] if results.explanations else []
    if results.tuning:
        why.append(" ".join(filter(None, [what_to_use(results.tuning), check_words(results)])))
    why += [line for each in answers for line in each.why]
    lines = "; ".join(line.strip() for line in results.settings).replace(":; ", ": ")  # a heading and its lines
    do = lines or next((each.do for each in answers if each.do), "")
    warnings = [*_omitted(results), *_of_another_setting(results), *_traced_otherwise(results)]
    warnings += [warning for each in answers for warning in each.warnings]
    return answered(use or answers[0].sentence, why, do=do, warnings=list(dict.fromkeys(warnings)))


def _omitted(results: Results) -> list[str]:
    return [*results.missing, *(omission_lines(results.study) if results.study else [])]


def _of_another_setting(results: Results) -> list[str]:
    """A warning where the map recommends a setting, and what else is told is of another batch."""
    cell, curves = _told(results)[0], results.scaling.curves if results.scaling else ()
    if cell is None:
        return []
    batches: dict[str, set[Any]] = {
        "scaling": {point.batch for curve in curves for point in curve.points},
        "where the time goes": set(results.traced_batches[-1:]),
    }  # None: a script's own, which may be any
    told = [name for name, known in batches.items() if known and not known & {cell.batch, None}]
    again = f"measure and explain with --batch {cell.batch:g}"
    return [f"not of the setting above, but of another batch: {listed(told)}; {again}"] if told else []


def _traced_otherwise(results: Results) -> list[str]:
    """A warning where the traced launch took other steps than those that were measured."""
    point, explained = _told(results)[1], results.explanations[-1] if results.explanations else None
    if not (explained and explained.step_s and point and point.step_s and point.np == len(explained.ranks)):
        return []
    ratio = explained.step_s / point.step_s.value
    if 1 / _ALIKE < ratio < _ALIKE:
        return []
    took = f"{format_seconds(explained.step_s)}, a measured one {format_seconds(point.step_s.value)}"
    return [f"a traced step took {took}: where its time goes may not be where theirs goes; explain it again"]


def _single(results: Results) -> list[Answer]:
    """What each verb ended with."""
    answers = []
    if results.scaling:
        answers.append(scaling.answer(results.scaling))
    if results.prediction:
        answers.append(prediction_show.answer(results.prediction))
    answers += [explanation_show.answer(each) for each in results.explanations[-1:]]
    if results.tuning:
        answers.append(tuning_show.answer(results.tuning))
    if results.autotune:
        answers.append(autotune.answer(results.autotune))
    if not answers and results.cluster:
        answers.append(machine.answer(results.cluster))
    return answers or [Answer(f"{plain(results.name, 60)} holds no results yet.", ())]


def _told(results: Results) -> tuple[Cell | None, ScalingPoint | None]:
    """The recommended cell, and the measured point of it or, without one, the fastest."""
    cell = recommended_cell(results.prediction) if results.prediction else None
    return cell, _measured(results.scaling, cell, results.prediction.engine if results.prediction else "")


def setting_document(results: Results) -> dict[str, Any]:
    """Processes, batch, engine and speedups of the setting that `use_words` tells."""
    cell, point = _told(results)
    steady = point.speedup.get("steady") if point else None
    speedup = {
        "expected": {"value": cell.speedup, "low": cell.speedup_low, "high": cell.speedup_high} if cell else None,
        "measured": {"value": steady.value, "low": steady.low, "high": steady.high, "interval": steady.interval}
        if steady
        else None,
    }
    chosen = cell or point
    engine = results.prediction.engine if cell and results.prediction else point.engine if point else None
    np, batch = (chosen.np, chosen.batch) if chosen else (None, None)
    return {"np": np, "batch": batch, "engine": engine, "speedup": speedup}


def use_words(results: Results) -> str:
    """`Use 4 processes with batch 64 each and ddp: 3.4x expected, 3.31x measured, ...`; empty where nothing tells."""
    cell, point = _told(results)
    if cell is None and point is None:
        return ""
    np, batch = (cell.np, cell.batch) if cell else (point.np, point.batch) if point else (1, None)
    engine = results.prediction.engine if cell and results.prediction else point.engine if point else ""
    each = "" if batch is None else f" with batch {batch:,g}" + (" each" if np > 1 else "")
    using = f" and {plain(engine, 30)}" if engine not in ("", "none") and np > 1 else ""
    facts = [*_expected(cell, point, results), *_reached(point, cell)]
    return f"Use {plural(np, 'process')}{each}{using}: {', '.join(facts)}."


def _expected(cell: Cell | None, point: ScalingPoint | None, results: Results) -> list[str]:
    if cell is None:
        return []
    steady, checks = (
        point.speedup.get("steady") if point else None,
        results.prediction.checks if results.prediction else (),
    )
    check = next((each for each in checks if (each.np, each.batch) == (cell.np, cell.batch)), None)
    if cell.verified and steady and check and results.study:  # the launches of a study that measure check its map
        now = cell.speedup * check.measured_s
        low, high = (speedup_number(now / end) for end in (check.high_s, check.low_s))
        return [f"{speedup_number(now / check.predicted_s)}x predicted ({low} to {high})"]
    interval = f" ({speedup_number(cell.speedup_low)} to {speedup_number(cell.speedup_high)})"
    verified = "measured" if point is None else "when the map was verified"  # its launches are not the measurement's
    return [f"{speedup_number(cell.speedup)}x {verified if cell.verified else 'expected'}{interval}"]


def _reached(point: ScalingPoint | None, cell: Cell | None) -> list[str]:
    """Measured speedup, efficiency and cost; predicted ones where this setting was not measured."""
    steady = point.speedup.get("steady") if point else None
    if point is None or point.throughput is None:
        if cell is None:
            return []
        told = [] if cell.verified else ["not measured"]
        return [*told, f"efficiency {100 * cell.efficiency:.0f} %", _hours(cell.device_hours)]
    told = []
    if steady:
        sure = f" ({percent(MEASURED)} interval {steady.low:.2f} to {steady.high:.2f})"
        told.append(f"{steady.value:.2f}x measured" + (sure if steady.interval == "t" and has_spread(steady) else ""))
    if point.efficiency:
        told.append(f"efficiency {100 * point.efficiency.value:.0f} %")
    return [*told, _hours(device_hours(point.np, point.throughput.value))]


def _hours(hours: float) -> str:
    return f"{hours:.3g} device-hours for a million samples"


def _measured(measured: Scaling | None, cell: Cell | None, engine: str) -> ScalingPoint | None:
    """The measured point of the recommended cell, or the fastest one where nothing is recommended."""
    if measured is None:
        return None
    if cell is None:
        best = fastest(measured)
        return best[1] if best else None
    return _same(measured, cell, engine)


def _same(measured: Scaling, cell: Cell, engine: str) -> ScalingPoint | None:
    """The measured point of a cell; one process without an engine, as the map has it, or as a script runs alone."""
    curves = (curve for curve in measured.curves if curve.scaling == cell.scaling)
    points = [each for curve in curves for each in curve.points if (each.np, each.batch) == (cell.np, cell.batch)]
    engines = ("none", engine) if cell.np == 1 else (engine,)
    return next((point for wanted in engines for point in points if point.engine == wanted), None)


def with_measured(prediction: Prediction, measured: Scaling | None) -> Prediction:
    """The prediction with a check for every cell that was measured as well."""
    if measured is None:
        return prediction
    known = {(check.scaling, check.np, check.batch) for check in prediction.checks}
    checks: list[Check] = []
    for cell in prediction.cells:
        place = (cell.scaling, cell.np, cell.batch)
        point = None if cell.verified or place in known else _same(measured, cell, prediction.engine)
        if point and point.step_s:
            checks.append(Check.of(cell, (point.step_s.low, point.step_s.value, point.step_s.high)))
    return msgspec.structs.replace(prediction, checks=(*prediction.checks, *checks))
