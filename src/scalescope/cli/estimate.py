"""`scalescope estimate`: how fast would it be?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.options import (
    DryRun,
    Folder,
    Knobs,
    ModelOptions,
    OutputOptions,
    ScalingChoice,
    ScalingOption,
    Threads,
    Timeout,
    given,
    grouped,
    statistics_option,
)
from scalescope.cli.output import Ending, from_here, interruptible
from scalescope.cli.retype import retyped
from scalescope.errors import OtherDevice, UsageError
from scalescope.units import MOST_COUNTS, check_count, doublings

if TYPE_CHECKING:
    from scalescope.records.prediction import Prediction
    from scalescope.records.request import EstimateRequest


@dataclass(frozen=True)
class Map:
    """What estimate predicts."""

    np: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of processes: 1..32 or 1,2,4 (default: all slots).")
    ] = ""
    max_np: Annotated[int | None, typer.Option(min=1, metavar="N", help="Short for --np 1..N.")] = None
    batch: Annotated[
        str, typer.Option(metavar="LIST", help="Batch sizes: 32,64 or 8,16,...,512 (default: 8,16,...,512).")
    ] = ""
    max_batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="Batch sizes 1, 2, 4, ... up to N.")] = None
    scaling: ScalingOption = ScalingChoice.weak
    engine: Annotated[str, typer.Option(help="ddp or horovod.")] = "ddp"
    knobs: Knobs = None
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="cluster.toml that describes the cluster (default: this machine, probed)."),
    ] = None
    threads_per_rank: Threads = None
    timeout_s: Timeout = "10m"


@dataclass(frozen=True)
class Trust:
    """How well estimate knows its numbers."""

    profile: Annotated[
        Path | None,
        statistics_option(metavar="FILE", help="profile.json taken earlier or elsewhere (default: taken now)."),
    ] = None
    step_time: Annotated[
        str,
        statistics_option(
            metavar="TIME",
            help="Known step time of one process, instead of a profile: 97ms for one --batch, or 32=97ms,64=180ms.",
        ),
    ] = ""
    repeats: Annotated[
        int, statistics_option("--repeats", "-it", min=1, metavar="N", help="Blocks of steps per batch size.")
    ] = 8
    seconds: Annotated[str, statistics_option(metavar="TIME", help="Maximum time for the profile.")] = "18s"
    efficiency: Annotated[
        str, statistics_option(metavar="FRACTION", help="Minimum efficiency of the recommended setting.")
    ] = "80%"
    verify: Annotated[
        int,
        statistics_option(min=0, metavar="N", help="Measure N cells of the map and correct the prediction by them."),
    ] = 0
    launches: Annotated[int, statistics_option(min=1, metavar="N", help="Launches per verified cell.")] = 3


@grouped
def estimate(
    model: Annotated[str, typer.Argument(help="Built-in name, package.module:factory or file.py:factory.")],
    map_: Map,
    trust: Trust,
    building: ModelOptions,
    shown: OutputOptions,
    folder: Folder = None,
    dry_run: DryRun = False,
) -> None:
    """How fast would it be? A map of speedup over processes and batch sizes, from one process and the cluster's links.

    scalescope estimate resnet50 --np 1..32 --batch 8,16,...,512 --cluster cluster.toml
    """
    from scalescope.api.requests import estimate_request
    from scalescope.estimation import estimate as work
    from scalescope.report.progress import EstimateProgress

    ending = Ending(shown, folder)
    told = given(map_, trust, building)
    max_np, max_batch = told.pop("max_np"), told.pop("max_batch")
    if (map_.np and max_np) or (map_.batch and max_batch):
        raise UsageError("--max-np and --max-batch replace --np and --batch: give one of each")
    told["np"] = range(1, check_count(max_np, "--max-np", MOST_COUNTS) + 1) if max_np else map_.np
    told["batch"] = doublings(check_count(max_batch, "--max-batch")) if max_batch else map_.batch
    request = estimate_request(model, folder=folder, **told)
    try:
        if dry_run:
            print(*work.dry_run(request), sep="\n")
            return
        with (
            interruptible(lambda _: ", and what was finished is kept: type the same command to continue"),
            EstimateProgress(ending.console, **ending.progress) as progress,
        ):
            place, prediction = work.estimate(request, progress)
    except OtherDevice as problem:
        works = retyped("estimate", request, profile=request.profile, **problem.instead)
        raise UsageError(f"{problem}, as in: {works}") from None
    _tell(ending, request, prediction, place)


def _tell(ending: Ending, request: "EstimateRequest", prediction: "Prediction", folder: Path) -> None:
    from scalescope.report.prediction import sentence
    from scalescope.report.prediction_show import show
    from scalescope.report.prediction_tables import as_document, write_tables

    def write() -> list[str]:
        write_tables(prediction, folder)
        drawn = ending.pictures(lambda formats: _draw(prediction, folder, formats), folder)
        here = from_here(folder)
        return [*drawn, f"Tables: {here}/estimate.csv, .md", f"Records: {here}"]

    ending.tell(
        show,
        prediction,
        answer=sentence(prediction),
        follow=next_command(request, prediction, folder),
        document=lambda: as_document(prediction),
        write=write,
    )


def _draw(prediction: "Prediction", folder: Path, formats: Sequence[str]) -> list[Path]:
    from scalescope.charts import save_charts, write_charts
    from scalescope.charts.step import step_chart
    from scalescope.estimation.estimate import STEP, step_to_draw
    from scalescope.records.store import load
    from scalescope.records.timeline import Timeline
    from scalescope.text import plural

    written = write_charts(prediction, folder, formats)
    cell = step_to_draw(prediction)
    if cell is None:
        return written
    timeline = load(folder / STEP, Timeline)
    title = f"One step, predicted: {plural(cell.np, 'process')} of {prediction.what} with batch {cell.batch}"
    return [*written, *save_charts({"step": step_chart(timeline, title)}, folder, formats)]


def next_command(request: "EstimateRequest", prediction: "Prediction", folder: Path) -> str:
    """Estimate again what cannot be trusted; verify here; measure elsewhere, and what has been verified."""
    if not prediction.trusted:
        return retyped("estimate", request, profile=request.profile, verify=request.verify or None)
    advice = prediction.recommended
    if advice and (request.cluster or prediction.checks):
        batch = advice.global_batch if advice.scaling == "strong" else advice.batch
        counts = (1, advice.np) if advice.np > 1 else (1,)
        return retyped("measure", request, np=counts, batch=batch, scaling=(advice.scaling,))
    return retyped("estimate", request, profile=str(from_here(folder / "profile.json")), verify=2)
