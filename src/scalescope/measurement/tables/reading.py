"""Scaling tables that people already have: CSV in, curves out."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation
from scalescope.measurement.tables.groups import (
    Group,
    check_claims,
    group_rows,
    settle_rates,
    settle_steps,
    with_repetitions,
)
from scalescope.measurement.tables.rows import TableRow, Times, times_of, understand, without_partial
from scalescope.measurement.tables.text import read_table_text
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.scaling import Curve, Scaling, ScalingPoint
from scalescope.stats import fit_line
from scalescope.units import format_seconds, plural

_APART = 1.2  # Rates must differ by so much before a fixed cost can be told from them


def read_table(path: Path) -> Scaling:
    """The curves of a CSV table, and what had to be assumed to read it."""
    table = understand(read_table_text(path))
    groups = group_rows(table)
    findings = settle_rates(groups, table.headings.get("bare_rate", ""))
    warnings = list(table.warnings)
    curves = []
    for group in groups:
        unit, assumed = settle_steps(group)
        told = [times_of(row, table.name) for row in group.rows]
        times = without_partial([each for each, _ in told])
        curve = _curve(group, times, unit)
        curves.append(curve)
        findings += [*assumed, *_what_is_compared(curve, group.rows, times), *(slip for _, slip in told if slip)]
        findings += check_claims(curve, group.rows, times)
        warnings += _without_partner(group, curve)
    findings += table.findings
    return Scaling(
        what=table.name,
        source="table",
        curves=tuple(curves),
        trust=which_to_trust(curves),
        findings=tuple(dict.fromkeys([*findings, *what_stands_out(curves)])),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _curve(group: Group, times: Sequence[Times], unit: str) -> Curve:
    works, certain = _works(group, times, unit)
    rounds: dict[tuple[str, int], int] = {}
    observations = []
    for row, time, work in zip(group.rows, times, works, strict=True):
        rounds[row.engine, row.np] = rounds.get((row.engine, row.np), 0) + 1
        observations.append(_observation(row, time, work, rounds[row.engine, row.np], group.scaling, unit))
    frame = Frame(
        engine=group.engine,
        scaling=group.scaling,
        batch=round(group.batch) if group.batch else None,
        work_unit=unit,
        baseline_engine=group.baseline_engine,
        baseline_np=1 if group.baseline_engine else None,
    )
    curve = make_curve(observations, frame)
    only_total = any(time.only_total_s is not None for time in times)
    bare = [(row.np, row.engine) for row in group.rows if row.rate is None]
    if (curve.baseline_np, curve.baseline_engine) in bare:
        bare = [(point.np, point.engine) for point in curve.points]
    ideals = [point.np / (curve.baseline_np or point.np) for point in curve.points]
    points = [
        with_repetitions(point, [row for row in group.rows if (row.np, row.engine) == (point.np, point.engine)], ideal)
        for point, ideal in zip(curve.points, ideals, strict=True)
    ]
    points = [_without_invention(point, curve, observations, certain) for point in points]
    points = [_without_rates(point) if (point.np, point.engine) in bare else point for point in points]
    if only_total:
        points = [_without_train(point) for point in points]
    return msgspec.structs.replace(
        curve, points=tuple(points), fit=curve.fit if certain and not bare and not only_total else None
    )


def _works(group: Group, times: Sequence[Times], unit: str) -> tuple[list[float], bool]:
    """How much work each row did, and whether that is more than a placeholder.

    Steps times batch in scalescope's own tables; or else what describes times and rates best: T = F + work / rate.
    """
    rows = group.rows
    fewest = min(row.np for row in rows)
    shares = [row.np / fewest if group.scaling == "weak" else 1.0 for row in rows]
    if all(row.fixed_s is not None and row.steps and row.rate and row.step_s for row in rows):
        return [(row.steps or 0.0) * (row.step_s or 0.0) * (row.rate or 0.0) for row in rows], True
    known = [
        (share / row.rate, time.longest_s)
        for row, time, share in zip(rows, times, shares, strict=True)
        if row.rate and time.longest_s
    ]
    per_work = [x for x, _ in known]
    if known and max(per_work) > _APART * min(per_work):
        line = fit_line(per_work, [seconds for _, seconds in known])
        if line and line.slope > 2 * (line.slope_error or 0.0):
            return [line.slope * share for share in shares], True
    smallest = [
        time.longest_s * row.rate
        for row, time in zip(rows, times, strict=True)
        if row.rate and time.longest_s and row.np == fewest
    ]
    return [(smallest[0] if smallest else 1.0) * share for share in shares], False


def _observation(row: TableRow, times: Times, work: float, number: int, scaling: str, unit: str) -> Observation:
    parts = {}
    longest_s, rate = times.longest_s, row.rate
    if rate is None and scaling == "weak" and longest_s:
        rate = work / longest_s  # then the time is taken to grow with the work
    if rate and longest_s is not None:
        beyond_s = longest_s - work / rate
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
        whole_train_s=longest_s if rate is None else None,
        nodes=row.nodes,
        batch=row.worker_batch,
        step_s=row.step_s,
        throughput=row.rate if unit == "samples" else None,
        steps=round(row.steps) if row.steps else None,
    )


def _without_invention(
    point: ScalingPoint, curve: Curve, observations: Sequence[Observation], certain: bool
) -> ScalingPoint:
    """The point without what follows from a placeholder, or from parts that not both rows tell."""
    if not certain:
        point = msgspec.structs.replace(point, fixed_s=None, longer_for_90={}, break_even={})
    compared = {(point.np, point.engine), (curve.baseline_np, curve.baseline_engine)}
    told = {frozenset(each.parts) for each in observations if (each.np, each.engine) in compared}
    return msgspec.structs.replace(point, waterfall=()) if len(told) > 1 else point


def _without_rates(point: ScalingPoint) -> ScalingPoint:
    """The point of a row that tells times only."""
    return msgspec.structs.replace(
        point,
        speedup={name: value for name, value in point.speedup.items() if name != "steady"},
        efficiency=None,
        fixed_s=None,
        waterfall=(),
        longer_for_90={},
        break_even={},
    )


def _without_train(point: ScalingPoint) -> ScalingPoint:
    """The point of a row that tells the whole job's time only."""
    return msgspec.structs.replace(
        point,
        speedup={name: value for name, value in point.speedup.items() if name != "train"},
        longer_for_90={name: value for name, value in point.longer_for_90.items() if name != "train"},
        break_even={name: value for name, value in point.break_even.items() if name != "train"},
        train_s=None,
        fixed_s=None,
        waterfall=(),
    )


