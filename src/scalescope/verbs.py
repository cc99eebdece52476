"""The verbs: what each is asked for, the function of its room that does it, and its help.

Rooms are imported where they are used: a verb loads what it needs, --help needs none, and explain of files no torch.
"""

import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scalescope.errors import OtherDevice, ScalescopeError, UsageError
from scalescope.options import EMPTY, flags, read, typed
from scalescope.records.request import (
    CompareRequest,
    DoctorRequest,
    EstimatePlan,
    EstimateRequest,
    ExplainRequest,
    MeasureRequest,
    Plan,
    ProbeRequest,
    ReportRequest,
)
from scalescope.records.store import in_folder, load
from scalescope.records.study import StudyPlan, StudyRequest
from scalescope.records.tuning import TuneRequest

if TYPE_CHECKING:
    from scalescope.records.autotune import Autotune
    from scalescope.records.comparison import Comparison
    from scalescope.records.explanation import Explanation
    from scalescope.records.machine import Checkup
    from scalescope.records.prediction import Prediction
    from scalescope.records.results import Results
    from scalescope.records.scaling import Scaling

SHOWN = ("json", "details", "quiet", "verbose", "formats")


class Verb(NamedTuple):
    """One verb of the command line and of the API."""

    name: str
    request: type[msgspec.Struct]
    help: str
    ask: Callable[..., Any]  # Options by keyword, as texts or values: the request. What it remarks is a Python warning.
    run: Callable[[Any, Any], Any]  # Request, progress: the record, which names its folder
    takes: tuple[str, ...] = SHOWN  # Fields of RunOptions
    dry_run: Callable[[Any], Iterable[str]] | None = None
    resume: Callable[[Path, Mapping[str, Any], Any], Any] | None = None  # Folder, new limits, progress
    kept: Callable[[Any, str], str] = lambda request, said: ""  # After Ctrl-C, by what the work said when it stopped


def room(module: str, function: str) -> Callable[..., Any]:
    """A function of a room, imported when it is called."""
    return lambda *given, **named: getattr(import_module(module), function)(*given, **named)


def retyped(verb: str, request: msgspec.Struct, **changes: Any) -> str:
    """The command that asks a verb for the training of a request; `changes` are options of the verb by keyword."""
    return typed(["scalescope", verb], find_verb(verb).request, request, **changes)


def folder_command(verb: str, folder: Path, *words: str) -> str:
    """`scalescope VERB FOLDER ...`, or with an option before the folder."""
    return shlex.join(["scalescope", *verb.split(), str(from_here(folder)), *words])


def from_here(path: Path) -> Path:
    """The path as short as it can be typed in this folder."""
    path = path.absolute()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def planned_request(verb: str, folder: Path) -> Any:
    """What a result folder was asked for; None where its plan does not tell."""
    from scalescope.tuner.journal import TunePlan

    plans: dict[str, Any] = {
        "estimate": EstimatePlan,
        "measure": Plan,
        "explain": Plan,
        "tune": TunePlan,
        "study": StudyPlan,
    }
    with contextlib.suppress(ScalescopeError, KeyError):
        return load(folder / "plan.json", plans[verb]).request
    return None


def limits_of(verb: Verb, given: Mapping[str, Any]) -> dict[str, Any]:
    """New limits for a verb that is resumed.

    Raises:
        UsageError: Something else was given.
    """
    if given.get("command"):
        raise UsageError(f"--resume knows what to {verb.name}: leave the command out")
    for name, value in given.items():
        flag, option = flags(verb.request).get(name, (name, None))
        if value not in EMPTY and (option is None or not option.opt.again):
            raise UsageError(f"--resume keeps what was asked: leave {flag} out, or start over without --resume")
    return read(verb.request, given)


# study


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
    from scalescope.show.study import plan_lines
    from scalescope.studies.run import dry_run

    return plan_lines(dry_run(request), request.budget_s)


def _kept_of_study(_request: Any, folder: str) -> str:
    if not folder:
        return " and nothing was begun"
    return f" and finished parts are kept; resume with: {folder_command('study --resume', Path(folder))}"


# estimate and probe


def _estimate(request: EstimateRequest, progress: Any) -> "Prediction":
    from scalescope.estimation.estimate import estimate

    with _names_what_works(request):
        return estimate(request, progress)


def _plan_estimate(request: EstimateRequest) -> Iterable[str]:
    from scalescope.estimation.estimate import dry_run

    with _names_what_works(request):
        return dry_run(request)


@contextlib.contextmanager
def _names_what_works(request: EstimateRequest) -> Iterator[None]:
    try:
        yield
    except OtherDevice as problem:
        works = retyped("estimate", request, profile=request.profile, **problem.instead)
        raise UsageError(f"{problem}, as in: {works}") from None


