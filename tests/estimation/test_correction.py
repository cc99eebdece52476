"""Which cells are worth a check, and what checks make of a map."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.estimation.verification import corrected, deciding_cells
from scalescope.records.job import Knobs
from scalescope.records.prediction import Cell, Check, Prediction
from scalescope.simulator.grid import Question, predict, recommend
from simulator.made import described, proportional

BATCHES = (8, 16, 32, 64, 128)


def asked(np: tuple[int, ...] = (1, 2, 4), too_large: int | None = None, rate: float = 1.0, **more) -> Prediction:
    given = {
        "profile": proportional(8, 128, too_large=too_large),
        "cluster": described(rate, slots=16, disturbed=more.pop("disturbed", "")),
        "knobs": Knobs(engine="ddp"),
        "np": np,
        "batches": BATCHES,
        **more,
    }
    return predict(Question(**given))


def chosen(count: int, slots: int = 16, **more) -> list[tuple[int, int]]:
    found = asked(**more)
    return [(cell.np, cell.batch) for cell in deciding_cells(found, count, slots)]


def cell(prediction: Prediction, np: int, batch: int) -> Cell:
    return next(one for one in prediction.cells if (one.np, one.batch) == (np, batch))


def check(of: Cell, measured: float, *, disturbed: bool = False) -> Check:
    """It took `measured` times what was predicted, in launches that differ by 2 %."""
    return Check.of(of, [measured * share * of.step_s for share in (0.99, 1.0, 1.01)], disturbed=disturbed)


def test_the_recommended_cell_is_checked_first() -> None:
    advice = asked().recommended
    assert advice is not None
    assert advice.np > 1
    assert chosen(1) == [(advice.np, advice.batch)]


def test_cells_whose_error_would_change_the_recommendation_are_verified_next() -> None:
    found = asked(rate=0.02)  # so slow a link that one process is recommended, and two almost pay at a large batch
    assert found.recommended is not None
    assert found.recommended.np == 1
    (first,) = deciding_cells(found, 1, 16)
    faster = [
        msgspec.structs.replace(one, efficiency=1.0, throughput=2 * first.throughput) if one == first else one
        for one in found.cells
    ]
    then = recommend(faster, found.efficiency_goal, found.slots_per_node)
    assert then is not None
    assert (then.np, then.batch) == (first.np, first.batch)
    nearest = max((one for one in found.cells if one.np > 1), key=lambda one: one.efficiency)
    assert (first.np, first.batch) == (nearest.np, nearest.batch)


def test_only_cells_that_can_be_run_here_are_checked() -> None:
    assert {np for np, _ in chosen(9, slots=2)} == {2}
    assert chosen(2, slots=1) == []
    assert all(batch < 64 for _, batch in chosen(9, too_large=64))
    assert chosen(9, np=(1,)) == []


def test_a_cell_of_both_scalings_is_checked_once() -> None:
    found = chosen(99, np=(2,), scalings=("weak", "strong"))
    assert sorted(found) == [(2, batch) for batch in (4, *BATCHES)]


@given(st.integers(0, 40), st.integers(1, 16))
def test_as_many_cells_are_checked_as_asked_for_if_there_are_enough(count: int, slots: int) -> None:
    found = chosen(count, slots, np=(1, 2, 3, 8))
    possible = len(BATCHES) * len([np for np in (2, 3, 8) if np <= slots])
    assert len(found) == len(set(found)) == min(count, possible)


def test_a_verified_cell_shows_its_measured_step() -> None:
    before = asked()
    cells = tuple(msgspec.structs.replace(one, hidden_s=0.5) for one in before.cells)
    before = msgspec.structs.replace(before, cells=cells)
    run = cell(before, 2, 32)
    after = corrected(before, [check(run, 1.02)])
    shown = cell(after, 2, 32)
    assert shown.verified
    assert (shown.step_s, shown.low_s, shown.high_s) == pytest.approx(
        (1.02 * run.step_s, 0.99 * 1.02 * run.step_s, 1.01 * 1.02 * run.step_s)
    )
    assert shown.speedup == pytest.approx(run.speedup / 1.02)
    assert shown.throughput == pytest.approx(shown.global_batch / shown.step_s)
    assert shown.efficiency == pytest.approx(shown.speedup / 2)
    for name in ("exposed_s", "hidden_s", "device_hours"):
        assert getattr(shown, name) == pytest.approx(1.02 * getattr(run, name)), name
    assert [one.verified for one in after.cells].count(True) == 1
    assert after.checks[0].inside
    assert not after.was_wrong


def test_a_map_whose_checks_all_failed_is_trusted_as_before() -> None:
    before = asked()
    after = corrected(before, [])
    assert (after.trusted, after.correction) == (before.trusted, 1.0) == (True, 1.0)
    assert after.recommended is not None
    assert [one.step_s for one in after.cells] == pytest.approx([one.step_s for one in before.cells])


def test_checks_inside_their_intervals_move_the_rest_a_little() -> None:
    before = asked()
    after = corrected(before, [check(cell(before, 2, 32), 1.04)])
    assert after.correction == pytest.approx(1.04**0.25)
    assert cell(after, 4, 8).step_s == pytest.approx(1.04**0.25 * cell(before, 4, 8).step_s)
    assert cell(after, 1, 8) == cell(before, 1, 8)


def test_checks_outside_correct_the_map_widen_it_and_change_the_recommendation() -> None:
    before = asked(rate=0.02)
    assert before.recommended is not None
    assert before.recommended.np == 1
    ran = [cell(before, 2, 64), cell(before, 2, 128)]
    after = corrected(before, [check(ran[0], 1 / 1.74), check(ran[1], 1 / 1.62)])
    assert after.was_wrong
    assert after.trusted
    assert after.correction == pytest.approx(math.sqrt(1 / (1.74 * 1.62)))
    assert after.recommended is not None
    assert after.recommended.np > 1
    other, moved = cell(before, 4, 64), cell(after, 4, 64)
    assert moved.step_s == pytest.approx(after.correction * other.step_s)
    assert moved.high_s / moved.step_s >= other.high_s / other.step_s
    for ran_one, factor in zip(ran, (1 / 1.74, 1 / 1.62), strict=True):
        width = moved.high_s / moved.step_s  # all cells of this map have about the same
        assert ran_one.step_s * after.correction / width <= factor * ran_one.step_s * 1.01


def test_checks_that_contradict_each_other_leave_a_map_that_is_not_to_be_trusted() -> None:
    before = asked()
    after = corrected(before, [check(cell(before, 2, 8), 2.0), check(cell(before, 4, 128), 0.5)])
    assert (after.trusted, after.recommended) == (False, None)
    assert after.doubts[0].startswith("after the checks the map is still 100 % off")


def test_a_disturbed_check_corrects_nothing_and_is_doubted() -> None:
    before = asked()
    after = corrected(before, [check(cell(before, 2, 8), 1.6, disturbed=True)])
    assert after.correction == 1.0
    assert not any(one.verified for one in after.cells)
    assert not after.trusted
    assert not after.was_wrong
    assert cell(after, 2, 8).high_s >= 1.6 * cell(before, 2, 8).step_s * (1 - 1e-9)  # but it is covered
    slightly = corrected(before, [check(cell(before, 2, 8), 1.02, disturbed=True)])
    assert slightly.trusted


def test_two_undisturbed_checks_make_up_for_a_disturbed_probe_and_for_nothing_else() -> None:
    why = "rounds of the probe differ by 40 % (one sigma)"
    before = asked(disturbed=why)
    assert before.recommended is None
    checks = [check(cell(before, 2, 8), 1.3), check(cell(before, 2, 128), 1.3)]
    after = corrected(before, checks, answered=(why,))
    assert after.trusted
    assert after.recommended is not None
    assert not corrected(before, checks[:1], answered=(why,)).trusted
    assert not corrected(before, checks).trusted


@given(st.lists(st.tuples(st.sampled_from(BATCHES), st.floats(0.3, 3), st.booleans()), min_size=1, max_size=4))
def test_a_corrected_map_holds_every_check(drawn: list[tuple[int, float, bool]]) -> None:
    before = asked()
    checks = [check(cell(before, 4, batch), factor, disturbed=busy) for batch, factor, busy in drawn]
    after = corrected(before, checks)
    for one in after.cells:
        assert one.low_s <= one.step_s <= one.high_s
    for made in checks:
        rest = cell(after, 2, made.batch)
        if not rest.verified:
            width = math.log(cell(after, 2, made.batch).high_s / rest.step_s)
            left = abs(made.log_error - math.log(after.correction))
            half = math.log(made.high_s / made.predicted_s)
            other = math.log(cell(before, 2, made.batch).high_s / cell(before, 2, made.batch).step_s)
            assert width >= left / half * other * (1 - 1e-9)
    assert (after.recommended is None) == bool(after.doubts)
