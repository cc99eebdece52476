"""Records as people see them: their Document on a terminal and in files."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalescope.show import document_of, files, terminal


def shown(record: Any, width: int = 1000, *, details: bool = True, colours: bool = False, **context: Any) -> str:
    """The answer's sentence and what stands below it on a terminal."""
    text = io.StringIO()
    look = "standard" if colours else None
    console = terminal.open_console(file=text, width=width, force_terminal=colours, color_system=look)
    terminal.show(document_of(record, **context), console, details=details)
    return text.getvalue()


def as_csv(record: Any) -> str:
    (table,) = document_of(record).files.values()
    return files.as_csv(table)


def as_markdown(record: Any) -> str:
    return files.as_markdown(document_of(record))


def as_latex(record: Any) -> str:
    (name,) = document_of(record).files
    return files.as_latex(document_of(record), name)


def charts(record: Any, **context: Any) -> dict[str, Any]:
    """Every chart that the record has the numbers for, by name."""
    drawn = {figure.name: figure.draw() for figure in document_of(record, **context).figures}
    return {name: chart for name, chart in drawn.items() if chart is not None}


def write_charts(record: Any, folder: Path, formats: Sequence[str] = ("html", "png")) -> list[Path]:
    return files.write_figures(document_of(record), folder, formats)
