"""A tuning as the JSON document that scripts rely on.
A tuning on the terminal: what was tried, what was not, whether the finalist won, and what the search cost.
"""

from statistics import median
from typing import Any

import msgspec
from rich.console import Console

from scalescope.records.tuning import Sample, Tuning
from scalescope.report.terminal import Answer, answered, bullet, cut_rows, reasons, say, section, table
from scalescope.report.tuning import (
    DEFAULT_WORDS,
    against_default,
    conditions,
    confirming,
    cost_lines,
    gain_percent,
    gain_times,
    headline,
    is_default,
    knob_words,
    pairs_words,
    searched,
    sentence,
    setting_words,
    times,
    total_steps,
    value_words,
    with_error,
)
from scalescope.stats import percent
from scalescope.text import plain, plural
from scalescope.units import format_seconds


def as_document(tuning: Tuning) -> dict[str, Any]:
    """What `--json` prints: units are SI and in the names; a gain is a fraction of the finalist's step time."""
    plain: dict[str, Any] = msgspec.to_builtins(tuning)
    return {
        "kind": plain["kind"],
        "what": tuning.what,
        "decision": tuning.decision,
        "knobs": {**tuning.held, **tuning.values},
        "gain": plain["gain"],
        "samples": len(searched(tuning)),
        "pairs": tuning.gain.pairs if tuning.gain else 0,
        "more": plain["more"],
        "steps": total_steps(tuning),
        "complete": tuning.complete,
        "reason": tuning.reason,
        "engine": tuning.engine,
        "np": tuning.np,
        "nodes": tuning.nodes,
        "method": tuning.method,
        "default_step_s": tuning.default_step_s,
        "winner_step_s": tuning.winner_step_s,
        "found": dict(tuning.values),
        "finalist": dict(tuning.finalist),
        "held": dict(tuning.held),
        "left_out": dict(tuning.left_out),
        "cost": plain["cost"],
        "trials": [
            {**_without_kind(trial), "speedup": against_default(tuning, sample.step_s)}
            for trial, sample in zip(plain["samples"], tuning.samples, strict=True)
        ],
        "searched": plain["knobs"],
        "cells": plain["cells"],
        "prior": tuning.prior,
        "notes": list(tuning.notes),
        "command": list(tuning.command),
        "created": tuning.created,
        "scalescope": tuning.scalescope,
    }


def _without_kind(trial: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in trial.items() if name not in ("kind", "version")}


_MOST_SAMPLES, _MOST_VALUES, _MOST_LEFT_OUT = 16, 10, 12
_NARROW = 100  # Columns of a terminal below which predictions are not shown


def show(tuning: Tuning, console: Console, *, details: bool = False) -> None:
    """How it was decided and what that cost; with `details` the space, every sample and notes too."""
    if details:
        _show_all(tuning, console)
        return
    say(console, f"{headline(tuning)}: {conditions(tuning)}")
    reasons(console, answer(tuning), "what was searched, every sample and all costs")


def answer(tuning: Tuning) -> Answer:
    """What to use, how that was decided and what the search cost."""
    notes = [plain(note, 300) for note in tuning.notes]
    return answered(sentence(tuning), [*confirmation_lines(tuning)[:2], *notes, *_cost_lines(tuning)])


def _show_all(tuning: Tuning, console: Console) -> None:
    say(console, f"Tuning of {headline(tuning)}: {conditions(tuning)}", "bold")
    for line in [*space_lines(tuning), *(plain(note, 300) for note in tuning.notes)]:
        bullet(console, line)
    if tuning.samples:
        console.print()
        say(console, f"Samples, {_order_words(tuning)}; step times with their standard errors", "bold")
        table(sample_rows(tuning, narrow=console.width < _NARROW), console, ("setting", "decision"))
    section(console, "Confirmation", confirmation_lines(tuning))
    section(console, "What it cost", _cost_lines(tuning))


