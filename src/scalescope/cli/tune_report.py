"""What `scalescope tune` shows while it works and at its end."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.cli.options import as_typed
from scalescope.cli.output import from_here, pictures, tell
from scalescope.errors import Interrupted

if TYPE_CHECKING:
    from rich.console import Console

    from scalescope.records.tuning import TuneRequest, Tuning, Values


def tell_tuning(asked: "TuneRequest | Path", console: "Console", *, json: bool, quiet: bool, show_output: bool) -> None:
    """Tune what is asked, or go on in a folder; then the landscape, files, the answer and the next command."""
    from scalescope.records.store import load
    from scalescope.report.tuning_progress import TuneProgress
    from scalescope.tuner.journal import PLAN, TunePlan
    from scalescope.tuner.run import resume, tune

    try:
        with TuneProgress(console, quiet=quiet, show_output=show_output) as progress:
            folder, tuning = resume(asked, progress) if isinstance(asked, Path) else tune(asked, progress)
    except KeyboardInterrupt as stopped:
        raise Interrupted(_interrupted(asked, str(stopped))) from None
    tell_result(tuning, load(folder / PLAN, TunePlan).request, folder, console, json=json, quiet=quiet)


def tell_result(
    tuning: "Tuning", request: "TuneRequest", folder: Path, console: "Console", *, json: bool, quiet: bool
) -> None:
    """What came out, where it is, the answer and the next command."""
    from scalescope.report.tuning import sentence
    from scalescope.report.tuning_show import as_document, show

    tell(
        console,
        lambda: show(tuning, console),
        _files(tuning, request, folder),
        sentence(tuning),
        next_command(tuning, request, folder),
        lambda: as_document(tuning),
        json=json,
        quiet=quiet,
    )


def _interrupted(asked: "TuneRequest | Path", folder: str) -> str:
    """What is kept, where, and how to go on; `folder` may be unknown."""
    if isinstance(asked, Path):
        return f"interrupted: {_kept(str(asked))}; go on with: scalescope tune --resume {_quoted(asked)}"
    if asked.start_from is not None:
        return "interrupted: nothing is left running; type the same command to train again"
    folder = folder or asked.folder
    if folder and (Path(folder) / "launches").is_dir() and asked.method != "native":
        return f"interrupted: {_kept(folder)}; go on with: scalescope tune --resume {_quoted(Path(folder))}"
    return f"interrupted: {_kept(folder)}; type the same command to begin anew"


def _kept(folder: str) -> str:
    where = f" in {from_here(Path(folder).absolute())}" if folder else ""
    return f"nothing is left running and every finished sample is kept{where}"


def _files(tuning: "Tuning", request: "TuneRequest", folder: Path) -> list[str]:
    """Write what people keep, draw, and say where it is."""
    from scalescope.tuner.settings import YAML, how_to_use, write_settings

    here = from_here(folder)
    said = pictures(lambda: _draw(tuning, folder)) if tuning.samples else []
    if tuning.decision == "use":
        setting = {**tuning.held, **tuning.values}
        about = f"{tuning.engine}, {tuning.np} processes, found by scalescope tune: {tuning.what}"
        written = write_settings(folder, tuning.engine, setting, about)
        said.append(f"Settings: {', '.join(str(from_here(path)) for path in written)}")
        said += how_to_use(tuning.engine, setting, str(here / YAML))
    if tuning.samples:
        said.append(f"Log: {from_here(Path(request.log_file or folder / 'tune.csv'))}")
    return [*said, f"Records: {here}"]


def _draw(tuning: "Tuning", folder: Path) -> list[Path]:
    from scalescope.charts import write_charts

    return write_charts(tuning, folder)


def next_command(tuning: "Tuning", request: "TuneRequest", folder: Path) -> str:
    """Confirm what was found; finish what was not; or see where the time goes instead."""
    if not tuning.complete and tuning.method == "offline":
        return f"scalescope tune --resume {_quoted(folder)}"
    if not tuning.complete:
        return _typed("tune --offline", request, tuning, tuning.held)
    if tuning.decision == "use":
        return _typed("measure", request, tuning, {**tuning.held, **tuning.values})
    if request.workload:
        return _typed("measure --trace", request, tuning, tuning.held)
    return _typed("explain", request, tuning, {})


def _typed(verb: str, request: "TuneRequest", tuning: "Tuning", values: "Values") -> str:
    """The same training under another verb, with these knobs."""
    from scalescope.tuner.settings import THREADS, shown_value

    threads = values.get(THREADS.name, request.threads_per_rank)
    words = ["--np", str(tuning.np)]
    if verb != "explain":
        words += ["--batch", str(request.batch)] if request.batch else []
        words += ["--device", request.device] if request.device != "auto" else []
        words += ["--ssh", request.ssh] if request.ssh != "ssh" else []
        words += ["--oversubscribe"] if request.oversubscribe else []
        words += [f"--launcher-arg={shlex.quote(word)}" for word in request.launcher_args]
    words += ["--engine", tuning.engine] if tuning.engine != "ddp" else []
    words += ["--launcher", request.launcher] if request.launcher else []
    words += ["--hosts", ",".join(f"{host.name}:{host.slots}" for host in request.hosts)] if request.hosts else []
    words += ["--threads-per-rank", str(threads)] if threads else []
    words += [word for name, value in request.env.items() for word in ("--env", f"{name}={value}")]
    words += [word for name in request.search if verb.startswith("tune") for word in ("--search", name)]
    option = "--hold" if verb.startswith("tune") else "--knob"
    for name, value in values.items():
        words += [option, f"{name}={shown_value(value)}"] if name != THREADS.name else []
    model = f" {as_typed(request.workload)}" if request.workload else ""
    command = f" -- {shlex.join(request.command)}" if request.command else ""
    return f"scalescope {verb}{model} {shlex.join(words)}{command}"


def _quoted(folder: Path) -> str:
    return shlex.quote(str(from_here(folder.absolute())))
