"""`scalescope measure`: launch a training at every point and say how fast it is."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.options import Input, Json, LearningRate, Loss, ModelArg, Optimizer, Quiet
from scalescope.cli.output import from_here, write
from scalescope.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from scalescope.measurement.sweep import Audience
    from scalescope.records.request import MeasureRequest
    from scalescope.records.run import Measurement


class ScalingKind(StrEnum):
    """What stays the same while processes are added."""

    strong = "strong"
    weak = "weak"
    both = "both"


_JOB, _RUN, _SURE = "Where and how it runs", "The run", "How sure it is to be"


def measure(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="A built-in model, package.module:factory or file.py:factory. Or: -- COMMAND...")
    ] = "",
    np: Annotated[str, typer.Option(help="Numbers of processes: 1,2,4 or 1..8 (1,2).")] = "",
    batch: Annotated[str, typer.Option(help="Batch sizes: 32,64 or 8,16,...,512 (32 for a MODEL).")] = "",
    scaling: Annotated[
        ScalingKind, typer.Option(help="weak: --batch is per process; strong: --batch is shared by all.")
    ] = ScalingKind.weak,
    engine: Annotated[
        str, typer.Option(help="ddp, horovod or both: ddp,horovod; none: a command without a launcher.")
    ] = "",
    launches: Annotated[
        int | None,
        typer.Option(min=1, help="Of every point, at most (5; with --precision 30).", rich_help_panel=_SURE),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Launch until steady speedups are known within, say, 5%.", rich_help_panel=_SURE)
    ] = "",
    budget: Annotated[
        str, typer.Option(help="Launch no more after so long: 90s, 10m, 2h.", rich_help_panel=_SURE)
    ] = "",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One launch per point; one process and all take turns.", rich_help_panel=_SURE),
    ] = False,
    aa: Annotated[
        bool, typer.Option("--aa", help="Compare a configuration with itself.", rich_help_panel=_SURE)
    ] = False,
    relative_to: Annotated[str, typer.Option(help="'smallest' when --np has no 1.", rich_help_panel=_SURE)] = "",
    seed: Annotated[int | None, typer.Option(help="Of the order of launches.", rich_help_panel=_SURE)] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the measurement in this folder.", rich_help_panel=_SURE)
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="torchrun, mpirun, horovodrun, srun or own.", rich_help_panel=_JOB)
    ] = "",
    hosts: Annotated[str, typer.Option(help="Named hosts with slots: a:2,b:2.", rich_help_panel=_JOB)] = "",
    knob: Annotated[
        list[str] | None, typer.Option(help="A setting of the engine: NAME=VALUE.", rich_help_panel=_JOB)
    ] = None,
    threads_per_rank: Annotated[
        int | None,
        typer.Option(min=1, help="Equal at every point (cores // most ranks on a host).", rich_help_panel=_JOB),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="A variable for every rank: NAME=VALUE.", rich_help_panel=_JOB)
    ] = None,
    launcher_arg: Annotated[
        list[str] | None, typer.Option(help="Passed to the launcher as it is.", rich_help_panel=_JOB)
    ] = None,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="Allow more processes than slots.", rich_help_panel=_JOB)
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Where rank 0 listens (a free one).", rich_help_panel=_JOB)
    ] = None,
    ssh: Annotated[str, typer.Option(help="The program that reaches named hosts.", rich_help_panel=_JOB)] = "ssh",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto, for a MODEL.", rich_help_panel=_JOB)] = "auto",
    model_arg: ModelArg = None,
    input_: Input = None,
    loss: Loss = "",
    optimizer: Optimizer = "sgd",
    learning_rate: LearningRate = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="End every launch after so many steps.", rich_help_panel=_RUN)
    ] = None,
    pattern: Annotated[
        str,
        typer.Option(help="For scripts without torch: what a line per step looks like.", rich_help_panel=_RUN),
    ] = "",
    trace: Annotated[
        bool,
        typer.Option("--trace", help="One more launch per point, in which steps are captured.", rich_help_panel=_RUN),
    ] = False,
    timeout: Annotated[
        str, typer.Option(help="Give a launch up after so long without a sign of life.", rich_help_panel=_RUN)
    ] = "10m",
    output: Annotated[Path | None, typer.Option("-o", help="Folder for the results.", rich_help_panel=_RUN)] = None,
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Show what the ranks print, tagged.", rich_help_panel=_RUN)
    ] = False,
    json: Json = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and start nothing.")] = False,
    quiet: Quiet = False,
) -> None:
    """How fast is it? Launches a MODEL, or your own training after --, at every number of processes and batch size.

    In a command {np}, {batch}, {global_batch}, {run_dir} and {launch} are replaced:
    scalescope measure --np 1,2 --batch 32 -- python train.py --batch-size {batch}
    """
    from rich.console import Console

    from scalescope.jobs.request import parse_environment, parse_hosts
    from scalescope.measurement import sweep
    from scalescope.records.request import SCALINGS, MeasureRequest
    from scalescope.units import parse_counts, parse_fraction, parse_seconds
    from scalescope.workloads import spec_from_options

    command: tuple[str, ...] = context.obj or ()
    console = Console(stderr=json)
    within = parse_fraction(precision, "--precision") if precision else None
    budget_s = parse_seconds(budget, "--budget") if budget else None
    if resume:
        _refuse_what_is_settled(context)
        timeout_s = parse_seconds(timeout, "--timeout") if _was_given(context, "timeout") else None
        limits = {"launches": launches, "precision": within, "budget_s": budget_s, "timeout_s": timeout_s}
        given = {name: value for name, value in limits.items() if value is not None}
        _report(
            lambda audience: sweep.continue_measurement(resume, given, audience),
            console,
            json=json,
            quiet=quiet,
            show_output=show_output,
        )
        return
    if relative_to not in ("", "smallest"):
        raise UsageError(f"--relative-to takes 'smallest', not '{relative_to}': leave it out to compare with 1 process")
    if bool(model) == bool(command):
        raise UsageError("name one thing to measure: a MODEL such as cnn, or -- and your command")
    if device not in ("cpu", "cuda", "auto"):
        raise UsageError(f"--device takes cpu, cuda or auto, not '{device}'")
    workload = None
    if model:
        workload = spec_from_options(
            model,
            model_args=model_arg or [],
            inputs=input_ or [],
            loss=loss or None,
            optimizer=optimizer,
            learning_rate=learning_rate,
        )
    elif model_arg or input_ or loss:
        raise UsageError("--model-arg, --input and --loss go with a MODEL: pass them in your command instead")
    request = MeasureRequest(
        workload=workload,
        command=command,
        np=parse_counts(np or ("1" if engine == "none" else "2" if aa else "1,2"), "--np"),
        batch=parse_counts(batch, "--batch") if batch else (),
        scaling=SCALINGS[scaling],
        engines=tuple(dict.fromkeys(name.strip() for name in engine.split(","))) if engine else (),
        launcher=launcher,
        hosts=parse_hosts(hosts),
        knobs=tuple(knob or ()),
        threads_per_rank=threads_per_rank,
        env=parse_environment(env or []),
        launcher_args=tuple(word for text in launcher_arg or () for word in shlex.split(text)),
        steps=steps,
        pattern=pattern,
        device=device,
        timeout_s=parse_seconds(timeout, "--timeout"),
        port=port,
        ssh=ssh,
        oversubscribe=oversubscribe,
        folder=str(output or ""),
        launches=launches,
        precision=within,
        budget_s=budget_s,
        quick=quick,
        aa=aa,
        smallest=relative_to == "smallest",
        trace=trace,
        seed=seed,
    )
    if dry_run:
        for point, lines in sweep.dry_run(request):
            print(f"# {point.label}")
            print("\n".join(lines))
        for point in sweep.traced_after(request):
            print(f"# {point.label}, once more after all others, with some steps captured on every rank")
        return
    _report(lambda audience: sweep.measure(request, audience), console, json=json, quiet=quiet, show_output=show_output)


def _was_given(context: typer.Context, name: str) -> bool:
    return str(context.get_parameter_source(name)).endswith("COMMANDLINE")


def _refuse_what_is_settled(context: typer.Context) -> None:
    """A measurement that goes on takes new limits and nothing else."""
    if context.obj:
        raise UsageError("--resume knows what to measure: leave the command out")
    may_change = ("resume", "launches", "precision", "budget", "timeout", "show_output", "json", "quiet")
    for name in context.params:
        if name not in may_change and _was_given(context, name):
            option = "the MODEL" if name == "model" else f"--{name.rstrip('_').replace('_', '-')}"
            raise UsageError(
                f"--resume goes on with what was asked: leave {option} out, or begin anew without --resume"
            )


def _report(
    work: "Callable[[Audience], tuple[Path, Measurement]]",
    console: "Console",
    *,
    json: bool,
    quiet: bool,
    show_output: bool,
) -> None:
    """Measure, then show tables, pictures, the answer and the next command."""
    from json import dumps

    from scalescope.measurement.resume import plan_of
    from scalescope.measurement.study import study
    from scalescope.records.explanation import TRACE_RECORD, TraceFolder
    from scalescope.records.store import load
    from scalescope.report.machine import sentence_of_trace
    from scalescope.report.measurement import as_document as as_document
    from scalescope.report.measurement import sentence
    from scalescope.report.progress import MeasureProgress
    from scalescope.report.scaling import show

    try:
        with MeasureProgress(console, quiet=quiet, show_output=show_output) as progress:
            folder, measurement = work(progress)
    except KeyboardInterrupt as stopped:
        going_on = f"; go on with: {stopped}" if str(stopped) else ""
        raise Interrupted(f"interrupted: nothing is left running and every finished launch is kept{going_on}") from None
    scaling = study(measurement)
    written = write(scaling, folder)
    console.print(sentence(scaling), style="bold", markup=False, highlight=False, soft_wrap=True)
    if not quiet:
        show(scaling, console)
        for line in written:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        for path in measurement.traces:
            line = sentence_of_trace(load(folder / path / TRACE_RECORD, TraceFolder), str(from_here(folder / path)))
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print(
            f"Next: {_next_command(plan_of(folder).request, folder)}", markup=False, highlight=False, soft_wrap=True
        )
    if json:
        print(dumps(as_document(measurement, scaling)))


def _next_command(request: "MeasureRequest", folder: Path) -> str:
    """What a user would type after this: the same for sure, more launches, or the other engine beside."""
    from scalescope.stats import FEWEST
    from scalescope.workloads import BUILTINS

    if request.trace:
        return f"scalescope explain {shlex.quote(str(from_here(folder)))}"
    counts = ",".join(map(str, (1, *request.np) if request.quick and 1 not in request.np else request.np))
    batch = f" --batch {','.join(map(str, request.batch))}" if request.batch else ""
    again = f"scalescope measure --resume {shlex.quote(str(from_here(folder)))}"
    if request.quick or request.aa:
        what = shlex.quote(request.workload.model) if request.workload else f"-- {shlex.join(request.command)}"
        return f"scalescope measure --np {counts}{batch} {what}"
    if request.most_launches < FEWEST:
        return f"{again} --launches {FEWEST}"
    if request.workload and len(request.engines) < 2 and request.workload.model in BUILTINS:
        return f"scalescope measure {request.workload.model} --np {counts}{batch} --engine ddp,horovod"
    return f"{again} --precision 3%"
