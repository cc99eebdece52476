"""`study`: from a request to a folder that holds every answer; begun once, and resumed after any interruption."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from scalescope import host
from scalescope.engines import PLAIN, USUAL, choices, exchanging, find_engine
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.command import check_command_is_here, engine_of_script
from scalescope.jobs.folders import check, interrupted_in, mark_of, result_folder
from scalescope.jobs.interpreter import has_module
from scalescope.jobs.launch import check_requirements, rehearse
from scalescope.jobs.masking import save_plan
from scalescope.jobs.plan import Settings, points, resolve_here
from scalescope.jobs.rank_program import starting_s
from scalescope.jobs.request import check_batches, fields_of
from scalescope.measurement.fingerprint import fingerprint_here
from scalescope.measurement.resume import resumed_plan
from scalescope.progress import Progress
from scalescope.records.files import PLAN
from scalescope.records.request import USUAL_BATCH, EstimateRequest, MeasureRequest, launch_of
from scalescope.records.store import in_folder, load, save
from scalescope.records.study import STUDY, Study, StudyPlan, StudyRequest
from scalescope.studies.budget import conduct, planned
from scalescope.studies.parts import Parts
from scalescope.units import doublings

_LONGEST_STEP = 1 / 200  # Of the budget: batches whose step takes longer are not in the map by themselves
_FEWEST_BATCHES = 3
NO_GROUP = "none joined a process group"  # As a launch says it whose ranks trained each alone
ESTIMATE_OF_MODEL = "scalescope estimate FILE.py:FUNCTION --input SHAPE"


def study_request(**given: Any) -> StudyRequest:
    """The request of study, from texts of the command line or from Python values.

    Raises:
        UsageError: Something cannot be read, or contradicts something else.
    """
    fields = fields_of(StudyRequest, given, "study")
    if given.get("nodes") and 1 not in fields["np"]:  # its baseline, which nodes of several processes leave out
        fields["np"] = (1, *fields["np"])
    return StudyRequest(**fields)


def study(request: StudyRequest, progress: Progress) -> Study:
    """Everything from the profile to the checked setting: what became of every part.

    Raises:
        UsageError: The request cannot be carried out as it is; nothing was launched.
        WorkFailed: No part has a result.
    """
    if request.folder:
        _refuse_a_second(Path(request.folder))
    began = time.monotonic()
    plan = resolve(request)
    with result_folder("study", request.folder) as folder:
        _refuse_a_second(folder)
        save_plan(plan, folder)
        parts = Parts(plan, folder)
        begun = Study(what=request.what, budget_s=request.budget_s, parts=parts.parts)
        return in_folder(_conducted(begun, request, parts, folder, progress, time.monotonic() - began), folder)


def resume(folder: Path, progress: Progress, budget_s: float | None = None) -> Study:
    """Continue a study; finished parts stay. `budget_s`: for the rest, instead of what is left of its own."""
    folder = folder.absolute()
    if not (folder / PLAN).exists() or mark_of(folder) != "study":
        raise UsageError(f"{folder} holds no study to resume: name the folder that was given with -o")
    with resumed_plan(folder, StudyPlan, "study") as plan:
        save_plan(plan, folder)
        parts = Parts(plan, folder)
        kept = Study(what=plan.request.what, budget_s=plan.request.budget_s, parts=parts.parts)
        if (folder / STUDY).exists():
            kept = load(folder / STUDY, Study)
        known = {part.name: part for part in kept.parts}
        for name, part in known.items():  # there is new time for refine, and what was not needed may be now
            if name == "refine" or part.state == "not needed":
                known[name] = msgspec.structs.replace(part, state="planned", why="")
        kept = msgspec.structs.replace(kept, parts=tuple(known.get(part.name, part) for part in parts.parts))
        if budget_s:
            kept = msgspec.structs.replace(kept, budget_s=kept.used_s + budget_s)
        return in_folder(_conducted(kept, plan.request, parts, folder, progress), folder)


def _conducted(
    study: Study, request: StudyRequest, parts: Parts, folder: Path, progress: Progress, before_s: float = 0.0
) -> Study:
    with interrupted_in(folder):
        ended = conduct(study, parts, progress, lambda now: save(now, folder / STUDY), before_s=before_s)
    if not any(part.state == "done" for part in ended.parts):
        failed = next((part for part in ended.parts if part.state == "failed"), None)
        why = f"no part of the study succeeded; {failed.name}: {failed.why}" if failed else "nothing was done"
        if failed and request.command:
            why += "; mend the script and type the same command again"
            if NO_GROUP in failed.why:
                why += f", or for its MODEL: {ESTIMATE_OF_MODEL}"
        raise WorkFailed(why)
    return ended


def dry_run(request: StudyRequest) -> Study:
    """The parts of a study with how long each takes as far as that is known; nothing is started."""
    return dry_run_with_launches(request)[0]


def dry_run_with_launches(request: StudyRequest) -> tuple[Study, dict[str, int], MeasureRequest]:
    """The parts, about how many launches each planned one makes, and what measure asks for; nothing is started."""
    if request.command and not request.hosts:
        check_command_is_here(request.command)
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(resolve(request, tries=False), Path(folder))
        begun = Study(what=request.what, budget_s=request.budget_s, parts=parts.parts)
        study = planned(begun, parts, request.budget_s)
        launches = {part.name: parts.launches(part.name) for part in study.parts if part.state == "planned"}
        place = str(Path(request.folder) / "measure") if request.folder else ""
        return study, launches, msgspec.structs.replace(parts.measured(), folder=place)


def _refuse_a_second(folder: Path) -> None:
    check(folder, "study")
    if (folder / PLAN).exists():
        raise UsageError(f"{folder} already holds a study: resume it with --resume, or choose another folder with -o")


def resolve(request: StudyRequest, *, tries: bool = True) -> StudyPlan:
    """Everything that holds for all parts, checked before anything is launched; of a MODEL one step is tried."""
    check_batches(request.command, request.batch)
    engines = _engines(request)
    counts = _counts(request)
    asked = MeasureRequest(
        **launch_of(request),
        np=counts,
        batch=request.batch[:1] or (() if request.command else (USUAL_BATCH,)),
        engines=engines,
        threads_per_rank=request.threads_per_rank,
        steps=request.steps,
    )
    with tempfile.TemporaryDirectory() as place:
        settings = resolve_here(asked, Path(place))
        points(settings)
        start_s, sample_s = starting_s(max(counts)), 0.0
        if tries:
            check_requirements(settings)
        if tries and request.workload:
            start_s, sample_s = _tried(settings)
    return StudyPlan(
        request=request,
        cwd=str(Path.cwd()),
        fingerprint=fingerprint_here(request.command, request.device),
        engines=engines,
        np=counts,
        batches=_batches(request, sample_s),
        threads_per_rank=settings.threads_per_rank,
        start_s=start_s,
        sample_s=sample_s,
    )


def _tried(settings: Settings) -> tuple[float, float]:
    """Seconds that a launch takes besides its steps, and those of a sample, from one process."""
    point = points(settings)[0]
    began = time.monotonic()
    steps, seconds = rehearse(settings, [point])
    start_s = 2 * (time.monotonic() - began)
    return start_s, max(seconds - start_s, 0.0) / steps / (point.batch or 1)


def _engines(request: StudyRequest) -> tuple[str, ...]:
    """As asked; of a script what it imports; of a MODEL the usual one and, where installed, those that are packages."""
    for name in request.engines:
        if find_engine(name) is PLAIN:
            raise UsageError(f"--engine takes {choices()}: one process alone is the baseline anyway")
    if request.engines:
        return request.engines
    if request.command:
        return (engine_of_script(request.command),)
    packages = {name: package for name in exchanging() if (package := find_engine(name).package)}
    return (USUAL.name, *(name for name, package in packages.items() if has_module(sys.executable, package)))


def _counts(request: StudyRequest) -> tuple[int, ...]:
    slots = sum(each.slots for each in request.hosts) or host.slots(request.device)
    counts = request.np or doublings(slots)
    if max(counts) < 2:
        raise UsageError("a study needs 2 or more processes: name them with --np, and --hosts or --oversubscribe")
    return counts


def _batches(request: StudyRequest, sample_s: float) -> tuple[int, ...]:
    """As asked; of a MODEL the usual ones whose steps are short enough to be launched often within the budget."""
    if request.batch or request.workload is None:
        return request.batch
    usual = EstimateRequest(workload=request.workload).batch
    short = [batch for batch in usual if batch * sample_s <= _LONGEST_STEP * request.budget_s]
    return usual[: max(len(short), _FEWEST_BATCHES)]
