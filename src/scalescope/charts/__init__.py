"""Drawings of records: which figures a record has. A new figure is a function of its record and a line here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalescope.charts.saving import FORMATS, USUAL, check_formats, save_charts, start_renderer
from scalescope.records.autotune import Autotune
from scalescope.records.cluster import Cluster
from scalescope.records.explanation import Explanation
from scalescope.records.prediction import Prediction
from scalescope.records.scaling import Scaling
from scalescope.records.tuning import Tuning

__all__ = ["FORMATS", "USUAL", "charts", "check_formats", "save_charts", "start_renderer", "write_charts"]

Drawable = Scaling | Prediction | Explanation | Autotune | Tuning | Cluster


def write_charts(record: Drawable, folder: Path, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw every figure of the record into the folder as NAME.FORMAT.

    Args:
        record: What was measured, predicted, explained, tuned or probed.
        folder: Where to write; made when it is not there.
        formats: Some of html, png, svg and pdf.

    Returns:
        The files.

    Raises:
        UsageError: A format is not known, or the folder cannot be written to.
    """
    check_formats(formats)
    start_renderer()
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):  # no validation of every part as it is made
        return save_charts(charts(record), folder, formats)


def charts(record: Drawable) -> dict[str, Any]:
    """Every figure that the record has the numbers for, by name; the most telling first."""
    return {name: chart for name, chart in _drawn(record).items() if chart is not None}


def _drawn(record: Drawable) -> dict[str, Any]:
    if isinstance(record, Scaling):
        from scalescope.charts.costs import phases_chart, waterfall_chart
        from scalescope.charts.speedup import speedup_chart
        from scalescope.charts.throughput import batch_chart, throughput_chart

        return {
            "speedup": speedup_chart(record),
            "waterfall": waterfall_chart(record),
            "strong": throughput_chart(record, "strong"),
            "weak": throughput_chart(record, "weak"),
            "batch": batch_chart(record),
            "phases": phases_chart(record),
        }
    if isinstance(record, Prediction):
        from scalescope.charts.checks import checks_chart
        from scalescope.charts.map import efficiency_map, map_chart
        from scalescope.charts.prediction import predicted_throughput_chart

        return {
            "map": map_chart(record),
            "efficiency": efficiency_map(record),
            "throughput": predicted_throughput_chart(record),
            "checks": checks_chart(record),
        }
    if isinstance(record, Explanation):
        from scalescope.show import document_of

        return {figure.name: figure.draw() for figure in document_of(record).figures}
    if isinstance(record, Tuning):
        from scalescope.charts.convergence import convergence_chart
        from scalescope.charts.landscape import landscape_chart
        from scalescope.charts.tuning_cost import cost_chart

        return {
            "landscape": landscape_chart(record),
            "convergence": convergence_chart(record),
            "cost": cost_chart(record),
        }
    if isinstance(record, Autotune):
        from scalescope.charts.autotune import autotune_landscape_chart, scores_chart

        return {"autotune_scores": scores_chart(record), "autotune_landscape": autotune_landscape_chart(record)}
    from scalescope.charts.cluster import costs_chart

    return {"links": costs_chart(record)}
