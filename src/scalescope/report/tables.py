"""Scaling as tables for a paper, an allocation proposal or a spreadsheet: CSV, Markdown and LaTeX."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scalescope.records.run import INIT_PHASES, LAUNCH_PHASES, PHASES
from scalescope.records.scaling import SPEEDUP_NAMES, SPEEDUPS, Curve, Estimate, Scaling, ScalingPoint
from scalescope.records.store import write_whole
from scalescope.report.phrases import (
    baseline_words,
    curve_estimates,
    curve_title,
    curves_in_order,
    engine_name,
    interval_note,
    number,
    step_name,
    told_seconds,
    with_interval,
)
from scalescope.text import clean, plain, plural
from scalescope.units import format_rate, unit_of

Value = float | int | str | None

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # What a spreadsheet takes for a formula at the beginning of a cell
_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{each: f"\\{each}" for each in "\\`*_[]#|~"}}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{each: f"\\{each}" for each in "%&_#${}"},
}


def write_tables(scaling: Scaling, folder: Path) -> list[Path]:
    """Write scaling.csv, scaling.md and scaling.tex; the files."""
    return write_texts(
        folder,
        {"scaling.csv": as_csv(scaling), "scaling.md": as_markdown(scaling), "scaling.tex": as_latex(scaling)},
    )


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts by file name; the files."""
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
    return [folder / name for name in texts]


def as_csv(scaling: Scaling) -> str:
    """One row per point over all curves; plain numbers with units in the names, empty where nothing is known."""
    told = [_csv_row(curve, point, scaling.what) for curve in curves_in_order(scaling) for point in curve.points]
    rows = dict.fromkeys(tuple(map(csv_cell, row.values())) for row in told)  # engines share their baseline
    text = io.StringIO()
    empty = Curve(engine="", scaling="", baseline_np=None, points=())
    columns = list(_csv_row(empty, ScalingPoint(engine="", np=1), ""))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *rows])
    return text.getvalue()


def _csv_row(curve: Curve, point: ScalingPoint, what: str) -> dict[str, Value]:
    estimates = [point.speedup.get("steady"), point.efficiency, point.step_s, point.throughput]
    first = next((each for each in estimates if each), None)
    row: dict[str, Value] = {
        "np": point.np,
        "init_s": _outside_training(point),
        "train_s": point.train_s,
        "examples_per_s_total": point.throughput.value if point.throughput else None,
        "wall_s": point.wall_s,
        "engine": point.engine,
        "scaling": curve.scaling,
        "batch": point.batch,
        "global_batch": point.global_batch,
        "nodes": point.nodes,
        "launches": point.launches,
        "step_s": point.step_s.value if point.step_s else None,
    }
    for name in SPEEDUPS:
        row |= _with_ends(f"speedup_{name}", point.speedup.get(name))
    row |= _with_ends("efficiency", point.efficiency)
    row["interval"] = first.interval if first else None
    row |= {name: each for name, each in _with_ends("step_s", point.step_s).items() if name != "step_s"}
    row |= {"threads_per_rank": point.threads_per_rank, "steps": point.steps, "warmup_steps": point.warmup_steps}
    row |= {"fixed_s": point.fixed_s, "baseline_np": curve.baseline_np, "baseline_engine": curve.baseline_engine}
    row |= {f"phase_{phase}_s": point.phases.get(phase) for phase in PHASES}
    return {**row, "what": what}


def _with_ends(name: str, estimate: Estimate | None) -> dict[str, Value]:
    ends = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def _outside_training(point: ScalingPoint) -> float | None:
    """Seconds of the launch before the first step and after the last."""
    if point.wall_s is not None and point.train_s is not None:
        return point.wall_s - point.train_s
    known = [point.phases[phase] for phase in (*LAUNCH_PHASES, *INIT_PHASES) if phase in point.phases]
    return sum(known) if known else None


def csv_cell(value: Value) -> str:
    """A value as a CSV cell; text that a spreadsheet would run is kept from it."""
    if isinstance(value, str):
        text = clean(" ".join(value.split()))
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else f"{value:.10g}"


class _Style(NamedTuple):
    """How a kind of document writes things."""

    text: Callable[[str], str]  # A user's text, made harmless
    estimate: Callable[[Estimate], str]
    plus_minus: str
    missing: str


class Table(NamedTuple):
    """Headings by column, cells by row, as the document writes them."""

    caption: str
    headings: list[str]
    rows: list[list[str]]


def page_tables(scaling: Scaling) -> list[Table]:
    """One table per curve for a page, which escapes texts itself."""
    style = _Style(lambda text: plain(text, 200), lambda each: with_interval(each, plus_minus=" ± "), "±", "-")
    return [_table(curve, scaling, style) for curve in _curves(scaling)]


def as_markdown(scaling: Scaling) -> str:
    """GitHub tables, one per curve, each with its caption before it."""
    style = _Style(markdown_text, with_interval, "+-", "-")
    blocks = []
    for curve in _curves(scaling):
        table = _table(curve, scaling, style)
        blocks.append(f"{table.caption}\n\n{markdown_table([table.headings, *table.rows])}")
    return "\n\n".join(blocks) + "\n"