# measure


def _plan_measure(request: MeasureRequest) -> Iterable[str]:
    from scalescope.measurement import sweep

    for point, lines in sweep.dry_run(request):
        yield from (f"# {point.label}", *lines)
    for point in sweep.traced_after(request):
        yield f"# {point.label}, once more after all others, with some steps captured on every rank"


def _kept_of_measure(_request: Any, folder: str) -> str:
    resume = f"; resume with: {folder_command('measure --resume', Path(folder))}" if folder else ""
    return f" and every finished launch is kept{resume}"


# explain


def _ask_explain(**given: Any) -> ExplainRequest:
    from scalescope.jobs.request import fields_of

    paths = given.get("paths") or ()
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if len(paths) == 1 and not given.get("command") and _is_model(paths[0]):
        given["model"] = str(paths.pop())
    given["paths"] = paths
    if given.get("model") or given.get("command"):
        if paths:
            raise UsageError("name files, a MODEL or -- and a command, and only one of them")
        return ExplainRequest(**fields_of(ExplainRequest, given, "explain"))
    of_files = {"paths", "np", "pattern", "estimate", "export", "folder"}
    for name, (flag, _) in flags(ExplainRequest).items():
        if given.get(name) not in (*EMPTY, False) and name not in of_files:
            raise UsageError(f"{flag} goes with a MODEL or a command after --: leave it out")
    return ExplainRequest(**read(ExplainRequest, given))


def _is_model(word: str | Path) -> bool:
    from scalescope.workloads.builtin import BUILTINS

    return not Path(word).exists() and (str(word) in BUILTINS or bool(re.fullmatch(r"[\w./-]+:\w+", str(word))))


def explain(
    request: ExplainRequest, progress: Any, *, several: bool = False
) -> "Scaling | Explanation | Autotune | Sequence[Results]":
    """What files tell, or a run that is captured first; with `several`, of several jobs the results of each."""
    from scalescope.diagnosis.sources import check_export
    from scalescope.diagnosis.sources import explain as read_sources
    from scalescope.errors import SeveralJobs
    from scalescope.jobs.folders import check, mark_of, result_folder
    from scalescope.studies.results import read_results

    files, folder = [Path(path) for path in request.paths], Path(request.folder) if request.folder else None
    if request.workload or request.command:
        from scalescope.jobs.request import traced_request
        from scalescope.measurement.trace import traced_run

        folder = traced_run(traced_request(request), progress)
        files = [from_here(folder)]
    counts = () if request.workload or request.command else request.np
    # What is explained may be explained in its own folder, whichever verb of ours made that.
    own = {place.resolve() for path in files for place in (path, path.parent)}
    also = (mark_of(folder),) if folder and folder.resolve() in own else ()
    if folder:
        check(folder, "explain", also)
        for path in files:
            if path.stem == "scaling" and path.suffix != ".json" and path.resolve().parent == folder.resolve():
                raise UsageError(f"'{path}' is read and would be overwritten: choose another folder with -o")
    export = Path(request.export) if request.export else None
    if export:
        check_export(export)
    estimate = Path(request.estimate) if request.estimate else None
    with contextlib.ExitStack() as results:
        if folder and export:  # it may go into the folder; without it nothing is made for files that cannot be read
            results.enter_context(result_folder("explain", folder, also=also))
        try:
            found: Any = read_sources(files, np=counts, pattern=request.pattern, estimate=estimate, export_to=export)
        except SeveralJobs:
            if not several or export or estimate or counts or request.pattern:  # of one job
                raise
            return [read_results([path])[0] for path in files]
        if folder and not export:
            results.enter_context(result_folder("explain", folder, also=also))
    return in_folder(found, folder) if folder else found  # type: ignore[no-any-return]


def _explain(request: ExplainRequest, progress: Any) -> Any:
    from scalescope.show.charts.saving import start_renderer

    if request.folder:
        start_renderer()  # while the files are read
    return explain(request, progress, several=True)


def _plan_explain(request: ExplainRequest) -> Iterable[str]:
    from scalescope.jobs.request import traced_request
    from scalescope.measurement.trace import traced_commands

    if not (request.workload or request.command):
        raise UsageError("--dry-run goes with a MODEL or a command after --: leave it out")
    return traced_commands(traced_request(request))


# tune


def _kept_of_tune(request: TuneRequest | None, folder: str) -> str:
    """What an interrupted search leaves; `folder` may be unknown."""
    from scalescope.tuner.run import resumed_as

    if request and request.start_from is not None:
        return "; type the same command to train again"
    folder = folder or (request.folder if request else "")
    where = f" in {from_here(Path(folder))}" if folder else ""
    resumable = bool(folder) and (request is None or resumed_as(request, Path(folder)) is not None)
    again = f"resume with: {folder_command('tune --resume', Path(folder))}"
    return f" and every finished sample is kept{where}; {again if resumable else 'type the same command to start over'}"


