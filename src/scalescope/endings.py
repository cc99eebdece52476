"""How a verb ends: the answer, why, files, the next command, and with --json the document; one entry per record."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scalescope.engines import USUAL, engine_of_backend
from scalescope.errors import ScalescopeError, UsageError, WorkFailed
from scalescope.records.request import EFFICIENCY_GOAL, RunOptions
from scalescope.show import document_of
from scalescope.show.document import Document
from scalescope.text import COMMAND, as_json, clean
from scalescope.verbs import folder_command, from_here, planned_request, retyped

if TYPE_CHECKING:
    from scalescope.records.autotune import Autotune
    from scalescope.records.cluster import Cluster
    from scalescope.records.comparison import Comparison
    from scalescope.records.explanation import Explanation
    from scalescope.records.machine import Checkup
    from scalescope.records.prediction import Prediction
    from scalescope.records.request import (
        CompareRequest,
        EstimateRequest,
        ExplainRequest,
        MeasureRequest,
        ProbeRequest,
        ReportRequest,
    )
    from scalescope.records.results import Results
    from scalescope.records.run import Measurement
    from scalescope.records.scaling import Scaling
    from scalescope.records.study import Study
    from scalescope.records.tuning import TuneRequest, Tuning

SLOWER = 3  # Exit code of compare
_ABOUT_KNOBS = ("small_messages", "large_bucket", "exposed_communication", "long_cycle", "negotiation")


class Ending(NamedTuple):
    """What a verb ends with."""

    document: Document
    follow: str = ""  # The next command
    write: Callable[[], Sequence[str]] = tuple  # Writes records, tables and pictures; lines that say where they are
    json: Callable[[], Any] | None = None  # Of --json, where it is more than the document's own
    details: bool = False  # Whether every section is shown, asked for or not
    code: int = 0


class Screen:
    """Where a verb shows what it does and what came out."""

    def __init__(self, shown: RunOptions, folder: str) -> None:
        from scalescope.show.charts.saving import check_formats
        from scalescope.show.terminal import open_console

        if folder and Path(folder).exists() and not Path(folder).is_dir():
            raise UsageError(f"-o names a folder, and '{folder}' is a file: choose another name")
        check_formats(shown.formats)  # before hours of work
        self.shown = shown
        self.console = open_console(stderr=shown.json or shown.dry_run or bool(shown.join))

    def say(self, text: str, style: str | None = None) -> None:
        """A line as it is, however long."""
        self.console.print(clean(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def tell(self, ending: Ending) -> None:
        """What came out, and then files, so that a full disk does not cost the answer."""
        from scalescope.show.terminal import show

        self.say(ending.document.answer, style="bold")
        if not self.shown.quiet:
            show(ending.document, self.console, details=self.shown.details or ending.details)
        if self.shown.json:
            print(as_json((ending.json or ending.document.json)()), flush=True)
        lines = ending.write()
        if not self.shown.quiet:
            for line in [*lines, *([f"Next: {ending.follow}"] if ending.follow else [])]:
                self.say(line)

    def files(self, document: Document, folder: Path) -> list[str]:
        """Write tables and figures of a document into a result folder; lines that say where they are."""
        from scalescope.show.files import write_tables

        here, written = from_here(folder), write_tables(document, folder)
        names = ", ".join([written[0].name, *(path.suffix for path in written[1:])])
        return [*self.figures(document, folder), f"Tables: {here}/{names}", f"Records: {here}"]

    def figures(self, document: Document, folder: Path) -> list[str]:
        """Draw into a result folder, and a line that says where the pictures are, or why there are none."""
        from scalescope.show.files import write_figures

        formats, here = self.shown.formats, str(from_here(folder))
        try:
            written = write_figures(document, folder, formats)
        except WorkFailed as problem:
            return [f"No pictures: {problem}; then: {shlex.join(['scalescope', 'report', here, '--figures', here])}"]
        except ModuleNotFoundError as missing:
            module = str(missing.name).partition(".")[0]
            if module not in ("altair", "vl_convert"):
                raise
            return [f"No pictures: {module} is not installed; run pip install altair vl-convert-python"]
        first = "png" if "png" in formats else formats[0]
        shown = ", ".join(str(from_here(path)) for path in written if path.suffix == f".{first}")
        others = ", ".join(f".{name}" for name in formats if name != first)
        return [f"Pictures: {shown}" + (f" (also {others})" if others else "")] if written else []

    def page(self, results: "Sequence[Results]", path: Path) -> list[str]:
        """Write the page of a result folder; lines that say where it is, or why there is none."""
        from scalescope.api.reports import comparison_of
        from scalescope.show.page import write_page

        try:
            missing = write_page(results, path, comparison_of(results))
        except WorkFailed as problem:
            return [f"No page: {problem}; then: {shlex.join(['scalescope', 'report', str(from_here(path.parent))])}"]
        return [f"Page: {from_here(path)}", *([missing] if missing else [])]


def ending_of(record: Any, request: Any, screen: Screen) -> Ending:
    """What a verb ends with, by the kind of its record."""
    if isinstance(record, list):
        return of_several(record, request, screen) if hasattr(request, "pattern") else of_report(record, request)
    endings: dict[str, Callable[[Any, Any, Screen], Ending]] = {
        "measurement": of_measurement,
        "prediction": of_prediction,
        "cluster": of_cluster,
        "explanation": of_explanation,
        "autotune": of_autotune,
        "scaling": of_scaling,
        "tuning": of_tuning,
        "study": of_study,
        "comparison": of_comparison,
        "checkup": of_checkup,
    }
    return endings[str(type(record).__struct_config__.tag)](record, request, screen)


# measure


def of_measurement(measurement: "Measurement", request: "MeasureRequest", screen: Screen) -> Ending:
    """Curves, and what traced launches show."""
    from scalescope.measurement.study import study
    from scalescope.records.explanation import TRACE_RECORD, TraceFolder
    from scalescope.records.store import load, save
    from scalescope.show.scaling import trace_words

    folder, scaling = _folder_of(measurement), study(measurement)
    document = document_of(scaling, measurement=measurement)

    def write() -> list[str]:
        save(scaling, folder / "scaling.json")
        traces = [folder / path for path in measurement.traces]
        told = (trace_words(load(path / TRACE_RECORD, TraceFolder), str(from_here(path))) for path in traces)
        return [*screen.files(document, folder), *told]

    return Ending(document, after_measure(request, scaling, folder), write)


def after_measure(request: "MeasureRequest", scaling: "Scaling", folder: Path) -> str:
    """Explain what was traced; make sure of what is not known well; find out where the time of poor scaling goes."""
    from scalescope.show.scaling import largest
    from scalescope.stats import FEWEST

    if request.trace:
        return folder_command("explain", folder)
    if request.most_launches < FEWEST:
        return folder_command("measure --resume", folder, "--launches", str(FEWEST))
    point = largest(scaling.curves[0]) if scaling.curves else None
    if point and point.efficiency and point.efficiency.value < EFFICIENCY_GOAL and not request.pattern:
        return retyped("explain", request, np=point.np, batch=int(point.batch or 0) or None, engine=point.engine)
    return folder_command("measure --resume", folder, "--precision", "3%")


# estimate and probe


def of_prediction(prediction: "Prediction", request: "EstimateRequest", screen: Screen) -> Ending:
    """The map."""
    from scalescope.estimation.estimate import STEP
    from scalescope.records.store import load
    from scalescope.records.timeline import Timeline

    folder = _folder_of(prediction)
    step = load(folder / STEP, Timeline) if (folder / STEP).exists() else None
    document = document_of(prediction, step=step)
    return Ending(document, after_estimate(request, prediction, folder), lambda: screen.files(document, folder))


def after_estimate(request: "EstimateRequest", prediction: "Prediction", folder: Path) -> str:
    """Estimate again what cannot be trusted; verify here; measure elsewhere, and what was verified or stated."""
    if not prediction.trusted:
        return retyped("estimate", request, profile=request.profile, verify=request.verify or None)
    advice = prediction.recommended
    if advice and (request.cluster or prediction.checks or request.step_time):
        batch = advice.global_batch if advice.scaling == "strong" else advice.batch
        counts = (1, advice.np) if advice.np > 1 else (1,)
        return retyped("measure", request, np=counts, batch=batch, scaling=(advice.scaling,))
    return retyped("estimate", request, profile=str(from_here(folder / "profile.json")), verify=2)


def of_cluster(cluster: "Cluster", request: "ProbeRequest", screen: Screen) -> Ending:
    """What a probe found."""
    from scalescope.estimation.probe import CLUSTER_FILE

    folder, document = _folder_of(cluster), document_of(cluster)
    file = from_here(folder / CLUSTER_FILE)
    engine = engine_of_backend(request.backends[0])
    options = "" if engine is USUAL else f" --engine {engine.name}"
    options += " --device cpu" if request.device == "cpu" else ""  # otherwise a GPU that is here would be profiled
    follow = f"scalescope estimate resnet18 --cluster {shlex.quote(str(file))}{options}"
    return Ending(document, follow, lambda: [*screen.figures(document, folder), f"Cluster: {file}"])


# explain


def of_explanation(explanation: "Explanation", request: "ExplainRequest", screen: Screen) -> Ending:
    """Of traces: where the steps' time went, and what the first finding leads to."""
    from scalescope.records.store import save

    folder, document = explanation.folder, document_of(explanation)

    def write() -> list[str]:
        said = ["Pictures and tables: add -o DIR"]
        if folder:
            save(explanation, folder / "explanation.json")
            said = screen.files(document, folder)
        if request.export:
            said.append(f"Steps for Perfetto (ui.perfetto.dev) or chrome://tracing: {request.export}")
        return said

    captured = bool(request.workload or request.command)
    behind = request if captured else request_behind(explanation, list(map(Path, request.paths)))
    return Ending(document, after_traces(explanation, behind), write)


