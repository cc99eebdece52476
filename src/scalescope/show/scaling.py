"""Scaling: curves with their speedups, from measurements, tables and logs alike. Every column is declared here once."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import msgspec

from scalescope.records.explanation import TraceFolder
from scalescope.records.job import NO_ENGINE
from scalescope.records.prediction import Cell
from scalescope.records.run import INIT_PHASES, LAUNCH_PHASES, PHASES, TRAIN, Measurement, Run
from scalescope.records.scaling import (
    QUESTIONS,
    REPEAT,
    SPEEDUP_NAMES,
    SPEEDUPS,
    BreakEven,
    Curve,
    Estimate,
    Fit,
    Scaling,
    ScalingPoint,
    engine_ratios,
)
from scalescope.show.document import Column, Document, Section, Table, charted
from scalescope.show.words import (
    count,
    engine_name,
    engine_order,
    has_spread,
    interval_note,
    number,
    with_interval,
)
from scalescope.stats import FEWEST, MEASURED, percent
from scalescope.text import listed, plain, plural
from scalescope.units import format_change, format_rate, format_seconds, format_share

_VISIBLE = 0.005  # Losses below it would read 0.00
_SCALING_ORDER = ("strong", "weak")
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


class Row(NamedTuple):
    """A point, the curve it lies on, and what was trained."""

    curve: Curve
    point: ScalingPoint
    what: str


def _of_point(*names: str) -> list[Column]:
    return [Column(f"point.{name}", key=name, json=True) for name in names]


def _told_s(row: Row, value: float | None) -> float | None:
    """Seconds that a table told; launches have phases instead."""
    return None if any("steady" in point.phases for point in row.curve.points) else value


def _outside_training(row: Row) -> float | None:
    """Seconds of the launch before the first step and after the last."""
    point = row.point
    if point.wall_s is not None and point.train_s is not None:
        return point.wall_s - point.train_s
    known = [point.phases[phase] for phase in (*LAUNCH_PHASES, *INIT_PHASES) if phase in point.phases]
    return sum(known) if known else None


def _processes(curve: Curve, point: ScalingPoint) -> str:
    """`4`, or `1 alone` where the curve is of an engine and this is what it is compared with."""
    other = "" if point.engine == curve.engine else f" {engine_name(point.engine)}"
    return f"{point.np:,}{other}"


def _interval_kind(row: Row) -> str | None:
    point = row.point
    known = [each for each in (point.speedup.get("steady"), point.efficiency, point.step_s, point.throughput) if each]
    return known[0].interval if known else None


def _epoch_or_step(row: Row, unit: str) -> float | None:
    is_epoch = row.curve.work_unit == "epochs"
    return row.point.step_s.value if row.point.step_s and is_epoch == (unit == "epoch") else None


def _efficiency(estimate: Estimate) -> str:
    return number(100 * estimate.value, 1)


COLUMNS = (
    *_of_point("np"),
    Column(lambda row: _processes(row.curve, row.point), "processes", "np"),
    Column(_outside_training, key="init_s"),
    *_of_point("train_s"),
    Column("point.throughput.value", key="examples_per_s_total"),
    *_of_point("wall_s", "engine"),
    Column("curve.scaling", key="scaling", json=True),
    Column("point.batch", "batch per process", "batch", count, key="batch", json=True),
    Column("point.global_batch", "global batch", "", count, key="global_batch", json=True),
    Column("point.nodes", "nodes", write=count, key="nodes", json=True),
    *_of_point("launches"),
    Column("point.step_s.value", key="step_s", json=True),
    *(Column(partial(_epoch_or_step, unit=unit), unit, write=format_seconds) for unit in ("step", "epoch")),
    Column("point.throughput.value", "samples/s", write=format_rate, key="throughput", json=True, csv=False),
    Column(lambda row: _told_s(row, row.point.phases.get("init")), "init (s)", "init s", count),
    Column(lambda row: _told_s(row, row.point.train_s), "train (s)", "train s", count),
    Column(lambda row: _told_s(row, row.point.wall_s), "total (s)", "total s", count),
    *(
        Column(f"point.speedup.{name}", f"speedup {shown}", shown, with_interval, key=f"speedup_{name}", ends=True)
        for name, shown in SPEEDUP_NAMES.items()
    ),
    Column("point.efficiency", "efficiency (%)", "eff%", _efficiency, key="efficiency", ends=True),
    Column(_interval_kind, key="interval"),
    Column("point.step_s.low", key="step_s_low", json=True),
    Column("point.step_s.high", key="step_s_high", json=True),
    *_of_point("threads_per_rank", "steps", "warmup_steps", "fixed_s"),
    Column("curve.baseline_np", key="baseline_np"),
    Column("curve.baseline_engine", key="baseline_engine"),
    *(Column(f"point.phases.{phase}", key=f"phase_{phase}_s") for phase in PHASES),
    Column("what", key="what"),  # the last: what follows it in a scaling.csv was added by its reader
)


def document(scaling: Scaling, measurement: Measurement | None = None) -> Document:
    """The fastest point, what stands between it and the ideal, which speedup to trust; all curves as tables.

    Args:
        scaling: The curves.
        measurement: The launches behind them, which JSON lists.
    """
    curve, curves = told_curve(scaling), curves_in_order(scaling)
    why: list[str] = []
    if curve:
        point = largest(curve)
        why = [_waterfall_words(point)] if point else []
        trust = () if scaling.doubt else scaling.trust[1:2] or scaling.trust[:1]  # with a doubt the answer begins
        why += [*trust, *scaling.findings[:1]]
    tables = [_table(each, scaling) for each in curves]
    asked = [name for name in SPEEDUPS if any(name in point.speedup for each in curves for point in each.points)]
    questions = [f"{SPEEDUP_NAMES[name]}: {QUESTIONS[name]}" for name in asked] if len(asked) > 1 else []
    return Document(
        answer=sentence(scaling),
        why=why,
        warnings=scaling.warnings,
        brief=[tables[curves.index(curve)]._replace(notes=())] if curve else (),
        sections=charted(
            "scaling",
            [
                Section("scaling", "Weak and strong scaling", tables=tables),
                Section("speedups", "What each speedup answers", facts=questions),
                Section("trust", "Which to trust", facts=scaling.trust),
                Section("seen", "What stands out", facts=scaling.findings),
                Section("phases", "Where the wall time went", tables=_phase_tables(scaling)),
            ],
            scaling,
        ),
        json=lambda: measurement_json(measurement, scaling) if measurement else points_json(scaling),
        files={"scaling": Table(COLUMNS, [row for each in curves for row in _rows(each, scaling)], "")},
    )


def _rows(curve: Curve, scaling: Scaling) -> list[Row]:
    return [Row(curve, point, scaling.what) for point in curve.points]


def _table(curve: Curve, scaling: Scaling) -> Table:
    """A row for every point; what is shown, relative to what, and of how many launches."""
    title, base = curve_title(curve), baseline_words(curve)
    known = any(point.speedup or point.throughput or point.step_s or point.train_s for point in curve.points)
    both = scaling.source == "measurement" and any(point.step_s and point.throughput for point in curve.points)
    means = "step: the median; samples/s: by the mean step" if both else ""
    named = title if curve.scaling or not curve.engine else f"scaling, {title}"
    counts = sorted({point.launches for point in curve.points})
    told = [
        f"{named[0].upper()}{named[1:]}: {plain(scaling.what, 60)}.",
        f"Relative to {base}, the smallest feasible size." if base else "There is nothing to compare with.",
        f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} launches each." if counts[-1:] > [1] else "",
    ]
    return Table(
        COLUMNS,
        _rows(curve, scaling),
        " ".join(filter(None, told)),
        (f"{title}, relative to {base}" if base else title) if known else f"{title}: no speeds are known",
        _curve_lines(curve),
        "; ".join(filter(None, (means, interval_note(curve_estimates(curve))))),
        noun="number of processes",
        both_ends=True,
    )


def phase_name(phase: str) -> str:
    """A phase as people read it."""
    return "warm-up" if phase == "warmup" else phase


def _phase_tables(scaling: Scaling) -> list[Table]:
    """Seconds of every phase by point; a measurement knows them."""
    points = list(points_with_phases(scaling).values())
    if not points or scaling.source != "measurement":
        return []
    shown = [phase for phase in PHASES if any(point.phases.get(phase, 0.0) >= _VISIBLE for point in points)]
    columns = [
        Column(point_label, "launch", words=True),
        *(Column(f"phases.{phase}", phase_name(phase), write="{:.2f}".format) for phase in shown),
        Column("wall_s", "wall", write="{:.2f}".format),
    ]
    title = "seconds by phase, mean over ranks and launches"
    means = "import: torch and other modules; init: the process group; build: model and data, until the first step"
    return [Table(columns, points, title.capitalize(), title, key=means, paper=False)]


def _curve_lines(curve: Curve) -> list[str]:
    """Facts of a curve below its table: warm-up, fit, waterfall, what is paid once and when that is earned, notes."""
    lines = []
    warmups: dict[int, list[str]] = {}
    for point in curve.points:
        if point.warmup_steps is not None:
            warmups.setdefault(point.warmup_steps, []).append(_processes(curve, point))
    if warmups:
        told = "; ".join(f"{plural(steps, 'step')} on {listed(sizes)}" for steps, sizes in sorted(warmups.items()))
        lines.append(f"warm-up, found in the step times and left out of steady: {told}")
    if curve.fit:
        lines.append(_fit_words(curve.fit, curve.work_unit))
    if most := largest(curve):
        lines.append(_waterfall_words(most))
    once = []
    for point in curve.points if not curve.fit else ():  # a fit tells one cost for all
        if each := point.one_time_s:
            span = f" ({number(each.low, 2)} to {number(each.high, 2)})" if has_spread(each) else ""
            once.append(f"{number(each.value, 2)} s{span} on {_processes(curve, point)}")
    lines += [f"one-time cost: {', '.join(once)}"] if once else []
    lines += [_break_even_words(curve, name) for name in SPEEDUPS]
    for note in dict.fromkeys(note for each in curve.points for note in each.notes):
        lines.append(f"on {listed([each.np for each in curve.points if note in each.notes])}: {note}")
    return [line for line in lines if line]


def _fit_words(fit: Fit, unit: str) -> str:
    """The fixed cost and the work, and what part of the train time the fixed cost is."""

    def plus_minus(value: float, error: float | None, decimals: int) -> str:
        return number(value, decimals) + ("" if error is None else f" ± {number(error, decimals)}")

    fixed = plus_minus(fit.fixed_s, fit.fixed_s_error, 2)
    work = plus_minus(fit.work, fit.work_error, 0 if fit.work >= 1000 else 2)
    errors = "" if fit.fixed_s_error is None else " (standard errors)"
    shares = [
        f"{format_share(fit.fixed_share[np])} of the train time on {np}" for np in sorted(fit.fixed_share, key=int)
    ]
    ends = " and ".join(dict.fromkeys((*shares[:1], *shares[-1:])))
    told = f"fixed cost {fixed} s per run and {work} {unit} of work{errors}"
    return f"{told}; the fixed part is {ends}" if ends and fit.fixed_s > 0 else told


class Step(NamedTuple):
    """One bar of a waterfall."""

    name: str  # For people
    kind: str  # ideal, one of SPEEDUPS, loss or gain
    start: float
    end: float  # The speedup here; a level's bar starts at 0

    @property
    def words(self) -> str:
        """`- 1.90` for a loss, `30.10` for a level."""
        sign = {"loss": "- ", "gain": "+ "}.get(self.kind, "")
        return sign + number(abs(self.end - self.start), 2)


def waterfall_steps(point: ScalingPoint) -> list[Step]:
    """From the ideal through every loss to the speedups that are left; levels stand where they are reached."""
    losses = point.waterfall
    if not losses:
        return []
    level = losses[0].left + losses[0].lost
    steps = [Step("ideal", "ideal", 0.0, level)]
    for loss, following in zip(losses, (*losses[1:], None), strict=True):
        if abs(loss.lost) >= _VISIBLE:
            kind = "loss" if loss.lost > 0 else "gain"
            # Before the first step of a launch modules are imported and the model is built; tables tell one init time.
            is_launched = loss.name == "init" and "launch" in point.phases
            name = "imports and set-up" if is_launched else LOSS_NAMES.get(loss.name, loss.name)
            steps.append(Step(name, kind, level, loss.left))
        level = loss.left
        reached = _LEVEL_AFTER.get(loss.name)
        if reached and (following is None or _LEVEL_AFTER.get(following.name) != reached):
            steps.append(Step(SPEEDUP_NAMES[reached], reached, 0.0, level))
    return steps


def _waterfall_words(point: ScalingPoint) -> str:
    """`ideal 32.00x; minus 1.90 lost efficiency: 30.10x steady; minus ...: 1.85x end to end`."""
    told, taken = [], []
    for step in waterfall_steps(point):
        amount = number(abs(step.end - step.start), 2)
        if step.kind in ("loss", "gain"):
            taken.append(f"{'minus' if step.kind == 'loss' else 'plus'} {amount} {step.name}")
        elif step.kind == "ideal":
            told.append(f"ideal {amount}x")
        elif taken:
            told.append(f"{' and '.join(taken)}: {amount}x {step.name}")
            taken = []
        else:  # nothing is lost between two levels
            told[-1] += f" and {step.name}"
    if told and point.steps and "end_to_end" in point.speedup:
        told[-1] += f" of a launch of {plural(point.steps, 'step')}"  # it may have been cut
    return "; ".join(told)


def _break_even_words(curve: Curve, name: str) -> str:
    """After how much work larger sizes overtake the baseline; not a word on those that lead from the start."""

    def amount(work: float | None) -> str:  # a few epochs are rounded up, because after fewer it is not yet so
        return "never" if work is None else f"{ceil(work) if work < 100 else round(work):,}"

    sizes: dict[str, list[int]] = {}
    for point in curve.points:
        found = point.break_even.get(name)
        if found is None or found.value == 0 or point.engine != curve.engine or point.np <= (curve.baseline_np or 0):
            continue
        span = "" if found.count == 1 else f" ({amount(found.low or 0.0)} to {amount(found.high)})"
        when = "never" if found.value is None else f"after {amount(found.value)} {curve.work_unit}{span}"
        sizes.setdefault(when, []).append(point.np)
    late = "; ".join(f"{when} on {listed(counts)}" for when, counts in sizes.items())
    return f"break-even with {baseline_words(curve)}, {SPEEDUP_NAMES[name]}: {late}" if late else ""


def sentence(scaling: Scaling) -> str:
    """The answer in one sentence, after a doubt that there is about all of it."""
    told = _of_runs(scaling) if scaling.source in ("table", "logs") and scaling.curves else _of_launches(scaling)
    return f"{scaling.doubt} {told}" if scaling.doubt else told


def _of_runs(scaling: Scaling) -> str:
    """Speedups in a table or logs, those of the most processes."""
    curve = told_curve(scaling) or scaling.curves[0]  # the one whose table comes next
    point = largest(curve)
    if point is None or not point.speedup:
        return "There is nothing to compare with: add what other numbers of processes gave."
    values = ", ".join(
        f"{point.speedup[name].value:.2f}x {words}" for name, words in SPEEDUP_NAMES.items() if name in point.speedup
    )
    title = f"{curve_title(curve)}: " if len(scaling.curves) > 1 else ""
    once = " (one run each; runs differ)" if any(each.once for each in point.speedup.values()) else ""
    told = f"{title}{plural(point.np, 'process')} reach {values}, relative to {baseline_words(curve)}{once}."
    return told[0].upper() + told[1:]


def _of_launches(scaling: Scaling) -> str:
    found = [(curve, point) for curve in scaling.curves for point in curve.points]
    first = fastest(scaling)
    if first is None:
        return _by_steps(found)
    curve, best = first
    rate = f"{format_rate(best.throughput.value if best.throughput else 0.0)} samples/s"
    told = f"{_where(best)}: {rate}"
    if sum(point.throughput is not None for _, point in found) == 1:
        return f"{told}, {format_seconds(best.step_s.value)} a median step." if best.step_s else f"{told}."
    steady, baseline = best.speedup.get("steady"), curve.baseline
    if baseline is best or steady is None or baseline is None:
        helped = "; more processes did not help" if any(point.np > best.np for _, point in found) else ""
        return f"Fastest is {told}{helped}{_sure(best.throughput) if best.throughput and best.throughput.once else ''}."
    of = _where(baseline).removesuffix(f" with batch {best.batch:g} each" if best.batch else "")
    times = f"{steady.value:.2f} times"
    if scaling.doubt:
        return f"So far {told}, {times} {of}{in_these_launches(steady)}."
    if steady.low <= 1 <= steady.high:
        return f"{told}, not told apart from {of}: {times}{_sure(steady)}."
    return f"Fastest is {told}, {times} {of}{_sure(steady)}."


def _by_steps(found: Sequence[tuple[Curve, ScalingPoint]]) -> str:
    """Warn that samples could not be counted, only steps."""
    told = f"{plural(len(found), 'point')} measured"
    compared = [(curve, point) for curve, point in found if point.speedup.get("steady") and point is not curve.baseline]
    if compared:
        curve, best = max(compared, key=lambda each: each[1].speedup["steady"].value)
        steady = best.speedup["steady"]
        reached = f"{steady.value:.2f} times {baseline_words(curve)}{_sure(steady)}"
        told = f"{_where(best)} reach {reached}, counted in steps"
    return f"{told}; the number of samples per step is not known."


def _sure(steady: Estimate) -> str:
    ends = f"{steady.low:.2f} to {steady.high:.2f}"
    repeated = plural(steady.count, "launch" if steady.over == "launches" else "block")
    if steady.count == 1:
        return f" (one launch each; launches differ: {REPEAT})"
    if steady.interval == "t":
        return f" ({percent(MEASURED)} interval {ends} over {repeated})"
    return f" ({ends} in {repeated}, no interval below {FEWEST})"


def in_these_launches(steady: Estimate) -> str:
    """The ends of an interval that says nothing of other launches."""
    if not has_spread(steady):
        return ""
    ends = f"{steady.low:.2f} to {steady.high:.2f}"
    if steady.interval == "t":
        return f" ({percent(MEASURED)} interval {ends}, of these launches alone)"
    return f" ({ends} in these launches)"


def _where(point: ScalingPoint) -> str:
    engine = "" if point.engine in (NO_ENGINE, "") else f"{point.engine} on "
    batch = "" if point.batch is None else f" with batch {point.batch:g} each"
    return f"{engine}{plural(point.np, 'process')}{batch}"


# --- curves and points in words, which charts and other documents use ---


def told_curve(scaling: Scaling) -> Curve | None:
    """The curve that the answer speaks of."""
    best, curves = fastest(scaling), curves_in_order(scaling)
    return best[0] if best else curves[0] if curves else None


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


def fastest(scaling: Scaling) -> tuple[Curve, ScalingPoint] | None:
    """The point of the highest throughput and its curve, of which answers speak; None where no rates are known."""
    rated = [(curve, point) for curve in scaling.curves for point in curve.points if point.throughput]
    return max(rated, key=lambda each: each[1].throughput.value if each[1].throughput else 0.0, default=None)


def same_point(scaling: Scaling, cell: Cell, engine: str) -> ScalingPoint | None:
    """The measured point of a map's cell; one process without an engine, as the map has it, or as a script runs it."""
    curves = (curve for curve in scaling.curves if curve.scaling == cell.scaling)
    points = [each for curve in curves for each in curve.points if (each.np, each.batch) == (cell.np, cell.batch)]
    engines = (NO_ENGINE, engine) if cell.np == 1 else (engine,)
    return next((point for wanted in engines for point in points if point.engine == wanted), None)


