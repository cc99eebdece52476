"""The part of a tuning's space that a figure can show: one or two knobs, the others as the answer has them."""

import math
from typing import NamedTuple

from scalescope.records.knobs import KnobValue
from scalescope.records.tuning import Cell, SearchedKnob, Tuning, Values
from scalescope.reporting.explanation.words import harmless
from scalescope.reporting.tuning.words import best_so_far, knob_words, switch_name, value_words


class Dimension(NamedTuple):
    """One knob as an axis of places in their order."""

    knob: SearchedKnob
    places: tuple[KnobValue | None, ...]

    @property
    def title(self) -> str:
        """With the unit, as far as there is one."""
        if all(value is None or isinstance(value, bool) for value in self.places):
            return switch_name(self.knob.name)
        unit = f", {harmless(self.knob.unit, 12)}" if self.knob.unit else ""
        return harmless(self.knob.name, 40) + unit

    @property
    def labels(self) -> list[str]:
        """Of all places."""
        return [self.label(place) for place in self.places]

    def label(self, place: KnobValue | None) -> str:
        """`4`, `on`, `as it is` with what that is on a line of its own."""
        known = place is None and self.knob.default is not None
        return value_words(place) + (f"\n({value_words(self.knob.default)})" if known else "")

    def place(self, values: Values) -> KnobValue | None:
        """Where a setting stands."""
        return place_of(self.knob, values)


class Slice(NamedTuple):
    """One cell for every place of the drawn knobs."""

    across: Dimension
    down: Dimension | None
    base: Values
    """Whose other knobs are drawn."""
    cells: tuple[Cell, ...]
    """The default at its place; others with the base's other knobs, or where there is none the fastest of a place."""
    others: tuple[SearchedKnob, ...]
    """Knobs that are not drawn."""

    def holds(self, values: Values) -> bool:
        """Whether a setting has the base's other knobs."""
        return all(place_of(knob, values) == place_of(knob, self.base) for knob in self.others)

    def place(self, values: Values) -> tuple[KnobValue | None, ...]:
        """Where a setting stands."""
        return tuple(each.place(values) for each in (self.across, self.down) if each)

    def shows_default(self) -> bool:
        """Whether the cell at the default's place is the default."""
        return any(not cell.values for cell in self.cells)

    def other_words(self) -> str:
        """`gradient as bucket view off`: the knobs that are not drawn."""
        return ", ".join(_other_words(knob, place_of(knob, self.base)) for knob in self.others)


def place_of(knob: SearchedKnob, values: Values) -> KnobValue | None:
    """A setting's value of this knob; what it does not name is the default."""
    value = values.get(knob.name)
    if value is None:
        return None if None in knob.values else knob.default
    return value


def slice_of(tuning: Tuning) -> Slice | None:
    """Through the answer, along the two knobs that say most; None where nothing is known along any."""
    known = tuple(cell for cell in tuning.cells if cell.expected_s is not None and cell.expected_s > 0)
    base = _base(tuning, known)
    spreads = {knob.name: _spread(knob, tuning.knobs, base, known) for knob in tuning.knobs}
    ranked = sorted(tuning.knobs, key=lambda knob: -spreads[knob.name])
    chosen = [knob for knob in ranked if spreads[knob.name] >= 0.0][:2]
    if not chosen:
        return None
    chosen.sort(key=lambda knob: -len(knob.values))
    others = tuple(knob for knob in tuning.knobs if knob not in chosen)
    across, *down = (_dimension(knob, known) for knob in chosen)
    empty = Slice(across, down[0] if down else None, base, (), others)
    return empty._replace(cells=_one_of_each_place(empty, known))


def _one_of_each_place(part: Slice, known: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """The cells that stand for their places."""
    best: dict[tuple[KnobValue | None, ...], Cell] = {}

    def rank(cell: Cell) -> tuple[bool, bool, float]:
        is_default = not cell.values and part.place(cell.values) != part.place(part.base)
        return not is_default, not part.holds(cell.values), cell.expected_s or 0.0

    for cell in known:
        place = part.place(cell.values)
        if place not in best or rank(cell) < rank(best[place]):
            best[place] = cell
    return tuple(best.values())


def _base(tuning: Tuning, known: tuple[Cell, ...]) -> Values:
    """The answer; without one yet the fastest sample so far, or what is expected to be fastest."""
    if tuning.complete or tuning.finalist:
        return tuning.values or tuning.finalist
    best = best_so_far(tuning)
    if best is not None:
        return best.values
    return min(known, key=lambda cell: cell.expected_s or 0.0).values if known else {}


def _spread(knob: SearchedKnob, knobs: tuple[SearchedKnob, ...], base: Values, known: tuple[Cell, ...]) -> float:
    """By how much the logarithm of the expected time varies along the knob; below 0 with fewer than two places."""
    others = [each for each in knobs if each is not knob]
    times = [
        cell.expected_s
        for cell in known
        if cell.expected_s and all(place_of(each, cell.values) == place_of(each, base) for each in others)
    ]
    return math.log(max(times) / min(times)) if len(times) > 1 else -1.0


def _dimension(knob: SearchedKnob, cells: tuple[Cell, ...]) -> Dimension:
    """Places that cells have, in the knob's order."""
    used = list(dict.fromkeys(place_of(knob, cell.values) for cell in cells))
    listed = [value for value in knob.values if value in used]
    return Dimension(knob, (*listed, *(value for value in used if value not in listed)))


def _other_words(knob: SearchedKnob, place: KnobValue | None) -> str:
    return f"{switch_name(knob.name)} as it is" if place is None else knob_words(knob.name, place)