def request_behind(explanation: "Explanation", files: Sequence[Path]) -> "MeasureRequest":
    """What was asked when the traces were made: from the plan of their folder, or as far as they tell."""
    from scalescope.engines import exchanging
    from scalescope.records.request import MeasureRequest, Plan

    for place in [files[0], *files[0].absolute().parents][:4]:
        if (place / "plan.json").is_file():
            from scalescope.jobs.environment import load_plan

            with suppress(ScalescopeError):  # a plan of another verb, or one whose values are gone
                return load_plan(place, Plan).request
    engines = (explanation.engine,) if explanation.engine in exchanging() else ()
    return MeasureRequest(command=explanation.command or (COMMAND,), engines=engines)


def after_traces(explanation: "Explanation", request: "MeasureRequest | ExplainRequest") -> str:
    """What the first finding leads to: a capture, a search for knobs, or a measurement of what was changed."""
    from scalescope.engines import engine_named

    count = max(explanation.world_size or 2, 2)
    first = explanation.findings[0] if explanation.findings else None
    if first and "scalescope explain" in first.change:
        return retyped("explain", request, np=count)
    if first and first.id in _ABOUT_KNOBS and engine_named(explanation.engine).knobs:
        return retyped("tune", request, np=count)
    return retyped("measure", request, np=(1, count))


