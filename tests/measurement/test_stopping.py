import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observed import launch

from scalescope.measurement.replication import baseline_of, points_of_round, why_it_stopped
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Failure, Point, Run

ALONE = Point(engine="none", np=1, batch=8, threads_per_rank=1)
OWN = Point(engine="ddp", np=1, batch=8, threads_per_rank=1)
TWO = Point(engine="ddp", np=2, batch=8, threads_per_rank=1)
PLANNED = (ALONE, OWN, TWO)


def rounds(count: int, noise: float = 0.0) -> list[Run]:
    """So many launches of every point; two processes are noisy."""
    generator = random.Random(1)
    runs = []
    for number in range(1, count + 1):
        runs += [
            launch("none", 1, number, 0.1),
            launch("ddp", 1, number, 0.11),
            launch("ddp", 2, number, 0.12 * (1 + noise * generator.uniform(-1, 1))),
        ]
    return runs


def request(**changes: object) -> MeasureRequest:
    return MeasureRequest(np=(1, 2), batch=(8,), seed=7, **changes)


def wanted(number: int, runs: list[Run], failures: list[Failure] = [], **changes: object) -> set[Point]:  # noqa: B006
    return set(points_of_round(number, PLANNED, runs, failures, request(**changes)))


def test_five_rounds_unless_something_else_is_asked_for() -> None:
    assert wanted(5, rounds(4)) == set(PLANNED)
    assert wanted(6, rounds(5)) == set()
    assert wanted(2, rounds(1), launches=1) == set()


def test_orders_are_shuffled_and_the_same_when_continued() -> None:
    orders = [tuple(points_of_round(number, PLANNED, [], [], request(launches=20))) for number in range(1, 21)]
    assert len(set(orders)) > 3
    assert orders == [
        tuple(points_of_round(number, PLANNED, rounds(9), [], request(launches=20))) for number in range(1, 21)
    ]


def test_precision_never_stops_before_five() -> None:
    assert wanted(5, rounds(4), precision=0.05) == set(PLANNED)
    assert wanted(6, rounds(5), precision=0.05) == set()


def test_only_vague_points_and_their_baseline_go_on() -> None:
    assert wanted(6, rounds(5, noise=0.3), precision=0.05) == {ALONE, TWO}
    assert wanted(31, rounds(30, noise=0.3), precision=0.01) == set()


def test_alone_a_point_is_known_by_its_own_steps() -> None:
    runs = [run for run in rounds(5, noise=0.3) if run.point == TWO]
    only = request(precision=0.05)
    assert points_of_round(6, (TWO,), runs, [], only) == [TWO]
    calm = [run for run in rounds(5) if run.point == TWO]
    assert points_of_round(6, (TWO,), calm, [], only) == []


def test_a_point_that_fails_twice_or_at_once_is_left_out() -> None:
    once = Failure(point=TWO, round=2, folder="", problem="died", details="")
    assert TWO in wanted(3, rounds(1), [once])
    assert TWO not in wanted(4, rounds(1), [once, Failure(point=TWO, round=3, folder="", problem="died", details="")])
    assert TWO not in wanted(2, [run for run in rounds(1) if run.point != TWO], [
        Failure(point=TWO, round=1, folder="", problem="died", details="")
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("scaling", "point", "baseline"),
    [
        ("weak", TWO, ALONE),
        ("strong", TWO, Point(engine="none", np=1, batch=16, threads_per_rank=1)),
        ("weak", OWN, ALONE),
        ("weak", ALONE, ALONE),
    ],
)
def test_the_baseline_does_the_same_work(scaling: str, point: Point, baseline: Point) -> None:
    others = [Point(engine="none", np=1, batch=batch, threads_per_rank=1) for batch in (8, 16, 32)]
    assert baseline_of(point, scaling, [*others, OWN, TWO]) == baseline


def test_only_comparisons_that_a_curve_shows_are_waited_for() -> None:
    """In strong scaling of batch 8, two processes take 4 each; weak scaling of 4 was not asked for."""
    half = Point(engine="ddp", np=2, batch=4, threads_per_rank=1)
    quarter = Point(engine="ddp", np=4, batch=4, threads_per_rank=1)
    assert baseline_of(half, "strong", [ALONE, OWN, half, quarter]) == ALONE
    assert baseline_of(quarter, "weak", [ALONE, OWN, half, quarter]) is None


def test_a_script_is_compared_with_its_own_fewest() -> None:
    points = [Point(engine="ddp", np=np, batch=None, threads_per_rank=1) for np in (4, 2, 8)]
    assert baseline_of(points[2], "weak", points) == points[1]
    assert baseline_of(points[0], "weak", points[:1]) is None


@given(st.integers(1, 40), st.sampled_from([None, 0.02, 0.2]), st.floats(0, 0.5))
def test_every_measurement_ends(launches: int, precision: float | None, noise: float) -> None:
    asked = request(launches=launches, precision=precision)
    assert points_of_round(launches + 1, PLANNED, rounds(launches, noise), [], asked) == []


def test_the_reason_to_stop_is_recorded() -> None:
    assert "budget" in why_it_stopped(request(), PLANNED, rounds(2), budget_spent=True)
    calm = why_it_stopped(request(precision=0.05), PLANNED, rounds(6), budget_spent=False)
    assert calm == "every steady speedup is known within 5 %"
    noisy = why_it_stopped(request(precision=0.05, launches=6), PLANNED, rounds(6, noise=0.3), budget_spent=False)
    assert noisy == "6 launches were made and some speedups are less certain than asked"
    assert "1 launch of every" in why_it_stopped(request(launches=1), PLANNED, rounds(1), budget_spent=False)


def test_precision_goes_on_to_eight_launches_when_one_is_unlike_the_others() -> None:
    def made(count: int) -> list[Run]:
        return [
            run
            for number in range(1, count + 1)
            for run in (
                launch("none", 1, number, 0.1),
                launch("ddp", 1, number, 0.11),
                launch("ddp", 2, number, 0.12 * (1.3 if number == 2 else 1 + 0.001 * (number % 3))),
            )
        ]

    assert wanted(6, made(5), precision=0.5) == {ALONE, TWO}
    assert wanted(8, made(7), precision=0.5) == {ALONE, TWO}
    assert wanted(9, made(8), precision=0.5) == set()
