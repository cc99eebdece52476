"""Results on a page, as figures and as tables: figures are drawn here, because the report itself imports no charts."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.errors import UsageError, WorkFailed
from scalescope.named_paths import reading, takes_paths
from scalescope.text import plural

if TYPE_CHECKING:
    from scalescope.records.comparison import Comparison
    from scalescope.records.results import Results

PAGE = "report.html"
MOST_BYTES = 3_000_000  # Of a page: it is sent by mail
FIGURES = ("pdf", "svg", "png")
_BEGINNING = b"<!DOCTYPE html>"
_OURS = b'content="scalescope '  # In the head of every page of ours

Spec = Mapping[str, Any]


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
    from scalescope.studies.results import read_results

    write_page(read_results([paths] if isinstance(paths, str | Path) else paths), Path(page))
    return Path(page)


def page_of(results: Sequence["Results"]) -> str:
    """The page as one text of at most MOST_BYTES; figures that do not fit are pictures.

    Raises:
        UsageError: Even with pictures it would be larger.
    """
    from scalescope.charts.saving import start_renderer, vega_script
    from scalescope.report.page import page

    start_renderer()
    specs = [specs_of(each, len(results)) for each in results]
    both = comparison_of(results)
    over = _over_all(results)
    several = len(results) > 1
    named = {f"c{at}-{name}" if several else name: spec
             for at, drawn in enumerate(specs, 1) for name, spec in drawn.items()} | over  # fmt: skip
    largest = sorted(named, key=lambda name: len(str(named[name])), reverse=True)
    images: dict[str, str] = {}
    while True:
        text = page(results, specs, vega_script(), compared=both, compared_specs=over, images=images)
        if len(text.encode()) <= MOST_BYTES:
            return text
        if not largest:
            raise UsageError(f"{plural(len(results), 'result')}: too much for one page: name fewer of them")
        name = largest.pop(0)
        picture = _picture(named[name])
        if len(picture) < len(str(named[name])):
            images[name] = picture


def _picture(spec: Spec) -> str:
    from scalescope.charts.saving import rendered

    return "data:image/png;base64," + base64.b64encode(rendered(dict(spec), "png")).decode()


def specs_of(results: "Results", count: int = 1) -> dict[str, Spec]:
    """Its figures as Vega-Lite, by name; `count` results share the room of a page."""
    from altair.utils.schemapi import debug_mode

    from scalescope.charts.results import MOST_CELLS, results_charts

    with debug_mode(False):  # no validation of every part as it is made
        drawn = results_charts(results, most_cells=max(100, MOST_CELLS // count))
        return {name: chart.to_dict(validate=False) for name, chart in drawn.items()}


def _over_all(results: Sequence["Results"]) -> dict[str, Spec]:
    """Figures that show every training; none for one."""
    from scalescope.charts.results import compared_charts

    return {name: chart.to_dict(validate=False) for name, chart in compared_charts(results).items()}


def comparison_of(results: Sequence["Results"]) -> "Comparison | None":
    """What changed from the first to the second; None where there is one, or they have nothing in common."""
    from scalescope.studies.compare import compare as compared

    if len(results) < 2:
        return None
    try:
        return compared(results[0], results[1])
    except UsageError:
        return None


def report_document(results: Sequence["Results"], path: Path) -> dict[str, Any]:
    """What `report --json` prints: of every training its answer, what is there, and what changed between two."""
    from scalescope.report.comparison import as_document
    from scalescope.report.study import answer

    documents = []
    for each in results:
        told = answer(each)
        documents.append(
            {
                "name": each.name,
                "what": each.what,
                "holds": sorted(each.kinds),
                "answer": told.sentence,
                "why": list(told.why),
                "do": told.do,
                "warnings": list(told.warnings),
                "next": each.follow,
            }
        )
    changed = comparison_of(results)
    return {
        "kind": "report",
        "page": str(path),
        "results": documents,
        "compared": as_document(changed) if changed else None,
    }


def write_page(results: Sequence["Results"], path: Path) -> str:
    """Write the page whole.

    Returns:
        Why it shows no figures, where they cannot be drawn; otherwise nothing.

    Raises:
        UsageError: The file is there and no page of ours.
    """
    from scalescope.records.store import write_whole
    from scalescope.report.page import page

    check_page(path)
    missing = ""
    try:
        text = page_of(results)
    except WorkFailed as problem:
        missing = f"No figures on the page: {problem}; then write it again"
        text = page(results, [{} for _ in results], "", compared=comparison_of(results))
    write_whole(path, text.encode())
    return missing


def check_page(path: Path) -> None:
    """Refuse to replace a file that is no page of ours."""
    if path.is_dir():
        raise UsageError(f"'{path}' is a folder: name a file with -o, such as {path / PAGE}")
    if path.exists():
        with reading(path), open(path, "rb") as file:
            head = file.read(1000)
        if not (head.startswith(_BEGINNING) and _OURS in head):
            raise UsageError(f"'{path}' exists and is no page of scalescope: choose another name with -o")


def write_figures(results: Sequence["Results"], folder: Path) -> list[Path]:
    """Every figure as PDF, SVG and PNG; those of several trainings in folders of their own."""
    from scalescope.charts.results import results_charts
    from scalescope.charts.saving import save_charts

    written = []
    for index, each in enumerate(results, start=1):
        place = folder / f"{index}-{_file_name(each.name)}" if len(results) > 1 else folder
        written += save_charts(results_charts(each), place, FIGURES)
    return written


def result_tables(results: Sequence["Results"], folder: Path) -> dict[Path, str]:
    """Curves as LaTeX and CSV; maps, steps and samples as CSV: texts by the files to write."""
    from scalescope.report import explanation_tables, prediction_tables, tables

    files: dict[Path, str] = {}
    for index, each in enumerate(results, start=1):
        place = folder / f"{index}-{_file_name(each.name)}" if len(results) > 1 else folder
        texts: dict[str, str] = {}
        if each.scaling:
            texts |= {"scaling.tex": tables.as_latex(each.scaling), "scaling.csv": tables.as_csv(each.scaling)}
        if each.prediction:
            texts["estimate.csv"] = prediction_tables.as_csv(each.prediction)
        for number, explanation in enumerate(each.explanations, start=1):
            ending = f"-{number}" if len(each.explanations) > 1 else ""
            texts[f"explanation{ending}.csv"] = explanation_tables.as_csv(explanation)
        files |= {place / name: text for name, text in texts.items()}
    return files


def write_proposal(results: Sequence["Results"], path: Path) -> list[str]:
    """One PDF page for a proposal; lines that say what a reviewer would miss.

    Raises:
        UsageError: Nothing was measured at two sizes, or the file is there and no PDF.
    """
    from scalescope.charts.saving import rendered, svg_as_pdf
    from scalescope.charts.speedup import proposal_chart
    from scalescope.records.store import write_whole
    from scalescope.report.proposal import as_svg, shortcomings, studies

    first = check_proposal(results, path)
    found = studies(first)
    plots = [rendered(proposal_chart(each).to_dict(validate=False), "svg").decode() for each in found]
    write_whole(path, svg_as_pdf(as_svg(first, plots)))
    return [line for each in found for line in shortcomings(each)]


def check_proposal(results: Sequence["Results"], path: Path) -> "Results":
    """The results that a proposal shows; refuse to replace a file that is no PDF."""
    from scalescope.report.proposal import studies

    first = next((each for each in results if studies(each)), None)
    if first is None:
        raise UsageError("--proposal needs a measurement of two or more sizes: scalescope measure --np 1,2,4 ...")
    with reading(path):
        is_other = path.is_dir() or (path.exists() and not path.read_bytes().startswith(b"%PDF-"))
    if is_other:
        raise UsageError(f"'{path}' exists and is no PDF: choose another name for --proposal")
    return first


def _file_name(name: str) -> str:
    """A user's name as one that any file system takes."""
    import re

    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60].strip("-.") or "result"


def study_document(results: "Results", page: Path) -> dict[str, Any]:
    """What `study --json` prints."""
    from scalescope.report.study import answer, setting_document
    from scalescope.report.study_parts import as_document

    return as_document(results, answer(results), setting_document(results), str(page))
