"""scalescope estimate: how fast would it be?"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.options import (
    MODEL_PANEL,
    Input,
    Json,
    LearningRate,
    Loss,
    ModelArg,
    Optimizer,
    Quiet,
    Timeout,
    as_typed,
)
from scalescope.cli.output import again, from_here
from scalescope.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from scalescope.records.prediction import Prediction
    from scalescope.records.request import EstimateRequest

_MAP, _TRUST = "The map", "How sure it is to be"


def estimate(
    model: Annotated[str, typer.Argument(help="A built-in name, package.module:factory or file.py:factory.")],
    np: Annotated[str, typer.Option(help="Processes: 1..32 or 1,2,4 (all slots).", rich_help_panel=_MAP)] = "",
    max_np: Annotated[int | None, typer.Option(min=1, help="The same as --np 1..N.", rich_help_panel=_MAP)] = None,
    batch: Annotated[str, typer.Option(help="Batch sizes: 8,16,...,512 (that).", rich_help_panel=_MAP)] = "",
    max_batch: Annotated[
        int | None, typer.Option(min=1, help="The doublings up to N and N itself.", rich_help_panel=_MAP)
    ] = None,
    scaling: Annotated[
        str, typer.Option(help="strong (global batch), weak (batch per process) or both.", rich_help_panel=_MAP)
    ] = "weak",
    engine: Annotated[str, typer.Option(help="ddp or horovod.", rich_help_panel=_MAP)] = "ddp",
    cluster: Annotated[
        Path | None,
        typer.Option(help="A cluster.toml (this machine, probed on the way).", rich_help_panel=_MAP),
    ] = None,
    knob: Annotated[
        list[str] | None, typer.Option(help="A setting of the engine: NAME=VALUE.", rich_help_panel=_MAP)
    ] = None,
    threads_per_rank: Annotated[
        int | None, typer.Option(min=1, help="cores // ranks of a node.", rich_help_panel=_MAP)
    ] = None,
    efficiency: Annotated[
        str, typer.Option(help="What is worth its devices, for the advice.", rich_help_panel=_MAP)
    ] = "80%",
    profile: Annotated[
        Path | None, typer.Option(help="A profile.json taken earlier or elsewhere.", rich_help_panel=_TRUST)
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", "-it", min=1, help="Blocks of steps per batch size.", rich_help_panel=_TRUST)
    ] = 8,
    seconds: Annotated[str, typer.Option(help="What the profile may take.", rich_help_panel=_TRUST)] = "35s",
    verify: Annotated[
        int, typer.Option(min=0, help="Run so many cells for real and remember the error.", rich_help_panel=_TRUST)
    ] = 0,
    launches: Annotated[
        int, typer.Option(min=1, help="Launches of each cell that is verified.", rich_help_panel=_TRUST)
    ] = 3,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.", rich_help_panel=MODEL_PANEL)] = "auto",
    model_arg: ModelArg = None,
    input_: Input = None,
    loss: Loss = "",
    optimizer: Optimizer = "sgd",
    learning_rate: LearningRate = None,
    timeout: Timeout = "10m",
    output: Annotated[Path | None, typer.Option("-o", help="Folder for the results.")] = None,
    json: Json = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and start nothing.")] = False,
    quiet: Quiet = False,
) -> None:
    """How fast would it be? A map of speedup over processes and batch sizes, from one process and the cluster's links.

    scalescope estimate resnet50 --np 1..32 --batch 8,16,...,512 --cluster cluster.toml
    """
    from rich.console import Console

    from scalescope.estimation import estimate as work
    from scalescope.records.request import SCALINGS, EstimateRequest
    from scalescope.report.progress import EstimateProgress
    from scalescope.units import parse_counts, parse_fraction, parse_seconds
    from scalescope.workloads import spec_from_options

    if scaling not in SCALINGS:
        raise UsageError(f"--scaling takes strong, weak or both, not '{scaling}'")
    if device not in ("cpu", "cuda", "auto"):
        raise UsageError(f"--device takes cpu, cuda or auto, not '{device}'")
    if (np and max_np) or (batch and max_batch):
        raise UsageError("--max-np and --max-batch stand for --np and --batch: give one of each")
    batches = parse_counts(batch or "8,16,...,512", "--batch")
    request = EstimateRequest(
        workload=spec_from_options(
            model,
            model_args=model_arg or [],
            inputs=input_ or [],
            loss=loss or None,
            optimizer=optimizer,
            learning_rate=learning_rate,
        ),
        np=tuple(range(1, max_np + 1)) if max_np else parse_counts(np, "--np") if np else (),
        batch=work.doublings(max_batch) if max_batch else batches,
        scaling=SCALINGS[scaling],
        engine=engine,
        knobs=tuple(knob or ()),
        cluster=str(cluster or ""),
        profile=str(profile or ""),
        threads_per_rank=threads_per_rank,
        device=device,
        seconds=parse_seconds(seconds, "--seconds"),
        repeats=repeats,
        efficiency=parse_fraction(efficiency, "--efficiency"),
        verify=verify,
        launches=launches,
        timeout_s=parse_seconds(timeout, "--timeout"),
        folder=str(output or ""),
    )
    if dry_run:
        print("\n".join(work.dry_run(request)))
        return
    console = Console(stderr=json)
    try:
        with EstimateProgress(console, quiet=quiet) as progress:
            folder, prediction = work.estimate(request, progress)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted: nothing is left running, and what was finished is kept: type the same command to continue"
        ) from None
    _report(request, prediction, folder, console, json=json, quiet=quiet)


def _report(
    request: "EstimateRequest", prediction: "Prediction", folder: Path, console: object, *, json: bool, quiet: bool
) -> None:
    """The map, where everything is, the answer and the next command."""
    from json import dumps

    from rich.console import Console

    from scalescope.cli.output import pictures
    from scalescope.report.prediction import sentence
    from scalescope.report.prediction_show import show
    from scalescope.report.prediction_tables import as_document, write_tables

    assert isinstance(console, Console)
    write_tables(prediction, folder)
    lines = pictures(lambda: _draw(prediction, folder))
    here = from_here(folder)
    if not quiet:
        show(prediction, console)
        for line in [*lines, f"Tables: {here}/estimate.csv, .md", f"Records: {here}"]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(sentence(prediction), style="bold", markup=False, highlight=False, soft_wrap=True)
    if not quiet:
        console.print(
            f"Next: {_next_command(request, prediction, folder)}", markup=False, highlight=False, soft_wrap=True
        )
    if json:
        print(dumps(as_document(prediction)))


def _draw(prediction: "Prediction", folder: Path) -> list[Path]:
    from scalescope.charts import save_charts, write_charts
    from scalescope.charts.step import step_chart
    from scalescope.estimation.estimate import STEP, step_to_draw
    from scalescope.records.store import load
    from scalescope.records.timeline import Timeline
    from scalescope.units import plural

    written = write_charts(prediction, folder)
    cell = step_to_draw(prediction)
    if cell is None:
        return written
    timeline = load(folder / STEP, Timeline)
    title = f"One step, predicted: {plural(cell.np, 'process')} of {prediction.what} with batch {cell.batch}"
    return [*written, *save_charts({"step": step_chart(timeline, title)}, folder)]


def _next_command(request: "EstimateRequest", prediction: "Prediction", folder: Path) -> str:
    """Verify what was predicted here; what was predicted for elsewhere is measured there."""
    model = as_typed(request.workload)
    advice = prediction.recommended
    if not prediction.trusted:
        return again()
    if advice and (request.cluster or prediction.checks):
        batch = advice.global_batch if advice.scaling == "strong" else advice.batch
        counts = f"1,{advice.np}" if advice.np > 1 else "1"
        return f"scalescope measure {model} --np {counts} --batch {batch} --scaling {advice.scaling}"
    saved = f"--profile {shlex.quote(str(from_here(folder / 'profile.json')))}"
    return f"scalescope estimate {model} {saved} --verify 2"
