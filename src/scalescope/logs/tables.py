"""Scaling tables that people have: CSV, TSV or Markdown in, curves and what had to be assumed out."""

import math
import re
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import NamedTuple

import msgspec

from scalescope.errors import UsageError
from scalescope.logs.cells import Cells, cells_of
from scalescope.logs.columns import KNOWN, Meaning, meaning_of
from scalescope.logs.rates import whose_rate
from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.run import TRAIN
from scalescope.records.scaling import Curve, Scaling, ScalingPoint
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
_OFF = 0.05  # A fit whose work differs by more from what the table tells does not describe it
_SHOWN = 3
# What each speedup is a ratio of, and whether more is faster.
_FIGURES: dict[str, tuple[Callable[["Row"], float | None], bool]] = {
    "steady": (lambda row: row.rate, True),
    "train": (lambda row: row.train_s, False),
    "end_to_end": (lambda row: row.wall_s, False),
}


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
    rest_s: float | None = None  # Of the total, beyond init and train; None without a total
    total_s: float | None = None  # After `_complete` only where it is all that is known
    fixed_s: float | None = None  # Of the train time, in tables of our own
    steps: float | None = None
    rate: float | None = None  # Of all processes together
    bare_rate: float | None = None  # Of all or of each: the table does not say
    step_s: float | None = None
    claims: dict[str, float] = {}  # Speedups that the table states, by the column's meaning

    @property
    def longest_s(self) -> float | None:
        """The train time, or else the total."""
        return self.train_s if self.train_s is not None else self.total_s

    @property
    def wall_s(self) -> float | None:
        """The whole job, if the row tells it."""
        if self.train_s is None or self.init_s is None:
            return self.total_s
        return self.train_s + self.init_s + (self.rest_s or 0.0)


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
    rows, rate_heading, findings, warnings = _rows(cells_of(path, name), name)
    groups = _groups(rows)
    curves, said = [], _total_rates(groups, rate_heading)
    for group in groups:
        unit, assumed = _rates_from_times(group)
        curve = _curve(group, unit)
        curves.append(curve)
        said += [*assumed, *_what_is_compared(curve, group.rows), *_slips(curve, group.rows)]
        warnings += [*_without_partner(group, curve), *_lack_of_fit(curve, group.rows)]
    return Scaling(
        what=name,
        source="table",
        curves=tuple(curves),
        trust=which_to_trust(curves),
        findings=tuple(dict.fromkeys([*said, *findings, *what_stands_out(curves)])),
        warnings=tuple(dict.fromkeys(warnings)),
    )


# From cells to rows


def _rows(table: Cells, name: str) -> tuple[list[Row], str, list[str], list[str]]:
    """Rows with meaning; what the table calls its rate; what was assumed; warnings."""
    columns, left_out = _columns(table, name)
    findings = []
    if left_out:
        names = ", ".join(f"'{plain(table.heading[at], 40)}'" for at in left_out)
        findings.append(f"not understood and left out: {'column' if len(left_out) == 1 else 'columns'} {names}")
    rows = []
    for line, cells in table.rows:
        values: dict[str, float | None] = {}
        labels = {label: plain(cells[columns[label][0]], 40) for label in ("engine", "scaling") if label in columns}
        scaling = labels.get("scaling", "").lower().strip("-")
        if scaling not in ("", "strong", "weak"):
            raise UsageError(
                f"'{name}' line {line}, column '{table.heading[columns['scaling'][0]]}': '{scaling}' is neither strong "
                "nor weak: write one of them or nothing"
            )
        for meant, (at, scale) in columns.items():
            if meant not in labels:
                where = f"'{name}' line {line}, column '{plain(table.heading[at], 40)}'"
                values[meant] = _number(cells[at], meant, scale, where)
        np = values.pop("np")
        if np is None:
            raise UsageError(f"'{name}' line {line} says no number of processes: fill it in or remove the row")
        total, worker = values.pop("rate_total", None), values.pop("rate_worker", None)
        stated = {meant: values.pop(meant) for meant in list(values) if meant.startswith("speedup")}
        row = Row(
            line=line,
            cells=tuple(cells),
            np=int(np),
            engine=labels.get("engine", ""),
            scaling=scaling,
            rate=total if total is not None else worker * np if worker is not None else None,
            claims={meant: value for meant, value in stated.items() if value},
            **values,  # type: ignore[arg-type]
        )
        findings += _complete(row, name)
        rows.append(row)
    if any(row.train_s is not None for row in rows):  # then totals of single rows are of no use
        for row in rows:
            row.total_s = None
    heading = plain(table.heading[columns["bare_rate"][0]], 40) if "bare_rate" in columns else ""
    return rows, heading, findings, _told_apart(rows, table.heading, left_out)


