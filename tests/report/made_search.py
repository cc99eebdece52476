"""A search for better knobs, made by hand over a known surface: how a record of one comes about."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import msgspec

from scalescope.records.tuning import Cell, Gain, Method, Sample, SearchedKnob, Tuning, TuningCost, Values

Surface = Callable[[Values], float]


def space(knobs: Sequence[SearchedKnob]) -> list[Values]:
    """Every combination; what stays as it is, is absent."""
    settings: list[Values] = []
    for chosen in product(*(knob.values for knob in knobs)):
        named = zip(knobs, chosen, strict=True)
        setting = {knob.name: value for knob, value in named if value is not None and value != knob.default}
        settings.append(setting)
    return sorted(settings, key=len)


def made(
    knobs: Sequence[SearchedKnob],
    surface: Surface,
    tried: Sequence[Values],
    *,
    noise: float = 0.015,
    pairs: int = 6,
    method: Method = "online",
    prior_error: float | None = 0.15,
    steps: int = 10,
    cut_above: float = 1.5,
    start_s: float = 6.0,
    complete: bool = True,
    **more: Any,
) -> Tuning:
    """A search over `tried` on this surface, the default first, with a confirmation of the fastest of them."""
    chance = random.Random(7)
    default_s = surface({})
    predicted: Surface | None = None
    if prior_error is not None:
        predicted = lambda values: surface(values) ** (1 - prior_error) * default_s**prior_error  # noqa: E731
    samples: list[Sample] = []

    def take(values: Values, phase: Any, pair: int | None = None, decision: str = "") -> Sample:
        true = surface(values)
        cut = phase == "search" and true > cut_above * default_s
        count = 3 if cut else steps
        error = true * noise / math.sqrt(count / 3)
        step = true + chance.gauss(0, error)
        other = 0 if method == "offline" else 2 if samples else 0
        between = start_s if method == "offline" else 0.004
        sample = Sample(
            index=len(samples),
            phase=phase,
            pair=pair,
            values=values,
            predicted_s=predicted(values) if predicted else None,
            step_s=step,
            error_s=error,
            steps=count,
            other_steps=other,
            seconds=(count + other) * step + between,
            switch_s=0.004,
            cut=cut,
            decision="cut: clearly worse" if cut else decision,
        )
        samples.append(sample)
        return sample

    take({}, "default", decision="what others are compared with")
    for values in tried:
        fastest = min(sample.step_s or 0.0 for sample in samples)
        sample = take(values, "search")
        better = not sample.cut and sample.step_s is not None and sample.step_s < fastest
        told = "best so far" if better else sample.decision or "not better"
        samples[-1] = msgspec.structs.replace(sample, decision=told)
    known = [sample for sample in samples[1:] if not sample.cut]
    finalist = min(known, key=lambda sample: sample.step_s or 0.0).values if known and pairs else {}
    ratios = []
    for pair in range(pairs):
        order = ({}, finalist) if pair % 2 else (finalist, {})
        seen = {bool(values): take(values, "confirm", pair).step_s or 1.0 for values in order}
        ratios.append(math.log(seen[False] / seen[True]))
    gain = _gain(ratios) if ratios else None
    use = bool(complete and gain and gain.low > 0)
    winner_s = surface(finalist) if use else None
    fields: dict[str, Any] = {
        "what": "train.py",
        "command": ("python", "train.py"),
        "engine": "ddp",
        "np": 4,
        "nodes": 2,
        "created": "2026-03-01T12:00:00",
        "scalescope": "0.1",
        "prior": "the simulator, from this training's own survey" if predicted else "no survey: the search began blind",
        "reason": "no candidate is expected to gain more than the noise",
        "complete": complete,
    }
    return Tuning(
        **{**fields, **more},
        knobs=tuple(knobs),
        method=method,
        cells=tuple(_cell(values, surface, predicted, samples) for values in space(knobs)),
        samples=tuple(samples),
        default_step_s=default_s,
        winner_step_s=winner_s,
        decision="use" if use else "keep_default",
        values=finalist if use else {},
        finalist=finalist,
        gain=gain,
        cost=cost_of(samples, default_s, winner_s, method),
    )


def _gain(ratios: Sequence[float]) -> Gain:
    mean = sum(ratios) / len(ratios)
    spread = math.sqrt(sum((ratio - mean) ** 2 for ratio in ratios) / max(1, len(ratios) - 1))
    half = 2.5 * spread / math.sqrt(len(ratios))
    return Gain(
        value=math.exp(mean) - 1,
        low=math.exp(mean - half) - 1,
        high=math.exp(mean + half) - 1,
        pairs=len(ratios),
        level=0.95,
    )


def _cell(values: Values, surface: Surface, predicted: Surface | None, samples: Sequence[Sample]) -> Cell:
    measured = any(sample.values == values for sample in samples)
    return Cell(
        values=values,
        predicted_s=predicted(values) if predicted else None,
        expected_s=surface(values) * (1 if measured else 1.02),
        error=0.01 if measured else 0.06,
    )


def cost_of(samples: Sequence[Sample], default_s: float, winner_s: float | None, method: Method) -> TuningCost:
    def steps(confirm: bool) -> int:
        return sum(each.steps + each.other_steps for each in samples if (each.phase == "confirm") is confirm)

    seconds = sum(sample.seconds for sample in samples)
    lost = seconds - (0.0 if method == "offline" else default_s * (steps(False) + steps(True)))
    return TuningCost(
        warmup_steps=20 if method == "online" else 0,
        search_steps=steps(False),
        confirm_steps=steps(True),
        seconds=seconds,
        lost_s=lost,
        worst=max((sample.step_s or 0.0) / default_s for sample in samples),
        break_even_steps=max(0, math.ceil(lost / (default_s - winner_s))) if winner_s else None,
    )
