"""A log of Horovod's autotune: what it chose, whether that beat the noise, and what to measure instead."""

import shlex
from typing import Any

import msgspec

from scalescope.engines.horovod import DEFAULT_CYCLE_MS, DEFAULT_FUSION_MB
from scalescope.records.autotune import DEFAULT_SWITCHES, Autotune, Knobs, Setting
from scalescope.show.document import Document, Section, charted
from scalescope.text import COMMAND, plain, plural
from scalescope.units import format_share

_DEFAULT = f"the default ({DEFAULT_FUSION_MB:g} MiB, {DEFAULT_CYCLE_MS:g} ms)"
SWITCHES = {
    "hierarchical_allreduce": "hierarchical allreduce",
    "hierarchical_allgather": "hierarchical allgather",
    "torus_allreduce": "torus allreduce",
    "cache_enabled": "cache",
}


def document(record: Autotune) -> Document:
    """The choice, the noise it was made in, and variables that set what is recommended."""
    line = record.samples[record.winner].line
    end = (
        f"its last row selects line {line}"
        if record.finished
        else f"not finished: line {line} is the best so far, train longer for the rest"
    )
    read = f"{plain(record.file, 60)}: {plural(len(record.samples), 'sample')} of "
    read += f"{plural(len(record.settings), 'setting')}; {end}"
    noise = _noise(record)
    return Document(
        answer=sentence(record),
        why=[read, *noise],
        do="export " + " ".join(f"{name}={value}" for name, value in record.environment.items()),
        warnings=_warnings(record),
        sections=charted("autotune", [Section("autotune", "Horovod's autotune log", facts=[read, *noise])], record),
        json=lambda: _json(record),
    )


def sentence(record: Autotune) -> str:
    """Say whether the choice beat the noise, and what to measure instead of believing it."""
    chose = "Autotune chose" if record.finished else "Autotune did not finish; its best so far is"
    told = f"{chose} {knob_words(record, record.settings[record.winning_setting].knobs)}, which {verdict_words(record)}"
    steadier = f"the steadier {knob_words(record, record.settings[record.recommended].knobs)}"
    use = "it" if record.recommended == record.winning_setting else steadier
    untried = "" if record.default_tried else ", which was never tried"
    return f"{told}; measure {use} against {_DEFAULT}{untried}."


def verdict_words(record: Autotune) -> str:
    """Say how far the winner leads, and whether that beats the noise."""
    if record.runner_up is None:
        return "is the only setting that was tried"
    leads = _lead(record.lead_next, "the next setting")
    if record.noise is None:
        return f"{leads}; the noise cannot be told from this few samples"
    end = {
        "clear": "it beat the noise",
        "among the best": "it is among the best, and did not beat the noise",
        "noise": "it did not beat the noise",
    }
    return (
        f"{leads} while samples of one setting scatter by {format_share(record.noise.relative)}: {end[record.verdict]}"
    )


def knob_words(record: Autotune, knobs: Knobs) -> str:
    """`fusion 4 MiB, cycle 5 ms, cache on`; switches where they were tried both ways or are unusual."""
    walked = {switch.name for switch in record.walked}
    named = [
        f"{SWITCHES[name]} {'on' if value else 'off'}"
        for name, value in knobs.switches.items()
        if name in walked or value != DEFAULT_SWITCHES[name]
    ]
    return ", ".join([f"fusion {knobs.fusion_threshold_mb:.3g} MiB", f"cycle {knobs.cycle_time_ms:.3g} ms", *named])


def _lead(lead: float | None, over: str) -> str:
    if lead is None or lead >= 0:
        return f"leads {over} by {format_share(lead or 0.0)}"
    return f"is {format_share(-lead)} behind {over} on average"


def _noise(record: Autotune) -> list[str]:
    """Say how large noise is and what it leaves of the lead."""
    noise = record.noise
    if noise is None or record.needed is None or record.luck is None or record.runner_up is None:
        return []  # the sentence says so
    source = "what a smooth surface through neighbouring settings leaves over"
    if noise.source == "repeats":
        source = f"from settings that were sampled again, {plural(round(noise.freedom), 'repeat')}"
    return [
        f"samples of one setting scatter by {format_share(noise.relative)} (standard deviation; {source}); it takes a "
        f"lead of {format_share(record.needed)} to beat that",
        f"the winner {_lead(record.lead_median, 'the median')}, and the best of {len(record.settings)} equal settings "
        f"would lead by up to {format_share(record.luck)} by luck",
    ]


