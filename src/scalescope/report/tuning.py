"""What a tuning says: in one sentence, and in words and selections that terminal and charts share."""

from collections.abc import Mapping

from scalescope.records.job import KnobValue
from scalescope.records.tuning import Gain, Sample, Tuning
from scalescope.show.words import number
from scalescope.text import plain, plural
from scalescope.units import format_seconds, unit_of

DEFAULT_WORDS = "the default"
_METHOD_WORDS = {
    "online": "while training",
    "offline": "one launch per sample",
    "native": "by Horovod's own autotune",
}
_LONG_LINE = 100
_SIDES_WORDS = {"online": "blocks", "offline": "launches", "native": "blocks"}


def value_words(value: KnobValue | None) -> str:
    """`1`, `0.25`, `on`, `as it is`."""
    if value is None:
        return "as it is"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.6g}" if isinstance(value, float) else plain(str(value), 40)


def knob_words(name: str, value: KnobValue) -> str:
    """`bucket_cap_mb 1`, `hierarchical allreduce`, `hierarchical allgather off`."""
    if isinstance(value, bool):
        return switch_name(name) + ("" if value else " off")
    return f"{plain(name, 40)} {value_words(value)}"


def switch_name(name: str) -> str:
    """A knob that is on or off, as people say it."""
    return plain(name, 40).replace("_", " ")


def setting_words(values: Mapping[str, KnobValue], last: str = ", ") -> str:
    """`bucket_cap_mb 1, hierarchical allreduce`; without any, the default. `last` stands before the last one."""
    knobs = [knob_words(name, value) for name, value in values.items()]
    if not knobs:
        return DEFAULT_WORDS
    return last.join([", ".join(knobs[:-1]), knobs[-1]]) if len(knobs) > 1 else knobs[0]


def searched(tuning: Tuning) -> list[Sample]:
    """Every sample but the confirmation's, the default's first."""
    return [sample for sample in tuning.samples if sample.phase != "confirm"]


def confirming(tuning: Tuning) -> list[Sample]:
    """Samples in which finalist and default met."""
    return [sample for sample in tuning.samples if sample.phase == "confirm"]


def is_default(tuning: Tuning, sample: Sample) -> bool:
    """Whether the sample is of the default."""
    own = next((each.values for each in tuning.samples if each.phase == "default"), {})
    return sample.values == own


def best_so_far(tuning: Tuning) -> Sample | None:
    """The fastest sample that was not cut; the default where nothing is faster."""
    known = [sample for sample in searched(tuning) if sample.step_s is not None and not sample.cut]
    return min(known, key=lambda sample: sample.step_s or 0.0, default=None)


def against_default(tuning: Tuning, step_s: float | None) -> float | None:
    """How many times faster than the default."""
    return tuning.default_step_s / step_s if tuning.default_step_s and step_s else None


def times(factor: float) -> str:
    """`1.58x`."""
    return f"{factor:.2f}x" if factor < 10 else f"{factor:.0f}x"


def with_error(step_s: float, error_s: float | None, plus_minus: str = "±") -> str:
    """`353 ± 2.9 ms`."""
    if error_s is None:
        return format_seconds(step_s)
    unit, factor = unit_of(step_s)
    return f"{digits(factor * step_s)} {plus_minus} {factor * error_s:.2g} {unit}"


