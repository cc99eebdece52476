"""Verbs that write down what a study asks of them instead of launching it, and studies whose parts ask them."""

import sys
from pathlib import Path
from typing import Any

import made_explanation
from test_expectations import MODEL
from test_measurement import measurement, run

from scalescope.estimation.estimate import PLAN
from scalescope.jobs.folders import result_folder
from scalescope.records.cluster import Cluster
from scalescope.records.explanation import Explanation
from scalescope.records.request import EstimateRequest, MeasureRequest
from scalescope.records.run import Measurement
from scalescope.records.store import save
from scalescope.records.study import StudyPlan, StudyRequest
from scalescope.studies.parts import Parts
from simulator import made

SCRIPT = StudyRequest(command=(sys.executable, "x.py"), device="cpu", np=(1, 2, 4), env={"A": "1"}, oversubscribe=True)
OF_MODEL = StudyRequest(workload=MODEL, device="cpu", np=(1, 2, 4), oversubscribe=True)
LISTENER = object()


class Verbs:
    """Stand for the verbs, which launch processes; what they would leave on disk is written."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, Any]] = []
        self.fails: list[Exception] = []
        self.runs = [run("none", 1, 80), run("ddp", 2, 80)]

    def names(self) -> list[str]:
        return [name for name, _, _ in self.asked]

    def _told(self, name: str, what: Any, more: Any, listener: object) -> None:
        assert listener is LISTENER
        self.asked.append((name, what, more))
        if self.fails:
            raise self.fails.pop(0)

    def measure(self, request: MeasureRequest, listener: object) -> Measurement:
        folder = Path(request.folder)
        with result_folder("measure", folder):
            (folder / PLAN).write_text("{}")
        self._told("measure", request, None, listener)
        made = measurement(*self.runs)
        save(made, folder / "measurement.json")
        return made

    def continue_measurement(self, folder: Path, limits: Any, listener: object) -> Measurement:
        self._told("continue", folder, limits, listener)
        return measurement(*self.runs)

    def estimate(self, request: EstimateRequest, listener: object) -> None:
        self._told("estimate", request, None, listener)

    def probe_cluster(self, request: Any, listener: object) -> Cluster:
        self._told("probe", request, None, listener)
        return made.described(100.0, slots=4)

    def tune(self, request: Any, listener: object) -> None:
        self._told("tune", request, None, listener)

    def resume_search(self, folder: Path, listener: object, seconds: float) -> None:
        self._told("resume", folder, seconds, listener)

    def traced_run(self, request: MeasureRequest, listener: object) -> Path:
        self._told("trace", request, None, listener)
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
    return Parts(StudyPlan(request=request, cwd="/", **(settled | changes)), folder, LISTENER)


def done(folder: Path, part: str, request: StudyRequest = OF_MODEL, **changes: Any) -> None:
    part_of(folder, request, **changes).run(part, 77.0)
