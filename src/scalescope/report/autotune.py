"""A judged autotune log: in one sentence, in lines that terminal and drawings share, and as JSON."""

import shlex
from typing import Any

import msgspec
from rich.console import Console

from scalescope.records.autotune import (
    DEFAULT_CYCLE_MS,
    DEFAULT_FUSION_MB,
    DEFAULT_SWITCHES,
    Autotune,
    Knobs,
    Setting,
    Switch,
)
from scalescope.report.terminal import Answer, answered, bullet, cut_rows, reasons, say, section
from scalescope.text import COMMAND, plain, plural
from scalescope.units import format_share

DEFAULT_WORDS = f"the default ({DEFAULT_FUSION_MB:g} MiB, {DEFAULT_CYCLE_MS:g} ms)"
SWITCH_WORDS = {
    "hierarchical_allreduce": "hierarchical allreduce",
    "hierarchical_allgather": "hierarchical allgather",
    "torus_allreduce": "torus allreduce",
    "cache_enabled": "cache",
}
_SHORT = {**SWITCH_WORDS, "hierarchical_allreduce": "h.allreduce", "hierarchical_allgather": "h.allgather"}
_MOST_SETTINGS = 8
_STEPS_PER_SAMPLE, _WARMUP_SAMPLES = 50, 3  # What Horovod takes when nothing is said
_NEWER = "torus_allreduce"  # A column that logs have from 0.26 on
_FIXED_WORDS = {"tensor_fusion_threshold": "fusion threshold (MiB)", "cycle_time_ms": "cycle time (ms)"}


def knob_words(record: Autotune, knobs: Knobs) -> str:
    """`fusion 4 MiB, cycle 5 ms, cache on`; switches where they were walked or are unusual."""
    walked = {switch.name for switch in record.walked}
    named = [
        f"{SWITCH_WORDS[name]} {'on' if value else 'off'}"
        for name, value in knobs.switches.items()
        if name in walked or value != DEFAULT_SWITCHES[name]
    ]
    return ", ".join([f"fusion {knobs.fusion_threshold_mb:.3g} MiB", f"cycle {knobs.cycle_time_ms:.3g} ms", *named])


def tried_lines(record: Autotune) -> list[str]:
    """How much was tried, whether it came to an end, and what was walked."""
    count = len(record.samples)
    line = record.samples[record.winner].line
    end = (
        f"finished: its last row selects line {line}"
        if record.finished
        else f"not finished: no last row selects a sample, the best so far is on line {line}; train longer for the rest"
    )
    steps = _STEPS_PER_SAMPLE * (count + _WARMUP_SAMPLES)
    lines = [
        f"{plural(count, 'sample')} of {plural(len(record.settings), 'setting')}; {end}",
        f"about {steps:,} training steps went into it, if {_STEPS_PER_SAMPLE} made a sample (Horovod's default)",
    ]
    if record.walked:
        lines.append(f"tried both ways: {', '.join(switch.name for switch in record.walked)}")
    if record.held:
        fixed = ", ".join(f"{_FIXED_WORDS.get(name, name)} {value:g}" for name, value in record.held.items())
        lines.append(f"the same in every row: {fixed}")
    outside = sum(each.out_of_range for each in record.settings)
    if outside:
        lines.append(f"{plural(outside, 'setting')} outside of the space it is said to search (0-64 MiB, 1-100 ms)")
    return lines


def noise_lines(record: Autotune) -> list[str]:
    """How large noise is and what it leaves of the lead."""
    noise = record.noise
    if noise is None or record.needed is None or record.luck is None or record.runner_up is None:
        return [f"the winner {verdict_words(record)}; a longer run would tell more"]
    settings = len(record.settings)
    from_repeats = (
        f"from settings that were sampled again, {plural(round(noise.freedom), 'repeat')}"
        if noise.source == "repeats"
        else "what a smooth surface through neighbouring settings leaves over: too few were sampled again"
    )
    lines = [
        f"samples of one setting scatter by {format_share(noise.relative)} (standard deviation; {from_repeats})",
        f"the winner {_lead_words(record.lead_next, 'the next setting')}"
        f" ({knob_words(record, record.settings[record.runner_up].knobs)}); it takes a lead of"
        f" {format_share(record.needed)} to beat the noise",
        f"it {_lead_words(record.lead_median, 'the median')}; the best of {settings:,} equal settings would lead by up"
        f" to {format_share(record.luck)} by luck",
    ]
    if record.alike and record.alike > 1:
        lines.append(f"{record.alike:,} of {plural(settings, 'setting')} cannot be told apart from the winner")
    return [*lines, *(_switch_words(switch) for switch in record.walked)]


