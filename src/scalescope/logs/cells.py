"""The cells of a table in a text: CSV, TSV or Markdown, with whatever is written around it."""

import csv
import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.logs.columns import KNOWN, meaning_of
from scalescope.logs.files import Line, head, lines
from scalescope.text import plain

_LARGEST = 1 << 25  # Bytes of a file
# A comment, the rule below a heading of Markdown.
_NOT_A_ROW = re.compile(r"\s*#|[\s:|-]*$")


class Cells(NamedTuple):
    """A heading and its rows as text; rows by their line, as long as the heading."""

    heading: list[str]
    rows: list[tuple[int, list[str]]]


def is_heading(line: str) -> bool:
    """True for a line that names columns, process counts among them, as no line of a log does."""
    cells = _heading(line[:10_000])
    names = [meaning.name for cell in cells if (meaning := meaning_of(cell))]
    return "np" in names and len(names) > 1 and len(names) >= len(cells) / 2


def cells_of(path: Path) -> Cells:
    """The table of a file; several of the same process counts, as papers split them, become one.

    Raises:
        UsageError: There is none, a row is too long, or its tables are of different process counts.
    """
    name = plain(path.name)
    head(path)
    if path.stat().st_size > _LARGEST:
        raise UsageError(f"'{name}' is larger than {_LARGEST >> 20} MiB: keep the rows of the scaling table only")
    text = list(lines(path, longest=_LARGEST))
    if strange := next((line.number for line in text if "\ufffd" in line.text), None):
        raise UsageError(
            f"'{name}' is not UTF-8 (line {strange}): iconv -f latin1 -t utf-8 it into another file and name that"
        )
    try:
        starts = [at for at, line in enumerate(text) if is_heading(line.text)]
        starts = starts or [at for at, line in enumerate(text) if not _NOT_A_ROW.match(line.text)][:1]
        tables = [_table(text[start:end], name) for start, end in pairwise([*starts, len(text)])]
    except csv.Error as problem:
        raise UsageError(f"'{name}' is no table ({problem}): check its quotes") from None
    if not tables:
        raise UsageError(f"'{name}' has no heading: name its columns {KNOWN}")
    heading, rows = tables[0]
    for other, more in tables[1:]:
        at, other_at = _count_column(heading), _count_column(other)
        by_count = {cells[other_at]: cells[:other_at] + cells[other_at + 1 :] for _, cells in more}
        if len(by_count) < len(more) or sorted(by_count) != sorted(cells[at] for _, cells in rows):
            raise UsageError(
                f"'{name}' holds {len(tables)} tables of different process counts: keep one of them in a file"
            )
        heading = heading + other[:other_at] + other[other_at + 1 :]
        rows = [(line, cells + by_count[cells[at]]) for line, cells in rows]
    return Cells(heading, rows)


def _table(text: list[Line], name: str) -> Cells:
    """The heading in the first line and the rows below it, up to a line of text."""
    first, *below = text
    heading, separator = _heading(first.text), _separator(first.text)
    if not any(map(meaning_of, heading)):
        raise UsageError(
            f"'{name}' has no heading that is understood: separate cells by commas or tabs and name columns {KNOWN}"
        )
    rows = []
    for number, line in below:
        if _NOT_A_ROW.match(line):
            continue
        if separator not in line and not line.lstrip()[:1].isdigit():
            break
        cells = _cells(line, separator)
        if any(cells[len(heading) :]):
            raise UsageError(
                f"'{name}' line {number} has {len(cells)} cells where the heading has {len(heading)}: "
                "put numbers with separators, such as 1,234, into quotes"
            )
        if any(cells):
            rows.append((number, (cells + [""] * len(heading))[: len(heading)]))
    if not rows:
        raise UsageError(f"'{name}' has a heading and no rows: add one row per number of processes")
    return Cells(heading, rows)


def _heading(line: str) -> list[str]:
    line = line.lstrip("# ")
    return _cells(line, _separator(line))


def _separator(line: str) -> str:
    return next((each for each in "\t|" if each in line), ",")


def _cells(line: str, separator: str) -> list[str]:
    if separator == "|":
        line = line.strip().strip("|")
    cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    return [cell.strip(" \t*`") for cell in cells]


def _count_column(heading: list[str]) -> int:
    return next(at for at, cell in enumerate(heading) if (meaning := meaning_of(cell)) and meaning.name == "np")
