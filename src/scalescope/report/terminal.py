"""What terminal texts are made of: lines, bullets, tables, and the few lines that give the reasons of an answer."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from scalescope.text import clean, plural

_FACTS = 3  # Reasons of an answer that are shown without --details
_WARNINGS = 3  # One of them may be why the figures mean something else


class Answer(NamedTuple):
    """What a verb ends with on the terminal, and what the page of its results begins with: the same words."""

    sentence: str
    why: tuple[str, ...]  # At most three facts
    do: str = ""  # What to change, as it can be pasted
    warnings: tuple[str, ...] = ()


class _Tidy(RenderHook):
    """The one door to the terminal: text of records and files is harmless behind it, and no line ends in blanks."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Tidied(each) for each in renderables]


class _Tidied:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        blanks: list[Segment] = []
        for text, style, control in console.render(self._renderable, options):
            coloured = console.color_system is not None and style is not None and style.bgcolor is not None
            for part in [text] if control else re.split("(\n)", clean(text)):
                ink = part if control or coloured else part.rstrip(" ")
                if part == "\n":
                    blanks.clear()
                if ink:
                    yield from blanks
                    blanks.clear()
                    yield Segment(ink, style, control)
                if len(ink) < len(part):
                    blanks.append(Segment(part[len(ink) :], style))
        yield from blanks


def open_console(**options: Any) -> Console:
    """A rich Console for text that others may have written; options as Console takes them."""
    console = Console(**options)
    console.push_render_hook(_Tidy())
    return console


def answered(sentence: str, why: Sequence[str], *, do: str = "", warnings: Sequence[str] = ()) -> Answer:
    """The answer with the first facts that say something; whatever a user named is harmless in it."""
    facts = [line for line in why if line][:_FACTS]
    return Answer(clean(sentence), tuple(map(clean, facts)), clean(do), tuple(map(clean, warnings)))


def say(console: Console, line: str, style: str = "") -> None:
    """A line of its own."""
    console.print(Text(encoded(line, console), style=style), highlight=False)


def bullet(console: Console, line: str, style: str = "") -> None:
    """A line that keeps its indent when it is wrapped."""
    grid = Table.grid()
    grid.add_row("- ", Text(encoded(line, console), style=style))
    console.print(grid)


def section(
    console: Console, heading: str, lines: Sequence[str], rows: Sequence[Sequence[str]] = (), style: str = ""
) -> None:
    """A heading with bullets and a table below it; nothing where there are neither."""
    if not lines and not rows:
        return
    console.print()
    say(console, heading, f"bold {style}".strip())
    for line in lines:
        bullet(console, line, style)
    table(rows, console)


def table(
    rows: Sequence[Sequence[str]], console: Console, left: Collection[str] | None = None, *, tight: bool = False
) -> None:
    """The first row is the heading, a row of one cell a note below.

    Args:
        rows: Headings, then cells.
        console: Where to print.
        left: Headings of columns that hold words, which are wrapped; by default the first column holds names.
        tight: Columns stand one space apart, for tables with many of them.
    """
    if not rows:
        return
    padding = 0 if tight else (0, 1, 0, 0)
    grid = Table(box=SIMPLE_HEAD, padding=padding, show_edge=False, pad_edge=tight)
    for index, heading in enumerate(rows[0]):
        words = left is not None and heading in left
        fold = words or tight
        grid.add_column(heading, justify="right", overflow="fold" if fold else "ellipsis", no_wrap=not fold)
        if words or (left is None and not index):
            grid.columns[-1].justify = "left"
    for row in rows[1:]:
        if len(row) > 1:
            grid.add_row(*(Text(encoded(cell, console)) for cell in row))
    console.print(grid)
    for row in rows[1:]:
        if len(row) == 1:
            say(console, row[0], "dim")


def reasons(console: Console, answer: Answer, more: str = "") -> None:
    """What stands below an answer: its facts and up to three warnings, what to do, and what --details would show."""
    for line in answer.why:
        bullet(console, line)
    for warning in answer.warnings[:_WARNINGS]:
        say(console, f"Warning: {warning}", "yellow")
    if len(answer.warnings) > _WARNINGS:
        say(console, f"{plural(len(answer.warnings) - _WARNINGS, 'more warning')}: --details", "yellow")
    if answer.do:
        console.print(Text(encoded(f"Do: {answer.do}", console)), soft_wrap=True)  # a command is copied whole
    if more:
        say(console, f"--details shows {more}.", "dim")


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