def warning_lines(record: Autotune) -> list[str]:
    """What the log does not say, and where Horovod does not do what it says."""
    lines = []
    if not record.default_tried:
        older = "" if _NEWER in record.columns else "; before 0.21 the default was 64 MiB and 5 ms"
        outside = "" if "tensor_fusion_threshold" in record.held else " and lies outside of what autotune searches"
        lines.append(f"{DEFAULT_WORDS} was never tried{outside}: nothing here says that the choice beats it{older}")
    score, best = record.samples[record.winner].score, winning(record)
    if best.samples > 1:
        lines.append(
            f"the score that won, {score:.4g}, is the best of {best.samples} samples of its setting:"
            f" the lowest is {best.low:.4g}"
        )
    elif len(record.settings) > 1:
        lines.append(f"the score that won, {score:.4g}, is a single sample; it was never measured again")
    if record.cache_not_applied:
        lines.append(
            "it chose cache_enabled=0, and Horovod does not apply that to the rest of the training:"
            " set HOROVOD_CACHE_CAPACITY=0 to have it"
        )
    return lines


def verdict_words(record: Autotune) -> str:
    """What the winner does, in a clause: how far it leads, and whether that beats the noise."""
    if record.runner_up is None:
        return "is the only setting that was tried"
    leads = _lead_words(record.lead_next, "the next setting")
    if record.noise is None:
        return f"{leads}; the noise cannot be told from this few samples"
    end = {
        "clear": "it beat the noise",
        "among the best": "it is among the best, and did not beat the noise",
        "noise": "it did not beat the noise",
    }
    scatter = f"samples of one setting scatter by {format_share(record.noise.relative)}"
    return f"{leads} while {scatter}: {end[record.verdict]}"


def _lead_words(lead: float | None, over: str) -> str:
    if lead is None or lead >= 0:
        return f"leads {over} by {format_share(lead or 0.0)}"
    return f"is {format_share(-lead)} behind {over} on average"


def _switch_words(switch: Switch) -> str:
    gain = switch.gain
    if gain is None:
        return f"{switch.name}: no two settings differ in nothing else"
    sure = gain.interval == "t" and not gain.low <= 1 <= gain.high
    what = "more than noise" if sure else "no difference beyond the noise"
    return (
        f"{switch.name} on: {gain.value:.2f}x the score, {gain.low:.2f} to {gain.high:.2f} over "
        f"{plural(switch.pairs, 'pair')} of settings: {what}"
    )


def winning(record: Autotune) -> Setting:
    """The setting of the best single sample."""
    return record.settings[record.winning_setting]


def recommended(record: Autotune) -> Setting:
    """The setting to use."""
    return record.settings[record.recommended]


def answer(record: Autotune) -> Answer:
    """Whether the choice beat the noise, why, and what to set."""
    exports = "export " + " ".join(f"{name}={value}" for name, value in record.environment.items())
    return answered(sentence(record), noise_lines(record), do=exports, warnings=warning_lines(record))


def show(record: Autotune, console: Console, *, details: bool = False) -> None:
    """Whether the choice beat the noise and what to set; with `details` what was tried and the best settings too."""
    if not details:
        say(console, f"Horovod autotune log: {plain(record.file, 60)}: {tried_lines(record)[0]}")
        reasons(console, answer(record), "the best settings, what was tried and how noise was judged")
        return
    say(console, f"Horovod autotune log: {plain(record.file, 60)}", "bold")
    for line in tried_lines(record):
        bullet(console, line)
    if lost := record.lost.events:
        bullet(console, f"not read: {plural(lost, 'line')}: {plain(record.lost.reason, 200)}", "yellow")
    section(console, "The best settings: fusion, cycle, score in MB/s (higher is better)", [], setting_rows(record))
    section(console, "Did it beat the noise?", noise_lines(record))
    section(console, "Warnings", warning_lines(record), style="yellow")
    console.print()
    say(console, f"What to use: {knob_words(record, recommended(record).knobs)}", "bold")
    console.print(answer(record).do, markup=False, highlight=False, soft_wrap=True)
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
    usual = shlex.split(f"scalescope measure --np {np} --relative-to smallest --engine horovod")
    variables = [word for name, value in record.environment.items() for word in ("--env", f"{name}={value}")]
    ends = [["-o", f"results/{name}", "--", COMMAND] for name in ("autotuned", "default")]
    return [shlex.join([*usual, *variables, *ends[0]]), shlex.join([*usual, *ends[1]])]


def next_command_of(record: Autotune) -> str:
    """Both on one line."""
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
    numbers = {"fusion_threshold_mb": knobs.fusion_threshold_mb, "cycle_time_ms": knobs.cycle_time_ms}
    return {"knobs": {**numbers, **knobs.switches}, "score_bytes_per_s": 1e6 * score}


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
    return f"{setting.smoothed:.3g} ± {setting.smoothed * (setting.error or 0):.2g}" if setting.smoothed else ""


def _mark(record: Autotune, at: int) -> str:
    marks = ["chosen" if record.finished else "best"] if at == record.winning_setting else []
    return ", ".join([*marks, *(["use"] if at == record.recommended else [])]) or " "
