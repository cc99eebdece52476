"""Scaling in the terminal: the answer's curve and its reasons, or every table and what it means in sentences."""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any

from rich.console import Console

from scalescope.records.run import PHASES
from scalescope.records.scaling import (
    QUESTIONS,
    SPEEDUP_NAMES,
    SPEEDUPS,
    BreakEven,
    Curve,
    Estimate,
    Fit,
    Scaling,
    ScalingPoint,
)
from scalescope.report.measurement import sentence
from scalescope.report.phrases import (
    baseline_words,
    curve_estimates,
    curve_title,
    curves_in_order,
    engine_name,
    fastest,
    has_spread,
    interval_note,
    largest,
    number,
    other_efficiency,
    points_with_phases,
    step_name,
    told_seconds,
    waterfall_steps,
    with_interval,
)
from scalescope.report.terminal import Answer, answered, bullet, reasons, say, section, table
from scalescope.text import listed, plural
from scalescope.units import format_rate, format_seconds

_WORTH_LONGER = 0.05  # Part of the train time that must be fixed cost before longer runs are foretold
_MOST_ROWS = 8  # Of a curve's table, without --details


def show(scaling: Scaling, console: Console, *, details: bool = False) -> None:
    """The curve that the answer speaks of and why; with `details` all curves, phases, findings and warnings."""
    if details:
        _show_all(scaling, console)
        return
    if curve := told_curve(scaling):
        _show_curve(curve, console, _MOST_ROWS)
        note = interval_note(curve_estimates(curve), t="± or [ ]", span="in parentheses")
        if note:
            say(console, note, "dim")
    count = len(scaling.curves)
    others = f"{plural(count - 1, 'other curve')}, " if count > 1 else ""
    more = f"{others}phases, one-time cost, break-even and what each speedup answers"
    reasons(console, answer(scaling), more if count else "")


def answer(scaling: Scaling) -> Answer:
    """The fastest point, what stands between it and the ideal, and which speedup to trust."""
    why: list[str] = []
    if curve := told_curve(scaling):
        point = largest(curve)
        why = [_waterfall_words(point)] if point else []
        why += [*(scaling.trust[1:2] or scaling.trust[:1]), *scaling.findings[:1]]
        why += [_ninety_words(point)] if point else []
    return answered(sentence(scaling), why, warnings=scaling.warnings)


def told_curve(scaling: Scaling) -> Curve | None:
    """The curve that the answer speaks of."""
    best, curves = fastest(scaling), curves_in_order(scaling)
    return best[0] if best else curves[0] if curves else None


def _show_all(scaling: Scaling, console: Console) -> None:
    for curve in curves_in_order(scaling):
        console.print()
        _show_curve(curve, console)
        for line in curve_lines(curve):
            bullet(console, line)
    if phases := _phase_rows(scaling):
        several = any(point.launches > 1 for curve in scaling.curves for point in curve.points)
        console.print()
        over = "mean over ranks and launches" if several else "mean over ranks"
        say(console, f"Where the wall time went, in seconds ({over})", "bold")
        table(phases, console, tight=True)
    asked = [
        name for name in SPEEDUPS if any(name in point.speedup for each in scaling.curves for point in each.points)
    ]
    answers = [f"{SPEEDUP_NAMES[name]}: {QUESTIONS[name]}" for name in asked] if len(asked) > 1 else []
    section(console, "What each speedup answers", answers)
    section(console, "Which to trust", scaling.trust)
    section(console, "What stands out", scaling.findings)
    section(console, "Warnings", scaling.warnings, style="yellow")


def _show_curve(curve: Curve, console: Console, most: int | None = None) -> None:
    """Its table, or that there is none; of many rows the first and the last ones."""
    columns = _columns(curve)
    if len(columns) < 2:
        say(console, f"{curve_title(curve)}: no speeds are known")
        return
    relative = f", relative to {base}" if (base := baseline_words(curve)) else ""
    say(console, curve_title(curve) + relative, "bold")
    rows = [[cell or "-" for cell in cells] for cells in zip(*columns.values(), strict=True)]
    if most and len(rows) > most:
        rows = [rows[0], ["..."] * len(columns), *rows[2 - most :]]
    table([list(columns), *rows], console, (), tight=True)


