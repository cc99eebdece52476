"""Assumptions of tables and logs: whose a rate is, which repetitions belong together, what is compared."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from scalescope.records.scaling import Curve
from scalescope.text import listed
from scalescope.units import format_rate

# A worker's own rate hardly ever grows with the number of workers; a total that scales at all grows by more.
_GROWS = 1.1


def whose_rate(rates: Mapping[int, float], *, rename: str) -> tuple[bool, str]:
    """Decide whether rates by number of processes are totals, and why; `rename` says how to overrule it."""
    fewest, most = min(rates), max(rates)
    are_totals = fewest == most or rates[most] > _GROWS * rates[fewest]
    taken, other = ("as the total of all", "per_worker") if are_totals else ("as per worker", "total")
    span = listed([f"{format_rate(rates[np])} at np {np}" for np in sorted({fewest, most})])
    return are_totals, f"the rate is {span}: read {taken}; {rename.format(other)} if it is not"


def rounds(sizes: Sequence[Hashable]) -> list[int]:
    """Number the repetitions of each size, in order; none share a round where one size has more of them."""
    seen: Counter[Hashable] = Counter()
    numbers = []
    for size in sizes:
        seen[size] += 1
        numbers.append(seen[size])
    return numbers if len(set(seen.values())) == 1 else list(range(1, len(sizes) + 1))


def without_one_process(curve: Curve) -> list[str]:
    """Say what speedups are relative to, where it is not 1 process."""
    if curve.baseline_np is None:
        return ["one number of processes only, nothing to compare with: add the others"]
    if curve.baseline_np > 1:
        return [f"1 process was not measured: speedups are relative to {curve.baseline_np}"]
    return []
