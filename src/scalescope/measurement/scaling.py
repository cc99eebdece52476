"""The Scaling of a measurement: its curves, what they show, and the warnings of its launches."""

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter

from scalescope.errors import UsageError
from scalescope.measurement.curves import Frame, make_curve
from scalescope.measurement.observation import observe
from scalescope.measurement.replication import baseline_of, warnings_of
from scalescope.measurement.verdict import what_stands_out, which_to_trust
from scalescope.records.job import NO_ENGINE
from scalescope.records.run import Load, Measurement, Point, RankHost, Run
from scalescope.records.scaling import REPEAT, Curve, Scaling
from scalescope.text import plural
from scalescope.units import digits, format_share

_BUSY = 0.1  # Part of the machine that others may take before it is reported


def scaling_of(measurement: Measurement) -> Scaling:
    """Curves of a measurement with what they show.

    Raises:
        UsageError: Its launches only checked an estimate, by blocks of steps: they tell no wall time.
    """
    if measurement.quick:
        raise UsageError("these launches checked an estimate and are no measurement: name the estimate's folder")
    points = tuple(dict.fromkeys(run.point for run in measurement.runs))
    doubt, taken = _doubt(measurement.runs), _taken_by_others(measurement.runs)
    warnings = (
        *measurement.warnings,
        *((f"{taken}: measure again on an idle machine",) if taken and not is_disturbed(measurement.runs) else ()),
        *_apart(points, measurement),
        *_unlike_hosts(measurement.runs),
        *(
            f"{failure.point.label}: a launch failed and was left out: {failure.problem}"
            for failure in measurement.failures
        ),
        *warnings_of(points, measurement.scaling, measurement.runs),
        *_drift(measurement.runs),
        *_launch_warnings(measurement.runs),  # under the names of the launches' folders
    )
    curves = tuple(_curves(measurement.as_seen()))
    return Scaling(
        what=measurement.what,
        source="measurement",
        curves=curves,
        doubt=doubt,
        trust=(doubt,) if doubt else which_to_trust(curves, repeat=REPEAT),
        findings=() if doubt else what_stands_out(curves, repeat=REPEAT),
        warnings=warnings,
    )


def _curves(measurement: Measurement) -> list[Curve]:
    """One per kind of scaling, batch and engine."""
    points = tuple(dict.fromkeys(run.point for run in measurement.runs))
    # one process without an engine is the baseline of the others; several without one are a curve of their own
    compared = [point for point in points if point.engine != NO_ENGINE or point.np > 1] or points
    engines = list(dict.fromkeys(point.engine for point in compared))
    curves = []
    for scaling in measurement.scaling:
        for batch in measurement.batch or (None,):
            for engine in engines:
                own = [point for point in points if point.engine == engine]
                if batch is not None:
                    own = [each for each in own if batch == (each.global_batch if scaling == "strong" else each.batch)]
                if own:
                    curves.append(_curve(measurement, points, own, scaling, batch))
    return curves


