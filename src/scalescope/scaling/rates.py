"""Rates that do not say whose they are: a total grows with the processes, a worker's own stays about level."""

from collections.abc import Mapping
from typing import NamedTuple

from scalescope.units import format_rate

_GROWS = 1.1
"""A worker's own rate hardly ever grows with the number of workers; a total that scales at all grows by more."""


class Inference(NamedTuple):
    """What a rate was taken for, and why."""

    total: bool
    sentence: str


def infer(name: str, rates: Mapping[int, float], *, rename: str) -> Inference:
    """Whether rates by number of processes are totals; `rename` tells how to overrule, with {} for the right word."""
    fewest, most = min(rates), max(rates)
    if fewest == most:
        advice = rename.format("per_worker")
        return Inference(True, f"{name} is read as the total of all {most} processes; {advice} if it is each one's")
    first, last = rates[fewest], rates[most]
    span = f"from {fewest} to {most} ({format_rate(first)} to {format_rate(last)})"
    if last > _GROWS * first:
        advice = rename.format("per_worker")
        return Inference(True, f"{name} grows {span}: read as the total of all; {advice} if it is each one's")
    change = "hardly changes" if last > first / 1.5 else "falls"
    return Inference(False, f"{name} {change} {span}: read as per worker; {rename.format('total')} if it is the sum")
