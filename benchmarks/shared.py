"""What sections share: tables, scalescope as a user runs it, GPUs, hosts out of namespaces."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalescope import host
from scalescope.errors import UsageError

ROOT = Path(__file__).parents[1]
LONGEST_S = 18 * 60.0  # A long section begins nothing new after so long; its next run continues


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line per row, columns as wide as they must be."""
    if not rows:
        return
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    texts = [[_text(row.get(heading)) for heading in headings] for row in rows]
    widths = [max(len(line[at]) for line in [headings, *texts]) for at in range(len(headings))]
    for line in [headings, ["-" * width for width in widths], *texts]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    print(flush=True)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


class Unfinished(Exception):
    """A section that needs another run; what it has so far."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows


def scalescope_words(*words: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "scalescope", *words]


def scalescope(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> tuple[Any, float]:
    """What --json prints, and the seconds it took."""
    started = time.monotonic()
    command = scalescope_words(*words[:1], "--json", *words[1:])
    around = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=cwd, env=around, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"scalescope {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout), time.monotonic() - started


def need_gpu() -> None:
    """Refuse to run where there is no GPU."""
    if not host.gpus():
        raise UsageError("this section needs a GPU: run it where nvidia-smi shows one")


@contextmanager
def lab_of(count: int, rate: str) -> Iterator[Any]:
    """`count` hosts, h1 and on, whose links are shaped to `rate`; gone afterwards."""
    if os.geteuid():
        raise UsageError("this section makes hosts out of network namespaces: run it as root")
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from hosts import Lab

    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(tuple(f"h{number}" for number in range(1, count + 1)), Path(folder), rate)
        try:
            yield lab
        finally:
            lab.remove()
