"""The part of a tuning's space that a figure can show, and step time along a single knob."""

import math
from typing import Any, NamedTuple

import altair as alt

from scalescope.charts.parts import IDEAL_COLOUR, IDEAL_DASH, Rows, data, frame, key, ring, shared_axis
from scalescope.records.job import KnobValue
from scalescope.records.tuning import Cell, SearchedKnob, Tuning, Values
from scalescope.report.tuning import (
    best_so_far,
    heading_lines,
    headline,
    held_words,
    is_default,
    knob_words,
    searched,
    setting_words,
    switch_name,
    value_words,
    with_error,
)
from scalescope.text import plain
from scalescope.units import format_seconds, unit_of


class Dimension(NamedTuple):
    """One knob as an axis of places in their order."""

    knob: SearchedKnob
    places: tuple[KnobValue | None, ...]

    @property
    def title(self) -> str:
        """With the unit, as far as there is one."""
        if all(value is None or isinstance(value, bool) for value in self.places):
            return switch_name(self.knob.name)
        unit = f", {plain(self.knob.unit, 12)}" if self.knob.unit else ""
        return plain(self.knob.name, 40) + unit

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
    base: Values  # Whose other knobs are drawn
    # The default at its place; others with the base's other knobs, or where there is none the fastest of a place.
    cells: tuple[Cell, ...]
    others: tuple[SearchedKnob, ...]  # Knobs that are not drawn

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
    chosen = _telling(tuning.knobs, base, known)
    if not chosen:
        # A short search may know no second place through the answer: then along whatever was tried.
        chosen = [knob for knob in tuning.knobs if len({place_of(knob, cell.values) for cell in known}) > 1][:2]
    if not chosen:
        return None
    chosen.sort(key=lambda knob: -len(knob.values))
    others = tuple(knob for knob in tuning.knobs if knob not in chosen)
    across, *down = (_dimension(knob, known) for knob in chosen)
    empty = Slice(across, down[0] if down else None, base, (), others)
    return empty._replace(cells=_one_of_each_place(empty, known))


def _telling(knobs: tuple[SearchedKnob, ...], base: Values, known: tuple[Cell, ...]) -> list[SearchedKnob]:
    """At most two knobs along which the expected time varies most, with the others as in `base`."""
    spreads = {knob.name: _spread(knob, knobs, base, known) for knob in knobs}
    ranked = sorted(knobs, key=lambda knob: -spreads[knob.name])
    return [knob for knob in ranked if spreads[knob.name] >= 0.0][:2]


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


_WIDTH, _HEIGHT = 560, 300
_EXPECTED, _SAMPLE = "#0072b2", "#111111"
_TWO_LINES = "split(datum.label, '\\n')"
_ABOVE = 6  # Pixels between a sample and its number