def curve_lines(curve: Curve) -> list[str]:
    """What a curve says below its table, a line each: intervals, fit, waterfall, how long a run must be, notes."""
    point = largest(curve)
    lines = [interval_note(curve_estimates(curve), t="± or [ ]", span="in parentheses")]
    lines += [_mean_words(curve), _warmup_words(curve)]
    if curve.fit:
        lines += [_fit_words(curve.fit, curve.work_unit), _longer_words(curve.fit)]
    if point:
        lines += [_waterfall_words(point), _ninety_words(point)]
    lines += [_one_time_words(curve)]
    lines += [_break_even_words(curve, name) for name in SPEEDUPS]
    notes = {note: [each.np for each in curve.points if note in each.notes] for note in _notes(curve)}
    lines += [f"on {listed(counts)}: {note}" for note, counts in notes.items()]
    return [line for line in lines if line]


def _phase_rows(scaling: Scaling) -> list[list[str]]:
    """Where the wall time of every point went, heading first; a measurement knows."""
    points = points_with_phases(scaling)
    shown = [phase for phase in PHASES if any(point.phases.get(phase, 0.0) >= 0.005 for point in points.values())]
    if not points or scaling.source != "measurement":
        return []
    names = {"warmup": "warm-up", "evaluation": "eval"}
    rows = [["", *(names.get(phase, phase) for phase in shown), "wall"]]
    for label, point in points.items():
        cells = [f"{point.phases.get(phase, 0.0):.2f}" for phase in shown]
        rows.append([label, *cells, "-" if point.wall_s is None else f"{point.wall_s:.2f}"])
    return rows


def _columns(curve: Curve) -> dict[str, list[str]]:
    """Cells by heading; columns that nothing is known for are left out."""
    points = curve.points

    def cells(write: Callable[[Any], str], values: Sequence[Any]) -> list[str]:
        return [write(value) if value is not None else "" for value in values]

    columns = {
        "np": [_processes(point, curve) for point in points],
        "nodes": cells(_count, [point.nodes for point in points]),
        "batch": cells(_count, [point.batch for point in points]),
        step_name(curve): cells(lambda each: format_seconds(each.value), [point.step_s for point in points]),
        "samples/s": cells(lambda each: format_rate(each.value), [point.throughput for point in points]),
        "eff%": cells(lambda each: number(100 * each.value, 0), [point.efficiency for point in points]),
    }
    columns |= {f"{name} s": cells(_count, told) for name, told in told_seconds(curve).items()}
    for name in SPEEDUPS:
        columns[SPEEDUP_NAMES[name]] = cells(
            partial(with_interval, plus_minus="±"), [point.speedup.get(name) for point in points]
        )
    return {heading: column for heading, column in columns.items() if any(column)}


def _processes(point: ScalingPoint, curve: Curve) -> str:
    return f"{point.np:,}" + ("" if point.engine == curve.engine else f" {engine_name(point.engine)}")


def _count(value: float) -> str:
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _fit_words(fit: Fit, unit: str) -> str:
    errors = fit.fixed_s_error is not None and fit.work_error is not None
    fixed = _plus_minus(fit.fixed_s, fit.fixed_s_error, 2)
    work = _plus_minus(fit.work, fit.work_error, 0 if fit.work >= 1000 else 2)
    sentence = f"fixed cost {fixed} s per run and {work} {unit} of work"
    sentence += " (standard errors)" if errors else ""
    counts = sorted(map(int, fit.fixed_share))
    shares = [f"{100 * fit.fixed_share[str(np)]:.0f} %" for np in counts]
    if len(counts) > 1 and fit.fixed_s > 0:
        sentence += f"; the fixed part is {shares[0]} of the train time on {counts[0]} and {shares[-1]} on {counts[-1]}"
    return sentence


def _plus_minus(value: float, error: float | None, decimals: int) -> str:
    return number(value, decimals) + ("" if error is None else f" +- {number(error, decimals)}")


def _longer_words(fit: Fit) -> str:
    """What longer runs would reach on the most processes."""
    most = max(fit.longer, key=int, default="")
    if fit.fixed_share.get(most, 0.0) < _WORTH_LONGER:
        return ""
    reached = sorted((float(times), speedup) for times, speedup in fit.longer[most].items())
    times = " / ".join(f"{each:g}" for each, _ in reached)
    speedups = " / ".join(number(each, 1) for _, each in reached)
    return f"a run {times} times longer would reach a train speedup of {speedups} on {most}" if reached else ""


