"""A measurement in one sentence, and as the JSON document that scripts rely on."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scalescope.records.run import Measurement, Run
from scalescope.records.scaling import (
    QUESTIONS,
    REPEAT,
    SPEEDUP_NAMES,
    BreakEven,
    Curve,
    Estimate,
    Scaling,
    ScalingPoint,
    engine_ratios,
)
from scalescope.report.phrases import baseline_words, curve_title, fastest, largest
from scalescope.stats import MEASURED, percent
from scalescope.text import plural
from scalescope.units import format_rate, format_seconds


def points_document(scaling: Scaling) -> dict[str, Any]:
    """What `--json` prints: units are SI and in the names; what is not known is null or absent."""
    documents = [_point_document(curve, point) for curve in scaling.curves for point in curve.points]
    points = list({repr(each): each for each in documents}.values())  # engines share their baseline
    fits = [curve.fit for curve in scaling.curves if curve.fit]
    return {
        "points": points,
        "fit": msgspec.to_builtins(fits[0]) if fits else None,
        "curves": [_curve_document(curve) for curve in scaling.curves],
        "engines": [
            {**msgspec.to_builtins(each), "ratio": _estimate_document(each.ratio)}
            for each in engine_ratios(scaling.curves)
        ],
        "doubt": scaling.doubt,
        "questions": dict(QUESTIONS),
        "trust": list(scaling.trust),
        "findings": list(scaling.findings),
        "warnings": list(scaling.warnings),
    }


def _point_document(curve: Curve, point: ScalingPoint) -> dict[str, Any]:
    step, rate, efficiency = point.step_s, point.throughput, point.efficiency
    return {
        "engine": point.engine,
        "scaling": curve.scaling,
        "np": point.np,
        "nodes": point.nodes,
        "batch": point.batch,
        "global_batch": point.global_batch,
        "threads_per_rank": point.threads_per_rank,
        "launches": point.launches,
        "step_s": step.value if step else None,
        "step_s_low": step.low if step else None,
        "step_s_high": step.high if step else None,
        "interval": step.interval if step else None,
        "throughput": rate.value if rate else None,
        "efficiency": efficiency.value if efficiency else None,
        "mean_efficiency": point.mean_efficiency,
        "median_efficiency": point.median_efficiency,
        "speedup": {name: _estimate_document(estimate) for name, estimate in point.speedup.items()},
        "train_s": point.train_s,
        "wall_s": point.wall_s,
        "phases": {f"{phase}_s": seconds for phase, seconds in point.phases.items()},
        "steps": point.steps,
        "warmup_steps": point.warmup_steps,
        "fixed_s": point.fixed_s,
        "waterfall": [msgspec.to_builtins(loss) for loss in point.waterfall],
        "one_time_s": _estimate_document(point.one_time_s) if point.one_time_s else None,
        **_with_ends("longer_for_90", point.longer_for_90),
        **_with_ends("break_even", point.break_even),
        "notes": list(point.notes),
    }


def _with_ends(key: str, found: Mapping[str, Estimate | BreakEven]) -> dict[str, dict[str, float | None]]:
    """Values by speedup under the key, the ends of their intervals under KEY_low and KEY_high; null: never."""
    return {
        key: {name: each.value for name, each in found.items()},
        f"{key}_low": {name: each.low for name, each in found.items()},
        f"{key}_high": {name: each.high for name, each in found.items()},
    }


def _estimate_document(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "interval": estimate.interval,
        estimate.over: estimate.count,
    }


def _curve_document(curve: Curve) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(curve).items() if name != "points"}


def as_document(measurement: Measurement, scaling: Scaling) -> dict[str, Any]:
    """What `--json` prints: units are SI and in the names."""
    document = points_document(scaling)
    seen = measurement.as_seen().runs
    for point in document["points"]:
        same = [run for run in seen if _is_of(run, point)]
        point.update(_how_it_was_seen(same) if same else {})
    return {
        "kind": "measurement",
        "what": measurement.what,
        "host": measurement.host,
        "cores": measurement.cores,
        "binding": measurement.binding,
        "launcher": measurement.launcher,
        "quick": measurement.quick,
        "stopped": measurement.stopped,
        **document,
        "launches": [_launch_document(run) for run in measurement.runs],
        "failures": [
            {"engine": each.point.engine, "np": each.point.np, "batch": each.point.batch, "problem": each.problem}
            for each in measurement.failures
        ],
    }


def _is_of(run: Run, point: dict[str, Any]) -> bool:
    same = (run.point.engine, run.point.np) == (point["engine"], point["np"])
    return same and run.point.batch in (None, point["batch"])


def _how_it_was_seen(runs: Sequence[Run]) -> dict[str, Any]:
    """What all launches of a point have in common, and what was wrong with any of them."""
    return {
        "engine_seen": runs[0].engine_seen,
        "exchanges": runs[0].exchanges,
        "backend": runs[0].backend,
        "source": runs[0].source,
        "rank_hosts": _rank_hosts(runs[0]),
        "folder": runs[0].folder,
        "warnings": list(dict.fromkeys(warning for run in runs for warning in run.warnings)),
    }


def _rank_hosts(run: Run) -> list[str] | None:
    """The host of every rank, in order of rank; None where only output was read."""
    return [rank.host for rank in run.ranks] or None


def _launch_document(run: Run) -> dict[str, Any]:
    return {
        "engine": run.point.engine,
        "np": run.point.np,
        "batch": run.point.batch,
        "arm": run.point.arm,
        "engine_seen": run.engine_seen,
        "as_it_is": run.as_it_is,
        "rank_hosts": _rank_hosts(run),
        "round": run.round,
        "step_s": run.step_s,
        "throughput": run.throughput,
        "steps": run.steps,
        "warmup_steps": run.warmup_steps,
        "wall_s": run.wall_s,
        "train_s": run.train_s,
        "phases": {f"{phase}_s": seconds for phase, seconds in run.phases.items()},
        "foreign_cores": run.load.foreign_cores if run.load else None,
        "load_average": run.load.load_average if run.load else None,
        "folder": run.folder,
        "warnings": list(run.warnings),
    }


def sentence(scaling: Scaling) -> str:
    """The answer in one sentence, after a doubt that there is about all of it."""
    told = _of_runs(scaling) if scaling.source in ("table", "logs") and scaling.curves else _answer(scaling)
    return f"{scaling.doubt} {told}" if scaling.doubt else told


def _of_runs(scaling: Scaling) -> str:
    """Of a table or logs: the speedups of the most processes."""
    curve = scaling.curves[0]
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


def _answer(scaling: Scaling) -> str:
    found = [(curve, point) for curve in scaling.curves for point in curve.points]
    rated = [point for _, point in found if point.throughput]
    first = fastest(scaling)
    if first is None:
        return _by_steps(found)
    curve, best = first
    rate = format_rate(best.throughput.value if best.throughput else 0)
    if len(rated) == 1:
        step = f", {format_seconds(best.step_s.value)} a step" if best.step_s else ""
        return f"{_capital(_where(best))}: {rate} samples/s{step}."
    steady = best.speedup.get("steady")
    baseline = curve.baseline
    if baseline is best or steady is None or baseline is None:
        more = any(point.np > best.np for point in rated)
        helped = "; more processes did not help" if more else ""
        return f"{_fastest(best)} {_where(best)}: {rate} samples/s{helped}{_again(best)}."
    of = _where(baseline).removesuffix(f" with batch {best.batch:g} each" if best.batch else "")
    if steady.low <= 1 <= steady.high:
        times = f"{steady.value:.2f} times{_sure(best)}"
        return f"{_capital(_where(best))}: {rate} samples/s, not told apart from {of}: {times}."
    rest = f"{_where(best)}: {rate} samples/s, {steady.value:.2f} times {of}"
    return f"{_fastest(best)} {rest}{_again(best) if steady.once else _sure(best)}."


def _fastest(point: ScalingPoint) -> str:
    return "In one launch each the fastest was" if point.throughput and point.throughput.once else "Fastest is"


def _again(point: ScalingPoint) -> str:
    """What to do about single launches; empty where there are more."""
    return f"; launches differ: {REPEAT}" if point.throughput and point.throughput.once else ""


def _by_steps(found: Sequence[tuple[Curve, ScalingPoint]]) -> str:
    """Nobody could count samples: steps must do."""
    unknown = "the number of samples per step is not known"
    compared = [(curve, point) for curve, point in found if point.speedup.get("steady") and point is not curve.baseline]
    if not compared:
        return f"{plural(len(found), 'point')} measured; {unknown}."
    curve, best = max(compared, key=lambda each: each[1].speedup["steady"].value)
    steady = best.speedup["steady"]
    return (
        f"{_capital(_where(best))} reach {steady.value:.2f} times {plural(curve.baseline_np or 1, 'process')}"
        f"{_sure(best)}, counted in steps; {unknown}."
    )


def _capital(text: str) -> str:
    """A sentence's first letter; names of engines stay as they are written."""
    return text if text.split(" ", 1)[0].isalpha() else text[0].upper() + text[1:]


def _sure(point: ScalingPoint) -> str:
    steady = point.speedup["steady"]
    if steady.interval == "t":
        repeated = plural(steady.count, "launch" if steady.over == "launches" else "block")
        return f" ({percent(MEASURED)} interval {steady.low:.2f} to {steady.high:.2f} over {repeated})"
    if steady.count == 1:
        return f" (one launch each; launches differ: {REPEAT})"
    return f" ({steady.low:.2f} to {steady.high:.2f} in {plural(steady.count, 'launch')}, no interval below 5)"


def _where(point: ScalingPoint) -> str:
    engine = "" if point.engine in ("none", "") else f"{point.engine} on "
    batch = "" if point.batch is None else f" with batch {point.batch:g} each"
    return f"{engine}{plural(point.np, 'process')}{batch}"
