"""Which rows of a table make one curve, and whose its batches and rates are.
Speedups that a table states beside its numbers, checked: tables of people contain slips.
"""

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

import msgspec

from scalescope.measurement.observation import infer
from scalescope.measurement.tables.rows import Table, TableRow, Times
from scalescope.records.scaling import SPEEDUPS, Curve, Estimate, ScalingPoint


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
    alone = [row for row in table.rows if _is_alone(row)]
    groups = []
    for (scaling, key), rows in together.items():
        engines = [engine for engine in dict.fromkeys(row.engine for row in rows) if engine != "none"]
        if not engines and not _all_belong_elsewhere(rows, table.rows):
            engines = ["none"]
        for engine in engines:
            own = [row for row in rows if row.engine == engine]
            baseline = [row for row in rows if _is_alone(row)] or [row for row in alone if _says_nothing_else(row)]
            if engine == "none" or not baseline:
                groups.append(Group(engine, scaling, key, _copies(own), ""))
            else:
                shared = _once(baseline) if len(engines) > 1 else baseline
                groups.append(Group(engine, scaling, key, _copies(shared + own), "none"))
    return groups


def _copies(rows: Sequence[TableRow]) -> list[TableRow]:
    """Rows of a curve's own: curves may share a baseline, and read it differently."""
    return [copy(row) for row in rows]


def _is_alone(row: TableRow) -> bool:
    return row.engine == "none" and row.np == 1


def _says_nothing_else(row: TableRow) -> bool:
    return not row.scaling and row.batch is None and row.worker_batch is None and row.global_batch is None


def _all_belong_elsewhere(rows: Sequence[TableRow], everything: Sequence[TableRow]) -> bool:
    """Whether these are baselines that say neither scaling nor batch, of curves that do."""
    others = any(row.engine != "none" for row in everything)
    return others and all(_is_alone(row) and _says_nothing_else(row) for row in rows)


def _once(rows: Sequence[TableRow]) -> list[TableRow]:
    """A baseline that stands in the table once per engine is still one launch."""
    return list({row.cells: row for row in rows}.values())


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
    factor = [row.np if scaling == "strong" else 1 for row in rows]
    return [
        _Batch(round(batch * times, 6) if batch else None, batch or None)
        for batch, times in zip(each, factor, strict=True)
    ]


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
    if not any(row.step_s is not None for row in group.rows):
        return "samples", []
    if all(row.worker_batch for row in group.rows if row.step_s):
        for row in group.rows:
            row.rate = row.np * (row.worker_batch or 1.0) / row.step_s if row.step_s else None
        return "samples", []
    for row in group.rows:
        row.rate = (row.np if group.scaling == "weak" else 1) / row.step_s if row.step_s else None
    said = "a step is taken as the same work at every number of processes; add a column scaling, weak, if it is not"
    return "steps", [] if group.scaling else [said]


_SLIP = 0.01  # What differs by more is said
_SHOWN = 3

Figure = Callable[[TableRow, Times], float | None]
_FIGURES: dict[str, tuple[Figure, bool]] = {
    "steady": (lambda row, _: row.rate, True),
    "train": (lambda _, times: times.train_s, False),
    "end_to_end": (lambda _, times: _wall_s(times), False),
}  # What each speedup is a ratio of, and whether more is faster


def check_claims(curve: Curve, rows: Sequence[TableRow], times: Sequence[Times]) -> list[str]:
    """A sentence for what the table says otherwise than its own numbers do."""
    pairs = [pair for pair in zip(rows, times, strict=True) if not pair[0].launches or pair[0].launches == 1]
    base = next((pair for pair in pairs if _is_baseline(pair[0], curve)), None)
    repeated = len({(row.np, row.engine) for row in rows}) < len(rows)
    if base is None or repeated:
        return []  # the mean of ratios is another number than the ratio of means
    slips = []
    claims = dict.fromkeys(name for row, _ in pairs for name in row.claims if not name.endswith(("_low", "_high")))
    for claimed in claims:
        name = claimed.removeprefix("speedup_") if claimed != "speedup" else _closest(curve, pairs)
        if name == "steady" or (name in SPEEDUPS and curve.scaling != "weak"):  # there people mean many things by it
            slips += _slips(curve, claimed, name, base, pairs)
    more = [f"and {len(slips) - _SHOWN} more speedups of the table differ"] if len(slips) > _SHOWN else []
    return slips[:_SHOWN] + more


def with_repetitions(point: ScalingPoint, rows: Sequence[TableRow], ideal: float) -> ScalingPoint:
    """A row that sums up several launches states their speedups better than a ratio of its means does."""
    row = rows[0]
    point = msgspec.structs.replace(point, launches=sum(each.launches or 1 for each in rows))
    if len(rows) > 1 or point.launches == 1:
        return point
    speedup = dict(point.speedup)
    for name in point.speedup:
        stated = [row.claims.get(f"speedup_{name}{end}") for end in ("", "_low", "_high")]
        if all(stated):
            speedup[name] = Estimate(
                value=stated[0] or 0.0,
                low=stated[1] or 0.0,
                high=stated[2] or 0.0,
                interval="t" if row.interval == "t" else "range",
                count=point.launches,
            )
    steady = speedup.get("steady")
    if steady:
        ends = {name: getattr(steady, name) / ideal for name in ("value", "low", "high")}
        point = msgspec.structs.replace(point, efficiency=msgspec.structs.replace(steady, **ends))
    return msgspec.structs.replace(point, speedup=speedup)


def _slips(
    curve: Curve, claimed: str, name: str, base: tuple[TableRow, Times], pairs: Sequence[tuple[TableRow, Times]]
) -> list[str]:
    figure, more_is_faster = _FIGURES[name]
    base_claim, base_figure = base[0].claims.get(claimed, 1.0), figure(*base)
    found = []
    for row, times in pairs:
        value, own = _computed(curve, row, name), figure(row, times)
        if claimed not in row.claims or value is None or own is None or base_figure is None:
            continue
        if abs(row.claims[claimed] / base_claim / value - 1) > _SLIP:
            ratio = f"{own:g}/{base_figure:g}" if more_is_faster else f"{base_figure:g}/{own:g}"
            relative = "" if base_claim == 1 else f" (and {base_claim:g} at {base[0].np})"
            found.append(f"the table says {row.claims[claimed]:g} at {row.np}{relative} where {ratio} is {value:.2f}")
    return found


def _closest(curve: Curve, pairs: Sequence[tuple[TableRow, Times]]) -> str:
    """Which speedup a column means that says no more than `speedup`: the one it agrees with best."""
    distance: dict[str, float] = {}
    for name in SPEEDUPS:
        values = [(row.claims["speedup"], _computed(curve, row, name)) for row, _ in pairs if "speedup" in row.claims]
        known = [abs(math.log(claim / value)) for claim, value in values if value]
        if known and len(known) == len(values):
            distance[name] = sum(known)
    return min(distance, key=lambda name: distance[name]) if distance else ""


def _computed(curve: Curve, row: TableRow, name: str) -> float | None:
    point = next((each for each in curve.points if (each.np, each.engine) == (row.np, row.engine)), None)
    estimate = point.speedup.get(name) if point else None
    return estimate.value if estimate else None


def _is_baseline(row: TableRow, curve: Curve) -> bool:
    return (row.np, row.engine) == (curve.baseline_np, curve.baseline_engine)


def _wall_s(times: Times) -> float | None:
    if times.only_total_s is not None:
        return times.only_total_s
    if times.train_s is None or times.init_s is None:
        return None
    return times.train_s + times.init_s + (times.rest_s or 0.0)
