"""Documents on the terminal: the answer with its reasons on one screen, everything with --details."""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from scalescope.show.document import Bar, Column, Document, Item, Section, Table, cell, shown_columns, shown_rows
from scalescope.text import clean, plural

WIDTH = 100  # Where there is no terminal
_WARNINGS = 3  # Shown without --details; one of them may be why the figures mean something else
_WORDS = 24  # Letters that a column of words needs: it is wrapped
_LEAST_BAR, _MOST_BAR = 8, 40  # Letters of a bar
_LIGHT = 0.45  # Luminance from which on letters are black


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
    """Make a rich Console for text that others may have written; options as Console takes them."""
    console = Console(emoji=False, **options)
    if not console.is_terminal and not {"COLUMNS", "width"} & {*os.environ, *options}:
        console.width = WIDTH
    console.push_render_hook(_Tidy())
    return console


def show(document: Document, console: Console, *, details: bool = False, all_by: str = "") -> None:
    """Show what stands below the answer: reasons, up to three warnings, what to do.

    Args:
        document: Of the result.
        console: Where to show it.
        details: Show every section instead.
        all_by: The command that shows them; empty: the same one again.
    """
    if details:
        for section in document.sections:
            _section(section, console)
        if document.warnings:
            console.print()
            say(console, "Warnings", "bold yellow")
        for warning in document.warnings:
            bullet(console, warning, "yellow")
    else:
        for table in document.brief:
            _table(table, console, table.few)
        for line in document.reasons:
            bullet(console, line)
        for warning in document.warnings[:_WARNINGS]:
            say(console, f"Warning: {warning}", "yellow")
    if document.do:
        console.print(Text(encoded(f"Do: {document.do}", console)), soft_wrap=True)  # a command is copied whole
    if not details and (more := _left_out(document)):
        say(console, f"{more[0].upper()}{more[1:]}: {all_by or 'add --details'}", "dim")


def _left_out(document: Document) -> str:
    """`2 more warnings and all details`; empty where everything is shown."""
    shown = [*document.reasons, *(table for table in document.brief if len(table.rows) <= table.few)]
    left_out = []
    if (warnings := len(document.warnings) - _WARNINGS) > 0:
        left_out.append(plural(warnings, "more warning"))
    for section in document.sections:
        parts = (*section.lines, *section.facts, *section.tables, *section.items, *section.code)
        if section.on_terminal and any(part not in shown for part in parts):
            return " and ".join([*left_out, "all details"])
    return " and ".join(left_out)


def _section(section: Section, console: Console) -> None:
    if section.is_empty or not section.on_terminal:
        return
    console.print()
    say(console, section.heading, "bold")
    for line in section.lines:
        say(console, line)
    for at, table in enumerate(section.tables):
        if at:
            console.print()
        _table(table, console, table.most)
    for line in section.facts:
        bullet(console, line)
    for at, item in enumerate(section.items, start=1):
        _item(at, item, console)
    for text in section.code:
        console.print(Text(encoded(text, console)), soft_wrap=True)


def _table(table: Table, console: Console, most: int) -> None:
    """The columns that fit; of many rows some, and how many there are more."""
    columns = shown_columns(table, _head)
    if table.title:
        say(console, table.title, "bold")
    if not columns:
        return
    rows, left_out = shown_rows(table, most)
    cells = {
        column: ["" if column.is_bar else cell(column, row).replace(" ± ", "±") for row in rows] for column in columns
    }
    widths = {
        column: max([len(_head(column)), *(min(len(text), _WORDS if column.words else len(text)) for text in texts)])
        + 1
        for column, texts in cells.items()
    }
    narrow = 0
    while sum(widths.values()) > console.width and any(column.priority for column in columns):
        columns.remove(worst := max(columns, key=lambda column: column.priority))
        del widths[worst]
        narrow += 1
    taken = sum(widths[column] for column in columns if not column.is_bar)
    room = min(_MOST_BAR, console.width - taken - 1)
    columns = [column for column in columns if not column.is_bar or room >= _LEAST_BAR]
    grid = Grid(box=SIMPLE_HEAD, padding=0, show_edge=False, pad_edge=True)
    for column in columns:
        justify = "left" if column.words or column.is_bar else "right"
        grid.add_column(_head(column), justify=justify, overflow="fold", no_wrap=column.is_bar)  # type: ignore[arg-type]
    for at, row in enumerate(rows):
        grid.add_row(*(_cell(column, row, cells[column][at], room, console) for column in columns))
        if left_out and table.both_ends and at == 0:
            grid.add_row(*["..."] * len(columns))
    console.print(grid)
    if left_out and not table.both_ends:
        say(console, f"... {plural(left_out, table.noun)} more", "dim")
    if narrow:
        say(console, f"... {plural(narrow, 'column')} more on a wider terminal", "dim")
    if table.key:
        say(console, table.key, "dim")
    for note in filter(None, table.notes):
        bullet(console, note)


def _head(column: Column) -> str:
    return column.heading if column.short is None else column.short


def _cell(column: Column, row: Any, text: str, room: int, console: Console) -> Text:
    if column.is_bar:
        return _bar(column.value(row), room)
    colour = column.colour(row) if column.colour else ""
    style = Style(color=_letters(colour), bgcolor=colour) if colour else Style()
    return Text(encoded(text or "-", console), style)


def _bar(parts: Sequence[Bar], room: int) -> Text:
    """Letters in their colours; the ends are rounded, so that the whole keeps its length."""
    bar, passed = Text(), 0.0
    for letter, share, colour in parts:
        begin = round(room * passed)
        passed = min(1.0, passed + share)
        bar.append(letter * (round(room * passed) - begin), Style(color=_letters(colour), bgcolor=colour))
    return bar


def _letters(colour: str) -> str:
    """Black or white, whichever is read on this colour."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > _LIGHT else "#ffffff"


def _item(at: int, item: Item, console: Console) -> None:
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(f"{at}.", Text(encoded(item.sentence, console), style="bold"))
    evidence = "; ".join(f"{name} {value}" for name, value in item.evidence)
    gain = f"{item.gain}, from {item.source}" if item.gain and item.source else item.gain
    for heading, words in (("evidence", evidence), ("change", item.change), ("gain", gain)):
        if words:
            grid.add_row("", Text(f"{heading}: ", style="dim").append(encoded(words, console), Style(dim=False)))
    console.print(grid)


def say(console: Console, line: str, style: str = "") -> None:
    """A line of its own."""
    console.print(Text(encoded(line, console), style=style), highlight=False)


def bullet(console: Console, line: str, style: str = "") -> None:
    """A line that keeps its indent when it is wrapped."""
    grid = Grid.grid()
    grid.add_row("- ", Text(encoded(line, console), style=style))
    console.print(grid)


def encoded(text: str, console: Console) -> str:
    """With a question mark for what the terminal has no letter for."""
    return text.encode(console.encoding, "replace").decode(console.encoding)
