"""Planted ends of warm-up and what is found, beside rules of thumb; how often steady steps are called uneven."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.steady import Mode, Steadiness, steadiness
from scalescope.warmup import warmup_steps

# Each makes a set of traces; a figure from one set alone is uncertain by 2 % (two standard errors)
SEEDS = range(2026, 2034)
TRACES = 500
# And how common each is among the traces.
SHAPES = {"none": 0.12, "one huge step": 0.32, "one slower level": 0.20, "decaying": 0.18, "two levels": 0.18}
STEADY = {"even": 0.70, "drifting": 0.15, "alternating": 0.15}
LENGTHS = (20, 30, 50, 100, 200, 500, 1000)

Generator = np.random.Generator
Values = NDArray[np.float64]


class Trace(NamedTuple):
    shape: str
    steady: str
    durations: list[float]
    end: int  # First step after warm-up; where it decays, the first one whose expected excess is below half the noise


class Found(NamedTuple):
    trace: Trace
    miss: int  # Steps by which the end that was found is late; below 0 when it is early


def warmup() -> list[dict[str, Any]]:
    sets = [_found_in_traces(np.random.default_rng(seed)) for seed in SEEDS]
    found = [each for one_set in sets for each in one_set]
    rows = [_row(f"warm-up: {shape}", [each for each in found if each.trace.shape == shape]) for shape in SHAPES]
    for steady in STEADY:
        rows.append(_row(f"any warm-up, then {steady}", [each for each in found if each.trace.steady == steady]))
    rows.append({**_row("all", found), "goal": "95 % within 1 step"})
    by_success = sorted(sets, key=lambda one_set: sum(abs(each.miss) <= 1 for each in one_set))
    rows.append(_row(f"the worst of {len(sets)} sets", by_success[0]))
    rows.append(_row(f"the best of {len(sets)} sets", by_success[-1]))
    rng = np.random.default_rng(SEEDS.stop)
    without = [warmup_steps(trace(rng, "none").durations) for _ in range(TRACES)]
    rows.append(_rate("no warm-up, more than 1 step reported", [steps > 1 for steps in without]))
    return rows + _steadiness_rows(rng)


def _found_in_traces(rng: Generator) -> list[Found]:
    traces = [trace(rng, str(rng.choice(list(SHAPES), p=list(SHAPES.values())))) for _ in range(TRACES)]
    return [Found(each, warmup_steps(each.durations) - each.end) for each in traces]


def _row(what: str, found: Sequence[Found]) -> dict[str, Any]:
    traces = [each.trace for each in found]
    return {
        "what": what,
        "series": len(traces),
        "exact, %": _percent(each.miss == 0 for each in found),
        "within 1, %": _percent(abs(each.miss) <= 1 for each in found),
        "worst miss": max((each.miss for each in found), key=abs),
        "first 10 %: within 1": _within(traces, lambda durations: len(durations) // 10),
        "10 steps: within 1": _within(traces, lambda _: 10),
        "MSER-5: within 1": _within(traces, mser5),
        "MSER-5: within 5": _within(traces, mser5, 5),
        "said so, %": None,
        "goal": None,
    }


def _within(traces: Sequence[Trace], rule: Callable[[Sequence[float]], int], steps: int = 1) -> float:
    return _percent(abs(rule(each.durations) - each.end) <= steps for each in traces)


def _rate(what: str, said: Sequence[bool], goal: str = "") -> dict[str, Any]:
    return {"what": what, "series": len(said), "said so, %": _percent(said), "goal": goal}


def _percent(flags: Iterable[bool]) -> float:
    return 100 * fmean(map(bool, flags))


def mser5(durations: Sequence[float]) -> int:
    """Truncation by the least standard error of the mean of what is left, in batches of 5; at most half."""
    count = len(durations) // 5
    batches = np.asarray(durations[: count * 5]).reshape(count, 5).mean(axis=1)
    return 5 * min(range(count // 2 + 1), key=lambda cut: float(batches[cut:].var()) / (count - cut))


def trace(rng: Generator, shape: str) -> Trace:
    """Steps of a launch: a planted warm-up on a steady state that is even, drifts or alternates, with real noise."""
    size = int(rng.choice(LENGTHS))
    noise, memory = _between(rng, 0.01, 0.10), float(rng.choice([0, rng.uniform(0, 0.9)], p=[0.25, 0.75]))
    excess, end = _excess(rng, shape, size, noise)
    logs = np.log1p(excess) + noise * correlated(rng, size, memory)
    steady = str(rng.choice(list(STEADY), p=list(STEADY.values())))
    match steady:
        case "drifting":
            logs += np.linspace(0, rng.uniform(-0.1, 0.1), size)
        case "alternating":
            share, run_length = rng.uniform(0.2, 0.8), _between(rng, 5, 50)
            logs += math.log(rng.uniform(1.1, 1.4)) * alternating(rng, size, share, run_length)
    slow = rng.random(size) < rng.choice([0, 0.01, 0.04])
    slow[0] = False  # a slow first step is a warm-up
    logs += slow * np.log1p(0.3 + 0.5 * rng.pareto(2, size))
    return Trace(shape, steady, [float(value) for value in np.exp(logs) * _between(rng, 1e-3, 1)], end)


def _excess(rng: Generator, shape: str, size: int, noise: float) -> tuple[Values, int]:
    """How much slower each step is by warm-up, relative, and where that ends: after 30 % of the steps at the latest."""
    while True:
        excess: Values = np.zeros(size)
        match shape:
            case "one huge step":
                excess[0] = _between(rng, 2, 50) - 1
            case "one slower level":
                excess[: round(_between(rng, 2, 25))] = _between(rng, 1.15, 4) - 1
            case "decaying":
                excess += _between(rng, 0.5, 20) * rng.uniform(0.3, 0.85) ** np.arange(size)
            case "two levels":
                allocation, autotune = round(_between(rng, 1, 4)), round(_between(rng, 2, 15))
                excess[: allocation + autotune] = _between(rng, 1.2, 2.5) - 1
                excess[:allocation] = _between(rng, 3, 30) - 1
        end = next((step for step, value in enumerate(excess) if value < noise / 2), size)
        if end <= 0.3 * size:
            return excess, end


def _between(rng: Generator, low: float, high: float) -> float:
    """Evenly spread in logarithms."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def correlated(rng: Generator, size: int, memory: float) -> Values:
    """Noise of deviation 1 of which each value remembers the share `memory` of the one before."""
    values = rng.normal(size=size)
    for index in range(1, size):
        values[index] = memory * values[index - 1] + math.sqrt(1 - memory**2) * values[index]
    return values


