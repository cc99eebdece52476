"""Tables as text: CSV, Markdown, or tables between paragraphs; cells are split, numbers are read."""

import csv
import math
import re
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.measurement.tables.columns import KNOWN, meaning_of
from scalescope.measurement.text_files import whole
from scalescope.text import plain
from scalescope.units import parse_clock

_SEPARATORS = ("\t", ";", ",", "|")
_MISSING = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "n/a", "na", "nan", "none", "null", "?"}
_NUMBER = r"[+-]?\d+(?:\.\d*)?(?:e[+-]?\d+)?|[+-]?\.\d+(?:e[+-]?\d+)?"
_THOUSANDS = re.compile(r"(?<=\d)[,'\s\u00a0\u202f](?=\d{3}(?!\d))")
_UNIT = re.compile(r"\s*(?:s|secs?|seconds?|x|%|\N{MULTIPLICATION SIGN})$")
_SPREAD = re.compile(r"\s*(?:\N{PLUS-MINUS SIGN}|\+/?-).*$")
_CLOCK = re.compile(r"\d+:\d\d:\d\d(?:\.\d+)?")
# Nothing, comments, Excel's hint, the rule below a heading of Markdown.
_NOT_A_ROW = re.compile(r"\s*(?:$|#|sep=.\s*$|\|?[\s:|-]+\|?$)", re.IGNORECASE)
_LONGEST_HEADING = 10_000


class Row(NamedTuple):
    """Cells of one row, as many as the heading has."""

    line: int
    cells: list[str]


class TableText(NamedTuple):
    """A heading and its rows, cells still text."""

    name: str
    heading: list[str]
    rows: list[Row]
    decimal_comma: bool  # Whether 0,5 is a half


def read_table_text(path: Path) -> TableText:
    """The table in a file; several that share their process counts become one.

    Raises:
        UsageError: There is none, or they do not go together; it names the next action.
    """
    name = plain(path.name)
    lines = list(enumerate(whole(path).splitlines(), start=1))
    headings = [at for at, (_, line) in enumerate(lines) if is_heading(line)]
    content = [at for at, (_, line) in enumerate(lines) if not _NOT_A_ROW.match(line)]
    alone = len(headings) < 2 and (not headings or not [at for at in content if at < headings[0]])
    if alone:
        start = headings[0] if headings else _first_heading(lines, content)
        separator = separator_of(lines[start][1].lstrip("# ")) if start is not None else None
        if start is None or separator is None:
            raise UsageError(f"'{name}' has no heading that is understood: name its columns {KNOWN}")
        return _table(name, lines[start:], separator)
    tables = []
    for at, end in zip(headings, [*headings[1:], len(lines)], strict=True):
        separator = separator_of(lines[at][1].lstrip("# ")) or ","
        body = takewhile(lambda line: _is_row(line[1]), lines[at + 1 : end])
        tables.append(_table(name, [lines[at], *body], separator))
    return _joined(name, tables)


def is_heading(line: str) -> bool:
    """Whether a line names columns, process counts among them, as no line of a log does."""
    line = line.lstrip("# ")
    separator = separator_of(line)
    cells = _cells(line, separator) if separator else []
    names = [meaning.name for cell in cells if (meaning := meaning_of(cell))]
    return "np" in names and len(names) > 1 and len(names) >= len(cells) / 2


def separator_of(heading: str) -> str | None:
    """What separates the cells of a heading: the character that leaves the most names understood."""
    best, understood = None, 0
    for separator in _SEPARATORS:
        cells = _cells(heading[:_LONGEST_HEADING], separator)
        count = sum(meaning_of(cell) is not None for cell in cells)
        if len(cells) > 1 and count > understood:
            best, understood = separator, count
    return best


def _cells(line: str, separator: str) -> list[str]:
    if separator == "|":
        return [cell.strip().strip("*`").strip() for cell in line.strip().strip("|").split("|")]
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]


