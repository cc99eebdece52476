"""Sentences on a Scaling: which speedup to trust, and what stands out."""

from collections.abc import Sequence

from scalescope.records.scaling import SPEEDUP_NAMES, SPEEDUPS, Curve, Estimate, ScalingPoint, best_batch, engine_ratios
from scalescope.stats import MEASURED, percent
from scalescope.text import plural
from scalescope.units import digits, format_rate, format_seconds

_CLOSE = 0.05  # Speedups that differ by less tell the same story
_COSTLY = 0.9  # An engine that reaches less of the baseline's pace on one process is worth a word


def which_to_trust(curves: Sequence[Curve], *, repeat: str = "") -> tuple[str, ...]:
    """The question that each of the three speedups answers, at the largest point of the first curve.

    `repeat` says how to make more launches where there was one of each.
    """
    found = []
    for curve in curves:
        points = [point for point in curve.points if point.np != curve.baseline_np and point.speedup]
        if points:
            found.append((curve, max(points, key=lambda point: point.np)))
    if not found:
        return ()
    curve, point = found[0]
    known = {name: point.speedup[name].value for name in SPEEDUPS if name in point.speedup}
    where = f"on {plural(point.np, 'process')}" + (f" ({_name(curve)})" if len(found) > 1 and _name(curve) else "")
    is_once = any(each.once for each in point.speedup.values())
    again = f": {repeat}" if repeat else ""
    differ = (f"That is one launch each, and launches differ{again}.",) if is_once else ()
    values = ", ".join(f"{value:.2f}x {SPEEDUP_NAMES[name]}" for name, value in known.items())
    if "steady" not in known:
        return (f"There are no rates: {values} {where} mix steady speed with one-time cost.", *differ)
    if "train" not in known:
        told = f"{known['steady']:.2f}x {where}: it holds for long runs; start-up cost is not included."
        return (f"Only the steady speedup is known, {told}", *differ)
    if all(abs(value / known["steady"] - 1) < _CLOSE for value in known.values()):
        return (f"All agree {where} ({values}){'' if is_once else ': any of them may be quoted'}.", *differ)
    short = "end_to_end" if "end_to_end" in known else "train"
    return (
        f"{values} {where}: each answers its own question.",
        _for_long_runs(point, known),
        f"For runs as short as this one trust {SPEEDUP_NAMES[short]}, {known[short]:.2f}x.",
        *differ,
    )


def _for_long_runs(point: ScalingPoint, known: dict[str, float]) -> str:
    """The steady speedup and why wall times show another one; the train speedup where steps themselves are uneven."""
    steady = known["steady"]
    uneven = sum(loss.lost for loss in point.waterfall if loss.name == "uneven")
    if uneven > _CLOSE * steady:
        return (
            f"For a long training trust train, {known['train']:.2f}x, more than steady, {steady:.2f}x: many steps take "
            "longer than the median one, not only at the start of a run."
        )
    if steady < min(known.values()) * (1 + _CLOSE):
        return f"For a long training trust steady, {steady:.2f}x: the higher speedups come from one-time start-up cost."
    shares = []  # of one-time cost, because of which wall-time speedups are lower
    if point.fixed_s is not None and point.train_s and point.fixed_s > 0.02 * point.train_s:
        share = min(100 * point.fixed_s / point.train_s, 99)
        shares.append(f"{share:.0f} % of the train time is one-time cost")
    if point.wall_s and point.train_s and point.wall_s - point.train_s > 0.02 * point.wall_s:
        around_s = point.wall_s - point.train_s
        shares.append(f"{format_seconds(around_s)} of {format_seconds(point.wall_s)} are outside the training")
    reasons = [" and ".join(shares) or "one-time cost does not count there"]
    reasons += [
        f"{SPEEDUP_NAMES[name]} would reach 90 % of it in a run {digits(longer.value, 2)} times longer"
        for name, longer in point.longer_for_90.items()
        if longer.value > 1
    ]
    return f"For a long training trust steady, {steady:.2f}x: {'; '.join(reasons)}."


