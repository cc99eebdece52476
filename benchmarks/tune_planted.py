"""Planted landscapes over real noise: how often a setting that is no better wins, and one that is better is found."""

import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks.tune_recorded import ON_REQUEST, TOLERANCE, TRANSFORMER, Draw, Trained, decide, while_training
from scalescope.records.profile import WorkloadSpec
from scalescope.records.tuning import TuneRequest
from scalescope.tuner.search import ONLINE
from scalescope.tuner.space import Space

FOLDER = Path("results") / "bench" / "tune_planted"
SMALL = TuneRequest(
    workload=WorkloadSpec(model="benchmarks/models.py:small_tensors", inputs=("96",)), np=2, batch=16, search=ON_REQUEST
)
TRAININGS = (SMALL, TuneRequest(workload=TRANSFORMER, np=2, batch=16, search=ON_REQUEST))
SECONDS = 150.0  # For so long the steps of each are noted, all with the default
_AT_ONCE, _STEPS = 5, 50
SLOWER = (0.0, 0.02, 0.05, 0.1, 0.2)  # Every other setting is slower by 0 to so much
FASTER = (0.05, 0.1, 0.15, 0.2, 0.3)
CASES = 4  # For each of them: 20 planted cases of either kind
_PRIOR_ERROR = 0.1
_REACH = 1.5  # Two values of a knob or one switch is 1: how far around the planted best setting others gain too
_FAR_SLOWER = 0.05


class Noise(NamedTuple):
    """Real steps of one setting in their order, and the space that its training has."""

    space: Space
    step_s: list[float]


class Decided(NamedTuple):
    """What one planted case came to."""

    wins: bool
    low: float  # Lower end of the interval, where another setting wins
    true_gain: float
    best_gain: float
    samples: int


def tune_planted() -> list[dict[str, Any]]:
    """The real steps, then every planted case on a stretch of them; half of the cases have a prior."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    noises = [_noise_of(request) for request in TRAININGS]
    kinds = (("others at most {:.0%} slower", SLOWER, slower), ("one {:.0%} faster", FASTER, faster))
    rows = []
    for text, sizes, plant in kinds:
        found = [_decided(noises, plant, size) for size in sizes]
        rows += [_row(text.format(size), each) for size, each in zip(sizes, found, strict=True)]
        rows.append(_row("together", [case for each in found for case in each]))
    return [*rows, {**dict.fromkeys(rows[0]), "planted": "goal", "others win": "<= 1 of 20", "lower end %": "> -3"}]


def _decided(noises: list[Noise], plant: "Plant", size: float) -> list[Decided]:
    """Cases of one kind."""
    found = []
    for case in range(CASES):
        chance = random.Random(f"{plant.__name__} {size} {case}")
        noise = noises[case % len(noises)]
        factors = plant(noise.space, size, chance)
        typical = median(noise.step_s)
        prior = [typical * factor * math.exp(chance.gauss(0, _PRIOR_ERROR)) for factor in factors]
        with_prior = case // len(noises) % 2 == 0
        draw = _stretch(noise, factors, chance.randrange(len(noise.step_s)))
        outcome, samples = decide(noise.space, prior if with_prior else None, ONLINE, draw)
        wins = outcome.decision == "use"
        cell = noise.space.settings.index(outcome.values)
        low = outcome.gain.low if wins and outcome.gain else math.nan
        found.append(Decided(wins, low, 1 / factors[cell] - 1, 1 / min(factors) - 1, samples))
    return found


def _row(planted: str, found: list[Decided]) -> dict[str, Any]:
    won = [case for case in found if case.wins]
    return {
        "planted": planted,
        "cases": len(found),
        "others win": len(won),
        "lower end %": 100 * min(case.low for case in won) if won else None,
        "true gain, mean %": 100 * fmean(case.true_gain for case in found),
        "lowest %": 100 * min(case.true_gain for case in found),
        "best there is, mean %": 100 * fmean(case.best_gain for case in found),
        "within 2 % of it": sum(case.true_gain >= case.best_gain - TOLERANCE for case in won),
        "samples, median": median(case.samples for case in found),
    }


# Of every setting: how many times the default's step it takes.
Plant = Callable[[Space, float, random.Random], list[float]]


def slower(space: Space, size: float, chance: random.Random) -> list[float]:
    """The default is the best, or as good as all."""
    return [1.0, *(1 + size * chance.random() for _ in space.settings[1:])]


def faster(space: Space, size: float, chance: random.Random) -> list[float]:
    """One setting is faster by so much, those near to it by less, those far from it up to 5 % slower."""
    places = [_place(space, cell) for cell in range(len(space.settings))]
    far = [cell for cell, place in enumerate(places) if math.dist(place, places[0]) >= _REACH]
    best = places[chance.choice(far)]
    factors = []
    for place in places:
        near = math.exp(-((math.dist(place, best) / _REACH) ** 2))
        factors.append((1 + _FAR_SLOWER * chance.random() * (1 - near)) / (1 + size * near))
    return [factor / factors[0] for factor in factors]


def _place(space: Space, cell: int) -> list[float]:
    complete = space.complete(space.settings[cell])
    found = []
    for knob in space.knobs:
        at = knob.values.index(complete[knob.name])
        found.append(at / 2 if knob.logarithmic else float(at))
    return found


def _stretch(noise: Noise, factors: list[float], start: int) -> Draw:
    """Real steps from there on, each block as many as are asked for, made longer by what is planted."""
    position = start

    def draw(cell: int, steps: int) -> list[float]:
        nonlocal position
        at = [(position + ONLINE.discard + step) % len(noise.step_s) for step in range(steps)]
        position += ONLINE.discard + steps
        return [noise.step_s[each] * factors[cell] for each in at]

    return draw


def _noise_of(request: TuneRequest) -> Noise:
    """Blocks of the default one after the other, so that drifts are in them."""
    noise: Noise | None = None

    def work(trained: Trained) -> None:
        nonlocal noise
        noise = Noise(trained.space, [])
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            for block in trained.blocks([{}] * _AT_ONCE, _STEPS):
                noise.step_s.extend(block)

    while_training(request, FOLDER / "training", work)
    assert noise
    return noise
