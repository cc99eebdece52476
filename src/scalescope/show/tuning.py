"""A search for better knobs: what to use and how sure that is, every sample, what was searched, what it cost."""

from typing import Any

import msgspec

from scalescope.records.tuning import Sample, Tuning, knob_words, setting_words, value_words
from scalescope.show.document import Column, Document, Section, Table, charted
from scalescope.show.words import number
from scalescope.stats import percent
from scalescope.text import listed, plain, plural
from scalescope.units import format_seconds, times, with_error

_METHODS = {"online": "while training", "offline": "one launch per sample", "native": "by Horovod's own autotune"}
_LONGER = "train longer, or ask scalescope tune for less by --steps-per-sample and --max-samples"
_MOST_SAMPLES, _MOST_LEFT_OUT = 16, 12


def document(tuning: Tuning) -> Document:
    """The setting to use and its gain, how finalist and default compared, every sample, the space and the cost."""
    notes = [plain(note, 300) for note in tuning.notes]
    where = f"{plain(tuning.what, 60)}: {conditions(tuning)}"
    compared, cost = _compared(tuning), _cost(tuning)
    reason = plain(tuning.reason, 300)
    return Document(
        answer=sentence(tuning),
        why=[where, compared, *notes, *cost],
        sections=charted(
            "tuning",
            [
                Section(
                    "tuning",
                    "Tuning",
                    facts=[
                        *filter(None, (where, compared, _more(tuning), f"ended: {reason}" if reason else "")),
                        *notes,
                    ],
                ),
                Section("tuning-samples", "Samples of the search", tables=[_samples(tuning)]),
                Section("tuning-space", "What was searched", facts=_space(tuning)),
                Section("tuning-cost", "What the search cost", facts=cost),
            ],
            tuning,
        ),
        json=lambda: _json(tuning),
    )


def sentence(tuning: Tuning) -> str:
    """Say what to use and how much it gains, that the default stays, or what an unfinished search has found."""
    gain, why = tuning.gain, plain(tuning.reason, 200).rstrip(".")
    finalist = setting_words(tuning.finalist)
    effort = [plural(len(searched(tuning)), "sample"), plural(_steps(tuning), "step")]
    if gain and gain.pairs:
        effort.insert(1, _pairs(tuning, gain.pairs))
    seen = f"seen in {listed(effort)}"
    if not tuning.complete:
        return _unfinished(tuning, listed(effort), why)
    if tuning.decision == "use":
        return _use(tuning, listed(effort))
    if tuning.decision == "undecided":
        told = f"{gain.words} from {finalist} is no clear gain" if gain else why
        return f"Undecided: {told}, so the default stays ({listed(effort)})."
    if gain is None:
        return f"Keep the default: {why or 'no other setting promised a gain'} ({listed(effort)})."
    if gain.high < 0:
        return f"Keep the default: {finalist} is slower ({gain.words}), {seen}."
    none = "the gain is too small to count" if gain.low > 0 else "no significant gain"
    return f"Keep the default: {none} ({gain.words}) from {finalist}, {seen}."


def _more(tuning: Tuning) -> str:
    """Say how many more pairs would decide; empty where that is not known."""
    more = tuning.more if tuning.gain and tuning.decision == "undecided" else None
    if more is None:
        return ""
    took = f"about {plural(more.pairs, 'more pair')} of blocks ({format_seconds(more.seconds)})"
    return f"{took} would tell a gain of {number(100 * more.gain, 0)} %"


def _use(tuning: Tuning, effort: str) -> str:
    setting, after = setting_words(tuning.values), tuning.cost.break_even_steps
    if not tuning.samples:
        return f"Use {setting}, as it was given: nothing was searched."
    steps = f" ({format_seconds(tuning.default_step_s)})" if tuning.default_step_s and tuning.gain else ""
    faster = f": {_faster(tuning)} faster steps than the default" if tuning.gain else ""
    paid = f"; the search pays for itself after {plural(after, 'more step')}" if after else ""
    return f"Use {setting}{faster}{steps}, found in {effort}{paid}."


