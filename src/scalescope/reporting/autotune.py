"""A judged autotune log in the terminal, as JSON and in one sentence."""

import shlex
from typing import Any

import msgspec
from rich.console import Console

from scalescope.records.autotune import Autotune, Knobs, Setting
from scalescope.reporting.autotune_words import (
    DEFAULT_WORDS,
    knob_words,
    noise_lines,
    recommended,
    tried_lines,
    verdict_words,
    warning_lines,
    winning,
)
from scalescope.reporting.explanation.terminal import bullet, cut_rows, say, table
from scalescope.reporting.explanation.words import harmless
from scalescope.units import plural

_MOST_SETTINGS = 8
_SHORT = {
    "hierarchical_allreduce": "h.allreduce",
    "hierarchical_allgather": "h.allgather",
    "torus_allreduce": "torus",
    "cache_enabled": "cache",
}


def show(record: Autotune, console: Console) -> None:
    """What was tried, the best settings, whether they beat the noise, what to beware of, and what to set."""
    say(console, f"Horovod autotune log: {harmless(record.file)}", "bold")
    for line in tried_lines(record):
        bullet(console, line)
    if record.lost.events:
        bullet(
            console, f"not read: {plural(record.lost.events, 'line')}: {harmless(record.lost.reason, 200)}", "yellow"
        )
    console.print()
    say(console, "The best settings: fusion, cycle, score in MB/s (higher is better)", "bold")
    table(setting_rows(record), console)
    for heading, lines, style in (
        ("Did it beat the noise?", noise_lines(record), ""),
        ("Beware", warning_lines(record), "yellow"),
    ):
        console.print()
        say(console, heading, f"bold {style}".strip())
        for line in lines:
            bullet(console, line, style)
    console.print()
    say(console, f"What to use: {knob_words(record, recommended(record).knobs)}", "bold")
    exports = "export " + " ".join(f"{name}={value}" for name, value in record.environment.items())
    console.print(exports, markup=False, highlight=False, soft_wrap=True)
    say(console, "the setting whose samples and neighbours promise most, less one standard error", "dim")


def sentence(record: Autotune) -> str:
    """The answer: whether the choice beat the noise, and what to try instead of believing it."""
    chose = "Autotune chose" if record.finished else "Autotune did not finish; its best so far is"
    told = f"{chose} {knob_words(record, winning(record).knobs)}, which {verdict_words(record)}"
    same = record.recommended == record.winning_setting
    use = "measure it" if same else f"measure the steadier {knob_words(record, recommended(record).knobs)}"
    untried = "" if record.default_tried else ", which was never tried"
    return f"{told}; {use} against {DEFAULT_WORDS}{untried}."


def next_commands(record: Autotune, np: int = 2) -> list[str]:
    """What to type next: the recommended setting and the default, measured alike."""
    usual = ["scalescope", "measure", "--np", str(np), "--relative-to", "smallest", "--engine", "horovod"]
    variables = [word for name, value in record.environment.items() for word in ("--env", f"{name}={value}")]
    command = ["--", "python", "train.py"]
    return [
        shlex.join([*usual, *variables, "-o", "results/autotuned", *command]),
        shlex.join([*usual, "-o", "results/default", *command]),
    ]


def next_command_of(record: Autotune) -> str:
    """Both of them on one line."""
    return " && ".join(next_commands(record))


def as_document(record: Autotune) -> dict[str, Any]:
    """What `--json` prints: knobs as Horovod names them, scores in bytes per second, leads as fractions."""
    winner = record.samples[record.winner]
    return {
        "kind": "autotune log",
        "what": record.file,
        "samples": len(record.samples),
        "settings": len(record.settings),
        "finished": record.finished,
        "choice": {"line": winner.line, **_scored(winner.knobs, winner.score)},
        "runner_up": None if record.runner_up is None else _setting_document(record.settings[record.runner_up]),
        "recommended": _setting_document(recommended(record)),
        "environment": dict(record.environment),
        "verdict": record.verdict,
        "beat_the_noise": None if record.verdict == "unknown" else record.verdict == "clear",
        "noise": msgspec.to_builtins(record.noise),
        "lead_over_next": record.lead_next,
        "lead_needed": record.needed,
        "lead_over_median": record.lead_median,
        "lead_by_luck": record.luck,
        "settings_alike": record.alike,
        "walked": msgspec.to_builtins(record.walked),
        "held": dict(record.held),
        "default_tried": record.default_tried,
        "cache_not_applied": record.cache_not_applied,
        "out_of_range": sum(each.out_of_range for each in record.settings),
        "tried": [
            {"line": each.line, "setting": each.setting, **_scored(each.knobs, each.score)} for each in record.samples
        ],
        "by_setting": [_setting_document(each) for each in record.settings],
        "lost": msgspec.to_builtins(record.lost),
        "next": next_commands(record),
    }


def _scored(knobs: Knobs, score: float) -> dict[str, Any]:
    return {"knobs": {**_numbers(knobs), **knobs.switches}, "score_bytes_per_s": 1e6 * score}


def _numbers(knobs: Knobs) -> dict[str, float]:
    return {"fusion_threshold_mb": knobs.fusion_threshold_mb, "cycle_time_ms": knobs.cycle_time_ms}


def _setting_document(setting: Setting) -> dict[str, Any]:
    return {
        **_scored(setting.knobs, setting.score),
        "low_bytes_per_s": 1e6 * setting.low,
        "high_bytes_per_s": 1e6 * setting.high,
        "samples": setting.samples,
        "likely_bytes_per_s": None if setting.smoothed is None else 1e6 * setting.smoothed,
        "error": setting.error,
        "out_of_range": setting.out_of_range,
    }


def setting_rows(record: Autotune) -> list[list[str]]:
    """The most promising settings, heading first; winner and recommendation are always there."""
    kept = {record.winning_setting, record.recommended}
    order = sorted(range(len(record.settings)), key=lambda at: (at not in kept, -_promise(record.settings[at])))
    shown = sorted(order[:_MOST_SETTINGS], key=lambda at: -_promise(record.settings[at]))
    shown += [at for at in order if at not in shown]
    settings = [record.settings[at] for at in shown]
    columns = [
        ("MiB", [f"{each.knobs.fusion_threshold_mb:.3g}" for each in settings]),
        ("ms", [f"{each.knobs.cycle_time_ms:.3g}" for each in settings]),
        ("switched on", [_switched_on(record, each) for each in settings]),
        ("samples", [str(each.samples) for each in settings]),
        ("score", [f"{each.score:.4g}" for each in settings]),
        ("range", [f"{each.low:.3g}-{each.high:.3g}" if each.samples > 1 else "" for each in settings]),
        ("likely", [_likely(each) for each in settings]),
        ("", [_mark(record, at) for at in shown]),
    ]
    return cut_rows(columns, _MOST_SETTINGS, "setting")


def _switched_on(record: Autotune, setting: Setting) -> str:
    """Of the switches that were tried both ways."""
    names = [_SHORT[each.name] for each in record.walked if setting.knobs.switches[each.name]]
    return ", ".join(names) or ("none" if record.walked else "")


def _promise(setting: Setting) -> float:
    return setting.score if setting.smoothed is None else setting.smoothed


def _likely(setting: Setting) -> str:
    if setting.smoothed is None or setting.error is None:
        return ""
    return f"{setting.smoothed:.3g} ± {setting.smoothed * setting.error:.2g}"


def _mark(record: Autotune, at: int) -> str:
    marks = ["chosen" if record.finished else "best"] if at == record.winning_setting else []
    return ", ".join([*marks, *(["use"] if at == record.recommended else [])]) or " "