def of_autotune(record: "Autotune", _request: Any, screen: Screen) -> Ending:
    """Of Horovod's autotune log: what was tried, and whether the choice can be trusted."""
    from scalescope.records.store import save
    from scalescope.show.autotune import next_commands

    folder, document = record.folder, document_of(record)

    def write() -> list[str]:
        if not folder:
            return []
        save(record, folder / "autotune.json")
        return [*screen.figures(document, folder), f"Records: {from_here(folder)}"]

    return Ending(document, " && ".join(next_commands(record)), write)


def of_scaling(scaling: "Scaling", request: "ExplainRequest", screen: Screen) -> Ending:
    """Of tables, logs and measurements: the curves, and what traced launches show."""
    from scalescope.diagnosis.sources import explain_traces
    from scalescope.records.store import save
    from scalescope.show.study import over_np

    folder, document = scaling.folder, document_of(scaling)
    traced = {place: explain_traces([place]) for place in _traces_of([Path(path) for path in request.paths])}
    if len(traced) > 1:
        document = document._replace(sections=[*document.sections, over_np(list(traced.values()))])

    def write() -> list[str]:
        if folder:
            save(scaling, folder / "scaling.json")
        said = screen.files(document, folder) if folder else []
        return [*said, *(f"{place.name}: {document_of(each).answer}" for place, each in traced.items())]

    follow = folder_command("explain", list(traced)[-1]) if traced else after_table(scaling, request)
    return Ending(document, follow, write, lambda: _scaling_json(scaling, list(traced.values())))


def of_several(results: "list[Results]", request: "ExplainRequest", screen: Screen) -> Ending:
    """Of several tables, timelines or measurements: each in a sentence, and what changed from the first to the last."""
    from scalescope.jobs.folders import result_folder
    from scalescope.show.page import PAGE
    from scalescope.studies.compare import compare

    changed = document_of(compare(results[0], results[-1]))
    told = [(result.name, document_of(result).answer) for result in results]

    def write() -> list[str]:
        if not request.folder:
            return []
        with result_folder("explain", request.folder) as folder:
            return screen.page(results, folder / PAGE)

    return Ending(
        changed._replace(answer="\n".join([*(f"{name}: {words}" for name, words in told), changed.answer])),
        shlex.join(["scalescope", "report", *request.paths, "-o", PAGE]),
        write,
        lambda: {
            "kind": "several",
            "results": [{"name": name, "answer": words} for name, words in told],
            "compared": changed.json(),
        },
    )


