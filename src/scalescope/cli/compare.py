"""`scalescope compare`: what changed between two results, with an exit code for CI."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalescope.cli.options import Json, OutputOptions
from scalescope.cli.output import Ending, from_here

if TYPE_CHECKING:
    from scalescope.records.comparison import Comparison
    from scalescope.records.results import Results

SLOWER = 3  # The exit code

_WHAT = "A result folder, or files that scalescope explain reads: timelines, traces, tables, logs."


def compare(
    a: Annotated[Path, typer.Argument(help=f"Before. {_WHAT}", show_default=False)],
    b: Annotated[Path, typer.Argument(help="After.", show_default=False)],
    tolerance: Annotated[str, typer.Option(metavar="FRACTION", help="A change within this fraction is none.")] = "5%",
    json: Json = False,
    details: Annotated[bool, typer.Option("--details", help="Show all times, not only the first ones.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show only the answer.")] = False,
) -> None:
    """What changed? Times of two results with intervals; exit code 3 when B is slower than the tolerance allows.

    scalescope compare results/yesterday results/today --tolerance 5%
    scalescope compare timeline-mpi.json timeline-nccl.json
    """
    from scalescope.show import document_of
    from scalescope.show.terminal import show
    from scalescope.studies.compare import compare as compared
    from scalescope.studies.results import read_results
    from scalescope.units import parse_fraction

    ending = Ending(OutputOptions(json=json, details=details, quiet=quiet), None)
    allowed = parse_fraction(tolerance, "--tolerance")
    (first,), (second,) = read_results([a]), read_results([b])
    comparison = compared(first, second, allowed)
    told = document_of(comparison)
    ending.tell(
        show,
        told,
        answer=told.answer,
        follow=next_command(comparison, second, a, b),
        document=told.json,
    )
    if comparison.slower:
        raise typer.Exit(SLOWER)


def next_command(comparison: "Comparison", results: "Results", a: Path, b: Path) -> str:
    """Both on a page; more launches first where nothing is decided and they can be had."""
    undecided = all(pair.verdict == "undecided" for pair in comparison.decisive)
    if undecided and results.measurement and b.is_dir():
        words = ["scalescope", "measure", "--resume", str(from_here(b)), "--launches", "10"]
    else:
        words = ["scalescope", "report", str(from_here(a)), str(from_here(b)), "-o", "report.html"]
    return shlex.join(words)
