"""A whole study of the examples' DDP script on two hosts with a slow link: do launches confirm what tuning found?"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.command import scalescope_words
from benchmarks.namespaces import lab_of
from benchmarks.tune_example import DDP
from scalescope.show.study import check_words
from scalescope.show.tuning import sentence
from scalescope.studies.results import read_results

FOLDER = Path("results") / "bench" / "study_hosts"
RATE, BUDGET = "100mbit", "15m"


def run() -> list[dict[str, Any]]:
    """Started on the first host, as a user would; what it prints is shown, and the page stays."""
    subprocess.run(["rm", "-rf", str(FOLDER)], check=True)
    with lab_of(2, RATE) as lab:
        hosts = ",".join(f"{host}:2" for host in lab.names)
        words = ["study", "--np", "1,4", "--hosts", hosts, "--threads-per-rank", "1", "--budget", BUDGET]
        command = scalescope_words(*words, "-o", str(FOLDER), "--", sys.executable, *DDP)
        lab.run("h1", command, check=True)
    (results,) = read_results([FOLDER])
    assert results.study is not None
    tuning = results.tuning
    told = {"tune": sentence(tuning) if tuning else "", "check": check_words(results)}
    return [
        {
            "part": part.name,
            "planned s": part.planned_s,
            "used s": part.used_s,
            "state": part.state,
            "": part.why or told.get(part.name, ""),
        }
        for part in results.study.parts
    ]
