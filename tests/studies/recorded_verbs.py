"""Verbs that write down what a study asks of them instead of launching it, and studies whose parts ask them."""

import sys
from pathlib import Path
from typing import Any

import made_explanation
from test_expectations import MODEL
from test_measurement import measurement, run

from scalescope.jobs.folders import result_folder
from scalescope.progress import Progress
from scalescope.records.cluster import Cluster
from scalescope.records.explanation import Explanation
from scalescope.records.files import PLAN
from scalescope.records.request import EstimateRequest, MeasureRequest
from scalescope.records.run import Measurement
from scalescope.records.store import save
from scalescope.records.study import StudyPlan, StudyRequest
from scalescope.studies.parts import Parts
from simulator import made

SCRIPT = StudyRequest(command=(sys.executable, "x.py"), device="cpu", np=(1, 2, 4), env={"A": "1"}, oversubscribe=True)
OF_MODEL = StudyRequest(workload=MODEL, device="cpu", np=(1, 2, 4), oversubscribe=True)
PROGRESS = Progress()


class Verbs:
    """Stand for the verbs, which launch processes; what they would leave on disk is written."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, Any]] = []
        self.fails: list[Exception] = []
        self.runs = [run("none", 1, 80), run("ddp", 2, 80)]

    def names(self) -> list[str]:
        return [name for name, _, _ in self.asked]

    def _told(self, name: str, what: Any, more: Any, progress: Progress) -> None:
        assert progress is PROGRESS
        self.asked.append((name, what, more))
        if self.fails:
            raise self.fails.pop(0)

    def measure(self, request: MeasureRequest, progress: Progress) -> Measurement:
        folder = Path(request.folder)
        with result_folder("measure", folder):
            (folder / PLAN).write_text("{}")
        self._told("measure", request, None, progress)
        made = measurement(*self.runs)
        save(made, folder / "measurement.json")
        return made

    def continue_measurement(self, folder: Path, limits: Any, progress: Progress) -> Measurement:
        self._told("continue", folder, limits, progress)
        return measurement(*self.runs)

    def estimate(self, request: EstimateRequest, progress: Progress) -> None:
        self._told("estimate", request, None, progress)

    def probe_cluster(self, request: Any, progress: Progress) -> Cluster:
        self._told("probe", request, None, progress)
        return made.described(100.0, slots=4)

    def tune(self, request: Any, progress: Progress) -> None:
        self._told("tune", request, None, progress)

    def resume_search(self, folder: Path, progress: Progress, seconds: float) -> None:
        self._told("resume", folder, seconds, progress)

    def traced_run(self, request: MeasureRequest, progress: Progress) -> Path:
        self._told("trace", request, None, progress)
        return Path(request.folder)

    def explain(self, places: list[Path]) -> Explanation:
        return made_explanation.ddp(2, 6, what=places[0].name)


def part_of(folder: Path, request: StudyRequest = OF_MODEL, **changes: Any) -> Parts:
    settled: dict[str, Any] = {
        "engines": ("ddp", "horovod"),
        "np": (1, 2, 4),
        "batches": (8, 16),
        "start_s": 5.0,
        "sample_s": 0.001,
    }
    return Parts(StudyPlan(request=request, cwd="/", **(settled | changes)), folder)


def done(folder: Path, part: str, request: StudyRequest = OF_MODEL, **changes: Any) -> None:
    part_of(folder, request, **changes).run(part, 77.0, PROGRESS)