def largest(curve: Curve) -> ScalingPoint | None:
    """The engine's point with the most processes, unless the baseline has as many."""
    own = [point for point in curve.points if point.engine == curve.engine and point.np != curve.baseline_np]
    return max(own, key=lambda point: point.np, default=None)


def drawn_line(curve: Curve) -> list[ScalingPoint]:
    """The engine's own points; the baseline leads when the engine has none of that size."""
    own = [point for point in curve.points if point.engine == curve.engine]
    baseline = curve.baseline
    if baseline and all(point.np != baseline.np for point in own):
        own.append(baseline)
    return sorted(own, key=lambda point: point.np)


def curve_title(curve: Curve) -> str:
    """`weak scaling, ddp, batch 32 each`; `scaling` when the source tells nothing of that."""
    return known_title(curve) or "scaling"


def known_title(curve: Curve) -> str:
    """Name what is known of kind, engine and batch; may be empty."""
    kind = [f"{curve.scaling} scaling"] if curve.scaling else []
    engine = [plain(engine_name(curve.engine), 30)] if curve.engine else []
    return ", ".join([*kind, *engine, *batch_words(curve)])


def batch_words(curve: Curve) -> list[str]:
    """The batch as the user asked for it, if it is known."""
    if curve.batch is None:
        return []
    said = {"strong": f"global batch {curve.batch:,}", "weak": f"batch {curve.batch:,} each"}
    return [said.get(curve.scaling, f"batch {curve.batch:,}")]


