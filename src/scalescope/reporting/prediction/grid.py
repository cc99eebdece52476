"""A prediction's cells as a map: rows of processes, columns of batch sizes, and which of them are shown."""

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from scalescope.records.prediction import Cell, Prediction, Scaling

SCALINGS: tuple[Scaling, ...] = ("strong", "weak")
BATCH_WORDS = {"strong": "global batch", "weak": "batch of a process"}
"""What the columns of a map are."""
RAMP = ("#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725")
"""Colours of a map from low to high; below it is black."""
SLOWER_COLOUR = "#1c1c1c"
DOES_NOT_FIT_COLOUR = "#dddddd"
_READS_AS_ONE = 0.995
"""From here on a speedup is written 1.00."""


class Grid(NamedTuple):
    """The map of one kind of scaling; ascending."""

    scaling: Scaling
    counts: tuple[int, ...]
    """Processes."""
    batches: tuple[int, ...]
    """As they were asked for: of a process (weak) or of all (strong)."""
    cells: dict[tuple[int, int], Cell]
    """By processes and batch; a batch of fewer samples than processes has none."""

    def shown(self) -> list[Cell]:
        """The cells of these rows and columns, in their order."""
        places = ((np, batch) for np in self.counts for batch in self.batches)
        return [self.cells[place] for place in places if place in self.cells]

    def nodes(self) -> dict[int, int]:
        """Nodes by processes."""
        return {cell.np: cell.nodes for cell in reversed(self.shown())}

    def boundaries(self) -> dict[int, int]:
        """Rows that begin to use more nodes than the row before, and how many."""
        nodes = self.nodes()
        known = [np for np in self.counts if np in nodes]
        return {np: nodes[np] for before, np in pairwise(known) if nodes[np] > nodes[before]}


def grids(prediction: Prediction) -> list[Grid]:
    """One map for each kind of scaling that was predicted."""
    found = []
    for scaling in SCALINGS:
        cells = {(cell.np, asked_batch(cell)): cell for cell in prediction.cells if cell.scaling == scaling}
        counts, batches = sorted({np for np, _ in cells}), sorted({batch for _, batch in cells})
        if cells:
            found.append(Grid(scaling, tuple(counts), tuple(batches), cells))
    return found


def asked_batch(cell: Cell) -> int:
    """The batch as the user says it: per process for weak scaling, of all processes for strong scaling."""
    return cell.global_batch if cell.scaling == "strong" else cell.batch


def is_slower(cell: Cell) -> bool:
    """Whether one process alone is faster, as far as two digits tell."""
    return cell.speedup < _READS_AS_ONE


def recommended_cell(prediction: Prediction) -> Cell | None:
    """The cell that the advice speaks of."""
    advice = prediction.recommended
    if advice is None:
        return None
    wanted = (advice.np, advice.batch, advice.scaling)
    return next((cell for cell in prediction.cells if (cell.np, cell.batch, cell.scaling) == wanted), None)


def reduced(grid: Grid, rows: int, columns: int, prediction: Prediction) -> Grid:
    """The map with at most so many rows and columns, the recommended ones among them."""
    best = recommended_cell(prediction)
    keep = [best] if best and best.scaling == grid.scaling else []
    counts = some_of(grid.counts, rows, [cell.np for cell in keep])
    batches = some_of(grid.batches, columns, [asked_batch(cell) for cell in keep])
    return grid._replace(counts=counts, batches=batches)


def some_of(values: Sequence[int], most: int, keep: Collection[int] = ()) -> tuple[int, ...]:
    """At most so many (3 or more) of ascending values: ends, `keep`, powers of two, then round ones in wide gaps."""
    if len(values) <= most:
        return tuple(values)
    picked = {values[0], values[-1], *(value for value in values if value in keep)}
    powers = [value for value in values if _odd_part(value) == 1 and value not in picked]
    room = max(0, most - len(picked))
    picked.update(powers if len(powers) <= room else (powers[index * len(powers) // room] for index in range(room)))
    apart = {value: _doublings(value, picked) for value in values}
    while len(picked) < most:
        best = max(values, key=lambda value: apart[value] / math.log2(1 + _odd_part(value)))
        picked.add(best)
        apart = {value: min(old, _doublings(value, [best])) for value, old in apart.items()}
    return tuple(sorted(picked))


def spaced(values: Sequence[int], apart: float) -> list[int]:
    """Values that stand at least so many places from each other, the roundest first."""
    places = {value: place for place, value in enumerate(values)}
    picked: list[int] = []
    for value in sorted(values, key=lambda value: (_odd_part(value), value)):
        if all(abs(places[value] - places[other]) >= apart for other in picked):
            picked.append(value)
    return sorted(picked)


def _odd_part(value: int) -> int:
    """What is left after all halving: the smaller, the rounder a size."""
    return value // (value & -value)


def _doublings(value: int, others: Iterable[int]) -> float:
    """To the nearest of the others."""
    return min(abs(math.log2(value / other)) for other in others)


def left_out_words(grid: Grid, shown: Grid) -> str:
    """`shown: 30 of 64 numbers of processes and 12 of 1,024 batches`; empty when all are."""
    parts = [
        f"{len(few):,} of {len(all_of):,} {noun}"
        for few, all_of, noun in (
            (shown.counts, grid.counts, "numbers of processes"),
            (shown.batches, grid.batches, "batches"),
        )
        if len(few) < len(all_of)
    ]
    return f"shown: {' and '.join(parts)}" if parts else ""
