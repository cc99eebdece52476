"""report: results on a page, as figures and as tables."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scalescope.errors import UsageError
from scalescope.named_paths import takes_paths
from scalescope.options import of_run, read
from scalescope.progress import Progress
from scalescope.records.request import ReportRequest
from scalescope.show import document_of
from scalescope.show.document import Document
from scalescope.text import plural
from scalescope.verbs.verb import Ending, Screen, Verb, from_here, retyped

if TYPE_CHECKING:
    from scalescope.records.comparison import Comparison
    from scalescope.records.results import Results

FIGURES = ("pdf", "svg", "png")


def _report(request: ReportRequest, _progress: Progress) -> "Sequence[Results]":
    from scalescope.studies.results import read_results

    return read_results(request.paths)


def of_report(results: "list[Results]", request: ReportRequest, _screen: Screen) -> Ending:
    """The page, figures, tables and the proposal."""
    from scalescope.jobs.folders import mark_of
    from scalescope.records.store import write_whole
    from scalescope.show.page import PAGE, check_page, write_page
    from scalescope.show.proposal import check_proposal, write_proposal
    from scalescope.show.study import on_page, report_json

    paths = [Path(path) for path in request.paths]
    page = Path(request.page) if request.page else paths[0] / PAGE if mark_of(paths[0]) else Path(PAGE)
    figures, tables, proposal = (
        Path(each) if each else None for each in (request.figures, request.tables, request.proposal)
    )
    check_page(page)
    for folder in (figures, tables):
        if folder and folder.exists() and not folder.is_dir():
            raise UsageError(f"'{folder}' is a file: name a folder for figures and tables")
    results = [with_commands(each, paths) for each in results]
    texts = result_tables(results, tables) if tables else {}
    if proposal:
        check_proposal(results, proposal)
    files = [page, *([proposal] if proposal else []), *texts]
    for index, file in enumerate(files):  # before anything is written
        if file.absolute() in [other.absolute() for other in files[:index]]:
            raise UsageError(f"'{file}' would be written twice: choose another name")
        if file.exists() and any(file.samefile(path) for path in paths):
            raise UsageError(f"'{file}' is read and would be overwritten: choose another name")

    def write() -> list[str]:
        chapters, over_all = on_page(results, changed)
        missing = write_page(chapters, over_all, page)
        said = [f"Page: {from_here(page)}", *([missing] if missing else [])]
        for file, text in texts.items():
            write_whole(file, text.encode())
        if figures:
            drawn = len(write_figures(results, figures))
            said.append(f"Figures: {plural(drawn, 'file')} in {from_here(figures)}" if drawn else "Figures: none")
        if tables:
            said.append(f"Tables: {plural(len(texts), 'file')} in {from_here(tables)}" if texts else "Tables: none")
        if proposal:
            missing_there = write_proposal(results, proposal)
            said += [f"Proposal: {from_here(proposal)}", *(f"Warning: {line}" for line in missing_there)]
        return said

    documents, changed = [document_of(each) for each in results], comparison_of(results)
    document = documents[0]._replace(brief=())
    if len(results) > 1:
        named = [f"{each.name}: {told.answer}" for each, told in zip(results, documents, strict=True)]
        document = document_of(changed) if changed else Document("")
        apart = [line for each in results for line in each.apart]
        document = document._replace(answer="\n".join(named), warnings=[*document.warnings, *apart])
    return Ending(document, results[-1].follow, write, lambda: report_json(results, page, changed))


def with_commands(results: "Results", paths: Sequence[Path]) -> "Results":
    """The results with what was typed to get them, and what to type next."""
    from scalescope.verbs import find_verb, planned_request
    from scalescope.verbs.study import after_study

    requests = {each.verb: planned_request(find_verb(each.verb), Path(each.folder)) for each in results.done}
    done = tuple(
        msgspec.structs.replace(each, command=retyped(each.verb, asked, **of_run(asked)) if asked else "")
        for each, asked in ((each, requests[each.verb]) for each in results.done)
    )
    if results.study:
        folder = next(Path(each.folder) for each in results.done if each.verb == "study")
        follow, purpose = after_study(results, requests["study"], folder)
    else:
        follow, purpose = _after_results(results, requests, paths), ""
    return msgspec.structs.replace(results, done=done, follow=follow, purpose=purpose)


def _after_results(results: "Results", requests: dict[str, Any], paths: Sequence[Path]) -> str:
    """Next command: what the verb that got furthest would say next."""
    from scalescope.records.request import ExplainRequest
    from scalescope.show.autotune import next_commands
    from scalescope.verbs.estimate import after_estimate
    from scalescope.verbs.explain import after_table, after_traces, request_behind
    from scalescope.verbs.measure import after_measure
    from scalescope.verbs.tune import after_tune

    folders = {each.verb: Path(each.folder) for each in results.done}
    if results.tuning and requests.get("tune"):
        return after_tune(results.tuning, requests["tune"], folders["tune"])
    if results.explanations:
        last = results.explanations[-1]
        return after_traces(last, requests.get("explain") or requests.get("measure") or request_behind(last, paths))
    if results.scaling and requests.get("measure"):
        return after_measure(requests["measure"], results.scaling, folders["measure"])
    if results.autotune:
        return " && ".join(next_commands(results.autotune))
    if results.prediction and requests.get("estimate"):
        return after_estimate(requests["estimate"], results.prediction, folders["estimate"])
    if results.scaling:
        read = ExplainRequest(paths=tuple(map(str, paths)), folder=str(paths[0].parent))
        return after_table(results.scaling, read)
    return shlex.join(["scalescope", "measure", results.what])


@takes_paths
def write_report(paths: str | Path | Sequence[str | Path], page: str | Path = "report.html") -> Path:
    """All results on one page that needs no network; those of one training together, others compared.

    Args:
        paths: Result folders, or files that explain reads.
        page: The file to write; an earlier page is replaced, anything else not.

    Returns:
        The file.

    Raises:
        UsageError: A path holds no results, or the file is no page of ours.
    """
    from scalescope.show.page import write_page
    from scalescope.show.study import on_page
    from scalescope.studies.results import read_results

    results = read_results([paths] if isinstance(paths, str | Path) else paths)
    write_page(*on_page(results, comparison_of(results)), Path(page))
    return Path(page)


def comparison_of(results: Sequence["Results"]) -> "Comparison | None":
    """Compare the first with the second; None where there is one, or they have nothing in common."""
    from scalescope.studies.compare import compare as compared

    if len(results) < 2:
        return None
    try:
        return compared(results[0], results[1])
    except UsageError:
        return None


def write_figures(results: Sequence["Results"], folder: Path) -> list[Path]:
    """Every figure as PDF, SVG and PNG; those of several trainings in folders of their own."""
    from scalescope.show.files import write_figures as write

    return [path for each, place in _places(results, folder) for path in write(document_of(each), place, FIGURES)]


def result_tables(results: Sequence["Results"], folder: Path) -> dict[Path, str]:
    """Curves as LaTeX and CSV; maps and steps as CSV: texts by the files to write."""
    from scalescope.show.files import as_csv, as_latex

    files: dict[Path, str] = {}
    for each, place in _places(results, folder):
        files |= {place / f"{name}.csv": as_csv(table) for name, table in document_of(each).files.items()}
        if each.scaling:
            files[place / "scaling.tex"] = as_latex(document_of(each.scaling), "scaling")
    return files


def _places(results: Sequence["Results"], folder: Path) -> list[tuple["Results", Path]]:
    """Every training and its folder; of one the folder itself."""

    def named(index: int, name: str) -> Path:  # a user's name as one that any file system takes
        short = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60].strip("-.") or "result"
        return folder / f"{index}-{short}"

    if len(results) == 1:
        return [(results[0], folder)]
    return [(each, named(index, each.name)) for index, each in enumerate(results, start=1)]


VERB = Verb(
    "report",
    ReportRequest,
    """All results on one page: what to use, how fast it is, why it is not faster, and what to change.

    scalescope report results/estimate-1 results/measure-1 results/tune-1 -o report.html
    scalescope report results/before results/after
    """,
    lambda **given: ReportRequest(**read(ReportRequest, given)),
    _report,
    ("json", "details", "quiet"),
    end=of_report,
)
