"""`scalescope tune`: find faster knobs while it trains, or launch by launch, and say whether they are worth it."""

import shlex
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from scalescope.errors import UsageError

if TYPE_CHECKING:
    from scalescope.records.tuning import TuneRequest, Tuning


class MethodChoice(StrEnum):
    """How settings are tried."""

    online = "online"
    offline = "offline"
    native = "native"


_search = partial(typer.Option, rich_help_panel="Search")
_knobs = partial(typer.Option, rich_help_panel="Fixed knobs")


def _also(horovodrun: str, text: str, name: str = "", metavar: str = "N", **limits: Any) -> Any:
    """An option that also goes by the name that horovodrun gave it."""
    return _search(f"--{name or horovodrun}", f"--autotune-{horovodrun}", metavar=metavar, help=text, **limits)


def _switch(name: str, text: str) -> Any:
    return _knobs(f"--{name}/--no-{name}", help=text)


def _amount(unit: str, text: str) -> Any:
    return _knobs(metavar=unit, help=text)


@dataclass(frozen=True)
class Search:
    """What tune searches, and for how long; several options also have the name that horovodrun gave them."""

    method: Annotated[
        MethodChoice | None,
        _search(
            help="online: while it trains (DDP's default); offline: one launch per setting (Horovod's default); "
            "native: Horovod's own autotune."
        ),
    ] = None
    offline: Annotated[bool, _search("--offline", help="Short for --method offline.")] = False
    warmup_samples: Annotated[int | None, _also("warmup-samples", "Warm-up length, in samples.", min=0)] = None
    steps_per_sample: Annotated[int | None, _also("steps-per-sample", "Measured steps per setting.", min=1)] = None
    max_samples: Annotated[
        int | None,
        _also(
            "bayes-opt-max-samples",
            "Maximum number of settings to try; the search stops earlier when no gain is left.",
            name="max-samples",
            min=1,
        ),
    ] = None
    gp_noise: Annotated[
        float | None,
        _also(
            "gaussian-process-noise",
            "Noise of a sample as a fraction of its step time, 0 to 1 (default: measured).",
            name="gp-noise",
            metavar="X",
        ),
    ] = None
    log_file: Annotated[
        Path | None, _also("log-file", "CSV with one row per sample (default: tune.csv in the results).", metavar="CSV")
    ] = None
    search: Annotated[
        list[str] | None,
        _search(
            metavar="KNOB",
            help="Also search gradient_as_bucket_view (off by default: scripts that keep references to gradients "
            "may break).",
        ),
    ] = None
    start_from: Annotated[
        Path | None,
        _search(metavar="PATH", help="Train with a setting found earlier: tuned.yaml, tuning.json or their folder."),
    ] = None
    resume: Annotated[Path | None, _search(metavar="DIR", help="Resume the --offline search in this folder.")] = None
    join: Annotated[Path | None, typer.Option(hidden=True)] = None  # started by scalescope.tuning(), on rank 0


@dataclass(frozen=True)
class FixedKnobs:
    """Knobs that tune leaves as told; all but the first two are short for --hold NAME=VALUE."""

    hold: Annotated[list[str] | None, _knobs(metavar="NAME=VALUE", help="Keep this knob fixed; repeatable.")] = None
    config_file: Annotated[
        Path | None,
        _knobs(metavar="YAML", help="Knobs and search options from a config file of horovodrun, or a tuned.yaml."),
    ] = None
    bucket_cap_mb: Annotated[str | None, _amount("MIB", "DDP: bucket size.")] = None
    first_bucket_mb: Annotated[str | None, _amount("MIB", "DDP: size of the first bucket.")] = None
    gradient_as_bucket_view: Annotated[
        bool | None, _switch("gradient-as-bucket-view", "DDP: gradients are views of the buckets.")
    ] = None
    static_graph: Annotated[bool | None, _switch("static-graph", "DDP: every step uses the same parameters.")] = None
    hierarchical_allreduce: Annotated[
        bool | None, _switch("hierarchical-allreduce", "Reduce inside each host first.")
    ] = None
    hierarchical_allgather: Annotated[
        bool | None, _switch("hierarchical-allgather", "Horovod: gather inside each host first.")
    ] = None
    fusion_threshold_mb: Annotated[str | None, _amount("MIB", "Horovod: size of the fusion buffer.")] = None
    cycle_time_ms: Annotated[str | None, _amount("MS", "Horovod: cycle time of the background thread.")] = None
    cache_capacity: Annotated[str | None, _amount("COUNT", "Horovod: capacity of the response cache, in tensors.")] = (
        None
    )

    def assignments(self) -> list[str]:
        """All of them as NAME=VALUE."""
        short = {name: value for name, value in given(self).items() if name not in ("hold", "config_file")}
        return [
            *(f"{name}={str(value).lower()}" for name, value in short.items() if value is not None),
            *(self.hold or ()),
        ]


_WITH_RESUME = {"resume", "show_output", *given(OutputOptions())}


@grouped
def tune(
    *,
    context: typer.Context,
    model: Model = "",
    np: Annotated[
        str, typer.Option(metavar="N", help="Number of processes (default: 2, or all slots of --hosts).")
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

    DDP is tuned while it trains, your script unchanged: scalescope tune --np 4 -- python train.py
    The default is kept unless another setting is clearly faster. Options of horovodrun (--autotune-...) work too.
    """
    from scalescope.api.tune_request import tune_request
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
            place, tuning = run.resume(search.resume, progress)
    else:
        told = given(search, launching, building)
        for name in ("offline", "resume", "join"):
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
    from scalescope.report.tuning import sentence
    from scalescope.report.tuning_show import as_document, show

    ending.tell(
        show,
        tuning,
        files=_files(ending, tuning, request, folder),
        answer=sentence(tuning),
        follow=next_command(tuning, request, folder),
        document=lambda: as_document(tuning),
    )


def _files(ending: Ending, tuning: "Tuning", request: "TuneRequest", folder: Path) -> list[str]:
    """Write what people keep, draw, and say where it is."""
    from scalescope.tuner.settings import YAML, how_to_use, write_settings

    here = from_here(folder)
    said = ending.drawn(tuning, folder) if tuning.samples else []
    if tuning.decision == "use":
        setting = {**tuning.held, **tuning.values}
        about = f"{tuning.engine}, {tuning.np} processes, found by scalescope tune: {tuning.what}"
        written = write_settings(folder, tuning.engine, setting, about)
        said.append(f"Settings: {', '.join(str(from_here(path)) for path in written)}")
        said += how_to_use(tuning.engine, setting, str(here / YAML))
    if tuning.samples:
        said.append(f"Log: {from_here(Path(request.log_file or folder / 'tune.csv'))}")
    return [*said, f"Records: {here}"]


def next_command(tuning: "Tuning", request: "TuneRequest", folder: Path) -> str:
    """Confirm what was found; finish what was not; or see where the time goes instead."""
    from scalescope.tuner.settings import THREADS, shown_value

    if not tuning.complete and tuning.method == "offline":
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
    if request.start_from is not None:
        return "; type the same command to train again"
    folder = folder or request.folder
    return _kept(folder, resumable=bool(folder) and (Path(folder) / "launches").is_dir() and request.method != "native")


def _kept(folder: str, *, resumable: bool) -> str:
    where = f" in {from_here(Path(folder))}" if folder else ""
    resume = f"resume with: scalescope tune --resume {shlex.quote(str(from_here(Path(folder))))}"
    return (
        f" and every finished sample is kept{where}; {resume if resumable else 'type the same command to start over'}"
    )
