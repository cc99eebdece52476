"""How long whole commands take that start no ranks, here and, with REVISION=COMMIT, alternately with another state."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.structure import ROOT, source_at

ROUNDS = 9
_DATA = ROOT / "tests" / "data" / "traces"
COMMANDS = {
    "--help": ("--help",),
    "doctor": ("doctor",),
    "measure --dry-run": ("measure", "cnn", "--np", "1,2", "--dry-run"),
    "explain, a table": ("explain", str(ROOT / "examples" / "data" / "lab11.csv")),
    "explain, a timeline": ("explain", str(_DATA / "horovod" / "mpi_cnn.json.gz")),
    "explain, a timeline, with pictures": ("explain", str(_DATA / "horovod" / "mpi_cnn.json.gz"), "-o", "{folder}"),
}


def run() -> list[dict[str, Any]]:
    """One row per command."""
    revision = os.environ.get("REVISION", "")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        sources = {"here": ROOT / "src", **({revision: source_at(revision, place)} if revision else {})}
        return [_row(name, words, sources, place) for name, words in COMMANDS.items()]


def _row(name: str, words: tuple[str, ...], sources: dict[str, Path], place: Path) -> dict[str, Any]:
    taken: dict[str, list[float]] = {state: [] for state in sources}
    for index in range(ROUNDS + 1):  # the first one warms caches
        for state, source in sources.items():
            folder = place / f"{name}-{state}-{index}".replace(" ", "_").replace(",", "")
            seconds = _seconds(tuple(word.format(folder=folder) for word in words), source)
            taken[state] += [seconds] if index else []
    row: dict[str, Any] = {"command": name, "here, s": round(median(taken["here"]), 3)}
    for state in list(sources)[1:]:
        ratios = [old / new for old, new in zip(taken[state], taken["here"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        row |= {f"{state}, s": round(median(taken[state]), 3), "times faster": round(median(ratios), 2)}
        row["quartiles"] = f"{low:.2f} to {high:.2f}"
    return row


def _seconds(words: tuple[str, ...], source: Path) -> float:
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "scalescope", *words],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - began