def baseline_words(curve: Curve) -> str:
    """Baseline of speedups: `1 process without an engine`; empty when there is nothing."""
    if curve.baseline_np is None:
        return ""
    without = curve.baseline_engine == NO_ENGINE and curve.engine != NO_ENGINE
    return plural(curve.baseline_np, "process") + (" without an engine" if without else "")


def points_with_phases(scaling: Scaling) -> dict[str, ScalingPoint]:
    """Points whose phases are known, by their label; what two curves share is there once."""
    points: dict[str, ScalingPoint] = {}
    for curve in curves_in_order(scaling):
        for point in curve.points:
            if any(point.phases.get(phase, 0.0) > 0 for phase in SHOWN_PHASES):
                points.setdefault(point_label(point), point)
    return points


def point_label(point: ScalingPoint) -> str:
    """`2 x ddp on 2 nodes, batch 32 each`."""
    engine = f"{point.np} x {plain(engine_name(point.engine), 24)}" if point.engine else plural(point.np, "process")
    nodes = "" if point.nodes is None or point.nodes == 1 else f" on {point.nodes} nodes"
    each = " each" if point.np > 1 else ""
    batch = "" if point.batch is None else f", batch {point.batch:g}{each}"
    return ("alone" if point.engine == NO_ENGINE and point.np == 1 else engine) + nodes + batch


