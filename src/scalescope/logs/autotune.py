"""Horovod's autotune log: what was tried, which setting to use, and whether autotune's choice beat the noise."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from scalescope.engines.horovod import DEFAULT_CACHE, DEFAULT_CYCLE_MS, DEFAULT_FUSION_MB, HOROVOD
from scalescope.logs.autotune_log import CYCLE, FUSION, read_samples, same_place
from scalescope.logs.autotune_noise import MOST, noise_and_surface
from scalescope.records.autotune import (
    CYCLE_SPACE_MS,
    DEFAULT_SWITCHES,
    FUSION_SPACE_MB,
    Autotune,
    Knobs,
    Noise,
    Sample,
    Setting,
    Switch,
    Verdict,
)
from scalescope.records.scaling import Estimate
from scalescope.stats import MEASURED, of_logarithms, t_width
from scalescope.text import plain

_ROUNDING = 1e-3  # How far beyond the space is still its edge
_DEFAULT = Knobs(fusion_threshold_mb=DEFAULT_FUSION_MB, cycle_time_ms=DEFAULT_CYCLE_MS, switches={})
_VARIABLES = {knob.name: knob.variable for knob in HOROVOD.knobs}


def read_autotune(path: Path) -> Autotune:
    """The log, judged.

    Raises:
        UsageError: There is nothing to judge; it names the next action.
    """
    log = read_samples(path)
    samples, held = log.samples, _held(log.samples)
    settings, noise = _settings(samples, held)
    winner = max(range(len(samples)), key=lambda at: samples[at].score)
    best_at = samples[winner].setting
    best = settings[best_at]
    others = [at for at in range(len(settings)) if at != best_at]
    runner_up = max(others, key=lambda at: settings[at].score, default=None)
    lead_next = lead_median = needed = luck = alike = None
    verdict: Verdict = "unknown"
    if noise:
        alike = sum(best.score / each.score - 1 <= _needed_lead(noise, best, each) for each in settings)
    if runner_up is not None:
        lead_next = best.score / settings[runner_up].score - 1
        lead_median = best.score / median(each.score for each in settings) - 1
        if noise:
            needed, luck = _needed_lead(noise, best, settings[runner_up]), _lucky_lead(noise, best, len(settings))
            verdict = "clear" if lead_next > needed else "among the best" if lead_median > luck else "noise"
    recommended = max(range(len(settings)), key=lambda at: _careful_score(settings[at], noise))
    walked = [name for name in best.knobs.switches if name not in held and len(samples) > 1]
    cache_off = "cache_enabled" in walked and not best.knobs.switches["cache_enabled"]
    return Autotune(
        file=plain(path.name),
        columns=log.columns,
        samples=tuple(samples),
        settings=settings,
        finished=log.finished,
        winner=winner,
        runner_up=runner_up,
        recommended=recommended,
        walked=tuple(_switch(name, settings) for name in walked),
        held=held,
        noise=noise,
        lead_next=lead_next,
        lead_median=lead_median,
        needed=needed,
        luck=luck,
        alike=alike,
        verdict=verdict,
        default_tried=any(_is_default(each.knobs) for each in settings),
        cache_not_applied=log.finished and cache_off,
        environment=_environment(settings[recommended].knobs, walked),
        lost=log.lost,
    )


def _held(samples: Sequence[Sample]) -> dict[str, float]:
    """Columns that have one value in all of several rows."""
    if len(samples) < 2:
        return {}
    columns = {FUSION: {each.knobs.fusion_threshold_mb for each in samples}}
    columns[CYCLE] = {each.knobs.cycle_time_ms for each in samples}
    for name in samples[0].knobs.switches:
        columns[name] = {float(each.knobs.switches[name]) for each in samples}
    return {name: min(values) for name, values in columns.items() if len(values) == 1}


def _settings(samples: Sequence[Sample], held: dict[str, float]) -> tuple[tuple[Setting, ...], Noise | None]:
    """Every setting with what its samples and its neighbours say, and the noise."""
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.setting, []).append(sample)
    by_score = sorted(samples, key=lambda sample: -sample.score)
    fitted = by_score[:: 1 + (len(by_score) - 1) // MOST]
    noise, surface = noise_and_surface(fitted, [[each.score for each in group] for group in groups.values()])
    smoothed: dict[int, tuple[float, float]] = {}
    if surface:
        for sample, value, error in zip(fitted, surface.values, surface.errors, strict=True):
            smoothed[sample.setting] = math.exp(value), float(error)
    settings = []
    for at, group in groups.items():
        scores = [each.score for each in group]
        value, error = smoothed.get(at, (None, None))
        settings.append(
            Setting(
                knobs=group[0].knobs,
                samples=len(scores),
                score=of_logarithms(scores).middle,
                low=min(scores),
                high=max(scores),
                smoothed=value,
                error=error,
                out_of_range=_is_outside(group[0].knobs, held),
            )
        )
    return tuple(settings), noise


def _is_outside(knobs: Knobs, held: dict[str, float]) -> bool:
    """True if autotune itself went beyond its space; what a user fixed may lie anywhere."""
    values = ((CYCLE, knobs.cycle_time_ms, CYCLE_SPACE_MS), (FUSION, knobs.fusion_threshold_mb, FUSION_SPACE_MB))
    return any(
        name not in held and not low - _ROUNDING <= value <= high + _ROUNDING for name, value, (low, high) in values
    )


def _is_default(knobs: Knobs) -> bool:
    usual = {name: DEFAULT_SWITCHES[name] for name in knobs.switches}
    return knobs.switches == usual and same_place(knobs, _DEFAULT)


def _careful_score(setting: Setting, noise: Noise | None) -> float:
    """The score less one standard error; 0 for values that cannot be set in Horovod."""
    if setting.knobs.cycle_time_ms <= 0 or setting.knobs.fusion_threshold_mb < 0:
        return 0.0
    if setting.smoothed is not None and setting.error is not None:
        return setting.smoothed * math.exp(-setting.error)
    return setting.score * math.exp(-noise.relative / math.sqrt(setting.samples)) if noise else setting.score


def _needed_lead(noise: Noise, first: Setting, second: Setting) -> float:
    """The lead of one setting over another from which on noise does not explain it."""
    error = noise.relative * math.sqrt(1 / first.samples + 1 / second.samples)
    return _as_lead(t_width(noise.freedom, MEASURED) * error)


def _lucky_lead(noise: Noise, best: Setting, settings: int) -> float:
    """The lead of the best of equal settings over their median that chance explains, with one-sided confidence."""
    error = noise.relative / math.sqrt(best.samples)
    return _as_lead(t_width(noise.freedom, 2 * MEASURED ** (1 / settings) - 1) * error)


def _as_lead(logarithm: float) -> float:
    return math.expm1(min(logarithm, 20.0))


def _switch(name: str, settings: Sequence[Setting]) -> Switch:
    """The gain of a switch, over pairs of settings that differ in nothing else."""
    by_others: dict[tuple[bool, ...], tuple[list[Setting], list[Setting]]] = {}
    for each in settings:
        others = tuple(value for other, value in each.knobs.switches.items() if other != name)
        by_others.setdefault(others, ([], []))[each.knobs.switches[name]].append(each)
    ratios = []
    for usual, switched in by_others.values():
        ratios += [on.score / off.score for on in switched for off in usual if same_place(on.knobs, off.knobs)]
    if not ratios:
        return Switch(name=name, gain=None, pairs=0)
    found = of_logarithms(ratios)
    gain = Estimate(
        value=found.middle, low=found.low, high=found.high, interval=found.kind, count=len(ratios), over="blocks"
    )
    return Switch(name=name, gain=gain, pairs=len(ratios))


def _environment(knobs: Knobs, walked: Sequence[str]) -> dict[str, str]:
    """Variables that set these knobs, rounded to three digits; switches only where they say something."""
    fusion_mb = float(f"{max(knobs.fusion_threshold_mb, 0.0):.3g}")
    variables = {
        _VARIABLES["fusion_threshold_mb"]: str(round(fusion_mb * (1 << 20))),
        _VARIABLES["cycle_time_ms"]: f"{max(knobs.cycle_time_ms, 0.0):.3g}",
    }
    for name, value in knobs.switches.items():
        if name in walked or value != DEFAULT_SWITCHES[name]:
            knob, amount = ("cache_capacity", DEFAULT_CACHE) if name == "cache_enabled" else (name, 1)
            variables[_VARIABLES[knob]] = str(amount if value else 0)
    return variables
