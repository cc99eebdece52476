"""Values that no option can take: one line that names the option, exit code 2, nothing started."""

import sys
from typing import Any

import pytest

from command_line import CommandLine
from scalescope.errors import UsageError
from scalescope.estimation.estimate import estimate_request
from scalescope.estimation.probe import probe_request
from scalescope.jobs.request import measure_request

HUGE = "99999999999999999999999"
TRAINING = ("--", sys.executable, "train.py")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["estimate", "mlp", "--np", "1..99999999999"], "--np takes whole numbers from 1 to 999,999,999"),
        (["estimate", "mlp", "--np", "1..200000"], "--np names 200,000 numbers: name at most 100,000"),
        (["estimate", "mlp", "--batch", "99999999999"], "--batch takes whole numbers from 1 to 999,999,999"),
        (["estimate", "mlp", "--batch", "8,16,...,8589934592"], "--batch takes whole numbers from 1 to 999,999,999"),
        (["estimate", "mlp", "--np", "1..9" + "9" * 5000], "--np takes whole numbers"),
        (["estimate", "mlp", "--np", "1..99999", "--batch", "1..1000"], "99,999,000 cells: ask for at most 1,000,000"),
        (["estimate", "mlp", "--repeats", HUGE], "--repeats takes a whole number up to 999,999,999"),
        (["estimate", "mlp", "--seconds", HUGE + "h"], "--seconds takes a time above 0 and below 30 years"),
        (
            ["estimate", "mlp", "--step-time", "32=97ms,32=98ms"],
            "--step-time names a batch twice in '32=97ms,32=98ms': keep one",
        ),
        (["estimate", "mlp", "--step-time", f"{HUGE}=97ms"], "--step-time takes one time, or BATCH=TIME for each"),
        (
            ["measure", "mlp", "--learning-rate", "nan"],
            "--learning-rate takes a number from 0 on, such as 0.1, not nan",
        ),
        (["tune", "mlp", "--learning-rate", "inf"], "--learning-rate takes a number from 0 on, such as 0.1, not inf"),
        (["study", "mlp", "--learning-rate", "-1"], "--learning-rate takes a number from 0 on, such as 0.1, not -1"),
        (["measure", "mlp", "--steps", HUGE], "--steps takes a whole number up to 999,999,999"),
        (["tune", "--steps", HUGE, *TRAINING], "--steps takes a whole number up to 999,999,999"),
        (["study", "--steps", HUGE, *TRAINING], "--steps takes a whole number up to 999,999,999"),
        (["explain", "--steps", HUGE, *TRAINING], "--steps takes a whole number up to 999,999,999"),
        (["explain", "mlp", "--batch", HUGE], "--batch takes a whole number up to 999,999,999"),
        (["explain", "a.log", "--np", "9" * 5000], "--np takes whole numbers such as 1,2,4, one per log"),
        (["explain", "a.log", "--dry-run"], "--dry-run goes with a MODEL or a command after --: leave it out"),
        (["measure", "mlp", "--seed", HUGE], "--seed takes a whole number up to 9,223,372,036,854,775,807"),
        (["measure", "mlp", "--threads-per-rank", "5000"], "--threads-per-rank takes a whole number up to 4,096"),
        (["measure", "mlp", "--hosts", "a:5000"], "--hosts gives a 5000 slots: no host has more than 4,096"),
        (["measure", "mlp", "--budget", HUGE + "h"], "--budget takes a time above 0 and below 30 years"),
        (["measure", "mlp", "--knob", "bucket_cap_mb=1", "--knob", "bucket-cap-mb=2"], "bucket_cap_mb is given twice"),
        (["measure", "mlp", "--model-arg", "width=64", "--model-arg", "width=32"], "width is given twice"),
        (["probe", "--slots", "100000"], "--slots takes a whole number up to 4,096, not 100000"),
        (["probe", "--slots", "4096"], "--slots 4096 is too many for the "),
        (["probe", "--backend", ","], "--backend names nothing: name one, or leave it out"),
        (["measure", "mlp", "--engine", ","], "--engine names nothing: name one, or leave it out"),
    ],
)
def test_a_value_that_cannot_be_is_refused(scalescope: CommandLine, words: list[str], says: str) -> None:
    told = scalescope.in_this_process(*words, code=2)
    assert says in told.stderr
    assert (told.stdout, told.stderr.count("\n")) == ("", 1)
    assert len(told.stderr) < 400
    assert list(scalescope.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["estimate", "mlp", "--np", ""], "--np"),
        (["estimate", "mlp", "--engine", ""], "--engine"),
        (["estimate", "mlp", "--cluster="], "--cluster"),
        (["measure", "mlp", "--np", "", "--batch", "8"], "--np"),
        (["measure", "--engine", "", *TRAINING], "--engine"),
        (["measure", "mlp", "-o", ""], "-o"),
        (["tune", "-np", "", *TRAINING], "--np"),
        (["study", "mlp", "--np", ""], "--np"),
        (["probe", "--backend", ""], "--backend"),
        (["explain", "mlp", "--launcher", ""], "--launcher"),
        (["report", "--proposal", ""], "--proposal"),
    ],
)
def test_an_empty_value_as_of_an_unset_variable_is_refused(
    scalescope: CommandLine, words: list[str], option: str
) -> None:
    told = scalescope.in_this_process(*words, code=2).stderr
    assert told == f"scalescope: {option} is empty: give it a value, or leave it out\n"
    assert list(scalescope.folder.iterdir()) == []


def test_an_empty_argument_is_refused_and_one_of_the_training_is_its_own(scalescope: CommandLine) -> None:
    told = scalescope.in_this_process("explain", "", code=2).stderr
    assert told == "scalescope: an argument is empty: write what it stands for, or leave it out\n"
    (scalescope.folder / "train.py").touch()
    said = scalescope.in_this_process("measure", "--dry-run", "--engine", "none", "--env", "A=", *TRAINING, "").stdout
    assert "train.py ''" in said


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda: estimate_request(model="mlp", np=range(1, 10**11)), "--np names 99,999,999,999 numbers"),
        (lambda: estimate_request(model="mlp", batch=[0]), "--batch takes whole numbers from 1"),
        (lambda: estimate_request(model="mlp", step_time={32: float("nan")}), "--step-time takes a time above 0"),
        (
            lambda: estimate_request(model="mlp", efficiency=2.0),
            "--efficiency takes a fraction such as 5% or 0.05, not 2",
        ),
        (lambda: measure_request(model="mlp", timeout_s=float("inf")), "--timeout takes a time above 0"),
        (lambda: measure_request(model="mlp", learning_rate=float("nan")), "--learning-rate takes a number"),
        (lambda: probe_request(slots=100_000), "--slots takes a whole number up to 4,096"),
    ],
)
def test_the_api_refuses_what_the_command_line_refuses(asked: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        asked()
