"""What checks on this machine teach later estimates."""

import math
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.measurement import residuals
from scalescope.measurement.residuals import calibrate, calibration, keep
from scalescope.prediction.grid import RESIDUAL
from scalescope.records.prediction import Check, Residual
from scalescope.records.store import append, load_lines


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "scalescope" / "residuals.jsonl"


def check(predicted_s: float, measured_s: float, np: int = 2) -> Check:
    return Check(
        np=np,
        batch=8,
        scaling="weak",
        predicted_s=predicted_s,
        low_s=predicted_s,
        high_s=predicted_s,
        measured_s=measured_s,
        measured_low_s=measured_s,
        measured_high_s=measured_s,
    )


def residual(log_error: float, hostname: str = "", engine: str = "ddp") -> Residual:
    return Residual(
        hostname=hostname or platform.node(),
        engine=engine,
        model="mlp",
        np=2,
        batch=8,
        log_error=log_error,
        seconds_since_epoch=0.0,
    )


def test_without_checks_nothing_is_calibrated() -> None:
    assert calibrate([]) is None
    assert calibration("ddp") is None


def test_checks_are_kept_in_the_users_cache(cache: Path) -> None:
    keep([check(1.0, 1.1), check(2.0, 2.0, np=4)], factor=1.0, engine="ddp", model="cnn")
    assert residuals.file() == cache
    kept = load_lines(cache, Residual)
    assert [(one.engine, one.model, one.np, one.hostname) for one in kept] == [
        ("ddp", "cnn", 2, platform.node()),
        ("ddp", "cnn", 4, platform.node()),
    ]
    assert [one.log_error for one in kept] == pytest.approx([math.log(1.1), 0])


def test_the_factor_that_a_prediction_already_has_is_taken_out(cache: Path) -> None:
    # Uncalibrated 1.0, calibrated 1.2, measured 1.2: the uncalibrated one was 20 % too low, as before.
    keep([check(1.2, 1.2)], factor=1.2, engine="ddp", model="cnn")
    assert load_lines(cache, Residual)[0].log_error == pytest.approx(math.log(1.2))


def test_one_check_is_believed_a_quarter() -> None:
    found = calibrate([math.log(1.2)])
    assert found is not None
    assert (found.checks, found.factor) == (1, pytest.approx(1.2**0.25))
    assert found.mean_error == pytest.approx(1 - 1 / 1.2)
    assert found.spread == pytest.approx(math.hypot(RESIDUAL, 0.75 * math.log(1.2)))


def test_many_equal_checks_are_believed_almost_wholly() -> None:
    found = calibrate([math.log(1.2)] * 97)
    assert found is not None
    assert found.factor == pytest.approx(1.2**0.97)
    assert found.spread < 0.01


def test_checks_that_disagree_leave_a_spread() -> None:
    found = calibrate([0.2, -0.2] * 20)
    assert found is not None
    assert found.factor == pytest.approx(1)
    assert 0.18 < found.spread < 0.21


def test_only_this_engine_on_this_machine_counts_and_old_checks_are_forgotten(cache: Path) -> None:
    for one in (residual(3.0, engine="horovod"), residual(3.0, hostname="elsewhere"), residual(3.0)):
        append(one, cache)
    for _ in range(40):
        append(residual(0.1), cache)
    found = calibration("ddp")
    assert found is not None
    assert found.checks == 40
    assert found.factor == pytest.approx(math.exp(0.1 * 40 / 43))
    other = calibration("horovod")
    assert other is not None
    assert other.checks == 1


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_a_factor_never_leaves_what_was_seen(log_errors: list[float]) -> None:
    found = calibrate(log_errors)
    assert found is not None
    assert min(0.0, *log_errors) - 1e-9 <= math.log(found.factor) <= max(0.0, *log_errors) + 1e-9
    assert found.spread > 0
    assert found.mean_error >= 0
