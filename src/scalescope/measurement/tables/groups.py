"""Which rows of a table make one curve, and whose its batches and rates are."""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

from scalescope.measurement.observation import infer
from scalescope.measurement.tables.rows import Table, TableRow


class Group(NamedTuple):
    """Rows of one curve; those of its baseline among them."""

    engine: str
    scaling: str
    batch: float | None  # Global for strong, per process for weak scaling
    rows: list[TableRow]
    baseline_engine: str  # none when one process without an engine is among the rows


class _Batch(NamedTuple):
    """How a row's batch is read."""

    key: float | None  # What rows of one curve have in common
    each: float | None  # Per process; None when the table does not say


def group_rows(table: Table) -> list[Group]:
    """One group per scaling, batch and engine, in the table's order; an engine `none` is the baseline of the others."""
    together: dict[tuple[str, float | None], list[TableRow]] = {}
    for scaling in dict.fromkeys(row.scaling for row in table.rows):
        rows = [row for row in table.rows if row.scaling == scaling]
        for row, batch in zip(rows, _read_batches(rows, scaling), strict=True):
            row.worker_batch = batch.each
            together.setdefault((scaling, batch.key), []).append(row)
    others = any(row.engine != "none" for row in table.rows)
    shared = [row for row in table.rows if _is_shared(row)]
    groups = []
    for (scaling, key), rows in together.items():
        by_engine: dict[str, list[TableRow]] = {}
        for row in rows:
            by_engine.setdefault(row.engine, []).append(row)
        engines = [engine for engine in by_engine if engine != "none"]
        alone = [row for row in by_engine.get("none", ()) if _is_alone(row)] or shared
        if len(engines) > 1:  # a baseline that stands in the table once per engine is still one launch
            alone = list({row.cells: row for row in alone}.values())
        if not engines and not (others and all(map(_is_shared, rows))):
            engines = ["none"]
        for engine in engines:
            own, baseline = by_engine.get(engine, []), alone if engine != "none" else []
            # Curves may share a baseline and read it differently, so each has its own copies.
            groups.append(
                Group(engine, scaling, key, [copy(row) for row in baseline + own], "none" if baseline else "")
            )
    return groups


def _is_alone(row: TableRow) -> bool:
    return row.engine == "none" and row.np == 1


def _is_shared(row: TableRow) -> bool:
    """Whether the row may be the baseline of every curve: nothing says to which one it belongs."""
    batches = (row.batch, row.worker_batch, row.global_batch)
    return _is_alone(row) and not row.scaling and batches == (None, None, None)


def _read_batches(rows: Sequence[TableRow], scaling: str) -> list[_Batch]:
    """What rows have in common: of all ways to read a batch, the one that leaves the fewest different ones."""
    as_worker = [row.worker_batch or (row.global_batch / row.np if row.global_batch else row.batch) for row in rows]
    readings = [_keyed(rows, as_worker, scaling)]
    bare = [row.batch if row.worker_batch is None and row.global_batch is None else None for row in rows]
    if any(bare):
        each = [batch / row.np if batch else batch for row, batch in zip(rows, bare, strict=True)]
        readings.append(_keyed(rows, each, scaling))
    if scaling == "":
        readings.append(_keyed(rows, as_worker, "strong"))
        if any(bare):  # then it is as little known whose the batch is
            readings.insert(0, [_Batch(batch, None) for batch in bare])
    return min(readings, key=lambda reading: len({batch.key for batch in reading}))


def _keyed(rows: Sequence[TableRow], each: Sequence[float | None], scaling: str) -> list[_Batch]:
    """Strong scaling keeps the sum over all processes, weak scaling keeps what each one has."""
    factors = [row.np if scaling == "strong" else 1 for row in rows]
    pairs = zip(each, factors, strict=True)
    return [_Batch(round(batch * factor, 6) if batch else None, batch or None) for batch, factor in pairs]


def settle_rates(groups: Sequence[Group], heading: str) -> list[str]:
    """Make every rate one of all processes together; a sentence when the table does not say whose it is."""
    bare = [[(row.np, row.bare_rate) for row in group.rows if row.rate is None and row.bare_rate] for group in groups]
    known = [dict(reversed(pairs)) for pairs in bare if pairs]
    if not known:
        return []
    widest = max(known, key=lambda rates: max(rates) / min(rates))
    inference = infer(heading, widest, rename="name the column examples_per_s_{}")
    for row in (row for group in groups for row in group.rows):
        if row.rate is None and row.bare_rate is not None:
            row.rate = row.bare_rate if inference.total else row.bare_rate * row.np
    return [inference.sentence]


def settle_steps(group: Group) -> tuple[str, list[str]]:
    """What work is counted in; without rates, epochs or steps per second take their place, said in sentences."""
    if any(row.rate is not None for row in group.rows):
        return "samples", []
    if any(row.epoch_s is not None for row in group.rows):
        for row in group.rows:
            row.rate = 1 / row.epoch_s if row.epoch_s else None
        return "epochs", ["an epoch is taken as the same work at every number of processes"]
    timed = [row for row in group.rows if row.step_s]
    batches = all(row.worker_batch for row in timed)
    for row in timed:
        samples = row.np * (row.worker_batch or 1.0) if batches else row.np if group.scaling == "weak" else 1
        row.rate = samples / (row.step_s or 1.0)
    if not timed or batches:
        return "samples", []
    said = "a step is taken as the same work at every number of processes; add a column scaling, weak, if it is not"
    return "steps", [] if group.scaling else [said]
