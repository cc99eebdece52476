"""A prediction on the terminal: the map of speedups in colour, and what it means in sentences."""

from math import log
from typing import NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.style import Style
from rich.text import Text

from scalescope.records.prediction import Cell, Prediction
from scalescope.report.map_words import map_words
from scalescope.show.words import number
from scalescope.report.prediction import (
    BATCH_WORDS,
    DOES_NOT_FIT_COLOUR,
    RAMP,
    SLOWER_COLOUR,
    Grid,
    advice_words,
    check_words,
    efficient_words,
    grids,
    headline,
    interval_words,
    is_slower,
    left_out_words,
    memory_words,
    own_words,
    recommended_cell,
    reduced,
    sentence,
    speedup_number,
    trust_words,
    verdict_words,
)
from scalescope.report.terminal import Answer, answered, bullet, reasons, say, section, table
from scalescope.stats import PREDICTED, percent
from scalescope.text import plural
from scalescope.units import unit_of

_MOST_ROWS, _FEW_ROWS = 30, 6  # Of a map, with and without --details
_MANY_RULES = 8  # With more node boundaries than that, rows name their nodes instead
_DARK_STEPS = 3  # Colours of the ramp that need white letters
_DOES_NOT_FIT = "mem"


class _Look(NamedTuple):
    """How a kind of cell is written, so that it is told apart without colour too."""

    left: str
    right: str
    sample: str = ""
    meaning: str = ""


_LOOKS = {
    "recommended": _Look("[", "]", "[ ]", "recommended"),
    "slower": _Look("(", ")", "( )", "slower than one process"),
    "mem": _Look(" ", " ", f"{_DOES_NOT_FIT}:", "does not fit into memory"),
    "measured": _Look("=", " ", "=", "measured"),
    "unreal": _Look("?", " ", "?", "over one process that does not fit"),
    "beyond": _Look("~", " ", "~", "beyond the profiled batches"),
    "absent": _Look(" ", " ", "-", "fewer samples than processes"),
    "plain": _Look(" ", " "),
}


def show(prediction: Prediction, console: Console, *, details: bool = False) -> None:
    """The map that the advice stands in and why; with `details` all maps, what was checked, and warnings."""
    if details:
        _show_all(prediction, console)
        return
    maps, best = grids(prediction), recommended_cell(prediction)
    of_best = [grid for grid in maps if best and grid.scaling == best.scaling] or maps[:1]
    for grid in of_best:
        _show_map(grid, prediction, console, _FEW_ROWS)
    others = f"the map of {maps[1 - maps.index(of_best[0])].scaling} scaling, " if len(maps) > 1 else ""
    more = f"{others}every row{', every check' if prediction.checks else ''} and how sure predictions are"
    reasons(console, answer(prediction), more)


def answer(prediction: Prediction) -> Answer:
    """The recommended cell, how far processes and batches go, and how far to trust it."""
    why = [efficient_words(prediction), check_words(prediction) or trust_words(prediction), memory_words(prediction)]
    return answered(sentence(prediction), why, warnings=prediction.warnings)


def _show_all(prediction: Prediction, console: Console) -> None:
    if verdict := verdict_words(prediction):
        console.print()
        say(console, verdict[0].upper() + verdict[1:], "bold yellow")
    for grid in grids(prediction):
        console.print()
        _show_map(grid, prediction, console, _MOST_ROWS)
    console.print()
    for line in [*map_words(prediction), *prediction_lines(prediction)]:
        bullet(console, line)
    if prediction.checks:
        console.print()
        say(console, "Run for real", "bold")
        table(check_rows(prediction), console, tight=True)
    section(console, "Warnings", prediction.warnings, style="yellow")


def _show_map(grid: Grid, prediction: Prediction, console: Console, most: int) -> None:
    rows, notes = _map(grid, prediction, console, most)
    for row in rows:
        console.print(row, no_wrap=True, crop=True, highlight=False)
    for note in notes:
        console.print(note)


def prediction_lines(prediction: Prediction) -> list[str]:
    """What the map means, a line each: advice, how far processes and batches go, how far to trust it."""
    advice = prediction.recommended
    why = f"; {advice.why}" if advice and advice.why else ""
    lines = [f"recommended: {advice_words(prediction)}{why}", efficient_words(prediction), memory_words(prediction)]
    lines += [own_words(prediction), trust_words(prediction), check_words(prediction), interval_words(prediction)]
    return [line for line in lines if line]


