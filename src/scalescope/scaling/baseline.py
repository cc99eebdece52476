"""Which point another one is compared with."""

from collections.abc import Iterable

from scalescope.records.run import Point


def baseline_of(point: Point, scaling: str, points: Iterable[Point]) -> Point | None:
    """One process without an engine, or the fewest of the same engine, doing the same work; None when there is none."""
    rivals = [each for each in points if each.arm == point.arm and _same_work(each, point, scaling)]
    alone = [each for each in rivals if each.engine == "none"]
    own = sorted((each for each in rivals if each.engine == point.engine), key=lambda each: each.np)
    if alone:
        return alone[0]
    return own[0] if len(own) > 1 else None


def _same_work(one: Point, other: Point, scaling: str) -> bool:
    return one.global_batch == other.global_batch if scaling == "strong" else one.batch == other.batch
