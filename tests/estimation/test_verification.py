"""What launches of a cell say about its prediction."""

import pytest

from scalescope.estimation.verification import check_of
from scalescope.records.job import Knobs
from scalescope.records.run import QUIET, Load, Point, Run
from scalescope.simulator.grid import Question, predict
from simulator.made import described, proportional

CELL = predict(
    Question(profile=proportional(8, 64), cluster=described(), knobs=Knobs(engine="ddp"), np=(2,), batches=(8,))
).cells[0]
ALONE_S = 8.0


def launch(*pairs: tuple[float, float], foreign_cores: float = 0.0, step_s: float = 1.0) -> Run:
    return Run(
        point=Point(engine="ddp", np=2, batch=8, threads_per_rank=1),
        folder="launch",
        wall_s=10.0,
        phases={},
        steps=10,
        warmup_steps=0,
        step_s=step_s,
        mean_step_s=step_s,
        pairs=pairs,
        throughput=None,
        samples_per_step=None,
        engine_seen="ddp",
        backend="gloo",
        source="turns",
        ranks=(),
        load=Load(foreign_cores=foreign_cores, cores=2, load_average=0.0),
    )


def test_interleaved_launches_are_compared_at_the_pace_of_the_profile() -> None:
    slower_machine = launch((10.0, 12.0), (12.0, 14.4), (16.0, 19.2))
    found = check_of(CELL, [slower_machine], ALONE_S)
    assert found.measured_s == pytest.approx(1.2 * ALONE_S)
    assert found.pace == pytest.approx(12.0 / ALONE_S)
    assert (found.predicted_s, found.low_s, found.high_s) == (CELL.step_s, CELL.low_s, CELL.high_s)


def test_the_middle_launch_counts_and_the_others_are_its_range() -> None:
    found = check_of(CELL, [launch((1.0, ratio)) for ratio in (1.1, 1.4, 1.2)], ALONE_S)
    assert (found.measured_low_s, found.measured_s, found.measured_high_s) == pytest.approx((8.8, 9.6, 11.2))


def test_whole_launches_are_taken_as_they_are() -> None:
    found = check_of(CELL, [launch(step_s=9.5)], ALONE_S)
    assert (found.measured_s, found.pace) == (9.5, None)


def test_launches_that_other_programs_disturbed_do_not_count_unless_all_were() -> None:
    quiet, busy = launch(step_s=9.0), launch(step_s=20.0, foreign_cores=0.9)
    mixed = check_of(CELL, [busy, quiet, busy], ALONE_S)
    assert (mixed.measured_s, mixed.disturbed) == (9.0, False)
    edge = check_of(CELL, [busy, launch(step_s=9.0, foreign_cores=QUIET)], ALONE_S)
    assert (edge.measured_s, edge.disturbed) == (9.0, False)
    disturbed = check_of(CELL, [busy, busy], ALONE_S)
    assert (disturbed.measured_s, disturbed.disturbed) == (20.0, True)
