"""One page for a proposal of computing time: speedups over nodes as a table and a plot, and how they were measured."""

import math
import re
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from scalescope import __version__
from scalescope.errors import UsageError
from scalescope.named_paths import reading
from scalescope.records.results import Results
from scalescope.records.scaling import Curve, Estimate, ScalingPoint
from scalescope.records.store import write_whole
from scalescope.show.document import Column, cell
from scalescope.show.scaling import curve_title
from scalescope.show.study import machine_facts, method_words
from scalescope.stats import FEWEST, MEASURED, percent
from scalescope.text import plain, plural
from scalescope.units import format_rate, format_seconds, format_share

FEWEST_STEPS = 100  # That centres ask for, of every size
_WIDTH, _HEIGHT, _MARGIN = 794, 1123, 56  # A4 at 96 pixels an inch
_POINTS = (595, 842)  # A4 as a PDF counts it
_LETTER = 0.52  # Of the font size: how wide a letter is on average
_MOST_CURVES = 2


class Row(NamedTuple):
    """One size of a curve, relative to the smallest one."""

    units: int  # Nodes, or processes where no nodes are known
    point: ScalingPoint
    throughput: float
    speedup: float
    low: float
    high: float
    efficiency: float

    @property
    def steps(self) -> int | None:
        """Steps that were measured after the warm-up, per launch."""
        return None if self.point.steps is None else self.point.steps - (self.point.warmup_steps or 0)


class Study(NamedTuple):
    """One curve as a proposal shows it."""

    title: str
    unit: str  # node or process
    rows: list[Row]


def write_proposal(results: Sequence[Results], path: Path) -> list[str]:
    """Write one PDF page for a proposal; lines that say what a reviewer would miss.

    Raises:
        UsageError: Nothing was measured at two sizes, or the file is there and no PDF.
    """
    from scalescope.show.charts.saving import rendered, svg_as_pdf
    from scalescope.show.charts.scaling import proposal_chart

    first = check_proposal(results, path)
    found = studies(first)
    plots = [rendered(proposal_chart(each).to_dict(validate=False), "svg").decode() for each in found]
    write_whole(path, svg_as_pdf(as_svg(first, plots)))
    return [line for each in found for line in shortcomings(each)]


def check_proposal(results: Sequence[Results], path: Path) -> Results:
    """The results that a proposal shows; refuse to replace a file that is no PDF."""
    first = next((each for each in results if studies(each)), None)
    if first is None:
        raise UsageError("--proposal needs a measurement of two or more sizes: scalescope measure --np 1,2,4 ...")
    with reading(path):
        is_other = path.is_dir() or (path.exists() and not path.read_bytes().startswith(b"%PDF-"))
    if is_other:
        raise UsageError(f"'{path}' exists and is no PDF: choose another name for --proposal")
    if path.suffix.lower() != ".pdf":
        raise UsageError(f"--proposal writes a PDF: name a file such as {path.with_suffix('.pdf')}")
    return first


def studies(results: Results) -> list[Study]:
    """Curves with two or more sizes, each relative to its smallest one; in nodes where points tell them."""
    found = []
    for curve in results.scaling.curves if results.scaling else ():
        rows, unit = _rows(curve)
        if len(rows) > 1:
            found.append(Study(curve_title(curve), unit, rows))
    return sorted(found, key=lambda study: (study.unit != "node", -len(study.rows)))[:_MOST_CURVES]


def _rows(curve: Curve) -> tuple[list[Row], str]:
    own = [point for point in curve.points if point.throughput and point.engine == curve.engine]
    nodes = {point.nodes for point in own}
    unit = "node" if None not in nodes and len(nodes) > 1 else "process"
    sizes: dict[int, ScalingPoint] = {}
    for point in sorted(own, key=lambda point: point.np):  # of several counts on a node the largest
        sizes[point.nodes if unit == "node" and point.nodes else point.np] = point
    smallest = min(sizes, default=0)
    return [_row(size, smallest, sizes[size], sizes[smallest]) for size in sorted(sizes)], unit


def _row(size: int, smallest: int, point: ScalingPoint, base: ScalingPoint) -> Row:
    rate, first = point.throughput, base.throughput
    assert rate is not None
    assert first is not None
    speedup = rate.value / first.value
    half = 0.0 if point is base else math.hypot(_relative(rate), _relative(first))
    return Row(
        units=size,
        point=point,
        throughput=rate.value,
        speedup=speedup,
        low=speedup * math.exp(-half),
        high=speedup * math.exp(half),
        efficiency=speedup * smallest / size,
    )


def _relative(estimate: Estimate) -> float:
    return math.log(max(estimate.high, estimate.value) / estimate.value) if estimate.count > 1 else 0.0


