"""Words that several documents and charts share, so that one thing has one name everywhere."""

import re
from collections.abc import Iterable

from scalescope.engines import KNOWN, SEEN, exchanging
from scalescope.records.job import NO_ENGINE
from scalescope.records.scaling import Estimate
from scalescope.stats import FEWEST, MEASURED, percent

_ENGINES = [NO_ENGINE, *exchanging(), *SEEN]  # In their order
# Intervals of ratios reach further up than down; from this part of their half-width on both ends are written.
_LOPSIDED = 0.1


def engine_name(engine: str) -> str:
    """An engine as people read it: one process without any is alone."""
    return "alone" if engine == NO_ENGINE else engine or "engine not said"


def engine_order(engine: str) -> tuple[int, str]:
    """A sort key: alone, engines as they are listed, then others by name."""
    return (_ENGINES.index(engine) if engine in _ENGINES else len(_ENGINES), engine)


def number(value: float, decimals: int) -> str:
    """A number with thousands separated and no minus before zero."""
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if not re.search("[1-9]", text) else text


def count(value: float) -> str:
    """A whole number with thousands separated; a fraction with four digits."""
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def capital(text: str) -> str:
    """With a capital where it begins with a word; names of engines are written as titles."""
    first = text.split()[0].strip(":,;") if text.strip() else ""
    if first in KNOWN and first != NO_ENGINE:
        return KNOWN[first].title + text[len(first) :]
    return text[0].upper() + text[1:] if first.isalpha() else text


def has_spread(estimate: Estimate) -> bool:
    """True if there is an interval or a range to show."""
    return estimate.count > 1 and estimate.low < estimate.high


def with_interval(estimate: Estimate) -> str:
    """`1.83 ± 0.05` for a t-interval, `1.83 [1.69-1.99]` for a lopsided one, `1.83 (1.79-1.90)` for a range."""
    value, low, high = estimate.value, estimate.low, estimate.high
    decimals = 2 if value < 100 else 1
    if not has_spread(estimate):
        return number(value, decimals)
    if estimate.interval == "range":
        decimals = 2 if value < 10 else 1 if value < 100 else 0
        return f"{number(value, decimals)} ({number(low, decimals)}-{number(high, decimals)})"
    half = (high - low) / 2
    while decimals < 4 and round(half, decimals) == 0:
        decimals += 1
    if high - value - half <= _LOPSIDED * half:
        return f"{number(value, decimals)} ± {number(half, decimals)}"
    return f"{number(value, decimals)} [{number(low, decimals)}-{number(high, decimals)}]"


def interval_note(estimates: Iterable[Estimate | None], *, t: str = "± or [ ]", span: str = "in parentheses") -> str:
    """Explain what intervals mean; `t` and `span` say how they are shown, such as `solid bars` and `in parentheses`."""
    known = [each for each in estimates if each]
    kinds = dict.fromkeys((each.over, each.interval) for each in known if has_spread(each))
    notes = [
        f"{t}: {percent(MEASURED)} t-intervals over {over}, each by itself"
        if interval == "t"
        else f"{span}: range of fewer than {FEWEST} {over}, no interval"
        for over, interval in sorted(kinds, reverse=True)
    ]
    if any(each.count == 1 for each in known):
        notes.append("single launches have no interval" if notes else "one launch each, no interval: launches differ")
    return "; ".join(notes)
