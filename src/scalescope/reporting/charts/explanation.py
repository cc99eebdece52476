"""Drawings of an explanation: one step of all ranks, the accounting, transfers, and steps over the run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalescope.records.explanation import Explanation
from scalescope.reporting.charts import FORMATS, check_formats, save_charts
from scalescope.reporting.charts.accounting import accounting_chart
from scalescope.reporting.charts.step import step_charts
from scalescope.reporting.charts.step_times import step_times_chart
from scalescope.reporting.charts.transfers import transfers_chart
from scalescope.reporting.explanation.words import harmless


def charts(explanation: Explanation) -> dict[str, Any]:
    """Every figure that the explanation has the numbers for, by name; the most telling first."""
    drawn = {
        "accounting": accounting_chart(explanation),
        "step": _step(explanation),
        "step_times": step_times_chart(explanation),
        "transfers": transfers_chart(explanation),
    }
    return {name: chart for name, chart in drawn.items() if chart is not None}


def write_explanation_charts(explanation: Explanation, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw every figure into the folder as NAME.FORMAT; the files."""
    check_formats(formats)
    return save_charts(charts(explanation), folder, formats)


def _step(explanation: Explanation) -> Any:
    """The representative step, with the predicted one above it where there is one."""
    shown, predicted = explanation.shown_step, explanation.predicted_step
    if shown is None or not shown.spans:
        return None
    index = explanation.shown_index
    measured = "" if predicted is None else "measured"
    timelines = {measured: shown} if predicted is None else {"predicted": predicted, measured: shown}
    own = [step.parts.exposed_s for step in explanation.steps if step.index == index and step.parts.exposed_s]
    return step_charts(
        timelines,
        f"One step: {harmless(explanation.what)}",
        "" if index is None else f"step {index:,}, a representative one",
        exposed_s={measured: max(own, default=0.0)},
    )