def shortcomings(study: Study) -> list[str]:
    """List what a reviewer would ask for."""
    told = []
    short = [row for row in study.rows if row.steps is not None and row.steps < FEWEST_STEPS]
    if short:
        names = ", ".join(f"{row.steps} on {plural(row.units, study.unit)}" for row in short)
        told.append(f"Fewer than {FEWEST_STEPS} steps per launch: {names}; measure again with --steps 150.")
    if any(row.steps is None for row in study.rows):
        told.append("The source does not tell how many steps were measured.")
    sizes = [row.units for row in study.rows]
    wanted = [sizes[0] * 2**power for power in range((sizes[-1] // sizes[0]).bit_length())]
    if missing := [size for size in wanted if size not in sizes]:
        told.append(f"Not measured: {', '.join(plural(size, study.unit) for size in missing)}.")
    if any(row.point.launches < FEWEST for row in study.rows):
        told.append(f"Fewer than {FEWEST} launches of a size: no interval.")
    return told


def as_svg(results: Results, plots: Sequence[str]) -> str:
    """The page as SVG; `plots` are the figures of its studies, as SVG too.

    Text is laid out here, by the width of an average letter, because a PDF has no lines that wrap.
    """
    page = _Page()
    page.text(f"Scaling of {plain(results.what, 70)}", 22, bold=True)
    for study, plot in zip(studies(results), plots, strict=True):
        largest = study.rows[-1]
        page.text(f"{study.title[0].upper()}{study.title[1:]}", 15, bold=True, above=14)
        page.text(
            f"Speedup relative to {plural(study.rows[0].units, study.unit)}, the smallest feasible size: "
            f"{largest.speedup:.2f} on {plural(largest.units, study.unit)}, a parallel efficiency of "
            f"{format_share(largest.efficiency)}. Intervals over launches, {percent(MEASURED)}.",
            11,
        )
        page.table(_columns(study), study.rows)
        page.picture(plot, 210 if len(plots) > 1 else 330)
        for line in shortcomings(study):
            page.text(line, 10)
    page.text("Method", 15, bold=True, above=10)
    page.text(method_words(results), 11)
    facts = "; ".join(f"{name}: {value}" for name, value in machine_facts(results))
    page.text(facts, 10)
    page.text(f"Measured with scalescope {__version__}.", 10)
    return page.svg()


def _columns(study: Study) -> list[Column]:
    sizes = [Column("point.np", "processes", write="{:,}".format)]
    if study.unit == "node":
        sizes.insert(0, Column("units", "nodes", write="{:,}".format))
    return [
        *sizes,
        Column("point.batch", "batch each", write="{:g}".format),
        Column("steps", "steps", write="{:,}".format),
        Column("point.launches", "launches"),
        Column("point.step_s.value", "step", write=format_seconds),
        Column("throughput", "samples/s", write=format_rate),
        Column("speedup", "speedup", write="{:.2f}".format),
        Column(lambda row: f"{row.low:.2f} to {row.high:.2f}" if row.low < row.high else None, "interval"),
        Column("efficiency", "efficiency", write=format_share),
    ]


class _Page:
    """Lines from the top down."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._at = float(_MARGIN)

    def text(self, text: str, size: float, *, bold: bool = False, above: float = 4) -> None:
        """A paragraph in lines that fit."""
        self._at += above
        most = int((_WIDTH - 2 * _MARGIN) / (_LETTER * size * (1.08 if bold else 1.0)))
        for line in textwrap.wrap(text, most):
            self._at += 1.32 * size
            weight = ' font-weight="bold"' if bold else ""
            self._parts.append(
                f'<text x="{_MARGIN}" y="{self._at:.1f}" font-size="{size}"{weight}>{escape(line)}</text>'
            )

    def table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Numbers in columns of equal width, right-aligned."""
        self._at += 10
        wide = (_WIDTH - 2 * _MARGIN) / len(columns)
        lines = [[column.heading for column in columns]]
        lines += [[cell(column, row) or "-" for column in columns] for row in rows]
        for index, cells in enumerate(lines):
            self._at += 16
            for at, text in enumerate(cells, start=1):
                x = _MARGIN + at * wide - 6
                look = 'font-size="10" text-anchor="end"' + (' font-weight="bold"' if not index else "")
                self._parts.append(f'<text x="{x:.1f}" y="{self._at:.1f}" {look}>{escape(text)}</text>')
            if index in (0, len(rows)):
                line = self._at + 5
                self._parts.append(
                    f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{line:.1f}" y2="{line:.1f}" stroke="#444444"/>'
                )
                self._at += 2
        self._at += 6

    def picture(self, svg: str, height: float) -> None:
        """A figure in the middle, no wider than the text."""
        sizes = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
        across, down = (float(sizes[1]), float(sizes[2])) if sizes else (600.0, 300.0)
        scale = min(height / down, (_WIDTH - 2 * _MARGIN) / across)
        left = (_WIDTH - scale * across) / 2
        place = f'x="{left:.1f}" y="{self._at:.1f}" width="{scale * across:.1f}" height="{scale * down:.1f}"'
        inner = re.sub(r'^(<svg[^>]*?) width="[^"]*" height="[^"]*"', rf"\1 {place}", svg[svg.index("<svg") :], count=1)
        self._parts.append(inner)
        self._at += scale * down + 4

    def svg(self) -> str:
        """All of it; what would not fit is made smaller."""
        fits = min(1.0, (_HEIGHT - _MARGIN) / (self._at + 10))
        inside = "".join(self._parts)
        left = _WIDTH * (1 - fits) / 2
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="{_POINTS[0]}" '
            f'height="{_POINTS[1]}" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="Helvetica, Arial, sans-serif">'
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
            f'<g transform="translate({left:.1f} 0) scale({fits:.4f})">{inside}</g></svg>'
        )
