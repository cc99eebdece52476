import re
from pathlib import Path

import pytest

import scalescope
from scalescope.stats import MEASURED, PREDICTED, half_width, normal_width, percent, t_width

PACKAGE = Path(scalescope.__file__).parent


def test_interval_widths_are_those_of_published_tables() -> None:
    assert normal_width(0.95) == pytest.approx(1.959964, abs=1e-6)
    assert normal_width(0.90) == pytest.approx(1.644854, abs=1e-6)
    assert t_width(4, 0.95) == pytest.approx(2.776445, abs=1e-6)
    assert half_width([1.0, 2.0, 3.0], 0.90) == pytest.approx(2.919986 / 3**0.5, abs=1e-6)


def test_confidence_levels_are_written_in_percent() -> None:
    assert [percent(level) for level in (MEASURED, PREDICTED, 0.995)] == ["95 %", "90 %", "99.5 %"]


# A level in words, a quantile of the normal or of Student's t; what a line with one of these is about instead.
LEVEL = re.compile(r"\b9[059](\.\d)? ?%|1\.96|1\.64|0\.9(75|85|92|95)\b|stdtrit|ndtri|inv_cdf")
ABOUT_SOMETHING_ELSE = re.compile(
    r"of the steady|of it in a run|(ndtri|inv_cdf)\(0\.5 \*\*|import ndtri|Blom|_NORMAL_COUNT"
    r"|written 1\.00|training 1\.64\(s\)"
)


def test_only_stats_states_a_confidence_level() -> None:
    lines = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in path.read_text().splitlines()
        if LEVEL.search(line) and not ABOUT_SOMETHING_ELSE.search(line)
    ]
    assert [line for line in lines if not line.startswith("stats.py: ")] == []
    assert lines  # the search finds those of stats.py