def space_lines(tuning: Tuning) -> list[str]:
    """What was searched, fixed and left out, and where predictions came from."""
    lines = []
    for knob in tuning.knobs:
        values = [value_words(value) for value in knob.values]
        several = values if len(values) <= _MOST_VALUES else [*values[:3], "...", *values[-2:]]
        unit = f" {plain(knob.unit, 12)}" if knob.unit else ""
        usual = "" if knob.default is None else f" (default: {value_words(knob.default)})"
        lines.append(f"searched: {plain(knob.name, 40)}: {', '.join(several)}{unit}{usual}")
    lines += [f"fixed: {knob_words(name, value)}" for name, value in tuning.held.items()]
    left = [f"left out: {plain(name, 40)}: {plain(why, 200)}" for name, why in tuning.left_out.items()]
    lines += left[:_MOST_LEFT_OUT]
    if len(left) > _MOST_LEFT_OUT:
        lines.append(f"left out: {plural(len(left) - _MOST_LEFT_OUT, 'knob')} more")
    return [*lines, *([f"predictions: {plain(tuning.prior, 200)}"] if tuning.prior else [])]


def sample_rows(tuning: Tuning, *, narrow: bool = False) -> list[list[str]]:
    """Samples of the search in their order, heading first; of many the default and the fastest."""
    shown = searched(tuning)
    if len(shown) > _MOST_SAMPLES:
        shown = sorted(shown, key=lambda sample: (sample.phase != "default", sample.step_s or float("inf")))
    columns = [
        ("setting", [setting_words(sample.values) for sample in shown]),
        ("sample", [str(sample.index) for sample in shown]),
        ("predicted", ["" if narrow or not each.predicted_s else format_seconds(each.predicted_s) for each in shown]),
        ("step", [_step(sample) for sample in shown]),
        ("speedup", [_pace(tuning, sample) for sample in shown]),
        ("decision", [_decision(tuning, sample) for sample in shown]),
    ]
    return cut_rows(columns, _MOST_SAMPLES, "sample")


def confirmation_lines(tuning: Tuning) -> list[str]:
    """How finalist and default compared, and why that decides it."""
    gain, reason = tuning.gain, plain(tuning.reason, 300)
    ended = [f"{'reason' if tuning.complete else 'ended early'}: {reason}"] if reason else []
    if not tuning.finalist or gain is None:
        none = "no setting met the default: it stays as it is" if tuning.complete else "not reached"
        return [none, *ended] if tuning.samples else ended
    sides = [_side(tuning, by_itself) for by_itself in (False, True)]
    against = f"{setting_words(tuning.finalist, ' and ')} against {DEFAULT_WORDS}"
    met = f"{against}, {pairs_words(tuning, gain.pairs)}: {', '.join(filter(None, sides))}"
    level = f", with {percent(gain.level)} confidence over all looks" if gain.level else ""
    sure = f"{gain_times(gain)}, or {gain_percent(gain)}{level}: {_outcome(tuning)}"
    return [met.rstrip(": "), sure, *ended]


def _outcome(tuning: Tuning) -> str:
    if not tuning.complete:
        return "not decided yet"
    if tuning.decision == "use":
        return "it wins"
    if tuning.decision == "undecided":
        return "undecided, the default stays"
    return "it does not win, the default stays"


def _side(tuning: Tuning, by_itself: bool) -> str:
    """The median of one side's blocks."""
    steps = [each.step_s for each in confirming(tuning) if each.step_s and is_default(tuning, each) is by_itself]
    return f"{'default' if by_itself else 'finalist'} {format_seconds(median(steps))}" if steps else ""


def _cost_lines(tuning: Tuning) -> list[str]:
    return cost_lines(tuning) if tuning.samples else []


def _order_words(tuning: Tuning) -> str:
    many = len(searched(tuning)) > _MOST_SAMPLES
    return "the default and then the fastest" if many else "in their order"


def _step(sample: Sample) -> str:
    return "failed" if sample.step_s is None else with_error(sample.step_s, sample.error_s)


def _pace(tuning: Tuning, sample: Sample) -> str:
    factor = against_default(tuning, sample.step_s)
    return times(factor) if factor is not None and not is_default(tuning, sample) else ""


def _decision(tuning: Tuning, sample: Sample) -> str:
    """What the sample led to, and whether its setting is the answer."""
    told = plain(plain(sample.problem or sample.decision, 60), 48)
    if not sample.values or sample.values != tuning.finalist:
        return told
    mark = "winner" if tuning.decision == "use" and tuning.complete else "finalist"
    return ", ".join(filter(None, (mark, told)))
