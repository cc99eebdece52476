"""Two results side by side: the times that both have, how they differ, and whether that is more than noise."""

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple

import msgspec

from scalescope.errors import UsageError
from scalescope.records.comparison import TOLERANCE, Comparison, Pair, Ratio, Verdict
from scalescope.records.explanation import Explanation
from scalescope.records.job import NO_ENGINE
from scalescope.records.prediction import Prediction
from scalescope.records.results import Results
from scalescope.records.scaling import Estimate, Scaling, ScalingPoint
from scalescope.records.timeline import Breakdown, parts_of
from scalescope.records.tuning import Tuning
from scalescope.stats import FEWEST, PREDICTED, half_width, normal_width
from scalescope.text import plain, plural

_FEWEST_OF_A_RANGE = 3  # Launches below which a range says nothing
_BLOCKS = 10  # Into which the steps of a trace are cut: neighbouring steps are alike
_VISIBLE = 0.005  # Parts below it in both steps are left out
_ONCE = "fewer than 3 launches each: repeat with --launches 5"
_ONE_TRACE = "one traced launch each, and launches differ: measure both with --launches 5"
_NO_SPREAD = "no spread is known"


class Timed(NamedTuple):
    """A time with its interval, in seconds."""

    value: float
    low: float
    high: float
    note: str = ""  # Why the interval decides nothing


Times = dict[str, Timed]


def compare(a: Results, b: Results, tolerance: float = TOLERANCE) -> Comparison:
    """Every time that both results have.

    Args:
        a: What was there before.
        b: What is there now.
        tolerance: A change within this fraction is none.

    Raises:
        UsageError: They have nothing in common.
    """
    pairs: list[Pair] = []
    notes: list[str] = []
    if a.scaling and b.scaling:
        pairs += _matched(*_of_scalings(a.scaling, b.scaling), tolerance)
    if a.explanations and b.explanations:
        pairs += _of_traces(a, b, tolerance)
        notes += _findings(a.explanations[-1], b.explanations[-1])
    if a.tuning and b.tuning:
        pairs += _matched(_tuned(a.tuning), _tuned(b.tuning), tolerance)
    launched = a.scaling and b.scaling  # which decides
    if (a.prediction and b.prediction and not launched) or (not pairs and (a.prediction or b.prediction)):
        predicted, why = _of_predictions(a, b, tolerance)
        pairs += predicted
        notes += why
    if not pairs:
        raise UsageError(_nothing_in_common(a, b))
    doubts = [f"{plain(each.name, 60)}: {each.scaling.doubt}" for each in (a, b) if each.scaling and each.scaling.doubt]
    pairs = _undecided(pairs, " ".join(doubts))
    return Comparison(a=a.name, b=b.name, tolerance=tolerance, pairs=tuple(pairs), notes=tuple(notes))


def _undecided(pairs: list[Pair], why: str) -> list[Pair]:
    """The same pairs, of which none decides where there is a reason."""
    return [msgspec.structs.replace(each, verdict="undecided", note=why) for each in pairs] if why else pairs


def _nothing_in_common(a: Results, b: Results) -> str:
    if a.scaling and b.scaling and a.scaling.source == b.scaling.source == "logs":
        first, second = (", ".join(map(str, sorted(_counts(each.scaling)))) for each in (a, b) if each.scaling)
        if first != second:
            sizes = f"{plain(a.name)} is of {first}, {plain(b.name)} of {second} processes"
            return f"{sizes}: scalescope explain A B puts them together"
    return (
        f"{plain(a.name)} ({_holds(a)}) and {plain(b.name)} ({_holds(b)}) have no time in common: "
        "compare results of the same verb, or an estimate with a measurement"
    )


def _counts(scaling: Scaling) -> set[int]:
    return {point.np for curve in scaling.curves for point in curve.points}


def _holds(results: Results) -> str:
    return ", ".join(sorted(results.kinds)) or "nothing"


def _matched(a: Mapping[str, Timed], b: Mapping[str, Timed], tolerance: float) -> list[Pair]:
    return [_pair(what, a[what], b[what], tolerance) for what in a if what in b]


def _pair(what: str, a: Timed, b: Timed, tolerance: float, *, is_part: bool = False) -> Pair:
    note = a.note or b.note
    if a.value <= 0 or b.value <= 0:
        return Pair(what=what, a=a.value, b=b.value, ratio=None, verdict="undecided", is_part=is_part, note=note)
    ratio, most = _ratio(a, b), 1 + tolerance
    verdict: Verdict = "undecided"  # an interval that reaches over the tolerance decides nothing
    if not note and ratio.low > most:
        verdict = "slower"
    elif not note and ratio.high < 1 / most:
        verdict = "faster"
    elif not note and 1 / most <= ratio.low and ratio.high <= most:
        verdict = "same"
    return Pair(what=what, a=a.value, b=b.value, ratio=ratio, verdict=verdict, is_part=is_part, note=note)


