"""One page for a proposal of computing time: speedups over nodes as a table and a plot, and how they were measured."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.named_paths import reading
from scalescope.records.results import Results
from scalescope.records.scaling import Curve, Estimate, ScalingPoint
from scalescope.records.store import write_whole
from scalescope.show.scaling import curve_title
from scalescope.stats import FEWEST
from scalescope.text import plural

FEWEST_STEPS = 100  # That centres ask for, of every size
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
    from scalescope.show.charts.proposal import proposal_chart
    from scalescope.show.charts.saving import rendered

    first = check_proposal(results, path)
    write_whole(path, rendered(proposal_chart(first).to_dict(validate=False), "pdf"))
    return [line for each in studies(first) for line in shortcomings(each)]


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
