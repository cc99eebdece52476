"""study: all four answers in one run."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.errors import UsageError
from scalescope.host import slots
from scalescope.options import of_run
from scalescope.records.study import PAGE_S, STUDY, StudyPlan, StudyRequest
from scalescope.show import document_of
from scalescope.text import listed, plural
from scalescope.units import digits, format_share
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
    from scalescope.measurement import sweep
    from scalescope.studies.budget import plan_lines
    from scalescope.studies.run import dry_run_with_launches

    planned, launches, measured = dry_run_with_launches(request)
    devices = max(request.np) if request.np else sum(each.slots for each in request.hosts) or slots("auto")
    parts = [part for part in planned.parts if part.state == "planned"]
    hours = devices * sum(part.planned_s for part in parts) / 3600
    each = ", ".join(f"{name} {count}" for name, count in launches.items())
    commands = [line for point, lines in sweep.dry_run(measured) for line in (f"# {point.label}", *lines)]
    like = "" if request.command else ", with the batch that the map recommends"
    return [
        *plan_lines(planned, request.budget_s),
        f"about {plural(sum(launches.values()), 'launch')}: {each}",
        f"at most {digits(hours, 2)} device-hours on {plural(devices, 'device')}",
        f"# measure, {plural(measured.most_launches, 'launch')} of each{like}:",
        *commands,
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


def after_study(results: "Results", request: StudyRequest | None, folder: Path) -> tuple[str, str]:
    """Next command and what it is for: all again where it failed or was disturbed, what is missing, or figures."""
    from scalescope.measurement.scaling import is_disturbed
    from scalescope.show.study import PART_NAMES
    from scalescope.studies.parts import PRECISION, is_open, narrowing_s
    from scalescope.studies.run import ESTIMATE_OF_MODEL, NO_GROUP

    study, measurement = results.study, results.measurement
    runs = measurement.runs if measurement else ()
    again = retyped("study", request, **of_run(request)) if request else ""
    measure = study.part("measure") if study and any(part.name == "measure" for part in study.parts) else None
    alone = any(run.exchanges is False for run in runs)
    if again and (alone or (measure and measure.state == "failed" and not any(run.point.np > 1 for run in runs))):
        of_script = bool(request and request.command)
        of_model = of_script and (alone or (measure is not None and NO_GROUP in measure.why))
        mended = f"when {'the script' if of_script else 'what failed'} is mended"
        return again, mended + (f"; for its MODEL: {ESTIMATE_OF_MODEL}" if of_model else "")
    if again and is_disturbed(runs):  # launches that are added to disturbed ones would be joined with them
        return again, "while nothing else runs"
    unfinished = study.unfinished if study else ()
    is_vague = measurement is not None and is_open(measurement) and (folder / "measure").is_dir()
    if unfinished or is_vague:
        missing = [part for part in unfinished if not (is_vague and part.name == "refine")]
        more_s = sum(part.planned_s for part in missing)
        more_s += narrowing_s(measurement) if measurement and is_vague else 0.0
        wanted = [PART_NAMES.get(part.name, part.name) for part in missing]
        wanted += [f"launches until {format_share(PRECISION)} is reached"] if is_vague else []
        resumed = folder_command("study --resume", folder, "--budget", f"{math.ceil((more_s + PAGE_S) / 60)}m")
        return resumed, f"with time for {listed(wanted)}"
    return folder_command("report", folder, "--figures", "figures", "--tables", "tables"), ""


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
