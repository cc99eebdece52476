"""Two results side by side: which times changed, by how much, and how sure that is."""

import msgspec

from scalescope.records.comparison import Comparison, Pair
from scalescope.show.document import Column, Document, Section, Table
from scalescope.text import plain, plural
from scalescope.units import format_seconds

_WORDS = {"slower": "slower", "undecided": "not decided", "faster": "faster", "same": "the same"}  # In this order
_FEW = 10  # Rows without --details
_COLUMNS = (
    Column(lambda pair: plain(f"- {pair.what}" if pair.is_part else pair.what, 100), "time of", words=True),
    Column("a", "A", write=format_seconds),
    Column("b", "B", write=format_seconds),
    Column(lambda pair: _ratio(pair), "B over A"),
    Column(lambda pair: _WORDS[pair.verdict], "verdict"),
)


def document(comparison: Comparison) -> Document:
    """Slower, faster or the same; the part that changed most, and findings that came or went."""
    parts = [pair for pair in comparison.pairs if pair.is_part]
    why = [
        f"{plain(part.what, 100)} differs most: {format_seconds(part.a)} in A, {format_seconds(part.b)} in B"
        for part in sorted(parts, key=lambda part: -abs(part.b - part.a))
        if part.a != part.b and not part.what.startswith("traced step")
    ][:1]
    order = list(_WORDS)
    whole = sorted(comparison.decisive, key=lambda pair: (order.index(pair.verdict), -_value(pair)))
    title = f"{plain(comparison.a, 60)} (A) against {plain(comparison.b, 60)} (B): above 1, B is slower"
    table = Table(_COLUMNS, [*whole, *parts], title, title, noun="time", few=_FEW)
    return Document(
        answer=sentence(comparison),
        why=[*why, *comparison.notes],
        brief=[table],
        sections=[Section("compared", "What changed", tables=[table], facts=[*why, *comparison.notes])],
        json=lambda: {
            "kind": "comparison",
            **{name: getattr(comparison, name) for name in ("a", "b", "tolerance", "slower")},
            "pairs": [msgspec.to_builtins(pair) for pair in comparison.pairs],
            "notes": list(comparison.notes),
        },
    )


def sentence(comparison: Comparison) -> str:
    """Say whether B is slower, faster or the same, by how much at most, and of how many."""
    pairs = comparison.decisive
    b, tolerance = plain(comparison.b, 60), f"{100 * comparison.tolerance:.3g} %"
    by = {name: [pair for pair in pairs if pair.verdict == name] for name in _WORDS}
    rest = ", ".join(f"{len(found)} {_WORDS[name]}" for name, found in by.items() if found)
    counts = f" ({rest})" if len(pairs) > 1 else ""

    def takes(pair: Pair) -> str:
        return f"{plain(pair.what, 100)} takes {_ratio(pair)} the time"

    if by["slower"]:
        return f"{b} is slower: {takes(max(by['slower'], key=_value))}, beyond {tolerance}{counts}."
    if by["faster"]:
        return f"{b} is faster: {takes(min(by['faster'], key=_value))}{counts}."
    if by["undecided"]:
        widest = max(by["undecided"], key=lambda pair: pair.ratio.high if pair.ratio else 0.0)
        why = widest.note or f"the interval reaches over {tolerance}; more launches or steps make it narrower"
        return f"Not decided: {takes(widest)}; {why.removesuffix('.')}{counts}."
    return f"{b} is the same within {tolerance}: {plural(len(pairs), 'time')} compared."


def _value(pair: Pair) -> float:
    return pair.ratio.value if pair.ratio else 1.0


def _ratio(pair: Pair) -> str:
    """`1.08x (1.05 to 1.11)`."""
    ratio = pair.ratio
    if ratio is None:
        return "-"
    known = ratio.low < ratio.high and not pair.note
    return f"{ratio.value:.2f}x" + (f" ({ratio.low:.2f} to {ratio.high:.2f})" if known else "")
