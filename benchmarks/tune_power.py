"""How often a setting wins that gains something or nothing, by how much pairs vary, and what a winner's gain reads."""

import math
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

import numpy as np

from scalescope.records.tuning import SearchedKnob, Values
from scalescope.tuner.blocks import Block, midmean
from scalescope.tuner.confirmation import Lead, verdict
from scalescope.tuner.search import OFFLINE, ONLINE
from scalescope.tuner.space import Space
from scalescope.tuner.tuner import Tuner

Floats = np.ndarray
Generator = np.random.Generator
Noise = Callable[[Generator, int, int], Floats]  # Of steps in blocks of a length, as logarithms of no given scale

GAINS = (-0.02, 0.0, 0.05, 0.13, 0.43)
DEVIATIONS = (0.05, 0.1, 0.2, 0.28)
CASES, RARE = 2000, 4000  # Comparisons; of those that should hardly ever win more
SEARCHES, RARE_SEARCHES = 40, 60
BEFORE = 9  # Steps of a block when a pair's deviation of 10 % was noted: medians, two pairs in 48 steps
GOALS = {-0.02: "<= 0.5", 0.0: "<= 2.5", 0.05: ">= 50", 0.13: ">= 95"}


def tune_power() -> list[dict[str, Any]]:
    """Pairs that vary on their own, pairs of blocks of steps, then whole searches."""
    rows = []
    for where, most in (("while training", ONLINE.most_pairs), ("by relaunch", OFFLINE.most_pairs)):
        for deviation in DEVIATIONS:
            found = {gain: independent(gain, deviation, most) for gain in GAINS}
            rows.append(row(f"{where}, at most {most} pairs", deviation, found))
    for name, noise in NOISES.items():
        for steps in (ONLINE.confirm_steps, 5):
            scale = 0.1 / old_pair_deviation(noise)
            ratios = {gain: in_blocks(noise, steps, scale, CASES if gain > 0 else RARE) for gain in GAINS[:4]}
            found = {gain: judged(each + math.log1p(gain), ONLINE.most_pairs) for gain, each in ratios.items()}
            deviation = float(np.std(ratios[0.05]))
            rows.append(row(f"blocks of {steps} steps, {name}; 10 % is that of blocks of {BEFORE}", deviation, found))
    return [*rows, *searches(), {**dict.fromkeys(rows[0]), "pairs": "goal at a pair deviation of 10 %", **goals()}]


def goals() -> dict[str, Any]:
    return {f"{gain:+.0%} wins %": goal for gain, goal in GOALS.items()}


def row(what: str, deviation: float, found: dict[float, tuple[float, float, float]]) -> dict[str, Any]:
    """One line: wins by true gain, and for +13 % what is told and how many pairs that took."""
    told, pairs = found[0.13][1:]
    wins = {f"{gain:+.0%} wins %": 100 * found[gain][0] if gain in found else None for gain in GAINS}
    return {"pairs": what, "deviation %": 100 * deviation, **wins, "+13 % reads %": told, "+13 %, pairs": pairs}


def independent(gain: float, deviation: float, most: int) -> tuple[float, float, float]:
    """Part that wins, the gain that winners tell in %, and pairs taken, of pairs that vary by themselves."""
    rng = np.random.default_rng(int(1e4 * abs(gain) + 1e6 * deviation))
    count = CASES if gain > 0 else RARE
    return judged(rng.normal(math.log1p(gain), deviation, (count, most)), most)


def judged(ratios: Floats, most: int) -> tuple[float, float, float]:
    """The same of given pairs, one row per comparison."""
    wins, told, pairs = 0, [], []
    for each in ratios.tolist():
        count, so_far = 0, verdict([], most)
        while so_far == "open":
            count += 1
            so_far = verdict(each[:count], most)
        pairs.append(count)
        if so_far == "wins":
            wins += 1
            told.append(Lead.over(each[:count], most).gain(count).value)
    return wins / len(ratios), 100 * fmean(told) if told else math.nan, fmean(pairs)


def white(rng: Generator, steps: int, _block: int) -> Floats:
    """Every step for itself."""
    return rng.normal(size=steps)


def remembering(memory: float) -> Noise:
    """Steps that resemble the one before, and some that do not."""

    def noise(rng: Generator, steps: int, _block: int) -> Floats:
        found, value = np.empty(steps), rng.normal()
        for at, push in enumerate(rng.normal(size=steps) * math.sqrt(1 - memory**2)):
            value = memory * value + push
            found[at] = value
        return found + 0.7 * rng.normal(size=steps)

    return noise


