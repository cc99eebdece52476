"""Scaling tables that people have: CSV, TSV or Markdown in, curves and what had to be assumed out."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from scalescope.errors import UsageError
from scalescope.logs.cells import Cells, cells_of
from scalescope.logs.columns import KNOWN, Meaning, meaning_of
from scalescope.logs.rates import whose_rate
from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.run import TRAIN
from scalescope.records.scaling import Curve, Scaling
from scalescope.stats import fit_line
from scalescope.text import plain, plural
from scalescope.units import is_possible

_MISSING = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "n/a", "na", "nan", "none", "null", "?"}
_NUMBER = re.compile(
    r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d*)?(?:e[+-]?\d+)?)"
    r"\s*(?:s|secs?|seconds?|x|%|\N{MULTIPLICATION SIGN}|(?:\N{PLUS-MINUS SIGN}|\+/?-).*)?"
)  # 1,234.5 and 163 s and 1.72x and 190 +- 3
_TELLING = ("rate_total", "rate_worker", "bare_rate", "train_s", "total_s", "step_s")
_ROUNDING = 0.01  # Of the total: people round their times
_APART = 1.2  # Rates must differ by this factor before a fixed cost can be told from them
_SLIP = 0.01  # What a table states is mentioned when it differs by more
_SHOWN = 3


class Row(msgspec.Struct, kw_only=True):
    """Values of one row; None where it has none."""

    line: int
    cells: tuple[str, ...]
    np: int
    engine: str = ""
    scaling: str = ""
    batch: float | None = None  # Whoever's it is
    worker_batch: float | None = None
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


class Group(NamedTuple):
    """Rows of one curve; those of its baseline among them."""

    engine: str
    scaling: str
    batch: float | None  # Global for strong, per process for weak scaling
    rows: list[Row]
    baseline_engine: str  # none when one process without an engine is among the rows


def read_table(path: Path) -> Scaling:
    """The curves of a table, and what had to be assumed to read it.

    Raises:
        UsageError: It holds no scaling table, or a cell makes no sense; it names the next action.
    """
    name = plain(path.name)
    table = cells_of(path, name)
    columns, left_out = _columns(table, name)
    rows = [_row(line, cells, columns, table, name) for line, cells in table.rows]
    findings = [slip for row in rows if (slip := _complete(row, name))]
    if left_out:
        names = ", ".join(f"'{plain(table.heading[at], 40)}'" for at in left_out)
        findings.insert(0, f"not understood and left out: {'column' if len(left_out) == 1 else 'columns'} {names}")
    groups, curves, said = _groups(rows), [], []
    if "bare_rate" in columns:
        said += _total_rates(groups, plain(table.heading[columns["bare_rate"][0]], 40))
    warnings = _unlike_rows(rows, table.heading, left_out)
    for group in groups:
        curve, assumed = _curve(group)
        curves.append(curve)
        said += [*assumed, *_slips(curve, group.rows)]
        if curve.fit and curve.fit.lack:
            warnings.append(
                "one fixed cost for all numbers of processes does not describe this table: "
                f"{curve.fit.lack}; do not rely on the fit"
            )
    return Scaling(
        what=name,
        source="table",
        curves=tuple(curves),
        trust=which_to_trust(curves),
        findings=tuple(dict.fromkeys([*said, *findings, *what_stands_out(curves)])),
        warnings=tuple(dict.fromkeys(warnings)),
    )


# From cells to rows


def _columns(table: Cells, name: str) -> tuple[dict[str, tuple[int, float]], list[int]]:
    """Locate columns by meaning, with the factor of their cells; then list those without a meaning."""
    found: dict[str, tuple[int, float]] = {}
    left_out = []
    for at, heading in enumerate(table.heading):
        meaning = meaning_of(heading) or Meaning("")
        if not meaning.name:
            left_out += [at] if heading or any(cells[at] for _, cells in table.rows) else []
        elif meaning.name in found:
            first = plain(table.heading[found[meaning.name][0]], 40)
            raise UsageError(
                f"'{name}': the columns '{first}' and '{plain(heading, 40)}' both mean {meaning.name}: "
                "rename or remove one"
            )
        elif meaning.name != "recomputed":
            found[meaning.name] = at, meaning.scale
    if "np" not in found:
        raise UsageError(f"'{name}' has no column of process counts: name one np, or gpus, ranks or workers")
    if not set(_TELLING) & set(found):
        raise UsageError(f"'{name}' has neither times nor rates: name its columns {KNOWN}")
    return found, left_out


def _row(line: int, cells: Sequence[str], columns: dict[str, tuple[int, float]], table: Cells, name: str) -> Row:
    """The values of a row as the table has them."""
    values: dict[str, Any] = {}
    for meant, (at, scale) in columns.items():
        where = f"'{name}' line {line}, column '{plain(table.heading[at], 40)}'"
        words = meant in ("engine", "scaling")
        values[meant] = plain(cells[at], 40) if words else _number(cells[at], meant, scale, where)
        if meant == "scaling":
            values[meant] = values[meant].lower().strip("-")
            if values[meant] not in ("", "strong", "weak"):
                raise UsageError(f"{where}: '{values[meant]}' is neither strong nor weak: write one of them or nothing")
    if values["np"] is None:
        raise UsageError(f"'{name}' line {line} says no number of processes: fill it in or remove the row")
    total, worker = values.pop("rate_total", None), values.pop("rate_worker", None)
    return Row(
        line=line,
        cells=tuple(cells),
        rate=total if total is not None else worker * values["np"] if worker is not None else None,
        **values,
    )


def _number(cell: str, meant: str, scale: float, where: str) -> float | None:
    """A cell's number in SI units, None for an empty one; UsageError for any other."""
    text = cell.strip().lower()
    if text in _MISSING:
        return None
    try:
        found = _NUMBER.fullmatch(text)
        value = float(found[1].replace(",", "")) if found else math.nan
    except ValueError:
        value = math.nan
    if math.isnan(value):
        hint = " (a decimal comma is not understood)" if re.fullmatch(r"\d+,\d+", text) else ""
        raise UsageError(f"{where}: '{plain(cell, 40)}' is no number{hint}: correct or empty the cell")
    if meant != "fixed_s" and (value < 0 or (value == 0 and meant != "init_s")):
        raise UsageError(f"{where}: {value:g} is not above 0: correct or empty the cell")
    if value and not is_possible(abs(value * scale)):
        raise UsageError(f"{where}: '{plain(cell, 40)}' is out of any training's range: correct or empty the cell")
    if meant in ("np", "nodes", "launches"):
        if value != int(value) or value > 1e9:
            raise UsageError(f"{where}: {value:g} is no whole number: correct the cell")
        return int(value)
    return value * scale


