"""Lines and small tables on a terminal whose texts come from traces."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scalescope.units import plural


def say(console: Console, line: str, style: str = "") -> None:
    """A line of its own."""
    console.print(Text(encoded(line, console), style=style), highlight=False)


def bullet(console: Console, line: str, style: str = "") -> None:
    """A line that keeps its indent when it is wrapped."""
    grid = Table.grid()
    grid.add_row("- ", Text(encoded(line, console), style=style))
    console.print(grid)


def table(rows: Sequence[Sequence[str]], console: Console) -> None:
    """The first row is the heading; a row of one cell is a note."""
    if not rows:
        return
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    for index, heading in enumerate(rows[0]):
        grid.add_column(heading, justify="right" if index else "left", overflow="ellipsis", no_wrap=True)
    for row in rows[1:]:
        if len(row) > 1:
            grid.add_row(*(Text(encoded(cell, console)) for cell in row))
    console.print(grid)
    for row in rows[1:]:
        if len(row) == 1:
            say(console, row[0], "dim")


def encoded(text: str, console: Console) -> str:
    """With a question mark for what the terminal has no letter for."""
    return text.encode(console.encoding, "replace").decode(console.encoding)


def cut_rows(columns: Sequence[tuple[str, list[str]]], most: int, noun: str) -> list[list[str]]:
    """Rows of the columns that say something; a last one counts what was cut."""
    told = [(heading, cells) for heading, cells in columns if any(cells)]
    if not told:
        return []
    count = len(told[0][1])
    rows = [[heading for heading, _ in told], *([cells[at] or "-" for _, cells in told] for at in range(count))]
    return rows if count <= most else [*rows[: most + 1], [f"... {plural(count - most, noun)} more"]]
