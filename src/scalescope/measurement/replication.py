"""Replication: how many launches a point gets, and whether its interval can be trusted (outliers, trends).

A t-interval over launches is about the mean over launches such as these, and takes them to be independent. A launch
that is slow once in ten is missing from five launches more often than not: then the interval is about launches without.
Everything is decided from the runs alone, so that a resumed measurement decides alike.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from scalescope.records.job import NO_ENGINE
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Failure, Point, Run
from scalescope.stats import FEWEST, is_autocorrelated, outlying, relative_half_width
from scalescope.text import plural

ENOUGH_WITH_OUTLIER = 8  # Launches that are asked for where one is an outlier: fewer do not tell how often they come
_LEAST_OUTLIER = 0.05  # From the others: a launch that differs by less is not worth a word
_GIVEN_UP_AFTER = 2  # Failed launches after which a point is left out


def points_of_round(
    number: int, planned: Sequence[Point], runs: Sequence[Run], failures: Sequence[Failure], request: MeasureRequest
) -> list[Point]:
    """Points to launch in a round, in shuffled order; none: the measurement is over.

    A speedup compares launches of one round, so a launch counts where its baseline was launched in the same round. A
    point that was added later gets rounds of its own, in which its baseline is launched once more.
    """
    before = [run for run in runs if run.round < number]
    measured = Counter(run.point for run in before)
    failed = Counter(failure.point for failure in failures if failure.round < number)
    able = [
        point
        for point in planned
        if failed[point] < (_GIVEN_UP_AFTER if measured[point] else 1)  # one that fails at first is given up
    ]
    vague = _vague(able, before, request) if request.precision else set(able)
    tried = {(run.round, run.point) for run in before} | {(each.round, each.point) for each in failures}
    made = Counter(
        run.point
        for run in before
        if all((run.round, base) in tried for base in _bases(run.point, planned, request) if base in able)
    )
    lacking = {
        point
        for point in able
        if made[point] + failed[point] < (request.most_launches if point in vague else fewest_launches(request))
    }
    needed = {base for point in lacking for base in _bases(point, planned, request)}
    wanted = [point for point in able if point in lacking or point in needed]
    random.Random(f"{request.seed}/{number}").shuffle(wanted)
    return wanted


def fewest_launches(request: MeasureRequest) -> int:
    """Launches that every point gets."""
    most = request.most_launches
    return min(most, FEWEST) if request.precision else most


def launches_to_go(
    number: int, planned: Sequence[Point], runs: Sequence[Run], request: MeasureRequest
) -> dict[Point, int]:
    """Launches that every point still gets at least, beginning with this round, of which some may be there."""
    ran = {(run.round, run.point) for run in runs}
    made = Counter(
        run.point
        for run in runs
        if run.round == number or all((run.round, base) in ran for base in _bases(run.point, planned, request))
    )
    there = {run.point for run in runs if run.round == number}
    lacking = {point: max(fewest_launches(request) - made[point], 0) for point in planned}
    to_go = dict(lacking)
    for point, count in lacking.items():
        for base in _bases(point, planned, request):
            to_go[base] = max(to_go[base], count - (base in there and point not in there))
    return to_go


def _bases(point: Point, planned: Sequence[Point], request: MeasureRequest) -> set[Point]:
    """Baselines with which a point is compared."""
    found = {baseline_of(point, scaling, planned) for scaling in request.scaling}
    return {base for base in found if base and base != point}


def why_it_stopped(
    request: MeasureRequest, planned: Sequence[Point], runs: Sequence[Run], *, budget_spent: bool
) -> str:
    """One sentence for the record."""
    if budget_spent:
        return "the budget was spent"
    if not request.precision:
        return f"{plural(request.most_launches, 'launch')} of every point were asked for"
    made = plural(max(Counter(run.point for run in runs).values(), default=0), "launch")
    if _vague(planned, runs, request):
        return f"{made} were made and some speedups are less certain than asked"
    return f"every steady speedup is known within {100 * request.precision:.3g} %"


def _vague(planned: Sequence[Point], runs: Sequence[Run], request: MeasureRequest) -> set[Point]:
    """Points whose steady speedup, or step time when there is nothing to compare with, is not known enough.

    Its interval is too wide, or one launch is an outlier and there are too few.
    """
    found = set()
    for series in series_of(planned, request.scaling, runs):
        values = list(series.ratios.values())
        few = len(values) < ENOUGH_WITH_OUTLIER and bool(outlier_rounds(series))
        if few or relative_half_width(values, looked=True) > (request.precision or 0):
            found.add(series.point)
    return found


def baseline_of(point: Point, scaling: str, points: Iterable[Point]) -> Point | None:
    """One process without an engine, or the fewest of the same engine, doing the same work; None when there is none."""
    alone, rivals = False, []
    for each in points:
        alone = alone or (each.engine == NO_ENGINE and each.np == 1)
        if each.global_batch == point.global_batch if scaling == "strong" else each.batch == point.batch:
            rivals.append(each)
    if alone:
        return next((each for each in rivals if each.engine == NO_ENGINE and each.np == 1), None)
    own = sorted((each for each in rivals if each.engine == point.engine), key=lambda each: each.np)
    return own[0] if len(own) > 1 else None


class Series(NamedTuple):
    """The ratios behind one interval: a point's times over those of its baseline, round by round, or by themselves."""

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