def digits(value: float) -> str:
    """Three of them, never as a power of ten."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def gain_times(gain: Gain) -> str:
    """`1.58x (1.51 to 1.66)`."""
    return f"{times(1 + gain.value)} ({1 + gain.low:.2f} to {1 + gain.high:.2f})"


def gain_percent(gain: Gain) -> str:
    """`+0.8 % +- 1.5 %`."""
    return f"{signed_percent(gain.value)} +- {number(50 * (gain.high - gain.low), 1)} %"


def signed_percent(fraction: float) -> str:
    """`+0.8 %`, `-12 %`."""
    percent = 100 * fraction
    text = f"{percent:+.1f}" if abs(percent) < 9.95 else f"{percent:+.0f}"
    return f"{'0.0' if text in ('+0.0', '-0.0') else text} %"


def total_steps(tuning: Tuning) -> int:
    """Every step from the first to the decision, warm-up among them."""
    cost = tuning.cost
    return cost.warmup_steps + cost.search_steps + cost.confirm_steps


def headline(tuning: Tuning) -> str:
    """`train.py`, on one line."""
    return plain(tuning.what, 60)


def conditions(tuning: Tuning) -> str:
    """`ddp on 4 processes of 2 hosts, while training`."""
    hosts = f" of {plural(tuning.nodes, 'host')}" if tuning.nodes > 1 else ""
    return f"{plain(tuning.engine, 30)} on {plural(tuning.np, 'process')}{hosts}, {_METHOD_WORDS[tuning.method]}"


def heading_lines(tuning: Tuning) -> list[str]:
    """What was tuned and decided; on two lines where one would be long."""
    parts = [conditions(tuning), verdict(tuning)]
    whole = "; ".join(parts)
    return [whole] if len(whole) <= _LONG_LINE else parts


def held_words(tuning: Tuning) -> str:
    """`fixed: cache_capacity 1024`; empty where nothing was."""
    return f"fixed: {plain(setting_words(tuning.held), 100)}" if tuning.held else ""


def pairs_words(tuning: Tuning, count: int) -> str:
    """`6 pairs of blocks`."""
    return f"{plural(count, 'pair')} of {_SIDES_WORDS[tuning.method]}"


def verdict(tuning: Tuning) -> str:
    """What was decided and how sure it is, in a few words."""
    gain = tuning.gain
    if not tuning.complete:
        return "not decided"
    if tuning.decision == "undecided":
        return f"undecided{f' ({gain_percent(gain)})' if gain else ''}: the default stays"
    if tuning.decision == "use":
        sure = f": {gain_times(gain)}" if gain else ""
        return f"use {plain(setting_words(tuning.values, ' and '), 90)}{sure}"
    if gain is None:
        why = plain(tuning.reason, 90)
        return "keep the default" + (f": {why}" if why else "")
    if gain.high < 0:
        return f"keep the default: the finalist is slower ({gain_percent(gain)})"
    if gain.low > 0:
        return f"keep the default: the gain is too small ({gain_percent(gain)})"
    return f"keep the default: no significant gain ({gain_percent(gain)})"


def cost_lines(tuning: Tuning) -> list[str]:
    """Steps and seconds of the search, what they cost, and when that is recovered."""
    cost = tuning.cost
    parts = [plural(cost.search_steps, "step") + " of search", f"{cost.confirm_steps:,} of confirmation"]
    parts += [f"{cost.warmup_steps:,} of warm-up before"] if cost.warmup_steps else []
    whole = f"from the first sample to the {'decision' if tuning.complete else 'end'}"
    over = whole if tuning.method != "offline" else "for all launches"
    lines = [f"{', '.join(parts)}; {format_seconds(cost.seconds)} {over}"]
    if tuning.method != "offline" and tuning.default_step_s:
        lines.append(lost_words(tuning))
    if cost.worst is not None:
        lines.append(f"the slowest sample took {times(cost.worst)} as long as the default")
    return [*lines, *filter(None, [break_even_words(tuning)])]


def lost_words(tuning: Tuning) -> str:
    """How the search compares with the default over the same steps."""
    lost, seconds = tuning.cost.lost_s, tuning.cost.seconds
    if lost <= 0:
        return f"the search gained {format_seconds(-lost)} against the default"
    pace = f", {100 * (seconds - lost) / seconds:.0f} % of its throughput" if seconds > lost else ""
    return f"the search lost {format_seconds(lost)} against the default{pace}"


def break_even_words(tuning: Tuning) -> str:
    """When the search has paid for itself, if ever; empty where there is nothing to recover."""
    steps = tuning.cost.break_even_steps
    if steps is None:
        kept = tuning.complete and tuning.decision == "keep_default" and tuning.cost.lost_s > 0
        return "the default stays, so this cost is not recovered" if kept else ""
    if steps <= 0:
        return "the search has paid for itself already"
    return f"the search has paid for itself after {plural(steps, 'more step')} with the winner"


_GO_ON = {
    "online": "train longer, or ask for less with --steps-per-sample and --max-samples",
    "offline": "--resume continues where it ended",
    "native": "train longer, or ask for less with --steps-per-sample and --max-samples",
}


def sentence(tuning: Tuning) -> str:
    """What to use and how much it gains, or that the default stays, or what an unfinished search has found so far."""
    if not tuning.complete:
        return _unfinished(tuning)
    return {"use": _use, "keep_default": _keep, "undecided": _undecided}[tuning.decision](tuning)


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
        why = plain(tuning.reason, 200).rstrip(".") or "no other setting promised a gain"
        return f"Keep the default: {why} ({_effort(tuning)})."
    finalist = setting_words(tuning.finalist, " and ")
    if gain.high < 0:
        return f"Keep the default: {finalist} is slower ({gain_percent(gain)}), seen in {_effort(tuning)}."
    none = "the gain is too small to count" if gain.low > 0 else "no significant gain"
    return f"Keep the default: {none} ({gain_percent(gain)}) from {finalist}, seen in {_effort(tuning)}."


def _undecided(tuning: Tuning) -> str:
    """`Undecided: +1.1 % +- 35 % from ..., seen in ...; about 40 more pairs (25 min) would tell a gain of 10 %.`"""
    seen = f"seen in {_effort(tuning)}; the default stays"
    if tuning.gain is None:
        return f"Undecided: {plain(tuning.reason, 200).rstrip('.')}, {seen}."
    told = f"Undecided: {gain_percent(tuning.gain)} from {setting_words(tuning.finalist, ' and ')}, {seen}"
    return f"{told}; {more}." if (more := more_words(tuning)) else f"{told}."


def more_words(tuning: Tuning) -> str:
    """`about 40 more pairs (25 min) would tell a gain of 10 %`; empty where nobody can say."""
    if not (more := tuning.more):
        return ""
    return (
        f"about {plural(more.pairs, 'more pair')} ({format_seconds(more.seconds)}) would tell a gain of "
        f"{number(100 * more.gain, 0)} %"
    )


def _unfinished(tuning: Tuning) -> str:
    why = plain(tuning.reason, 200).rstrip(".")
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
