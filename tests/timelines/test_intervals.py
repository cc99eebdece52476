"""Sets of moments against the same sets counted second by second."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scalescope.timelines.intervals import Intervals, difference, intersection, length, union

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def seconds(spans: list[tuple[float, float]]) -> set[int]:
    return {second for start, end in spans for second in range(int(start), int(end))}


def assert_sorted_and_disjoint(intervals: Intervals) -> None:
    assert all(start < end for start, end in intervals)
    assert all(before[1] <= after[0] for before, after in pairwise(intervals))


def test_overlapping_and_touching_spans_become_one() -> None:
    assert union([(5, 6), (0, 2), (2, 3), (1, 1.5)]) == [(0, 3), (5, 6)]


def test_empty_and_backward_spans_are_nothing() -> None:
    assert union([(1, 1), (3, 2)]) == []
    assert length([]) == 0


def test_what_two_sets_share_and_what_one_has_alone() -> None:
    a, b = [(0, 4), (6, 10)], [(1, 2), (3, 7), (9, 12)]
    assert intersection(a, b) == [(1, 2), (3, 4), (6, 7), (9, 10)]
    assert difference(a, b) == [(0, 1), (2, 3), (7, 9)]
    assert difference(b, a) == [(4, 6), (10, 12)]
    assert length(a) == 8


def test_one_interval_can_cover_several() -> None:
    assert difference([(0, 1), (2, 3), (4, 5)], [(0.5, 4.5)]) == [(0, 0.5), (4.5, 5)]
    assert difference([(0, 9)], []) == [(0, 9)]


@given(SPANS, SPANS)
def test_sets_are_what_counting_says(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, other = union(a), union(b)
    assert seconds(one) == seconds(a)
    for found, expected in (
        (one, seconds(a)),
        (intersection(one, other), seconds(a) & seconds(b)),
        (difference(one, other), seconds(a) - seconds(b)),
    ):
        assert_sorted_and_disjoint(found)
        assert seconds(found) == expected
        assert length(found) == len(expected)
