"""From a table's cells to rows with meaning: numbers checked, units converted, times completed."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from scalescope.errors import UsageError
from scalescope.measurement.tables.columns import KNOWN, Meaning, meaning_of
from scalescope.measurement.tables.text import Row, TableText, parse_number
from scalescope.text import plain
from scalescope.units import is_possible

_WHOLE_NUMBERS = ("np", "nodes", "launches")
_LABELS = ("engine", "scaling")
# A table needs one of these along with the process counts.
_TELLING = ("rate_total", "rate_worker", "bare_rate", "train_s", "total_s", "epoch_s", "step_s")
_ROUNDING = 0.01  # Of the total: people round their times


class Times(NamedTuple):
    """Seconds of one row; None where the table cannot tell."""

    train_s: float | None = None
    init_s: float | None = None
    rest_s: float | None = None  # Of the total, beyond init and train; None without a total
    only_total_s: float | None = None  # The total, where nothing else is known

    @property
    def longest_s(self) -> float | None:
        """The train time, or else the total."""
        return self.train_s if self.train_s is not None else self.only_total_s

    @property
    def wall_s(self) -> float | None:
        """The whole job, if the row tells it."""
        if self.train_s is None or self.init_s is None:
            return self.only_total_s
        return self.train_s + self.init_s + (self.rest_s or 0.0)


class TableRow(msgspec.Struct, kw_only=True):
    """What one row says; None where it says nothing."""

    line: int
    cells: tuple[str, ...]
    np: int
    engine: str = ""
    scaling: str = ""
    batch: float | None = None  # As the column says, whoever's it is
    worker_batch: float | None = None
    global_batch: float | None = None
    nodes: int | None = None
    launches: int | None = None  # That the row sums up; None: it is one
    init_s: float | None = None
    train_s: float | None = None
    total_s: float | None = None
    fixed_s: float | None = None  # Of the train time, in tables of our own
    steps: float | None = None
    times: Times = Times()
    rate: float | None = None  # Of all processes together
    bare_rate: float | None = None  # Of all or of each: the table does not say
    epoch_s: float | None = None
    step_s: float | None = None
    claims: dict[str, float] = {}  # Speedups that the table states, by the column's meaning


class Table(NamedTuple):
    """Rows with meaning and what was assumed on the way."""

    name: str
    rows: list[TableRow]
    headings: dict[str, str]  # What the table calls a column, by meaning
    findings: list[str]
    warnings: list[str]


class _Column(NamedTuple):
    at: int
    heading: str
    meaning: Meaning


def understand(text: TableText) -> Table:
    """The rows of a table; UsageError names the next action when a cell or a column makes no sense."""
    columns, findings = _columns(text)
    rows = [_table_row(text, row, columns) for row in text.rows]
    for row in rows:
        row.times, slip = _times(row, text.name)
        findings += [slip] if slip else []
    if any(row.times.train_s is not None for row in rows):  # then totals of single rows are of no use
        for row in rows:
            row.times = row.times._replace(only_total_s=None)
    headings = {name: plain(column.heading, 40) for name, column in columns.items()}
    return Table(text.name, rows, headings, findings, _differing_labels(text, rows, columns))


def _table_row(text: TableText, row: Row, columns: dict[str, _Column]) -> TableRow:
    values = {name: _value(text, row, column) for name, column in columns.items() if name not in _LABELS}
    labels = {name: plain(row.cells[columns[name].at], 40) for name in _LABELS if name in columns}
    scaling = labels.get("scaling", "").lower().strip("-")
    if scaling not in ("", "strong", "weak"):
        where = f"'{text.name}' line {row.line}, column '{columns['scaling'].heading}'"
        raise UsageError(f"{where}: '{scaling}' is neither strong nor weak: write one of them or nothing")
    np = values.pop("np")
    if np is None:
        raise UsageError(f"'{text.name}' line {row.line} says no number of processes: fill it in or remove the row")
    total, worker = values.pop("rate_total", None), values.pop("rate_worker", None)
    return TableRow(
        line=row.line,
        cells=tuple(row.cells),
        np=int(np),
        engine=labels.get("engine", ""),
        scaling=scaling,
        rate=total if total is not None else worker * np if worker is not None else None,
        claims={name: value for name, value in values.items() if name.startswith("speedup") and value},
        **{name: value for name, value in values.items() if not name.startswith("speedup")},  # type: ignore[arg-type]
    )


def _columns(text: TableText) -> tuple[dict[str, _Column], list[str]]:
    """Columns by meaning; what is left over, and what was assumed, in sentences."""
    found: dict[str, _Column] = {}
    ignored, findings = [], []
    unfit = None
    for at, heading in enumerate(text.heading):
        meaning = meaning_of(heading)
        column = _Column(at, heading, meaning or Meaning(""))
        cells = [row.cells[at] for row in text.rows]
        if meaning and meaning.name == "recomputed":
            continue
        if meaning is None or not _fits(meaning, cells):
            ignored += [heading] if heading or any(cells) else []
            unfit = column if meaning and meaning.name == "np" else unfit
        elif meaning.name not in found:
            found[meaning.name] = column
        elif meaning.name == "np":
            better, other = sorted((found["np"], column), key=lambda each: "worker" in each.heading.lower())
            found["np"] = better  # workers may be those of a data loader
            ignored.append(other.heading)
        elif meaning.name.startswith("speedup"):
            ignored.append(heading)
        else:
            raise UsageError(
                f"'{text.name}': the columns '{plain(found[meaning.name].heading, 40)}' and "
                f"'{plain(heading, 40)}' both mean {meaning.name}: rename or remove one"
            )
    if "time" in found and "total_s" in found:
        ignored.append(found.pop("time").heading)
    elif "time" in found:
        found["total_s"] = found.pop("time")
        name = plain(found["total_s"].heading, 40)
        findings.append(f"'{name}' is read as the time of the whole job; name it train_s if it is the training's")
    if "np" not in found and unfit:
        found["np"] = unfit  # its first cell will tell what is wrong with it
    if "np" not in found:
        raise UsageError(f"'{text.name}' has no column of process counts: name one np, or gpus, ranks or workers")
    if not any(name in found for name in _TELLING):
        raise UsageError(f"'{text.name}' has neither times nor rates: name its columns {KNOWN}")
    if ignored:
        names = ", ".join(f"'{plain(heading, 40)}'" for heading in ignored)
        findings.append(f"not understood and left out: {'column' if len(ignored) == 1 else 'columns'} {names}")
    return found, findings


def _fits(meaning: Meaning, cells: list[str]) -> bool:
    """Whether cells can hold what the heading promises: `GPU` may be a model's name."""
    return meaning.name != "np" or any(re.match(r"\s*[+-]?\d", cell) for cell in cells)


