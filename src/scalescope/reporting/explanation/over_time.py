"""What changes over a run: the first step, lasting changes, slow steps that come back, epochs."""

from scalescope.records.explanation import Epoch, Explanation
from scalescope.reporting.explanation.terminal import cut_rows
from scalescope.reporting.explanation.words import slowest_steps
from scalescope.units import format_seconds, plural

_MOST_CHANGES, _MOST_PERIODS, _MOST_EPOCHS = 4, 3, 5
_WORTH_A_LINE = 1.2
"""A first step that takes less than so many steady ones is none to speak of."""


def over_time_lines(explanation: Explanation) -> list[str]:
    """The first step, changes and periods, a line each."""
    lines = [*_first_step(explanation)]
    for change in explanation.changes[:_MOST_CHANGES]:
        before, after = format_seconds(change.before_s), format_seconds(change.after_s)
        lines.append(f"from step {change.step:,} on a step takes {after} instead of {before}")
    more = len(explanation.changes) - _MOST_CHANGES
    lines += [plural(more, "more change")] if more > 0 else []
    for period in explanation.periods[:_MOST_PERIODS]:
        excess, times = format_seconds(period.excess_s), plural(period.count, "time")
        lines.append(f"every {_ordinal(period.every)} step takes {excess} longer: seen {times}")
    return lines


def _first_step(explanation: Explanation) -> list[str]:
    longest = slowest_steps(explanation)
    if not longest or not explanation.step_s:
        return []
    first = next(iter(longest.values()))
    times = first / explanation.step_s
    return [f"the first step took {format_seconds(first)}, {times:.3g} steady ones"] if times >= _WORTH_A_LINE else []


def _ordinal(count: int) -> str:
    ending = "th" if 10 <= count % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count:,}{ending}"


def epoch_rows(explanation: Explanation) -> list[list[str]]:
    """The first epochs, heading first."""
    epochs = explanation.epochs
    columns = [
        ("epoch", [f"{epoch.number:,}" for epoch in epochs]),
        ("steps", [f"{epoch.steps:,}" for epoch in epochs]),
        ("time", [format_seconds(epoch.seconds) for epoch in epochs]),
        ("negotiation %", [_share(epoch, "negotiation_share") for epoch in epochs]),
        ("exposed %", [_share(epoch, "exposed_share") for epoch in epochs]),
    ]
    return cut_rows(columns, _MOST_EPOCHS, "epoch")


def _share(epoch: Epoch, field: str) -> str:
    value: float | None = getattr(epoch, field)
    return "" if value is None else f"{100 * value:.1f}"
