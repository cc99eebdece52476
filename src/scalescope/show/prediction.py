"""Predictions: the map of speedups, what it says in words, what was checked. Charts draw the same Grid."""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby, pairwise, product
from typing import Any, Literal, NamedTuple

import msgspec

from scalescope.records.prediction import Advice, Cell, Check, Prediction
from scalescope.records.request import ScalingKind
from scalescope.records.scaling import Scaling
from scalescope.records.timeline import Timeline
from scalescope.show.document import Column, Document, Section, Table, charted
from scalescope.show.scaling import same_point
from scalescope.show.words import number
from scalescope.stats import PREDICTED, percent
from scalescope.text import listed, plain, plural
from scalescope.units import format_bytes, format_rate, format_seconds, format_share, unit_of

SCALINGS: tuple[ScalingKind, ...] = ("strong", "weak")
BATCH_WORDS = {"strong": "global batch", "weak": "batch of a process"}  # What the columns of a map are
# Colours of a map from low to high; below it is black.
RAMP = ("#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725")
SLOWER_COLOUR = "#1c1c1c"
DOES_NOT_FIT_COLOUR = "#dddddd"
READS_AS_ONE = 0.995  # From here on a speedup is written 1.00
MOST_CELLS = 4096  # Of all maps in a figure: more would make a file of several megabytes
_ROWS, _FEW_ROWS, _BATCHES = 30, 6, 12  # Of a map that people read; without --details; its columns
_FEW_LAUNCHED = 3  # Cells whose measured speedup stands below a map
_AS_FAST = 0.005  # A regret below it would read 0 %


class Mapped(NamedTuple):
    """A map as its charts take it."""

    prediction: Prediction  # With what was measured as checks
    step: Timeline | None  # Of the recommended cell
    most_cells: int


def document(
    prediction: Prediction,
    measured: Scaling | None = None,
    step: Timeline | None = None,
    most_cells: int | None = None,
) -> Document:
    """The recommended cell, how far processes and batches go, how far to trust it; the map as a table and a figure.

    Args:
        prediction: The map.
        measured: What was measured of the same training: its cells count as checks.
        step: The predicted step of the recommended cell.
        most_cells: Cells that a figure of the map draws; None: as many as a file takes.
    """
    maps, best, checked = grids(prediction), recommended_cell(prediction), with_measured(prediction, measured)
    told = [grid for grid in maps if best and grid.holds(best)] or maps[:1]
    efficient, memory = efficient_words(prediction), memory_words(prediction)
    checks, trust = check_words(checked), trust_words(checked)
    advice = prediction.recommended
    because = f"; {advice.why}" if advice and advice.why else ""
    facts = [f"recommended: {advice_words(prediction)}{because}", efficient, memory]
    if prediction.own_s:
        own = format_seconds(prediction.own_s)
        facts.append(f"{prediction.engine} itself costs a process {own} of every step: copies, hooks")
    residual = f"{_percent(prediction.residual)} (one sigma) of them is the model's own error"
    facts += [launched_words(prediction, measured), trust, checks, f"intervals hold {percent(PREDICTED)}; {residual}"]
    facts[1:1] = [ran_words(prediction), engine_words(prediction)]
    by_size = [_size_table(prediction, _FEW_ROWS), _size_table(prediction, _ROWS)] if prediction.ran_as else []
    return Document(
        answer=sentence(prediction),
        why=[engine_words(prediction), efficient, checks or trust, memory] if prediction.trusted else [memory],
        warnings=prediction.warnings,
        brief=by_size[:1] or [_map_table(grid, prediction, _FEW_ROWS) for grid in told],
        sections=charted(
            "prediction",
            [
                Section(
                    "predicted",
                    "Prediction and how wrong it was",
                    lines=[f"This map is not to be trusted: {'; '.join(prediction.doubts)}."]
                    if prediction.doubts
                    else [],
                    facts=[fact for fact in facts if fact],
                    tables=by_size[1:]
                    or [
                        _map_table(grid, prediction, _ROWS, _sentences(grid) if prediction.trusted else ())
                        for grid in maps
                    ],
                ),
                Section("checks", "Run for real", tables=[_check_table(checked)]),
                Section("step", "One step of all ranks"),
            ],
            Mapped(checked, step, most_cells or MOST_CELLS),
        ),
        json=lambda: prediction_json(prediction),
        files={"estimate": _cell_table(prediction)},
    )


