"""What the launches of a point say about its interval: is it known enough, was one of them odd, are rounds alike.

A t-interval over launches is about the mean over launches such as these, and takes them to be independent. A launch
that is slow once in ten is missing from five launches more often than not: then the interval is about launches without.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from scalescope.records.job import NO_ENGINE
from scalescope.records.run import Point, Run
from scalescope.stats import FEWEST, is_autocorrelated, outlying, relative_half_width

ENOUGH_WITH_ODD = 8  # Launches that are asked for where one is odd: with fewer nothing tells how often they come
_LEAST_ODD = 0.05  # From the others: a launch that differs by less is not worth a word


def baseline_of(point: Point, scaling: str, points: Iterable[Point]) -> Point | None:
    """One process without an engine, or the fewest of the same engine, doing the same work; None when there is none."""
    mine = list(points)
    rivals = [each for each in mine if _same_work(each, point, scaling)]
    if any(each.engine == NO_ENGINE and each.np == 1 for each in mine):
        return next((each for each in rivals if each.engine == NO_ENGINE and each.np == 1), None)
    own = sorted((each for each in rivals if each.engine == point.engine), key=lambda each: each.np)
    return own[0] if len(own) > 1 else None


def _same_work(one: Point, other: Point, scaling: str) -> bool:
    return one.global_batch == other.global_batch if scaling == "strong" else one.batch == other.batch


class Series(NamedTuple):
    """What one interval is made of, round by round: a point's times over those of its baseline, or by themselves."""

    point: Point
    baseline: Point | None
    ratios: dict[int, float]  # By round, in order


def series_of(points: Sequence[Point], scalings: Sequence[str], runs: Sequence[Run]) -> list[Series]:
    """Every point against each of its baselines; by itself when it is neither compared nor compared with."""
    steps: dict[Point, dict[int, float]] = {}
    for run in sorted(runs, key=lambda each: each.round):
        steps.setdefault(run.point, {})[run.round] = run.mean_step_s
    pairs = {(point, base) for point in points for kind in scalings if (base := baseline_of(point, kind, points))}
    compared = {point for pair in pairs for point in pair if pair[0] != pair[1]}
    found = [
        Series(
            point, base, {number: own / steps[base][number] for number, own in times.items() if number in steps[base]}
        )
        for point, times in steps.items()
        for base in steps
        if (point, base) in pairs and point != base
    ]
    return found + [Series(point, None, times) for point, times in steps.items() if point not in compared]


def is_vague(series: Series, precision: float) -> bool:
    """Whether more launches are needed: it is not known well enough, or one is odd and there are too few to tell."""
    values = list(series.ratios.values())
    few = len(values) < ENOUGH_WITH_ODD and bool(odd_rounds(series))
    return few or relative_half_width(values, looked=True) > precision


def odd_rounds(series: Series, tests: int = 1) -> list[int]:
    """Rounds whose launches differ from the others by more than chance allows; `tests` as in stats.outlying."""
    rounds, logs = list(series.ratios), [math.log(value) for value in series.ratios.values()]
    odd = outlying(logs, tests) if len(logs) >= FEWEST else []
    usual = median(value for at, value in enumerate(logs) if at not in odd) if logs else 0.0
    return sorted(rounds[at] for at in odd if abs(logs[at] - usual) > math.log1p(_LEAST_ODD))


def warnings_of(points: Sequence[Point], scalings: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Odd launches, and rounds that resemble the one before: what makes intervals narrower than they should be."""
    series = [each for each in series_of(points, scalings, runs) if len(each.ratios) >= FEWEST]
    odd: dict[tuple[Point, int], str] = {}
    alike = []
    for each in series:
        rounds = odd_rounds(each, len(series))
        for number in rounds:
            point, times = _whose(each, number, rounds, runs)
            odd[point, number] = _odd_words(point, number, rounds, times)
        if not rounds and is_autocorrelated(list(each.ratios.values()), len(series)):
            alike.append(each.point.label)
    said = list(odd.values())
    if alike:
        said.append(
            f"{', '.join(dict.fromkeys(alike))}: every launch resembles the one of the round before, so fewer of them "
            "are independent than it seems and the interval is too narrow: spread more launches over a longer time, "
            "--resume FOLDER --launches N"
        )
    return said


def _whose(series: Series, number: int, odd: Sequence[int], runs: Sequence[Run]) -> tuple[Point, dict[int, float]]:
    """The point whose launch of this round lies further from its others, and its times by round."""
    sides = []
    for point in filter(None, (series.point, series.baseline)):
        times = {run.round: run.mean_step_s for run in runs if run.point == point}
        others = [seconds for each, seconds in times.items() if each not in odd]
        sides.append((abs(math.log(times[number] / median(others))), point, times))
    _, point, times = max(sides, key=lambda side: side[0])
    return point, times


def _odd_words(point: Point, number: int, odd: Sequence[int], times: dict[int, float]) -> str:
    change = times[number] / median(seconds for each, seconds in times.items() if each not in odd) - 1
    pace = f"{100 * abs(change):.0f} % {'slower' if change > 0 else 'faster'}"
    said = (
        f"{point.label}: the launch of round {number} was {pace} than the others; the interval is about the mean over "
        "launches, such ones among them"
    )
    count = len(times)
    more = f"make at least {ENOUGH_WITH_ODD} to see how often they come, --resume FOLDER --launches {ENOUGH_WITH_ODD}"
    return said if count >= ENOUGH_WITH_ODD else f"{said}: {more}"
