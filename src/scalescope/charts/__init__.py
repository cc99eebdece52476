"""Drawings of records: which figures a record has. A new figure is a function of its record and a line here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalescope.records.autotune import Autotune
from scalescope.records.cluster import Cluster
from scalescope.records.explanation import Explanation
from scalescope.records.prediction import Prediction
from scalescope.records.scaling import Scaling
from scalescope.records.tuning import Tuning
from scalescope.show import document_of
from scalescope.show.charts.saving import FORMATS, USUAL, check_formats, save_charts, start_renderer
from scalescope.show.document import Document

__all__ = ["FORMATS", "USUAL", "charts", "check_formats", "save_charts", "start_renderer", "write_charts"]

Drawable = Scaling | Prediction | Explanation | Autotune | Tuning | Cluster


def write_charts(record: Drawable | Document, folder: Path, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw every figure of the record into the folder as NAME.FORMAT.

    Args:
        record: What was measured, predicted, explained, tuned or probed; or its Document.
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


def charts(record: Drawable | Document) -> dict[str, Any]:
    """Every figure that the record has the numbers for, by name; the most telling first."""
    return {name: chart for name, chart in _drawn(record).items() if chart is not None}


def _drawn(record: Drawable | Document) -> dict[str, Any]:
    if isinstance(record, Explanation):
        from scalescope.charts.accounting import accounting_chart
        from scalescope.charts.step import explained_step_chart
        from scalescope.charts.step_times import step_times_chart
        from scalescope.charts.transfers import transfers_chart

        return {
            "accounting": accounting_chart(record),
            "step": explained_step_chart(record),
            "step_times": step_times_chart(record),
            "transfers": transfers_chart(record),
        }
    document = record if isinstance(record, Document) else document_of(record)
    return {figure.name: figure.draw() for figure in document.figures}