def _first_heading(lines: list[tuple[int, str]], content: list[int]) -> int | None:
    """The first line with content; a comment right above numbers can be the heading too."""
    if not content:
        return None
    at = content[0]
    return at - 1 if re.match(r"\s*\"?[\d.+-]", lines[at][1]) and at > 0 else at


def _is_row(line: str) -> bool:
    """Whether a line between paragraphs belongs to the table above it."""
    return bool(_NOT_A_ROW.match(line)) or bool(re.match(r"[\s|*`]*\d[^\t;,|]*[\t;,|]", line))


def _table(name: str, lines: list[tuple[int, str]], separator: str) -> TableText:
    """A heading and its rows; every line below the heading must be one."""
    try:
        heading = _cells(lines[0][1].lstrip("# "), separator)
        rows = [
            _row(name, number, _cells(line, separator), heading)
            for number, line in lines[1:]
            if not _NOT_A_ROW.match(line)
        ]
    except csv.Error as problem:
        raise UsageError(f"'{name}' is no table ({problem}): check its quotes") from None
    rows = [row for row in rows if any(row.cells)]
    if not rows:
        raise UsageError(f"'{name}' has a heading and no rows: add one row per number of processes")
    return TableText(name, heading, rows, separator == ";" and _has_decimal_commas(rows))


def _row(name: str, line: int, cells: list[str], heading: list[str]) -> Row:
    if any(cells[len(heading) :]):
        raise UsageError(
            f"'{name}' line {line} has {len(cells)} cells where the heading has {len(heading)}: "
            "put numbers with separators, such as 1,234, into quotes"
        )
    return Row(line, (cells + [""] * len(heading))[: len(heading)])


def _joined(name: str, tables: list[TableText]) -> TableText:
    """Tables of the same process counts side by side, as papers split them."""
    first, *others = tables
    heading, cells = list(first.heading), [list(row.cells) for row in first.rows]
    for other in others:
        counts = [[row.cells[_np_column(table)] for row in table.rows] for table in (first, other)]
        if sorted(counts[0]) != sorted(counts[1]) or len(set(counts[0])) < len(counts[0]):
            raise UsageError(
                f"'{name}' holds {len(tables)} tables of different process counts: keep one of them in a file"
            )
        at = _np_column(other)
        by_count = {row.cells[at]: [*row.cells[:at], *row.cells[at + 1 :]] for row in other.rows}
        heading += [*other.heading[:at], *other.heading[at + 1 :]]
        cells = [own + by_count[count] for own, count in zip(cells, counts[0], strict=True)]
    rows = [Row(row.line, own) for row, own in zip(first.rows, cells, strict=True)]
    return TableText(name, heading, rows, any(table.decimal_comma for table in tables))


def _np_column(table: TableText) -> int:
    meanings = [meaning_of(heading) for heading in table.heading]
    return next(at for at, meaning in enumerate(meanings) if meaning and meaning.name == "np")


def _has_decimal_commas(rows: list[Row]) -> bool:
    """In files separated by ; a comma is decimal unless another cell has a decimal point."""
    cells = [cell for row in rows for cell in row.cells]
    if any(re.fullmatch(r"[\d.]*\d,\d+", cell) and not re.fullmatch(r"\d{1,3},\d{3}", cell) for cell in cells):
        return True
    points = any(re.fullmatch(r"\d*\.\d+", cell) for cell in cells)
    return not points and any("," in cell for cell in cells)


def parse_number(text: str, *, decimal_comma: bool) -> float | None:
    """`1,234.5`, `163 s`, `1.72x`, `94 %`, `190 +- 3` or `0:02:43` as a number, None when nothing is there."""
    number = text.strip().lower()
    if number in _MISSING:
        return None
    if _CLOCK.fullmatch(number):
        return parse_clock(number)
    number = _UNIT.sub("", _SPREAD.sub("", number))
    if decimal_comma:
        thousands = re.fullmatch(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?", number)
        number = (number.replace(".", "") if thousands else number).replace(",", ".")
    number = _THOUSANDS.sub("", number)
    if not re.fullmatch(_NUMBER, number) or not math.isfinite(float(number)):
        raise ValueError(text)
    return float(number)