def nodes_matter(points: Iterable[ScalingPoint]) -> bool:
    """True if points differ in how many hosts they used."""
    return len({point.nodes for point in points} - {None}) > 1


def curve_estimates(curve: Curve) -> list[Estimate]:
    """Every speedup and efficiency of a curve but the baseline's, which is 1 by definition."""
    points = [point for point in curve.points if point is not curve.baseline]
    found = [estimate for point in points for estimate in point.speedup.values()]
    return found + [point.efficiency for point in points if point.efficiency]


def trace_words(trace: TraceFolder, folder: str) -> str:
    """Say how much of a launch was traced, where it is, and what tracing added to a step."""
    overhead, untraced_s = trace.overhead, trace.untraced_step_s
    cost = "what tracing cost is not known: too few steps were made without it"
    if overhead and untraced_s:
        span = f"{format_change(overhead.low)} to {format_change(overhead.high)}"
        cost = f"tracing added {span} to a step of {format_seconds(untraced_s)}"
    what = f"{plural(trace.steps, 'step')} of {plural(len(trace.ranks), 'rank')}"
    return f"Traced {trace.point.label}: {what} in {folder}; {cost}."


# --- JSON: its keys are a contract ---


def points_json(scaling: Scaling) -> dict[str, Any]:
    """Units are SI and in the names; what is not known is null or absent."""
    points = [_point_json(row) for curve in scaling.curves for row in _rows(curve, scaling)]
    fits = [curve.fit for curve in scaling.curves if curve.fit]
    return {
        "points": list({repr(each): each for each in points}.values()),  # engines share their baseline
        "fit": msgspec.to_builtins(fits[0]) if fits else None,
        "curves": [
            {name: value for name, value in msgspec.to_builtins(curve).items() if name != "points"}
            for curve in scaling.curves
        ],
        "engines": [
            {**msgspec.to_builtins(each), "ratio": _estimate_json(each.ratio)} for each in engine_ratios(scaling.curves)
        ],
        "doubt": scaling.doubt,
        "questions": dict(QUESTIONS),
        "trust": list(scaling.trust),
        "findings": list(scaling.findings),
        "warnings": list(scaling.warnings),
    }