def _complete(row: Row, table: str) -> str:
    """Add the time of init, train and total that follows from two others; a sentence when they contradict."""
    init_s, train_s, total_s = row.init_s, row.train_s, row.total_s
    if total_s is None or (train_s is None and init_s is None):
        row.init_s = init_s if train_s is not None else None
        return ""
    if init_s is not None and train_s is not None:
        rest_s = total_s - init_s - train_s
        row.rest_s = rest_s if rest_s > _ROUNDING * total_s else 0.0
        contradicts = rest_s < -_ROUNDING * total_s
        told = f"the table says {total_s:g} s in all at {row.np} where {init_s:g} + {train_s:g}"
        return f"{told} is {init_s + train_s:g}" if contradicts else ""
    known, known_s = ("train", train_s) if train_s is not None else ("init", init_s or 0.0)
    left_s = total_s - known_s
    if left_s < 0 or (train_s is None and left_s == 0):
        raise UsageError(
            f"'{table}' line {row.line}: the total of {total_s:g} s is less than the {known} time "
            f"of {known_s:g} s: correct the row"
        )
    row.train_s, row.init_s = train_s or left_s, left_s if init_s is None else init_s
    return ""


def _unlike_rows(rows: Sequence[Row], heading: Sequence[str], left_out: Sequence[int]) -> list[str]:
    """Warnings of rows that count as repeated launches although words in a column that was left out differ."""
    first: dict[tuple[object, ...], Row] = {}
    warnings = {}
    for row in rows:
        key = (row.np, row.engine, row.scaling, row.batch, row.worker_batch, row.global_batch)
        other = first.setdefault(key, row)
        for at in left_out:
            one, two = sorted((other.cells[at], row.cells[at]))
            if one != two and not re.match(r"[\d.+-]", one + two):
                warnings[at] = (
                    f"rows with '{plain(heading[at], 40)}' '{plain(one, 30)}' and '{plain(two, 30)}' are read as "
                    "repeated launches of one thing: keep the rows of one, or name the column engine to compare them"
                )
    return list(warnings.values())


