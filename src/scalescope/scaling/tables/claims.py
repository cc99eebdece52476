"""Speedups that a table states beside its numbers, checked: tables of people contain slips."""

import math
from collections.abc import Callable, Sequence

import msgspec

from scalescope.records.scaling import SPEEDUPS, Curve, Estimate, ScalingPoint
from scalescope.scaling.tables.rows import TableRow
from scalescope.scaling.tables.times import Times

_SLIP = 0.01
"""What differs by more is said."""
_SHOWN = 3

Figure = Callable[[TableRow, Times], float | None]
_FIGURES: dict[str, tuple[Figure, bool]] = {
    "steady": (lambda row, _: row.rate, True),
    "train": (lambda _, times: times.train_s, False),
    "end_to_end": (lambda _, times: _wall_s(times), False),
}
"""What each speedup is a ratio of, and whether more is faster."""


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