def by_blocks(rng: Generator, steps: int, block: int) -> Floats:
    """Every switch brings a new level."""
    return np.repeat(rng.normal(size=-(-steps // block)), block)[:steps] + 0.3 * rng.normal(size=steps)


NOISES: dict[str, Noise] = {
    "independent steps": white,
    "memory of 5 steps": remembering(0.8),
    "memory of 20 steps": remembering(0.95),
    "a level per block": by_blocks,
}


def old_pair_deviation(noise: Noise) -> float:
    """Of a pair of medians over blocks, as the facts have it."""
    rng, length = np.random.default_rng(5), BEFORE + ONLINE.discard + 1
    logs = [noise(rng, 2 * length, length).reshape(2, length)[:, -BEFORE:] for _ in range(CASES)]
    return stdev(float(np.median(pair[0]) - np.median(pair[1])) for pair in logs)


def in_blocks(noise: Noise, steps: int, scale: float, count: int) -> Floats:
    """Log-ratios of pairs, of which either side may begin; one row per comparison."""
    rng, length, pairs = np.random.default_rng(steps), steps + ONLINE.discard, ONLINE.most_pairs
    found = np.empty((count, pairs))
    for at in range(count):
        logs = noise(rng, 2 * pairs * length, length).reshape(pairs, 2, length)[:, :, ONLINE.discard :] * scale
        sides = [[midmean(block) for block in pair] for pair in logs.tolist()]
        signs = rng.choice([-1, 1], pairs)
        found[at] = [sign * (pair[0] - pair[1]) for sign, pair in zip(signs, sides, strict=True)]
    return found


CAPS = (1.0, 2.0, 4.0, 8.0, 16.0, 25.0)


def searches() -> list[dict[str, Any]]:
    """Whole searches over six bucket sizes of which one gains; blocks vary so that a pair varies by 10 %."""
    knob = SearchedKnob(name="bucket_cap_mb", values=CAPS, default=25.0, logarithmic=True)
    caps: list[Values] = [{"bucket_cap_mb": cap} for cap in CAPS[:-1]]
    settings: tuple[Values, ...] = ({}, *caps)
    space = Space(engine="ddp", knobs=(knob,), settings=settings, current={"bucket_cap_mb": 25.0})
    rows = []
    for gain in (-0.02, 0.0, 0.05, 0.13):
        count, wins, chosen = SEARCHES if gain > 0 else RARE_SEARCHES, 0, []
        steps: list[tuple[int, int]] = []
        for seed in range(count):
            rng = np.random.default_rng(seed)
            # The simulator is wrong by 5 % and does not know that the others are slower or faster.
            truth = [0.1, *(0.1 / (1 + gain) * (1.0 if cap == 4.0 or gain <= 0 else 1.05) for cap in CAPS[:-1])]
            predicted = [each * math.exp(rng.normal(0, 0.05)) for each in truth]
            outcome, used = searched(space, predicted, truth, rng)
            steps.append(used)
            wins += outcome.decision == "use"
            chosen += [outcome.gain.value] if outcome.decision == "use" and outcome.gain else []
        rows.append(
            {
                "pairs": f"{count} whole searches, the best gains {gain:+.0%}",
                "deviation %": 10.0,
                f"{gain:+.0%} wins %": 100 * wins / count,
                "+13 % reads %": 100 * fmean(chosen) if chosen and gain == 0.13 else None,
                "most steps": "{} + {}, at most {} together".format(
                    *map(max, zip(*steps, strict=True)), max(map(sum, steps))
                ),
            }
        )
    return rows


def searched(space: Space, predicted: list[float], truth: list[float], rng: Generator) -> tuple[Any, tuple[int, int]]:
    """The outcome, and the steps of search and of confirmation."""
    tuner, steps = Tuner(space, predicted, ONLINE), {"confirm": 0}
    while asked := tuner.next():
        level = truth[space.settings.index(asked.values)] * math.exp(rng.normal(0, 0.1 / math.sqrt(2)))
        times = tuple(float(step) for step in level * np.exp(rng.normal(0, 0.03, asked.steps)))
        waited = 0 if asked.phase == "confirm" else 1
        sample = tuner.tell(asked, Block(step_s=times, discarded=ONLINE.discard, waited=waited))
        phase = "confirm" if asked.phase == "confirm" else "search"
        steps[phase] = steps.get(phase, 0) + sample.steps + sample.other_steps
    return tuner.outcome(), (steps.get("search", 0), steps["confirm"])
