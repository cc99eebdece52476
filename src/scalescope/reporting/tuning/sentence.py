"""The answer of a tuning in one sentence."""

from scalescope.records.tuning import Tuning
from scalescope.reporting.explanation.words import harmless
from scalescope.reporting.tuning.words import (
    against_default,
    best_so_far,
    gain_percent,
    gain_times,
    pairs_words,
    searched,
    setting_words,
    times,
    total_steps,
)
from scalescope.units import format_seconds, plural

_GO_ON = {
    "online": "train longer, or ask for less with --steps-per-sample and --max-samples",
    "offline": "--resume goes on where it ended",
    "native": "give it more steps",
}


def sentence(tuning: Tuning) -> str:
    """What to use and how much it gains, or that the default stays, or what an unfinished search has found so far."""
    if not tuning.complete:
        return _unfinished(tuning)
    return _use(tuning) if tuning.decision == "use" else _keep(tuning)


def _use(tuning: Tuning) -> str:
    setting = setting_words(tuning.values, " and ")
    if not tuning.samples:
        return f"Use {setting}, as it was given: nothing was searched."
    steps = ""
    if tuning.default_step_s and tuning.winner_step_s:
        steps = f" ({format_seconds(tuning.winner_step_s)} instead of {format_seconds(tuning.default_step_s)})"
    faster = f": {gain_times(tuning.gain)} faster steps than the default{steps}" if tuning.gain else steps
    return f"Use {setting}{faster}, found in {_effort(tuning)}{_paid(tuning)}."


def _paid(tuning: Tuning) -> str:
    steps = tuning.cost.break_even_steps
    if steps is None:
        return ""
    after = f"after {plural(steps, 'more step')}" if steps > 0 else "already"
    return f"; the search has paid for itself {after}"


def _keep(tuning: Tuning) -> str:
    gain = tuning.gain
    if gain is None:
        why = harmless(tuning.reason, 200).rstrip(".") or "no other setting promised a gain"
        return f"Keep the default: {why} ({_effort(tuning)})."
    finalist = setting_words(tuning.finalist, " and ")
    if gain.high < 0:
        return f"Keep the default: {finalist} is slower ({gain_percent(gain)}), seen in {_effort(tuning)}."
    none = "the gain is too small to count" if gain.low > 0 else "no significant gain"
    return f"Keep the default: {none} ({gain_percent(gain)}) from {finalist}, seen in {_effort(tuning)}."


def _unfinished(tuning: Tuning) -> str:
    why = harmless(tuning.reason, 200).rstrip(".")
    ended = f"Not decided after {_effort(tuning)}" + (f": {why}" if why else "")
    go_on = _GO_ON[tuning.method]
    best = best_so_far(tuning)
    if best is None:
        return f"{ended}; nothing was measured; {go_on}."
    factor = against_default(tuning, best.step_s)
    if not best.values or factor is None:
        return f"{ended}; nothing was faster than the default so far; {go_on}."
    if tuning.gain:
        sure = f"{gain_percent(tuning.gain)} over {pairs_words(tuning, tuning.gain.pairs)}"
        return f"{ended}; so far {setting_words(tuning.finalist, ' and ')} leads ({sure}); {go_on}."
    setting = setting_words(best.values, " and ")
    return f"{ended}; so far {setting} is fastest, {times(factor)} by one sample and not confirmed; {go_on}."


def _effort(tuning: Tuning) -> str:
    """`9 samples, 6 pairs of blocks and 214 steps`."""
    samples = plural(len(searched(tuning)), "sample")
    steps = plural(total_steps(tuning), "step")
    if tuning.gain is None or not tuning.gain.pairs:
        return f"{samples} and {steps}"
    return f"{samples}, {pairs_words(tuning, tuning.gain.pairs)} and {steps}"