def as_latex(scaling: Scaling) -> str:
    """One table per curve for a document that uses booktabs and nothing else."""
    style = _Style(_latex_text, _latex_estimate, r"$\pm$", "--")
    blocks = [r"% \usepackage{booktabs}"]
    for index, curve in enumerate(_curves(scaling), start=1):
        table = _table(curve, scaling, style)
        label = re.sub(r"[^a-z0-9]+", "-", curve_title(curve).lower()).strip("-")
        blocks.append(
            "\n".join(
                [
                    r"\begin{table}[htbp]",
                    r"  \centering\footnotesize\setlength{\tabcolsep}{4pt}",
                    f"  \\caption{{{table.caption}}}",
                    f"  \\label{{tab:scaling-{index}-{label}}}",
                    f"  \\begin{{tabular}}{{{'r' * len(table.headings)}}}",
                    r"    \toprule",
                    *_two_lines(table.headings),
                    r"    \midrule",
                    *(f"    {' & '.join(cells)} \\\\" for cells in table.rows),
                    r"    \bottomrule",
                    r"  \end{tabular}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(blocks) + "\n"


def _curves(scaling: Scaling) -> list[Curve]:
    return [curve for curve in curves_in_order(scaling) if curve.points]


def _two_lines(headings: Sequence[str]) -> list[str]:
    """Headings on two lines, so that columns stay narrow."""
    halves = [heading.partition(" ") for heading in headings]
    lines = ([first for first, _, _ in halves], [second for _, _, second in halves])
    return [f"    {' & '.join(line)} \\\\" for line in lines]


def _latex_estimate(estimate: Estimate) -> str:
    text = with_interval(estimate, plus_minus=r" \pm ", to="--")
    return f"${text}$" if r"\pm" in text else text


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table of numbers, heading first."""
    lines = [rows[0], ["---:"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(_MARKDOWN.get(character, character) for character in " ".join(text.split()))


def _latex_text(text: str) -> str:
    """Every special character escaped; what pdfLaTeX has no letter for becomes a question mark."""
    known = plain(text, max(len(text), 1)).encode("latin-1", "replace").decode("latin-1")
    escaped = "".join(_LATEX.get(character, character) for character in known)
    return re.sub("-(?=-)", "-{}", escaped)  # an option's two dashes are no dash


def _table(curve: Curve, scaling: Scaling, style: _Style) -> Table:
    """All columns that something is known for."""
    columns = {heading: cells for heading, cells in _columns(curve, style).items() if any(cells)}
    rows = [[cell or style.missing for cell in row] for row in zip(*columns.values(), strict=True)]
    return Table(_caption(curve, scaling, style), [style.text(heading) for heading in columns], rows)


def _columns(curve: Curve, style: _Style) -> dict[str, list[str]]:
    points = curve.points
    slowest = max((point.step_s.value for point in points if point.step_s), default=0.0)
    unit, factor = unit_of(max(slowest, 1e-3))
    columns = {
        "nodes": [_count(point.nodes) for point in points],
        "processes": [_processes(point, curve, style) for point in points],
        "batch per process": [_count(point.batch) for point in points],
        "global batch": [_count(point.global_batch) for point in points],
        f"{step_name(curve)} ({unit})": [
            _three_digits(factor * each.value) if (each := point.step_s) else "" for point in points
        ],
        "samples/s": [format_rate(each.value) if (each := point.throughput) else "" for point in points],
    }
    columns |= {f"{name} (s)": [_count(each) for each in told] for name, told in told_seconds(curve).items()}
    for name in SPEEDUPS:
        cells = [style.estimate(point.speedup[name]) if name in point.speedup else "" for point in points]
        columns[f"speedup {SPEEDUP_NAMES[name]}"] = cells
    columns["efficiency (%)"] = [number(100 * each.value, 1) if (each := point.efficiency) else "" for point in points]
    return columns


def _processes(point: ScalingPoint, curve: Curve, style: _Style) -> str:
    other = "" if point.engine == curve.engine else f" ({style.text(engine_name(point.engine))})"
    return f"{point.np:,}{other}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _three_digits(value: float) -> str:
    return number(value, 2 if value < 10 else 1 if value < 100 else 0)


def _caption(curve: Curve, scaling: Scaling, style: _Style) -> str:
    """What is shown, relative to what, and how sure it is."""
    title = curve_title(curve) if curve.scaling or not curve.engine else f"scaling, {curve_title(curve)}"
    sentences = [f"{style.text(title[0].upper() + title[1:])}: {style.text(plain(scaling.what, 60))}."]
    base = baseline_words(curve)
    sentences.append(
        f"Relative to {base}, the smallest feasible size." if base else "There is nothing to compare with."
    )
    sentences.append(_launches(curve.points))
    note = interval_note(curve_estimates(curve), t="+- or [ ]", span="in parentheses")
    if note:
        sentences.append(style.text(note[0].upper() + note[1:]).replace("+-", style.plus_minus) + ".")
    return " ".join(sentence for sentence in sentences if sentence)


def _launches(points: Sequence[ScalingPoint]) -> str:
    counts = sorted({point.launches for point in points})
    if counts == [1] or not counts:
        return ""
    return f"{plural(counts[0], 'launch')} each." if len(counts) == 1 else f"{counts[0]} to {counts[-1]} launches each."