def _curve(
    measurement: Measurement, points: Sequence[Point], own: Sequence[Point], scaling: str, batch: int | None
) -> Curve:
    baseline = baseline_of(own[-1], scaling, points)
    baseline = None if [baseline] == own else baseline  # one point alone has nothing to be compared with
    among = {*own, baseline}
    runs = [run for run in measurement.runs if run.point in among]
    notes = _pace_notes(runs)
    samples = all(run.throughput for run in runs)
    return make_curve(
        [
            observe(run, scaling=scaling, samples=samples, nodes=measurement.named_hosts, notes=notes[run.point])
            for run in runs
        ],
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


def _doubt(runs: Sequence[Run]) -> str:
    """A reason not to believe the speedups: ranks that never exchange gradients, or launches that were disturbed.

    An interval over launches is about launches such as these. Where other programs ran next to most of them, those of
    another hour give another speedup, outside of the interval.
    """
    counts = sorted({run.point.np for run in runs if run.exchanges is False})
    if counts:
        return (
            f"The ranks never exchanged gradients on {plural(counts[-1], 'process')}: each trained a model of its own, "
            "and speedups say nothing about data-parallel training; wrap the model in DistributedDataParallel on this "
            "device."
        )
    if is_disturbed(runs):
        return f"Not certain: {_taken_by_others(runs)}. No interval covers that: repeat it while nothing else runs."
    return ""


def is_disturbed(runs: Sequence[Run]) -> bool:
    """True where other programs took part of the machine in most launches."""
    return 2 * len(_disturbances(runs)) > sum(run.load is not None for run in runs)


def _disturbances(runs: Sequence[Run]) -> list[Load]:
    """The load of every launch during which other programs took a part of the machine that matters."""
    return [run.load for run in runs if run.load and run.load.foreign_cores > _BUSY * run.load.cores]


def _taken_by_others(runs: Sequence[Run]) -> str:
    """Say how much of the machine other programs took, and how often; empty: nothing that matters."""
    loads = _disturbances(runs)
    if not loads:
        return ""
    worst = max(loads, key=lambda load: load.foreign_cores)
    launches = plural(sum(run.load is not None for run in runs), "launch")
    taken = f"{digits(worst.foreign_cores, 2)} of {worst.cores} cores"
    return f"other programs took up to {taken} in {len(loads)} of {launches}"


def _apart(points: Sequence[Point], measurement: Measurement) -> tuple[str, ...]:
    """A warning of points that share no round with their baseline, as those of separate jobs."""
    rounds: dict[Point, set[int]] = {}
    for run in measurement.runs:
        rounds.setdefault(run.point, set()).add(run.round)
    pairs = {(point, baseline_of(point, kind, points)) for point in points for kind in measurement.scaling}
    apart = {(point, base) for point, base in pairs if base and not rounds[point] & rounds[base]}
    if not apart:
        return ()
    labels = [point.label for point in points if point in {each for each, _ in apart}]
    bases = [point.label for point in points if point in {base for _, base in apart}]
    return (
        f"{', '.join(labels)}: measured apart from {', '.join(bases)}, the baseline, so that what changed between the "
        "jobs is not in the intervals; launch both in one job to compare them round by round",
    )


def _unlike_hosts(runs: Sequence[Run]) -> tuple[str, ...]:
    """A warning of hosts that are not expected to be equally fast."""
    first: dict[object, RankHost] = {}  # Of every kind
    for host in (host for run in runs for host in run.hosts if host.cores):
        first.setdefault(host.kind, host)
    if len(first) < 2:
        return ()
    told = " and ".join(f"{host.name} ({host.words})" for host in first.values())
    return (f"launches ran on unlike hosts, {told}: take hosts of one kind, so that points differ in nothing else",)


def _drift(runs: Sequence[Run]) -> list[str]:
    """One warning of launches that reached no steady state, and of points that drift in most of their launches.

    A drift in few launches is in their intervals, as are two kinds of steps: both are notes of a point.
    """
    launches = Counter(run.point.label for run in runs)
    drifts: dict[str, dict[str, list[float]]] = {"faster": {}, "slower": {}}
    for run in runs:
        if run.unsteady and run.unsteady.kind in drifts:
            drifts[run.unsteady.kind].setdefault(run.point.label, []).append(run.unsteady.drift)
    advice = {
        "faster": ("were still getting faster at the end", "make more steps, --steps N"),
        "slower": ("get slower", "look for what slows a long run (heat, memory, other programs)"),
    }
    found: list[tuple[int, str]] = []
    for kind, of_points in drifts.items():
        told = {label: all_ for label, all_ in of_points.items() if 0.0 in all_ or 2 * len(all_) >= launches[label]}
        if told:
            count, most = sum(map(len, told.values())), max(map(max, told.values()))
            where = f"in {count} of {plural(sum(launches[label] for label in told), 'launch')} of {', '.join(told)}"
            by = f" (by up to {format_share(most)} from the first to the last quarter)" if most else ""
            seen, do = advice[kind]
            found.append((count, f"{where} steps {seen}{by}: {do}"))
    return [max(found, key=itemgetter(0))[1]] if found else []


def _pace_notes(runs: Sequence[Run]) -> dict[Point, tuple[str, ...]]:
    """By point what its launches tell of a drift and of two kinds of steps, a line each."""
    notes = {}
    for point in dict.fromkeys(run.point for run in runs):
        own = [run for run in runs if run.point == point]
        found = [run.unsteady for run in own if run.unsteady]
        first = {each.kind: each.sentence for each in reversed(found)}
        counts = Counter(each.kind for each in found)
        notes[point] = tuple(
            f"{first[kind]} (in {count} of {plural(len(own), 'launch')})" for kind, count in counts.items()
        )
    return notes


def _launch_warnings(runs: Sequence[Run]) -> list[str]:
    """Warnings of single launches, once per point, with the number of launches they concern."""
    launches = Counter(
        (run.point.label, warning)
        for run in runs
        for warning in run.warnings
        if run.unsteady is None or warning != run.unsteady.sentence
    )
    of_point = Counter(run.point.label for run in runs)
    return [
        f"{label}: {warning}" + (f" (in {count} of {of_point[label]} launches)" if of_point[label] > 1 else "")
        for (label, warning), count in launches.items()
    ]
