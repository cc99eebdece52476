"""Scaling as the JSON document that scripts rely on."""

from typing import Any

from scalescope.records.scaling import QUESTIONS, Curve, Estimate, Fit, Scaling, ScalingPoint


def as_document(scaling: Scaling) -> dict[str, Any]:
    """What `--json` prints: units are SI and in the names; what is not known is null or absent."""
    points: list[dict[str, Any]] = []
    for curve in scaling.curves:
        for point in curve.points:
            document = _point_document(curve, point)
            if document not in points:  # engines share their baseline
                points.append(document)
    fits = [curve.fit for curve in scaling.curves if curve.fit]
    return {
        "points": points,
        "fit": _fit_document(fits[0]) if fits else None,
        "curves": [_curve_document(curve) for curve in scaling.curves],
        "doubt": scaling.doubt,
        "questions": dict(QUESTIONS),
        "trust": list(scaling.trust),
        "findings": list(scaling.findings),
        "warnings": list(scaling.warnings),
        "self_comparisons": [
            {
                "engine": each.engine,
                "np": each.np,
                "batch": each.batch,
                "ratio": _estimate_document(each.ratio),
                "covers_one": each.covers_one,
            }
            for each in scaling.self_comparisons
        ],
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
        "speedup": {name: _estimate_document(estimate) for name, estimate in point.speedup.items()},
        "train_s": point.train_s,
        "wall_s": point.wall_s,
        "phases": {f"{phase}_s": seconds for phase, seconds in point.phases.items()},
        "steps": point.steps,
        "warmup_steps": point.warmup_steps,
        "fixed_s": point.fixed_s,
        "waterfall": [{"name": loss.name, "lost": loss.lost, "left": loss.left} for loss in point.waterfall],
        "longer_for_90": dict(point.longer_for_90),
        "break_even": dict(point.break_even),
        "notes": list(point.notes),
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
    return {
        "engine": curve.engine,
        "scaling": curve.scaling,
        "batch": curve.batch,
        "baseline_np": curve.baseline_np,
        "baseline_engine": curve.baseline_engine,
        "work_unit": curve.work_unit,
        "fit": _fit_document(curve.fit) if curve.fit else None,
    }


def _fit_document(fit: Fit) -> dict[str, Any]:
    return {
        "fixed_s": fit.fixed_s,
        "fixed_s_error": fit.fixed_s_error,
        "work": fit.work,
        "work_error": fit.work_error,
        "fixed_share": dict(fit.fixed_share),
        "longer": {np: dict(times) for np, times in fit.longer.items()},
    }
