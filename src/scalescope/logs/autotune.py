"""Horovod's autotune log: what was tried, which setting to use, and whether autotune's choice beat the noise."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from scalescope.engines.horovod import DEFAULT_CACHE, DEFAULT_CYCLE_MS, DEFAULT_FUSION_MB, HOROVOD
from scalescope.logs.autotune_log import CYCLE, FUSION, place_of, read_samples
from scalescope.logs.autotune_noise import MOST, noise_and_surface
from scalescope.records.autotune import DEFAULT_SWITCHES, Autotune, Knobs, Noise, Sample, Setting, Switch, Verdict
from scalescope.stats import MEASURED, of_logarithms, t_width
from scalescope.text import plain

_VARIABLES = {knob.name: knob.variable for knob in HOROVOD.knobs}


def read_autotune(path: Path) -> Autotune:
    """The log, judged.

    Raises:
        UsageError: There is nothing to judge; it names the next action.
    """
    log = read_samples(path)
    samples = log.samples
    settings, noise = _settings(samples)
    winner = max(range(len(samples)), key=lambda at: samples[at].score)
    best_at = samples[winner].setting
    best = settings[best_at]
    others = [at for at in range(len(settings)) if at != best_at]
    runner_up = max(others, key=lambda at: settings[at].score, default=None)
    lead_next = lead_median = needed = luck = None
    verdict: Verdict = "unknown"
    if runner_up is not None:
        lead_next = best.score / settings[runner_up].score - 1
        lead_median = best.score / median(each.score for each in settings) - 1
        if noise:
            # Noise does not explain a larger lead over the next one, nor one over the median of equal settings.
            error = noise.relative * math.sqrt(1 / best.samples + 1 / settings[runner_up].samples)
            needed = _as_lead(t_width(noise.freedom, MEASURED) * error)
            level = 2 * MEASURED ** (1 / len(settings)) - 1  # one-sided, of the best of all settings
            luck = _as_lead(t_width(noise.freedom, level) * noise.relative / math.sqrt(best.samples))
            verdict = "clear" if lead_next > needed else "among the best" if lead_median > luck else "noise"
    columns = [
        {
            FUSION: each.knobs.fusion_threshold_mb,
            CYCLE: each.knobs.cycle_time_ms,
            **{name: float(value) for name, value in each.knobs.switches.items()},
        }
        for each in samples
    ]
    held = {name: value for name, value in columns[0].items() if all(each[name] == value for each in columns)}
    walked = [name for name in best.knobs.switches if name not in held]
    recommended = max(range(len(settings)), key=lambda at: _careful_score(settings[at], noise))
    return Autotune(
        file=plain(path.name),
        columns=log.columns,
        samples=tuple(samples),
        settings=settings,
        finished=log.finished,
        winner=winner,
        runner_up=runner_up,
        recommended=recommended,
        walked=tuple(Switch(name=name) for name in walked),
        held=held if len(samples) > 1 else {},
        noise=noise,
        lead_next=lead_next,
        lead_median=lead_median,
        needed=needed,
        luck=luck,
        verdict=verdict,
        default_tried=any(_is_default(each.knobs) for each in settings),
        cache_not_applied=log.finished and "cache_enabled" in walked and not best.knobs.switches["cache_enabled"],
        environment=_environment(settings[recommended].knobs, walked),
        lost=log.lost,
    )


def _settings(samples: Sequence[Sample]) -> tuple[tuple[Setting, ...], Noise | None]:
    """Every setting with what its samples and its neighbours say, and the noise."""
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.setting, []).append(sample)
    by_score = sorted(samples, key=lambda sample: -sample.score)
    fitted = by_score[:: 1 + (len(by_score) - 1) // MOST]
    noise, surface = noise_and_surface(fitted, [[each.score for each in group] for group in groups.values()])
    smoothed = {sample.setting: likely for sample, likely in zip(fitted, surface, strict=False)}
    settings = []
    for at, group in groups.items():
        scores, likely = [each.score for each in group], smoothed.get(at)
        settings.append(
            Setting(
                knobs=group[0].knobs,
                samples=len(scores),
                score=of_logarithms(scores).middle,
                low=min(scores),
                high=max(scores),
                smoothed=likely.score if likely else None,
                error=likely.error if likely else None,
            )
        )
    return tuple(settings), noise


def _is_default(knobs: Knobs) -> bool:
    switches = {name: DEFAULT_SWITCHES[name] for name in knobs.switches}
    default = Knobs(fusion_threshold_mb=DEFAULT_FUSION_MB, cycle_time_ms=DEFAULT_CYCLE_MS, switches=switches)
    return place_of(knobs) == place_of(default)


def _careful_score(setting: Setting, noise: Noise | None) -> float:
    """The score less one standard error."""
    if setting.smoothed is not None and setting.error is not None:
        return setting.smoothed * math.exp(-setting.error)
    return setting.score * math.exp(-noise.relative / math.sqrt(setting.samples)) if noise else setting.score


def _as_lead(logarithm: float) -> float:
    return math.expm1(min(logarithm, 20.0))


def _environment(knobs: Knobs, walked: Sequence[str]) -> dict[str, str]:
    """Variables that set these knobs, rounded to three digits; switches only where they say something."""
    fusion_mb = float(f"{knobs.fusion_threshold_mb:.3g}")
    variables = {
        _VARIABLES["fusion_threshold_mb"]: str(round(fusion_mb * (1 << 20))),
        _VARIABLES["cycle_time_ms"]: f"{knobs.cycle_time_ms:.3g}",
    }
    for name, value in knobs.switches.items():
        if name in walked or value != DEFAULT_SWITCHES[name]:
            knob, amount = ("cache_capacity", DEFAULT_CACHE) if name == "cache_enabled" else (name, 1)
            variables[_VARIABLES[knob]] = str(amount if value else 0)
    return variables
