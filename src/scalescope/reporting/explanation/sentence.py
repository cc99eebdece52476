"""What an explanation says, in one sentence."""

from scalescope.records.explanation import Explanation
from scalescope.records.timeline import Breakdown
from scalescope.reporting.explanation.words import PARTS, by_gain, gain_words, harmless, percent, share, shares
from scalescope.units import format_seconds

_NAMES = {"exposed_communication": "communication that nothing hides", "input": "waiting for input"}
_VISIBLE = 0.005
"""Parts below it would read 0 %."""


def sentence(explanation: Explanation) -> str:
    """The answer: where a step goes, and what to change first."""
    parts = explanation.accounting
    if parts is None:
        return f"{harmless(explanation.what)} has no steps, so nothing can be said about where their time goes."
    known = shares(parts)
    names = {part.key: _NAMES.get(part.key, part.name) for part in PARTS}
    if len(known) <= 2:
        names["other"] = f"what a {explanation.kind} alone does not tell apart"
    told = [
        f"{percent(known[key])} {'is ' if not index else ''}{names[key]}" for index, key in enumerate(_order(known))
    ]
    step = explanation.step_s if explanation.step_s is not None else parts.step_s
    where = f"Of a {format_seconds(step)} step {_listed(told)}{_hidden(explanation, parts)}"
    return f"{where}; {_advice(explanation)}."


def _order(known: dict[str, float]) -> list[str]:
    """Parts that can be seen, as they follow each other everywhere."""
    return [key for key, fraction in known.items() if fraction >= _VISIBLE] or list(known)[:1]


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _hidden(explanation: Explanation, parts: Breakdown) -> str:
    if parts.hidden_s is not None and share(parts.hidden_s, parts) >= _VISIBLE:
        return f" (communication hidden under compute: {percent(share(parts.hidden_s, parts))})"
    possibly = explanation.possibly_hidden_s
    if possibly is not None and share(possibly, parts) >= _VISIBLE:
        return f" (communication that may be hidden: {percent(share(possibly, parts))})"
    return ""


def _advice(explanation: Explanation) -> str:
    findings = by_gain(explanation.findings)
    if not findings:
        return "nothing stands out"
    first = findings[0]
    said = harmless(first.sentence, 200).removesuffix(".")
    return f"what stands out: {said}" if first.gain is None else f"{gain_words(first.gain)} can be gained: {said}"
