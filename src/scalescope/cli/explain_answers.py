"""What explain says about Horovod's autotune log.
What explain says about tables, logs and measurements.
What explain says about traces, and where it writes it.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope.cli.output import from_here, pictures, tell, write

if TYPE_CHECKING:
    from rich.console import Console

    from scalescope.records.autotune import Autotune
    from scalescope.records.explanation import Explanation
    from scalescope.records.scaling import Scaling


def tell_autotune(
    record: "Autotune", console: "Console", path: Path, output: Path | None, *, json: bool, quiet: bool
) -> None:
    """What was tried, the answer and the next command."""
    from scalescope.records.store import save
    from scalescope.report.autotune import as_document, next_command_of, sentence, show

    said: list[str] = []
    if output:
        from scalescope.charts.autotune import write_autotune_charts

        save(record, output / "autotune.json")
        said = [*pictures(lambda: write_autotune_charts(record, output)), f"Records: {from_here(output.absolute())}"]
    tell(
        console,
        lambda: show(record, console),
        said,
        sentence(record),
        next_command_of(record),
        lambda: as_document(record),
        json=json,
        quiet=quiet,
    )


def tell_scaling(
    scaling: "Scaling",
    console: "Console",
    given: Sequence[Path],
    np: str,
    pattern: str,
    output: Path | None,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Tables and pictures, what traced launches show, the answer and the next command."""
    from scalescope.diagnosis.sources import explain_traces
    from scalescope.report.explanation import sentence
    from scalescope.report.explanation_tables import as_document
    from scalescope.report.scaling import show

    traced = {folder: explain_traces([folder]) for folder in traces_of(given)}
    said = write(scaling, output) if output else []
    if output and len(traced) > 1:
        said += pictures(lambda: _draw_over_np(list(traced.values()), output))
    said += [f"{folder.name}: {sentence(explanation)}" for folder, explanation in traced.items()]
    tell(
        console,
        lambda: show(scaling, console),
        said,
        answer(scaling),
        f"scalescope explain {shlex.quote(str(list(traced)[-1]))}"
        if traced
        else next_command(scaling, given, np, pattern, output),
        lambda: document(scaling) | {"traces": [as_document(explanation) for explanation in traced.values()]},
        json=json,
        quiet=quiet,
    )


def _draw_over_np(explanations: "Sequence[Explanation]", folder: Path) -> list[Path]:
    from scalescope.charts import FORMATS, save_charts
    from scalescope.charts.accounting import accounting_over_np

    chart = accounting_over_np(explanations)
    return save_charts({"accounting_over_np": chart}, folder, FORMATS) if chart is not None else []


def document(scaling: "Scaling") -> dict[str, Any]:
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


def answer(scaling: "Scaling") -> str:
    """The speedups of the most processes in one sentence; a measurement has its own."""
    from scalescope.records.scaling import SPEEDUP_NAMES
    from scalescope.report.measurement import sentence
    from scalescope.report.phrases import baseline_words, curve_title, largest
    from scalescope.units import plural

    if scaling.source not in ("table", "logs"):
        return sentence(scaling)
    curve = scaling.curves[0]
    point = largest(curve)
    if point is None or not point.speedup:
        return "There is nothing to compare with: add what other numbers of processes gave."
    values = ", ".join(
        f"{point.speedup[name].value:.2f}x {words}" for name, words in SPEEDUP_NAMES.items() if name in point.speedup
    )
    title = f"{curve_title(curve)}: " if len(scaling.curves) > 1 else ""
    once = " (one run each; runs differ)" if any(each.once for each in point.speedup.values()) else ""
    answer = f"{title}{plural(point.np, 'process')} reach {values}, relative to {baseline_words(curve)}{once}."
    return answer[0].upper() + answer[1:]


def next_command(scaling: "Scaling", paths: Sequence[Path], np: str, pattern: str, output: Path | None) -> str:
    """What a user would type after this: pictures, a measurement of one's own, or more launches."""
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    if scaling.source == "measurement" and (folder / "plan.json").exists():
        return f"scalescope measure --resume {shlex.quote(str(folder))} --precision 3%"
    if output is None:
        options = [word for name, value in (("--np", np), ("--pattern", pattern)) if value for word in (name, value)]
        folder = Path("results") / (paths[0].stem if len(paths) == 1 else "explain")
        return shlex.join(["scalescope", "explain", *map(str, paths), *options, "-o", str(folder)])
    counts = sorted({point.np for curve in scaling.curves for point in curve.points})
    return f"scalescope measure --np {','.join(map(str, counts))} -- python train.py"


def traces_of(paths: Sequence[Path]) -> list[Path]:
    """Folders of the traced launches of a measurement; none for anything else."""
    from scalescope.records.explanation import TRACE_RECORD
    from scalescope.records.run import Measurement
    from scalescope.records.store import load

    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    file = folder / "measurement.json"
    if len(paths) != 1 or not file.is_file() or paths[0] not in (folder, file):
        return []
    traces = [folder / name for name in load(file, Measurement).traces]
    return [trace for trace in traces if (trace / TRACE_RECORD).is_file()]


def write_explanation(explanation: "Explanation", folder: Path) -> list[str]:
    """Save the record, its tables and its pictures; lines that say where they are."""
    from scalescope.records.store import save
    from scalescope.report.explanation_tables import write_tables

    save(explanation, folder / "explanation.json")
    write_tables(explanation, folder)
    here = from_here(folder.absolute())

    def draw() -> list[Path]:
        from scalescope.charts.accounting import write_explanation_charts

        return write_explanation_charts(explanation, folder)

    return [*pictures(draw), f"Tables: {here}/explanation.csv, .md", f"Records: {here}"]


def tell_explanation(
    explanation: "Explanation",
    console: "Console",
    said: Sequence[str],
    given: Sequence[Path],
    output: Path | None,
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Tables, pictures, the answer and the next command."""
    from scalescope.report.explanation import sentence
    from scalescope.report.explanation_show import show
    from scalescope.report.explanation_tables import as_document

    follow = f"scalescope explain {shlex.join(map(str, given))} -o results/explain"
    if output is not None:
        engine = f" --engine {explanation.engine}" if explanation.engine != "none" else ""
        options = f"--np 1,{max(explanation.world_size or 2, 2)}{engine}"
        follow = f"scalescope measure {options} -- {shlex.join(explanation.command) or 'python train.py'}"
        if explanation.kind == "run folder" and not explanation.command:
            follow = f"scalescope measure {shlex.quote(explanation.what)} {options}"
    tell(
        console,
        lambda: show(explanation, console),
        said,
        sentence(explanation),
        follow,
        lambda: as_document(explanation),
        json=json,
        quiet=quiet,
    )