def _columns(table: Cells, name: str) -> tuple[dict[str, tuple[int, float]], list[int]]:
    """Locate columns by meaning, with the factor of their cells; then list those without a meaning."""
    found: dict[str, tuple[int, float]] = {}
    left_out = []
    meanings = [meaning_of(heading) or Meaning("") for heading in table.heading]
    for at, (heading, meaning) in enumerate(zip(table.heading, meanings, strict=True)):
        cells = [cells[at] for _, cells in table.rows]
        if meaning.name == "recomputed":
            continue
        if not meaning.name:
            left_out += [at] if heading or any(cells) else []
        elif meaning.name in found and meaning.name.startswith("speedup"):
            left_out.append(at)
        elif meaning.name in found:
            first = plain(table.heading[found[meaning.name][0]], 40)
            raise UsageError(
                f"'{name}': the columns '{first}' and '{plain(heading, 40)}' both mean {meaning.name}: "
                "rename or remove one"
            )
        else:
            found[meaning.name] = at, meaning.scale
    if "time" in found:
        at, _ = found.pop("time")
        if not set(_TELLING) & set(found):
            raise UsageError(
                f"'{name}': column '{plain(table.heading[at], 40)}' does not say which time it is: name it train_s for "
                "the training's, total_s for the whole job's, step_s for a step's"
            )
        left_out.append(at)
    if "np" not in found:
        raise UsageError(f"'{name}' has no column of process counts: name one np, or gpus, ranks or workers")
    if not set(_TELLING) & set(found):
        raise UsageError(f"'{name}' has neither times nor rates: name its columns {KNOWN}")
    return found, left_out


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


def _complete(row: Row, table: str) -> list[str]:
    """Add the time of init, train and total that follows from two others; a sentence when they contradict."""
    train_s, init_s, total_s = row.train_s, row.init_s, row.total_s
    if total_s is None or (train_s is None and init_s is None):
        row.init_s = init_s if train_s is not None else None
        return []
    row.total_s = None
    if train_s is None or init_s is None:
        known, known_s = ("train", train_s) if train_s is not None else ("init", init_s or 0.0)
        left_s = total_s - known_s
        if left_s < 0 or (train_s is None and left_s == 0):
            raise UsageError(
                f"'{table}' line {row.line}: the total of {total_s:g} s is less than the {known} time "
                f"of {known_s:g} s: correct the row"
            )
        row.train_s, row.init_s = train_s or left_s, left_s if init_s is None else init_s
        row.rest_s = 0.0
        return []
    rest_s = total_s - init_s - train_s
    row.rest_s = rest_s if rest_s > _ROUNDING * total_s else 0.0
    if rest_s >= -_ROUNDING * total_s:
        return []
    return [f"the table says {total_s:g} s in all at {row.np} where {init_s:g} + {train_s:g} is {init_s + train_s:g}"]


def _told_apart(rows: Sequence[Row], heading: Sequence[str], left_out: Sequence[int]) -> list[str]:
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
    if row.scaling == "strong":
        total = row.global_batch or (each * row.np if each else row.batch)
        return (round(total, 6), total / row.np) if total else (None, None)
    if row.scaling == "weak":
        each = each or row.batch
        return (round(each, 6) if each else None), each
    return row.worker_batch or row.global_batch or row.batch, each


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


def _rates_from_times(group: Group) -> tuple[str, list[str]]:
    """Take steps per second where there are no rates; the unit of work, and a sentence on what had to be assumed."""
    if any(row.rate is not None for row in group.rows):
        return "samples", []
    timed = [row for row in group.rows if row.step_s]
    batches = all(row.worker_batch for row in timed)
    for row in timed:
        samples = row.np * (row.worker_batch or 1.0) if batches else row.np if group.scaling == "weak" else 1
        row.rate = samples / (row.step_s or 1.0)
    if not timed or batches:
        return "samples", []
    said = "a step is taken as the same work at every number of processes; add a column scaling, weak, if it is not"
    return "steps", [] if group.scaling else [said]


