"""`scalescope explain`: where the time goes, from what is already there or from a run that is captured now."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.explain_answers import (
    tell_autotune,
    tell_explanation,
    tell_scaling,
    write_explanation,
)
from scalescope.cli.options import Json, Quiet
from scalescope.cli.output import from_here
from scalescope.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from rich.console import Console


_FILES, _RUN = "Files", "A command, captured now"


def explain(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Horovod timelines, profiler traces of all ranks, a folder of scalescope measure, training logs, "
            "a scaling table or a Horovod autotune log (CSV)."
        ),
    ] = None,
    np: Annotated[
        str, typer.Option(help="Processes of every log, in the same order: 1,2,4; or of the command: 2.")
    ] = "",
    pattern: Annotated[
        str,
        typer.Option(
            help="What a line of the logs looks like: a regular expression with a group named epoch_s, step_s, "
            "examples_per_s, examples_per_s_total or examples_per_s_per_worker.",
            rich_help_panel=_FILES,
        ),
    ] = "",
    estimate: Annotated[
        Path | None,
        typer.Option(
            help="A folder of scalescope estimate, or a cluster.toml: its prediction beside the trace.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the steps of all ranks, on one clock, as a trace for Perfetto.", rich_help_panel=_FILES
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="ddp or horovod (default: ddp).", rich_help_panel=_RUN)] = "",
    launcher: Annotated[
        str, typer.Option(help="torchrun, mpirun, horovodrun, srun or own.", rich_help_panel=_RUN)
    ] = "",
    hosts: Annotated[str, typer.Option(help="Hosts and their slots: a:2,b:2.", rich_help_panel=_RUN)] = "",
    threads_per_rank: Annotated[
        int | None, typer.Option(min=1, help="Cores of a host over its ranks unless given.", rich_help_panel=_RUN)
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="A variable for every rank: NAME=VALUE.", rich_help_panel=_RUN)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="So many steps the script makes at most.", rich_help_panel=_RUN)
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", help="Folder for records, tables and pictures.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started.", rich_help_panel=_RUN)
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Where does the time go? Reads traces, tables and logs that you have, or captures a run of your command.

    scalescope explain timeline.json
    scalescope explain rank0.json.gz rank1.json.gz
    scalescope explain --np 2 -- python train.py
    """
    from rich.console import Console

    from scalescope.diagnosis.sources import check_export
    from scalescope.diagnosis.sources import explain as read
    from scalescope.jobs.folders import check, result_folder
    from scalescope.records.autotune import Autotune
    from scalescope.records.explanation import Explanation

    if output and output.exists() and not output.is_dir():
        raise UsageError(f"-o names a folder, and '{output}' is a file: choose another name")
    command: tuple[str, ...] = context.obj or ()
    console = Console(stderr=json)
    given = list(paths or [])
    if command:
        if given:
            raise UsageError("name files, or -- and a command, not both")
        captured = _capture(
            command, console, np, engine, launcher, hosts, threads_per_rank, env, steps, output, dry_run, quiet
        )
        if captured is None:
            return
        given, output = [from_here(captured)], captured
    elif dry_run or engine or launcher or hosts or env or steps or threads_per_rank:
        raise UsageError(
            "--engine, --launcher, --hosts, --threads-per-rank, --env, --steps and --dry-run go with a "
            "command after --: leave them out"
        )
    if output:
        check(output, "explain", _explained(output, given))
    if export:
        check_export(export)
    counts = () if command else _counts(np)
    found = read(given, np=counts, pattern=pattern, estimate=estimate, export_to=export)
    with result_folder("explain", output, also=_explained(output, given)) if output else nullcontext():
        if isinstance(found, Explanation):
            said = write_explanation(found, output) if output else []
            if export:
                said.append(f"Steps for Perfetto (ui.perfetto.dev) or chrome://tracing: {export}")
            tell_explanation(found, console, said, given, output, json=json, quiet=quiet)
        elif isinstance(found, Autotune):
            tell_autotune(found, console, given[0], output, json=json, quiet=quiet)
        else:
            tell_scaling(found, console, given, np, pattern, output, json=json, quiet=quiet)


def _explained(output: Path, given: Sequence[Path]) -> tuple[str, ...]:
    """What is explained may be explained in its own folder, whichever verb of ours made that."""
    from scalescope.jobs.folders import mark_of

    own = {place.resolve() for path in given for place in (path, path.parent)}
    return (mark_of(output),) if output.resolve() in own else ()


def _counts(text: str) -> tuple[int, ...]:
    """`1,2,4` in the given order."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**9 for part in parts):
        raise UsageError(f"--np takes whole numbers such as 1,2,4, one per log, not '{text}'")
    return tuple(int(part) for part in parts)


def _capture(
    command: Sequence[str],
    console: "Console",
    np: str,
    engine: str,
    launcher: str,
    hosts: str,
    threads_per_rank: int | None,
    env: Sequence[str] | None,
    steps: int | None,
    output: Path | None,
    dry_run: bool,
    quiet: bool,
) -> Path | None:
    """Run the command once with every rank captured; its folder, or None when nothing was to be started."""
    from scalescope.jobs.request import parse_environment, parse_hosts
    from scalescope.measurement.trace import traced_commands, traced_run
    from scalescope.records.request import MeasureRequest
    from scalescope.report.progress import MeasureProgress
    from scalescope.units import parse_counts

    counts = parse_counts(np or "2", "--np")
    if len(counts) > 1:
        raise UsageError(f"--np takes one number of processes with a command, not '{np}'")
    request = MeasureRequest(
        command=tuple(command),
        np=counts,
        engines=(engine,) if engine else (),
        launcher=launcher,
        hosts=parse_hosts(hosts),
        threads_per_rank=threads_per_rank,
        env=parse_environment(list(env or [])),
        steps=steps,
        folder=str(output or ""),
        trace=True,
    )
    if dry_run:
        print("\n".join(traced_commands(request)))
        return None
    try:
        with MeasureProgress(console, quiet=quiet, show_output=False) as progress:
            return traced_run(request, progress)
    except KeyboardInterrupt:
        raise Interrupted("interrupted: nothing is left running and nothing was explained") from None