def _waterfall_words(point: ScalingPoint) -> str:
    """`ideal 32.00 - 1.90 lost efficiency = 30.10 steady - ... = 1.85 end to end`."""
    words = []
    for step in waterfall_steps(point):
        if step.kind == "ideal":
            words.append(f"ideal {number(step.end, 2)}")
        elif step.kind in ("loss", "gain"):
            sign = "-" if step.kind == "loss" else "+"
            words.append(f"{sign} {number(abs(step.end - step.start), 2)} {step.name}")
        else:
            words.append(f"= {number(step.end, 2)} {step.name}")
    return " ".join(words)


def _ninety_words(point: ScalingPoint) -> str:
    longer = {SPEEDUP_NAMES.get(name, name): times for name, times in point.longer_for_90.items()}
    needed = [f"{_times(each.value)} longer ({name}{_sure(each)})" for name, each in longer.items() if each.value > 1]
    there = " and ".join(name for name, each in longer.items() if each.value <= 1)
    where = f"on {plural(point.np, 'process')}"
    if needed:
        already = f"; {there} has it already" if there else ""
        return f"{where} 90 % of the steady speedup needs a run {' or '.join(needed)}{already}"
    return f"{where} this run reaches 90 % of the steady speedup already ({there})" if there else ""


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor >= 10 else f"{factor:.1f} times"


def _break_even_words(curve: Curve, name: str) -> str:
    """After how much work larger sizes overtake the baseline; not a word on those that lead from the start."""
    sizes: dict[str, list[int]] = {}
    for point in curve.points:
        if point.engine == curve.engine and name in point.break_even and point.np > (curve.baseline_np or 0):
            found = point.break_even[name]
            if found.value is None or found.value > 0:
                sizes.setdefault(_when(found, curve.work_unit), []).append(point.np)
    late = "; ".join(f"{when} on {listed(counts)}" for when, counts in sizes.items())
    return f"break-even with {baseline_words(curve)}, {SPEEDUP_NAMES[name]}: {late}" if late else ""


def _when(found: BreakEven, unit: str) -> str:
    """`after 26 epochs`, `after 5,200 samples (4,100 to 7,900)`, `never (or after 9,000 or more)`."""
    if found.value is None:
        return "never" if found.low is None or found.count == 1 else f"never (or after {_amount(found.low)} or more)"
    told = f"after {_amount(found.value)} {unit}"
    if found.count == 1:
        return told
    low = _amount(found.low or 0.0)
    return f"{told} ({low} to {_amount(found.high)})" if found.high is not None else f"{told} ({low} or more, or never)"


def _one_time_words(curve: Curve) -> str:
    """What every size pays once; where a fit tells one cost for all, that is said instead."""
    known = [(point, point.one_time_s) for point in curve.points if point.one_time_s]
    if curve.fit or not known:
        return ""
    parts = [f"{number(each.value, 2)} s{_range(each)} on {_processes(point, curve)}" for point, each in known]
    return f"one-time cost: {', '.join(parts)}"


def _range(estimate: Estimate) -> str:
    return f" ({number(estimate.low, 2)} to {number(estimate.high, 2)})" if has_spread(estimate) else ""


def _sure(estimate: Estimate) -> str:
    return f", {_times(estimate.low).removesuffix(' times')} to {_times(estimate.high)}" if has_spread(estimate) else ""


def _amount(work: float) -> str:
    """A whole number; a few epochs are rounded up, because after fewer it is not yet so."""
    return f"{ceil(work) if work < 100 else round(work):,}"


def _mean_words(curve: Curve) -> str:
    """Efficiency by median steps, or by mean ones in logs, where it is another one: then steps come in two kinds."""
    others = {point.np: other for point in curve.points if (other := other_efficiency(point))}
    told = [f"{100 * value:.0f} % on {np}" for np, (_, value) in others.items()]
    return f"by {next(iter(others.values()))[0]} steps the efficiency is {', '.join(told)}" if told else ""


def _warmup_words(curve: Curve) -> str:
    """How many first steps were found to be warm-up."""
    found = [point for point in curve.points if point.warmup_steps is not None]
    counts: dict[int, list[str]] = {}
    for point in found:
        counts.setdefault(point.warmup_steps or 0, []).append(_processes(point, curve))
    told = "; ".join(f"{plural(steps, 'step')} on {listed(sizes)}" for steps, sizes in sorted(counts.items()))
    return f"warm-up, found in the step times and left out of steady: {told}" if told else ""


def _notes(curve: Curve) -> list[str]:
    return list(dict.fromkeys(note for point in curve.points for note in point.notes))
