"""From a measurement to its curves: what is compared with what, when enough launches were made, what they say.

Decided from the runs alone, so that a resumed measurement decides alike.
"""

import random
from collections.abc import Sequence

from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import Observation, observe
from scalescope.measurement.replication import baseline_of, is_vague, series_of, warnings_of
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.job import NO_ENGINE
from scalescope.records.request import QUICK_PRECISION, MeasureRequest
from scalescope.records.run import Failure, Measurement, Point, Run
from scalescope.records.scaling import REPEAT, Curve, Scaling
from scalescope.stats import FEWEST
from scalescope.text import plural

_GIVEN_UP_AFTER = 2  # Failed launches after which a point is left out


def points_of_round(
    number: int, planned: Sequence[Point], runs: Sequence[Run], failures: Sequence[Failure], request: MeasureRequest
) -> list[Point]:
    """Which points the round launches, in shuffled order; none: the measurement is over."""
    if number > request.most_launches:
        return []
    before = [run for run in runs if run.round < number]
    wanted = [point for point in planned if not _is_given_up(point, before, failures, number)]
    if request.precision and number > FEWEST and not request.quick:
        vague = _vague(wanted, before, request) & set(wanted)
        needed = {baseline_of(point, scaling, planned) for point in vague for scaling in request.scaling}
        wanted = [point for point in wanted if point in vague or point in needed]
        wanted = wanted if vague else []
    random.Random(f"{request.seed}/{number}").shuffle(wanted)
    return wanted


def _is_given_up(point: Point, runs: Sequence[Run], failures: Sequence[Failure], number: int) -> bool:
    failed = sum(failure.point == point and failure.round < number for failure in failures)
    return failed >= _GIVEN_UP_AFTER or (failed > 0 and not any(run.point == point for run in runs))


def _vague(planned: Sequence[Point], runs: Sequence[Run], request: MeasureRequest) -> set[Point]:
    """Points whose steady speedup, or step time when there is nothing to compare with, is not known enough."""
    series = series_of(planned, request.scaling, runs)
    return {each.point for each in series if is_vague(each, request.precision or 0)}


def why_it_stopped(
    request: MeasureRequest, planned: Sequence[Point], runs: Sequence[Run], *, budget_spent: bool
) -> str:
    """One sentence for the record."""
    if request.quick:
        return f"{plural(request.most_launches, 'launch')} of every point, in interleaved blocks"
    if budget_spent:
        return "the budget was spent"
    made = plural(max((run.round for run in runs), default=0), "launch")
    if not request.precision:
        return f"{made} of every point were asked for"
    if _vague(planned, runs, request):
        return f"{made} were made and some speedups are less certain than asked"
    return f"every steady speedup is known within {100 * request.precision:.3g} %"


_BUSY = 0.1  # Part of the machine that others may take before it is said


def study(measurement: Measurement) -> Scaling:
    """Everything a measurement says about scaling."""
    noted = (*measurement.warnings, *_foreign_load(measurement.runs), *_failed_once(measurement))
    points = tuple(dict.fromkeys(run.point for run in measurement.runs))
    noted += tuple(warnings_of(points, measurement.scaling, () if measurement.quick else measurement.runs))
    noted += tuple(_warnings_of(measurement.runs))  # under the names of the launches' folders
    measurement = measurement.as_seen()
    runs = measurement.runs
    doubt = _doubt(runs)
    curves = tuple(_quick_curves(measurement) if measurement.quick else _curves(measurement))
    return Scaling(
        what=measurement.what,
        source="quick" if measurement.quick else "measurement",
        curves=curves,
        doubt=doubt,
        trust=(doubt,) if doubt else which_to_trust(curves, quick=measurement.quick, repeat=REPEAT),
        findings=what_stands_out(curves, repeat=REPEAT),
        warnings=noted,
    )


def _curves(measurement: Measurement) -> list[Curve]:
    points = tuple(dict.fromkeys(run.point for run in measurement.runs))
    # one process without an engine is the baseline of the others; several without one are a curve of their own
    compared = [point for point in points if point.engine != NO_ENGINE or point.np > 1] or points
    engines = list(dict.fromkeys(point.engine for point in compared))
    curves = []
    for scaling in measurement.scaling:
        for batch in measurement.batch or (None,):
            for engine in engines:
                own = [point for point in points if point.engine == engine and _belongs(point, scaling, batch)]
                if own:
                    curves.append(_curve(measurement, points, own, scaling, batch))
    return curves


