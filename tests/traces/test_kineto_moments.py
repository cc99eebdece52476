"""Sets of moments that grow, and what is left of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope import intervals as kineto_moments
from scalescope.intervals import Intervals, Moments, bridged, common, union, without

PIECES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12)
MOMENTS = np.arange(60) + 0.5


def made(pieces: list[tuple[int, int]]) -> Intervals:
    return union([start for start, _ in pieces], [start + length for start, length in pieces])


def holds(intervals: Intervals) -> list[bool]:
    return [bool(((intervals.starts <= at) & (at < intervals.ends)).any()) for at in MOMENTS]


@given(PIECES, PIECES)
def test_common_and_without_hold_the_moments_they_say(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    one, other = made(first), made(second)
    expected = list(zip(holds(one), holds(other), strict=True))
    assert holds(common(one, other)) == [a and b for a, b in expected]
    assert holds(without(one, other)) == [a and not b for a, b in expected]


@given(st.lists(PIECES, max_size=8), st.integers(0, 40), st.integers(0, 20))
def test_what_is_added_in_any_order_is_the_union(batches: list[list[tuple[int, int]]], begin: int, length: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_moments, "_AT_LEAST", 3)
        moments = Moments()
        for batch in batches:
            starts = np.array([start for start, _ in batch], dtype=float)
            moments.add(starts, starts + np.array([size for _, size in batch], dtype=float))
        whole = made([piece for batch in batches for piece in batch])
        found = moments.between()
        assert found.starts.tolist() == whole.starts.tolist()
        assert found.ends.tolist() == whole.ends.tolist()
        assert moments.last() == (whole.ends[-1] if len(whole.ends) else -np.inf)
        inside = [begin < at < begin + length for at in MOMENTS]
        part = holds(moments.between((begin, begin + length)))
        assert [a for a, b in zip(part, inside, strict=True) if b] == [
            a for a, b in zip(holds(whole), inside, strict=True) if b
        ]


def test_short_gaps_are_closed_and_long_ones_stay() -> None:
    found = bridged(Intervals(np.array([0.0, 2.0, 9.0]), np.array([1.0, 3.0, 10.0])), 1.5)
    assert found.starts.tolist() == [0.0, 9.0]
    assert found.ends.tolist() == [3.0, 10.0]