# report, compare and doctor


def _report(request: ReportRequest, _progress: Any) -> "Sequence[Results]":
    from scalescope.studies.results import read_results

    return read_results(request.paths)


def compare(request: CompareRequest, _progress: Any) -> "Comparison":
    """What changed from A to B."""
    from scalescope.studies.compare import compare as compared
    from scalescope.studies.results import read_results

    (first,), (second,) = read_results([request.a]), read_results([request.b])
    return compared(first, second, request.tolerance)


def _doctor(_request: DoctorRequest, _progress: Any) -> "Checkup":
    from scalescope.jobs.machine import check_up, describe_machine

    return check_up(describe_machine())


VERBS = (
    Verb(
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
    ),
    Verb(
        "estimate",
        EstimateRequest,
        """How fast would it be? A map of speedup over processes and batch sizes, from one process and the
        cluster's links.

        scalescope estimate resnet50 --np 1..32 --batch 8,16,...,512 --cluster cluster.toml
        """,
        room("scalescope.estimation.estimate", "estimate_request"),
        _estimate,
        ("dry_run", *SHOWN),
        _plan_estimate,
        kept=lambda request, said: ", and what was finished is kept: type the same command to continue",
    ),
    Verb(
        "probe",
        ProbeRequest,
        "What do links and cores give? Times collectives among ranks, alone and during compute; writes cluster.toml.",
        room("scalescope.estimation.probe", "probe_request"),
        room("scalescope.estimation.probe", "probe"),
        kept=lambda request, said: "; type the same command to start over",
    ),
    Verb(
        "measure",
        MeasureRequest,
        """How fast is it? Launches a MODEL, or your own training after --, at every number of processes and batch size.

        In a command {np}, {nodes}, {per_node}, {batch}, {global_batch}, {run_dir} and {launch} are replaced:
        scalescope measure --np 1,2 --batch 32 -- python train.py --batch-size {batch}
        """,
        room("scalescope.jobs.request", "measure_request"),
        room("scalescope.measurement.sweep", "measure"),
        ("resume", "dry_run", "show_output", *SHOWN),
        _plan_measure,
        room("scalescope.measurement.sweep", "continue_measurement"),
        _kept_of_measure,
    ),
    Verb(
        "explain",
        ExplainRequest,
        """Where does the time go? Reads traces, tables and logs that you have, or captures a run of your training.

        scalescope explain timeline.json
        scalescope explain rank0.json.gz rank1.json.gz
        scalescope explain --np 2 -- python train.py
        """,
        _ask_explain,
        _explain,
        ("dry_run", *SHOWN),
        _plan_explain,
        kept=lambda request, said: " and nothing was explained",
    ),
    Verb(
        "tune",
        TuneRequest,
        """What should I change? Finds faster knobs of DDP or Horovod for a MODEL, or for your own training after --.

        Both are tuned while they train, your script unchanged: scalescope tune --np 4 -- python train.py
        The default is kept unless another setting is clearly faster. A horovodrun line works as it is:
        scalescope tune horovodrun -np 4 --autotune python train.py
        """,
        room("scalescope.tuner.request", "tune_request"),
        room("scalescope.tuner.run", "tune"),
        ("join", "resume", "dry_run", "show_output", *SHOWN),
        room("scalescope.tuner.run", "dry_run"),
        lambda folder, limits, progress: room("scalescope.tuner.run", "resume")(folder, progress, **limits),
        _kept_of_tune,
    ),
    Verb(
        "report",
        ReportRequest,
        """All results on one page: what to use, how fast it is, why it is not faster, and what to change.

        scalescope report results/estimate-1 results/measure-1 results/tune-1 -o report.html
        scalescope report results/before results/after
        """,
        lambda **given: ReportRequest(**read(ReportRequest, given)),
        _report,
        ("json", "details", "quiet"),
    ),
    Verb(
        "compare",
        CompareRequest,
        """What changed? Times of two results with intervals; exit code 3 when B is slower than the tolerance allows.

        scalescope compare results/yesterday results/today --tolerance 5%
        scalescope compare timeline-mpi.json timeline-nccl.json
        """,
        lambda **given: CompareRequest(**read(CompareRequest, given)),
        compare,
        ("json", "details", "quiet"),
    ),
    Verb(
        "doctor",
        DoctorRequest,
        """Show what this machine has for data-parallel training, what is missing and how to get it.""",
        DoctorRequest,
        _doctor,
        ("json",),
    ),
)


def find_verb(name: str) -> Verb:
    """The verb of this name."""
    return next(verb for verb in VERBS if verb.name == name)
