"""explain: where does the time go?"""

import contextlib
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.errors import ScalescopeError, UsageError
from scalescope.options import EMPTY, flags, read
from scalescope.progress import Progress
from scalescope.records.files import AUTOTUNE, EXPLANATION, MEASUREMENT, PLAN, SCALING
from scalescope.records.request import ExplainRequest, Plan
from scalescope.records.store import in_folder, load
from scalescope.show import document_of
from scalescope.text import COMMAND
from scalescope.verbs.verb import SHOWN, Ending, Screen, Verb, folder_command, from_here, launch_costs, retyped

if TYPE_CHECKING:
    from scalescope.records.autotune import Autotune
    from scalescope.records.explanation import Explanation
    from scalescope.records.request import MeasureRequest
    from scalescope.records.scaling import Scaling

_ABOUT_KNOBS = ("small_messages", "large_bucket", "exposed_communication", "long_cycle", "negotiation")


def _ask_explain(**given: Any) -> ExplainRequest:
    paths = given.get("paths") or ()
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if len(paths) == 1 and not given.get("command") and _is_model(paths[0]):
        given["model"] = str(paths.pop())
    given["paths"] = paths
    if given.get("model") or given.get("command"):
        if paths:
            raise UsageError("name files, a MODEL or -- and a command, and only one of them")
        from scalescope.jobs.request import fields_of  # files need nothing of jobs/

        return ExplainRequest(**fields_of(ExplainRequest, given, "explain"))
    for name, (flag, option) in flags(ExplainRequest).items():
        if given.get(name) not in (*EMPTY, False) and not option.opt.of_files:
            raise UsageError(f"{flag} goes with a MODEL or a command after --: leave it out")
    return ExplainRequest(**read(ExplainRequest, given))


def _is_model(word: str | Path) -> bool:
    if Path(word).exists():
        return False
    from scalescope.workloads.builtin import BUILTINS

    return str(word) in BUILTINS or bool(re.fullmatch(r"[\w./-]+:\w+", str(word)))


def explain(request: ExplainRequest, progress: Progress) -> "Scaling | Explanation | Autotune":
    """Explain files, or a run that is captured first."""
    from scalescope.diagnosis.sources import check_export
    from scalescope.diagnosis.sources import explain as read_sources
    from scalescope.jobs.folders import check, mark_of, result_folder
    from scalescope.show.charts.saving import start_renderer

    if request.folder:
        start_renderer()  # while the files are read
    files, folder = list(map(_traced_in, request.paths)), Path(request.folder) if request.folder else None
    if request.workload or request.command:
        from scalescope.jobs.request import traced_request
        from scalescope.measurement.capture import traced_run

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
        found: Any = read_sources(files, np=counts, pattern=request.pattern, estimate=estimate, export_to=export)
        if folder and not export:
            results.enter_context(result_folder("explain", folder, also=also))
    return in_folder(found, folder) if folder else found  # type: ignore[no-any-return]


def _traced_in(path: str) -> Path:
    """The folder of the one launch that explain, or a study, traced into this folder; any other path as it is."""
    from scalescope.records.explanation import TRACE_RECORD

    measured = (Path(path) / MEASUREMENT).is_file()
    traced = (
        []
        if measured
        else [*Path(path).glob(f"traces/*/{TRACE_RECORD}"), *Path(path).glob(f"explain/traces/*/{TRACE_RECORD}")]
    )
    return traced[0].parent if len(traced) == 1 else Path(path)


def _plan_explain(request: ExplainRequest) -> Iterable[str]:
    from scalescope.jobs.request import traced_request
    from scalescope.measurement.capture import traced_commands

    if not (request.workload or request.command):
        raise UsageError("--dry-run goes with a MODEL or a command after --: leave it out")
    asked = traced_request(request)
    length = "until some steps are captured, a short training to its end, checkpoints included"
    return [*traced_commands(asked), launch_costs([max(asked.np)], length=length if request.command else "")]


def _captured(folder: Path) -> "Explanation":
    """Load the explanation that a job left next to the traces."""
    from scalescope.records.explanation import Explanation

    place = _traced_in(str(folder))
    return in_folder(load(place / EXPLANATION, Explanation), place)


def of_explanation(explanation: "Explanation", request: ExplainRequest, screen: Screen) -> Ending:
    """End of traces: where the steps' time went, and what the first finding leads to."""
    from scalescope.records.store import save

    folder, document = explanation.folder, document_of(explanation)

    def write() -> list[str]:
        said = ["Pictures and tables: add -o DIR"]
        if folder:
            save(explanation, folder / EXPLANATION)
            said = screen.files(document, folder)
        if request.export:
            said.append(f"Steps for Perfetto (ui.perfetto.dev) or chrome://tracing: {request.export}")
        return said

    captured = bool(request.workload or request.command)
    behind = request if captured else request_behind(explanation, list(map(Path, request.paths)))
    return Ending(document, after_traces(explanation, behind), write)


def request_behind(explanation: "Explanation", files: Sequence[Path]) -> "MeasureRequest":
    """Request that the traces were made for: from the plan of their folder, or as far as they tell."""
    from scalescope.engines import exchanging
    from scalescope.records.request import MeasureRequest

    for place in [files[0], *files[0].absolute().parents][:4]:
        if (place / PLAN).is_file():
            from scalescope.jobs.masking import load_plan

            with contextlib.suppress(ScalescopeError):  # a plan of another verb, or one whose values are gone
                return load_plan(place, Plan).request
    engines = (explanation.engine,) if explanation.engine in exchanging() else ()
    return MeasureRequest(command=explanation.command or (COMMAND,), engines=engines)