def _value(text: TableText, row: Row, column: _Column) -> float | None:
    """A cell's number in SI units; UsageError when it is none, or not above 0."""
    cell, name = row.cells[column.at], column.meaning.name
    where = f"'{text.name}' line {row.line}, column '{plain(column.heading, 40)}'"
    try:
        value = parse_number(cell, decimal_comma=text.decimal_comma)
    except ValueError:
        hint = " (a decimal comma is understood in files separated by ;)" if re.fullmatch(r"\d+,\d+", cell) else ""
        raise UsageError(f"{where}: '{plain(cell, 40)}' is no number{hint}: correct or empty the cell") from None
    if value is None:
        return None
    if name != "fixed_s" and (value < 0 or (value == 0 and name != "init_s")):
        raise UsageError(f"{where}: {value:g} is not above 0: correct or empty the cell")
    if name in _WHOLE_NUMBERS and (value != int(value) or value > 1e9):
        raise UsageError(f"{where}: {value:g} is no whole number: correct the cell")
    if name in _WHOLE_NUMBERS:
        return int(value)
    value *= column.meaning.scale
    if value and not is_possible(abs(value)):
        raise UsageError(f"{where}: '{plain(cell, 40)}' is out of any training's range: correct or empty the cell")
    return value


def _times(row: TableRow, table: str) -> tuple[Times, str]:
    """The times of a row, and a sentence when its total is less than the sum of its parts."""
    train_s, init_s, total_s = row.train_s, row.init_s, row.total_s
    if train_s is None and (init_s is None or total_s is None):
        return Times(only_total_s=total_s), ""
    if total_s is None:
        return Times(train_s, init_s), ""
    if train_s is None or init_s is None:
        known, known_s = ("train", train_s) if train_s is not None else ("init", init_s or 0.0)
        left_s = total_s - known_s
        if left_s < 0 or (train_s is None and left_s == 0):
            raise UsageError(
                f"'{table}' line {row.line}: the total of {total_s:g} s is less than the {known} time "
                f"of {known_s:g} s: correct the row"
            )
        return Times(train_s or left_s, left_s if init_s is None else init_s, 0.0), ""
    rest_s = total_s - init_s - train_s
    if rest_s < -_ROUNDING * total_s:
        said = f"the table says {total_s:g} s in all at {row.np} where {init_s:g} + {train_s:g} is {init_s + train_s:g}"
        return Times(train_s, init_s, 0.0), said
    return Times(train_s, init_s, rest_s if rest_s > _ROUNDING * total_s else 0.0), ""


def _differing_labels(text: TableText, rows: Sequence[TableRow], columns: dict[str, _Column]) -> list[str]:
    """Rows that count as repeated launches although a column that was left out tells them apart."""
    groups: dict[tuple[object, ...], list[TableRow]] = {}
    for row in rows:
        key = (row.np, row.engine, row.scaling, row.batch, row.worker_batch, row.global_batch)
        groups.setdefault(key, []).append(row)
    repeated = [group for group in groups.values() if len(group) > 1]
    used = {column.at for column in columns.values()}
    warnings = []
    for at, heading in enumerate(text.heading):
        kinds = {row.cells[at] for group in repeated for row in group}
        differ = any(len({row.cells[at] for row in group}) > 1 for group in repeated)
        numbers = any(re.match(r"[\d.+-]", kind) for kind in kinds)
        if differ and not numbers and at not in used and meaning_of(heading) is None:
            named = " and ".join(f"'{plain(kind, 30)}'" for kind in sorted(kinds)[:2])
            warnings.append(
                f"rows with '{plain(heading, 40)}' {named} are read as repeated launches of one thing: "
                "keep the rows of one, or name the column engine to compare them"
            )
    return warnings
