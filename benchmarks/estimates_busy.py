"""Ten estimates of the cnn in a row, next to a program that takes one core in bursts."""

from typing import Any

from benchmarks.estimates import run_section


def run() -> list[dict[str, Any]]:
    """The rows of the section."""
    return run_section("busy", busy=True)
