"""`scalescope study`: every answer about one training in one run that ends with the page."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.options import (
    DryRun,
    Folder,
    Json,
    LaunchOptions,
    Model,
    ModelOptions,
    OutputOptions,
    ShowOutput,
    given,
    grouped,
    statistics_option,
    typed_options,
)
from scalescope.cli.output import Ending, interruptible
from scalescope.cli.report import Quiet, show, with_commands
from scalescope.cli.retype import folder_command
from scalescope.errors import UsageError

if TYPE_CHECKING:
    from scalescope.records.study import StudyRequest

_WITH_RESUME = {"model", "resume", "budget_s", "folder", "json", "quiet", "show_output"}


@dataclass(frozen=True)
class Asked:
    """What study looks at, and for how long."""

    np: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of processes: 1,2,4 (default: 1, 2, 4, ... up to all slots).")
    ] = ""
    batch: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Batch sizes of the map: 32,64 or 8,16,...,512; the recommended one is measured (default: 8 to 512, "
            "as far as the budget allows; of a command the script's own).",
        ),
    ] = ""
    engine: Annotated[
        str,
        typer.Option(
            help="ddp, horovod or ddp,horovod; the first one is tuned (default: what the script imports; for a MODEL "
            "ddp and, where installed, horovod)."
        ),
    ] = ""
    budget_s: Annotated[
        str,
        statistics_option(
            "--budget", metavar="TIME", help="Time for everything together: 5m, 1h; what does not fit is left out."
        ),
    ] = "5m"
    resume: Annotated[
        bool,
        statistics_option(
            "--resume",
            help="Resume an interrupted study: type the same command, or name its folder with -o; finished parts stay.",
        ),
    ] = False


@grouped
def study(
    *,
    context: typer.Context,
    model: Model = "",
    asked: Asked,
    launching: LaunchOptions,
    building: ModelOptions,
    folder: Folder = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what every part remarks.")] = False,
    show_output: ShowOutput = False,
    dry_run: DryRun = False,
) -> None:
    """All four answers in one run: estimates, measures, explains, tunes and checks, and writes the page.

    scalescope study cnn
    scalescope study --np 1,2 --budget 10m -- python train.py
    """
    from scalescope.api.reports import PAGE
    from scalescope.api.studies import run_study, study_document, study_request
    from scalescope.report.study import answer
    from scalescope.report.study_progress import StudyProgress
    from scalescope.studies.results import read_results

    shown = OutputOptions(json=json, quiet=quiet, verbose=verbose)
    ending, told = Ending(shown, folder), given(asked, launching, building)
    resume = told.pop("resume")
    folder, model, request = _folder_to_resume(folder, model, resume), "" if _is_study(model) else model, None
    if model or context.obj or not resume:
        request = study_request(model, command=context.obj or (), folder=folder, **told)
    elif refused := typed_options(context).keys() - _WITH_RESUME:
        option = typed_options(context)[min(refused)]
        raise UsageError(f"--resume keeps what was asked: leave {option} out, or start over without --resume")
    if dry_run:
        _print_plan(request)
        return
    budget_s = _budget(context, asked)
    with (
        interruptible(_kept),
        StudyProgress(ending.console, quiet=quiet, verbose=verbose, show_output=show_output) as progress,
    ):
        place, _ = run_study(request, progress, folder, budget_s, resume=resume)
    page = place / PAGE
    results = [with_commands(each, [place]) for each in read_results([place])]
    ending.tell(
        show,
        results,
        answer=answer(results[0]).sentence,
        follow=results[0].follow,
        document=lambda: study_document(results[0], page),
        write=lambda: ending.page(results, page),
    )


def _budget(context: typer.Context, asked: Asked) -> float | None:
    """Of a resumed study: a new one where it was typed, otherwise what is left of its own."""
    from scalescope.api.requests import checked_options
    from scalescope.api.studies import check_budget

    if "budget_s" not in typed_options(context):
        return None
    seconds = float(checked_options({"budget_s": asked.budget_s})["budget_s"])
    check_budget(seconds)
    return seconds


def _is_study(model: str) -> bool:
    """Whether the MODEL is the folder of a study."""
    from scalescope.jobs.folders import mark_of

    return bool(model) and Path(model).is_dir() and mark_of(Path(model)) == "study"


def _folder_to_resume(folder: Path | None, model: str, resume: bool) -> Path | None:
    if not _is_study(model):
        return folder
    if not resume:
        raise UsageError(f"'{model}' is the folder of a study: add --resume to continue it")
    if folder and folder.resolve() != Path(model).resolve():
        raise UsageError(f"'{model}' and -o {folder} name two studies: keep one of them")
    return Path(model)


def _print_plan(request: "StudyRequest | None") -> None:
    from scalescope.report.study_parts import plan_lines
    from scalescope.studies.run import dry_run

    if request is None:
        raise UsageError("--dry-run needs a MODEL or a command")
    print(*plan_lines(dry_run(request), request.budget_s), sep="\n")


def _kept(folder: str) -> str:
    if not folder:
        return " and nothing was begun"
    return f" and finished parts are kept; resume with: {folder_command('study --resume -o', Path(folder))}"
