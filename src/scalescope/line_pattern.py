"""--pattern: one language for the lines that a training prints, read live by measure and from logs by explain.

It is a regular expression with named groups; each group holds a number, with or without thousands separators.
"""

import re
from collections.abc import Mapping

from scalescope.errors import UsageError
from scalescope.units import is_possible

# What a line can tell: seconds, or examples per second of all processes (or unknown) and of one.
MEASURES = ("epoch_s", "step_s", "examples_per_s", "examples_per_s_total", "examples_per_s_per_worker")
ASIDE = ("test_s", "epoch")  # What may stand next to it: seconds of validation, and the number of the epoch
EXAMPLE = r"--pattern 'epoch (?P<epoch>\d+).* (?P<epoch_s>[\d.]+) s'"


def compile_pattern(text: str, *, live: bool) -> re.Pattern[str]:
    """A user's --pattern, checked.

    Args:
        text: The regular expression.
        live: Lines are read while they are printed, one per step: their arrival tells the time, no group is needed.

    Raises:
        UsageError: It is no regular expression, or its groups are of no use here.
    """
    try:
        pattern = re.compile(text)
    except re.error as problem:
        raise UsageError(f"--pattern is no regular expression ({problem}): escape its special characters") from None
    groups, usable = set(pattern.groupindex), MEASURES[1:] if live else MEASURES
    listed = ", ".join(f"(?P<{name}>...)" for name in usable)
    if unknown := groups - {*MEASURES, *ASIDE}:
        raise UsageError(f"--pattern has an unknown group '{min(unknown)}': use {listed}")
    if not groups & set(usable) and (groups or not live):
        raise UsageError(f"--pattern needs a named group that tells {'steps' if live else 'times or rates'}: {listed}")
    return pattern


def number(text: str) -> float:
    """`1,234.5` as a number; ValueError for anything else."""
    return float(text.strip().replace(",", ""))


def live_values(found: re.Match[str]) -> dict[str, float]:
    """Read the groups of a line as far as they are positive numbers: a training must not fail by its output."""
    values = {}
    for name, text in found.groupdict().items():
        try:
            value = number(text or "")
        except ValueError:
            continue
        if is_possible(value):
            values[name] = value
    return values


def rate_of(values: Mapping[str, float], processes: int) -> float | None:
    """Examples per second of all processes, where a line tells it."""
    if "examples_per_s_per_worker" in values:
        return values["examples_per_s_per_worker"] * processes
    return values.get("examples_per_s_total", values.get("examples_per_s"))