def _unfinished(tuning: Tuning, effort: str, why: str) -> str:
    ended = f"Not decided after {effort}" + (f": {why}" if why else "")
    go_on = "--resume continues where it ended" if tuning.method == "offline" else _LONGER
    known = [each for each in searched(tuning) if each.step_s and not each.cut]
    best = min(known, key=lambda sample: sample.step_s or 0.0, default=None)
    factor = against_default(tuning, best.step_s) if best else None
    so_far = "nothing was faster than the default so far"
    if best and best.values and factor:
        so_far = f"so far {setting_words(best.values)} is fastest, {times(factor)} by one sample and not confirmed"
        if tuning.gain:
            sure = f"{tuning.gain.words} over {_pairs(tuning, tuning.gain.pairs)}"
            so_far = f"so far {setting_words(tuning.finalist)} leads ({sure})"
    return f"{ended}; {so_far}; {go_on}."


def _faster(tuning: Tuning) -> str:
    """`1.58x (1.51 to 1.66)`."""
    gain = tuning.gain
    return f"{times(1 + gain.value)} ({1 + gain.low:.2f} to {1 + gain.high:.2f})" if gain else ""


def _compared(tuning: Tuning) -> str:
    """Say how finalist and default compared; empty where none got so far."""
    gain = tuning.gain
    if not tuning.finalist or gain is None:
        return ""
    sure = _faster(tuning) if tuning.decision == "use" else gain.words
    level = f", with {percent(gain.level)} confidence over all looks" if gain.level and gain.is_told else ""
    return f"{setting_words(tuning.finalist)} against the default, {_pairs(tuning, gain.pairs)}: {sure}{level}"


def _samples(tuning: Tuning) -> Table:
    """Samples of the search: the default, then the fastest first."""
    rows = sorted(searched(tuning), key=lambda sample: (sample.phase != "default", sample.step_s or float("inf")))

    def decision(sample: Sample) -> str:
        is_finalist = sample.values and sample.values == tuning.finalist
        told = plain(sample.problem or sample.decision, 48)
        return ", ".join(filter(None, (found_words(tuning) if is_finalist else "", told)))

    def speedup(sample: Sample) -> float | None:
        return None if is_default(tuning, sample) else against_default(tuning, sample.step_s)

    columns = (
        Column(lambda sample: setting_words(sample.values), "setting", words=True),
        Column("index", "sample"),
        Column(lambda sample: sample.predicted_s or None, "predicted", write=format_seconds, priority=1),
        Column(lambda sample: with_error(sample.step_s, sample.error_s) if sample.step_s else "failed", "step"),
        Column(speedup, "speedup", write=times),
        Column(decision, "decision", words=True),
    )
    title = "the default and then the fastest; step times with their standard errors"
    return Table(columns, rows, f"Samples, {title}", title, noun="sample", most=_MOST_SAMPLES)


def _space(tuning: Tuning) -> list[str]:
    """List what was searched, fixed and left out, and where predictions came from."""
    tried = searched(tuning)
    only_default = bool(tried) and all(is_default(tuning, sample) for sample in tried)
    below = ": the predicted gain is below the noise" if tuning.complete else ""
    lines = [f"nothing but the default was tried{below}"] if only_default and tuning.knobs else []
    name_of_list = "not tried" if only_default else "searched"
    for knob in tuning.knobs:
        unit = f" {plain(knob.unit, 12)}" if knob.unit else ""
        usual = "" if knob.default is None else f" (default: {value_words(knob.default)})"
        lines.append(f"{name_of_list}: {plain(knob.name, 40)}: {', '.join(map(value_words, knob.values))}{unit}{usual}")
    lines += [f"fixed: {knob_words(name, value)}" for name, value in tuning.held.items()]
    left = [f"left out: {plain(name, 40)}: {plain(why, 200)}" for name, why in tuning.left_out.items()]
    more = len(left) - _MOST_LEFT_OUT
    lines += [*left[:_MOST_LEFT_OUT], *([f"left out: {plural(more, 'knob')} more"] if more > 0 else [])]
    return [*lines, *([f"predictions: {plain(tuning.prior, 200)}"] if tuning.prior else [])]


