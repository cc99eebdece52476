"""What a prediction says: its cells as a map, one sentence, and words that terminal, tables and charts share."""

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from scalescope.records.prediction import Advice, Cell, Check, Prediction
from scalescope.records.request import ScalingKind
from scalescope.show.words import number
from scalescope.stats import PREDICTED, percent
from scalescope.text import plain, plural
from scalescope.units import format_bytes, format_rate, format_seconds, format_share

SCALINGS: tuple[ScalingKind, ...] = ("strong", "weak")
BATCH_WORDS = {"strong": "global batch", "weak": "batch of a process"}  # What the columns of a map are
# Colours of a map from low to high; below it is black.
RAMP = ("#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725")
SLOWER_COLOUR = "#1c1c1c"
DOES_NOT_FIT_COLOUR = "#dddddd"
_READS_AS_ONE = 0.995  # From here on a speedup is written 1.00


class Grid(NamedTuple):
    """The map of one kind of scaling; ascending."""

    scaling: ScalingKind
    counts: tuple[int, ...]  # Processes
    batches: tuple[int, ...]  # As they were asked for: of a process (weak) or of all (strong)
    cells: dict[tuple[int, int], Cell]  # By processes and batch; a batch of fewer samples than processes has none

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
    """The map with at most N rows and columns, the recommended ones among them."""
    best = recommended_cell(prediction)
    keep = [best] if best and best.scaling == grid.scaling else []
    counts = some_of(grid.counts, rows, [cell.np for cell in keep])
    batches = some_of(grid.batches, columns, [asked_batch(cell) for cell in keep])
    return grid._replace(counts=counts, batches=batches)


def some_of(values: Sequence[int], most: int, keep: Collection[int] = ()) -> tuple[int, ...]:
    """At most `most` (3 or more) of ascending values: ends, `keep`, powers of two, then round ones in wide gaps."""
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
    """Values that stand at least `apart` places from each other, the roundest first."""
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


_AS_FAST = 0.005  # A regret below it would read 0 %


def sentence(prediction: Prediction) -> str:
    """The answer in one sentence."""
    what = headline(prediction)
    if not prediction.trusted:
        return f"{what}: {verdict_words(prediction)}"
    if prediction.was_wrong:
        corrected = msgspec.structs.replace(prediction, checks=())
        return f"{verdict_words(prediction)} {sentence(corrected)}"
    if prediction.recommended is None:
        limit = format_bytes(prediction.memory_limit_bytes)
        return f"{what}: no batch of the map fits into {limit} of memory; ask for smaller ones."
    several = [cell for cell in prediction.cells if cell.np > 1 and cell.fits]
    if several and prediction.recommended.np == 1:
        stay = f"{what}: stay with {configuration(prediction.recommended)}; up to"
        most, best = max(cell.np for cell in several), max(several, key=lambda cell: cell.speedup)
        if is_slower(best):
            return f"{stay} {plural(most, 'process')} no speedup above 1 is expected."
        goal = f"below the efficiency of {100 * prediction.efficiency_goal:.0f} % that was asked for"
        return f"{stay} {plural(most, 'process')} at most {speedup_number(best.speedup)}x is expected, {goal}."
    return f"{what}: {advice_words(prediction)}."


def verdict_words(prediction: Prediction) -> str:
    """What a reader has to know before the map: that it is not to be trusted, or that its checks proved it wrong."""
    if not prediction.trusted:
        return f"not to be trusted, so nothing is recommended: {'; '.join(prediction.doubts)}. {REPEAT}."
    if not prediction.was_wrong:
        return ""
    outside = [check for check in prediction.checks if not check.inside and not check.disturbed]
    errors = sorted(check.error for check in outside)
    by = _off(errors[0]) if len(errors) == 1 else f"{_off(errors[0])} to {_off(errors[-1])}"
    factor = f"{prediction.correction:.2f}x"
    so = "the intervals are wider now" if factor == "1.00x" else f"the map is corrected ({factor} the predicted step)"
    return (
        f"The prediction was wrong here: {len(outside)} of {plural(len(prediction.checks), 'checked cell')} "
        f"took another time than the interval allows, predicted {by}; {so}."
    )


def _off(error: float) -> str:
    return f"{100 * abs(error):.0f} % too {'slow' if error > 0 else 'fast'}"


REPEAT = "Repeat it while nothing else runs"


def headline(prediction: Prediction) -> str:
    """`cnn with ddp`."""
    return f"{plain(prediction.what, 60)} with {plain(prediction.engine, 30)}"


def configuration(cell: Advice | Check) -> str:
    """`8 processes with batch 64 each`; advice on strong scaling says the global batch too."""
    each = " each" if cell.np > 1 else ""
    if not isinstance(cell, Advice) or cell.scaling == "weak" or cell.np == 1:
        return f"{plural(cell.np, 'process')} with batch {cell.batch:,}{each}"
    most = "" if cell.np * cell.batch == cell.global_batch else "at most "
    return f"{plural(cell.np, 'process')} with global batch {cell.global_batch:,}, {most}{cell.batch:,}{each}"


