"""What became of the parts of a study: its plan, what was left out and why, and the document of all answers."""

import math
from typing import Any

from scalescope.records.results import Results
from scalescope.records.study import Study, StudyPart
from scalescope.report import explanation_tables, measurement, prediction_tables, tuning_show
from scalescope.report.explanation import sentence as where_the_time_goes
from scalescope.report.terminal import Answer
from scalescope.text import listed, plain
from scalescope.units import format_seconds

_NAMES = {"refine": "more launches", "strong": "strong scaling", "engines": "other engines"}


def plan_lines(study: Study, left_s: float) -> list[str]:
    """What a study is going to do and about how long each part takes; `left_s`: what the budget has."""
    total = sum(part.planned_s for part in study.parts if part.state == "planned")
    has = format_seconds(round(left_s)) if left_s >= 1 else "nothing"
    lines = [f"Study of {plain(study.what, 60)}: about {format_seconds(total)}; the budget has {has}"]
    for part in study.parts:
        told = f"{part.name:<9}{_about(part):>10}  {part.what}"
        if part.state in ("done", "not needed"):
            told = f"{part.name:<9}{'finished' if part.state == 'done' else part.state:>10}  {part.what}"
        if part.without:
            told += f"; without {listed(part.without)}"
        lines.append(f"  {told}")
    return lines


def _about(part: StudyPart) -> str:
    return "left out" if part.state == "left out" else format_seconds(part.planned_s) if part.planned_s else ""


def omission_lines(study: Study) -> list[str]:
    """What the budget did not hold, and what failed and why, a line each."""
    left_out = [thing for part in study.parts if part.state == "done" for thing in part.without]
    waiting = [part for part in study.parts if part.state == "left out"]
    left_out += [_NAMES.get(part.name, part.name) for part in waiting]
    enough = math.ceil((study.budget_s + sum(part.planned_s for part in waiting)) / 60)
    lines = [f"{part.name} failed: {plain(part.why, 300)}" for part in study.parts if part.state == "failed"]
    if left_out:
        would = f"; --budget {enough}m would hold all" if waiting else ""
        lines.append(f"left out for the budget of {format_seconds(study.budget_s)}: {listed(left_out)}{would}")
    return lines


def part_rows(study: Study) -> list[list[str]]:
    """Every part with what it was expected to take, what it took, and what became of it."""
    rows = [["part", "expected", "took", "outcome"]]
    for part in study.parts:
        outcome = f"{part.state}: {plain(part.why, 300)}" if part.why else part.state
        if part.without and part.state == "done":
            outcome += f", without {listed(part.without)}"
        used = format_seconds(part.used_s) if part.used_s else "-"
        rows.append([part.name, format_seconds(part.planned_s) if part.planned_s else "-", used, outcome])
    return rows


def check_words(results: Results) -> str:
    """`Launched on their own, steps take 36 ms with this setting and 41 ms with the default: 1.14x faster.`"""
    check = results.check
    if check is None or check.ratio is None:
        return ""
    ratio = check.ratio
    faster = f"{1 / ratio.value:.2f}x"
    sure = f" ({1 / ratio.high:.2f} to {1 / ratio.low:.2f})" if ratio.low < ratio.high else ""
    verdict = {"faster": "confirmed", "slower": "NOT confirmed, it is slower", "same": "within 5 %"}
    told = verdict.get(check.verdict, "not decided")
    return (
        f"Launched on their own, steps take {format_seconds(check.b)} with the tuned setting and "
        f"{format_seconds(check.a)} with the default: {faster}{sure}, {told}."
    )


def as_document(results: Results, answer: Answer, setting: dict[str, Any], page: str) -> dict[str, Any]:
    """What `study --json` prints; a part without results is null.

    Args:
        results: Of the study.
        answer: The first screen.
        setting: Processes, batch, engine and speedup that the answer names.
        page: The file.
    """
    traced, scaling, tuning = results.explanations[-1:], results.scaling, results.tuning
    knobs = {**tuning.held, **tuning.values} if tuning and tuning.decision == "use" else {}
    measured = None
    if scaling:
        measured = (
            measurement.as_document(results.measurement, scaling)
            if results.measurement
            else measurement.points_document(scaling)
        )
    check = results.check
    return {
        "kind": "study",
        "what": results.what,
        "answer": {
            **setting,
            "bottleneck": where_the_time_goes(traced[0]) if traced else None,
            "settings": knobs,
            "sentence": answer.sentence,
            "why": list(answer.why),
            "do": answer.do,
            "warnings": list(answer.warnings),
        },
        "estimate": prediction_tables.as_document(results.prediction) if results.prediction else None,
        "measure": measured,
        "explain": explanation_tables.as_document(traced[0]) if traced else None,
        "tune": tuning_show.as_document(tuning) if tuning else None,
        "check": {
            "default_s": check.a,
            "tuned_s": check.b,
            "ratio": {"value": check.ratio.value, "low": check.ratio.low, "high": check.ratio.high},
            "verdict": check.verdict,
        }
        if check and check.ratio
        else None,
        "budget_s": results.study.budget_s if results.study else None,
        "parts": [
            {
                "name": part.name,
                "state": part.state,
                "planned_s": part.planned_s,
                "used_s": part.used_s,
                "why": part.why,
                "without": list(part.without),
            }
            for part in (results.study.parts if results.study else ())
        ],
        "left_out": omission_lines(results.study) if results.study else [],
        "next": results.follow,
        "page": page,
    }