def launched_words(prediction: Prediction, measured: Scaling | None) -> str:
    """`cells are predictions; launches measured 1.73x with 2 processes ...`; empty where the map says the same."""
    told = []
    for cell in prediction.cells if measured else ():
        point = same_point(measured, cell, cell.engine or prediction.engine) if measured and cell.np > 1 else None
        steady = point.speedup.get("steady") if point else None
        if steady and (launched := speedup_number(steady.value)) != (mapped := speedup_number(cell.speedup)):
            told.append(f"{launched}x with {_named(cell)} on {cell.np:,} processes (map: {mapped}x)")
    return f"cells are predicted speedups; launches measured {'; '.join(told[:_FEW_LAUNCHED])}" if told else ""


def with_measured(prediction: Prediction, measured: Scaling | None) -> Prediction:
    """The prediction with a check for every cell of several processes that was measured as well."""
    if measured is None:
        return prediction
    known = {(check.scaling, check.np, check.batch) for check in prediction.checks}
    checks: list[Check] = []
    for cell in prediction.cells:
        place = (cell.scaling, cell.np, cell.batch)
        engine = cell.engine or prediction.engine
        point = None if cell.np == 1 or cell.verified or place in known else same_point(measured, cell, engine)
        if point and point.step_s:
            checks.append(Check.of(cell, (point.step_s.low, point.step_s.value, point.step_s.high)))
    return msgspec.structs.replace(prediction, checks=(*prediction.checks, *checks))


# --- the map ---


class Grid(NamedTuple):
    """The map of one kind of scaling; ascending."""

    scaling: ScalingKind
    counts: tuple[int, ...]  # Processes
    batches: tuple[int, ...]  # As they were asked for: of a process (weak) or of all (strong)
    cells: dict[tuple[int, int], Cell]  # By processes and batch; a batch of fewer samples than processes has none
    engine: str = ""  # Of a map of several engines

    @property
    def words(self) -> str:
        """`weak scaling`, `weak scaling, fsdp2`."""
        return f"{self.scaling} scaling{f', {plain(self.engine, 24)}' if self.engine else ''}"

    def holds(self, cell: Cell) -> bool:
        """True if a cell is of this map."""
        return (cell.scaling, cell.engine) == (self.scaling, self.engine)

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
    """One map for each kind of scaling and each engine that was predicted."""
    found = []
    for engine, scaling in product(dict.fromkeys(cell.engine for cell in prediction.cells), SCALINGS):
        own = [cell for cell in prediction.cells if (cell.engine, cell.scaling) == (engine, scaling)]
        cells = {(cell.np, asked_batch(cell)): cell for cell in own}
        counts, batches = sorted({np for np, _ in cells}), sorted({batch for _, batch in cells})
        if cells:
            found.append(Grid(scaling, tuple(counts), tuple(batches), cells, engine))
    return found


def asked_batch(cell: Cell) -> int:
    """The batch as the user says it: per process for weak scaling, of all processes for strong scaling."""
    return cell.global_batch if cell.scaling == "strong" else cell.batch


def is_slower(cell: Cell) -> bool:
    """True if one process alone is faster, as far as two digits tell."""
    return cell.speedup < READS_AS_ONE


def recommended_cell(prediction: Prediction) -> Cell | None:
    """The cell that the advice speaks of."""
    advice = prediction.recommended
    if advice is None:
        return None
    wanted = (advice.np, advice.batch, advice.scaling, advice.engine)
    found = (cell for cell in prediction.cells if (cell.np, cell.batch, cell.scaling, cell.engine) == wanted)
    return next(found, None)


def reduced(grid: Grid, rows: int, columns: int, prediction: Prediction) -> tuple[Grid, str]:
    """The map with at most N rows and columns, the recommended ones among them; and how many are left out."""
    best = recommended_cell(prediction)
    keep = [best] if best and grid.holds(best) else []
    counts = _some_of(grid.counts, rows, [cell.np for cell in keep])
    batches = _some_of(grid.batches, columns, [asked_batch(cell) for cell in keep])
    parts = [
        f"{len(few):,} of {len(every):,} {noun}"
        for few, every, noun in ((counts, grid.counts, "numbers of processes"), (batches, grid.batches, "batches"))
        if len(few) < len(every)
    ]
    return grid._replace(counts=counts, batches=batches), f"shown: {' and '.join(parts)}" if parts else ""


