"""measure: how fast is it?"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.records.files import MEASUREMENT, RUNS, SCALING
from scalescope.records.request import EFFICIENCY_GOAL, MeasureRequest, Plan
from scalescope.show import document_of
from scalescope.verbs.verb import (
    SHOWN,
    Ending,
    Screen,
    Verb,
    folder_command,
    folder_of,
    from_here,
    kept,
    launch_costs,
    retyped,
    room,
    training_length,
)

if TYPE_CHECKING:
    from scalescope.records.run import Measurement
    from scalescope.records.scaling import Scaling


def _plan_measure(request: MeasureRequest) -> Iterable[str]:
    from scalescope.measurement import sweep

    planned, traced = sweep.dry_run(request), sweep.traced_after(request)
    for point, lines in planned:
        yield from (f"# {point.label}", *lines)
    for point in traced:
        yield f"# {point.label}, once more after all others, with some steps captured on every rank"
    processes = [point.np for point, _ in planned] * request.most_launches + [point.np for point in traced]
    limited = bool(request.precision or request.budget_s)
    length = training_length(request.steps) if request.command else ""
    yield launch_costs(processes, length=length, most=limited)


def _kept_of_measure(_request: Any, folder: str) -> str:
    resume = f"; resume with: {folder_command('measure --resume', Path(folder))}" if folder else ""
    return f" and every finished launch is kept{resume}"


def _finished_launches(folder: Path) -> list[str]:
    """A line for every launch that a job has finished."""
    from scalescope.records.run import Run
    from scalescope.records.store import load_lines
    from scalescope.units import format_rate, format_seconds

    runs = load_lines(folder / RUNS, Run)
    rates = [f", {format_rate(run.throughput)} samples/s" if run.throughput else "" for run in runs]
    steps = [f"{run.point.label}: {format_seconds(run.step_s)} a step" for run in runs]
    return [f"{step}{rate}" for step, rate in zip(steps, rates, strict=True)]


def of_measurement(measurement: "Measurement", request: MeasureRequest, screen: Screen) -> Ending:
    """Curves, and what traced launches show."""
    from scalescope.measurement.scaling import scaling_of
    from scalescope.records.explanation import TRACE_RECORD, TraceFolder
    from scalescope.records.store import load, save
    from scalescope.show.scaling import trace_words

    folder, scaling = folder_of(measurement), scaling_of(measurement)
    document = document_of(scaling, measurement=measurement)

    def write() -> list[str]:
        save(scaling, folder / SCALING)
        traces = [folder / path for path in measurement.traces]
        told = (trace_words(load(path / TRACE_RECORD, TraceFolder), str(from_here(path))) for path in traces)
        return [*screen.files(document, folder), *told]

    return Ending(document, after_measure(request, scaling, folder), write)


def after_measure(request: MeasureRequest, scaling: "Scaling", folder: Path) -> str:
    """Repeat what is in doubt; explain what was traced; make sure of what is not known well; explain poor scaling."""
    from scalescope.show.scaling import largest
    from scalescope.stats import FEWEST

    if scaling.doubt:
        return retyped("measure", request, trace=request.trace)
    if request.trace:
        return folder_command("explain", folder)
    if request.most_launches < FEWEST:
        return folder_command("measure --resume", folder, "--launches", str(FEWEST))
    point = largest(scaling.curves[0]) if scaling.curves else None
    if point and point.efficiency and point.efficiency.value < EFFICIENCY_GOAL and not request.pattern:
        return retyped("explain", request, np=point.np, batch=int(point.batch or 0) or None, engine=point.engine)
    return folder_command("measure --resume", folder, "--precision", "3%")


VERB = Verb(
    "measure",
    MeasureRequest,
    """How fast is it? Launches a MODEL, or your own training after --, at every number of processes and batch size.

    In a command {np}, {nodes}, {per_node}, {batch}, {global_batch}, {run_dir} and {launch} are replaced:
    scalescope measure --np 1,2 --batch 32 -- python train.py --batch-size {batch}
    """,
    room("scalescope.jobs.request", "measure_request"),
    room("scalescope.measurement.sweep", "measure"),
    ("resume", "dry_run", "show_output", *SHOWN),
    _plan_measure,
    room("scalescope.measurement.sweep", "continue_measurement"),
    _kept_of_measure,
    end=of_measurement,
    plan=lambda: Plan,
    record=kept(MEASUREMENT, "scalescope.records.run.Measurement"),
    finished=_finished_launches,
)
