"""Sets of moments against the same sets counted second by second."""

from hypothesis import given
from hypothesis import strategies as st

from scalescope.intervals import NOTHING, Intervals, before, between, holding, joined, union

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def seconds(spans: list[tuple[int, int]]) -> set[int]:
    return {second for start, end in spans for second in range(start, end)}


def made(spans: list[tuple[int, int]]) -> Intervals:
    return union([start for start, _ in spans], [end for _, end in spans])


def as_list(intervals: Intervals) -> list[tuple[float, float]]:
    return list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True))


def test_overlapping_and_touching_spans_become_one() -> None:
    assert as_list(union([5, 0, 2, 1], [6, 2, 3, 1.5])) == [(0, 3), (5, 6)]


def test_empty_and_backward_spans_are_nothing() -> None:
    assert as_list(union([3, 5], [3, 4])) == []
    assert union([], []).length == 0 == NOTHING.length


@given(SPANS)
def test_a_union_is_sorted_disjoint_and_holds_the_same_seconds(spans: list[tuple[int, int]]) -> None:
    found = made(spans)
    assert (found.starts < found.ends).all()
    assert (found.ends[:-1] < found.starts[1:]).all()
    assert seconds([(int(start), int(end)) for start, end in as_list(found)]) == seconds(spans)


@given(SPANS, SPANS)
def test_joined_sets_hold_the_seconds_of_both(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert as_list(joined(made(one), made(other))) == as_list(made([*one, *other]))


@given(SPANS, st.lists(st.tuples(st.integers(-2, 32), st.integers(0, 9)), max_size=5))
def test_windows_hold_what_counting_says(spans: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    starts, ends = [start for start, _ in windows], [start + length for start, length in windows]
    counted = [len(seconds(spans) & set(range(start, end))) for start, end in zip(starts, ends, strict=True)]
    assert between(made(spans), starts, ends).tolist() == counted
    assert before(made(spans), [1000]).tolist() == [len(seconds(spans))]


@given(SPANS)
def test_a_moment_lies_in_the_window_that_has_begun_and_not_ended(spans: list[tuple[int, int]]) -> None:
    windows = made(spans)
    for moment, at in enumerate(holding(*windows, range(32)).tolist()):
        own = [number for number, (start, end) in enumerate(as_list(windows)) if start <= moment < end]
        assert [at] == (own or [-1])