def outlier_rounds(series: Series, tests: int = 1) -> list[int]:
    """Rounds whose launches differ from the others by more than chance allows; `tests` as in stats.outlying."""
    rounds, logs = list(series.ratios), [math.log(value) for value in series.ratios.values()]
    outliers = outlying(logs, tests) if len(logs) >= FEWEST else []
    usual = median(value for at, value in enumerate(logs) if at not in outliers) if logs else 0.0
    return sorted(rounds[at] for at in outliers if abs(logs[at] - usual) > math.log1p(_LEAST_OUTLIER))


def warnings_of(points: Sequence[Point], scalings: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Outliers, and rounds that resemble the one before: what makes intervals narrower than they should be."""
    series = [each for each in series_of(points, scalings, runs) if len(each.ratios) >= FEWEST]
    outliers: dict[tuple[Point, int], str] = {}
    alike = []
    for each in series:
        rounds = outlier_rounds(each, len(series))
        for number in rounds:
            point, warning = _outlier(each, number, rounds, runs)
            outliers[point, number] = warning
        if not rounds and is_autocorrelated(list(each.ratios.values()), len(series)):
            alike.append(each.point.label)
    found = list(outliers.values())
    if alike:
        found.append(
            f"{', '.join(dict.fromkeys(alike))}: every launch resembles the one of the round before, so fewer of them "
            "are independent than it seems and the interval is too narrow: spread more launches over a longer time, "
            "--resume FOLDER --launches N"
        )
    return found


def _outlier(series: Series, number: int, outliers: Sequence[int], runs: Sequence[Run]) -> tuple[Point, str]:
    """The point whose launch of this round lies further from its others, and a warning of it."""
    sides = []
    for point in filter(None, (series.point, series.baseline)):
        times = {run.round: run.mean_step_s for run in runs if run.point == point}
        change = times[number] / median(seconds for each, seconds in times.items() if each not in outliers)
        sides.append((abs(math.log(change)), change - 1, len(times), point))
    _, change, count, point = max(sides, key=lambda side: side[0])
    warning = (
        f"{point.label}: the launch of round {number} was {100 * abs(change):.0f} % "
        f"{'slower' if change > 0 else 'faster'} than the others; the interval is about the mean over launches, such "
        "ones among them"
    )
    more = f"make at least {ENOUGH_WITH_OUTLIER} to see how often they come, --resume FOLDER --launches"
    return point, warning if count >= ENOUGH_WITH_OUTLIER else f"{warning}: {more} {ENOUGH_WITH_OUTLIER}"
