"""When enough launches have been made: pure, from the runs alone, so that a continued measurement decides alike."""

import random
from collections.abc import Sequence

from scalescope.records.request import MeasureRequest
from scalescope.records.run import Failure, Point, Run
from scalescope.scaling.baseline import baseline_of, twin
from scalescope.stats import FEWEST, relative_half_width
from scalescope.units import plural

_GIVEN_UP_AFTER = 2
"""Failed launches after which a point is left out."""


def points_of_round(
    number: int, planned: Sequence[Point], runs: Sequence[Run], failures: Sequence[Failure], request: MeasureRequest
) -> list[Point]:
    """Which points the round launches, in shuffled order; none: the measurement is over."""
    if number > request.most_launches:
        return []
    before = [run for run in runs if run.round < number]
    wanted = [point for point in planned if not _is_given_up(point, before, failures, number)]
    if request.precision and number > FEWEST and not request.quick:
        vague = [point for point in wanted if _is_vague(point, wanted, before, request)]
        needed = {baseline_of(point, scaling, planned) for point in vague for scaling in request.scaling}
        wanted = [point for point in wanted if point in vague or point in needed or twin(point) in vague]
        wanted = wanted if vague else []
    random.Random(f"{request.seed}/{number}").shuffle(wanted)
    return wanted


def _is_given_up(point: Point, runs: Sequence[Run], failures: Sequence[Failure], number: int) -> bool:
    failed = sum(failure.point == point and failure.round < number for failure in failures)
    return failed >= _GIVEN_UP_AFTER or (failed > 0 and not any(run.point == point for run in runs))


def _is_vague(point: Point, planned: Sequence[Point], runs: Sequence[Run], request: MeasureRequest) -> bool:
    """Whether a point's steady speedup, or its step time when there is nothing to compare with, is not known enough."""
    rivals = [twin(point)] if point.arm else [baseline_of(point, scaling, planned) for scaling in request.scaling]
    others = [each for each in dict.fromkeys(rivals) if each is not None and each != point]
    steps = {run.round: run.step_s for run in runs if run.point == point}
    series = [
        [steps[run.round] / run.step_s for run in runs if run.point == other and run.round in steps] for other in others
    ]
    if not others:
        compared = any(baseline_of(each, kind, planned) == point for each in planned for kind in request.scaling)
        series = [] if compared and len(planned) > 1 else [list(steps.values())]
    return any(relative_half_width(values, looked=True) > (request.precision or 0) for values in series)


def why_it_stopped(
    request: MeasureRequest, planned: Sequence[Point], runs: Sequence[Run], *, budget_spent: bool
) -> str:
    """One sentence for the record."""
    if request.quick:
        return f"{plural(request.most_launches, 'launch')} of every point, in interleaved blocks"
    if budget_spent:
        return "the budget was spent"
    made = plural(max((run.round for run in runs), default=0), "launch")
    if not request.precision:
        return f"{made} of every point were asked for"
    if any(_is_vague(point, planned, runs, request) for point in planned):
        return f"{made} were made and some speedups are less certain than asked"
    return f"every steady speedup is known within {100 * request.precision:.3g} %"
