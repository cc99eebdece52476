"""The verbs as functions: the same answers as on the command line, as records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from scalescope.diagnosis.sources import explain as explain_sources
from scalescope.errors import UsageError
from scalescope.measurement.cluster import probe_cluster
from scalescope.measurement.estimate import Audience as EstimateAudience
from scalescope.measurement.estimate import estimate as run_estimate
from scalescope.measurement.machine import describe_machine
from scalescope.measurement.request import parse_hosts
from scalescope.measurement.sweep import Audience, continue_measurement
from scalescope.measurement.sweep import measure as run_measurement
from scalescope.measurement.trace import traced_run
from scalescope.prediction.grid import Question as Question
from scalescope.prediction.grid import predict as predict
from scalescope.records.autotune import Autotune
from scalescope.records.cluster import Cluster
from scalescope.records.explanation import Explanation
from scalescope.records.machine import Machine
from scalescope.records.prediction import Prediction
from scalescope.records.request import SCALINGS, EstimateRequest, MeasureRequest, ProbeRequest
from scalescope.records.run import Failure, Measurement, Point, Run
from scalescope.records.scaling import Scaling
from scalescope.records.workload import Scalar, WorkloadSpec
from scalescope.scaling.study import study as study


class Silent:
    """An audience that is told everything and says nothing."""

    def planned(self, points: int, fewest: int, most: int, done: int, seconds: float | None) -> None:
        """Before the first launch."""

    def begins(self, index: int, point: Point, steps: int | None) -> None:
        """A launch begins."""

    def steps(self, count: int) -> None:
        """Steps done in this launch."""

    def line(self, source: str, text: str) -> None:
        """A line of output."""

    def ends(self, outcome: Run | Failure) -> None:
        """A launch has ended."""

    def stage(self, what: str, seconds: float | None) -> None:
        """A part of an estimate or a probe begins."""

    def tick(self, done: int) -> None:
        """So much of it is done."""


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
    workload = model if isinstance(model, WorkloadSpec) else None
    if model and isinstance(model, str):
        workload = WorkloadSpec(model=model, model_args=dict(model_args or {}), inputs=tuple(inputs))
    request = MeasureRequest(
        workload=workload,
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
    folder: str | Path = "",
    audience: EstimateAudience | None = None,
) -> Prediction:
    """How fast a model would be at every number of processes and batch size; cluster and profile are files."""
    if scaling not in SCALINGS:
        raise UsageError(f"scaling is one of {', '.join(SCALINGS)}, not '{scaling}'")
    request = EstimateRequest(
        workload=model
        if isinstance(model, WorkloadSpec)
        else WorkloadSpec(model=model, model_args=dict(model_args or {}), inputs=tuple(inputs)),
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
    folder: str | Path = "results/probe",
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
        folder=str(Path(folder).absolute()),
    )
    return probe_cluster(request, audience or Silent())


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


def explain(
    paths: str | Path | Sequence[str | Path] = (),
    *,
    command: Sequence[str] = (),
    np: Sequence[int] = (),
    pattern: str = "",
    estimate: str | Path = "",
    engine: str = "",
    launcher: str = "",
    hosts: str = "",
    threads_per_rank: int | None = None,
    env: Mapping[str, str] | None = None,
    steps: int | None = None,
    folder: str | Path = "",
    audience: Audience | None = None,
) -> Scaling | Explanation | Autotune:
    """Where the time goes: what traces, run folders, tables or logs say, or a command that is captured now.

    `np` names the processes of each log, or those of the command. Traces give an Explanation, tables, logs and
    measurements a Scaling, Horovod's autotune log an Autotune.
    """
    given = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not command:
        return explain_sources(given, np=tuple(np), pattern=pattern, estimate=Path(estimate) if estimate else None)
    if given:
        raise UsageError("name files or a command to explain, not both")
    request = MeasureRequest(
        command=tuple(command),
        np=tuple(np) or (2,),
        engines=(engine,) if engine else (),
        launcher=launcher,
        hosts=parse_hosts(hosts),
        threads_per_rank=threads_per_rank,
        env=dict(env or {}),
        steps=steps,
        folder=str(folder),
        trace=True,
    )
    captured = traced_run(request, audience or Silent())
    return explain_sources([captured], estimate=Path(estimate) if estimate else None)


def draw(record: Measurement | Scaling | Prediction | Explanation | Autotune, folder: str | Path) -> list[Path]:
    """Draw what was measured, read, predicted or explained, in every format; the files."""
    place = Path(folder)
    if isinstance(record, Prediction):
        from scalescope.reporting.charts.prediction import write_prediction_charts

        return write_prediction_charts(record, place)
    if isinstance(record, Explanation):
        from scalescope.reporting.charts.explanation import write_explanation_charts

        return write_explanation_charts(record, place)
    if isinstance(record, Autotune):
        from scalescope.reporting.charts.autotune import write_autotune_charts

        return write_autotune_charts(record, place)
    from scalescope.reporting.charts import write_charts

    return write_charts(_scaling_of(record), place)


def tabulate(
    record: Measurement | Scaling | Prediction | Explanation, form: Literal["csv", "markdown", "latex"] = "markdown"
) -> str:
    """What was measured, read, predicted or explained as a table for a paper, a proposal or another program."""
    if isinstance(record, Prediction | Explanation):
        from scalescope.reporting.explanation import tables as of_explanation
        from scalescope.reporting.prediction import tables as of_prediction

        if form == "latex":
            raise UsageError("a prediction or an explanation is written as csv or markdown: choose one of them")
        if isinstance(record, Explanation):
            return of_explanation.as_csv(record) if form == "csv" else of_explanation.as_markdown(record)
        return of_prediction.as_csv(record) if form == "csv" else of_prediction.as_markdown(record)
    from scalescope.reporting.tables import as_csv, as_latex, as_markdown

    return {"csv": as_csv, "markdown": as_markdown, "latex": as_latex}[form](_scaling_of(record))


def _scaling_of(record: Measurement | Scaling) -> Scaling:
    return study(record) if isinstance(record, Measurement) else record
