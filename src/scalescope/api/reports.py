"""Results on a page, as figures and as tables."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.errors import UsageError
from scalescope.named_paths import takes_paths

if TYPE_CHECKING:
    from scalescope.records.comparison import Comparison
    from scalescope.records.results import Results

FIGURES = ("pdf", "svg", "png")


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
    from scalescope.studies.results import read_results

    results = read_results([paths] if isinstance(paths, str | Path) else paths)
    write_page(results, Path(page), comparison_of(results))
    return Path(page)


def comparison_of(results: Sequence["Results"]) -> "Comparison | None":
    """What changed from the first to the second; None where there is one, or they have nothing in common."""
    from scalescope.studies.compare import compare as compared

    if len(results) < 2:
        return None
    try:
        return compared(results[0], results[1])
    except UsageError:
        return None


def write_figures(results: Sequence["Results"], folder: Path) -> list[Path]:
    """Every figure as PDF, SVG and PNG; those of several trainings in folders of their own."""
    from scalescope.show import document_of
    from scalescope.show.files import write_figures as write

    return [path for each, place in _places(results, folder) for path in write(document_of(each), place, FIGURES)]


def result_tables(results: Sequence["Results"], folder: Path) -> dict[Path, str]:
    """Curves as LaTeX and CSV; maps and steps as CSV: texts by the files to write."""
    from scalescope.show import document_of
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