def line_chart(tuning: Tuning, part: Slice) -> Any:
    """The expected step as a line with two standard deviations, samples of the search on top."""
    unit, factor = unit_of(max(cell.expected_s or 0.0 for cell in part.cells))
    dimension = part.across
    axis = alt.Axis(labelAngle=0, grid=False, labelExpr=_TWO_LINES)
    scale = alt.Scale(domain=dimension.labels, type="point", padding=0.5)
    x = alt.X("x:O", title=dimension.title, scale=scale, axis=axis)
    cells = _cell_rows(part, factor)
    samples = _sample_rows(tuning, part, factor)
    times = [row[name] for row in (*cells, *samples) for name in ("low", "high", "predicted") if row.get(name)]
    room = 0.06 * (max(times) - min(times))
    domain = alt.Scale(domain=[max(0.0, min(times) - room), max(times) + room], nice=True, zero=False)
    y = shared_axis(alt.Y, f"step time, {unit}", domain)
    tooltip = [
        alt.Tooltip("setting:N"),
        alt.Tooltip("told:N", title="step"),
        alt.Tooltip("simulated:N", title="predicted"),
    ]
    base, dots = alt.Chart(data(cells)), alt.Chart(data(samples))
    layers: list[Any] = [
        base.mark_area(color=_EXPECTED, opacity=0.16).encode(x=x, y=y("low"), y2=alt.Y2("high")),
        base.mark_line(color=_EXPECTED, strokeWidth=1.8).encode(x=x, y=y("time")),
    ]
    predicted = any(row["predicted"] for row in cells)
    if predicted:
        dashed = base.mark_line(color=IDEAL_COLOUR, strokeDash=IDEAL_DASH, strokeWidth=1.5)
        layers.append(dashed.encode(x=x, y=y("predicted")))
    layers.append(
        base.mark_point(filled=True, size=30, color=_EXPECTED, opacity=1).encode(x=x, y=y("time"), tooltip=tooltip)
    )
    if tuning.default_step_s:
        rule = alt.Chart(data([{"time": factor * tuning.default_step_s}]))
        layers.append(rule.mark_rule(color=_SAMPLE, strokeDash=[2, 3], strokeWidth=1.2).encode(y=y("time")))
    layers += [
        dots.mark_rule(color=_SAMPLE, strokeWidth=1.4).encode(x=x, y=y("low"), y2=alt.Y2("high")),
        dots.mark_point(size=55, fill="white", stroke=_SAMPLE, strokeWidth=1.5, opacity=1).encode(
            x=x, y=y("time"), tooltip=tooltip
        ),
        dots.mark_text(fontSize=11, baseline="bottom", dy=-_ABOVE, color=_SAMPLE).encode(
            x=x, y=y("high"), text="number:N"
        ),
    ]
    found = [row for row in samples if part.base and row["found"]]
    if found:
        layers.append(ring(found[0], width=2.4).encode(x=x, y=y("time")))
    return alt.layer(
        *layers,
        width=max(_WIDTH, 44 * len(dimension.places)),
        height=_HEIGHT,
        **frame(
            f"Step time over {dimension.title.partition(',')[0]}: {headline(tuning)}",
            *heading_lines(tuning),
            "blue: expected, two standard deviations; numbers: samples of the search, two standard errors",
            _key(tuning, predicted, bool(found)),
            f"drawn for {part.other_words()}" if part.others else "",
            held_words(tuning),
        ),
    )


def found_words(tuning: Tuning) -> str:
    """What the ring is around."""
    won = tuning.complete and tuning.decision == "use"
    return "the winner" if won else "the finalist" if tuning.finalist else "the fastest sample"


def _key(tuning: Tuning, predicted: bool, ring: bool) -> str:
    return key(
        {
            "dashed: the simulator alone": predicted,
            "dotted: the default's step": bool(tuning.default_step_s),
            f"ring: {found_words(tuning)}": ring,
        }
    )


def _cell_rows(part: Slice, factor: float) -> Rows:
    rows: Rows = []
    order = {place: index for index, place in enumerate(part.across.places)}
    for cell in sorted(part.cells, key=lambda cell: order[part.across.place(cell.values)]):
        time = factor * (cell.expected_s or 0.0)
        error = time * (cell.error or 0.0)
        rows.append(
            {
                "x": part.across.label(part.across.place(cell.values)),
                "time": time,
                "low": max(0.0, time - 2 * error),
                "high": time + 2 * error,
                "predicted": factor * cell.predicted_s if cell.predicted_s else None,
                "setting": setting_words(cell.values),
                "told": with_error(time / factor, error / factor if cell.error is not None else None),
                "simulated": format_seconds(cell.predicted_s) if cell.predicted_s else "-",
            }
        )
    return rows


def _sample_rows(tuning: Tuning, part: Slice, factor: float) -> Rows:
    known = set(part.across.labels)
    rows: Rows = []
    for sample in searched(tuning):
        label = part.across.label(part.across.place(sample.values))
        if sample.step_s is None or label not in known or not part.holds(sample.values):
            continue
        time, error = factor * sample.step_s, factor * (sample.error_s or 0.0)
        rows.append(
            {
                "x": label,
                "time": time,
                "low": max(0.0, time - 2 * error),
                "high": time + 2 * error,
                "number": str(sample.index),
                "setting": setting_words({} if is_default(tuning, sample) else sample.values),
                "told": with_error(sample.step_s, sample.error_s),
                "simulated": format_seconds(sample.predicted_s) if sample.predicted_s else "-",
                "found": sample.values == part.base,
            }
        )
    return rows
