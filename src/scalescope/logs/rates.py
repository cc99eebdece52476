"""Decides whether a rate is per worker or in total when a table or a log does not say."""

from collections.abc import Mapping

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
