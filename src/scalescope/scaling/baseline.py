"""Which point another one is compared with."""

from collections.abc import Iterable

import msgspec

from scalescope.records.run import Point


def baseline_of(point: Point, scaling: str, points: Iterable[Point]) -> Point | None:
    """One process without an engine, or the fewest of the same engine, doing the same work; None when there is none."""
    mine = [each for each in points if each.arm == point.arm]
    rivals = [each for each in mine if _same_work(each, point, scaling)]
    if any(each.engine == "none" and each.np == 1 for each in mine):
        return next((each for each in rivals if each.engine == "none" and each.np == 1), None)
    own = sorted((each for each in rivals if each.engine == point.engine), key=lambda each: each.np)
    return own[0] if len(own) > 1 else None


def _same_work(one: Point, other: Point, scaling: str) -> bool:
    return one.global_batch == other.global_batch if scaling == "strong" else one.batch == other.batch


def twin(point: Point) -> Point | None:
    """The same configuration under the other name, when one is compared with itself."""
    return msgspec.structs.replace(point, arm="B" if point.arm == "A" else "A") if point.arm else None