def _curve(group: Group, unit: str) -> Curve:
    works, certain = _works(group)
    rounds: dict[tuple[str, int], int] = {}
    observations = []
    for row, work in zip(group.rows, works, strict=True):
        rounds[row.engine, row.np] = rounds.get((row.engine, row.np), 0) + 1
        observations.append(_observation(row, work, rounds[row.engine, row.np], group.scaling, unit))
    frame = Frame(
        engine=group.engine,
        scaling=group.scaling,
        batch=round(group.batch) if group.batch else None,
        work_unit=unit,
        baseline_engine=group.baseline_engine,
        baseline_np=1 if group.baseline_engine else None,
        table=not _is_ours(group.rows),
    )
    curve = make_curve(observations, frame)
    only_total = any(row.total_s is not None for row in group.rows)
    without_rate = {(row.np, row.engine) for row in group.rows if row.rate is None}
    if (curve.baseline_np, curve.baseline_engine) in without_rate:
        without_rate = {(point.np, point.engine) for point in curve.points}
    told: dict[tuple[int | None, str], set[frozenset[str]]] = {}  # Parts of the time that rows tell
    for each in observations:
        told.setdefault((each.np, each.engine), set()).add(frozenset(each.parts))
    of_baseline = told.get((curve.baseline_np, curve.baseline_engine), set())
    points = [
        _only_known(
            point,
            certain=certain,
            rate=(point.np, point.engine) not in without_rate,
            train=not only_total,
            parts=len(told[point.np, point.engine] | of_baseline) <= 1,
        )
        for point in curve.points
    ]
    fit = curve.fit if certain and not without_rate and not only_total else None
    return msgspec.structs.replace(curve, points=tuple(points), fit=fit)


def _works(group: Group) -> tuple[list[float], bool]:
    """Estimate the work of each row; the flag is False for a placeholder.

    Steps times samples in tables of our own; or else what describes times and rates best: T = F + work / rate.
    """
    rows = group.rows
    fewest = min(row.np for row in rows)
    shares = [row.np / fewest if group.scaling == "weak" else 1.0 for row in rows]
    if _is_ours(rows):
        # In the unit of the rate: samples, or else what a step is worth at that rate.
        steps = [row.global_batch or (row.step_s or 0.0) * (row.rate or 0.0) for row in rows]
        return [(row.steps or 0.0) * work for row, work in zip(rows, steps, strict=True)], True
    known = [
        (share / row.rate, row.longest_s) for row, share in zip(rows, shares, strict=True) if row.rate and row.longest_s
    ]
    per_work = [x for x, _ in known]
    if known and max(per_work) > _APART * min(per_work):
        line = fit_line(per_work, [seconds for _, seconds in known])
        if line and line.slope > 2 * (line.slope_error or 0.0):
            return [line.slope * share for share in shares], True
    smallest = next((row for row in rows if row.np == fewest and row.rate and row.longest_s), None)
    work = (smallest.longest_s or 1.0) * (smallest.rate or 1.0) if smallest else 1.0
    return [work * share for share in shares], False


def _is_ours(rows: Sequence[Row]) -> bool:
    """Check for a table of our own: steps and one-time cost are known, and there is nothing to fit."""
    return all(row.fixed_s is not None and row.steps and row.rate and row.step_s for row in rows)


def _observation(row: Row, work: float, number: int, scaling: str, unit: str) -> Observation:
    parts, phases = {}, {}
    rate, longest_s = row.rate, row.longest_s
    if rate is None and scaling == "weak" and longest_s:
        rate = work / longest_s  # then the time is taken to grow with the work
    if rate and longest_s is not None:
        beyond_s = longest_s - work / rate
        parts["fixed"] = beyond_s if row.fixed_s is None else row.fixed_s
        if row.fixed_s is not None:
            parts["uneven"] = beyond_s - row.fixed_s
    if row.init_s is not None:
        parts["init"] = row.init_s
    if row.rest_s or row.total_s is not None:
        parts["launch"] = row.rest_s or 0.0
    if row.init_s is not None and row.train_s is not None:  # what the row itself splits its time into
        phases = {"init": row.init_s, TRAIN: row.train_s} | ({"launch": row.rest_s} if row.rest_s else {})
    return Observation(
        engine=row.engine,
        np=row.np,
        round=number,
        rate=rate,
        work=work,
        parts=parts,
        whole_train_s=longest_s if rate is None else None,
        nodes=row.nodes,
        batch=row.worker_batch,
        step_s=row.step_s,
        throughput=row.rate if unit == "samples" else None,
        phases=phases,
        steps=round(row.steps) if row.steps else None,
    )


