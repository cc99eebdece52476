"""Sets of moments as sorted, disjoint intervals (start, end)."""

from collections.abc import Iterable, Sequence

Intervals = list[tuple[float, float]]


def union(spans: Iterable[tuple[float, float]]) -> Intervals:
    """All moments that lie in any of the spans."""
    merged: Intervals = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def intersection(a: Sequence[tuple[float, float]], b: Sequence[tuple[float, float]]) -> Intervals:
    """Moments that lie in both."""
    shared: Intervals = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            shared.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return shared


def difference(a: Sequence[tuple[float, float]], b: Sequence[tuple[float, float]]) -> Intervals:
    """Moments of `a` that do not lie in `b`."""
    left: Intervals = []
    at = 0
    for start, end in a:
        while at < len(b) and b[at][1] <= start:
            at += 1
        here = at
        while here < len(b) and b[here][0] < end:
            if b[here][0] > start:
                left.append((start, b[here][0]))
            start = max(start, b[here][1])
            here += 1
        if start < end:
            left.append((start, end))
    return left


def length(intervals: Sequence[tuple[float, float]]) -> float:
    """How long they last together."""
    return sum(end - start for start, end in intervals)