def _point_json(row: Row) -> dict[str, Any]:
    point = row.point
    return {
        **{column.key: column.value(row) for column in COLUMNS if column.json},
        "interval": point.step_s.interval if point.step_s else None,
        "efficiency": point.efficiency.value if point.efficiency else None,
        "mean_efficiency": point.mean_efficiency,
        "median_efficiency": point.median_efficiency,
        "speedup": {name: _estimate_json(estimate) for name, estimate in point.speedup.items()},
        "phases": {f"{phase}_s": seconds for phase, seconds in point.phases.items()},
        "waterfall": [msgspec.to_builtins(loss) for loss in point.waterfall],
        "one_time_s": _estimate_json(point.one_time_s) if point.one_time_s else None,
        **_with_ends("longer_for_90", point.longer_for_90),
        **_with_ends("break_even", point.break_even),
        "notes": list(point.notes),
    }


def _with_ends(key: str, found: Mapping[str, Estimate | BreakEven]) -> dict[str, dict[str, float | None]]:
    """Values by speedup under the key, the ends of their intervals under KEY_low and KEY_high; null: never."""
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {key + end: {name: getattr(each, of) for name, each in found.items()} for end, of in ends.items()}


def _estimate_json(estimate: Estimate) -> dict[str, Any]:
    ends = {name: getattr(estimate, name) for name in ("value", "low", "high", "interval")}
    return {**ends, estimate.over: estimate.count}


