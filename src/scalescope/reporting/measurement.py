"""A measurement as a table, a sentence, and a JSON document."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from scalescope.records.run import PHASES, Measurement, Run
from scalescope.units import format_rate, format_seconds, plural


def as_document(measurement: Measurement) -> dict[str, Any]:
    """What `--json` prints: units are SI and in the names."""
    return {
        "kind": "measurement",
        "what": measurement.what,
        "host": measurement.host,
        "cores": measurement.cores,
        "binding": measurement.binding,
        "launcher": measurement.launcher,
        "points": [_point_document(run) for run in measurement.runs],
        "failures": [
            {"engine": each.point.engine, "np": each.point.np, "batch": each.point.batch, "problem": each.problem}
            for each in measurement.failures
        ],
    }


def _point_document(run: Run) -> dict[str, Any]:
    point = run.point
    samples = run.samples_per_step
    return {
        "engine": point.engine,
        "scaling": point.scaling,
        "np": point.np,
        "batch": point.batch or (samples / point.np if samples else None),
        "global_batch": point.global_batch or samples,
        "threads_per_rank": point.threads_per_rank,
        "step_s": run.step_s,
        "throughput": run.throughput,
        "steps": run.steps,
        "warmup_steps": run.warmup_steps,
        "wall_s": run.wall_s,
        "phases": {f"{phase}_s": seconds for phase, seconds in run.phases.items()},
        "engine_seen": run.engine_seen,
        "backend": run.backend,
        "source": run.source,
        "folder": run.folder,
        "warnings": list(run.warnings),
    }


def show(measurement: Measurement, console: Console) -> None:
    """Two tables: how fast each point is, and where its wall time went."""
    for table in (_speed_table(measurement), _phase_table(measurement)):
        console.print()
        console.print(table)
    console.print()
    for run in measurement.runs:
        for warning in run.warnings:
            console.print(f"{run.point.label}: {warning}", style="yellow", markup=False)


def _speed_table(measurement: Measurement) -> Table:
    table = _table("Steady state (the slowest rank's step, all ranks' samples/s)")
    for heading in ("batch", "global batch", "step", "samples/s", "steps", "warm-up steps"):
        table.add_column(heading, justify="right")
    for run in measurement.runs:
        document = _point_document(run)
        table.add_row(
            run.point.engine,
            str(run.point.np),
            _count(document["batch"]),
            _count(document["global_batch"]),
            format_seconds(run.step_s),
            format_rate(run.throughput) if run.throughput else "?",
            str(run.steps),
            str(run.warmup_steps),
        )
    return table


def _phase_table(measurement: Measurement) -> Table:
    table = _table("Where the wall time went, in seconds (mean over ranks)")
    shown = [phase for phase in PHASES if any(run.phases.get(phase, 0) >= 0.0005 for run in measurement.runs)]
    for phase in shown:
        table.add_column({"warmup": "warm-up", "evaluation": "eval"}.get(phase, phase), justify="right")
    table.add_column("wall", justify="right")
    for run in measurement.runs:
        cells = [_seconds(run.phases.get(phase)) for phase in shown]
        table.add_row(run.point.engine, str(run.point.np), *cells, _seconds(run.wall_s))
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("engine")
    table.add_column("np", justify="right")
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def sentence(measurement: Measurement) -> str:
    """The answer in one sentence."""
    runs = [run for run in measurement.runs if run.throughput]
    if not runs:
        return f"{plural(len(measurement.runs), 'point')} measured; the number of samples per step is not known."
    best = max(runs, key=lambda run: run.throughput or 0)
    first = min(runs, key=lambda run: (run.point.np, run.point.engine != "none", -(run.throughput or 0)))
    rate = format_rate(best.throughput or 0)
    if len(runs) == 1:
        return f"{_where(best).capitalize()}: {rate} samples/s, {format_seconds(best.step_s)} a step."
    if best is first:
        tried_more = any(run.point.np > best.point.np for run in runs)
        return f"Fastest is {_where(best)}: {rate} samples/s" + (
            "; more processes did not help." if tried_more else "."
        )
    ratio = (best.throughput or 0) / (first.throughput or 1)
    return f"Fastest is {_where(best)}: {rate} samples/s, {ratio:.2f}x {_where(first)} (one launch each, no interval)."


def _where(run: Run) -> str:
    engine = "" if run.point.engine == "none" else f"{run.point.engine} on "
    batch = "" if run.point.batch is None else f" with batch {run.point.batch} each"
    return f"{engine}{plural(run.point.np, 'process')}{batch}"
