"""The strong and weak scaling study in small: 1, 2 and 4 hosts out of network namespaces, DDP beside Horovod."""

import subprocess
from pathlib import Path
from typing import Any

from benchmarks.command import scalescope_words
from benchmarks.namespaces import lab_of
from scalescope.records.scaling import Scaling
from scalescope.records.store import load

FOLDER = Path("results") / "bench" / "hosts"
STUDIES = {
    "batch": ("--np", "1", "--batch", "8,16,...,128", "--launches", "5"),
    "scaling": ("--np", "1,2,4", "--batch", "32", "--scaling", "both", "--launches", "5"),
}


def run() -> list[dict[str, Any]]:
    """Both studies, each resumable; the rows are what their figures show."""
    rows = []
    with lab_of(4, "1gbit") as lab:
        for study, words in STUDIES.items():
            rows += _rows(study, _measure(lab, FOLDER / study, words))
    return rows


def _measure(lab: Any, folder: Path, words: tuple[str, ...]) -> Scaling:
    """Started on the first host, as a user would; what an earlier run has finished is kept."""
    if (folder / "plan.json").exists():
        command: tuple[str, ...] = ("measure", "--resume", str(folder))
    else:
        names = ",".join(f"{host}:1" for host in lab.names)
        where = ("--hosts", names, "--threads-per-rank", "1", "-o", str(folder))
        command = ("measure", "cnn", "--engine", "ddp,horovod", *where, *words)
    lab.run("h1", scalescope_words(*command), check=True, stdout=subprocess.DEVNULL)
    return load(folder / "scaling.json", Scaling)


def _rows(study: str, scaling: Scaling) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for curve in scaling.curves:
        for point in curve.points:
            steady, rate = point.speedup.get("steady"), point.throughput
            row = {
                "study": study if study == "batch" else curve.scaling,
                "engine": point.engine,
                "hosts": point.nodes,
                "batch each": point.batch,
                "samples/s": rate.value if rate else None,
                "speedup": f"{steady.value:.2f} ({steady.low:.2f} to {steady.high:.2f})" if steady else "",
                "launches": point.launches,
            }
            rows += [row] if row not in rows else []
    return rows
