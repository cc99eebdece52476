"""What tables and logs leave open: whose a rate is, and which repetitions belong together."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from scalescope.units import format_rate

# A worker's own rate hardly ever grows with the number of workers; a total that scales at all grows by more.
_GROWS = 1.1


def whose_rate(name: str, rates: Mapping[int, float], *, rename: str) -> tuple[bool, str]:
    """Decide whether rates by number of processes are totals, and why; `rename` says how to overrule it."""
    fewest, most = min(rates), max(rates)
    each, total = rename.format("per_worker"), rename.format("total")
    if fewest == most:
        return True, f"{name} is read as the total of all {most} processes; {each} if it is each one's"
    first, last = rates[fewest], rates[most]
    span = f"from {fewest} to {most} ({format_rate(first)} to {format_rate(last)})"
    if last > _GROWS * first:
        return True, f"{name} grows {span}: read as the total of all; {each} if it is each one's"
    change = "hardly changes" if last > first / 1.5 else "falls"
    return False, f"{name} {change} {span}: read as per worker; {total} if it is the sum"


def rounds(sizes: Sequence[Hashable]) -> list[int]:
    """Number the repetitions of each size, in order; none share a round where one size has more of them."""
    seen: Counter[Hashable] = Counter()
    numbers = []
    for size in sizes:
        seen[size] += 1
        numbers.append(seen[size])
    return numbers if len(set(seen.values())) == 1 else list(range(1, len(sizes) + 1))
