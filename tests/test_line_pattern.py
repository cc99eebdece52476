"""--pattern: one language for live output and for logs."""

import re

import pytest

from scalescope.errors import UsageError
from scalescope.line_pattern import ASIDE, MEASURES, compile_pattern, live_values, rate_of

BOTH = [name for name in MEASURES if name != "epoch_s"]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("name", BOTH)
def test_the_same_groups_give_the_same_values_in_both(name: str, live: bool) -> None:
    pattern = compile_pattern(rf"took (?P<{name}>\S+)(?P<{ASIDE[1]}>\d*)", live=live)
    found = pattern.search("took 1,234.5")
    assert found
    assert live_values(found) == {name: 1234.5}


def test_lines_are_timed_by_their_arrival_only_while_they_are_printed() -> None:
    assert compile_pattern("step done", live=True).search("a step done")
    with pytest.raises(UsageError, match=r"needs a named group that tells times or rates: \(\?P<epoch_s>"):
        compile_pattern("step done", live=False)


def test_measure_takes_steps_and_no_epochs() -> None:
    with pytest.raises(UsageError, match=r"tells steps: \(\?P<step_s>"):
        compile_pattern(r"epoch (?P<epoch>\d+) (?P<epoch_s>\S+)", live=True)
    assert compile_pattern(r"epoch (?P<epoch>\d+) (?P<epoch_s>\S+)", live=False).groupindex


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("text", "part"), [("(", "regular expression"), ("(?P<speed>x)", "unknown group 'speed': use (?P<")]
)
def test_a_bad_pattern_is_one_line(text: str, part: str, live: bool) -> None:
    with pytest.raises(UsageError, match=re.escape(part)):
        compile_pattern(text, live=live)


@pytest.mark.parametrize(
    ("values", "rate"),
    [
        ({"examples_per_s": 5.0}, 5.0),
        ({"examples_per_s": 5.0, "examples_per_s_total": 6.0}, 6.0),
        ({"examples_per_s_per_worker": 5.0}, 20.0),
        ({"step_s": 1.0}, None),
    ],
)
def test_rates_are_those_of_all_processes(values: dict[str, float], rate: float | None) -> None:
    assert rate_of(values, processes=4) == rate


def test_groups_that_are_no_positive_number_are_left_out() -> None:
    pattern = compile_pattern(r"(?P<step_s>\S+) (?P<examples_per_s>\S+)", live=True)
    for line in ("nan -1", "x 0", "inf 1e999"):
        found = pattern.search(line)
        assert found
        assert live_values(found) == {}