def alternating(rng: Generator, size: int, share: float, run_length: float) -> NDArray[np.bool_]:
    """Which steps are of the slower kind: runs of about this length, this share of all steps."""
    slow = bool(rng.random() < share)
    kinds = np.zeros(size, bool)
    for index in range(size):
        if rng.random() < 2 * (1 - share if slow else share) / run_length:
            slow = not slow
        kinds[index] = slow
    return kinds


def one_kind(rng: Generator, size: int) -> Values:
    """Logarithms of steady steps without drift, of one of the distributions that real steps have."""
    match rng.choice(["lognormal", "correlated", "heavy", "outliers", "exponential"]):
        case "lognormal":
            return rng.normal(size=size) * _between(rng, 0.01, 0.5)
        case "correlated":
            return correlated(rng, size, rng.uniform(0.3, 0.9)) * _between(rng, 0.01, 0.1)
        case "heavy":
            return rng.standard_t(3, size) * _between(rng, 0.01, 0.1)
        case "outliers":
            slow = rng.random(size) < rng.uniform(0, 0.15)
            return rng.normal(size=size) * 0.04 + slow * np.log1p(0.2 + 0.5 * rng.pareto(2, size))
        case _:
            return np.log1p(rng.exponential(size=size) * rng.uniform(0.05, 0.5))


def _steadiness_rows(rng: Generator) -> list[dict[str, Any]]:
    rows = []
    for sizes in ((9, 12, 20), (40, 100, 300, 1000)):
        which = f"{sizes[0]} to {sizes[-1]} steps"
        even = [steadiness(list(np.exp(one_kind(rng, int(rng.choice(sizes)))))) for _ in range(TRACES)]
        rows.append(_rate(f"{which} of one kind, called two kinds", [bool(each.modes) for each in even], "below 2 %"))
        rows.append(_rate(f"{which} of one kind, called drifting", [_drifting(each) for each in even], "below 5 %"))
        memory = [_calm(rng, int(rng.choice(sizes)), rng.uniform(0.8, 0.9)) for _ in range(TRACES)]
        rows.append(_rate(f"{which}, correlation 0.8-0.9, called drifting", memory, "below 5 %"))
        for low, high in ((4, 6), (6, 10), (10, 30)):
            hits = [bool(_two_kinds(rng, int(rng.choice(sizes)), rng.uniform(low, high))) for _ in range(TRACES)]
            rows.append(_rate(f"{which} of two kinds {low}-{high} deviations apart, found", hits))
        for least, most in ((5, 10), (10, 30)):
            found = [_drift_found(rng, int(rng.choice(sizes)), rng.uniform(least, most) / 100) for _ in range(TRACES)]
            rows.append(_rate(f"{which} with {least}-{most} % of drift, found", found))
    return rows


def _drifting(judged: Steadiness) -> bool:
    return judged.kind == "drifting"


def _calm(rng: Generator, size: int, memory: float) -> bool:
    """Whether noise that wanders is taken for drift."""
    return _drifting(steadiness(list(np.exp(correlated(rng, size, memory) * _between(rng, 0.01, 0.1)))))


def _two_kinds(rng: Generator, size: int, apart: float) -> tuple[Mode, ...]:
    """What is found in steps of two kinds of which the rarer has at least a fifth."""
    ratio = rng.uniform(1.1, 1.5)
    slow = rng.permutation(np.arange(size) < round(size * rng.uniform(0.2, 0.8)))
    logs = math.log(ratio) * slow + correlated(rng, size, rng.uniform(0, 0.8)) * math.log(ratio) / apart
    return steadiness(list(np.exp(logs))).modes


def _drift_found(rng: Generator, size: int, drift: float) -> bool:
    noise = correlated(rng, size, rng.uniform(0, 0.9)) * _between(rng, 0.01, 0.1)
    sign = rng.choice([-1, 1])
    return _drifting(steadiness(list(np.exp(noise + sign * np.linspace(0, math.log1p(drift), size)))))
