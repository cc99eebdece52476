import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scalescope
from scalescope.errors import UsageError
from scalescope.units import format_bytes, format_seconds, parse_counts, parse_seconds, unit_of


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1", (1,)),
        ("4,1,2", (1, 2, 4)),
        ("1..4", (1, 2, 3, 4)),
        ("8,16,...,128", (8, 16, 32, 64, 128)),
        ("10,15,...,30", (10, 15, 20, 25, 30)),
        ("1,2..4,8", (1, 2, 3, 4, 8)),
    ],
)
def test_lists_and_ranges_of_counts_are_read(text: str, counts: tuple[int, ...]) -> None:
    assert parse_counts(text, "--np") == counts


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "4..1", "8,...,64", "8,16,...,100", "1..", "...,8", "1,,2"])
def test_a_bad_count_names_its_option(text: str) -> None:
    with pytest.raises(UsageError, match="--np"):
        parse_counts(text, "--np")


@given(st.lists(st.integers(1, 10_000), min_size=1))
def test_counts_come_back_sorted_and_once(numbers: list[int]) -> None:
    assert parse_counts(",".join(map(str, numbers)), "--np") == tuple(sorted(set(numbers)))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("20ms", 0.02), ("2min", 120)]
)
def test_durations_are_read_in_every_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--timeout") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "x", "0", "-3s", "3 days"])
def test_a_bad_time_names_its_option(text: str) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        parse_seconds(text, "--timeout")


def test_numbers_are_shortened_for_people() -> None:
    assert [format_seconds(value) for value in (3725, 125, 1.5, 0.0123, 4.2e-6)] == [
        "1 h 02 min",
        "2 min 05 s",
        "1.5 s",
        "12.3 ms",
        "4.2 us",
    ]
    assert [format_bytes(size * 1024**2) for size in (3072, 1010, 1.5)] == ["3 GiB", "1,010 MiB", "1.5 MiB"]
    assert [unit_of(value) for value in (1, 0.999, 0.001, 0.000999)] == [
        ("s", 1.0),
        ("ms", 1e3),
        ("ms", 1e3),
        ("us", 1e6),
    ]


def test_the_unit_of_a_duration_is_chosen_in_one_place() -> None:
    """Another `("ms", 1e3)` would be a second rule for s, ms and us."""
    package = Path(scalescope.__file__).parent
    choosing = [path.name for path in package.rglob("*.py") if re.search(r'"ms", 1(e3|000)', path.read_text())]
    assert choosing == ["units.py"]