def _some_of(values: Sequence[int], most: int, keep: Collection[int]) -> tuple[int, ...]:
    """At most `most` (3 or more) of ascending values: ends, `keep`, powers of two, then the roundest."""
    if len(values) <= most:
        return tuple(values)

    def odd_part(value: int) -> int:  # the smaller, the rounder
        return value // (value & -value)

    picked = {values[0], values[-1], *(value for value in values if value in keep)}
    others = sorted(set(values) - picked, key=lambda value: (odd_part(value), value))
    powers, room = [value for value in others if odd_part(value) == 1], most - len(picked)
    pool = powers if len(powers) > room else others[:room]
    return tuple(sorted(picked | {pool[at * len(pool) // room] for at in range(room)}))


# How a kind of cell is written, so that it is told apart without colour, and what that means.
_MARKS = {
    "recommended": ("[{}]", "[ ] recommended"),
    "slower": ("({})", "( ) slower than one process"),
    "out": ("mem", "mem: does not fit into memory"),
    "measured": ("={}", "= measured"),
    "unreal": ("?{}", "? over one process that does not fit"),
    "beyond": ("~{}", "~ beyond the profiled batches"),
    "absent": ("", "- fewer samples than processes"),
    "usual": ("{}", ""),
}


def _map_table(grid: Grid, prediction: Prediction, rows: int, sentences: Sequence[str] = ()) -> Table:
    """Speedups over processes and batches, a column each; with the key to its marks, and what there is to see."""
    shown, left_out = reduced(grid, rows, _BATCHES, prediction)
    best = recommended_cell(prediction)
    top = max((cell.speedup for cell in shown.shown() if cell.fits), default=1.0)

    def kind(cell: Cell | None) -> str:
        if cell is None:
            return "absent"
        kinds = {
            "out": not cell.fits,
            "recommended": cell is best,
            "slower": is_slower(cell),
            "measured": cell.verified,
            "unreal": not cell.baseline_fits,
            "beyond": not cell.measured_batch,
        }
        return next((name for name, holds in kinds.items() if holds), "usual")

    def colour(np: int, batch: int) -> str:
        cell = grid.cells.get((np, batch))
        if cell is None:
            return ""
        if not cell.fits or is_slower(cell):
            return SLOWER_COLOUR if cell.fits else DOES_NOT_FIT_COLOUR
        part = math.log(max(cell.speedup, 1.0)) / math.log(top) if top > 1 else 0.0
        return RAMP[min(len(RAMP) - 1, int(part * len(RAMP)))]

    def batch_column(at: int, batch: int) -> Column:
        is_kept = batch in (shown.batches[0], shown.batches[-1]) or (best is not None and batch == asked_batch(best))
        return Column(
            lambda np: grid.cells.get((np, batch)),
            f"{batch:,}",
            write=lambda cell: _MARKS[kind(cell)][0].format(speedup_number(cell.speedup)),
            priority=0 if is_kept else 64 // (at & -at),  # on narrow terminals every second one goes first
            colour=partial(colour, batch=batch),
        )

    nodes = shown.nodes()
    columns = [
        Column(lambda np: np, "processes", write="{:,}".format),
        Column(lambda np: nodes.get(np) if max(nodes.values()) > 1 else None, "nodes", write="{:,}".format),
        *(batch_column(at, batch) for at, batch in enumerate(shown.batches)),
    ]
    kinds = {kind(grid.cells.get(place)) for place in product(shown.counts, shown.batches)}
    key = "; ".join(meaning for name, (_, meaning) in _MARKS.items() if meaning and name in kinds)
    of = f"speedup over one process by {BATCH_WORDS[grid.scaling]}"
    return Table(
        columns,
        shown.counts,
        f"Predicted {of}, {grid.scaling} scaling: {headline(prediction, grid.engine)}.",
        f"{grid.scaling} scaling: {of}, {headline(prediction, grid.engine)}",
        sentences,
        "; ".join(note for note in (key, left_out) if note),
        noun="number of processes",
    )


def _size_table(prediction: Prediction, rows: int) -> Table:
    """A script's sizes, a row each: it has one batch for each of them."""
    best, several = recommended_cell(prediction), max(cell.nodes for cell in prediction.cells) > 1
    counts = sorted({cell.np for cell in prediction.cells})
    shown = _some_of(counts, rows, [best.np] if best else [])
    left_out = f"shown: {len(shown):,} of {len(counts):,} numbers of processes" if len(shown) < len(counts) else ""

    def ran(write: Callable[[Cell], str]) -> Callable[[Cell], str | None]:
        return lambda cell: write(cell) if cell.step_s else None

    def speedup(cell: Cell) -> str:
        kind = "recommended" if cell is best else "slower" if is_slower(cell) else "usual"
        return _MARKS[kind][0].format(speedup_number(cell.speedup))

    columns = [
        Column("np", "processes", write="{:,}".format),
        Column(lambda cell: cell.nodes if several else None, "nodes", write="{:,}".format, priority=3),
        Column("batch", "batch each", write="{:,}".format, priority=4),
        Column(ran(lambda cell: format_seconds(cell.step_s)), "step"),
        Column(ran(_step_ends), percent(PREDICTED), priority=2),
        Column(ran(speedup), "speedup"),
        Column(ran(lambda cell: format_share(cell.efficiency)), "efficiency", priority=1),
        Column(ran(lambda cell: format_seconds(cell.exposed_s)), "exposed", priority=5),
        Column(_memory, "memory"),
        Column(lambda cell: "yes" if cell.fits else "no", "fits"),
    ]
    of = f"{prediction.cells[0].scaling} scaling: {headline(prediction)}"
    return Table(
        columns,
        [cell for cell in prediction.cells if cell.np in shown],
        f"Predicted steps by number of processes, {of}.",
        of,
        key="; ".join(filter(None, ["[ ] recommended" if best else "", "( ) slower than one process", left_out])),
        noun="number of processes",
    )


def _step_ends(cell: Cell) -> str:
    return f"{format_seconds(cell.low_s)} to {format_seconds(cell.high_s)}"


def _memory(cell: Cell) -> str | None:
    """Memory of a process; where it ran out, more than what the device has."""
    return f"{'' if cell.step_s else '> '}{format_bytes(cell.memory_bytes)}" if cell.memory_bytes else None


def engine_words(prediction: Prediction) -> str:
    """Several engines at the recommended setting: which is faster, and which fits; empty for one."""
    best = recommended_cell(prediction)
    if best is None or not best.engine:
        return ""
    if best.np == 1:  # where no engine does anything
        several = [cell for cell in prediction.cells if cell.np > 1 and cell.engine == best.engine and cell.fits]
        best = max(several, key=lambda cell: cell.throughput, default=None)
    if best is None:
        return ""
    place = (best.np, best.batch, best.scaling)
    alike = [cell for cell in prediction.cells if (cell.np, cell.batch, cell.scaling) == place]
    told = [
        f"{cell.engine} {format_seconds(cell.step_s)} ({_step_ends(cell)}) and {format_bytes(cell.memory_bytes)}"
        f"{'' if cell.fits else ', which does not fit'}"
        for cell in sorted(alike, key=lambda cell: cell.step_s)
    ]
    return f"a step of {plural(best.np, 'process')} with batch {best.batch:,} each: {'; '.join(told)}"


def ran_words(prediction: Prediction) -> str:
    """As whose rank 0 a script ran; empty for a model."""
    if not prediction.ran_as:
        return ""
    between = {cell.np for cell in prediction.cells} - set(prediction.ran_as)
    rest = "; the sizes between them are interpolated" if between else ""
    return f"ran here as rank 0 of {listed(f'{ranks:,}' for ranks in prediction.ran_as)}{rest}"


def _check_table(prediction: Prediction) -> Table:
    def with_ends(low_s: float, middle_s: float, high_s: float) -> str:
        """`16.8 ms (16.0-17.6)`."""
        unit, factor = unit_of(middle_s)
        value = factor * middle_s
        decimals = 2 if value < 10 else 1 if value < 100 else 0
        ends = f"{number(factor * low_s, decimals)}-{number(factor * high_s, decimals)}"
        return f"{number(value, decimals)} {unit} ({ends})"

    def inside(check: Check) -> str:
        return ("yes" if check.inside else "no") + (", disturbed" if check.disturbed else "")

    columns = [
        Column("scaling", "scaling", words=True),
        Column("np", "processes", "np", "{:,}".format),
        Column("batch", "batch per process", "batch", "{:,}".format),
        Column(lambda each: with_ends(each.low_s, each.predicted_s, each.high_s), f"predicted ({percent(PREDICTED)})"),
        Column(lambda each: with_ends(each.measured_low_s, each.measured_s, each.measured_high_s), "measured"),
        Column("error", "error (%)", "error%", lambda error: f"{100 * error:+.1f}"),
        Column(inside, "inside"),
    ]
    paced = any(check.pace is not None for check in prediction.checks)
    return Table(
        columns,
        prediction.checks,
        f"Predicted and measured steps: {headline(prediction)}.",
        key="measured: at the speed that one process had when it was profiled" if paced else "",
        noun="check",
    )


def _cell_table(prediction: Prediction) -> Table:
    """Every cell with every field, for programs; fields whose name does not say their unit get one that does."""
    units = {"throughput": "samples_per_s", "device_hours": "device_hours_per_million_samples"}
    columns = [Column(name, key=units.get(name, name)) for name in Cell.__struct_fields__ if name != "engine"]
    columns += [
        Column(lambda cell: cell.engine or prediction.engine, key="engine"),
        Column(lambda _: prediction.cluster, key="cluster"),
        Column(lambda _: prediction.what, key="what"),
    ]
    return Table(columns, prediction.cells, "")


# --- words ---


def sentence(prediction: Prediction) -> str:
    """The answer in one sentence."""
    what = headline(prediction, prediction.recommended.engine if prediction.recommended else "")
    if not prediction.trusted:
        doubts = "; ".join(prediction.doubts)
        return f"{what}: not to be trusted, so nothing is recommended: {doubts}. Repeat it while nothing else runs."
    if prediction.was_wrong:
        return f"{_wrong_words(prediction)} {sentence(msgspec.structs.replace(prediction, checks=()))}"
    if prediction.recommended is None and prediction.ran_as:
        return f"{what}: {_too_large(prediction)}, and no other size of the map does."
    if prediction.recommended is None:
        limit = format_bytes(prediction.memory_limit_bytes)
        return f"{what}: no batch of the map fits into {limit} of memory; ask for smaller ones."
    several = [cell for cell in prediction.cells if cell.np > 1 and cell.fits]
    if several and prediction.recommended.np == 1:
        most, best = max(cell.np for cell in several), max(several, key=lambda cell: cell.speedup)
        stay = f"{what}: stay with {configuration(prediction.recommended)}; up to {plural(most, 'process')}"
        if is_slower(best):
            return f"{stay} no speedup above 1 is expected."
        goal = f"below the efficiency of {format_share(prediction.efficiency_goal)} that was asked for"
        return f"{stay} at most {speedup_number(best.speedup)}x is expected, {goal}."
    return f"{what}: {advice_words(prediction)}."


def _wrong_words(prediction: Prediction) -> str:
    """That its checks proved it wrong, by how much, and what was made of it."""
    errors = [check.error for check in prediction.checks if not check.inside and not check.disturbed]
    worst = max(errors, key=abs)
    off = f"{format_share(abs(worst))} too {'slow' if worst > 0 else 'fast'}{' at worst' if len(errors) > 1 else ''}"
    factor = f"{prediction.correction:.2f}x"
    so = "the intervals are wider now" if factor == "1.00x" else f"the map is corrected ({factor} the predicted step)"
    return (
        f"The prediction was wrong here: {len(errors)} of {plural(len(prediction.checks), 'checked cell')} "
        f"fell outside the predicted interval, predicted {off}; {so}."
    )


def headline(prediction: Prediction, engine: str = "") -> str:
    """`cnn with ddp`; of several engines `ddp or fsdp2`, or the one that is named."""
    return f"{plain(prediction.what, 60)} with {plain((engine or prediction.engine).replace(',', ' or '), 30)}"


def configuration(advice: Advice) -> str:
    """`8 processes with batch 64 each`; of strong scaling the global batch, too."""
    each = f"{advice.batch:,}" + (" each" if advice.np > 1 else "")
    if advice.scaling == "weak" or advice.np == 1:
        return f"{plural(advice.np, 'process')} with batch {each}"
    most = "" if advice.np * advice.batch == advice.global_batch else "at most "
    return f"{plural(advice.np, 'process')} with global batch {advice.global_batch:,}, {most}{each}"


def advice_words(prediction: Prediction) -> str:
    """Say what the recommended configuration reaches, and what it gives up against the fastest."""
    advice, cell = prediction.recommended, recommended_cell(prediction)
    if advice is None:
        return "nothing fits into memory" if prediction.trusted else "nothing, because the map is not to be trusted"
    interval = f" ({_ends(cell)})" if cell else ""
    regret = "the highest throughput of the map"
    if advice.regret >= _AS_FAST:
        regret = f"{format_share(advice.regret)} less throughput than the fastest cell"
    elif advice.regret > 0:
        regret = f"within {format_share(_AS_FAST)} of {regret}"
    return (
        f"{configuration(advice)} give{'s' if advice.np == 1 else ''} {speedup_number(advice.speedup)}x{interval}, "
        f"efficiency {format_share(advice.efficiency)}, {format_rate(advice.throughput)} samples/s; {regret}"
    )


def efficient_words(prediction: Prediction) -> str:
    """Up to where more processes are worth it; empty where nothing fits into memory, or there is only one."""
    counts = {cell.np for cell in prediction.cells if cell.fits}
    goal, np = f"an efficiency of {format_share(prediction.efficiency_goal)}", prediction.most_efficient_np
    if not counts or {cell.np for cell in prediction.cells} == {1}:
        return ""
    if np is None:
        return f"no number of processes of the map reaches {goal}"
    if np > 1:
        reached = any(cell.efficiency >= prediction.efficiency_goal for cell in prediction.cells if cell.np == np)
        told = f"with {goal} or more at its best batch" if reached else f"whose interval holds {goal}"
        return f"largest efficient number of processes: {np:,}, {told}"
    return (
        f"no more than 1 process reaches {goal}" if max(counts) > 1 else "more than 1 process does not fit into memory"
    )


def memory_words(prediction: Prediction) -> str:
    """The largest batch that fits, of a script what its sizes take; empty where nothing tells."""
    if prediction.ran_as:
        return _script_memory_words(prediction)
    if prediction.largest_batch is None:
        return ""
    limit = f" into {format_bytes(prediction.memory_limit_bytes)}" if prediction.memory_limit_bytes else ""
    whose = "a process" if prediction.memory_shared_by == 1 else f"each of {prediction.memory_shared_by:,} processes"
    return f"largest batch of {whose} that fits{limit}: {prediction.largest_batch:,}"


def _script_memory_words(prediction: Prediction) -> str:
    """`memory of a process: 17.6 GiB with 1 process, 8.78 GiB with 64 processes, of 80 GiB`, or what does not fit."""
    cells = sorted((cell for cell in prediction.cells if cell.memory_bytes), key=lambda cell: cell.np)
    if not cells:
        return ""
    fitting = [cell.np for cell in cells if cell.fits]
    if len(fitting) < len(cells):
        rest = f"; {fitting[0]:,} or more do" if fitting and fitting[0] > cells[0].np else ""
        return f"{_too_large(prediction)}{rest}"
    ends = dict.fromkeys((cells[0], cells[-1]))
    takes = ", ".join(f"{format_bytes(cell.memory_bytes)} with {plural(cell.np, 'process')}" for cell in ends)
    limit = f", of {format_bytes(prediction.memory_limit_bytes)}" if prediction.memory_limit_bytes else ""
    return f"memory of a process: {takes}{limit}"


def _too_large(prediction: Prediction) -> str:
    """`does not fit: 83 GiB of 80 GiB with 1 process`, or more than what the device has, where memory ran out."""
    worst = min((cell for cell in prediction.cells if not cell.fits), key=lambda cell: cell.np)
    together = min(worst.np, prediction.slots_per_node) if prediction.memory_shared_by > 1 else 1
    whose = f", all {together:,} of a node together," if together > 1 else ""
    takes, limit = format_bytes(worst.memory_bytes * together), format_bytes(prediction.memory_limit_bytes)
    needs = f"{takes}{whose} of {limit}" if worst.step_s else f"more than {takes}"
    return f"does not fit: {needs} with {plural(worst.np, 'process')}"


def trust_words(prediction: Prediction) -> str:
    """Say how wrong the last checks were; empty when this map has the first ones."""
    known = prediction.calibration
    if known is None:
        if prediction.checks:
            return ""
        if prediction.is_stated:  # --verify would measure another device than the one of the step times
            return "predicted only: to check a setting, run scalescope measure where the step times were taken"
        return "nothing was verified here yet: --verify 3 runs three cells for real"
    factor = f"{known.factor:.3f}"
    corrected = "" if factor == "1.000" else f"steps are multiplied by {factor} for that, "
    return (
        f"{plural(known.estimates, 'estimate')} checked here so far: wrong by {_percent(known.mean_error)} on average; "
        f"{corrected}a spread of {_percent(known.spread)} is left"
    )


def check_words(prediction: Prediction) -> str:
    """Summarize the cells that were run; empty without any."""
    checks = prediction.checks
    if not checks:
        return ""
    errors = [abs(check.error) for check in checks]
    several = f" on average, {_percent(max(errors))} at worst" if len(checks) > 1 else ""
    return (
        f"{plural(len(checks), 'cell')} run for real: wrong by {_percent(sum(errors) / len(errors))}{several}; "
        f"{sum(check.inside for check in checks)} of {len(checks)} inside the predicted interval"
    )


def speedup_number(speedup: float) -> str:
    """Three digits."""
    return number(speedup, 2 if speedup < 9.995 else 1 if speedup < 99.95 else 0)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


# --- the map in words: where several processes pay, what a node boundary does, whether large batches help ---

_MOST_RANGES = 3  # Of batches in one sentence; a map with more of them is counted

_Sign = Literal[-1, 0, 1]  # Surely less, the intervals do not tell, surely more


def map_words(prediction: Prediction) -> list[str]:
    """Say what can be seen in the maps and why, a sentence each; none where they are not to be trusted."""
    maps = grids(prediction) if prediction.trusted else []
    names = [f"{grid.words.capitalize()}: " if len(maps) > 1 else "" for grid in maps]
    return [name + line for name, grid in zip(names, maps, strict=True) for line in _sentences(grid)]


def _sentences(grid: Grid) -> list[str]:
    return [line for line in (_where_they_pay(grid), _node_boundary(grid), _larger_batches(grid)) if line]


def _row(grid: Grid, np: int) -> list[Cell]:
    """Cells that can be run, and over a step that can be run, by batch."""
    cells = [grid.cells[np, batch] for batch in grid.batches if (np, batch) in grid.cells]
    return [cell for cell in cells if cell.fits and cell.baseline_fits]


def _where_they_pay(grid: Grid) -> str:
    """`2 processes are faster than one with batch 8 to 64 each, slower with batch 1 each: 0.50x ... to 1.33x ...`"""
    fewest = min((np for np in grid.counts if np > 1), default=0)
    cells = _row(grid, fewest)
    if not cells:
        return ""
    least, most = (choose(cells, key=lambda cell: cell.speedup) for choose in (min, max))
    span = _reached(most) if least is most else f"{_reached(least)} to {_reached(most)}"
    signs = [_sign(cell.speedup_low, cell.speedup_high, 1, 1) for cell in cells]
    return f"{plural(fewest, 'process')} are {_told(cells, signs, 'faster than one', 'slower than one')}: {span}."


def _node_boundary(grid: Grid) -> str:
    """Compare the first row on more nodes with the last one of several processes before it."""
    nodes = grid.nodes()
    after = min(grid.boundaries(), default=0)
    before = max((np for np in nodes if np < after), default=1)
    if before == 1:  # several processes are on one node always, or never
        return ""
    there = {asked_batch(cell): cell for cell in _row(grid, after)}
    pairs = [(cell, there[asked_batch(cell)]) for cell in _row(grid, before) if asked_batch(cell) in there]
    if not pairs:
        return ""
    signs = [_against(more, less) for less, more in pairs]
    drops = [pair for pair, sign in zip(pairs, signs, strict=True) if sign < 0]
    less, more = drops[-1] if drops else pairs[-1]
    told = _told([more for _, more in pairs], signs, "higher", "lower")
    return (
        f"From {before:,} to {after:,} processes, which need {plural(nodes[after], 'node')}, speedup "
        f"is {told}: {_short(less)} becomes {_reached(more)}, and exposed communication "
        f"goes from {format_seconds(less.exposed_s)} to {format_seconds(more.exposed_s)} of a step."
    )


def _larger_batches(grid: Grid) -> str:
    """Compare the largest batch of the most processes with the smallest, and the exposed parts of their steps."""
    rows = [cells for np in grid.counts if np > 1 and len(cells := _row(grid, np)) > 1]
    if not rows:
        return ""
    cells = rows[-1]
    small, large = cells[0], cells[-1]
    best = max(cells, key=lambda cell: cell.speedup)
    told = {
        1: "Larger batches scale better",
        0: "The intervals do not show that larger batches scale better",
        -1: "Larger batches scale worse",
    }[_against(large, small)]
    is_past = best is not large and _against(large, best) < 0
    past = f" The most is {_reached(best)}; beyond it speedup falls." if is_past else ""
    return (
        f"{told}: {plural(small.np, 'process')} reach {_reached(small)} and {_reached(large)}; exposed communication "
        f"is {_part(small)} of a step and then {_part(large)}.{past}"
    )


def _sign(low: float, high: float, other_low: float, other_high: float) -> _Sign:
    return 1 if low > other_high else -1 if high < other_low else 0


def _against(cell: Cell, other: Cell) -> _Sign:
    return _sign(cell.speedup_low, cell.speedup_high, other.speedup_low, other.speedup_high)


def _told(cells: Sequence[Cell], signs: Sequence[_Sign], more: str, less: str) -> str:
    """`higher with batch 64 to 256 each, lower with batch 16 each`; of other cells the intervals do not tell."""
    verdicts: dict[_Sign, str] = {1: more, -1: less}
    told = [f"{words} {where}" for sign, words in verdicts.items() if (where := _ranges(cells, signs, sign))]
    if not told:
        return "not surely " + more
    return ", ".join(told) + ("; elsewhere the intervals do not tell" if 0 in signs else "")


def _ranges(cells: Sequence[Cell], signs: Sequence[_Sign], wanted: _Sign) -> str:
    """`with batch 8 to 64 each`, `with global batch 8 and 32 to 64`; empty where no cell has the sign."""
    if all(sign == wanted for sign in signs):
        return "at every batch size"
    found = []
    for sign, run in groupby(range(len(cells)), key=lambda at: signs[at]):
        if sign == wanted:
            batches = [asked_batch(cells[at]) for at in run]
            found.append(" to ".join(f"{batch:,}" for batch in dict.fromkeys((batches[0], batches[-1]))))
    if len(found) > _MOST_RANGES:
        return f"at {signs.count(wanted):,} of {len(signs):,} batch sizes"
    if not found:
        return ""
    return f"with global batch {listed(found)}" if cells[0].scaling == "strong" else f"with batch {listed(found)} each"


def _named(cell: Cell) -> str:
    return f"global batch {cell.global_batch:,}" if cell.scaling == "strong" else f"batch {cell.batch:,} each"


def _short(cell: Cell) -> str:
    return f"{speedup_number(cell.speedup)}x"


def _ends(cell: Cell) -> str:
    return f"{speedup_number(cell.speedup_low)} to {speedup_number(cell.speedup_high)}"


def _reached(cell: Cell) -> str:
    """`1.12x (1.05 to 1.19) with batch 64 each`."""
    return f"{_short(cell)} ({_ends(cell)}) with {_named(cell)}"


def _part(cell: Cell) -> str:
    return format_share(cell.exposed_s / cell.step_s)


# --- JSON: its keys are a contract ---


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Units are SI and in the names; device_hours are for a million samples."""
    document: dict[str, Any] = msgspec.to_builtins(prediction)
    for cell in document["cells"]:
        cell["engine"] = cell["engine"] or prediction.engine
    if advice := document["recommended"]:
        advice["engine"] = advice["engine"] or prediction.engine
    first = {
        "kind": document.pop("kind"),
        "what": document.pop("what"),
        "cells": document.pop("cells"),
        "recommended": document.pop("recommended"),
        "trusted": prediction.trusted,
        "in_words": map_words(prediction),
    }
    knobs = document.pop("knobs")["values"]
    checks = [
        {**written, "error": check.error, "inside": check.inside}
        for written, check in zip(document.pop("checks"), prediction.checks, strict=True)
    ]
    return {**first, **document, "knobs": knobs, "checks": checks}