def _map(grid: Grid, prediction: Prediction, console: Console, most: int) -> tuple[list[Text], list[Padding]]:
    """The lines of one map with its heading, and what to say below it."""
    best = recommended_cell(prediction)
    wide = max(len(speedup_number(cell.speedup)) for cell in grid.cells.values())
    wide = max(wide, len(f"{grid.batches[-1]:,}"), len(_DOES_NOT_FIT)) + 2
    heads = _row_heads(grid)
    margin = max(len("processes"), *(len(head) for head in heads.values())) + 1
    columns = max(3, (console.width - margin) // wide)
    shown = reduced(grid, most, columns, prediction)
    rules = {} if _names_nodes(grid) else shown.boundaries()
    top = max((cell.speedup for cell in shown.shown() if cell.fits), default=1.0)
    title = f"{grid.scaling} scaling: speedup over one process, {headline(prediction)}"
    room = wide * len(shown.batches)
    lines = [
        Text(title, style="bold", overflow="ellipsis"),
        Text(" " * margin + BATCH_WORDS[grid.scaling].center(room).rstrip()),
        Text("processes".rjust(margin - 1) + " " + "".join(f"{batch:,} ".rjust(wide) for batch in shown.batches)),
    ]
    kinds = []
    for np in shown.counts:
        if np in rules:
            lines.append(Text(" " * margin + _rule(plural(rules[np], "node"), room, console), style="bold"))
        line = Text(heads[np].rjust(margin - 1) + " ")
        for batch in shown.batches:
            cell = shown.cells.get((np, batch))
            kinds.append(_kind(cell, best))
            line.append(_written(cell, kinds[-1], wide), _style(cell, kinds[-1], top))
        lines.append(line)
    key = "   ".join(f"{look.sample} {look.meaning}" for kind, look in _LOOKS.items() if look.meaning and kind in kinds)
    notes = [key, left_out_words(grid, shown)]
    return lines, [Padding(Text(note, style="dim"), (0, 0, 0, margin)) for note in notes if note]


def _names_nodes(grid: Grid) -> bool:
    return len(grid.boundaries()) > _MANY_RULES


def _row_heads(grid: Grid) -> dict[int, str]:
    """`8`, or `8 on 2` where rules between nodes would be too many."""
    nodes = grid.nodes() if _names_nodes(grid) else {}
    return {np: f"{np:,} on {nodes[np]:,}" if nodes.get(np, 1) > 1 else f"{np:,}" for np in grid.counts}


def _rule(label: str, room: int, console: Console) -> str:
    line = "-" if console.options.ascii_only else "─"
    return f" {label} ".center(room, line)


def _kind(cell: Cell | None, best: Cell | None) -> str:
    if cell is None:
        return "absent"
    if not cell.fits:
        return "mem"
    if cell is best:
        return "recommended"
    if is_slower(cell):
        return "slower"
    if cell.verified:
        return "measured"
    if not cell.baseline_fits:
        return "unreal"
    return "plain" if cell.measured_batch else "beyond"


def _written(cell: Cell | None, kind: str, wide: int) -> str:
    text = {"absent": "-", "mem": _DOES_NOT_FIT}.get(kind) or speedup_number(cell.speedup if cell else 0.0)
    look = _LOOKS[kind]
    return f"{look.left}{text}{look.right}".rjust(wide)


def _style(cell: Cell | None, kind: str, top: float) -> Style:
    """Black where one process is faster, grey where nothing fits, otherwise brighter for more speedup."""
    if cell is None:
        return Style(dim=True)
    if kind == "mem":
        return Style(color="#555555", bgcolor=DOES_NOT_FIT_COLOUR)
    if is_slower(cell):
        return Style(color="#a8a8a8", bgcolor=SLOWER_COLOUR, bold=kind == "recommended")
    part = log(max(cell.speedup, 1.0)) / log(top) if top > 1 else 0.0
    step = min(len(RAMP) - 1, int(part * len(RAMP)))
    letters = "#ffffff" if step < _DARK_STEPS else "#000000"
    bold = kind == "recommended"
    return Style(color=letters, bgcolor=RAMP[step], bold=bold, underline=bold)


def check_rows(prediction: Prediction) -> list[list[str]]:
    """Predicted against measured steps, heading first."""
    rows = [["scaling", "np", "batch", f"predicted ({percent(PREDICTED)})", "measured", "error%", "inside"]]
    for check in prediction.checks:
        rows.append(
            [
                check.scaling,
                f"{check.np:,}",
                f"{check.batch:,}",
                _step_with_ends(check.predicted_s, check.low_s, check.high_s),
                _step_with_ends(check.measured_s, check.measured_low_s, check.measured_high_s),
                f"{100 * check.error:+.1f}",
                ("yes" if check.inside else "no") + (", disturbed" if check.disturbed else ""),
            ]
        )
    return rows


def _step_with_ends(middle: float, low: float, high: float) -> str:
    """`16.8 ms (16.0-17.6)`."""
    unit, factor = unit_of(middle)
    decimals = 2 if factor * middle < 10 else 1 if factor * middle < 100 else 0
    value, *ends = (number(factor * each, decimals) for each in (middle, low, high))
    return f"{value} {unit} ({'-'.join(ends)})"
