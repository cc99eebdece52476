"""What the numbers say, in sentences: which speedup to trust, what stands out."""

from collections.abc import Sequence

from scalescope.records.scaling import SPEEDUPS, Curve, ScalingPoint
from scalescope.units import format_seconds, plural

_CLOSE = 0.05
"""Speedups that differ by less tell the same story."""
_COSTLY = 0.9
"""An engine that reaches less of the baseline's pace on one process is worth a word."""


def which_to_trust(curves: Sequence[Curve], *, quick: bool = False) -> tuple[str, ...]:
    """Which of the three speedups answers which question here, from the largest point of the first curve."""
    point = _largest(curves)
    if point is None:
        return ()
    known = {name: point.speedup[name].value for name in SPEEDUPS if name in point.speedup}
    where = f"on {plural(point.np, 'process')}"
    if quick:
        return (
            f"Steady speedup is {known['steady']:.2f}x {where}, from turns inside one launch: it does not show how "
            "launches differ from each other, nor what launching, initialising and warming up cost; measure without "
            "--quick before you publish it.",
        )
    if "steady" not in known:
        return (f"There are no rates: {_values(known)} {where} mix the steady pace with what is paid once per run.",)
    if "train" not in known:
        return (
            f"Only the steady speedup is known, {known['steady']:.2f}x {where}: it holds for long runs; "
            "what starting costs is not in it.",
        )
    if all(abs(value / known["steady"] - 1) < _CLOSE for value in known.values()):
        return (f"All agree {where} ({_values(known)}): any of them may be quoted.",)
    return (
        f"{_values(known)} {where}: all are right, each for its own question.",
        f"For a long training trust steady, {known['steady']:.2f}x: {_reason(point)}.",
        _for_short_runs(known),
    )


def _for_short_runs(known: dict[str, float]) -> str:
    if "end_to_end" not in known:
        return f"For runs as short as this one trust train, {known['train']:.2f}x."
    end = known["end_to_end"]
    sooner = "sooner" if end >= 1 else "LATER"
    return f"For jobs as short as this one trust end to end, {end:.2f}x: that is how much {sooner} it was done."


def _largest(curves: Sequence[Curve]) -> ScalingPoint | None:
    points = [
        point for curve in curves[:1] for point in curve.points if point.np != curve.baseline_np and point.speedup
    ]
    return max(points, key=lambda point: point.np) if points else None


def _values(known: dict[str, float]) -> str:
    words = {"steady": "steady", "train": "train", "end_to_end": "end to end"}
    return ", ".join(f"{value:.2f}x {words[name]}" for name, value in known.items())


def _reason(point: ScalingPoint) -> str:
    """Why the wall-time speedups are lower, and when they would not be."""
    shares = []
    if point.fixed_s is not None and point.train_s and point.fixed_s > 0.02 * point.train_s:
        shares.append(f"{100 * point.fixed_s / point.train_s:.0f} % of the train time is paid once")
    if point.wall_s and point.train_s and point.wall_s - point.train_s > 0.02 * point.wall_s:
        around_s = point.wall_s - point.train_s
        shares.append(f"{format_seconds(around_s)} of {format_seconds(point.wall_s)} lie around the training")
    names = {"train": "train", "end_to_end": "end to end"}
    times = [f"{_times(value)} longer {names[name]}" for name, value in point.longer_for_90.items() if value > 1]
    when = f"; in a run {' and in one '.join(times)} would reach 90 % of it" if times else ""
    return (" and ".join(shares) or "what is paid once does not count there") + when


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.1f} times"


def what_stands_out(curves: Sequence[Curve]) -> tuple[str, ...]:
    """Sentences on single points: slower than the baseline, never worth it, costly engines, the best batch."""
    found = []
    for curve in curves:
        name = " ".join(word for word in (curve.scaling, "scaling", curve.engine) if word) if curve.scaling else ""
        prefix = f"{name}: " if len(curves) > 1 and name else ""
        for point in curve.points:
            sentence = _of_point(point, curve)
            found += [prefix + sentence] if sentence else []
    return tuple(dict.fromkeys([*found, *_best_batch(curves)]))


def _of_point(point: ScalingPoint, curve: Curve) -> str:
    where = plural(point.np, "process")
    if curve.baseline_np is None or (point.np == curve.baseline_np and point.engine == curve.baseline_engine):
        return ""
    steady, end = point.speedup.get("steady"), point.speedup.get("end_to_end")
    if point.np == curve.baseline_np:
        if steady and steady.high < _COSTLY:
            return f"{point.engine} itself costs {1 - steady.value:.0%} of the pace on {where}"
        return ""
    if steady and steady.high < 1:
        return f"{where} are slower than {curve.baseline_np} even in steady state ({steady.value:.2f}x)"
    if end and end.high < 1 and steady and steady.low > 1:
        work = point.break_even.get("end_to_end")
        from_on = f"; it pays from {work:,.0f} {curve.work_unit} on" if work else ""
        return (
            f"{where} finish this job later than {curve.baseline_np} ({end.value:.2f}x end to end) "
            f"although their steady pace is {steady.value:.2f}x{from_on}"
        )
    return ""


def _best_batch(curves: Sequence[Curve]) -> list[str]:
    """Which batch one process likes best, when several were tried."""
    rates: dict[float, tuple[float, float, float]] = {}
    for curve in curves:
        baseline = curve.baseline or next((point for point in curve.points if point.np == 1), None)
        if baseline and baseline.np == 1 and baseline.throughput and baseline.batch:
            rate = baseline.throughput
            rates[baseline.batch] = (rate.value, rate.low, rate.high)
    if len(rates) < 2:
        return []
    best = max(rates, key=lambda batch: rates[batch])
    rivals = [batch for batch in sorted(rates) if batch != best and rates[batch][2] >= rates[best][1]]
    also = f"; batch {', '.join(f'{batch:g}' for batch in rivals)} may be as good" if rivals else ""
    return [f"one process is fastest with batch {best:g}: {rates[best][0]:,.0f} samples/s{also}"]