# From rows to curves


def _groups(rows: Sequence[Row]) -> list[Group]:
    """One group per scaling, batch and engine, in the table's order; an engine `none` is the baseline of the others."""
    together: dict[tuple[str, float | None], dict[str, list[Row]]] = {}
    for row in rows:
        key, row.worker_batch = _batch(row)
        together.setdefault((row.scaling, key), {}).setdefault(row.engine, []).append(row)
    groups = []
    for (scaling, key), by_engine in together.items():
        engines = [engine for engine in by_engine if engine != "none"]
        alone = [row for row in by_engine.get("none", ()) if row.np == 1]
        if len(engines) > 1:  # a baseline that stands in the table once per engine is still one launch
            alone = list({row.cells: row for row in alone}.values())
        if not engines:
            engines, alone = ["none"], []
        for engine in engines:
            # Curves may share a baseline and read it differently, so each has its own copies.
            own = [copy(row) for row in [*alone, *by_engine.get(engine, ())]]
            groups.append(Group(engine, scaling, key, own, "none" if alone else ""))
    return groups


def _batch(row: Row) -> tuple[float | None, float | None]:
    """The batch that a curve keeps, and that of a process, None where the table does not say.

    Strong scaling keeps the sum over all processes, weak scaling what each one has, and a column that says no more than
    `batch` is that. Without a scaling, rows with the same number are one curve.
    """
    each = row.worker_batch or (row.global_batch / row.np if row.global_batch else None)
    if not row.scaling:
        return row.worker_batch or row.global_batch or row.batch, each
    strong = row.scaling == "strong"
    each = each or (row.batch and (row.batch / row.np if strong else row.batch))
    return (round(each * row.np if strong else each, 6) if each else None), each


def _total_rates(groups: Sequence[Group], heading: str) -> list[str]:
    """Make every rate one of all processes together; a sentence when the table does not say whose it is."""
    bare = [
        {row.np: row.bare_rate for row in reversed(group.rows) if row.rate is None and row.bare_rate}
        for group in groups
    ]
    known = [rates for rates in bare if rates]
    if not known:
        return []
    widest = max(known, key=lambda rates: max(rates) / min(rates))
    total, sentence = whose_rate(heading, widest, rename="name the column examples_per_s_{}")
    for row in (row for group in groups for row in group.rows):
        if row.rate is None and row.bare_rate is not None:
            row.rate = row.bare_rate if total else row.bare_rate * row.np
    return [sentence]


def _curve(group: Group) -> tuple[Curve, list[str]]:
    """The curve of a group, and what had to be assumed for it."""
    rows, unit, said = group.rows, "samples", []
    if not any(row.rate for row in rows):  # then step times tell them
        timed = [row for row in rows if row.step_s]
        unit = "samples" if all(row.worker_batch for row in timed) else "steps"
        if unit == "steps" and not group.scaling:
            same = "a step is taken as the same work at every number of processes"
            said.append(f"{same}; add a column scaling, weak, if it is not")
        for row in timed:
            each = row.np if group.scaling == "weak" else 1
            row.rate = (row.np * (row.worker_batch or 0.0) if unit == "samples" else each) / (row.step_s or math.inf)
    works, known = _works(group)
    # Repetitions are compared in their order, or as groups where one size has more of them.
    repeated = Counter((row.engine, row.np) for row in rows)
    in_order = len(set(repeated.values())) == 1
    made: Counter[tuple[str, int]] = Counter()
    observations = []
    for row, work in zip(rows, works, strict=True):
        made[row.engine, row.np] += 1
        observations.append(_observation(row, work, made[row.engine, row.np] if in_order else row.line, unit))
    frame = Frame(
        engine=group.engine,
        scaling=group.scaling,
        batch=round(group.batch) if group.batch else None,
        work_unit=unit,
        baseline_engine=group.baseline_engine,
        baseline_np=1 if group.baseline_engine else None,
        work=known,
    )
    curve = make_curve(observations, frame)
    return curve, [*said, *_what_is_compared(curve, rows, is_work_told=known == "told")]


