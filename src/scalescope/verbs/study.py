"""study: all four answers in one run."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.errors import UsageError
from scalescope.host import slots
from scalescope.options import of_run
from scalescope.records.study import STUDY, StudyPlan, StudyRequest
from scalescope.show import document_of
from scalescope.text import plural
from scalescope.units import digits
from scalescope.verbs.verb import Ending, Screen, Verb, folder_command, folder_of, kept, retyped, room

if TYPE_CHECKING:
    from scalescope.records.results import Results
    from scalescope.records.study import Study


def _ask_study(**given: Any) -> StudyRequest:
    from scalescope.jobs.folders import mark_of
    from scalescope.studies.run import study_request

    model = given.get("model", "")
    if isinstance(model, str) and model and Path(model).is_dir() and mark_of(Path(model)) == "study":
        raise UsageError(
            f"'{model}' is the folder of a study: resume it with {folder_command('study --resume', Path(model))}"
        )
    return study_request(**given)


def _plan_study(request: StudyRequest) -> Iterable[str]:
    from scalescope.studies.budget import plan_lines
    from scalescope.studies.run import dry_run

    planned = dry_run(request)
    devices = max(request.np) if request.np else sum(each.slots for each in request.hosts) or slots("auto")
    parts = [part for part in planned.parts if part.state == "planned"]
    hours = devices * sum(part.planned_s for part in parts) / 3600
    return [
        *plan_lines(planned, request.budget_s),
        f"at most {digits(hours, 2)} device-hours on {plural(devices, 'device')}",
    ]


def _kept_of_study(_request: Any, folder: str) -> str:
    if not folder:
        return " and nothing was begun"
    return f" and finished parts are kept; resume with: {folder_command('study --resume', Path(folder))}"


def of_study(study: "Study", _request: Any, screen: Screen) -> Ending:
    """Every answer, and the page."""
    from scalescope.show.page import PAGE
    from scalescope.studies.results import read_results
    from scalescope.verbs.report import with_commands

    folder = folder_of(study)
    (results,) = (with_commands(each, [folder]) for each in read_results([folder]))
    document = document_of(results, page=str(folder / PAGE))._replace(brief=())
    return Ending(document, results.follow, lambda: screen.page([results], folder / PAGE))


def after_study(results: "Results", request: StudyRequest | None, folder: Path) -> str:
    """Next command: what was interrupted; all again where it is in doubt; what the budget did not hold; figures."""
    from scalescope.studies.parts import PRECISION, is_open

    study, parts = results.study, results.study.parts if results.study else ()
    finished = all(part.state not in ("planned", "running") for part in parts)
    if study and finished and request and results.scaling and results.scaling.doubt:
        return retyped("study", request, **{**of_run(request), "budget_s": study.enough_s})
    if rest := [part for part in parts if part.state not in ("done", "not needed")]:
        minutes = int(sum(part.planned_s for part in rest) // 60) + 1
        return folder_command("study --resume", folder, "--budget", f"{minutes}m")
    if results.measurement and is_open(results.measurement) and (folder / "measure").is_dir():
        more = folder_command("measure --resume", folder / "measure", "--precision", f"{100 * PRECISION:g}%")
        return f"{more} && {folder_command('report', folder)}"  # which writes the page again
    return folder_command("report", folder, "--figures", "figures", "--tables", "tables")


VERB = Verb(
    "study",
    StudyRequest,
    """All four answers in one run: estimates, measures, explains, tunes and checks, and writes the page.

    scalescope study cnn
    scalescope study --np 1,2 --budget 10m -- python train.py
    """,
    _ask_study,
    room("scalescope.studies.run", "study"),
    ("resume", "dry_run", "show_output", "json", "details", "quiet", "verbose"),
    _plan_study,
    lambda folder, limits, progress: room("scalescope.studies.run", "resume")(folder, progress, **limits),
    _kept_of_study,
    end=of_study,
    plan=lambda: StudyPlan,
    record=kept(STUDY, "scalescope.records.study.Study"),
)
