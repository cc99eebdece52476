"""What explain says about traces, and where it writes it."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.cli.output import from_here, pictures, tell

if TYPE_CHECKING:
    from rich.console import Console

    from scalescope.records.explanation import Explanation


def write_explanation(explanation: "Explanation", folder: Path) -> list[str]:
    """Save the record, its tables and its pictures; lines that say where they are."""
    from scalescope.records.store import save
    from scalescope.reporting.explanation.tables import write_tables

    save(explanation, folder / "explanation.json")
    write_tables(explanation, folder)
    here = from_here(folder.absolute())

    def draw() -> list[Path]:
        from scalescope.reporting.charts.explanation import write_explanation_charts

        return write_explanation_charts(explanation, folder)

    return [*pictures(draw), f"Tables: {here}/explanation.csv, .md", f"Records: {here}"]


def export_steps(given: Sequence[Path], path: Path) -> str:
    """Write all steps for Perfetto; a line that says where."""
    from scalescope.diagnosis.export import export_job

    count = export_job(given, path)
    return f"{count:,} spans for Perfetto (ui.perfetto.dev) or chrome://tracing: {path}"


def tell_explanation(
    explanation: "Explanation",
    console: "Console",
    said: Sequence[str],
    given: Sequence[Path],
    output: Path | None,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Tables, pictures, the answer and the next command."""
    from scalescope.reporting.explanation.document import as_document
    from scalescope.reporting.explanation.sentence import sentence
    from scalescope.reporting.explanation.show import show

    follow = f"scalescope explain {shlex.join(map(str, given))} -o results/explain"
    if output is not None:
        engine = f" --engine {explanation.engine}" if explanation.engine != "none" else ""
        options = f"--np 1,{max(explanation.world_size or 2, 2)}{engine}"
        follow = f"scalescope measure {options} -- {shlex.join(explanation.command) or 'python train.py'}"
        if explanation.kind == "run folder" and not explanation.command:
            follow = f"scalescope measure {shlex.quote(explanation.what)} {options}"
    tell(
        console,
        lambda: show(explanation, console),
        said,
        sentence(explanation),
        follow,
        lambda: as_document(explanation),
        json=json,
        quiet=quiet,
    )
