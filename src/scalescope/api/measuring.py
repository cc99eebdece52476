"""How fast it is, and how fast it would be."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from scalescope.api.silent import Silent
from scalescope.api.workload import workload_of
from scalescope.errors import UsageError
from scalescope.estimation.estimate import Audience as EstimateAudience
from scalescope.estimation.estimate import estimate as run_estimate
from scalescope.estimation.probe import probe_cluster
from scalescope.jobs.folders import result_folder
from scalescope.jobs.machine import describe_machine
from scalescope.jobs.request import parse_hosts
from scalescope.measurement.sweep import Audience, continue_measurement
from scalescope.measurement.sweep import measure as run_measurement
from scalescope.records.cluster import Cluster
from scalescope.records.machine import Machine
from scalescope.records.prediction import Prediction
from scalescope.records.profile import Scalar, WorkloadSpec
from scalescope.records.request import SCALINGS, EstimateRequest, MeasureRequest, ProbeRequest
from scalescope.records.run import Measurement


def doctor() -> Machine:
    """What this machine has."""
    return describe_machine()


def measure(
    model: str | WorkloadSpec = "",
    *,
    command: Sequence[str] = (),
    np: Sequence[int] = (1, 2),
    batch: Sequence[int] = (),
    scaling: Literal["strong", "weak", "both"] = "weak",
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
    launches: int | None = None,
    precision: float | None = None,
    budget_s: float | None = None,
    quick: bool = False,
    aa: bool = False,
    smallest: bool = False,
    trace: bool = False,
    seed: int | None = None,
    audience: Audience | None = None,
) -> Measurement:
    """Launch a model, or a command instead, at every point and return what was measured; `study` makes sense of it."""
    if bool(model) == bool(command):
        raise UsageError("name one thing to measure: a model such as 'cnn', or a command")
    if scaling not in SCALINGS:
        raise UsageError(f"scaling is one of {', '.join(SCALINGS)}, not '{scaling}'")
    request = MeasureRequest(
        workload=workload_of(model, model_args, inputs) if model else None,
        command=tuple(command),
        np=tuple(np),
        batch=tuple(batch),
        scaling=SCALINGS[scaling],
        engines=tuple(name.strip() for name in engine.split(",") if name) if isinstance(engine, str) else tuple(engine),
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
        launches=launches,
        precision=precision,
        budget_s=budget_s,
        quick=quick,
        aa=aa,
        smallest=smallest,
        trace=trace,
        seed=seed,
    )
    return run_measurement(request, audience or Silent())[1]


def estimate(
    model: str | WorkloadSpec,
    *,
    np: Sequence[int] = (),
    batch: Sequence[int] = (8, 16, 32, 64, 128, 256, 512),
    scaling: Literal["strong", "weak", "both"] = "weak",
    engine: str = "ddp",
    cluster: str | Path = "",
    profile: str | Path = "",
    knobs: Mapping[str, object] | None = None,
    threads_per_rank: int | None = None,
    model_args: Mapping[str, Scalar] | None = None,
    inputs: Sequence[str] = (),
    device: str = "auto",
    seconds: float = 35.0,
    repeats: int = 8,
    efficiency: float = 0.8,
    verify: int = 0,
    launches: int = 3,
    timeout_s: float = 600.0,
    folder: str | Path = "",
    audience: EstimateAudience | None = None,
) -> Prediction:
    """How fast a model would be at every number of processes and batch size; cluster and profile are files."""
    if scaling not in SCALINGS:
        raise UsageError(f"scaling is one of {', '.join(SCALINGS)}, not '{scaling}'")
    request = EstimateRequest(
        workload=workload_of(model, model_args, inputs),
        np=tuple(np),
        batch=tuple(batch),
        scaling=SCALINGS[scaling],
        engine=engine,
        knobs=tuple(f"{name}={value}" for name, value in (knobs or {}).items()),
        cluster=str(cluster),
        profile=str(profile),
        threads_per_rank=threads_per_rank,
        device=device,
        seconds=seconds,
        repeats=repeats,
        efficiency=efficiency,
        verify=verify,
        launches=launches,
        timeout_s=timeout_s,
        folder=str(folder),
    )
    return run_estimate(request, audience or Silent())[1]


def probe(
    *,
    hosts: str = "",
    backends: Sequence[str] = ("gloo",),
    slots: int | None = None,
    threads_per_rank: int = 1,
    device: str = "auto",
    seconds: float = 8.0,
    timeout_s: float = 600.0,
    folder: str | Path = "",
    audience: EstimateAudience | None = None,
) -> Cluster:
    """What collectives cost among the ranks of this machine or of named hosts."""
    request = ProbeRequest(
        backends=tuple(backends),
        hosts=parse_hosts(hosts),
        slots=slots,
        threads_per_rank=threads_per_rank,
        device=device,
        seconds=seconds,
        timeout_s=timeout_s,
    )
    with result_folder("probe", folder) as place:
        return probe_cluster(msgspec.structs.replace(request, folder=str(place)), audience or Silent())


def resume(
    folder: str | Path,
    *,
    launches: int | None = None,
    precision: float | None = None,
    budget_s: float | None = None,
    timeout_s: float | None = None,
    audience: Audience | None = None,
) -> Measurement:
    """Go on with an interrupted measurement, or add launches to a finished one."""
    limits = {"launches": launches, "precision": precision, "budget_s": budget_s, "timeout_s": timeout_s}
    given = {name: value for name, value in limits.items() if value is not None}
    return continue_measurement(Path(folder), given, audience or Silent())[1]
