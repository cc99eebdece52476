"""What explain says about Horovod's autotune log."""

from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.cli.output import from_here, pictures, tell

if TYPE_CHECKING:
    from rich.console import Console

    from scalescope.records.autotune import Autotune


def tell_autotune(
    record: "Autotune", console: "Console", path: Path, output: Path | None, *, json: bool, quiet: bool
) -> None:
    """What was tried, the answer and the next command."""
    from scalescope.records.store import save
    from scalescope.reporting.autotune import as_document, next_command_of, sentence, show

    said: list[str] = []
    if output:
        from scalescope.reporting.charts.autotune import write_autotune_charts

        save(record, output / "autotune.json")
        said = [*pictures(lambda: write_autotune_charts(record, output)), f"Records: {from_here(output.absolute())}"]
    tell(
        console,
        lambda: show(record, console),
        said,
        sentence(record),
        next_command_of(record),
        lambda: as_document(record),
        json=json,
        quiet=quiet,
    )
