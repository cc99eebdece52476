"""Drawings of a tuning: where step time goes down, how the search got there, and what it cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalescope.records.tuning import Tuning
from scalescope.reporting.charts import FORMATS, check_formats, save_charts
from scalescope.reporting.charts.tuning_convergence import convergence_chart
from scalescope.reporting.charts.tuning_cost import cost_chart
from scalescope.reporting.charts.tuning_landscape import landscape_chart


def charts(tuning: Tuning) -> dict[str, Any]:
    """Every figure that the record has the numbers for, by name."""
    drawn = {
        "landscape": landscape_chart(tuning),
        "convergence": convergence_chart(tuning),
        "cost": cost_chart(tuning),
    }
    return {name: chart for name, chart in drawn.items() if chart is not None}


def write_tuning_charts(tuning: Tuning, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw every figure into the folder as NAME.FORMAT; the files."""
    check_formats(formats)
    return save_charts(charts(tuning), folder, formats)
