"""What a map and its checks tell: errors, intervals, trust, and device hours."""

import math
from typing import Any

import msgspec
import pytest
from made_predictions import predicted

from scalescope.records.prediction import Cell, Check, device_hours

CELL = Cell(
    np=2,
    nodes=1,
    batch=8,
    global_batch=16,
    scaling="strong",
    step_s=0.2,
    low_s=0.1,
    high_s=0.4,
    speedup=1.5,
    speedup_low=1.4,
    speedup_high=1.6,
    efficiency=0.75,
    throughput=80.0,
    exposed_s=0.01,
    hidden_s=0.02,
    memory_bytes=1000,
    device_hours=1.0,
)


def check(*seconds: float, **more: Any) -> Check:
    return Check.of(CELL, seconds, **more)


def test_a_million_samples_take_processes_times_hours() -> None:
    assert device_hours(8, 1000.0) == pytest.approx(8 * 1000 / 3600)
    assert device_hours(1, 1e6 / 3600) == pytest.approx(1.0)


def test_a_check_holds_the_middle_of_what_was_measured_and_its_ends() -> None:
    made = check(0.5, 0.1, 0.3, disturbed=True, pace=1.1)
    assert (made.measured_s, made.measured_low_s, made.measured_high_s) == (0.3, 0.1, 0.5)
    assert (made.np, made.batch, made.scaling) == (2, 8, "strong")
    assert (made.predicted_s, made.low_s, made.high_s) == (0.2, 0.1, 0.4)
    assert (made.disturbed, made.pace) == (True, 1.1)
    assert (check(0.3).disturbed, check(0.3).pace) == (False, None)


def test_a_prediction_that_is_too_long_has_an_error_above_zero() -> None:
    assert check(0.1).error == pytest.approx(1.0)
    assert check(0.4).error == pytest.approx(-0.5)
    assert check(0.4).log_error == pytest.approx(math.log(2))
    assert check(0.1).log_error == pytest.approx(-math.log(2))


@pytest.mark.parametrize(("seconds", "inside"), [(0.09, False), (0.1, True), (0.3, True), (0.4, True), (0.41, False)])
def test_the_ends_of_the_interval_belong_to_it(seconds: float, inside: bool) -> None:
    assert check(seconds).inside is inside


def test_a_map_was_wrong_where_an_undisturbed_check_lies_outside() -> None:
    whole = predicted()

    def was_wrong(*checks: Check) -> bool:
        return msgspec.structs.replace(whole, checks=checks).was_wrong

    assert not was_wrong()
    assert not was_wrong(check(0.3), check(0.9, disturbed=True))
    assert was_wrong(check(0.3), check(0.9))


def test_a_map_is_trusted_as_long_as_there_is_no_doubt() -> None:
    assert predicted().trusted
    assert not msgspec.structs.replace(predicted(), doubts=("the probe was disturbed",)).trusted


def test_a_cell_is_a_prediction_that_fits_and_lies_within_the_profile_unless_it_says_otherwise() -> None:
    assert (CELL.fits, CELL.measured_batch, CELL.baseline_fits, CELL.verified) == (True, True, True, False)
