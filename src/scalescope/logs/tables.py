"""Scaling tables that people have: CSV, TSV or Markdown in, curves and what had to be assumed for them out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from scalescope.logs.assumptions import rounds, whose_rate, without_one_process
from scalescope.logs.rows import Row, read_rows
from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.job import NO_ENGINE
from scalescope.records.run import TRAIN
from scalescope.records.scaling import Curve, Scaling
from scalescope.stats import fit_line
from scalescope.text import plain

_APART = 1.2  # Rates must differ by this factor before a fixed cost can be told from them
_SLIP = 0.01  # What a table states and its own times contradict by more is mentioned


def read_table(path: Path) -> Scaling:
    """The curves of a table, and what had to be assumed to read it.

    Raises:
        UsageError: It holds no scaling table, or a cell makes no sense; it names the next action.
    """
    rows, left_out = read_rows(path)
    groups = _groups(rows)
    findings: list[str] = []
    warnings: list[str] = []
    bare = [{row.np: row.bare_rate for row in reversed(members) if row.bare_rate} for _, members in groups]
    if any(bare) and any(row.rate_total is None for row in rows):
        widest = max(filter(None, bare), key=lambda rates: max(rates) / min(rates))
        are_totals, said = whose_rate(widest, rename="name the column examples_per_s_{}")
        findings.append(said)
        groups = _groups([_with_total(row, are_totals=are_totals) for row in rows])
    curves = []
    for frame, members in groups:
        curve, assumed = _curve(frame, members)
        curves.append(curve)
        findings += [*assumed, *_slips(curve, members)]
        if curve.fit and curve.fit.lack:
            warnings.append(
                "one fixed cost for all numbers of processes does not describe this table: "
                f"{curve.fit.lack}; do not rely on the fit"
            )
    if left_out:
        sentence = "columns that are not understood are left out: " + ", ".join(f"'{each}'" for each in left_out)
        if any(point.launches > 1 for curve in curves for point in curve.points):
            warnings.insert(0, f"{sentence}; rows of one size are read as repeated launches, whatever stands there")
        else:
            findings.append(sentence)
    return Scaling(
        what=plain(path.name),
        source="table",
        curves=tuple(curves),
        trust=which_to_trust(curves),
        findings=tuple(dict.fromkeys([*findings, *what_stands_out(curves)])),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _with_total(row: Row, *, are_totals: bool) -> Row:
    """The row with its rate of all processes, where the table says a rate and not whose."""
    if row.rate_total is not None or row.bare_rate is None:
        return row
    return msgspec.structs.replace(row, rate_total=row.bare_rate * (1 if are_totals else row.np))


def _groups(rows: Sequence[Row]) -> list[tuple[Frame, list[Row]]]:
    """Rows of one curve each: of one scaling, batch and engine, in the table's order.

    One process with the engine `none` is the baseline of all engines.
    """
    together: dict[tuple[str, float | None], dict[str, list[Row]]] = {}
    for row in rows:
        together.setdefault((row.scaling, _shared_batch(row)), {}).setdefault(row.engine, []).append(row)
    groups = []
    for (scaling, batch), by_engine in together.items():
        without = by_engine.pop(NO_ENGINE, [])
        alone = [row for row in without if row.np == 1]
        shared = round(batch) if batch else None
        for engine, members in by_engine.items():
            frame = Frame(engine=engine, scaling=scaling, batch=shared)
            if alone:
                frame = msgspec.structs.replace(frame, baseline_engine=NO_ENGINE, baseline_np=1)
            groups.append((frame, [*alone, *members]))
        if not by_engine or len(alone) < len(without):  # several processes without an engine are a curve, too
            groups.append((Frame(engine=NO_ENGINE, scaling=scaling, batch=shared), without))
    return groups


def _shared_batch(row: Row) -> float | None:
    """The batch that the rows of a curve share: of all processes in strong scaling, of each in weak scaling.

    Without a scaling it is the one that the table states; one that does not say whose it is only tells rows apart.
    """
    if row.worker_batch is None:
        return row.batch
    if row.scaling == "weak":
        return row.worker_batch
    return row.global_batch or row.worker_batch * (row.np if row.scaling == "strong" else 1)


def _curve(frame: Frame, rows: Sequence[Row]) -> tuple[Curve, list[str]]:
    """The curve of rows that belong together, and what had to be assumed for it."""
    unit, said = "samples", []
    if not any(row.rate_total for row in rows) and any(row.step_s for row in rows):
        unit = "steps"  # of which in weak scaling every process makes its own
        rows = [
            msgspec.structs.replace(row, rate_total=(row.np if frame.scaling == "weak" else 1) / row.step_s)
            if row.step_s
            else row
            for row in rows
        ]
        if not frame.scaling:
            same = "a step is taken as the same work at every number of processes"
            said.append(f"{same}; add a column scaling, weak, if it is not")
    works, known = _works(rows, frame.scaling)
    repetitions = rounds([(row.engine, row.np) for row in rows])
    observations = [
        _observation(row, work, repetition, unit)
        for row, work, repetition in zip(rows, works, repetitions, strict=True)
    ]
    curve = make_curve(observations, msgspec.structs.replace(frame, work_unit=unit, work=known))
    said += without_one_process(curve)
    if curve.baseline_np and known != "told" and any(row.train_s or row.total_s for row in rows):
        if not frame.scaling:
            said.append("every row is taken to do the same work in all; a column scaling can say strong or weak")
        elif frame.scaling == "weak" and curve.fit is None:
            said.append("times are taken to grow with the work: no fixed cost can be told apart")
    return curve, said


def _works(rows: Sequence[Row], scaling: str) -> tuple[list[float], Literal["told", "fitted", "unknown"]]:
    """The work of each row, and how it is known.

    Steps times samples, or else what describes times and rates best: T = F + work / rate. Failing that, what the
    smallest row does in its train time.
    """
    told = [row.steps * work for row in rows if row.steps and (work := _work_of_step(row))]
    if len(told) == len(rows):
        return told, "told"
    fewest = min(row.np for row in rows)
    shares = [row.np / fewest if scaling == "weak" else 1.0 for row in rows]
    timed = [
        (row.np, share, row.rate_total, row.train_s)
        for row, share in zip(rows, shares, strict=True)
        if row.rate_total and row.train_s
    ]
    per_work = [share / rate for _, share, rate, _ in timed]
    if per_work and max(per_work) > _APART * min(per_work):
        line = fit_line(per_work, [train_s for *_, train_s in timed])
        if line and line.slope > 2 * (line.slope_error or 0.0):
            return [line.slope * share for share in shares], "fitted"
    work = next((rate * train_s for np, _, rate, train_s in timed if np == fewest), 1.0)
    return [work * share for share in shares], "unknown"


def _work_of_step(row: Row) -> float | None:
    """Samples; in a table of ours that knows none, a step is worth what is done in its time."""
    if row.worker_batch:
        return row.worker_batch * row.np
    return row.step_s * row.rate_total if row.step_s and row.rate_total else None


def _observation(row: Row, work: float, repetition: int, unit: str) -> Observation:
    """A row as one run; its train time is steady work, and what is beyond that a fixed cost."""
    parts, phases = {}, {}
    if row.rate_total and row.train_s is not None:
        beyond_s = row.train_s - work / row.rate_total
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
        round=repetition,
        rate=row.rate_total,
        work=work,
        parts=parts,
        whole_train_s=None if row.rate_total else row.train_s,
        whole_wall_s=row.total_s if row.train_s is None else None,
        nodes=row.nodes,
        batch=row.worker_batch,
        step_s=row.step_s,
        throughput=row.rate_total if unit == "samples" else None,
        phases=phases,
        steps=round(row.steps) if row.steps else None,
    )


def _slips(curve: Curve, rows: Sequence[Row]) -> list[str]:
    """Report totals below the sum of their parts, and stated speedups that the table's own train times do not give."""
    found = []
    for row in rows:
        parts_s = (row.init_s or 0.0) + (row.train_s or 0.0)
        if row.total_s and parts_s > (1 + _SLIP) * row.total_s:
            sums = f"{row.init_s:g} + {row.train_s:g} is {parts_s:g}"
            found.append(f"the table says {row.total_s:g} s in all at {row.np} where {sums}")
    computed = {point.np: point.speedup.get("train") for point in curve.points if point.engine == curve.engine}
    base = next((row for row in rows if row.np == curve.baseline_np), None)
    if base is None or len(rows) > len(curve.points) or curve.scaling == "weak" or base.speedup not in (None, 1):
        return found  # of several launches a speedup is a mean of ratios, in weak scaling people mean many things
    for row in rows:
        train = computed.get(row.np)
        if row.speedup and train and abs(row.speedup / train.value - 1) > _SLIP:
            ratio = f"{base.train_s:g}/{row.train_s:g} is {train.value:.2f}"
            found.append(f"the table says {row.speedup:g} at {row.np} where {ratio}")
    return found
