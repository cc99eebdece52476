"""What checks on this machine teach later estimates."""

import math
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.engines.base import Engine
from scalescope.estimation import calibration as residuals
from scalescope.estimation.calibration import calibrate, calibration, remember
from scalescope.records.prediction import Check, Residual
from scalescope.records.store import append, load_lines


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "scalescope" / "residuals-v2.jsonl"


def check(predicted_s: float, measured_s: float, np: int = 2, *, disturbed: bool = False) -> Check:
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
        disturbed=disturbed,
    )


def residual(log_error: float, hostname: str = "", engine: str = "ddp") -> Residual:
    return Residual(
        hostname=hostname or platform.node(),
        engine=engine,
        model="mlp",
        checks=2,
        log_error=log_error,
        seconds_since_epoch=0.0,
    )


def test_without_checks_nothing_is_calibrated() -> None:
    assert calibrate([]) is None
    assert calibration("ddp", "mlp") == (None, "")


def test_one_residual_of_an_estimate_is_kept_in_the_users_cache(cache: Path) -> None:
    checks = [check(1.0, 1.1), check(2.0, 2.0, np=4), check(1.0, 1.2, np=4)]
    assert remember(checks, factor=1.0, engine="ddp", model="cnn") == ""
    assert residuals.file() == cache
    (kept,) = load_lines(cache, Residual)
    assert (kept.engine, kept.model, kept.checks, kept.hostname) == ("ddp", "cnn", 3, platform.node())
    assert kept.log_error == pytest.approx(math.log(1.1))


def test_disturbed_checks_are_not_kept(cache: Path) -> None:
    assert remember([check(1.0, 3.0, disturbed=True)], factor=1.0, engine="ddp", model="cnn") == ""
    assert not cache.exists()
    remember([check(1.0, 3.0, disturbed=True), check(1.0, 1.1)], factor=1.0, engine="ddp", model="cnn")
    assert load_lines(cache, Residual)[0].log_error == pytest.approx(math.log(1.1))


def test_a_damaged_line_is_one_warning_and_the_others_count(cache: Path) -> None:
    append(residual(0.1), cache)
    with cache.open("ab") as file:
        file.write(b"not json\n\xff\xfe\n" + b"[" * 100 + b"\n")
    append(residual(0.1), cache)
    found, said = calibration("ddp", "mlp")
    assert found is not None
    assert found.estimates == 2
    assert said.startswith("3 damaged lines of ")
    assert "remove that file" in said


def test_a_cache_that_cannot_be_read_or_written_is_one_warning(tmp_path: Path, cache: Path) -> None:
    cache.mkdir(parents=True)  # no file, for whoever runs this: root may write anything
    found, said = calibration("ddp", "mlp")
    assert found is None
    assert "cannot be read" in said
    assert "cannot be written" in remember([check(1.0, 1.1)], factor=1.0, engine="ddp", model="cnn")


def test_the_factor_that_a_prediction_already_has_is_taken_out(cache: Path) -> None:
    # Uncalibrated 1.0, calibrated 1.2, measured 1.2: the uncalibrated one was 20 % too low, as before.
    remember([check(1.2, 1.2)], factor=1.2, engine="ddp", model="cnn")
    assert load_lines(cache, Residual)[0].log_error == pytest.approx(math.log(1.2))


def test_one_check_is_believed_a_quarter() -> None:
    found = calibrate([math.log(1.2)])
    assert found is not None
    assert (found.estimates, found.factor) == (1, pytest.approx(1.2**0.25))
    assert found.mean_error == pytest.approx(1 - 1 / 1.2)
    assert found.spread == pytest.approx(math.hypot(Engine.model_error, 0.75 * math.log(1.2)))


def test_many_equal_checks_are_applied_almost_fully() -> None:
    found = calibrate([math.log(1.2)] * 97)
    assert found is not None
    assert found.factor == pytest.approx(1.2**0.97)
    assert found.spread < Engine.model_error


def test_one_estimate_that_went_wrong_moves_nothing() -> None:
    usual = [0.01, -0.01, 0.02, -0.02, 0.0, 0.01]
    clean, spoiled = calibrate([*usual, 0.0]), calibrate([*usual, 1.5])
    assert clean is not None
    assert spoiled is not None
    assert spoiled.factor == pytest.approx(clean.factor, rel=0.02)
    assert spoiled.spread < 2 * clean.spread


def test_checks_that_disagree_leave_a_spread() -> None:
    found = calibrate([0.2, -0.2] * 20)
    assert found is not None
    assert found.factor == pytest.approx(1)
    assert 0.18 < found.spread < 0.31


def test_only_this_engine_on_this_machine_counts_and_old_checks_are_forgotten(cache: Path) -> None:
    for one in (residual(3.0, engine="horovod"), residual(3.0, hostname="elsewhere"), residual(3.0)):
        append(one, cache)
    for _ in range(40):
        append(residual(0.1), cache)
    found, _ = calibration("ddp", "mlp")
    assert found is not None
    assert found.estimates == 40
    assert found.factor == pytest.approx(math.exp(0.1 * 40 / 43))
    other, _ = calibration("horovod", "mlp")
    assert other is not None
    assert other.estimates == 1


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_a_factor_stays_within_the_residuals(log_errors: list[float]) -> None:
    found = calibrate(log_errors)
    assert found is not None
    assert min(0.0, *log_errors) - 1e-9 <= math.log(found.factor) <= max(0.0, *log_errors) + 1e-9
    assert found.spread > 0
    assert found.mean_error >= 0


def test_another_model_counts_once_and_this_one_corrects_it() -> None:
    wrong, right = [math.log(1.3)] * 9, [0.0] * 9
    found = calibrate([], [wrong])
    assert found is not None
    assert found.factor == pytest.approx(1.3**0.25), "nine estimates of one other model"
    both = calibrate(right, [wrong])
    assert both is not None
    assert both.factor == pytest.approx(1.3 ** (0.25 * 0.25))
    assert both.estimates == 18


def test_residuals_of_another_model_count_less(cache: Path) -> None:
    for _ in range(9):
        append(residual(math.log(1.3)), cache)
    (own, _), (other, _) = calibration("ddp", "mlp"), calibration("ddp", "cnn")
    assert own is not None
    assert other is not None
    assert own.factor > 1.2 > 1.1 > other.factor > 1
