"""Rows of the scaling table in a text: CSV, TSV or Markdown, with whatever is written around it."""

import csv
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from scalescope.errors import UsageError
from scalescope.logs.columns import KNOWN, Meaning, meaning_of, own_columns
from scalescope.logs.files import head
from scalescope.named_paths import reading
from scalescope.records.job import NO_ENGINE
from scalescope.text import plain
from scalescope.units import LARGEST_COUNT, SECONDS_PER, is_possible

_LARGEST = 1 << 25  # Bytes of a file
_NOT_A_ROW = re.compile(r"\s*#|[\s:|-]*$")  # A comment, the rule below a heading of Markdown
_MISSING = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "n/a", "na", "nan", "none", "null", "?"}
_DIGITS = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_UNIT = r"[a-z%\N{MULTIPLICATION SIGN}]*"
_NUMBER = re.compile(
    rf"(?P<number>[+-]?{_DIGITS})\s*(?P<unit>{_UNIT})"
    rf"(?:\s*(?:\N{{PLUS-MINUS SIGN}}|\+/?-)\s*(?:{_DIGITS})?\s*(?P<spread_unit>{_UNIT}).*)?"
)  # 1,234.5 and 163 s and 1.72x and 190 +- 3 ms
_RATIOS = {"x": 1.0, "\N{MULTIPLICATION SIGN}": 1.0, "%": 0.01}
_TELLING = {"rate_total", "rate_worker", "bare_rate", "train_s", "total_s", "step_s"}
_COUNTS = ("np", "nodes")
_ROUNDING = 0.01  # Of the total: people round their times


class Row(msgspec.Struct, kw_only=True):
    """Values of one row; None where it has none."""

    line: int
    np: int
    engine: str = ""
    scaling: str = ""
    batch: float | None = None  # Of whom, the table does not say
    worker_batch: float | None = None  # Where the table says it or the global one
    global_batch: float | None = None
    nodes: int | None = None
    init_s: float | None = None
    train_s: float | None = None
    total_s: float | None = None
    rest_s: float = 0.0  # Of the total, beyond init and train
    fixed_s: float | None = None  # Of the train time, in tables of our own
    steps: float | None = None
    rate_total: float | None = None  # Of all processes together
    rate_worker: float | None = None
    bare_rate: float | None = None  # Of all or of each: the table does not say
    step_s: float | None = None
    speedup: float | None = None  # By the train time, as the table states it


def is_heading(line: str) -> bool:
    """True for a line that names columns, process counts among them, as no line of a log does."""
    cells = _cells(line[:10_000].lstrip("# "), _separator(line))
    names = [meaning.name for cell in cells if (meaning := meaning_of(cell))]
    return own_columns(cells) > 0 or ("np" in names and len(names) > 1 and len(names) >= len(cells) / 2)


def read_rows(path: Path) -> tuple[list[Row], list[str]]:
    """Every row of a file's table, and the headings that are left out.

    Several tables of the same process counts, as papers split them, become one. The one of init, train and total that
    is missing follows from the others.

    Raises:
        UsageError: There is no table, or its columns or a cell make no sense; it names the next action.
    """
    name = plain(path.name)
    head(path)
    if path.stat().st_size > _LARGEST:
        raise UsageError(f"'{name}' is larger than {_LARGEST >> 20} MiB: keep the rows of the scaling table only")
    with reading(path):
        lines = path.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    starts = [at for at, line in enumerate(lines) if is_heading(line)]
    starts = starts or [at for at, line in enumerate(lines) if not _NOT_A_ROW.match(line)][:1] or [0]
    left_out: list[str] = []
    try:
        tables = [_table(lines, start, end, name, left_out) for start, end in pairwise([*starts, len(lines)])]
    except csv.Error as problem:
        raise UsageError(f"'{name}' is no table ({problem}): check its quotes") from None
    told = tables[0]
    for more in tables[1:]:
        by_count = {values["np"]: values for values in more}
        is_split = len(by_count) == len(more) and by_count.keys() == {values["np"] for values in told}
        if not is_split or (told[0].keys() & more[0].keys()) != {"line", "np"}:
            raise UsageError(
                f"'{name}' holds {len(tables)} tables that are not one by their process counts and columns: "
                "keep one of them in a file"
            )
        told = [by_count[values["np"]] | values for values in told]
    if not _TELLING & told[0].keys():
        raise UsageError(_no_heading(name))
    rows = [Row(**{meaning: value for meaning, value in values.items() if value is not None}) for values in told]
    for row in rows:
        _complete(row, name)
    return rows, left_out


