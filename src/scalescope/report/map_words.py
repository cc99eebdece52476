"""The map in words: from which batch several processes pay, what a node boundary does, whether large batches help."""

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from scalescope.records.prediction import Cell, Prediction
from scalescope.report.prediction import Grid, asked_batch, grids, speedup_number
from scalescope.text import plural
from scalescope.units import format_seconds

_MOST_RANGES = 3  # Of batches in one sentence; a map with more of them is counted
_VISIBLE = 0.02  # Change of a step, as a fraction of it, that is worth words

Sign = Literal[-1, 0, 1]  # Surely less, the intervals do not tell, surely more


def map_words(prediction: Prediction) -> list[str]:
    """What can be seen in the map and why, a sentence each; none of a map of one process or one not to be trusted."""
    if not prediction.trusted:
        return []
    maps = grids(prediction)
    said = [[_where_they_pay(grid), _node_boundary(grid), _larger_batches(grid)] for grid in maps]
    told: dict[str, None] = {}  # what holds for every map is said once
    for grid, lines in zip(maps, said, strict=True):
        for line in filter(None, lines):
            common = all(line in others for others in said)
            told[line if common else f"{grid.scaling.capitalize()} scaling: {line}"] = None
    return list(told)


def _row(grid: Grid, np: int) -> list[Cell]:
    """Cells that can be run, and over a step that can be run, by batch."""
    cells = [grid.cells[np, batch] for batch in grid.batches if (np, batch) in grid.cells]
    return [cell for cell in cells if cell.fits and cell.baseline_fits]


def _where_they_pay(grid: Grid) -> str:
    """`2 processes are faster than one from batch 64 each on (1.12x, 1.05 to 1.19), slower up to batch 16 each.`"""
    fewest = min((np for np in grid.counts if np > 1), default=0)
    cells = _row(grid, fewest)
    if not cells:
        return ""
    who, signs = plural(fewest, "process"), [_sign(cell.speedup_low, cell.speedup_high, 1, 1) for cell in cells]
    best = max(cells, key=lambda cell: cell.speedup)
    if all(sign > 0 for sign in signs):
        return f"{who} are faster than one at every batch size of the map: {_between(cells)}."
    if all(sign < 0 for sign in signs):
        return f"{who} are slower than one at every batch size of the map: {_between(cells)}. {_share(best)}."
    slower = f", slower {where}" if (where := _ranges(cells, signs, -1)) else ""
    if not any(sign > 0 for sign in signs):
        return f"At no batch size of the map are {who} surely faster than one: at best {_reached(best)}{slower}."
    first = next(cell for cell, sign in zip(cells, signs, strict=True) if sign > 0)
    unsure = "; elsewhere the interval holds 1" if 0 in signs else ""
    return f"{who} are faster than one {_ranges(cells, signs, 1)} ({_short(first)}, {_ends(first)}){slower}{unsure}."


def _node_boundary(grid: Grid) -> str:
    """What the first row on more nodes reaches, next to the last one before it."""
    nodes = grid.nodes()
    several = [np for np in nodes if np > 1]
    if not several:
        return ""
    if max(nodes.values()) == 1:
        return "All processes run on one node: no message crosses a node boundary."
    if not (boundaries := grid.boundaries()):
        return f"Every row of the map runs on {plural(max(nodes.values()), 'node')}: messages always cross nodes."
    after = min(boundaries)
    before = max(np for np in nodes if np < after)
    if before == 1:
        return f"{after:,} processes run on {plural(nodes[after], 'node')} already: messages always cross nodes."
    there = {asked_batch(cell): cell for cell in _row(grid, after)}
    pairs = [(cell, there[asked_batch(cell)]) for cell in _row(grid, before) if asked_batch(cell) in there]
    if not pairs:
        return ""
    signs = [_sign(b.speedup_low, b.speedup_high, a.speedup_low, a.speedup_high) for a, b in pairs]
    drops = [pair for pair, sign in zip(pairs, signs, strict=True) if sign < 0]
    less, more = drops[-1] if drops else pairs[-1]
    figures = f"{_short(less)} becomes {_reached(more)}"
    crossing = f"From {before:,} to {after:,} processes, which need {plural(nodes[after], 'node')},"
    costs_efficiency = all(sign > 0 for sign in signs) and more.speedup_high / after < less.speedup_low / before
    reason = ""
    if more.exposed_s - less.exposed_s > _VISIBLE * less.step_s:
        joint = "because" if drops or costs_efficiency else "although" if any(signs) else "while"
        grown = f"from {format_seconds(less.exposed_s)} to {format_seconds(more.exposed_s)}"
        reason = f", {joint} exposed communication grows {grown} of a step where messages cross nodes"
    if not any(signs):
        return f"{crossing} the intervals do not tell whether speedup rises: {figures}{reason}."
    if costs_efficiency:
        efficiency = f"efficiency falls from {100 * less.efficiency:.0f} % to {100 * more.efficiency:.0f} %"
        return f"{crossing} speedup rises at every batch size ({figures}), but {efficiency}{reason}."
    unsure = "; elsewhere the intervals overlap" if 0 in signs else ""
    return f"{crossing} speedup {_by_sign([b for _, b in pairs], signs)}: {figures}{reason}{unsure}."