def after_table(scaling: "Scaling", request: "ExplainRequest") -> str:
    """More launches of a measurement; pictures of a table or of logs; then a measurement of one's own."""
    from scalescope.options import write_counts

    files = [Path(path) for path in request.paths]
    place = files[0] if files[0].is_dir() else files[0].parent
    if scaling.source == "measurement" and (place / "plan.json").exists():
        return folder_command("measure --resume", place, "--precision", "3%")
    if not request.folder:
        words = ["--np", write_counts(request.np)] if request.np else []
        words += ["--pattern", request.pattern] if request.pattern else []
        results = Path("results") / (files[0].stem if len(files) == 1 else "explain")
        return shlex.join(["scalescope", "explain", *request.paths, *words, "-o", str(results)])
    counts = sorted({point.np for curve in scaling.curves for point in curve.points})
    return f"scalescope measure --np {','.join(map(str, counts))} -- {COMMAND}"


def _traces_of(files: Sequence[Path]) -> list[Path]:
    """Folders of the traced launches of a measurement; none for anything else."""
    from scalescope.records.explanation import TRACE_RECORD
    from scalescope.records.run import Measurement
    from scalescope.records.store import load

    folder = files[0] if files[0].is_dir() else files[0].parent
    file = folder / "measurement.json"
    if len(files) != 1 or not file.is_file() or files[0] not in (folder, file):
        return []
    traces = [folder / name for name in load(file, Measurement).traces]
    return [trace for trace in traces if (trace / TRACE_RECORD).is_file()]


def _scaling_json(scaling: "Scaling", traced: "Sequence[Explanation]") -> dict[str, Any]:
    """Speedups by number of processes on the first curve, and everything else that is known."""
    from scalescope.measurement.logs.epochs import break_even_epochs, first_epoch_excess
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


# tune


def of_tuning(tuning: "Tuning", request: "TuneRequest", screen: Screen) -> Ending:
    """What was tried and decided."""
    from scalescope.tuner.settings import YAML, how_to_use, write_settings

    folder, document = _folder_of(tuning), document_of(tuning)

    def write() -> list[str]:
        here, said, drawn = from_here(folder), [], []
        if tuning.decision == "use":
            setting = {**tuning.held, **tuning.values}
            about = f"{tuning.engine}, {tuning.np} processes, found by scalescope tune: {tuning.what}"
            written = write_settings(folder, tuning.engine, setting, about)
            said.append(f"Settings: {', '.join(str(from_here(path)) for path in written)}")
            said += how_to_use(tuning.engine, setting, str(here / YAML))
        if tuning.samples:
            said.append(f"Log: {from_here(Path(request.log_file or folder / 'tune.csv'))}")
            drawn = screen.figures(document, folder)
        return [*drawn, *said, f"Records: {here}"]

    return Ending(document, after_tune(tuning, request, folder), write)


def after_tune(tuning: "Tuning", request: "TuneRequest", folder: Path) -> str:
    """Confirm what was found; finish what was not; or see where the time goes instead."""
    from scalescope.tuner.settings import THREADS, shown_value

    compared = any(sample.phase == "confirm" for sample in tuning.samples)
    if tuning.decision == "undecided" and (tuning.method == "offline" or (tuning.method == "online" and compared)):
        return folder_command("tune --resume", folder)
    values = {**tuning.held, **tuning.values} if tuning.complete and tuning.decision == "use" else dict(tuning.held)
    changes = {
        "threads_per_rank": values.pop(THREADS.name, request.threads_per_rank),
        "knobs": tuple(f"{name}={shown_value(value)}" for name, value in values.items()),
        "engine": tuning.engine,
        "np": tuning.np,
    }
    if not tuning.complete:
        return retyped("tune", request, method="offline", **changes)
    return retyped("measure" if tuning.decision == "use" else "explain", request, **changes)


# study, report and compare


def of_study(study: "Study", _request: Any, screen: Screen) -> Ending:
    """Every answer, and the page."""
    from scalescope.show.page import PAGE
    from scalescope.studies.results import read_results

    folder = _folder_of(study)
    (results,) = (with_commands(each, [folder]) for each in read_results([folder]))
    document = document_of(results, page=str(folder / PAGE))._replace(brief=(), more="")
    return Ending(document, results.follow, lambda: screen.page([results], folder / PAGE))


