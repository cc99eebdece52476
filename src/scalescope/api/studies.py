"""`study`: every answer about one training in one resumable run that ends with the page."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from scalescope.api.requests import Counts, LaunchOptions, ModelOptions, Seconds, checked_options, names_of, workload_of
from scalescope.errors import UsageError
from scalescope.named_paths import takes_paths
from scalescope.records.profile import WorkloadSpec
from scalescope.records.study import Study, StudyRequest

if TYPE_CHECKING:
    from scalescope.records.results import Results

_LEAST_BUDGET_S = 10.0


class StudyOptions(ModelOptions, LaunchOptions, total=False):
    """What study takes."""

    np: Counts
    batch: Counts
    budget_s: Seconds | None  # For everything together; 5 minutes by default


def study_request(model: str | WorkloadSpec = "", **options: Unpack[StudyOptions]) -> StudyRequest:
    """What study is asked for.

    Raises:
        UsageError: Something cannot be read, or contradicts something else.
    """
    asked = checked_options(options)
    engines = names_of(asked.pop("engine", ()), "--engine")
    workload = workload_of(model, asked, "study")
    request = StudyRequest(**{**asked, "workload": workload, "engines": engines})
    check_budget(request.budget_s)
    return request


def check_budget(budget_s: float) -> None:
    """Refuse a time in which nothing can be launched."""
    if budget_s < _LEAST_BUDGET_S:
        raise UsageError(f"--budget {budget_s:g}s is too short for anything: give a minute or more, such as 5m")


@takes_paths
def study(
    model: str | WorkloadSpec = "", *, resume: bool = False, listener: Any = None, **options: Unpack[StudyOptions]
) -> "Results":
    """Estimate, measure, explain, tune and check one training within a time budget, and write the page.

    Args:
        model: A built-in name, `package.module:factory`, `file.py:factory`, or a description; empty with `command`.
        resume: Resume the study in `folder`, or without one the newest of the same training; finished parts stay.
        listener: Is told how it goes on, as `studies.budget` describes; nobody by default.
        **options: As the options of `scalescope study`, by the names in `StudyOptions`.

    Returns:
        Every answer, and what became of every part; the page is report.html in the folder.

    Raises:
        UsageError: The request cannot be carried out as it is; nothing was launched.
        WorkFailed: No part has a result.
    """
    from scalescope.api import Silent
    from scalescope.show.page import PAGE, write_page
    from scalescope.studies.results import read_results

    request = None
    if model or options.get("command"):
        request = study_request(model, **options)
    folder, budget_s = options.get("folder"), checked_options({"budget_s": options.get("budget_s")}).get("budget_s")
    place, _ = run_study(request, listener or Silent(), Path(folder) if folder else None, budget_s, resume=resume)
    (results,) = read_results([place])
    write_page([results], place / PAGE)
    return results


def run_study(
    request: StudyRequest | None, listener: Any, folder: Path | None, budget_s: float | None, *, resume: bool
) -> tuple[Path, Study]:
    """Begin a study, or resume the one in a folder or, without one, the newest of this request."""
    from scalescope.studies import run

    if not resume:
        if request is None:
            raise UsageError("name one thing to study: a MODEL such as cnn, or -- and your command")
        return run.study(request, listener)
    if folder is None:
        if request is None:
            raise UsageError("--resume needs the study to resume: type the same command, or name its folder with -o")
        folder = run.find_unfinished(request)
    elif request is not None:
        run.check_same(folder, request)
    return run.resume(folder, listener, budget_s)