def _ratio(a: Timed, b: Timed) -> Ratio:
    """Both intervals are independent, so that relative half-widths add in quadrature."""
    value = b.value / a.value
    down = math.hypot(math.log(b.value / max(b.low, 1e-12)), math.log(max(a.high, a.value) / a.value))
    up = math.hypot(math.log(max(b.high, b.value) / b.value), math.log(a.value / max(a.low, 1e-12)))
    return Ratio(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def _of_scalings(a: Scaling, b: Scaling) -> tuple[Times, Times]:
    """Steps of the same configurations; of the same sizes where engines differ; else the fastest of each."""
    exact = _steps(a, lambda point: _named(point)), _steps(b, lambda point: _named(point))
    if exact[0].keys() & exact[1].keys():
        return exact
    alike = _steps(a, _size), _steps(b, _size)
    if alike[0].keys() & alike[1].keys():
        return alike
    rated = [
        [(point.throughput.value, point) for curve in each.curves for point in curve.points if point.throughput]
        for each in (a, b)
    ]
    if not all(rated):
        return {}, {}
    (_, first), (_, second) = (max(each, key=lambda one: one[0]) for each in rated)
    what = f"a sample: {_named(first)} against {_named(second)}"
    return {what: _per_sample(first)}, {what: _per_sample(second)}


def _per_sample(point: ScalingPoint) -> Timed:
    rate = point.throughput
    assert rate is not None
    return Timed(1 / rate.value, 1 / rate.high, 1 / rate.low, _note(rate))


def _steps(scaling: Scaling, name: Callable[[ScalingPoint], str]) -> Times:
    """Step times by name; a table without steps gives what it has instead."""
    found: Times = {}
    for curve in scaling.curves:
        for point in curve.points:
            if point.step_s:
                found.setdefault(f"step of {name(point)}", _of_estimate(point.step_s))
            elif point.throughput:
                found.setdefault(f"sample of {name(point)}", _per_sample(point))
            else:
                why = _ONCE if point.launches < _FEWEST_OF_A_RANGE else _NO_SPREAD
                for what, seconds in (("training", point.train_s), ("total time", point.wall_s)):
                    if seconds:
                        found.setdefault(f"{what} of {name(point)}", Timed(seconds, seconds, seconds, why))
    return found


def _of_estimate(estimate: Estimate) -> Timed:
    return Timed(estimate.value, estimate.low, estimate.high, _note(estimate))


def _note(estimate: Estimate) -> str:
    return _ONCE if estimate.interval == "range" and estimate.count < _FEWEST_OF_A_RANGE else ""


def _named(point: ScalingPoint) -> str:
    engine = {"": "", NO_ENGINE: ""}.get(point.engine, f" x {plain(point.engine, 24)}")
    nodes = f" on {plural(point.nodes, 'node')}" if point.nodes and point.nodes > 1 else ""
    return f"{point.np:,}{engine or ' alone'}{nodes}{_batch(point)}" if engine or point.np == 1 else _size(point)


def _size(point: ScalingPoint) -> str:
    return f"{plural(point.np, 'process')}{_batch(point)}"


def _batch(point: ScalingPoint) -> str:
    return "" if point.batch is None else f", batch {point.batch:g}" + (" each" if point.np > 1 else "")


def _as_cells(scaling: Scaling, engine: str) -> Times:
    """Measured steps by the names of cells."""
    return {
        _cell_name(curve.scaling, point.np, int(point.batch or 0)): _of_estimate(point.step_s)
        for curve in scaling.curves
        for point in curve.points
        if point.step_s and point.engine == (NO_ENGINE if point.np == 1 else engine)
    }


def _of_predictions(a: Results, b: Results, tolerance: float) -> tuple[list[Pair], list[str]]:
    """Cells that both know, by what was measured before what was predicted; and why they cannot be compared."""
    known = next(each.prediction for each in (a, b) if each.prediction)
    cells = [_cells(each.prediction) if each.prediction else {} for each in (a, b)]
    launched = [_as_cells(each.scaling, known.engine) if each.scaling else {} for each in (a, b)]
    first, second = (predicted | measured for predicted, measured in zip(cells, launched, strict=True))
    names = {what: what if any(what in each for each in launched) else f"predicted step, {what}" for what in first}
    pairs = [_pair(names[what], first[what], second[what], tolerance) for what in first if what in second]
    notes = [
        f"{plain(each.name, 60)}: its prediction is not to be trusted: {plain('; '.join(each.prediction.doubts), 200)}"
        for each in (a, b)
        if each.prediction and each.prediction.doubts
    ]
    why = "a prediction is not to be trusted" if notes else ""
    if _machine(a) != _machine(b) and all(map(_machine, (a, b))):
        why = "they are predicted for different machines or threads"
        notes.append(f"{why}: {plain(a.name, 60)} for {_machine(a)}, {plain(b.name, 60)} for {_machine(b)}")
    return _undecided(pairs, why), notes if pairs else []


def _machine(results: Results) -> str:
    """The machine that a prediction is for: `cpu-4x2, 2 nodes, 4 threads a process`; empty where there is none."""
    if not (prediction := results.prediction):
        return ""
    size = f"{plural(prediction.nodes, 'node')} of {plural(prediction.slots_per_node, 'process')}"
    return f"{plain(prediction.cluster, 60)} ({size}, {plural(prediction.threads_per_rank, 'thread')} each)"


def _cells(prediction: Prediction) -> Times:
    return {
        _cell_name(cell.scaling, cell.np, cell.batch, cell.engine): Timed(cell.step_s, cell.low_s, cell.high_s)
        for cell in prediction.cells
        if cell.fits
    }


def _cell_name(scaling: str, np: int, batch: int, engine: str = "") -> str:
    of = f", {plain(engine, 24)}" if engine else ""
    return f"{scaling} scaling, {plural(np, 'process')}, batch {batch:,}" + (" each" if np > 1 else "") + of


def _tuned(tuning: Tuning) -> Times:
    """The default's and the best step, each with the spread of its samples."""
    found: Times = {}
    for name, step, own in (
        ("step of the default", tuning.default_step_s, {}),
        ("step of the tuned setting", tuning.winner_step_s or tuning.default_step_s, tuning.values),
    ):
        errors = [each.error_s for each in tuning.samples if each.values == own and each.error_s]
        if step:
            half = normal_width(PREDICTED) * min(errors, default=0.0)
            found[name] = Timed(step, max(step - half, 1e-12), step + half, "" if errors else _NO_SPREAD)
    return found


def _of_traces(first: Results, second: Results, tolerance: float) -> list[Pair]:
    """The step, and its parts that can be seen, in one accounting; one launch each, which decides nothing.

    Where both measured the step too, the traced one is a part: what was measured decides.
    """
    a, b = first.explanations[-1], second.explanations[-1]
    if a.accounting is None or b.accounting is None:
        return []
    measured = _is_measured(first) and _is_measured(second)
    what = f"{'traced ' if measured else ''}step of {_job(a, b)}"
    pairs = [_pair(what, _part(a, "step_s"), _part(b, "step_s"), tolerance, is_part=measured)]
    for part in parts_of([a.accounting, b.accounting]):
        shares = part.share(a.accounting), part.share(b.accounting)
        if None not in shares and max(share or 0.0 for share in shares) >= _VISIBLE:
            pairs.append(_pair(part.name, _part(a, part.field), _part(b, part.field), tolerance, is_part=True))
    return pairs


def _is_measured(results: Results) -> bool:
    """True if steps of the setting of the last trace were measured too."""
    if not results.scaling:
        return False
    trace, batch = results.explanations[-1], results.traced_batches[-1]
    ranks = trace.world_size or len(trace.ranks)
    return any(
        point.step_s and point.np == ranks and point.engine == trace.engine and batch in (None, point.batch)
        for curve in results.scaling.curves
        for point in curve.points
    )


def _job(a: Explanation, b: Explanation) -> str:
    """`2 ranks, ddp over gloo`, or what both are where they differ."""
    names = [
        f"{plural(each.world_size or len(each.ranks), 'rank')}, {plain(each.engine, 24)}"
        + (f" over {plain(each.backend, 24)}" if each.backend else "")
        for each in (a, b)
    ]
    return names[0] if names[0] == names[1] else f"{names[0]} against {names[1]}"


def _part(explanation: Explanation, field: str) -> Timed:
    """The mean over steady steps and ranks; its interval, of blocks of steps, does not hold how launches differ."""
    whole: Breakdown = explanation.accounting  # type: ignore[assignment]  # its caller has looked
    mean = float(getattr(whole, field) or 0.0)
    by_step: dict[int, list[float]] = {}
    for step in explanation.steps:
        by_step.setdefault(step.index, []).append(getattr(step.parts, field) or 0.0)
    series = [fmean(values) for _, values in sorted(by_step.items())][explanation.warmup_steps :]
    size = max(1, len(series) // _BLOCKS)
    blocks = [fmean(series[at : at + size]) for at in range(0, len(series) - size + 1, size)]
    if len(blocks) < FEWEST:
        return Timed(mean, mean, mean, f"fewer than {FEWEST} steady steps: trace more")
    half = half_width(blocks)
    return Timed(mean, max(mean - half, 1e-12), mean + half, _ONE_TRACE)


def _findings(a: Explanation, b: Explanation) -> list[str]:
    """Findings of one of them only."""
    first, second = ({finding.id: finding for finding in each.findings} for each in (a, b))
    new = [f"new: {plain(second[each].sentence, 200)}" for each in second if each not in first]
    return [*new, *(f"gone: {plain(first[each].sentence, 200)}" for each in first if each not in second)]