def _table(lines: list[str], start: int, end: int, name: str, left_out: list[str]) -> list[dict[str, Any]]:
    """Values by meaning of each row below a heading, up to a line of text; names headings without a meaning."""
    separator = _separator(lines[start])
    heading = _cells(lines[start].lstrip("# "), separator)
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(lines[start + 1 : end], start=start + 2):
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
            rows.append((number, cells + [""] * (len(heading) - len(cells))))
    columns: dict[str, tuple[int, Meaning]] = {}
    for at, text in enumerate(heading):
        meaning = meaning_of(text)
        if meaning is None:
            left_out += [plain(text, 40)] if text and at >= own_columns(heading) else []
        elif meaning.name in columns:
            first, second = (plain(heading[each], 40) for each in (columns[meaning.name][0], at))
            raise UsageError(
                f"'{name}': the columns '{first}' and '{second}' both mean {meaning.name}: rename or remove one"
            )
        elif meaning.name != "recomputed":
            columns[meaning.name] = at, meaning
    if "np" not in columns:
        raise UsageError(_no_heading(name))
    if not rows:
        raise UsageError(f"'{name}' has a heading and no rows: add one row per number of processes")
    told = []
    for number, cells in rows:
        values: dict[str, Any] = {"line": number}
        for at, meaning in columns.values():
            where = f"'{name}' line {number}, column '{plain(heading[at], 40)}'"
            values[meaning.name] = _value(cells[at], meaning, where)
        if values["np"] is None:
            raise UsageError(f"'{name}' line {number} says no number of processes: fill it in or remove the row")
        told.append(values)
    return told


def _no_heading(name: str) -> str:
    return (
        f"'{name}' has no heading with a column of process counts and one of times or rates: "
        f"separate cells by commas or tabs and name columns {KNOWN}"
    )


def _separator(line: str) -> str:
    return next((each for each in "\t|" if each in line), ",")


def _cells(line: str, separator: str) -> list[str]:
    if separator == "|":
        line = line.strip().strip("|")
    cells = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    return [cell.strip(" \t*`") for cell in cells]


def _value(cell: str, meaning: Meaning, where: str) -> str | float | None:
    """The word, or the number in SI units, in a cell; None for an empty one. Its own unit goes before the heading's."""
    text = cell.lower()
    if text in _MISSING and (meaning.name, text) != ("engine", NO_ENGINE):
        return None
    if meaning.name == "engine":
        return plain(cell, 40)
    if meaning.name == "scaling":
        if text not in ("strong", "weak"):
            raise UsageError(f"{where}: '{plain(cell, 40)}' is neither strong nor weak: write one of them or nothing")
        return text
    units = {"": meaning.scale, **(_RATIOS if meaning.name == "speedup" else {})}
    if meaning.name.endswith("_s"):
        units |= SECONDS_PER
    found = _NUMBER.fullmatch(text)
    unit = (found["unit"] or (found["spread_unit"] or "").strip("%")) if found else ""  # a spread may be a share
    if not found or unit not in units:
        raise UsageError(f"{where}: '{plain(cell, 40)}' is no number such as 1,234.5: correct or empty the cell")
    value = float(found["number"].replace(",", "")) * units[unit]
    size = abs(value) if meaning.name == "fixed_s" else value
    is_whole = value == round(value) <= LARGEST_COUNT if size < 1e12 else False
    may_be_zero = meaning.name in ("init_s", "fixed_s")
    if not (is_possible(size) or (value == 0 and may_be_zero)) or (meaning.name in _COUNTS and not is_whole):
        raise UsageError(f"{where}: '{plain(cell, 40)}' is not possible for a training: correct or empty the cell")
    return int(value) if meaning.name in _COUNTS else value


def _complete(row: Row, name: str) -> None:
    """Add what follows from the cells: rates, batches, and the one of init, train and total that is missing."""
    if row.global_batch:
        row.worker_batch = row.global_batch / row.np
    if row.rate_total is None and row.rate_worker is not None:
        row.rate_total = row.rate_worker * row.np
    if row.rate_total is None and row.worker_batch and row.step_s:
        row.rate_total = row.np * row.worker_batch / row.step_s
    if row.total_s is None or (row.init_s is None and row.train_s is None):
        row.init_s = None if row.train_s is None else row.init_s
        return
    row.train_s = row.total_s - (row.init_s or 0.0) if row.train_s is None else row.train_s
    row.init_s = row.total_s - row.train_s if row.init_s is None else row.init_s
    if row.train_s <= 0 or row.init_s < 0:
        raise UsageError(
            f"'{name}' line {row.line}: the total of {row.total_s:g} s is less than a part: correct the row"
        )
    rest_s = row.total_s - row.init_s - row.train_s
    row.rest_s = rest_s if rest_s > _ROUNDING * row.total_s else 0.0