def _belongs(point: Point, scaling: str, batch: int | None) -> bool:
    return batch is None or batch == (point.global_batch if scaling == "strong" else point.batch)


def _curve(
    measurement: Measurement, points: Sequence[Point], own: Sequence[Point], scaling: str, batch: int | None
) -> Curve:
    baseline = baseline_of(own[-1], scaling, points)
    baseline = None if [baseline] == own else baseline  # one point alone has nothing to be compared with
    among = {*own, baseline}
    runs = [run for run in measurement.runs if run.point in among]
    nodes = measurement.named_hosts
    samples = all(run.throughput for run in runs)
    return make_curve(
        [observe(run, scaling=scaling, samples=samples, nodes=nodes) for run in runs],
        Frame(
            engine=own[0].engine,
            scaling=scaling,
            batch=batch,
            work_unit="samples" if samples else "steps",
            baseline_engine=baseline.engine if baseline else "",
            baseline_np=baseline.np if baseline else None,
            target=measurement.precision,
        ),
    )


def _quick_curves(measurement: Measurement) -> list[Curve]:
    """One process alone and all trained in interleaved blocks: a pair of blocks is a round, only steps are known."""
    scaling = measurement.scaling[0]
    groups: dict[tuple[str, int | None], list[Run]] = {}
    for run in measurement.runs:
        batch = run.point.global_batch if scaling == "strong" else run.point.batch
        groups.setdefault((run.point.engine, batch), []).append(run)
    curves = []
    for (engine, batch), runs in groups.items():
        observations: list[Observation] = []
        for run in sorted(runs, key=lambda each: each.point.np):
            alone_batch = float((run.point.global_batch if scaling == "strong" else run.point.batch) or 1)
            for alone_s, together_s in run.pairs:
                block = len(observations)
                observations += [
                    _block(NO_ENGINE, 1, block, alone_batch, alone_s, run),
                    _block(engine, run.point.np, block, float(run.point.global_batch or 1), together_s, run),
                ]
        frame = Frame(
            engine=engine,
            scaling=scaling,
            batch=batch,
            baseline_engine=NO_ENGINE,
            baseline_np=1,
            target=measurement.precision or QUICK_PRECISION,
            over="blocks",
        )
        curves.append(make_curve(observations, frame))
    return curves


def _block(engine: str, np: int, block: int, samples: float, step_s: float, run: Run) -> Observation:
    return Observation(
        engine=engine,
        np=np,
        round=block,
        rate=samples / step_s,
        work=samples,
        batch=samples / np,
        threads_per_rank=run.point.threads_per_rank,
        step_s=step_s,
        throughput=samples / step_s,
    )


def _doubt(runs: Sequence[Run]) -> str:
    """Ranks that never exchange gradients are no data-parallel training, whatever their speed."""
    counts = sorted({run.point.np for run in runs if run.exchanges is False})
    if not counts:
        return ""
    return (
        f"The ranks never exchanged gradients on {plural(counts[-1], 'process')}: each trained a model of its own, and "
        "speedups say nothing about data-parallel training; wrap the model in DistributedDataParallel on this device."
    )


def _foreign_load(runs: Sequence[Run]) -> tuple[str, ...]:
    loads = [run.load for run in runs if run.load]
    busy = [load for load in loads if load.foreign_cores > _BUSY * load.cores]
    if not busy:
        return ()
    worst = max(busy, key=lambda load: load.foreign_cores)
    return (
        f"the machine was not quiet: in {len(busy)} of {len(loads)} launches other processes took more than "
        f"{100 * _BUSY:.0f} % of it, {worst.foreign_cores:.2g} of {worst.cores} cores at worst; "
        "intervals are wider for it; measure again on an idle machine",
    )


def _failed_once(measurement: Measurement) -> list[str]:
    return [
        f"{failure.point.label}: a launch failed and was left out: {failure.problem}"
        for failure in measurement.failures
    ]


def _warnings_of(runs: Sequence[Run]) -> list[str]:
    """What was noted at launches, once per point, with how many launches it concerns."""
    launches: dict[tuple[str, str], int] = {}
    of_point: dict[str, int] = {}
    for run in runs:
        of_point[run.point.label] = of_point.get(run.point.label, 0) + 1
        for warning in run.warnings:
            key = (run.point.label, warning)
            launches[key] = launches.get(key, 0) + 1
    return [
        f"{label}: {warning}" + (f" (in {count} of {of_point[label]} launches)" if of_point[label] > 1 else "")
        for (label, warning), count in launches.items()
    ]
