"""The cells of a table in a text: CSV, TSV or Markdown, with whatever is written around it."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.logs.columns import KNOWN, meaning_of
from scalescope.logs.files import whole

_SEPARATORS = "\t,|"
# Nothing, a comment, the rule below a heading of Markdown.
_NOT_A_ROW = re.compile(r"\s*(?:$|#|\|?[\s:|-]+$)")


class Cells(NamedTuple):
    """A heading and its rows as text; rows by their line, as long as the heading."""

    heading: list[str]
    rows: list[tuple[int, list[str]]]


def is_heading(line: str) -> bool:
    """Check whether a line names columns, process counts among them, as no line of a log does."""
    cells, _ = _split(line)
    names = [meaning.name for cell in cells if (meaning := meaning_of(cell))]
    return "np" in names and len(names) > 1 and len(names) >= len(cells) / 2


def _split(heading: str) -> tuple[list[str], str]:
    """The cells of a heading and their separator: the character that leaves the most names understood."""
    heading = heading.lstrip("# ")[:10_000]
    ways = [(_cells(heading, separator), separator) for separator in _SEPARATORS if separator in heading]
    return max(ways, key=lambda way: sum(meaning_of(cell) is not None for cell in way[0]), default=([], ""))


def _cells(line: str, separator: str) -> list[str]:
    if separator == "|":
        return [cell.strip().strip("*`").strip() for cell in line.strip().strip("|").split("|")]
    return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]


def cells_of(path: Path, name: str) -> Cells:
    """The table of a file; several of the same process counts, as papers split them, become one."""
    lines = list(enumerate(whole(path).splitlines(), start=1))
    try:
        starts = [number for number, line in lines if is_heading(line)]
        starts = starts or [number for number, line in lines if not _NOT_A_ROW.match(line)][:1]
        tables = [_below(lines[start - 1 :], name, set(starts)) for start in starts]
    except csv.Error as problem:
        raise UsageError(f"'{name}' is no table ({problem}): check its quotes") from None
    if not tables:
        raise UsageError(f"'{name}' has no heading: name its columns {KNOWN}")
    heading, rows = tables[0]
    for table in tables[1:]:
        at, other_at = (_np_column(each.heading) for each in (Cells(heading, rows), table))
        more = {cells[other_at]: cells[:other_at] + cells[other_at + 1 :] for _, cells in table.rows}
        if sorted(more) != sorted(cells[at] for _, cells in rows) or len(more) < len(table.rows):
            raise UsageError(
                f"'{name}' holds {len(tables)} tables of different process counts: keep one of them in a file"
            )
        heading = heading + table.heading[:other_at] + table.heading[other_at + 1 :]
        rows = [(line, cells + more[cells[at]]) for line, cells in rows]
    return Cells(heading, rows)


def _below(lines: list[tuple[int, str]], name: str, starts: set[int]) -> Cells:
    """The heading in the first line and the rows below it, up to a line of text."""
    heading, separator = _split(lines[0][1])
    if not any(map(meaning_of, heading)):
        raise UsageError(
            f"'{name}' has no heading that is understood: separate cells by commas or tabs and name columns {KNOWN}"
        )
    rows = []
    for number, line in lines[1:]:
        if _NOT_A_ROW.match(line):
            continue
        if number in starts or not (separator in line or line.lstrip()[:1].isdigit()):
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


def _np_column(heading: Sequence[str]) -> int:
    return next(at for at, cell in enumerate(heading) if (meaning := meaning_of(cell)) and meaning.name == "np")
