"""Horovod's autotune log: what was tried, which row to use, and whether it beat the noise."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from scalescope.engines.horovod import HOROVOD
from scalescope.logs.autotune_log import CYCLE, FUSION, Row, read_rows
from scalescope.logs.autotune_noise import MOST, noise_and_surface
from scalescope.records.autotune import (
    CYCLE_SPACE_MS,
    DEFAULT_CACHE,
    DEFAULT_CYCLE_MS,
    DEFAULT_FUSION_MB,
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

_SAME = 0.01  # Settings that are this near to each other are one: 1 % of the value, or this many ms or MiB
_ROUNDING = 1e-3  # How far beyond the space is still its edge
_MIB = 1 << 20
_DEFAULT = Knobs(fusion_threshold_mb=DEFAULT_FUSION_MB, cycle_time_ms=DEFAULT_CYCLE_MS, switches={})
_VARIABLES = {knob.name: knob.variable for knob in HOROVOD.knobs}


def read_autotune(path: Path) -> Autotune:
    """The log, judged; one line that names the next action when there is nothing to judge."""
    log = read_rows(path)
    samples = _samples(log.rows)
    fixed = _fixed(samples)
    settings, noise = _settings(samples, fixed)
    winner = max(range(len(samples)), key=lambda index: samples[index].score)
    best = settings[samples[winner].setting]
    others = [index for index in range(len(settings)) if index != samples[winner].setting]
    runner_up = max(others, key=lambda index: settings[index].score, default=None)
    lead_next = lead_median = needed = luck = alike = None
    verdict: Verdict = "unknown"
    if runner_up is not None:
        lead_next = best.score / settings[runner_up].score - 1
        lead_median = best.score / median(each.score for each in settings) - 1
    if noise:
        alike = sum(best.score / each.score - 1 <= _needed(noise, best, each) for each in settings)
    if noise and runner_up is not None and lead_next is not None and lead_median is not None:
        needed, luck = _needed(noise, best, settings[runner_up]), _luck(noise, best, len(settings))
        verdict = "clear" if lead_next > needed else "among the best" if lead_median > luck else "noise"
    walked = tuple(
        _switch(name, settings)
        for name in best.knobs.switches
        if len({each.knobs.switches[name] for each in settings}) > 1
    )
    recommended = max(range(len(settings)), key=lambda index: _careful_score(settings[index], noise))
    return Autotune(
        file=plain(path.name),
        columns=log.columns,
        samples=samples,
        settings=settings,
        finished=log.finished,
        winner=winner,
        runner_up=runner_up,
        recommended=recommended,
        walked=walked,
        held=fixed,
        noise=noise,
        lead_next=lead_next,
        lead_median=lead_median,
        needed=needed,
        luck=luck,
        alike=alike,
        verdict=verdict,
        default_tried=any(
            _same_place(each.knobs, _DEFAULT)
            and all(each.knobs.switches[name] == DEFAULT_SWITCHES[name] for name in each.knobs.switches)
            for each in settings
        ),
        cache_not_applied=log.finished
        and any(switch.name == "cache_enabled" for switch in walked)
        and not best.knobs.switches["cache_enabled"],
        environment=_environment(settings[recommended].knobs, {switch.name for switch in walked}),
        lost=log.lost,
    )


def _samples(rows: Sequence[Row]) -> tuple[Sample, ...]:
    """Rows with the number of their setting; settings that are practically equal are one."""
    samples: list[Sample] = []
    settings: list[Knobs] = []
    for row in rows:
        same = (
            at
            for at, known in enumerate(settings)
            if known.switches == row.knobs.switches and _same_place(known, row.knobs)
        )
        setting = next(same, len(settings))
        if setting == len(settings):
            settings.append(row.knobs)
        samples.append(Sample(line=row.line, setting=setting, knobs=row.knobs, score=row.score))
    return tuple(samples)


def _same_place(one: Knobs, other: Knobs) -> bool:
    """Compare cycle time and fusion threshold up to rounding."""
    cycles = one.cycle_time_ms, other.cycle_time_ms
    fusions = one.fusion_threshold_mb, other.fusion_threshold_mb
    return math.isclose(*cycles, rel_tol=_SAME, abs_tol=_SAME) and math.isclose(*fusions, rel_tol=_SAME, abs_tol=_SAME)


def _fixed(samples: Sequence[Sample]) -> dict[str, float]:
    """Columns that have one value in all of several rows."""
    columns = {FUSION: {each.knobs.fusion_threshold_mb for each in samples}}
    columns[CYCLE] = {each.knobs.cycle_time_ms for each in samples}
    columns |= {name: {float(each.knobs.switches[name]) for each in samples} for name in samples[0].knobs.switches}
    return {name: min(values) for name, values in columns.items() if len(samples) > 1 and len(values) == 1}


def _settings(samples: Sequence[Sample], fixed: dict[str, float]) -> tuple[tuple[Setting, ...], Noise | None]:
    """Every setting with what its samples and its neighbours say, and the noise."""
    groups: dict[int, list[float]] = {}
    for sample in samples:
        groups.setdefault(sample.setting, []).append(sample.score)
    by_score = sorted(samples, key=lambda sample: -sample.score)
    fitted = by_score[:: 1 + (len(by_score) - 1) // MOST]
    noise, surface = noise_and_surface(fitted, list(groups.values()))
    smoothed: dict[int, tuple[float, float]] = {}
    if surface:
        smoothed = {
            sample.setting: (math.exp(value), float(error))
            for sample, value, error in zip(fitted, surface.values, surface.errors, strict=True)
        }
    knobs = {sample.setting: sample.knobs for sample in reversed(samples)}
    settings = tuple(
        Setting(
            knobs=knobs[index],
            samples=len(scores),
            score=of_logarithms(scores).middle,
            low=min(scores),
            high=max(scores),
            smoothed=smoothed[index][0] if index in smoothed else None,
            error=smoothed[index][1] if index in smoothed else None,
            out_of_range=_is_outside(knobs[index], fixed),
        )
        for index, scores in groups.items()
    )
    return settings, noise


def _is_outside(knobs: Knobs, fixed: dict[str, float]) -> bool:
    """Check whether autotune itself went beyond its space; what a user fixed may lie anywhere."""
    values = ((CYCLE, knobs.cycle_time_ms, CYCLE_SPACE_MS), (FUSION, knobs.fusion_threshold_mb, FUSION_SPACE_MB))
    return any(
        name not in fixed and not low - _ROUNDING <= value <= high + _ROUNDING for name, value, (low, high) in values
    )


def _careful_score(setting: Setting, noise: Noise | None) -> float:
    """Return the score less one standard error; 0 for values that cannot be set in Horovod."""
    if setting.knobs.cycle_time_ms <= 0 or setting.knobs.fusion_threshold_mb < 0:
        return 0.0
    if setting.smoothed is not None and setting.error is not None:
        return setting.smoothed * math.exp(-setting.error)
    return setting.score * math.exp(-noise.relative / math.sqrt(setting.samples)) if noise else setting.score


def _needed(noise: Noise, first: Setting, second: Setting) -> float:
    """The lead of one setting over another from which on noise does not explain it."""
    error = noise.relative * math.sqrt(1 / first.samples + 1 / second.samples)
    return _as_lead(t_width(noise.freedom, MEASURED) * error)


def _luck(noise: Noise, best: Setting, settings: int) -> float:
    """Lead of the best of equal settings over their median that chance explains, with one-sided confidence."""
    error = noise.relative / math.sqrt(best.samples)
    return _as_lead(t_width(noise.freedom, 2 * MEASURED ** (1 / settings) - 1) * error)


def _as_lead(logarithm: float) -> float:
    return math.expm1(min(logarithm, 20.0))


def _switch(name: str, settings: Sequence[Setting]) -> Switch:
    """Gain of a switch, over pairs of settings that differ in nothing else."""
    by_others: dict[tuple[bool, ...], list[Setting]] = {}
    for each in settings:
        others = tuple(value for other, value in each.knobs.switches.items() if other != name)
        by_others.setdefault(others, []).append(each)
    ratios = []
    for group in by_others.values():
        usual = [each for each in group if not each.knobs.switches[name]]
        switched = [each for each in group if each.knobs.switches[name]]
        ratios += [on.score / off.score for on in switched for off in usual if _same_place(on.knobs, off.knobs)]
    if not ratios:
        return Switch(name=name, gain=None, pairs=0)
    found = of_logarithms(ratios)
    gain = Estimate(
        value=found.middle, low=found.low, high=found.high, interval=found.kind, count=len(ratios), over="blocks"
    )
    return Switch(name=name, gain=gain, pairs=len(ratios))


def _environment(knobs: Knobs, walked: set[str]) -> dict[str, str]:
    """Variables that set these knobs, rounded to three digits; switches only where they say something."""
    fusion = float(f"{max(knobs.fusion_threshold_mb, 0.0):.3g}")
    variables = {
        _VARIABLES["fusion_threshold_mb"]: str(round(fusion * _MIB)),
        _VARIABLES["cycle_time_ms"]: f"{max(knobs.cycle_time_ms, 0.0):.3g}",
    }
    for name, value in knobs.switches.items():
        if name in walked or value != DEFAULT_SWITCHES[name]:
            knob, amount = ("cache_capacity", DEFAULT_CACHE) if name == "cache_enabled" else (name, 1)
            variables[_VARIABLES[knob]] = str(amount if value else 0)
    return variables
