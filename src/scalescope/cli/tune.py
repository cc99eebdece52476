"""`scalescope tune`: find faster knobs while it trains, or launch by launch, and say whether they are worth it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.options import (
    DryRun,
    Engine,
    Folder,
    LaunchOptions,
    Model,
    ModelOptions,
    OutputOptions,
    ShowOutput,
    given,
    grouped,
    typed_options,
)
from scalescope.cli.output import Ending, from_here, interruptible
from scalescope.cli.retype import folder_command, retyped
from scalescope.cli.tune_options import FixedKnobs, MethodChoice, Search
from scalescope.errors import UsageError

if TYPE_CHECKING:
    from scalescope.records.tuning import TuneRequest, Tuning


_WITH_RESUME = {"resume", "budget_s", "show_output", *given(OutputOptions())}


@grouped
def tune(
    *,
    context: typer.Context,
    model: Model = "",
    np: Annotated[
        str, typer.Option("--np", "-np", metavar="N", help="Number of processes (default: 2, or all slots of --hosts).")
    ] = "",
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Batch size per process (default: 32 for a MODEL).")
    ] = None,
    engine: Engine = "",
    search: Search,
    fixed: FixedKnobs,
    launching: LaunchOptions,
    building: ModelOptions,
    shown: OutputOptions,
    folder: Folder = None,
    dry_run: DryRun = False,
    show_output: ShowOutput = False,
) -> None:
    """What should I change? Finds faster knobs of DDP or Horovod for a MODEL, or for your own training after --.

    Both are tuned while they train, your script unchanged: scalescope tune --np 4 -- python train.py
    The default is kept unless another setting is clearly faster. A horovodrun line works as it is:
    scalescope tune horovodrun -np 4 --autotune python train.py
    """
    from scalescope.api.tune_request import budget_of, tune_request
    from scalescope.records.store import load
    from scalescope.report.tuning_progress import TuneProgress
    from scalescope.tuner import run
    from scalescope.tuner.journal import PLAN, TunePlan

    ending = Ending(shown, folder, keep_stdout=dry_run)
    if search.join:
        _join(search.join)
        return
    _refuse(context, search)
    progress = TuneProgress(ending.console, show_output=show_output, **ending.progress)
    if search.resume:
        with interruptible(lambda _: _kept(str(search.resume), resumable=True)), progress:
            place, tuning = run.resume(search.resume, progress, budget_of(search.budget_s))
    else:
        told = given(search, launching, building)
        for name in ("autotune", "offline", "resume", "join"):
            told.pop(name)
        told |= {"np": np, "batch": batch, "engine": engine, "folder": folder, "command": context.obj or ()}
        told |= {"method": _method(search), "hold": fixed.assignments(), "config_file": fixed.config_file}
        request = tune_request(model, note=lambda text: None if shown.quiet else ending.say(text), **told)
        if dry_run:
            print(*run.dry_run(request), sep="\n")
            return
        with interruptible(lambda where: _kept_of(request, where)), progress:
            place, tuning = run.tune(request, progress)
    tell(ending, tuning, load(place / PLAN, TunePlan).request if search.resume else request, place)


def _method(search: Search) -> str | None:
    if search.offline and search.method not in (None, MethodChoice.offline):
        raise UsageError(f"--offline and --method {search.method} contradict each other: keep one of them")
    return "offline" if search.offline else search.method.value if search.method else None


def _refuse(context: typer.Context, search: Search) -> None:
    """A resumed search is told nothing new; a setting found earlier is used without a search."""
    if search.resume and context.obj:
        raise UsageError("--resume knows what to tune: leave the command out")
    of_a_search = given(search).keys() - {"start_from"}
    for name, option in typed_options(context).items():
        if search.resume and name not in _WITH_RESUME:
            raise UsageError(f"--resume keeps what was asked: leave {option} out, or start over without --resume")
        if search.start_from and name in of_a_search:
            raise UsageError(f"--start-from uses a setting without a search: leave {option} out, or --start-from")


def _join(folder: Path) -> None:
    """The search for a script that tunes itself: `with scalescope.tuning(model):` starts this next to rank 0."""
    from scalescope.records.store import load
    from scalescope.report.tuning_progress import TuneProgress
    from scalescope.tuner.context import search_for
    from scalescope.tuner.journal import PLAN, TunePlan

    ending = Ending(OutputOptions(), None, keep_stdout=True)
    with TuneProgress(ending.console, show_output=False, **ending.progress) as progress:
        tuning = search_for(folder, progress)
    if tuning is None:
        raise typer.Exit(1)
    tell(ending, tuning, load(folder / PLAN, TunePlan).request, folder)


def tell(ending: Ending, tuning: "Tuning", request: "TuneRequest", folder: Path) -> None:
    """What came out, where it is, the answer and the next command."""
    from scalescope.show import document_of
    from scalescope.show.terminal import show

    told = document_of(tuning)
    ending.tell(
        show,
        told,
        answer=told.answer,
        follow=next_command(tuning, request, folder),
        document=told.json,
        write=lambda: _files(ending, tuning, request, folder),
    )


def _files(ending: Ending, tuning: "Tuning", request: "TuneRequest", folder: Path) -> list[str]:
    """Write what people keep, draw, and say where it is."""
    from scalescope.tuner.settings import YAML, how_to_use, write_settings

    here, said = from_here(folder), []
    if tuning.decision == "use":
        setting = {**tuning.held, **tuning.values}
        about = f"{tuning.engine}, {tuning.np} processes, found by scalescope tune: {tuning.what}"
        written = write_settings(folder, tuning.engine, setting, about)
        said.append(f"Settings: {', '.join(str(from_here(path)) for path in written)}")
        said += how_to_use(tuning.engine, setting, str(here / YAML))
    drawn = []
    if tuning.samples:
        said.append(f"Log: {from_here(Path(request.log_file or folder / 'tune.csv'))}")
        drawn = ending.drawn(tuning, folder)
    return [*drawn, *said, f"Records: {here}"]


def next_command(tuning: "Tuning", request: "TuneRequest", folder: Path) -> str:
    """Confirm what was found; finish what was not; or see where the time goes instead."""
    from scalescope.tuner.settings import THREADS, shown_value

    compared = any(sample.phase == "confirm" for sample in tuning.samples)
    if tuning.decision == "undecided" and (tuning.method == "offline" or (tuning.method == "online" and compared)):
        return folder_command("tune --resume", folder)
    values = {**tuning.held, **tuning.values} if tuning.complete and tuning.decision == "use" else dict(tuning.held)
    changes = {
        "threads_per_rank": values.pop(THREADS.name, request.threads_per_rank),
        "hold": tuple(f"{name}={shown_value(value)}" for name, value in values.items()),
        "engine": tuning.engine,
        "np": tuning.np,
    }
    if not tuning.complete:
        return retyped("tune", request, method="offline", **changes)
    return retyped("measure" if tuning.decision == "use" else "explain", request, **changes)


def _kept_of(request: "TuneRequest", folder: str) -> str:
    """What an interrupted search leaves; `folder` may be unknown."""
    from scalescope.tuner.run import resumed_as

    if request.start_from is not None:
        return "; type the same command to train again"
    folder = folder or request.folder
    return _kept(folder, resumable=bool(folder) and resumed_as(request, Path(folder)) is not None)


def _kept(folder: str, *, resumable: bool) -> str:
    where = f" in {from_here(Path(folder))}" if folder else ""
    resume = f"resume with: scalescope tune --resume {shlex.quote(str(from_here(Path(folder))))}"
    return (
        f" and every finished sample is kept{where}; {resume if resumable else 'type the same command to start over'}"
    )