def of_report(results: "list[Results]", request: "ReportRequest") -> Ending:
    """The page, figures, tables and the proposal."""
    from scalescope.api import reports
    from scalescope.jobs.folders import mark_of
    from scalescope.records.store import write_whole
    from scalescope.show.page import PAGE, check_page, write_page
    from scalescope.show.proposal import check_proposal, write_proposal
    from scalescope.show.study import report_json

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
    texts = reports.result_tables(results, tables) if tables else {}
    if proposal:
        check_proposal(results, proposal)
    files = [page, *([proposal] if proposal else []), *texts]
    for index, file in enumerate(files):  # before anything is written
        if file.absolute() in [other.absolute() for other in files[:index]]:
            raise UsageError(f"'{file}' would be written twice: choose another name")
        if file.exists() and any(file.samefile(path) for path in paths):
            raise UsageError(f"'{file}' is read and would be overwritten: choose another name")

    def write() -> list[str]:
        missing = write_page(results, page, changed)
        said = [f"Page: {from_here(page)}", *([missing] if missing else [])]
        for file, text in texts.items():
            write_whole(file, text.encode())
        if figures:
            said.append(f"Figures: {len(reports.write_figures(results, figures))} files in {from_here(figures)}")
        if tables:
            said.append(f"Tables: {len(texts)} files in {from_here(tables)}")
        if proposal:
            missing_there = write_proposal(results, proposal)
            said += [f"Proposal: {from_here(proposal)}", *(f"Warning: {line}" for line in missing_there)]
        return said

    documents, changed = [document_of(each) for each in results], reports.comparison_of(results)
    document = documents[0]._replace(brief=(), more="")
    if len(results) > 1:
        named = [f"{each.name}: {told.answer}" for each, told in zip(results, documents, strict=True)]
        document = (document_of(changed) if changed else Document(""))._replace(answer="\n".join(named))
    return Ending(document, results[-1].follow, write, lambda: report_json(results, page, changed))


def with_commands(results: "Results", paths: Sequence[Path]) -> "Results":
    """The results with what was typed to get them, and what to type next."""
    from scalescope.options import of_run

    requests = {each.verb: planned_request(each.verb, Path(each.folder)) for each in results.done}
    done = tuple(
        msgspec.structs.replace(each, command=retyped(each.verb, asked, **of_run(asked)) if asked else "")
        for each, asked in ((each, requests[each.verb]) for each in results.done)
    )
    return msgspec.structs.replace(results, done=done, follow=_after_results(results, requests, paths))


def _after_results(results: "Results", requests: dict[str, Any], paths: Sequence[Path]) -> str:
    """What the verb that got furthest would say next."""
    from scalescope.records.request import ExplainRequest
    from scalescope.show.autotune import next_commands

    folders = {each.verb: Path(each.folder) for each in results.done}
    if results.study:
        return _after_study(results.study, folders["study"])
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


def _after_study(study: "Study", folder: Path) -> str:
    """What the budget did not hold, or failed; of a whole study its figures and tables."""
    rest = [part for part in study.parts if part.state not in ("done", "not needed")]
    if not rest:
        return folder_command("report", folder, "--figures", "figures", "--tables", "tables")
    minutes = int(sum(part.planned_s for part in rest) // 60) + 1
    return folder_command("study --resume", folder, "--budget", f"{minutes}m")


def of_comparison(comparison: "Comparison", request: "CompareRequest", _screen: Screen) -> Ending:
    """Both on a page next; more launches first where nothing is decided and they can be had."""
    a, b = Path(request.a), Path(request.b)
    undecided = all(pair.verdict == "undecided" for pair in comparison.decisive)
    if undecided and (b / "measurement.json").exists():
        follow = folder_command("measure --resume", b, "--launches", "10")
    else:
        follow = folder_command("report", a, str(from_here(b)), "-o", "report.html")
    return Ending(document_of(comparison), follow, code=SLOWER if comparison.slower else 0)


def of_checkup(checkup: "Checkup", _request: Any, _screen: Screen) -> Ending:
    """Everything that the machine has and lacks."""
    return Ending(document_of(checkup), checkup.next_command, details=True)


def _folder_of(record: Any) -> Path:
    assert record.folder
    return record.folder  # type: ignore[no-any-return]
