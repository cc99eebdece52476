"""`scalescope report`: all results of a training on one page, and as figures, tables and a proposal."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalescope.cli.options import Json, OutputOptions
from scalescope.cli.output import Ending, from_here
from scalescope.errors import ScalescopeError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from scalescope.records.results import Results
    from scalescope.records.study import Study

Paths = Annotated[
    list[Path],
    typer.Argument(
        help="Folders of scalescope study, estimate, measure, explain and tune, or files that explain reads. Those of "
        "one training are shown together, others are compared."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only the answer.")]


def report(
    paths: Paths,
    output: Annotated[
        Path | None,
        typer.Option("-o", metavar="FILE", help="The page (default: report.html in the first result folder)."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every figure there as PDF, SVG and PNG.")
    ] = None,
    tables: Annotated[Path | None, typer.Option(metavar="DIR", help="Write tables there as LaTeX and CSV.")] = None,
    proposal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one PDF page for an allocation: speedups over nodes, plot, method."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """All results on one page: what to use, how fast it is, why it is not faster, and what to change.

    scalescope report results/estimate-1 results/measure-1 results/tune-1 -o report.html
    scalescope report results/before results/after
    """
    from scalescope.api.reports import (
        PAGE,
        check_page,
        check_proposal,
        report_document,
        result_tables,
        write_figures,
        write_page,
        write_proposal,
    )
    from scalescope.jobs.folders import mark_of
    from scalescope.records.store import write_whole
    from scalescope.report.study import answer
    from scalescope.studies.results import read_results

    ending = Ending(OutputOptions(json=json, quiet=quiet), None)
    path = output or (paths[0] / PAGE if mark_of(paths[0]) else Path(PAGE))
    check_page(path)
    for folder in (figures, tables):
        if folder and folder.exists() and not folder.is_dir():
            raise UsageError(f"'{folder}' is a file: name a folder for figures and tables")
    results = [with_commands(each, paths) for each in read_results(paths)]
    texts = result_tables(results, tables) if tables else {}
    if proposal:
        check_proposal(results, proposal)
    _refuse_outputs(paths, [path, *([proposal] if proposal else []), *texts])

    def write() -> list[str]:
        missing = write_page(results, path)
        said = [f"Page: {from_here(path)}", *([missing] if missing else [])]
        for file, text in texts.items():
            write_whole(file, text.encode())
        if figures:
            said.append(f"Figures: {len(write_figures(results, figures))} files in {from_here(figures)}")
        if tables:
            said.append(f"Tables: {len(texts)} files in {from_here(tables)}")
        if proposal:
            asked = write_proposal(results, proposal)
            said += [f"Proposal: {from_here(proposal)}", *(f"Warning: {line}" for line in asked)]
        return said

    ending.tell(
        show,
        results,
        answer="\n".join(_named(each, answer(each).sentence, len(results)) for each in results),
        follow=results[-1].follow,
        document=lambda: report_document(results, path),
        write=write,
    )


def _refuse_outputs(inputs: Sequence[Path], files: Sequence[Path]) -> None:
    """Refuse, before anything is written, two files of one name and an input as output."""
    for index, file in enumerate(files):
        if file.absolute() in [other.absolute() for other in files[:index]]:
            raise UsageError(f"'{file}' would be written twice: choose another name")
        if file.exists() and any(file.samefile(read) for read in inputs):
            raise UsageError(f"'{file}' is read and would be overwritten: choose another name")


def _named(results: "Results", sentence: str, count: int) -> str:
    return f"{results.name}: {sentence}" if count > 1 else sentence


def show(results: Sequence["Results"], console: "Console", *, details: bool = False) -> None:
    """The first screen of the page; of several what changed from the first to the second."""
    from scalescope.api.reports import comparison_of
    from scalescope.show import document_of
    from scalescope.show.terminal import show as show_document

    changed = comparison_of(results)
    if len(results) == 1:
        show_document(document_of(results[0]), console)
    elif changed:
        show_document(document_of(changed), console, details=details)


def with_commands(results: "Results", paths: Sequence[Path]) -> "Results":
    """The results with what was typed to get them, and what to type next."""
    import msgspec

    done = tuple(
        msgspec.structs.replace(each, command=typed_again(each.verb, Path(each.folder))) for each in results.done
    )
    return msgspec.structs.replace(results, done=done, follow=_next(results, paths))


def typed_again(verb: str, folder: Path) -> str:
    """The command of a result folder; empty where its plan does not tell."""
    from scalescope.cli.retype import of_one_run, retyped

    request = _request(verb, folder)
    return retyped(verb, request, **of_one_run(request)) if request is not None else ""


def _request(verb: str, folder: Path) -> Any:
    from scalescope.records.request import EstimatePlan, Plan
    from scalescope.records.store import load
    from scalescope.records.study import StudyPlan
    from scalescope.tuner.journal import TunePlan

    plans: dict[str, Any] = {
        "estimate": EstimatePlan,
        "measure": Plan,
        "explain": Plan,
        "tune": TunePlan,
        "study": StudyPlan,
    }
    with suppress(ScalescopeError, KeyError):
        return load(folder / "plan.json", plans[verb]).request
    return None


def _after_study(study: "Study", folder: Path) -> str:
    """What the budget did not hold, or failed; of a whole study its figures and tables."""
    from scalescope.cli.retype import folder_command

    rest = [part for part in study.parts if part.state not in ("done", "not needed")]
    if not rest:
        return folder_command("report", folder, "--figures", "figures", "--tables", "tables")
    minutes = int(sum(part.planned_s for part in rest) // 60) + 1
    return folder_command("study --resume -o", folder, "--budget", f"{minutes}m")


def _next(results: "Results", paths: Sequence[Path]) -> str:
    """What the verb that got furthest would say next."""
    from scalescope.cli.estimate import next_command as after_estimate
    from scalescope.cli.explained import next_after_table, next_after_traces, request_behind
    from scalescope.cli.measure import next_command as after_measure
    from scalescope.cli.tune import next_command as after_tune
    from scalescope.show.autotune import next_commands

    folders = {each.verb: Path(each.folder) for each in results.done}
    if results.study:
        return _after_study(results.study, folders["study"])
    requests = {verb: _request(verb, folder) for verb, folder in folders.items()}
    if results.tuning and requests.get("tune"):
        return after_tune(results.tuning, requests["tune"], folders["tune"])
    if results.explanations:
        last = results.explanations[-1]
        behind = requests.get("explain") or requests.get("measure") or request_behind(last, paths)
        return next_after_traces(last, behind)
    if results.scaling and requests.get("measure"):
        return after_measure(requests["measure"], results.scaling, folders["measure"])
    if results.autotune:
        return " && ".join(next_commands(results.autotune))
    if results.prediction and requests.get("estimate"):
        return after_estimate(requests["estimate"], results.prediction, folders["estimate"])
    if results.scaling:
        return next_after_table(results.scaling, paths, paths[0].parent, {})
    return shlex.join(["scalescope", "measure", results.what])
