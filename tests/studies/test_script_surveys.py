"""Edges of a script's map: batches that nobody told, processes that share cores, and which launches correct it."""

from typing import Any

import msgspec
import pytest
from test_measurement import measurement, run
from test_script_map import cluster, survey

from scalescope.errors import WorkFailed
from scalescope.records.job import Knobs
from scalescope.records.prediction import Prediction
from scalescope.studies.script_map import corrected_by, map_of_script, profile_of_script

Surveys = dict[tuple[int, int | None], dict[str, Any]]


def test_an_unknown_batch_is_the_counted_samples_or_one() -> None:
    assert profile_of_script("x", {(1, None): survey(1)}).points[0].batch == 64
    assert profile_of_script("x", {(1, 16): survey(1)}).points[0].batch == 16
    uncounted = survey(1)
    del uncounted["samples"]
    assert profile_of_script("x", {(1, None): uncounted}).points[0].batch == 1
    assert profile_of_script("x", {(1, None): survey(1) | {"samples": 0}}).points[0].batch == 1


def test_points_come_by_batch_and_know_how_little_they_are_known() -> None:
    found: Surveys = {(1, 64): survey(1, step_s=0.2), (2, 64): survey(2), (1, 16): survey(1, step_s=0.12)}
    profile = profile_of_script("x", found)
    assert [(point.batch, point.step_s, point.error) for point in profile.points] == [
        (16, 0.12, 0.05),
        (64, 0.2, 0.05),
    ]
    assert [point.forward_s for point in profile.points] == pytest.approx([0.05, 0.13])


def test_a_step_is_no_shorter_than_its_parts() -> None:
    (point,) = profile_of_script("x", {(1, None): survey(1, step_s=0.01)}).points
    assert (point.backward_s, point.optimizer_s) == (0.06, 0.01)
    assert [point.step_s, point.forward_s] == pytest.approx([0.09, 0.02])


@pytest.mark.parametrize(
    ("alone_s", "together_s", "slowdown"), [(0.02, 0.03, 1.5), (0.02, 0.01, 1.0), (0.0, 0.03, 1.0), (None, 0.03, 1.0)]
)
def test_the_slowdown_of_forward_passes_is_the_cpu_contention(
    alone_s: float | None, together_s: float, slowdown: float
) -> None:
    found: Surveys = {(1, 16): survey(1), (4, 8): survey(4, forward_s=together_s)}
    if alone_s is not None:
        found[1, 8] = survey(1, forward_s=alone_s)
    (crowd,) = profile_of_script("x", found).crowds
    assert (crowd.copies, crowd.batch, crowd.error, crowd.noise) == (4, 8, 0.1, 0.0)
    assert crowd.slowdown == pytest.approx(slowdown)
    (unknown,) = profile_of_script("x", {(1, None): survey(1), (4, None): survey(4)}).crowds
    assert unknown.batch == 1


def test_processes_on_hosts_of_their_own_share_nothing() -> None:
    assert profile_of_script("x", {(1, None): survey(1), (2, None): survey(1)}).crowds == ()


@pytest.mark.parametrize("found", [{}, {(2, None): survey(2)}, {(1, None): survey(1) | {"gradients": []}}])
def test_without_gradients_of_one_process_there_is_no_map(found: Surveys) -> None:
    with pytest.raises(WorkFailed, match="no map: the agent saw no forward and backward of this script on one process"):
        profile_of_script("x", found)


def mapped() -> Prediction:
    profile = profile_of_script("x", {(1, 8): survey(1), (1, 64): survey(1, step_s=0.2)})
    return map_of_script(profile, cluster(0.01), Knobs(engine="ddp"), [1, 2, 4])


def test_launches_of_several_processes_and_of_the_same_batch_correct_the_map() -> None:
    before = mapped()
    runs = [run("ddp", 2, 80, step_s=0.3), run("ddp", 2, 80, step_s=0.5), run("ddp", 8, 80), run("horovod", 2, 8)]
    after = corrected_by(before, measurement(*runs))
    assert [(check.np, check.batch, check.measured_s) for check in after.checks] == [(2, 8, 0.4)]
    verified = [(cell.np, cell.batch) for cell in after.cells if cell.verified]
    assert verified == [(2, 8)]


def test_launches_next_to_one_process_alone_are_compared_at_the_pace_of_the_profile() -> None:
    """One process takes 0.1 s a step there and 0.11 s in the survey; two take twice as long in the same round."""
    after = corrected_by(mapped(), measurement(run("none", 1, 80), run("ddp", 2, 80)))
    (check,) = after.checks
    assert [check.measured_s, check.pace] == pytest.approx([0.22, 0.1 / 0.11])


def test_launches_of_strong_scaling_check_no_cell_of_weak_scaling() -> None:
    """Their batch was not launched on one process, so nothing tells how much faster they are."""
    share = run("ddp", 2, 80)
    share = msgspec.structs.replace(share, point=msgspec.structs.replace(share.point, batch=64))
    after = corrected_by(mapped(), measurement(run("none", 1, 80), run("ddp", 2, 80), share))
    assert [(check.np, check.batch) for check in after.checks] == [(2, 8)]
    assert [(cell.np, cell.batch) for cell in after.cells if cell.verified] == [(2, 8)]


def test_launches_that_match_no_cell_of_several_processes_leave_the_map_alone() -> None:
    before = mapped()
    assert corrected_by(before, measurement(run("none", 1, 80), run("ddp", 8, 80))) is before