def _only_known(point: ScalingPoint, *, certain: bool, rate: bool, train: bool, parts: bool) -> ScalingPoint:
    """The point without what follows from placeholders instead of known work, rates or train times."""

    def but(values: dict[str, object], name: str) -> dict[str, object]:
        return {key: value for key, value in values.items() if key != name}

    changes: dict[str, object] = {}
    if not (certain and rate):
        changes |= {"fixed_s": None, "one_time_s": None, "longer_for_90": {}, "break_even": {}}
    if not (rate and train and parts):
        changes["waterfall"] = ()
    if not rate:
        changes |= {"efficiency": None, "speedup": but({**point.speedup}, "steady")}
    if not train:
        point = msgspec.structs.replace(point, **changes)
        changes = {name: but({**getattr(point, name)}, "train") for name in ("speedup", "longer_for_90", "break_even")}
        changes |= {"train_s": None, "fixed_s": None, "one_time_s": None}
    return msgspec.structs.replace(point, **changes)


def _what_is_compared(curve: Curve, rows: Sequence[Row]) -> list[str]:
    """State what speedups are relative to, and which work is taken to be the same."""
    if curve.baseline_np is None:
        only = plural(curve.points[0].np, "process")
        return [f"there are rows for {only} only, nothing to compare with: add the others"]
    said = []
    if curve.baseline_np > 1:
        said.append(f"there is no row for 1 process: speedups are relative to {curve.baseline_np}")
    if not any(row.longest_s for row in rows):
        return said
    if curve.scaling:
        separated = curve.scaling == "strong" or curve.fit is not None
        return said if separated else [*said, "times are taken to grow with the work: no fixed cost can be told apart"]
    return [*said, "every row is taken to do the same work in all; a column scaling can say strong or weak"]


def _without_partner(group: Group, curve: Curve) -> list[str]:
    """Repetitions are compared in order: which have none to be compared with."""
    counts: dict[tuple[int, str], int] = {}
    for row in group.rows:
        counts[row.np, row.engine] = counts.get((row.np, row.engine), 0) + 1
    base = counts.get((curve.baseline_np or 0, curve.baseline_engine), 0)
    return [
        f"{plural(count, 'row')} for {np} and {base} for {curve.baseline_np}: repetitions are compared in order, "
        f"the first {base} of them"
        for (np, _), count in counts.items()
        if curve.baseline_np is not None and count > base
    ]


def _lack_of_fit(curve: Curve, rows: Sequence[Row]) -> list[str]:
    """One line where the fit's single cost for all numbers of processes does not describe the table."""
    fit = curve.fit
    if fit is None:
        return []
    base = [row for row in rows if row.np == curve.baseline_np]
    told = [row.steps * row.global_batch for row in base if row.steps and row.global_batch]
    lack = fit.lack
    if not lack and told and abs(fit.work / told[0] - 1) > _OFF:
        lack = f"it takes {fit.work:,.4g} {curve.work_unit} of work for steps times batch, {told[0]:,.4g}"
    if not lack:
        return []
    return [f"one fixed cost for all numbers of processes does not describe this table: {lack}; do not rely on the fit"]


def _slips(curve: Curve, rows: Sequence[Row]) -> list[str]:
    """Report stated speedups that differ from those of the table's own times and rates."""
    baseline = (curve.baseline_np, curve.baseline_engine)
    base = next((row for row in rows if (row.np, row.engine) == baseline), None)
    repeated = any((row.launches or 1) > 1 for row in rows) or len({(row.np, row.engine) for row in rows}) < len(rows)
    if base is None or repeated:
        return []  # the mean of ratios is another number than the ratio of means
    computed = {(point.np, point.engine): point.speedup for point in curve.points}
    found = []
    for claimed in dict.fromkeys(name for row in rows for name in row.claims):
        name = claimed.removeprefix("speedup_")
        if name != "steady" and curve.scaling == "weak":  # there people mean many things
            continue
        figure, more_is_faster = _FIGURES[name]
        base_claim, base_figure = base.claims.get(claimed, 1.0), figure(base)
        for row in rows:
            own, speedup = figure(row), computed[row.np, row.engine].get(name)
            if claimed not in row.claims or speedup is None or own is None or base_figure is None:
                continue
            if abs(row.claims[claimed] / base_claim / speedup.value - 1) > _SLIP:
                ratio = f"{own:g}/{base_figure:g}" if more_is_faster else f"{base_figure:g}/{own:g}"
                relative = "" if base_claim == 1 else f" (and {base_claim:g} at {base.np})"
                found.append(
                    f"the table says {row.claims[claimed]:g} at {row.np}{relative} where {ratio} is {speedup.value:.2f}"
                )
    more = [f"and {len(found) - _SHOWN} more speedups of the table differ"] if len(found) > _SHOWN else []
    return found[:_SHOWN] + more