def _warnings(record: Autotune) -> list[str]:
    """List what the log does not say, and where Horovod does not do what it says."""
    lines = []
    if not record.default_tried:
        lines.append(f"{_DEFAULT} was never tried: nothing here says that the choice beats it")
    score, best = record.samples[record.winner].score, record.settings[record.winning_setting]
    if best.samples > 1:
        lines.append(
            f"the score that won, {score:.4g}, is the best of {best.samples} samples: the lowest is {best.low:.4g}"
        )
    elif len(record.settings) > 1:
        lines.append(f"the score that won, {score:.4g}, is a single sample; it was never measured again")
    if record.cache_not_applied:
        lines.append(
            "it chose cache_enabled=0, and Horovod does not apply that to the rest of the training:"
            " set HOROVOD_CACHE_CAPACITY=0 to have it"
        )
    if record.lost.events:
        lines.append(f"not read: {plural(record.lost.events, 'line')}: {plain(record.lost.reason, 200)}")
    return lines


def next_commands(record: Autotune) -> list[str]:
    """Commands to type next: the recommended setting and the default, measured alike."""
    usual = shlex.split("scalescope measure --np 2 --relative-to smallest --engine horovod")
    variables = [word for name, value in record.environment.items() for word in ("--env", f"{name}={value}")]
    ends = [["-o", f"results/{name}", "--", COMMAND] for name in ("autotuned", "default")]
    return [shlex.join([*usual, *variables, *ends[0]]), shlex.join([*usual, *ends[1]])]


_AS_THEY_ARE = (
    "finished",
    "environment",
    "verdict",
    "noise",
    "walked",
    "held",
    "default_tried",
    "cache_not_applied",
    "lost",
)  # Fields whose JSON has their name


def _json(record: Autotune) -> dict[str, Any]:
    """Knobs as Horovod names them, scores in bytes per second, leads as fractions."""

    def scored(knobs: Knobs, score: float) -> dict[str, Any]:
        numbers = {"fusion_threshold_mb": knobs.fusion_threshold_mb, "cycle_time_ms": knobs.cycle_time_ms}
        return {"knobs": {**numbers, **knobs.switches}, "score_bytes_per_s": 1e6 * score}

    def of_setting(setting: Setting) -> dict[str, Any]:
        return {
            **scored(setting.knobs, setting.score),
            "low_bytes_per_s": 1e6 * setting.low,
            "high_bytes_per_s": 1e6 * setting.high,
            "samples": setting.samples,
            "likely_bytes_per_s": None if setting.smoothed is None else 1e6 * setting.smoothed,
            "error": setting.error,
            "out_of_range": setting.out_of_range,
        }

    winner, settings = record.samples[record.winner], [of_setting(each) for each in record.settings]
    return {
        "kind": "autotune log",
        "what": record.file,
        **{name: msgspec.to_builtins(getattr(record, name)) for name in _AS_THEY_ARE},
        "samples": len(record.samples),
        "settings": len(record.settings),
        "choice": {"line": winner.line, **scored(winner.knobs, winner.score)},
        "runner_up": None if record.runner_up is None else settings[record.runner_up],
        "recommended": settings[record.recommended],
        "beat_the_noise": None if record.verdict == "unknown" else record.verdict == "clear",
        "lead_over_next": record.lead_next,
        "lead_needed": record.needed,
        "lead_over_median": record.lead_median,
        "lead_by_luck": record.luck,
        "settings_alike": record.alike,
        "out_of_range": sum(each.out_of_range for each in record.settings),
        "tried": [
            {"line": each.line, "setting": each.setting, **scored(each.knobs, each.score)} for each in record.samples
        ],
        "by_setting": settings,
        "next": next_commands(record),
    }