def _larger_batches(grid: Grid) -> str:
    """Whether the row of the most processes gets better to the right, and what communication has to do with it."""
    rows = [cells for np in grid.counts if np > 1 and len(cells := _row(grid, np)) > 1]
    if not rows:
        return ""
    cells = rows[-1]
    small, large = cells[0], cells[-1]
    best = max(cells, key=lambda cell: cell.speedup)
    sign = _sign(large.speedup_low, large.speedup_high, small.speedup_low, small.speedup_high)
    figures = f"{plural(small.np, 'process')} reach {_reached(small)} and {_reached(large)}"
    shares = f"exposed communication is {_part(small)} of a step and then {_part(large)}"
    past = ""
    if best is not large and _sign(large.speedup_low, large.speedup_high, best.speedup_low, best.speedup_high) < 0:
        past = f" The most is {_reached(best)}; beyond it speedup falls."
    if sign > 0:
        each = small.exposed_s - large.exposed_s * small.global_batch / large.global_batch  # for as many samples
        is_why = each > _VISIBLE * small.step_s
        why = "gradients do not grow with the batch and compute does" if is_why else "communication is not the reason"
        return f"Larger batches scale better: {figures}; {why}: {shares}.{past}"
    told = "Larger batches scale worse" if sign < 0 else "The intervals do not show that larger batches scale better"
    return f"{told}: {figures}; {shares}{_slower_apart(grid, large)}.{past}"


def _slower_apart(grid: Grid, cell: Cell) -> str:
    """What the rest of a step takes against one process with the same batch; empty where the map does not tell."""
    alone = next((each for each in _row(grid, 1) if each.batch == cell.batch), None)
    rest = (cell.step_s - cell.exposed_s) / alone.step_s - 1 if alone else 0.0
    return f", and the rest takes {100 * rest:.0f} % longer than on one process" if rest > _VISIBLE else ""


def _sign(low: float, high: float, other_low: float, other_high: float) -> Sign:
    return 1 if low > other_high else -1 if high < other_low else 0


def _by_sign(cells: Sequence[Cell], signs: Sequence[Sign]) -> str:
    """`drops up to batch 16 each and rises from batch 64 each on`."""
    words = [("drops", _ranges(cells, signs, -1)), ("rises", _ranges(cells, signs, 1))]
    return " and ".join(f"{verb} {where}" for verb, where in words if where)


def _ranges(cells: Sequence[Cell], signs: Sequence[Sign], wanted: Sign) -> str:
    """`from batch 64 each on`, `up to batch 16 each`, `from batch 8 each to 32`; empty where no cell has the sign."""
    last, found = len(cells) - 1, []
    for sign, run in groupby(range(len(cells)), key=lambda at: signs[at]):
        if sign == wanted:
            places = list(run)
            found.append((places[0], places[-1]))
    if not found:
        return ""
    if len(found) > _MOST_RANGES:
        count = sum(end - start + 1 for start, end in found)
        return f"at {count:,} of {len(cells):,} batch sizes, the smallest of them {_named(cells[found[0][0]])}"
    words = []
    for start, end in found:
        if start == 0 and end == last:
            words.append("at every batch size")
        elif start == end:
            words.append(f"with {_named(cells[start])}")
        elif end == last:
            words.append(f"from {_named(cells[start])} on")
        elif start == 0:
            words.append(f"up to {_named(cells[end])}")
        else:
            words.append(f"from {_named(cells[start])} to {asked_batch(cells[end]):,}")
    return " and ".join(words)


def _named(cell: Cell) -> str:
    return f"global batch {cell.global_batch:,}" if cell.scaling == "strong" else f"batch {cell.batch:,} each"


def _short(cell: Cell) -> str:
    return f"{speedup_number(cell.speedup)}x"


def _ends(cell: Cell) -> str:
    return f"{speedup_number(cell.speedup_low)} to {speedup_number(cell.speedup_high)}"


def _reached(cell: Cell) -> str:
    """`1.12x (1.05 to 1.19) with batch 64 each`."""
    return f"{_short(cell)} ({_ends(cell)}) with {_named(cell)}"


def _between(cells: Sequence[Cell]) -> str:
    """The least and the most, or the only one with its interval."""
    least, most = (choose(cells, key=lambda cell: cell.speedup) for choose in (min, max))
    return _reached(most) if least is most else f"{_reached(least)} to {_reached(most)}"


def _part(cell: Cell) -> str:
    return f"{100 * cell.exposed_s / cell.step_s:.0f} %"


def _share(cell: Cell) -> str:
    exposed = f"{format_seconds(cell.exposed_s)} of {format_seconds(cell.step_s)}"
    return f"Of a step with {_named(cell)}, {exposed} are exposed communication"