def _works(group: Group) -> tuple[list[float], Literal["told", "fitted", "unknown"]]:
    """The work of each row, and how it is known.

    Steps times batch, or else what describes times and rates best: T = F + work / rate. Failing that all rows of strong
    scaling do the same.
    """
    rows = group.rows
    # Samples, or in a table of ours that knows none what a step is worth at the rate.
    per_step = [(row.worker_batch or 0.0) * row.np or (row.step_s or 0.0) * (row.rate or 0.0) for row in rows]
    told = [(row.steps or 0.0) * work for row, work in zip(rows, per_step, strict=True)]
    if all(told):
        return told, "told"
    fewest = min(row.np for row in rows)
    shares = [row.np / fewest if group.scaling == "weak" else 1.0 for row in rows]
    known = [
        (share / row.rate, row.train_s) for row, share in zip(rows, shares, strict=True) if row.rate and row.train_s
    ]
    per_work = [x for x, _ in known]
    if known and max(per_work) > _APART * min(per_work):
        line = fit_line(per_work, [seconds for _, seconds in known])
        if line and line.slope > 2 * (line.slope_error or 0.0):
            return [line.slope * share for share in shares], "fitted"
    smallest = next((row for row in rows if row.np == fewest and row.rate and row.train_s), None)
    work = (smallest.train_s or 1.0) * (smallest.rate or 1.0) if smallest else 1.0
    return [work * share for share in shares], "unknown"


def _observation(row: Row, work: float, number: int, unit: str) -> Observation:
    parts, phases = {}, {}
    if row.rate and row.train_s is not None:
        beyond_s = row.train_s - work / row.rate
        parts["fixed"] = beyond_s if row.fixed_s is None else row.fixed_s
        if row.fixed_s is not None:
            parts["uneven"] = beyond_s - row.fixed_s
    if row.init_s is not None and row.train_s is not None:
        parts["init"] = row.init_s
        phases = {"init": row.init_s, TRAIN: row.train_s}
    if row.rest_s:
        parts["launch"] = phases["launch"] = row.rest_s
    return Observation(
        engine=row.engine,
        np=row.np,
        round=number,
        rate=row.rate,
        work=work,
        parts=parts,
        whole_train_s=None if row.rate else row.train_s,
        whole_wall_s=row.total_s if row.train_s is None else None,
        nodes=row.nodes,
        batch=row.worker_batch,
        step_s=row.step_s,
        throughput=row.rate if unit == "samples" else None,
        phases=phases,
        steps=round(row.steps) if row.steps else None,
    )


# What had to be assumed, and what the table got wrong


def _what_is_compared(curve: Curve, rows: Sequence[Row], *, is_work_told: bool) -> list[str]:
    """State what speedups are relative to, and which work is taken to be the same."""
    if curve.baseline_np is None:
        only = plural(curve.points[0].np, "process")
        return [f"there are rows for {only} only, nothing to compare with: add the others"]
    said = []
    if curve.baseline_np > 1:
        said.append(f"there is no row for 1 process: speedups are relative to {curve.baseline_np}")
    if not is_work_told and any(row.train_s or row.total_s for row in rows):
        if not curve.scaling:
            said.append("every row is taken to do the same work in all; a column scaling can say strong or weak")
        elif curve.scaling == "weak" and curve.fit is None:
            said.append("times are taken to grow with the work: no fixed cost can be told apart")
    return said


def _slips(curve: Curve, rows: Sequence[Row]) -> list[str]:
    """Report stated speedups that differ from those of the table's own train times."""
    base = next((row for row in rows if (row.np, row.engine) == (curve.baseline_np, curve.baseline_engine)), None)
    if base is None or curve.scaling == "weak":  # there people mean many things
        return []
    if len(rows) > len(curve.points) or any((row.launches or 1) > 1 for row in rows):
        return []  # the mean of ratios is another number than the ratio of means
    computed = {(point.np, point.engine): point.speedup.get("train") for point in curve.points}
    at_base = base.speedup or 1.0
    relative = "" if at_base == 1 else f" (and {at_base:g} at {base.np})"
    found = []
    for row in rows:
        train = computed[row.np, row.engine]
        if row.speedup and train and abs(row.speedup / at_base / train.value - 1) > _SLIP:
            ratio = f"{base.train_s:g}/{row.train_s:g} is {train.value:.2f}"
            found.append(f"the table says {row.speedup:g} at {row.np}{relative} where {ratio}")
    more = [f"and {len(found) - _SHOWN} more speedups of the table differ"] if len(found) > _SHOWN else []
    return found[:_SHOWN] + more
