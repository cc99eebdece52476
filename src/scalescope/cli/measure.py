"""`scalescope measure`: launch a training at every point and say how fast it is."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.options import (
    DryRun,
    Folder,
    Knobs,
    LaunchOptions,
    Model,
    ModelOptions,
    OutputOptions,
    Pattern,
    ScalingChoice,
    ScalingOption,
    ShowOutput,
    given,
    grouped,
    launch_option,
    statistics_option,
    typed_options,
)
from scalescope.cli.output import Ending, from_here, interruptible
from scalescope.cli.retype import folder_command, retyped
from scalescope.errors import UsageError

if TYPE_CHECKING:
    from scalescope.records.request import MeasureRequest
    from scalescope.records.run import Measurement
    from scalescope.records.scaling import Scaling

_WITH_RESUME = {"resume", "launches", "precision", "budget_s", "timeout_s", "show_output"}
_POOR_EFFICIENCY = 0.8


@dataclass(frozen=True)
class Points:
    """What measure launches."""

    np: Annotated[str, typer.Option(metavar="LIST", help="Numbers of processes: 1,2,4 or 1..8 (default: 1,2).")] = ""
    batch: Annotated[
        str, typer.Option(metavar="LIST", help="Batch sizes: 32,64 or 8,16,...,512 (default: 32 for a MODEL).")
    ] = ""
    scaling: ScalingOption = ScalingChoice.weak
    engine: Annotated[
        str,
        typer.Option(
            help="ddp, horovod, ddp,horovod, or none for a command without a launcher (default: what the script "
            "imports; ddp for a MODEL)."
        ),
    ] = ""
    knobs: Knobs = None
    pattern: Pattern = ""
    port: Annotated[
        int | None, launch_option(min=1, max=65535, metavar="PORT", help="Port of rank 0 (default: a free one).")
    ] = None
    trace: Annotated[
        bool, launch_option("--trace", help="Add one launch per point that captures steps for scalescope explain.")
    ] = False


@dataclass(frozen=True)
class Statistics:
    """When measure has launched enough."""

    launches: Annotated[
        int | None,
        statistics_option(
            min=1, metavar="N", help="Maximum launches per configuration (default: 5; 30 with --precision)."
        ),
    ] = None
    precision: Annotated[
        str, statistics_option(metavar="FRACTION", help="Launch until steady speedups are known within this: 5%.")
    ] = ""
    budget_s: Annotated[
        str, statistics_option("--budget", metavar="TIME", help="Stop launching after this long: 90s, 10m, 2h.")
    ] = ""
    quick: Annotated[
        bool,
        statistics_option(
            "--quick", help="One launch per point, in which one process and all processes alternate in blocks."
        ),
    ] = False
    relative_to: Annotated[
        str, statistics_option(help="'smallest': baseline is the smallest number of processes (default: 1 process).")
    ] = ""
    seed: Annotated[int | None, statistics_option(metavar="N", help="Random seed for the launch order.")] = None
    resume: Annotated[Path | None, statistics_option(metavar="DIR", help="Resume the measurement in this folder.")] = (
        None
    )


@grouped
def measure(
    *,
    context: typer.Context,
    model: Model = "",
    statistics: Statistics,
    points: Points,
    launching: LaunchOptions,
    building: ModelOptions,
    shown: OutputOptions,
    folder: Folder = None,
    dry_run: DryRun = False,
    show_output: ShowOutput = False,
) -> None:
    """How fast is it? Launches a MODEL, or your own training after --, at every number of processes and batch size.

    In a command {np}, {nodes}, {per_node}, {batch}, {global_batch}, {run_dir} and {launch} are replaced:
    scalescope measure --np 1,2 --batch 32 -- python train.py --batch-size {batch}
    """
    from scalescope.api.requests import checked_options, measure_request
    from scalescope.jobs.environment import load_plan
    from scalescope.measurement import sweep
    from scalescope.records.request import Plan
    from scalescope.report.progress import MeasureProgress

    ending = Ending(shown, folder)
    told = given(points, statistics, launching, building)
    where, smallest = told.pop("resume"), told.pop("relative_to")
    if where:
        typed = typed_options(context)
        _refuse_with_resume(context, typed)
        limits = checked_options({name: told[name] for name in _WITH_RESUME & typed.keys() & told.keys()})
    else:
        if smallest not in ("", "smallest"):
            raise UsageError(
                f"--relative-to takes 'smallest', not '{smallest}': leave it out to compare with 1 process"
            )
        request = measure_request(model, command=context.obj or (), folder=folder, smallest=bool(smallest), **told)
        if dry_run:
            _print_commands(request)
            return
    with (
        interruptible(lambda how: " and every finished launch is kept" + (f"; resume with: {how}" if how else "")),
        MeasureProgress(ending.console, show_output=show_output, **ending.progress) as progress,
    ):
        work = sweep.continue_measurement(where, limits, progress) if where else sweep.measure(request, progress)
    place, measurement = work
    _tell(ending, load_plan(place, Plan).request if where else request, measurement, place)


def _tell(ending: Ending, request: "MeasureRequest", measurement: "Measurement", folder: Path) -> None:
    from scalescope.api import scaling as curves_of
    from scalescope.records.explanation import TRACE_RECORD, TraceFolder
    from scalescope.records.store import load
    from scalescope.report.measurement import as_document, sentence
    from scalescope.report.scaling import show
    from scalescope.show.scaling import trace_words

    scaling = curves_of(measurement)
    traces = [folder / path for path in measurement.traces]
    ending.tell(
        show,
        scaling,
        answer=sentence(scaling),
        follow=next_command(request, scaling, folder),
        document=lambda: as_document(measurement, scaling),
        write=lambda: [
            *ending.write_scaling(scaling, folder),
            *(trace_words(load(path / TRACE_RECORD, TraceFolder), str(from_here(path))) for path in traces),
        ],
    )


def next_command(request: "MeasureRequest", scaling: "Scaling", folder: Path) -> str:
    """Explain what was traced; make sure of what is not known well; find out where the time of poor scaling goes."""
    from scalescope.show.scaling import largest
    from scalescope.stats import FEWEST

    if request.trace:
        return folder_command("explain", folder)
    if request.quick:
        return retyped("measure", request, np=tuple(sorted({1, *request.np})))
    if request.most_launches < FEWEST:
        return folder_command("measure --resume", folder, "--launches", str(FEWEST))
    point = largest(scaling.curves[0]) if scaling.curves else None
    if point and point.efficiency and point.efficiency.value < _POOR_EFFICIENCY and not request.pattern:
        return retyped("explain", request, np=point.np, batch=int(point.batch or 0), engines=(point.engine,))
    return folder_command("measure --resume", folder, "--precision", "3%")


def _print_commands(request: "MeasureRequest") -> None:
    from scalescope.measurement import sweep

    for point, lines in sweep.dry_run(request):
        print(f"# {point.label}", *lines, sep="\n")
    for point in sweep.traced_after(request):
        print(f"# {point.label}, once more after all others, with some steps captured on every rank")


def _refuse_with_resume(context: typer.Context, typed: dict[str, str]) -> None:
    """A resumed measurement takes new limits and nothing else."""
    if context.obj:
        raise UsageError("--resume knows what to measure: leave the command out")
    for name, option in typed.items():
        if name not in _WITH_RESUME | given(OutputOptions()).keys():
            raise UsageError(f"--resume keeps what was asked: leave {option} out, or start over without --resume")