def _cost(tuning: Tuning) -> list[str]:
    """Steps and seconds of the search, and what they cost against the default."""
    cost, lost = tuning.cost, tuning.cost.lost_s
    if not tuning.samples:
        return []
    parts = [plural(cost.search_steps, "step") + " of search", f"{cost.confirm_steps:,} of confirmation"]
    parts += [f"{cost.warmup_steps:,} of warm-up before"] if cost.warmup_steps else []
    over = f"from the first sample to the {'decision' if tuning.complete else 'end'}"
    over = "for all launches" if tuning.method == "offline" else over
    lines = [f"{', '.join(parts)}; {format_seconds(cost.seconds)} {over}"]
    if tuning.method != "offline" and tuning.default_step_s:
        won = f"lost {format_seconds(lost)}" if lost > 0 else f"gained {format_seconds(-lost)}"
        lines.append(f"the search {won} against the default")
    return lines


# --- selections that charts use, too ---


def searched(tuning: Tuning) -> list[Sample]:
    """Every sample but the confirmation's, the default's first."""
    return [sample for sample in tuning.samples if sample.phase != "confirm"]


def is_default(tuning: Tuning, sample: Sample) -> bool:
    """True if the sample is of the default."""
    return sample.values == next((each.values for each in tuning.samples if each.phase == "default"), {})


def against_default(tuning: Tuning, step_s: float | None) -> float | None:
    """Speedup over the default."""
    return tuning.default_step_s / step_s if tuning.default_step_s and step_s else None


def found_words(tuning: Tuning) -> str:
    """Name the setting that was compared with the default: it is no winner before it won."""
    return "winner" if tuning.complete and tuning.decision == "use" else "finalist"


def conditions(tuning: Tuning) -> str:
    """`ddp on 4 processes of 2 hosts, while training`."""
    hosts = f" of {plural(tuning.nodes, 'host')}" if tuning.nodes > 1 else ""
    return f"{plain(tuning.engine, 30)} on {plural(tuning.np, 'process')}{hosts}, {_METHODS[tuning.method]}"


def _pairs(tuning: Tuning, count: int) -> str:
    """`6 pairs of blocks`."""
    return f"{plural(count, 'pair')} of {'launches' if tuning.method == 'offline' else 'blocks'}"


def _steps(tuning: Tuning) -> int:
    """Every step from the first to the decision, warm-up among them."""
    return tuning.cost.warmup_steps + tuning.cost.search_steps + tuning.cost.confirm_steps


def _json(tuning: Tuning) -> dict[str, Any]:
    """Units are SI and in the names; a gain is a fraction of the finalist's step time."""
    raw: dict[str, Any] = msgspec.to_builtins(tuning)
    same = ("complete", "reason", "engine", "np", "nodes", "method", "default_step_s", "winner_step_s")
    return {
        "kind": raw["kind"],
        "what": tuning.what,
        "decision": tuning.decision,
        "knobs": {**tuning.held, **tuning.values},
        "gain": raw["gain"],
        "samples": len(searched(tuning)),
        "pairs": tuning.gain.pairs if tuning.gain else 0,
        "more": raw["more"],
        "steps": _steps(tuning),
        **{name: raw[name] for name in same},
        "found": raw["values"],
        **{name: raw[name] for name in ("finalist", "held", "left_out", "cost")},
        "trials": [
            {name: value for name, value in trial.items() if name not in ("kind", "version")}
            | {"speedup": against_default(tuning, sample.step_s)}
            for trial, sample in zip(raw["samples"], tuning.samples, strict=True)
        ],
        "searched": raw["knobs"],
        **{name: raw[name] for name in ("cells", "prior", "notes", "command", "created", "scalescope")},
    }
