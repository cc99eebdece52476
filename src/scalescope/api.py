"""The verbs as functions: the same answers as on the command line, as records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from scalescope.errors import UsageError
from scalescope.measurement.machine import describe_machine
from scalescope.measurement.request import MeasureRequest, parse_hosts
from scalescope.measurement.sweep import Audience
from scalescope.measurement.sweep import measure as run_measurement
from scalescope.records.machine import Machine
from scalescope.records.run import Failure, Measurement, Point, Run
from scalescope.records.workload import Scalar, WorkloadSpec


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
    model: str | WorkloadSpec = "",
    *,
    command: Sequence[str] = (),
    np: Sequence[int] = (1, 2),
    batch: Sequence[int] = (),
    scaling: Literal["strong", "weak"] = "weak",
    engine: str | Sequence[str] = (),
    launcher: str = "",
    hosts: str = "",
    knobs: Mapping[str, object] | None = None,
    threads_per_rank: int | None = None,
    env: Mapping[str, str] | None = None,
    launcher_args: Sequence[str] = (),
    model_args: Mapping[str, Scalar] | None = None,
    inputs: Sequence[str] = (),
    steps: int | None = None,
    pattern: str = "",
    device: str = "auto",
    timeout_s: float = 600.0,
    oversubscribe: bool = False,
    folder: str | Path = "",
    audience: Audience | None = None,
) -> Measurement:
    """Launch a model, or a command instead, at every point and return what was measured."""
    if bool(model) == bool(command):
        raise UsageError("name one thing to measure: a model such as 'cnn', or a command")
    workload = model if isinstance(model, WorkloadSpec) else None
    if model and isinstance(model, str):
        workload = WorkloadSpec(model=model, model_args=dict(model_args or {}), inputs=tuple(inputs))
    request = MeasureRequest(
        workload=workload,
        command=tuple(command),
        np=tuple(np),
        batch=tuple(batch),
        scaling=scaling,
        engines=(engine,) if isinstance(engine, str) and engine else tuple(engine),
        launcher=launcher,
        hosts=parse_hosts(hosts),
        knobs=tuple(f"{name}={value}" for name, value in (knobs or {}).items()),
        threads_per_rank=threads_per_rank,
        env=dict(env or {}),
        launcher_args=tuple(launcher_args),
        steps=steps,
        pattern=pattern,
        device=device,
        timeout_s=timeout_s,
        oversubscribe=oversubscribe,
        folder=str(folder),
    )
    return run_measurement(request, audience or Silent())[1]
