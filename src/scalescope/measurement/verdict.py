"""Sentences on a Scaling: which speedup to trust, and what stands out."""

from collections.abc import Sequence

from scalescope.records.scaling import SPEEDUP_NAMES, SPEEDUPS, Curve, Estimate, ScalingPoint, best_batch, engine_ratios
from scalescope.stats import MEASURED, percent
from scalescope.text import plural
from scalescope.units import format_rate, format_seconds

_CLOSE = 0.05  # Speedups that differ by less tell the same story
_COSTLY = 0.9  # An engine that reaches less of the baseline's pace on one process is worth a word
_FAR = 1000  # Runs that must be longer than this many times are not worth a figure


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
    if any(each.once for each in point.speedup.values()):
        again = f": {repeat}" if repeat else ""
        return (*_trusted(curve, point, known, where), f"That is one launch each, and launches differ{again}.")
    return _trusted(curve, point, known, where)


def _trusted(curve: Curve, point: ScalingPoint, known: dict[str, float], where: str) -> tuple[str, ...]:
    if "steady" not in known:
        return (f"There are no rates: {_values(known)} {where} mix steady speed with one-time cost.",)
    if "train" not in known:
        return (
            f"Only the steady speedup is known, {known['steady']:.2f}x {where}: it holds for long runs; "
            "start-up cost is not included.",
        )
    if all(abs(value / known["steady"] - 1) < _CLOSE for value in known.values()):
        once = any(each.once for each in point.speedup.values())
        return (f"All agree {where} ({_values(known)}){'' if once else ': any of them may be quoted'}.",)
    return (
        f"{_values(known)} {where}: each answers its own question.",
        _for_long_runs(point, known),
        _for_short_runs(curve, known),
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
    for name, longer in point.longer_for_90.items():
        factor = longer.value
        if factor > 1:
            times = f"more than {_FAR:,}" if factor > _FAR else f"{factor:.0f}" if factor >= 10 else f"{factor:.1f}"
            reasons.append(f"{SPEEDUP_NAMES[name]} would reach 90 % of it in a run {times} times longer")
    return f"For a long training trust steady, {steady:.2f}x: {'; '.join(reasons)}."


def _for_short_runs(curve: Curve, known: dict[str, float]) -> str:
    name = "end_to_end" if "end_to_end" in known else "train"
    job, value = ("jobs" if name == "end_to_end" else "runs"), known[name]
    would = "would take" if curve.scaling == "weak" else "took"
    base = plural(curve.baseline_np or 1, "process")
    if abs(value - 1) < 0.02:
        what = f"no faster than {base}"
    elif value > 1:
        what = f"for the same work {base} {would} {value:.2f} times as long"
    else:
        what = f"it took {1 / value:.2f} times as long as {base} {'would' if would != 'took' else 'did'}"
    return f"For {job} as short as this one trust {SPEEDUP_NAMES[name]}, {value:.2f}x: {what}."


def _values(known: dict[str, float]) -> str:
    return ", ".join(f"{value:.2f}x {SPEEDUP_NAMES[name]}" for name, value in known.items())


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


def _reported(fact: str, seen: str, estimate: Estimate, repeat: str) -> str:
    """The fact where intervals bear it, else what was seen and in how many launches."""
    if estimate.once:
        return f"in one launch each {seen}; launches differ" + (f": {repeat}" if repeat else "")
    return fact if estimate.interval == "t" else f"in {plural(estimate.count, 'launch')} {seen}"


def _of_point(point: ScalingPoint, curve: Curve, repeat: str) -> str:
    where = plural(point.np, "process")
    if curve.baseline_np is None or (point.np == curve.baseline_np and point.engine == curve.baseline_engine):
        return ""
    steady, end = point.speedup.get("steady"), point.speedup.get("end_to_end")
    if point.np == curve.baseline_np:
        if steady and steady.high < _COSTLY:
            costs = f"{point.engine} itself costs {100 * (1 - steady.value):.0f} % of the pace on {where}"
            reached = f"{point.engine} reached {100 * steady.value:.0f} % of the pace without it on {where}"
            return _reported(costs, reached, steady, repeat)
        return ""
    if steady and steady.high < 1:
        rest = f"slower than {curve.baseline_np} even in steady state ({steady.value:.2f}x)"
        return _reported(f"{where} are {rest}", f"{where} were {rest}", steady, repeat)
    if end and end.high < 1 and steady and steady.low > 1 + _CLOSE:
        later = f"this job later than {curve.baseline_np} ({end.value:.2f}x end to end)"
        pays = point.break_even.get("end_to_end")
        pace = f"{steady.value:.2f}x"
        pace += f"; it pays from {pays.value:,.0f} {curve.work_unit} on" if pays and pays.value else ""
        return _reported(
            f"{where} finish {later} although their steady pace is {pace}",
            f"{where} finished {later} although their steady pace was {pace}",
            end,
            repeat,
        )
    return ""


def _engines(curves: Sequence[Curve], repeat: str) -> list[str]:
    """Engines on the most processes that several of them ran on, compared round by round."""
    ratios = engine_ratios(curves)
    most = max((each.np for each in ratios), default=0)
    found = []
    for each in ratios:
        if each.np == most:
            batch = f", batch {each.batch:g} each" if each.batch is not None else ""
            where = f"on {plural(each.np, 'process')}{batch}"
            times = f"{each.ratio.value:.2f} times as fast as {each.than}"
            if each.ratio.interval == "t":
                times += f" ({percent(MEASURED)} interval {each.ratio.low:.2f} to {each.ratio.high:.2f})"
            apart = each.ratio.low > 1
            fact = (
                f"{where} {each.engine} is {times}"
                if apart
                else f"{where} {each.engine} and {each.than} are not told apart: {times}"
            )
            found.append(_reported(fact, f"{where} {each.engine} was {times}", each.ratio, repeat))
    return found


def _best_batch(curves: Sequence[Curve], repeat: str) -> list[str]:
    """The fastest batch on the smallest number of processes, when several were tried."""
    found = best_batch(curves)
    if found is None:
        return []
    also = f"; batch {', '.join(f'{size:g}' for size in found.rivals)} may be as good" if found.rivals else ""
    rest = f"fastest with batch {found.batch:g}: {format_rate(found.rate.value)} samples/s{also}"
    where = plural(found.np, "process")
    is_, was = ("is", "was") if found.np == 1 else ("are", "were")
    return [_reported(f"{where} {is_} {rest}", f"{where} {was} {rest}", found.rate, repeat)]