def advice_words(prediction: Prediction) -> str:
    """What the recommended configuration reaches, and what it gives up against the fastest."""
    advice, cell = prediction.recommended, recommended_cell(prediction)
    if advice is None:
        return "nothing fits into memory" if prediction.trusted else "nothing, because the map is not to be trusted"
    interval = f" ({speedup_number(cell.speedup_low)} to {speedup_number(cell.speedup_high)})" if cell else ""
    give = "gives" if advice.np == 1 else "give"
    reached = f"{configuration(advice)} {give} {speedup_number(advice.speedup)}x{interval}"
    return (
        f"{reached}, efficiency {100 * advice.efficiency:.0f} %, {format_rate(advice.throughput)} samples/s; "
        f"{regret_words(advice)}"
    )


def regret_words(advice: Advice) -> str:
    """`4 % less throughput than the fastest cell (4,100 samples/s)`; its speedup may be below that of other cells."""
    if advice.regret == 0:
        return "the highest throughput of the map"
    if advice.regret < _AS_FAST:
        return f"within {format_share(_AS_FAST)} of the highest throughput of the map"
    fastest = f" ({format_rate(advice.throughput / (1 - advice.regret))} samples/s)" if advice.regret < 1 else ""
    return f"{100 * advice.regret:.0f} % less throughput than the fastest cell{fastest}"


def efficient_words(prediction: Prediction) -> str:
    """Up to where more processes are worth it; empty where nothing fits into memory."""
    counts = {cell.np for cell in prediction.cells if cell.fits}
    if not counts:
        return ""
    goal = f"an efficiency of {100 * prediction.efficiency_goal:.0f} %"
    np = prediction.most_efficient_np
    if np is None:
        return f"no number of processes of the map reaches {goal}"
    if np == 1 and max(counts) > 1:
        return f"no more than 1 process reaches {goal}"
    if np == 1 and max(cell.np for cell in prediction.cells) > 1:
        return "nothing with more than 1 process fits into memory"
    if max(cell.efficiency for cell in prediction.cells if cell.np == np) < prediction.efficiency_goal:
        return f"largest efficient number of processes: {np:,}, whose interval holds {goal}"
    return f"largest efficient number of processes: {np:,}, with {goal} or more at its best batch"


def memory_words(prediction: Prediction) -> str:
    """The largest batch that fits; empty where the profile does not tell."""
    if prediction.largest_batch is None:
        return ""
    limit = f" into {format_bytes(prediction.memory_limit_bytes)}" if prediction.memory_limit_bytes else ""
    whose = "a process" if prediction.memory_shared_by == 1 else f"each of {prediction.memory_shared_by:,} processes"
    return f"largest batch of {whose} that fits{limit}: {prediction.largest_batch:,}"


def own_words(prediction: Prediction) -> str:
    """What the engine costs a process that sends nothing; empty where that is not known."""
    if not prediction.own_s:
        return ""
    return f"{prediction.engine} itself costs a process {format_seconds(prediction.own_s)} of every step: copies, hooks"


def trust_words(prediction: Prediction) -> str:
    """How wrong the last checks were; empty when this map has the first ones."""
    known = prediction.calibration
    if known is None and prediction.checks:
        return ""
    if known is None:
        return "nothing was verified here yet: --verify 3 runs three cells for real"
    factor = f"{known.factor:.3f}"
    corrected = "" if factor == "1.000" else f"steps are multiplied by {factor} for that, "
    return (
        f"{plural(known.estimates, 'estimate')} checked here so far: wrong by {_percent(known.mean_error)} on average; "
        f"{corrected}a spread of {_percent(known.spread)} is left"
    )


def interval_words(prediction: Prediction) -> str:
    """What intervals hold and where they come from."""
    own = f"{_percent(prediction.residual)} (one sigma) of them is the model's own error"
    return f"intervals hold {percent(PREDICTED)}; {own}"


def check_words(prediction: Prediction) -> str:
    """How the cells that were run came out; empty without any."""
    checks = prediction.checks
    if not checks:
        return ""
    errors = [abs(check.error) for check in checks]
    inside = sum(check.inside for check in checks)
    worst = f", {_percent(max(errors))} at worst" if len(checks) > 1 else ""
    average = " on average" if len(checks) > 1 else ""
    return (
        f"{plural(len(checks), 'cell')} run for real: wrong by {_percent(sum(errors) / len(errors))}{average}{worst}; "
        f"{inside} of {len(checks)} inside the predicted interval"
    )


def speedup_number(speedup: float) -> str:
    """Three digits."""
    return number(speedup, 2 if speedup < 9.995 else 1 if speedup < 99.95 else 0)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