def after_traces(explanation: "Explanation", request: "MeasureRequest | ExplainRequest") -> str:
    """Next command by the first finding: a capture, a search for knobs, or a measurement of what was changed."""
    from scalescope.engines import engine_named

    count = max(explanation.world_size or 2, 2)
    first = explanation.findings[0] if explanation.findings else None
    if first and "scalescope explain" in first.change:
        return retyped("explain", request, np=count)
    if first and first.id in _ABOUT_KNOBS and engine_named(explanation.engine).is_tuned:
        return retyped("tune", request, np=count)
    return retyped("measure", request, np=(1, count))


def of_autotune(record: "Autotune", screen: Screen) -> Ending:
    """End of Horovod's autotune log: what was tried, and whether the choice can be trusted."""
    from scalescope.records.store import save
    from scalescope.show.autotune import next_commands

    folder, document = record.folder, document_of(record)

    def write() -> list[str]:
        if not folder:
            return []
        save(record, folder / AUTOTUNE)
        return [*screen.figures(document, folder), f"Records: {from_here(folder)}"]

    return Ending(document, " && ".join(next_commands(record)), write)


def of_scaling(scaling: "Scaling", request: ExplainRequest, screen: Screen) -> Ending:
    """End of tables, logs and measurements: the curves, and what traced launches show."""
    from scalescope.diagnosis.sources import explain_traces
    from scalescope.records.store import save
    from scalescope.show.study import over_np

    folder, document = scaling.folder, document_of(scaling)
    traced = {place: explain_traces([place]) for place in _traces_of([Path(path) for path in request.paths])}
    if len(traced) > 1:
        document = document._replace(sections=[*document.sections, over_np(list(traced.values()))])

    def write() -> list[str]:
        if folder:
            save(scaling, folder / SCALING)
        said = screen.files(document, folder) if folder else []
        return [*said, *(f"{place.name}: {document_of(each).answer}" for place, each in traced.items())]

    follow = folder_command("explain", list(traced)[-1]) if traced else after_table(scaling, request)
    return Ending(document, follow, write, lambda: _scaling_json(scaling, list(traced.values())))


def _traces_of(files: Sequence[Path]) -> list[Path]:
    """Folders of the traced launches of a measurement; none for anything else."""
    from scalescope.records.explanation import TRACE_RECORD
    from scalescope.records.run import Measurement

    folder = files[0] if files[0].is_dir() else files[0].parent
    file = folder / MEASUREMENT
    if len(files) != 1 or not file.is_file() or files[0] not in (folder, file):
        return []
    traces = [folder / name for name in load(file, Measurement).traces]
    return [trace for trace in traces if (trace / TRACE_RECORD).is_file()]


def _scaling_json(scaling: "Scaling", traced: "Sequence[Explanation]") -> dict[str, Any]:
    """Speedups by number of processes on the first curve, and everything else that is known."""
    from scalescope.logs.epochs import break_even_epochs, first_epoch_excess
    from scalescope.records.scaling import SPEEDUPS

    curve = scaling.curves[0] if scaling.curves else None
    points = {str(point.np): point for point in curve.points if point.engine == curve.engine} if curve else {}
    if curve and curve.baseline:
        points = {str(curve.baseline.np): curve.baseline} | points
    kind = scaling.source if scaling.source in ("table", "logs") else "measurement"
    told = {"kind": kind, "what": scaling.what, **document_of(scaling).json()}
    told["speedup"] = {
        name: {np: point.speedup[name].value for np, point in points.items() if name in point.speedup}
        for name in SPEEDUPS
    }
    if curve and kind == "logs" and curve.work_unit == "epochs":
        told["first_epoch_excess_s"] = {str(np): value for np, value in first_epoch_excess(curve).items()}
        told["break_even_epochs"] = {str(np): value for np, value in break_even_epochs(curve).items()}
    return told | {"traces": [document_of(each).json() for each in traced]}


def after_table(scaling: "Scaling", request: ExplainRequest) -> str:
    """More launches of a measurement; pictures of a table or of logs; then a measurement of one's own."""
    files = [Path(path) for path in request.paths]
    place = files[0] if files[0].is_dir() else files[0].parent
    if scaling.source == "measurement" and (place / PLAN).exists():
        return folder_command("measure --resume", place, "--precision", "3%")
    if not request.folder:
        return retyped("explain", request, folder=f"results/{files[0].stem if len(files) == 1 else 'explain'}")
    counts = sorted({point.np for curve in scaling.curves for point in curve.points})
    np, training = ["--np", ",".join(map(str, counts))], scaling.what.split()
    if scaling.source not in ("measurement", "quick") or not training:
        return shlex.join(["scalescope", "measure", *np, "--", COMMAND])
    if len(training) == 1 and not training[0].endswith(".py"):  # a model
        return shlex.join(["scalescope", "measure", *training, *np])
    return shlex.join(["scalescope", "measure", *np, "--", *["python"] * training[0].endswith(".py"), *training])


def _end(record: Any, request: ExplainRequest, screen: Screen) -> Ending:
    """End of the verb, by what the files turned out to be."""
    from scalescope.records.autotune import Autotune
    from scalescope.records.scaling import Scaling

    if isinstance(record, Autotune):
        return of_autotune(record, screen)
    return (of_scaling if isinstance(record, Scaling) else of_explanation)(record, request, screen)


VERB = Verb(
    "explain",
    ExplainRequest,
    """Where does the time go? Reads traces, tables and logs that you have, or captures a run of your training.

    scalescope explain timeline.json
    scalescope explain rank0.json.gz rank1.json.gz
    scalescope explain --np 2 -- python train.py
    """,
    _ask_explain,
    explain,
    ("resume", "dry_run", *SHOWN),
    _plan_explain,
    kept=lambda request, said: " and nothing was explained",
    end=_end,
    plan=lambda: Plan,
    record=_captured,
)