def _name(curve: Curve) -> str:
    """`weak scaling, ddp, batch 32 each`, as far as it is known."""
    batch = {"strong": f"global batch {curve.batch}", "weak": f"batch {curve.batch} each"}.get(curve.scaling, "")
    words = (f"{curve.scaling} scaling" if curve.scaling else "", curve.engine, batch if curve.batch else "")
    return ", ".join(word for word in words if word)


def what_stands_out(curves: Sequence[Curve], *, repeat: str = "") -> tuple[str, ...]:
    """Sentences on single points: slower than the baseline, not worth it yet, costly engines, the best batch.

    A result of one launch each is reported as that, with `repeat`, and never as a fact.
    """
    found = []
    for curve in curves:
        prefix = f"{_name(curve)}: " if len(curves) > 1 and _name(curve) else ""
        found += [prefix + sentence for point in curve.points if (sentence := _of_point(point, curve, repeat))]
    return tuple(dict.fromkeys([*found, *_engines(curves, repeat), *_best_batch(curves, repeat)]))


def _seen(fact: str, estimate: Estimate, repeat: str) -> str:
    """The fact, with the number of launches where there are too few for an interval."""
    if estimate.once:
        return f"{fact} (one launch each; launches differ{f': {repeat}' if repeat else ''})"
    return fact if estimate.interval == "t" else f"{fact} (in {plural(estimate.count, 'launch')})"


def _of_point(point: ScalingPoint, curve: Curve, repeat: str) -> str:
    where = plural(point.np, "process")
    if curve.baseline_np is None or (point.np == curve.baseline_np and point.engine == curve.baseline_engine):
        return ""
    steady, end = point.speedup.get("steady"), point.speedup.get("end_to_end")
    if point.np == curve.baseline_np:
        if steady and steady.high < _COSTLY:
            lost = f"{point.engine} itself cost {100 * (1 - steady.value):.0f} % of the pace on {where}"
            return _seen(lost, steady, repeat)
        return ""
    if steady and steady.high < 1:
        slower = f"{where} were slower than {curve.baseline_np} even in steady state ({steady.value:.2f}x)"
        return _seen(slower, steady, repeat)
    if end and end.high < 1 and steady and steady.low > 1 + _CLOSE:
        pays = point.break_even.get("end_to_end")
        later = (
            f"{where} finished this job later than {curve.baseline_np} ({end.value:.2f}x end to end) although their "
            f"steady pace was {steady.value:.2f}x"
        )
        later += f"; it pays from {pays.value:,.0f} {curve.work_unit} on" if pays and pays.value else ""
        return _seen(later, end, repeat)
    return ""


def _engines(curves: Sequence[Curve], repeat: str) -> list[str]:
    """Engines on the most processes that several of them ran on, compared round by round."""
    ratios = engine_ratios(curves)
    most = max((each.np for each in ratios), default=0)
    found = []
    for each in (each for each in ratios if each.np == most):
        batch = f", batch {each.batch:g} each" if each.batch is not None else ""
        interval = f" ({percent(MEASURED)} interval {each.ratio.low:.2f} to {each.ratio.high:.2f})"
        faster = (
            f"on {plural(each.np, 'process')}{batch} {each.engine} was {each.ratio.value:.2f} times as fast as "
            f"{each.than}{interval if each.ratio.interval == 't' else ''}"
        )
        faster += "" if each.ratio.low > 1 else ", which does not tell them apart"
        found.append(_seen(faster, each.ratio, repeat))
    return found


def _best_batch(curves: Sequence[Curve], repeat: str) -> list[str]:
    """The fastest batch on the smallest number of processes, when several were tried."""
    found = best_batch(curves)
    if found is None:
        return []
    also = f"; batch {', '.join(f'{size:g}' for size in found.rivals)} may be as good" if found.rivals else ""
    fastest = f"on {plural(found.np, 'process')} batch {found.batch:g} was the fastest"
    return [_seen(f"{fastest}: {format_rate(found.rate.value)} samples/s{also}", found.rate, repeat)]
