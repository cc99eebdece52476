"""What a map of predictions can show, and where: quantities of a cell with words and colours; rows and columns."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import altair as alt

from scalescope.charts.parts import is_logarithmic, powers_of_two, round_numbers
from scalescope.records.prediction import Cell
from scalescope.report.prediction import BATCH_WORDS, Grid, asked_batch, is_slower, spaced, speedup_number
from scalescope.units import format_bytes, format_rate, format_seconds, format_share

# Labels of a legend: more than the first on a logarithmic scale, no more than the second; steps of an even one.
_FEW, _MOST, _FEW_STEPS = 2, 7, 5
LABEL_HEIGHT = 14
_WITH_TEXT = 16  # Columns up to which cells are wide enough for numbers
_WIDE = 256  # Ranges wider than that are labelled in tens instead of doublings


class Quantity(NamedTuple):
    """One field of a cell, for people."""

    title: str
    write: Callable[[float], str]


def _hours(hours: float) -> str:
    return f"{hours:,.3g}" if hours < 1000 else f"{hours:,.0f}"


QUANTITIES = {
    "speedup": Quantity("speedup", speedup_number),
    "efficiency": Quantity("efficiency", format_share),
    "step_s": Quantity("step time", format_seconds),
    "throughput": Quantity("throughput, samples/s", format_rate),
    "exposed_s": Quantity("exposed communication", format_seconds),
    "memory_bytes": Quantity("memory of a process", format_bytes),
    "device_hours": Quantity("device-hours for a million samples", _hours),
}  # By field of a cell


def cell_fields(cell: Cell) -> dict[str, Any]:
    """A cell as a row of data: numbers for colours, words for people."""
    row: dict[str, Any] = {
        "np": cell.np,
        "nodes": cell.nodes,
        "column": asked_batch(cell),
        "batch": cell.batch,
        "global": cell.global_batch,
        "fits": cell.fits,
        "slower": is_slower(cell),
        "mark": "=" if cell.verified else "" if cell.measured_batch else "~",
        "hidden_words": format_seconds(cell.hidden_s),
    }
    for name, quantity in QUANTITIES.items():
        value = getattr(cell, name)
        row[name] = float(f"{value:.4g}")
        row[f"{name}_words"] = quantity.write(value)
    row["speedup_words"] += f" ({speedup_number(cell.speedup_low)} to {speedup_number(cell.speedup_high)})"
    row["step_s_words"] += f" ({format_seconds(cell.low_s)} to {format_seconds(cell.high_s)})"
    notes = [
        "measured" if cell.verified else "",
        "" if cell.fits else "does not fit into memory",
        "" if cell.measured_batch else "beyond the profiled batches",
    ]
    row["note"] = ", ".join(note for note in notes if note) or "-"
    return row


def tooltip() -> list[alt.Tooltip]:
    """All quantities of a cell."""
    places = {"np": "processes", "nodes": "nodes", "batch": "batch of a process", "global": "global batch"}
    words = {f"{name}_words": quantity.title for name, quantity in QUANTITIES.items()}
    return [
        *(alt.Tooltip(f"{name}:Q", title=title, format=",") for name, title in places.items()),
        *(alt.Tooltip(f"{name}:N", title=title) for name, title in words.items()),
        alt.Tooltip("hidden_words:N", title="hidden communication"),
        alt.Tooltip("note:N", title="note"),
    ]


def range_of(name: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """From where to where colours go, and which values the legend names at which part of the way."""
    values = [float(getattr(cell, name)) for cell in cells] or [1.0]
    low, high = min(values), max(values)
    if name == "speedup":
        low = 1.0
    elif name == "efficiency":
        low, high = 0.0, max(1.0, high)
    if high <= low * (1 + 1e-9):
        low, high = (1.0, 2.0) if name == "speedup" else (0.9 * low, 1.1 * low or 1.0)
    logarithmic = name == "speedup" or is_logarithmic([low, high])
    doubling = name in ("speedup", "memory_bytes") and high <= _WIDE * low
    ticks = _ticks(low, high, powers_of_two if doubling else round_numbers, logarithmic=logarithmic)
    return {
        "title": QUANTITIES[name].title,
        "low": low,
        "high": high,
        "logarithmic": logarithmic,
        "ticks": [_part(tick, low, high, logarithmic=logarithmic) for tick in ticks],
        "labels": [f"{tick:.3g}" if name == "speedup" else QUANTITIES[name].write(tick) for tick in ticks],
    }


def _ticks(low: float, high: float, series: Callable[[float, float], list[float]], *, logarithmic: bool) -> list[float]:
    """A few round numbers from low to high; on a logarithmic scale from a series of them."""
    if logarithmic:
        found = series(low, high)
        if len(found) > _FEW:
            return found[:: -(-len(found) // _MOST)]
    step = next(step for step in round_numbers((high - low) / 100, high - low) if high - low <= _FEW_STEPS * step)
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def _part(value: float, low: float, high: float, *, logarithmic: bool) -> float:
    """0 at low, 1 at high."""
    return math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)


class Size(NamedTuple):
    """Pixels of a cell."""

    across: int
    down: int

    @property
    def has_text(self) -> bool:
        """Whether there is room for a number."""
        return self.across >= 44 and self.down >= 15


class Axes(NamedTuple):
    """Rows and columns of one map."""

    grid: Grid
    size: Size

    @property
    def width(self) -> int:
        """Of the whole map."""
        return self.size.across * len(self.grid.batches)

    def x(self, band: float = 0.5) -> alt.X:
        """Small batches first; band 0 is the left edge of a column."""
        room = 8 + 7 * len(str(self.grid.batches[-1]))
        labels = spaced(self.grid.batches, room / self.size.across)
        axis = alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False, values=labels)
        scale = alt.Scale(domain=list(self.grid.batches))
        return alt.X("column:O", title=BATCH_WORDS[self.grid.scaling], scale=scale, axis=axis, bandPosition=band)

    def y(self, band: float = 0.5) -> alt.Y:
        """Most processes on top; band 0 is the upper edge of a row."""
        labels = spaced(self.grid.counts, LABEL_HEIGHT / self.size.down)
        axis = alt.Axis(ticks=False, domain=False, grid=False, values=labels)
        scale = alt.Scale(domain=list(reversed(self.grid.counts)))
        return alt.Y("np:O", title="processes", scale=scale, axis=axis, bandPosition=band)


def cell_size(grid: Grid) -> Size:
    """As large as a figure has room for."""
    columns, rows = len(grid.batches), len(grid.counts)
    across = max(50, min(90, 480 // columns)) if columns <= _WITH_TEXT else 640 // columns
    return Size(across, min(28 if rows > 2 else 44, 560 // rows))
