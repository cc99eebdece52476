"""A Document describes a result once: its answer, reasons, tables, figures and JSON. Renderers know no record.

A record's file in this room makes its Document; `terminal`, `files`, `page` and `notebook` render any of them.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

from scalescope.text import clean

FACTS = 3  # Reasons that stand next to an answer


class Bar(NamedTuple):
    """One stretch of a bar in a cell of the terminal."""

    letter: str
    share: float
    colour: str


_along = cache(attrgetter)  # A file may have a million values


class Column(NamedTuple):
    """One value of a table's rows: where it is, its headings, how people read it, and its key in files."""

    get: str | Callable[[Any], Any]  # A row's raw value in SI units, or the names that lead to it; None: not known
    heading: str = ""  # In Markdown, LaTeX and on the page; empty: not there
    short: str | None = None  # On the terminal; None: as the heading, empty: not there
    write: Callable[[Any], str] = str  # The value for people; only called for known values
    key: str = ""  # In CSV and JSON; empty: in neither
    ends: bool = False  # The value has low and high, which CSV has as KEY_low and KEY_high
    json: bool = False  # The value stands in the JSON of a row as it is
    csv: bool = True
    words: bool = False  # Holds words: left-aligned, and wrapped on the terminal
    priority: int = 0  # Above 0: left out on a terminal that is too narrow, the highest first
    colour: Callable[[Any], str] | None = None  # A row's background on the terminal
    is_bar: bool = False  # The value is a list of Bar, for the terminal only

    def value(self, row: Any) -> Any:
        """The raw value of a row; None where it, or what it is a part of, is not known."""
        if callable(self.get):
            return self.get(row)
        try:
            return _along(self.get)(row)
        except AttributeError:  # something on the way is a dictionary, or not known
            for name in self.get.split("."):
                if row is not None:
                    row = row.get(name) if isinstance(row, dict) else getattr(row, name)
            return row


class Table(NamedTuple):
    """Rows of one kind."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    caption: str  # In files and on the page, where it stands alone
    title: str = ""  # On the terminal, where the section's heading is near; empty: none
    notes: Sequence[str] = ()  # Below the table, a line each
    key: str = ""  # How to read its cells: what intervals and marks mean
    paper: bool = True  # Whether it is for papers, that is in Markdown and LaTeX
    noun: str = "row"  # What is counted where rows are left out
    most: int = 200  # Rows that people are shown; files have all
    few: int = 8  # The same without --details
    both_ends: bool = False  # Of too many rows the first and the last ones are shown, not the first ones


class Figure(NamedTuple):
    """A chart that is drawn when somebody asks for it; CHARTS of the files in charts/ declare them all."""

    name: str  # Of its file, and of its place on the page
    section: str  # Whose it is, by name
    caption: str  # What to see in it
    draw: Callable[..., Any]  # An altair chart of the results, or None where there is nothing to draw
    leads: bool = False  # Shows the answer: it stands next to it on the page
    zooms: bool = False


class Item(NamedTuple):
    """One of several things to do, such as a finding."""

    sentence: str
    gain: str = ""
    change: str = ""
    evidence: Sequence[tuple[str, str]] = ()
    source: str = ""  # Where the gain comes from


class Section(NamedTuple):
    """One question and what answers it: a section of the page, and on the terminal a part of --details."""

    name: str
    heading: str
    lines: Sequence[str] = ()  # Paragraphs
    facts: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Callable[[], Sequence[Figure]] = tuple  # Asking imports altair
    items: Sequence[Item] = ()
    code: Sequence[str] = ()
    on_terminal: bool = True

    @property
    def is_empty(self) -> bool:
        """True if there is nothing but figures, which the terminal does not show."""
        return not (self.lines or self.facts or self.items or self.code or any(table.rows for table in self.tables))


class Document(NamedTuple):
    """A result for people and programs."""

    answer: str  # One sentence
    why: Sequence[str] = ()  # Facts, the most telling first
    do: str = ""  # What to change, as it can be pasted
    warnings: Sequence[str] = ()
    brief: Sequence[Table] = ()  # Shown with the answer on the terminal, without --details
    sections: Sequence[Section] = ()
    json: Callable[[], dict[str, Any]] = dict
    files: dict[str, Table] = {}

    @property
    def reasons(self) -> list[str]:
        """The few facts that stand next to the answer."""
        return [clean(line) for line in self.why if line][:FACTS]

    @property
    def figures(self) -> list[Figure]:
        """All of them, in the order of the sections."""
        return [figure for section in self.sections for figure in section.figures()]


class Chapter(NamedTuple):
    """One training on a page."""

    title: str
    document: Document
    follow: str = ""  # The next command


def charted(file: str, sections: Sequence[Section], *results: Any) -> list[Section]:
    """The sections with the figures that a file in charts/ declares for them, to be drawn from these results."""

    def figures(section: str) -> list[Figure]:
        declared = import_module(f"scalescope.show.charts.{file}").CHARTS
        return [each._replace(draw=partial(each.draw, *results)) for each in declared if each.section == section]

    return [section._replace(figures=partial(figures, section.name)) for section in sections]


def spec_of(figure: Figure) -> dict[str, Any] | None:
    """The drawn chart as Vega-Lite; None where there is nothing to draw."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):  # no validation of every part as it is made: tests validate every figure
        chart = figure.draw()
        return None if chart is None else chart.to_dict(validate=False)


def shown_columns(table: Table, heading: Callable[[Column], str]) -> list[Column]:
    """Columns that have a heading here and a value in some row."""
    return [
        column
        for column in table.columns
        if heading(column) and any(column.value(row) not in (None, "") for row in table.rows)
    ]


def cell(column: Column, row: Any) -> str:
    """A value as people read it; empty where it is not known."""
    value = column.value(row)
    return "" if value is None else column.write(value)


def printed(table: Table) -> tuple[list[Column], list[list[str]], int]:
    """Columns of a table in a file or on a page, its cells as text, and how many rows are left out."""
    columns = shown_columns(table, lambda column: column.heading)
    rows, left_out = shown_rows(table, table.most)
    return columns, [[cell(column, row) for column in columns] for row in rows], left_out


def shown_rows(table: Table, most: int) -> tuple[list[Any], int]:
    """The rows that fit, and how many are left out; with `both_ends` they are missing after the first."""
    rows = list(table.rows)
    if len(rows) <= most:
        return rows, 0
    kept = [rows[0], *rows[1 - most :]] if table.both_ends else rows[:most]
    return kept, len(rows) - most
