"""Words and selections that charts, tables and the terminal share, so that one thing has one name everywhere."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from scalescope.records.run import PHASES, TRAIN
from scalescope.records.scaling import SPEEDUP_NAMES, Curve, Estimate, Scaling, ScalingPoint
from scalescope.stats import FEWEST, MEASURED, percent
from scalescope.text import plain, plural

SHOWN_PHASES = (*PHASES[: PHASES.index("warmup")], TRAIN, *PHASES[PHASES.index("warmup") :])
LOSS_NAMES = {
    "efficiency": "lost efficiency",
    "warmup": "warm-up",
    "uneven": "uneven steps",
    "fixed": "fixed cost",
    "init": "init",
    "launch": "launch and end",
}
_LEVEL_AFTER = {
    "efficiency": "steady",
    "warmup": "train",
    "uneven": "train",
    "fixed": "train",
    "init": "end_to_end",
    "launch": "end_to_end",
}  # Which speedup is reached when this loss, and those before it, are taken away
_WORTH_A_LOOK = 0.02  # From this difference on the efficiency by mean or median steps is shown too
_VISIBLE = 0.005  # Losses below it would read 0.00
# Intervals of ratios reach further up than down; from this part of their half-width on both ends are written.
_LOPSIDED = 0.1
# At the beginning of a sentence; in order.
ENGINE_TITLES = {"none": "None", "ddp": "DDP", "horovod": "Horovod", "fsdp2": "FSDP2", "fsdp": "FSDP"}
_SCALING_ORDER = ("strong", "weak")


class Step(NamedTuple):
    """One bar of a waterfall."""

    name: str  # For people
    kind: str  # ideal, one of SPEEDUPS, loss or gain
    start: float
    end: float  # The speedup here; a level's bar starts at 0


def engine_name(engine: str) -> str:
    """An engine as people read it: one process without any is alone."""
    return "alone" if engine == "none" else engine or "engine not said"


def engine_order(engine: str) -> tuple[int, str]:
    """A sort key: alone, ddp, horovod, then others by name."""
    known = list(ENGINE_TITLES)
    return (known.index(engine) if engine in known else len(known), engine)


def curves_in_order(scaling: Scaling) -> list[Curve]:
    """Strong before weak scaling, then by batch, then by engine."""
    return sorted(
        scaling.curves,
        key=lambda curve: (
            _SCALING_ORDER.index(curve.scaling) if curve.scaling in _SCALING_ORDER else len(_SCALING_ORDER),
            curve.batch or 0,
            engine_order(curve.engine),
        ),
    )


def points_with_phases(scaling: Scaling) -> dict[str, ScalingPoint]:
    """Points whose phases are known, by their label; what two curves share is there once."""
    points: dict[str, ScalingPoint] = {}
    for curve in curves_in_order(scaling):
        for point in curve.points:
            if any(point.phases.get(phase, 0.0) > 0 for phase in SHOWN_PHASES):
                points.setdefault(point_label(point), point)
    return points


def told_seconds(curve: Curve) -> dict[str, list[float | None]]:
    """Init, train and total seconds by point, where a table told them; nothing of launches, which have phases."""
    if any("steady" in point.phases for point in curve.points):
        return {}
    return {
        "init": [point.phases.get("init") for point in curve.points],
        "train": [point.train_s for point in curve.points],
        "total": [point.wall_s for point in curve.points],
    }


def point_label(point: ScalingPoint) -> str:
    """`2 x ddp on 2 nodes, batch 32 each`."""
    engine = f"{point.np} x {plain(engine_name(point.engine), 24)}" if point.engine else plural(point.np, "process")
    nodes = "" if point.nodes is None or point.nodes == 1 else f" on {point.nodes} nodes"
    each = " each" if point.np > 1 else ""
    batch = "" if point.batch is None else f", batch {point.batch:g}{each}"
    return ("alone" if point.engine == "none" and point.np == 1 else engine) + nodes + batch


def curve_title(curve: Curve) -> str:
    """`weak scaling, ddp, batch 32 each`; `scaling` when the source tells nothing of that."""
    return known_title(curve) or "scaling"


def known_title(curve: Curve) -> str:
    """What is known of kind, engine and batch; may be empty."""
    kind = [f"{curve.scaling} scaling"] if curve.scaling else []
    engine = [plain(engine_name(curve.engine), 30)] if curve.engine else []
    return ", ".join([*kind, *engine, *batch_words(curve)])


def batch_words(curve: Curve) -> list[str]:
    """The batch as the user asked for it, if it is known."""
    if curve.batch is None:
        return []
    return [{"strong": f"global batch {curve.batch:,}", "weak": f"batch {curve.batch:,} each"}.get(
        curve.scaling, f"batch {curve.batch:,}"
    )]  # fmt: skip


def baseline_words(curve: Curve) -> str:
    """What speedups are relative to: `1 process without an engine`; empty when there is nothing."""
    if curve.baseline_np is None:
        return ""
    without = curve.baseline_engine == "none" and curve.engine != "none"
    return plural(curve.baseline_np, "process") + (" without an engine" if without else "")


def step_name(curve: Curve) -> str:
    """What a step of the source is: logs may tell epochs only."""
    return "epoch" if curve.work_unit == "epochs" else "step"


def drawn_line(curve: Curve) -> list[ScalingPoint]:
    """The engine's own points; the baseline leads when the engine has none of that size."""
    own = [point for point in curve.points if point.engine == curve.engine]
    baseline = curve.baseline
    if baseline and all(point.np != baseline.np for point in own):
        own.append(baseline)
    return sorted(own, key=lambda point: point.np)


