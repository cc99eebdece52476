"""Drawings of records: one definition gives the interactive page, PNG, SVG and PDF."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.errors import UsageError
from scalescope.records.scaling import Scaling
from scalescope.records.store import writing

if TYPE_CHECKING:
    import altair as alt


FORMATS = ("html", "png", "svg", "pdf")
USUAL = ("html", "png")  # What is drawn unless others are asked for


class _InsideScript(json.JSONEncoder):
    """JSON that stays inside its <script>: a user's text cannot close it."""

    def encode(self, o: Any) -> str:
        return super().encode(o).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_SAVING: dict[str, dict[str, Any]] = {
    "html": {"inline": True, "json_kwds": {"cls": _InsideScript}},
    "png": {"scale_factor": 2},
}


def charts(scaling: Scaling) -> dict[str, "alt.TopLevelMixin"]:
    """Every figure that the record has the numbers for, by name; the most telling first."""
    from scalescope.charts.batch import batch_chart
    from scalescope.charts.costs import itself_chart, phases_chart, waterfall_chart
    from scalescope.charts.speedup import speedup_chart
    from scalescope.charts.throughput import throughput_chart

    drawn = {
        "speedup": speedup_chart(scaling),
        "waterfall": waterfall_chart(scaling),
        "strong": throughput_chart(scaling, "strong"),
        "weak": throughput_chart(scaling, "weak"),
        "batch": batch_chart(scaling),
        "phases": phases_chart(scaling),
        "itself": itself_chart(scaling),
    }
    return {name: chart for name, chart in drawn.items() if chart is not None}


def write_charts(scaling: Scaling, folder: Path, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw every figure into the folder as NAME.FORMAT; the files."""
    check_formats(formats)
    return save_charts(charts(scaling), folder, formats)


def check_formats(formats: Sequence[str]) -> None:
    """Refuse what cannot be drawn, before anything is."""
    for ending in formats:
        if ending not in FORMATS:
            raise UsageError(f"there is no picture format '{ending}': choose from {', '.join(FORMATS)}")


def save_charts(drawn: Mapping[str, "alt.TopLevelMixin"], folder: Path, formats: Sequence[str] = USUAL) -> list[Path]:
    """Save figures into the folder as NAME.FORMAT; the files."""
    written = []
    for name, chart in drawn.items():
        for ending in formats:
            path = folder / f"{name}.{ending}"
            with writing(path):
                folder.mkdir(parents=True, exist_ok=True)
                chart.save(path, **_SAVING.get(ending, {}))
            written.append(path)
    return written
