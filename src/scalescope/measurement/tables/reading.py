"""Scaling tables that people already have: text in, curves and what had to be assumed out."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation
from scalescope.measurement.tables.groups import Group, group_rows, settle_rates, settle_steps
from scalescope.measurement.tables.rows import TableRow, Times, understand
from scalescope.measurement.tables.text import read_table_text
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.run import TRAIN
from scalescope.records.scaling import SPEEDUPS, Curve, Estimate, Scaling, ScalingPoint
from scalescope.stats import fit_line
from scalescope.text import plural
from scalescope.units import format_seconds

_APART = 1.2  # Rates must differ by this factor before a fixed cost can be told from them
_SLIP = 0.01  # What a table states is mentioned when it differs by more
_OFF = 0.05  # A fit whose work differs by more from what the table tells does not describe it
_SHOWN = 3
# What each speedup is a ratio of, and whether more is faster.
_FIGURES: dict[str, tuple[Callable[[TableRow], float | None], bool]] = {
    "steady": (lambda row: row.rate, True),
    "train": (lambda row: row.times.train_s, False),
    "end_to_end": (lambda row: row.times.wall_s, False),
}


def read_table(path: Path) -> Scaling:
    """The curves of a table, and what had to be assumed to read it."""
    table = understand(read_table_text(path))
    groups = group_rows(table)
    findings = settle_rates(groups, table.headings.get("bare_rate", ""))
    warnings = list(table.warnings)
    curves = []
    for group in groups:
        unit, assumed = settle_steps(group)
        curve = _curve(group, unit)
        curves.append(curve)
        findings += [*assumed, *_what_is_compared(curve, group.rows), *_slips(curve, group.rows)]
        warnings += [*_without_partner(group, curve), *_lack_of_fit(curve, group.rows)]
    return Scaling(
        what=table.name,
        source="table",
        curves=tuple(curves),
        trust=which_to_trust(curves),
        findings=tuple(dict.fromkeys([*findings, *table.findings, *what_stands_out(curves)])),
        warnings=tuple(dict.fromkeys(warnings)),
    )


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
    only_total = any(row.times.only_total_s is not None for row in group.rows)
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
    """How much work each row did, and whether that is more than a placeholder.

    Steps times samples in tables of our own; or else what describes times and rates best: T = F + work / rate.
    """
    rows = group.rows
    fewest = min(row.np for row in rows)
    shares = [row.np / fewest if group.scaling == "weak" else 1.0 for row in rows]
    if _is_ours(rows):
        return [(row.steps or 0.0) * _work_of_a_step(row) for row in rows], True
    known = [
        (share / row.rate, row.times.longest_s)
        for row, share in zip(rows, shares, strict=True)
        if row.rate and row.times.longest_s
    ]
    per_work = [x for x, _ in known]
    if known and max(per_work) > _APART * min(per_work):
        line = fit_line(per_work, [seconds for _, seconds in known])
        if line and line.slope > 2 * (line.slope_error or 0.0):
            return [line.slope * share for share in shares], True
    smallest = next((row for row in rows if row.np == fewest and row.rate and row.times.longest_s), None)
    work = (smallest.times.longest_s or 1.0) * (smallest.rate or 1.0) if smallest else 1.0
    return [work * share for share in shares], False


def _is_ours(rows: Sequence[TableRow]) -> bool:
    """Whether launches were summed up here: then steps and one-time cost are known, and there is nothing to fit."""
    return all(row.fixed_s is not None and row.steps and row.rate and row.step_s for row in rows)


def _work_of_a_step(row: TableRow) -> float:
    """In the unit of the rate: samples, or else what a step is worth at that rate."""
    return row.global_batch or (row.step_s or 0.0) * (row.rate or 0.0)


def _observation(row: TableRow, work: float, number: int, scaling: str, unit: str) -> Observation:
    parts = {}
    times, rate = row.times, row.rate
    if rate is None and scaling == "weak" and times.longest_s:
        rate = work / times.longest_s  # then the time is taken to grow with the work
    if rate and times.longest_s is not None:
        beyond_s = times.longest_s - work / rate
        parts["fixed"] = beyond_s if row.fixed_s is None else row.fixed_s
        if row.fixed_s is not None:
            parts["uneven"] = beyond_s - row.fixed_s
    if times.init_s is not None:
        parts["init"] = times.init_s
    if times.rest_s or times.only_total_s is not None:
        parts["launch"] = times.rest_s or 0.0
    return Observation(
        engine=row.engine,
        np=row.np,
        round=number,
        rate=rate,
        work=work,
        parts=parts,
        whole_train_s=times.longest_s if rate is None else None,
        nodes=row.nodes,
        batch=row.worker_batch,
        step_s=row.step_s,
        throughput=row.rate if unit == "samples" else None,
        phases=_phases(times),
        steps=round(row.steps) if row.steps else None,
    )


def _phases(times: Times) -> dict[str, float]:
    """What the row itself splits its time into; empty where it tells one time only."""
    if times.init_s is None or times.train_s is None:
        return {}
    return {"init": times.init_s, TRAIN: times.train_s} | ({"launch": times.rest_s} if times.rest_s else {})


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


def _what_is_compared(curve: Curve, rows: Sequence[TableRow]) -> list[str]:
    """What speedups are relative to, and which work is taken to be the same."""
    if curve.baseline_np is None:
        only = plural(curve.points[0].np, "process")
        return [f"there are rows for {only} only, nothing to compare with: add the others"]
    said = []
    if curve.baseline_np > 1:
        said.append(f"there is no row for 1 process: speedups are relative to {curve.baseline_np}")
    if not any(row.times.longest_s for row in rows):
        return said
    if curve.scaling:
        separated = curve.scaling == "strong" or curve.fit is not None
        return said if separated else [*said, "times are taken to grow with the work: no fixed cost can be told apart"]
    first, last = curve.points[0], curve.points[-1]
    first_s, last_s = first.train_s or first.wall_s, last.train_s or last.wall_s
    steady = last.speedup.get("steady")
    if first_s and last_s and last_s > 0.8 * first_s and steady and steady.value > 1.5:
        return [
            *said,
            f"times hardly fall from {first.np} to {last.np} ({format_seconds(first_s)} to {format_seconds(last_s)}) "
            f"while the rate grows {steady.value:.3g} times: if every process does the same work, add a column scaling "
            "that says weak",
        ]
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


def _lack_of_fit(curve: Curve, rows: Sequence[TableRow]) -> list[str]:
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


def _slips(curve: Curve, rows: Sequence[TableRow]) -> list[str]:
    """What the table says otherwise than its own numbers do: tables of people contain slips."""
    baseline = (curve.baseline_np, curve.baseline_engine)
    base = next((row for row in rows if (row.np, row.engine) == baseline), None)
    repeated = any((row.launches or 1) > 1 for row in rows) or len({(row.np, row.engine) for row in rows}) < len(rows)
    if base is None or repeated:
        return []  # the mean of ratios is another number than the ratio of means
    computed = {(point.np, point.engine): point.speedup for point in curve.points}
    found = []
    for claimed in dict.fromkeys(name for row in rows for name in row.claims):
        name = claimed.removeprefix("speedup_") if claimed != "speedup" else _closest(computed, rows)
        if name not in SPEEDUPS or (name != "steady" and curve.scaling == "weak"):  # there people mean many things
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


def _closest(computed: dict[tuple[int, str], dict[str, Estimate]], rows: Sequence[TableRow]) -> str:
    """Which speedup a column means that says no more than `speedup`: the one it agrees with best."""
    claims = [(row.claims["speedup"], computed[row.np, row.engine]) for row in rows if "speedup" in row.claims]
    known = [name for name in SPEEDUPS if all(name in values for _, values in claims)]
    return min(
        known, key=lambda name: sum(abs(math.log(claim / values[name].value)) for claim, values in claims), default=""
    )
