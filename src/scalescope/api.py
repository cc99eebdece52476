"""The verbs as functions: the same answers as on the command line, as records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalescope.measurement.machine import describe_machine
from scalescope.measurement.request import MeasureRequest, parse_hosts
from scalescope.measurement.sweep import Audience
from scalescope.measurement.sweep import measure as run_measurement
from scalescope.records.machine import Machine
from scalescope.records.run import Failure, Measurement, Point, Run
from scalescope.records.workload import WorkloadSpec


class Silent:
    """An audience that is told everything and says nothing."""

    def planned(self, launches: int, seconds: float | None) -> None:
        """Before the first launch."""

    def begins(self, index: int, point: Point, steps: int | None) -> None:
        """A launch begins."""

    def steps(self, count: int) -> None:
        """Steps done in this launch."""

    def line(self, source: str, text: str) -> None:
        """A line of output."""

    def ends(self, outcome: Run | Failure) -> None:
        """A launch has ended."""


def doctor() -> Machine:
    """What this machine has."""
    return describe_machine()


def measure(
    model: str | WorkloadSpec | None = None,
    *,
    command: Sequence[str] = (),
    np: Sequence[int] = (1, 2),
    batch: Sequence[int] = (),
    engine: Sequence[str] = (),
    hosts: str = "",
    model_args: Mapping[str, Any] | None = None,
    inputs: Sequence[str] = (),
    folder: str | Path = "",
    audience: Audience | None = None,
    **options: Any,
) -> Measurement:
    """Launch a model (or a command) at every point and return what was measured; `options` as in MeasureRequest."""
    workload = model
    if isinstance(model, str):
        workload = WorkloadSpec(model=model, model_args=dict(model_args or {}), inputs=tuple(inputs))
    request = MeasureRequest(
        workload=workload,  # type: ignore[arg-type]
        command=tuple(command),
        np=tuple(np),
        batch=tuple(batch),
        engines=tuple(engine),
        hosts=parse_hosts(hosts),
        folder=str(folder),
        **options,
    )
    return run_measurement(request, audience or Silent())[1]
