"""How explain ends, for each kind of source: traces, Horovod's autotune log, tables and logs and measurements."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.cli.output import Ending, from_here
from scalescope.cli.retype import folder_command, retyped
from scalescope.errors import ScalescopeError
from scalescope.text import COMMAND

if TYPE_CHECKING:
    from scalescope.records.autotune import Autotune
    from scalescope.records.explanation import Explanation
    from scalescope.records.request import MeasureRequest
    from scalescope.records.scaling import Scaling

_ABOUT_KNOBS = ("small_messages", "large_bucket", "exposed_communication", "long_cycle", "negotiation")


def tell_traces(
    ending: Ending,
    explanation: "Explanation",
    files: list[Path],
    folder: Path | None,
    request: "MeasureRequest | None",
    export: Path | None,
) -> None:
    """Of traces: where the steps' time went, and what the first finding leads to."""
    from scalescope.records.store import save
    from scalescope.show import document_of, terminal
    from scalescope.show.files import write_tables

    document = document_of(explanation)

    def write() -> list[str]:
        said = ["Pictures and tables: add -o DIR"]
        if folder:
            save(explanation, folder / "explanation.json")
            write_tables(document, folder, ("csv", "md"))
            here = from_here(folder)
            said = [*ending.drawn(explanation, folder), f"Tables: {here}/explanation.csv, .md", f"Records: {here}"]
        if export:
            said.append(f"Steps for Perfetto (ui.perfetto.dev) or chrome://tracing: {export}")
        return said

    ending.tell(
        terminal.show,
        document,
        answer=document.answer,
        follow=next_after_traces(explanation, request or request_behind(explanation, files)),
        document=document.json,
        write=write,
    )


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


def next_after_traces(explanation: "Explanation", request: "MeasureRequest") -> str:
    """What the first finding leads to: a capture, a search for knobs, or a measurement of what was changed."""
    from scalescope.engines import engine_named

    count = max(explanation.world_size or 2, 2)
    first = explanation.findings[0] if explanation.findings else None
    if first and "scalescope explain" in first.change:
        return retyped("explain", request, np=count)
    if first and first.id in _ABOUT_KNOBS and engine_named(explanation.engine).knobs:
        return retyped("tune", request, np=count)
    return retyped("measure", request, np=(1, count))


def tell_autotune(ending: Ending, record: "Autotune", folder: Path | None) -> None:
    """Of Horovod's autotune log: what was tried, and whether the choice can be trusted."""
    from scalescope.records.store import save
    from scalescope.report.autotune import as_document, next_command_of, sentence, show

    def write() -> list[str]:
        if not folder:
            return []
        save(record, folder / "autotune.json")
        return [*ending.drawn(record, folder), f"Records: {from_here(folder)}"]

    ending.tell(
        show,
        record,
        answer=sentence(record),
        follow=next_command_of(record),
        document=lambda: as_document(record),
        write=write,
    )


def tell_scaling(
    ending: Ending, scaling: "Scaling", files: list[Path], folder: Path | None, told: dict[str, str]
) -> None:
    """Of tables, logs and measurements: the curves, and what traced launches show."""
    from scalescope.diagnosis.sources import explain_traces
    from scalescope.report.measurement import sentence as told_by
    from scalescope.report.scaling import show
    from scalescope.show import document_of

    traced = {place: explain_traces([place]) for place in _traces_of(files)}

    def write() -> list[str]:
        said = ending.write_scaling(scaling, folder) if folder else []
        if folder and len(traced) > 1:
            said += ending.pictures(lambda formats: _draw_over_np(list(traced.values()), folder, formats), folder)
        return [*said, *(f"{place.name}: {document_of(each).answer}" for place, each in traced.items())]

    ending.tell(
        show,
        scaling,
        answer=told_by(scaling),
        follow=folder_command("explain", list(traced)[-1])
        if traced
        else next_after_table(scaling, files, folder, told),
        document=lambda: _document(scaling) | {"traces": [document_of(each).json() for each in traced.values()]},
        write=write,
    )


def tell_several(ending: Ending, files: list[Path], folder: Path | None) -> None:
    """Of several tables, timelines or measurements: each in a sentence, and what changed from the first to the last."""
    from scalescope.api.reports import PAGE
    from scalescope.report import comparison, study
    from scalescope.studies.compare import compare
    from scalescope.studies.results import read_results

    each = [read_results([path])[0] for path in files]
    changed = compare(each[0], each[-1])
    told = [(result.name, study.answer(result).sentence) for result in each]
    ending.tell(
        comparison.show,
        changed,
        answer="\n".join([*(f"{name}: {words}" for name, words in told), comparison.sentence(changed)]),
        follow=shlex.join(["scalescope", "report", *map(str, files), "-o", PAGE]),
        document=lambda: {
            "kind": "several",
            "results": [{"name": name, "answer": words} for name, words in told],
            "compared": comparison.as_document(changed),
        },
        write=lambda: ending.page(each, folder / PAGE) if folder else [],
    )


def _draw_over_np(explanations: "Sequence[Explanation]", folder: Path, formats: Sequence[str]) -> list[Path]:
    from scalescope.charts import save_charts
    from scalescope.show.charts.explanation import accounting_over_np

    chart = accounting_over_np(explanations)
    return save_charts({"accounting_over_np": chart}, folder, formats) if chart is not None else []


def next_after_table(scaling: "Scaling", files: Sequence[Path], folder: Path | None, told: dict[str, str]) -> str:
    """More launches of a measurement; pictures of a table or of logs; then a measurement of one's own."""
    place = files[0] if files[0].is_dir() else files[0].parent
    if scaling.source == "measurement" and (place / "plan.json").exists():
        return folder_command("measure --resume", place, "--precision", "3%")
    if folder is None:
        options = [word for name, value in told.items() if value for word in (f"--{name}", value)]
        results = Path("results") / (files[0].stem if len(files) == 1 else "explain")
        return shlex.join(["scalescope", "explain", *map(str, files), *options, "-o", str(results)])
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


def _document(scaling: "Scaling") -> dict[str, Any]:
    """What --json prints: speedups by number of processes on the first curve, and everything else that is known."""
    from scalescope.measurement.logs.epochs import break_even_epochs, first_epoch_excess
    from scalescope.records.scaling import SPEEDUPS
    from scalescope.report.measurement import points_document as as_document

    curve = scaling.curves[0] if scaling.curves else None
    points = {str(point.np): point for point in curve.points if point.engine == curve.engine} if curve else {}
    if curve and curve.baseline:
        points = {str(curve.baseline.np): curve.baseline} | points
    kind = scaling.source if scaling.source in ("table", "logs") else "measurement"
    document = {"kind": kind, "what": scaling.what, **as_document(scaling)}
    document["speedup"] = {
        name: {np: point.speedup[name].value for np, point in points.items() if name in point.speedup}
        for name in SPEEDUPS
    }
    if curve and kind == "logs" and curve.work_unit == "epochs":
        document["first_epoch_excess_s"] = {str(np): value for np, value in first_epoch_excess(curve).items()}
        document["break_even_epochs"] = {str(np): value for np, value in break_even_epochs(curve).items()}
    return document
