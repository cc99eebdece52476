"""Two results side by side, in one sentence, on the terminal and as the JSON document that scripts rely on."""

from typing import Any

import msgspec
from rich.console import Console

from scalescope.records.comparison import Comparison, Pair
from scalescope.report.terminal import Answer, answered, reasons, say, table
from scalescope.text import plain, plural
from scalescope.units import format_seconds

_MOST_ROWS, _MOST_SHOWN = 6, 200  # Without and with --details
_WORDS = {"faster": "faster", "slower": "slower", "same": "the same", "undecided": "not decided"}


def sentence(comparison: Comparison) -> str:
    """Whether B is slower, faster or the same, by how much at most, and of how many."""
    pairs = comparison.decisive
    b, tolerance = plain(comparison.b, 60), f"{100 * comparison.tolerance:.3g} %"
    by = {name: [pair for pair in pairs if pair.verdict == name] for name in _WORDS}
    rest = ", ".join(f"{len(found)} {_WORDS[name]}" for name, found in by.items() if found)
    counts = f" ({rest})" if len(pairs) > 1 else ""
    if by["slower"]:
        worst = max(by["slower"], key=_value)
        return (
            f"{b} is slower: {plain(worst.what, 100)} takes {ratio_words(worst)} the time, beyond {tolerance}{counts}."
        )
    if by["faster"]:
        best = min(by["faster"], key=_value)
        return f"{b} is faster: {plain(best.what, 100)} takes {ratio_words(best)} the time{counts}."
    if by["undecided"]:
        widest = max(by["undecided"], key=lambda pair: pair.ratio.high if pair.ratio else 0.0)
        why = widest.note or f"the interval reaches over {tolerance}; more launches or steps make it narrower"
        return f"Not decided: {plain(widest.what, 100)} takes {ratio_words(widest)} the time; {why}{counts}."
    return f"{b} is the same within {tolerance}: {plural(len(pairs), 'time')} compared."


def _value(pair: Pair) -> float:
    return pair.ratio.value if pair.ratio else 1.0


def ratio_words(pair: Pair) -> str:
    """`1.08x (1.05 to 1.11)`."""
    if pair.ratio is None:
        return "-"
    ratio = pair.ratio
    known = ratio.low < ratio.high and not pair.note
    return f"{ratio.value:.2f}x" + (f" ({ratio.low:.2f} to {ratio.high:.2f})" if known else "")


def answer(comparison: Comparison) -> Answer:
    """What changed, and what stands out in one of them only."""
    parts = [pair for pair in comparison.pairs if pair.is_part and pair.verdict in ("slower", "faster")]
    why = [
        f"{part.what}: {format_seconds(part.a)} before, {format_seconds(part.b)} now"
        for part in sorted(parts, key=lambda part: -abs(part.b - part.a))[:1]
    ]
    return answered(sentence(comparison), [*why, *comparison.notes])


def show(comparison: Comparison, console: Console, *, details: bool = False) -> None:
    """The times of both, slower ones first; with `details` all of them."""
    say(console, f"{plain(comparison.a, 60)} against {plain(comparison.b, 60)}: B over A, above 1 is slower", "bold")
    many = len(comparison.decisive) > _MOST_ROWS and not details
    table(pair_rows(comparison, _MOST_ROWS if many else _MOST_SHOWN), console, ("",))
    reasons(console, answer(comparison), "every time" if many else "")


def pair_rows(comparison: Comparison, most: int = _MOST_SHOWN) -> list[list[str]]:
    """Heading first; whole steps before their parts, the slower ones first; a last row counts what was cut."""
    order = {"slower": 0, "undecided": 1, "faster": 2, "same": 3}
    whole = sorted(comparison.decisive, key=lambda pair: (order[pair.verdict], -_value(pair)))
    rows = [["", "A", "B", "B over A", "verdict"]]
    for pair in [*whole[:most], *(pair for pair in comparison.pairs if pair.is_part)]:
        name = f"- {pair.what}" if pair.is_part else pair.what
        times = [format_seconds(pair.a), format_seconds(pair.b)]
        rows.append([plain(name, 100), *times, ratio_words(pair), _WORDS[pair.verdict]])
    left = len(whole) - most
    return rows if left <= 0 else [*rows, [f"... {plural(left, 'time')} more: --json has them"]]


def as_document(comparison: Comparison) -> dict[str, Any]:
    """What `--json` prints: times in seconds, ratios of B over A."""
    return {
        "kind": "comparison",
        "a": comparison.a,
        "b": comparison.b,
        "tolerance": comparison.tolerance,
        "slower": comparison.slower,
        "pairs": [msgspec.to_builtins(pair) for pair in comparison.pairs],
        "notes": list(comparison.notes),
    }
