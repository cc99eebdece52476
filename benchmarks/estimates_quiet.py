"""Ten estimates of the cnn in a row, nothing else running."""

from typing import Any

from benchmarks.estimates import run_section


def run() -> list[dict[str, Any]]:
    """The rows of the section."""
    return run_section("quiet", busy=False)