def _what_is_compared(curve: Curve, rows: Sequence[TableRow], times: Sequence[Times]) -> list[str]:
    """What speedups are relative to, and which work is taken to be the same."""
    if curve.baseline_np is None:
        only = plural(curve.points[0].np, "process")
        return [f"there are rows for {only} only, nothing to compare with: add the others"]
    said = []
    if curve.baseline_np > 1:
        said.append(f"there is no row for 1 process: speedups are relative to {curve.baseline_np}")
    if not any(each.longest_s for each in times):
        return said
    if curve.scaling:
        separated = curve.scaling == "strong" or curve.fit is not None
        return said if separated else [*said, "times are taken to grow with the work: no fixed cost can be told apart"]
    return [*said, _same_work(curve, rows)]


def _same_work(curve: Curve, rows: Sequence[TableRow]) -> str:
    """What is assumed of a table that says neither strong nor weak, and whether its times speak against it."""
    first, last = curve.points[0], curve.points[-1]
    first_s, last_s = first.train_s or first.wall_s, last.train_s or last.wall_s
    steady = last.speedup.get("steady")
    told_apart = any(row.fixed_s is not None for row in rows)
    if first_s and last_s and last_s > 0.8 * first_s and steady and steady.value > 1.5 and not told_apart:
        return (
            f"times hardly fall from {first.np} to {last.np} ({format_seconds(first_s)} to {format_seconds(last_s)}) "
            f"while the rate grows {steady.value:.3g} times: if every process does the same work, add a column scaling "
            "that says weak"
        )
    return "every row is taken to do the same work in all; a column scaling can say strong or weak"


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