def measurement_json(measurement: Measurement, scaling: Scaling) -> dict[str, Any]:
    """JSON of a measurement: its points, with every launch and how it was seen."""
    told = points_json(scaling)
    seen = measurement.as_seen().runs
    for point in told["points"]:
        place = (point["engine"], point["np"])
        same = [
            run
            for run in seen
            if (run.point.engine, run.point.np) == place and run.point.batch in (None, point["batch"])
        ]
        if same:
            point |= {
                name: getattr(same[0], name) for name in ("engine_seen", "exchanges", "backend", "source", "folder")
            }
            point["rank_hosts"] = _rank_hosts(same[0])
            point["batch_jobs"] = list(dict.fromkeys(run.batch_job for run in same if run.batch_job))
            point["warnings"] = list(dict.fromkeys(warning for run in same for warning in run.warnings))
    return {
        "kind": "measurement",
        **{name: getattr(measurement, name) for name in ("what", "host", "cores", "binding")},
        **{name: getattr(measurement, name) for name in ("launcher", "quick", "stopped")},
        **told,
        "launches": [_launch_json(run) for run in measurement.runs],
        "failures": [
            {"engine": each.point.engine, "np": each.point.np, "batch": each.point.batch, "problem": each.problem}
            for each in measurement.failures
        ],
    }


def _rank_hosts(run: Run) -> list[str] | None:
    """The host of every rank, in order of rank; None where only output was read."""
    return [rank.host for rank in run.ranks] or None


def _launch_json(run: Run) -> dict[str, Any]:
    same = (
        "engine_seen",
        "as_it_is",
        "round",
        "step_s",
        "throughput",
        "steps",
        "warmup_steps",
        "wall_s",
        "train_s",
        "folder",
    )
    return {
        **{name: getattr(run.point, name) for name in ("engine", "np", "batch", "arm")},
        **{name: getattr(run, name) for name in same},
        "rank_hosts": _rank_hosts(run),
        "hosts": msgspec.to_builtins(run.hosts),
        "batch_job": run.batch_job,
        "phases": {f"{phase}_s": seconds for phase, seconds in run.phases.items()},
        "foreign_cores": run.load.foreign_cores if run.load else None,
        "load_average": run.load.load_average if run.load else None,
        "warnings": list(run.warnings),
    }
