"""Chooses the batch sizes of a profile: both ends, then where the line between neighbours is least certain."""

import math
from collections.abc import Mapping, Sequence

# The next larger batch is at most this many times the largest measured one: its time and memory are then foreseeable.
_LEAP = 8
# A batch size that nobody asked for is measured when it is this many times the largest so far: the line gets longer.
_WORTH = 1.5
_BLOCK_S = 0.7
_FEWEST, _MOST = 3, 200  # Steps of a block
_GOOD = 0.02  # A relative miss of interpolation that is good enough


def next_batch(steps_s: Mapping[int, float], wanted: Sequence[int], affordable_s: float) -> int | None:
    """The batch size to measure next, given the steps measured so far; None when there are enough.

    Only batch sizes whose step is expected to take `affordable_s` at most are tried, apart from the smallest.
    """
    sizes = sorted(set(wanted))
    if not steps_s:
        return min(sizes, default=None)
    measured = sorted(steps_s)
    largest = measured[-1]
    if (larger := _larger(steps_s, sizes, affordable_s)) is not None:
        return larger
    inner = [size for size in sizes if measured[0] < size < largest and size not in steps_s]
    if not inner:
        return None
    misses = misses_of(steps_s)
    score, best = max((_doubt(size, measured, misses), size) for size in inner)
    return best if score > _GOOD else None


def _larger(steps_s: Mapping[int, float], sizes: Sequence[int], affordable_s: float) -> int | None:
    """The next batch size above the measured ones: a wanted one, or as near to it as time allows."""
    *_, largest = sorted(steps_s)
    per_sample_s = steps_s[largest] / largest
    if len(steps_s) > 1:  # most of a small step may not depend on the batch
        smallest = min(steps_s)
        slope_s = (steps_s[largest] - steps_s[smallest]) / (largest - smallest)
        per_sample_s = min(max(slope_s, per_sample_s / _LEAP), per_sample_s)
    reach = min(largest + max(affordable_s - steps_s[largest], 0.0) / per_sample_s, _LEAP * largest)
    above = [size for size in sizes if size > largest]
    within = [size for size in above if size <= reach]
    if within:
        return max(within)
    return int(reach) if above and reach >= _WORTH * largest else None


def misses_of(steps_s: Mapping[int, float]) -> dict[int, float]:
    """By inner batch size: how far its step lies off the line between its neighbours, relatively."""
    sizes = sorted(steps_s)
    misses = {}
    for before, size, after in zip(sizes, sizes[1:], sizes[2:], strict=False):
        share = (size - before) / (after - before)
        misses[size] = steps_s[size] / (steps_s[before] + share * (steps_s[after] - steps_s[before])) - 1
    return misses


def _doubt(size: int, measured: Sequence[int], misses: Mapping[int, float]) -> float:
    """Possible error of the line at an unmeasured size: the misses next to it, more in the middle of a wide gap."""
    below = max(each for each in measured if each < size)
    above = min(each for each in measured if each > size)
    nearby = max((abs(misses[each]) for each in (below, above) if each in misses), default=0.5)
    gap = math.log2(above / below)
    depth = min(math.log2(size / below), math.log2(above / size)) / gap
    # Halving a gap divides the miss of a smooth curve by four; the nearest misses come from gaps about twice as wide.
    return nearby * depth * min(gap, 4.0) / 2


def steps_of_block(step_s: float) -> int:
    """Number of steps of a block."""
    return min(max(round(_BLOCK_S / max(step_s, 1e-6)), _FEWEST), _MOST)


def expected_bytes(measured: Mapping[int, float], batch: int) -> float:
    """The memory that a batch size above the measured ones would need; 0 where that is not known."""
    known = sorted(measured.items())
    if len(known) < 2 or batch <= known[-1][0]:
        return 0.0
    (low, low_bytes), (high, high_bytes) = known[0], known[-1]
    return high_bytes + (high_bytes - low_bytes) / (high - low) * (batch - high)
