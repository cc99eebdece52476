"""`scalescope explain`: what tables, logs and measurements that are already there say about scaling."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalescope.cli.output import write
from scalescope.errors import UsageError

if TYPE_CHECKING:
    from scalescope.records.scaling import Scaling


def explain(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="A CSV table, one log per number of processes, or a folder of scalescope measure."),
    ] = None,
    np: Annotated[
        str, typer.Option(help="Processes of every log, in the same order: 1,2,4 (read from the file names).")
    ] = "",
    pattern: Annotated[
        str,
        typer.Option(
            help="What a line of the logs looks like: a regular expression with a group named epoch_s, step_s, "
            "examples_per_s, examples_per_s_total or examples_per_s_per_worker."
        ),
    ] = "",
    output: Annotated[Path | None, typer.Option("-o", help="Folder for records, tables and pictures.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer.")] = False,
) -> None:
    """Why does it scale like this? Reads scaling tables, training logs and measurements that you already have.

    scalescope explain examples/data/lab11.csv
    """
    from json import dumps

    from rich.console import Console

    from scalescope.reporting.scaling import show
    from scalescope.scaling.sources import explain as read

    if output and output.exists() and not output.is_dir():
        raise UsageError(f"-o names a folder, and '{output}' is a file: choose another name")
    scaling = read(paths or [], np=_counts(np), pattern=pattern)
    console = Console(stderr=json)
    said = write(scaling, output) if output else []
    if not quiet:
        show(scaling, console)
        for line in said:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(_answer(scaling), style="bold", markup=False, highlight=False, soft_wrap=True)
    if not quiet:
        command = _next_command(scaling, paths or [], np, pattern, output)
        console.print(f"Next: {command}", markup=False, highlight=False, soft_wrap=True)
    if json:
        print(dumps(_document(scaling)))


def _counts(text: str) -> tuple[int, ...]:
    """`1,2,4` in the given order."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 10**9 for part in parts):
        raise UsageError(f"--np takes whole numbers such as 1,2,4, one per log, not '{text}'")
    return tuple(int(part) for part in parts)


def _document(scaling: "Scaling") -> dict[str, Any]:
    """What --json prints: speedups by number of processes on the first curve, and everything else that is known."""
    from scalescope.records.scaling import SPEEDUPS
    from scalescope.reporting.document import as_document
    from scalescope.scaling.logs.epochs import break_even_epochs, first_epoch_excess

    curve = scaling.curves[0] if scaling.curves else None
    points = {str(point.np): point for point in curve.points if point.engine == curve.engine} if curve else {}
    if curve and curve.baseline:
        points = {str(curve.baseline.np): curve.baseline} | points
    kind = scaling.source if scaling.source in ("table", "logs") else "measurement"
    document = {"kind": kind, "what": scaling.what, **as_document(scaling)}
    document["speedup"] = {
        name: {np: point.speedup[name].value for np, point in points.items() if name in point.speedup}
        for name in SPEEDUPS
    }
    if curve and kind == "logs" and curve.work_unit == "epochs":
        document["first_epoch_excess_s"] = {str(np): value for np, value in first_epoch_excess(curve).items()}
        document["break_even_epochs"] = {str(np): value for np, value in break_even_epochs(curve).items()}
    return document


def _answer(scaling: "Scaling") -> str:
    """The speedups of the most processes in one sentence; a measurement has its own."""
    from scalescope.records.scaling import SPEEDUP_NAMES
    from scalescope.reporting.measurement import sentence
    from scalescope.reporting.phrases import baseline_words, curve_title, largest
    from scalescope.units import plural

    if scaling.source not in ("table", "logs"):
        return sentence(scaling)
    curve = scaling.curves[0]
    point = largest(curve)
    if point is None or not point.speedup:
        return "There is nothing to compare with: add what other numbers of processes gave."
    values = ", ".join(
        f"{point.speedup[name].value:.2f}x {words}" for name, words in SPEEDUP_NAMES.items() if name in point.speedup
    )
    title = f"{curve_title(curve)}: " if len(scaling.curves) > 1 else ""
    answer = f"{title}{plural(point.np, 'process')} reach {values}, relative to {baseline_words(curve)}."
    return answer[0].upper() + answer[1:]


def _next_command(scaling: "Scaling", paths: Sequence[Path], np: str, pattern: str, output: Path | None) -> str:
    """What a user would type after this: pictures, a measurement of one's own, or more launches."""
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    if scaling.source == "measurement" and (folder / "plan.json").exists():
        return f"scalescope measure --resume {shlex.quote(str(folder))} --precision 3%"
    if output is None:
        options = [word for name, value in (("--np", np), ("--pattern", pattern)) if value for word in (name, value)]
        folder = Path("results") / (paths[0].stem if len(paths) == 1 else "explain")
        return shlex.join(["scalescope", "explain", *map(str, paths), *options, "-o", str(folder)])
    counts = sorted({point.np for curve in scaling.curves for point in curve.points})
    return f"scalescope measure --np {','.join(map(str, counts))} -- python train.py"
