"""A table as text: which character separates, where the heading is, and what its numbers are."""

import csv
import math
import re
from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.scaling.tables.columns import KNOWN, meaning_of
from scalescope.scaling.text_files import printable, whole

_SEPARATORS = ("\t", ";", ",")
_MISSING = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "n/a", "na", "nan", "none", "null", "?"}
_NUMBER = r"[+-]?\d+(?:\.\d*)?(?:e[+-]?\d+)?|[+-]?\.\d+(?:e[+-]?\d+)?"
_THOUSANDS = re.compile(r"(?<=\d)[,'\s\u00a0\u202f](?=\d{3}(?!\d))")
_UNIT = re.compile(r"\s*(?:s|secs?|seconds?|x|%|\N{MULTIPLICATION SIGN})$")
_SPREAD = re.compile(r"\s*(?:\N{PLUS-MINUS SIGN}|\+/?-).*$")
_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")

_EXCEL_HINT = re.compile(r"sep=.\s*$", re.IGNORECASE)


class Row(NamedTuple):
    """Cells of one row, as many as the heading has."""

    line: int
    cells: list[str]


class TableText(NamedTuple):
    """A heading and its rows, cells still text."""

    name: str
    heading: list[str]
    rows: list[Row]
    decimal_comma: bool
    """Whether 0,5 is a half."""


def read_table_text(path: Path) -> TableText:
    """The table in a file; one line that names the next action when there is none."""
    name = printable(path.name)
    numbered = [
        (number, line)
        for number, line in enumerate(whole(path).splitlines(), start=1)
        if line.strip() and not _EXCEL_HINT.match(line)
    ]
    heading_at = _heading_index([line for _, line in numbered])
    heading_line = numbered[heading_at][1].lstrip("# ") if heading_at is not None else ""
    separator = separator_of(heading_line)
    if heading_at is None or separator is None:
        raise UsageError(f"'{name}' has no heading that is understood: name its columns {KNOWN}")
    body = [(number, line) for number, line in numbered[heading_at + 1 :] if not line.lstrip().startswith("#")]
    heading = [cell.strip() for cell in next(csv.reader([heading_line], delimiter=separator, skipinitialspace=True))]
    rows = _rows(name, heading, body, separator)
    if not rows:
        raise UsageError(f"'{name}' has a heading and no rows: add one row per number of processes")
    return TableText(name, heading, rows, separator == ";" and _has_decimal_commas(rows))


def separator_of(heading: str) -> str | None:
    """What separates the cells of a heading: the character that leaves the most names understood."""
    best, understood = None, 0
    for separator in _SEPARATORS:
        cells = next(csv.reader([heading[:10_000]], delimiter=separator, skipinitialspace=True), [])
        count = sum(meaning_of(cell) is not None for cell in cells)
        if len(cells) > 1 and count > understood:
            best, understood = separator, count
    return best


def _heading_index(lines: list[str]) -> int | None:
    """The first line that is no comment; a comment right above numbers can be the heading too."""
    first = next((index for index, line in enumerate(lines) if not line.lstrip().startswith("#")), None)
    if first is None:
        return None
    starts_with_number = re.match(r"\s*\"?[\d.+-]", lines[first]) is not None
    return first - 1 if starts_with_number and first > 0 else first


def _rows(name: str, heading: list[str], body: list[tuple[int, str]], separator: str) -> list[Row]:
    reader = csv.reader((line for _, line in body), delimiter=separator, skipinitialspace=True)
    rows, begin = [], 0
    try:
        for cells in reader:
            line, begin = body[begin][0], reader.line_num
            stripped = [cell.strip() for cell in cells]
            if any(stripped[len(heading) :]):
                raise UsageError(
                    f"'{name}' line {line} has {len(stripped)} cells where the heading has {len(heading)}: "
                    "put numbers with separators, such as 1,234, into quotes"
                )
            if any(stripped):
                rows.append(Row(line, (stripped + [""] * len(heading))[: len(heading)]))
    except csv.Error as problem:
        raise UsageError(f"'{name}' is no table ({problem}): check its quotes") from None
    return rows


def _has_decimal_commas(rows: list[Row]) -> bool:
    """In files separated by ; a comma is decimal unless another cell has a decimal point."""
    cells = [cell for row in rows for cell in row.cells]
    if any(re.fullmatch(r"[\d.]*\d,\d+", cell) and not re.fullmatch(r"\d{1,3},\d{3}", cell) for cell in cells):
        return True
    points = any(re.fullmatch(r"\d*\.\d+", cell) for cell in cells)
    return not points and any("," in cell for cell in cells)


def parse_number(text: str, *, decimal_comma: bool) -> float | None:
    """`1,234.5`, `163 s`, `1.72x`, `94 %`, `190 +- 3` or `0:02:43` as a number, None when nothing is there."""
    plain = text.strip().lower()
    if plain in _MISSING:
        return None
    if clock := _CLOCK.fullmatch(plain):
        return 3600 * float(clock[1]) + 60 * float(clock[2]) + float(clock[3])
    plain = _UNIT.sub("", _SPREAD.sub("", plain))
    if decimal_comma:
        thousands = re.fullmatch(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?", plain)
        plain = (plain.replace(".", "") if thousands else plain).replace(",", ".")
    plain = _THOUSANDS.sub("", plain)
    if not re.fullmatch(_NUMBER, plain):
        raise ValueError(text)
    value = float(plain)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