def largest(curve: Curve) -> ScalingPoint | None:
    """The engine's point with the most processes, unless the baseline has as many."""
    own = [point for point in curve.points if point.engine == curve.engine and point.np != curve.baseline_np]
    return max(own, key=lambda point: point.np, default=None)


def fastest(scaling: Scaling) -> tuple[Curve, ScalingPoint] | None:
    """The point of the highest throughput and its curve, of which answers speak; None where no rates are known."""
    rated = [(curve, point) for curve in scaling.curves for point in curve.points if point.throughput]
    return max(rated, key=lambda each: each[1].throughput.value if each[1].throughput else 0.0, default=None)


def nodes_matter(points: Iterable[ScalingPoint]) -> bool:
    """Whether points differ in how many hosts they used."""
    nodes = {point.nodes for point in points}
    return len(nodes - {None}) > 1


def other_efficiency(point: ScalingPoint) -> tuple[str, float] | None:
    """`median` or `mean` and the efficiency by such steps, where it is another one than that of elapsed time."""
    others = {"mean": point.mean_efficiency, "median": point.median_efficiency}
    for name, value in others.items():
        if value is not None and point.efficiency and abs(value - point.efficiency.value) > _WORTH_A_LOOK:
            return name, value
    return None


def has_spread(estimate: Estimate) -> bool:
    """Whether there is an interval or a range to show."""
    return estimate.count > 1 and estimate.low < estimate.high


def interval_note(estimates: Iterable[Estimate | None], *, t: str, span: str) -> str:
    """What intervals mean, in words; `t` and `span` say how they are shown, such as `solid bars` and `in brackets`."""
    known = [each for each in estimates if each]
    notes = []
    for over in ("launches", "blocks"):
        here = [each for each in known if each.over == over and has_spread(each)]
        if any(each.interval == "t" for each in here):
            notes.append(f"{t}: {percent(MEASURED)} t-intervals over {over}, each by itself")
        ranges = [each for each in here if each.interval == "range"]
        if ranges:
            fewer = f"fewer than {FEWEST} " if all(each.count < FEWEST for each in ranges) else ""
            notes.append(f"{span}: range of {fewer}{over}, no interval")
    if any(each.count == 1 for each in known):
        notes.append("single launches have no interval" if notes else "one launch each, no interval: launches differ")
    return "; ".join(notes)


def curve_estimates(curve: Curve) -> list[Estimate]:
    """Every speedup and efficiency of a curve but the baseline's, which is 1 by definition."""
    points = [point for point in curve.points if point is not curve.baseline]
    found = [estimate for point in points for estimate in point.speedup.values()]
    return found + [point.efficiency for point in points if point.efficiency]


def number(value: float, decimals: int) -> str:
    """A number with thousands separated and no minus before zero."""
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if not re.search("[1-9]", text) else text


def with_interval(estimate: Estimate, *, plus_minus: str = " +- ", to: str = "-") -> str:
    """`1.83 +- 0.05` for a t-interval, `1.83 [1.69-1.99]` for a lopsided one, `1.83 (1.79-1.90)` for a range."""
    value, low, high = estimate.value, estimate.low, estimate.high
    decimals = 2 if value < 100 else 1
    if not has_spread(estimate):
        return number(value, decimals)
    if estimate.interval == "range":
        decimals = 2 if value < 10 else 1 if value < 100 else 0
        return f"{number(value, decimals)} ({number(low, decimals)}{to}{number(high, decimals)})"
    half = (high - low) / 2
    while decimals < 4 and round(half, decimals) == 0:
        decimals += 1
    if high - value - half <= _LOPSIDED * half:
        return f"{number(value, decimals)}{plus_minus}{number(half, decimals)}"
    return f"{number(value, decimals)} [{number(low, decimals)}{to}{number(high, decimals)}]"


def waterfall_steps(point: ScalingPoint) -> list[Step]:
    """From the ideal through every loss to the speedups that are left; levels stand where they are reached."""
    losses = point.waterfall
    if not losses:
        return []
    ideal = losses[0].left + losses[0].lost
    steps = [Step("ideal", "ideal", 0.0, ideal)]
    level = ideal
    for loss, following in zip(losses, (*losses[1:], None), strict=True):
        if abs(loss.lost) >= _VISIBLE:
            kind = "loss" if loss.lost > 0 else "gain"
            steps.append(Step(LOSS_NAMES.get(loss.name, loss.name), kind, level, loss.left))
        level = loss.left
        reached = _LEVEL_AFTER.get(loss.name)
        if reached and (following is None or _LEVEL_AFTER.get(following.name) != reached):
            steps.append(Step(SPEEDUP_NAMES[reached], reached, 0.0, level))
    return steps
