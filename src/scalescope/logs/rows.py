"""Rows of a scaling table: cells read as the numbers that their headings mean."""

import re
from typing import Any, NamedTuple

import msgspec

from scalescope.errors import UsageError
from scalescope.logs.cells import Cells
from scalescope.logs.columns import KNOWN, meaning_of
from scalescope.records.job import NO_ENGINE
from scalescope.text import plain
from scalescope.units import LARGEST_COUNT, is_possible

_MISSING = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "n/a", "na", "nan", "none", "null", "?"}
_NUMBER = re.compile(
    r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[+-]?\d+)?)"
    r"\s*(?:s|secs?|seconds?|x|%|\N{MULTIPLICATION SIGN}|(?:\N{PLUS-MINUS SIGN}|\+/?-).*)?"
)  # 1,234.5 and 163 s and 1.72x and 190 +- 3
_TELLING = {"rate_total", "rate_worker", "bare_rate", "train_s", "total_s", "step_s"}
_COUNTS = ("np", "nodes", "launches")
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
    launches: int | None = None  # That the row sums up; None: it is one
    init_s: float | None = None
    train_s: float | None = None
    total_s: float | None = None
    rest_s: float = 0.0  # Of the total, beyond init and train
    fixed_s: float | None = None  # Of the train time, in tables of our own
    steps: float | None = None
    rate: float | None = None  # Of all processes together
    bare_rate: float | None = None  # Of all or of each: the table does not say
    step_s: float | None = None
    speedup: float | None = None  # By the train time, as the table states it


class _Column(NamedTuple):
    at: int
    heading: str
    scale: float


class Rows(NamedTuple):
    """All rows of a table, and what its headings say."""

    rows: list[Row]
    headings: dict[str, str]  # By meaning
    left_out: list[str]  # Headings without a meaning
    slips: list[str]  # What contradicts itself


def rows_of(table: Cells, name: str) -> Rows:
    """Read every row; the one of init, train and total that is missing follows from the others.

    Raises:
        UsageError: Columns are missing or mean the same, or a cell makes no sense; it names the next action.
    """
    columns, left_out = _columns(table, name)
    rows: list[Row] = []
    slips: list[str] = []
    for line, cells in table.rows:
        values: dict[str, Any] = {}
        for meaning, column in columns.items():
            where = f"'{name}' line {line}, column '{column.heading}'"
            values[meaning] = _value(cells[column.at], meaning, column.scale, where)
        if values["np"] is None:
            raise UsageError(f"'{name}' line {line} says no number of processes: fill it in or remove the row")
        of_each, rate = values.pop("rate_worker", None), values.pop("rate_total", None)
        if rate is None and of_each is not None:
            rate = of_each * values["np"]
        row = Row(line=line, rate=rate, **values)
        if row.global_batch:
            row.worker_batch = row.global_batch / row.np
        if row.rate is None and row.worker_batch and row.step_s:
            row.rate = row.np * row.worker_batch / row.step_s
        if slip := _complete_times(row, name):
            slips.append(slip)
        rows.append(row)
    return Rows(rows, {meaning: column.heading for meaning, column in columns.items()}, left_out, slips)


def _columns(table: Cells, name: str) -> tuple[dict[str, _Column], list[str]]:
    """Find columns by meaning; then headings of those without one."""
    found: dict[str, _Column] = {}
    left_out = []
    for at, text in enumerate(table.heading):
        meaning, heading = meaning_of(text), plain(text, 40)
        if meaning is None:
            if text or any(cells[at] for _, cells in table.rows):
                left_out.append(heading or f"{at + 1}")
        elif meaning.name in found:
            first = found[meaning.name].heading
            raise UsageError(
                f"'{name}': the columns '{first}' and '{heading}' both mean {meaning.name}: rename or remove one"
            )
        elif meaning.name != "recomputed":
            found[meaning.name] = _Column(at, heading, meaning.scale)
    if "np" not in found:
        raise UsageError(f"'{name}' has no column of process counts: name one np, or gpus, ranks or workers")
    if not _TELLING & found.keys():
        raise UsageError(f"'{name}' has neither times nor rates: name its columns {KNOWN}")
    return found, left_out


def _value(cell: str, meaning: str, scale: float, where: str) -> str | float | None:
    """The word, or the number in SI units, in a cell; None for an empty one."""
    text = cell.strip().lower()
    is_missing = text in _MISSING
    if meaning == "engine":  # "none" is one
        return "" if is_missing and text != NO_ENGINE else plain(cell, 40)
    if meaning == "scaling":
        if not is_missing and text not in ("strong", "weak"):
            raise UsageError(f"{where}: '{plain(cell, 40)}' is neither strong nor weak: write one of them or nothing")
        return "" if is_missing else text
    if is_missing:
        return None
    found = _NUMBER.fullmatch(text)
    if not found:
        raise UsageError(f"{where}: '{plain(cell, 40)}' is no number such as 1,234.5: correct or empty the cell")
    value = float(found[1].replace(",", "")) * scale
    may_be_zero, may_be_negative = meaning in ("init_s", "fixed_s"), meaning == "fixed_s"
    if not is_possible(abs(value) if may_be_negative else value) and not (value == 0 and may_be_zero):
        raise UsageError(f"{where}: '{plain(cell, 40)}' is not possible for a training: correct or empty the cell")
    if meaning not in _COUNTS:
        return value
    if value != int(value) or value > LARGEST_COUNT:
        raise UsageError(f"{where}: '{plain(cell, 40)}' is no whole number: correct the cell")
    return int(value)


def _complete_times(row: Row, name: str) -> str:
    """Add the time of init, train and total that follows from the others; a sentence where they contradict."""
    init_s, train_s, total_s = row.init_s, row.train_s, row.total_s
    if total_s is None or (init_s is None and train_s is None):
        row.init_s = None if train_s is None else init_s
        return ""
    row.train_s = train_s if train_s is not None else total_s - (init_s or 0.0)
    row.init_s = init_s if init_s is not None else total_s - row.train_s
    if row.train_s <= 0 or row.init_s < 0:
        known = "train" if init_s is None else "init"
        raise UsageError(
            f"'{name}' line {row.line}: the total of {total_s:g} s is less than the {known} time: correct the row"
        )
    both_s = row.init_s + row.train_s
    if both_s > (1 + _ROUNDING) * total_s:
        told = f"the table says {total_s:g} s in all at {row.np}"
        return f"{told} where {row.init_s:g} + {row.train_s:g} is {both_s:g}"
    row.rest_s = total_s - both_s if both_s < (1 - _ROUNDING) * total_s else 0.0
    return ""
