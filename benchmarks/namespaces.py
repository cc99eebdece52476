"""Hosts of the sections that need several: those of the tests, network namespaces on this machine (needs root)."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def lab_of(count: int, rate: str) -> Iterator[Any]:
    """`count` hosts, h1 and on, whose links are shaped to `rate`; gone afterwards."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from hosts import Lab

    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(tuple(f"h{number}" for number in range(1, count + 1)), Path(folder), rate)
        try:
            yield lab
        finally:
            lab.remove()
