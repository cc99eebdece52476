"""`scalescope explain`: where the time goes, from what is already there or from a run that is captured now."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.explained import tell_autotune, tell_scaling, tell_several, tell_traces
from scalescope.cli.options import (
    DryRun,
    Engine,
    Folder,
    Knobs,
    LaunchOptions,
    ModelOptions,
    OutputOptions,
    Pattern,
    given,
    grouped,
    typed_options,
)
from scalescope.cli.output import Ending, from_here, interruptible
from scalescope.errors import SeveralJobs, UsageError

if TYPE_CHECKING:
    from scalescope.records.request import MeasureRequest


@dataclass(frozen=True)
class Capture:
    """What explain runs and captures."""

    engine: Engine = ""
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Batch size per process (default: 32 for a MODEL).")
    ] = None
    knobs: Knobs = None
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Capture the first steps, to explain a slow first epoch.")
    ] = False
    cpu_detail: Annotated[
        bool,
        typer.Option("--cpu-detail", help="On GPUs capture operators of the CPU and message sizes, too; slows steps."),
    ] = False


@grouped
def explain(
    *,
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Horovod timelines, profiler traces of all ranks, a folder of scalescope measure, training logs, "
            "a scaling table or a Horovod autotune log (CSV). Or a MODEL, or -- COMMAND, to run and capture."
        ),
    ] = None,
    np: Annotated[
        str, typer.Option(metavar="LIST", help="Processes of every log, in their order: 1,2,4; or of the run (2).")
    ] = "",
    pattern: Pattern = "",
    estimate: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Folder of scalescope estimate, or a cluster.toml, to compare with."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the steps of all ranks as one trace for Perfetto.")
    ] = None,
    capture: Capture,
    launching: LaunchOptions,
    building: ModelOptions,
    shown: OutputOptions,
    folder: Folder = None,
    dry_run: DryRun = False,
) -> None:
    """Where does the time go? Reads traces, tables and logs that you have, or captures a run of your training.

    scalescope explain timeline.json
    scalescope explain rank0.json.gz rank1.json.gz
    scalescope explain --np 2 -- python train.py
    """
    from scalescope.charts import start_renderer
    from scalescope.diagnosis.sources import check_export
    from scalescope.diagnosis.sources import explain as read
    from scalescope.jobs.folders import check, result_folder
    from scalescope.records.autotune import Autotune
    from scalescope.records.explanation import Explanation

    ending, files, request = Ending(shown, folder), list(paths or []), None
    model = str(files.pop()) if _is_model(files) and not context.obj else ""
    if model or context.obj:
        if files:
            raise UsageError("name files, a MODEL or -- and a command, and only one of them")
        from scalescope.api.requests import traced_request
        from scalescope.measurement.trace import traced_commands

        told = given(capture, launching, building)
        request = traced_request(model, command=context.obj or (), np=np, folder=folder, **told)
        if dry_run:
            print(*traced_commands(request), sep="\n")
            return
        folder = _captured(request, ending)
        files = [from_here(folder)]
    else:
        _refuse_without_run(context)
    if folder:
        check(folder, "explain", _made_by(folder, files))
        for path in files:
            if path.stem == "scaling" and path.suffix != ".json" and path.resolve().parent == folder.resolve():
                raise UsageError(f"'{path}' is read and would be overwritten: choose another folder with -o")
        start_renderer()  # while the files are read
    if export:
        check_export(export)
    counts = _of_logs(np) if np and not request else ()
    place: AbstractContextManager[object] = nullcontext()
    if folder:
        place = result_folder("explain", folder, also=_made_by(folder, files))
    with ExitStack() as results:
        if export:  # it may go into the folder; without it nothing is made for files that cannot be read
            results.enter_context(place)
        try:
            found = read(files, np=counts, pattern=pattern, estimate=estimate, export_to=export)
        except SeveralJobs:
            if export or estimate or counts or pattern:  # of one job
                raise
            results.enter_context(place)
            tell_several(ending, files, folder)
            return
        if not export:
            results.enter_context(place)
        if isinstance(found, Explanation):
            tell_traces(ending, found, files, folder, request, export)
        elif isinstance(found, Autotune):
            tell_autotune(ending, found, folder)
        else:
            tell_scaling(ending, found, files, folder, {"np": np, "pattern": pattern})


def _of_logs(np: str) -> tuple[int, ...]:
    from scalescope.api.requests import log_counts

    return log_counts(np)


def _is_model(files: Sequence[Path]) -> bool:
    if len(files) != 1 or files[0].exists():
        return False
    from scalescope.workloads import BUILTINS

    word = str(files[0])
    return word in BUILTINS or bool(re.fullmatch(r"[\w./-]+:\w+", word))


def _refuse_without_run(context: typer.Context) -> None:
    run = {*given(Capture(), LaunchOptions(), ModelOptions()), "dry_run"}
    for name, option in typed_options(context).items():
        if name in run:
            raise UsageError(f"{option} goes with a MODEL or a command after --: leave it out")


def _captured(request: "MeasureRequest", ending: Ending) -> Path:
    """Run it once with every rank captured; its folder."""
    from scalescope.measurement.trace import traced_run
    from scalescope.report.progress import MeasureProgress

    with (
        interruptible(lambda _: " and nothing was explained"),
        MeasureProgress(ending.console, show_output=False, **ending.progress) as progress,
    ):
        return traced_run(request, progress)


def _made_by(folder: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """What is explained may be explained in its own folder, whichever verb of ours made that."""
    from scalescope.jobs.folders import mark_of

    own = {place.resolve() for path in files for place in (path, path.parent)}
    return (mark_of(folder),) if folder.resolve() in own else ()
