"""What a map of predictions can show: the quantities of a cell, their words and their ranges of colour."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import altair as alt

from scalescope.charts.parts import is_logarithmic, powers_of_two, round_numbers
from scalescope.records.prediction import Cell
from scalescope.report.prediction import asked_batch, is_slower, speedup_number
from scalescope.units import format_bytes, format_rate, format_seconds

# Labels of a legend: more than the first on a logarithmic scale, no more than the second; steps of an even one.
_FEW, _MOST, _FEW_STEPS = 2, 7, 5
_WIDE = 256  # Ranges wider than that are labelled in tens instead of doublings


class Quantity(NamedTuple):
    """One field of a cell, for people."""

    title: str
    write: Callable[[float], str]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _hours(hours: float) -> str:
    return f"{hours:,.3g}" if hours < 1000 else f"{hours:,.0f}"


QUANTITIES = {
    "speedup": Quantity("speedup", speedup_number),
    "efficiency": Quantity("efficiency", _percent),
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
