"""The verbs as functions: they take what the command line takes, by the same names, and return records.

Rooms are imported where they are used: a verb loads what it needs, and explain needs no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from scalescope.api.display import as_html
from scalescope.api.requests import CaptureOptions, EstimateOptions, MeasureOptions, ProbeOptions
from scalescope.errors import UsageError
from scalescope.named_paths import takes_paths
from scalescope.records.store import Record

if TYPE_CHECKING:
    from scalescope.api.reports import compare, write_report
    from scalescope.api.studies import study
    from scalescope.api.tune_request import TuneOptions
    from scalescope.records.autotune import Autotune
    from scalescope.records.cluster import Cluster
    from scalescope.records.explanation import Explanation
    from scalescope.records.machine import Machine
    from scalescope.records.prediction import Prediction
    from scalescope.records.profile import WorkloadSpec
    from scalescope.records.request import ProbeRequest
    from scalescope.records.run import Measurement
    from scalescope.records.scaling import Scaling
    from scalescope.records.tuning import Tuning
    from scalescope.simulator.grid import Question, predict
    from scalescope.tuner.context import apply_tuned, tuning

CLUSTER_FILE = "cluster.toml"
Record.shown_as = as_html  # in notebooks
_ELSEWHERE = {
    "Question": "scalescope.simulator.grid",
    "predict": "scalescope.simulator.grid",
    "apply_tuned": "scalescope.tuner.context",
    "compare": "scalescope.api.reports",
    "study": "scalescope.api.studies",
    "tuning": "scalescope.tuner.context",
    "write_report": "scalescope.api.reports",
}

__all__ = [
    "Question",
    "Silent",
    "apply_tuned",
    "compare",
    "doctor",
    "draw",
    "estimate",
    "explain",
    "measure",
    "predict",
    "probe",
    "resume",
    "scaling",
    "study",
    "tabulate",
    "tune",
    "tuning",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """What is a function of a room as it is, imported when it is first used."""
    from importlib import import_module

    if name in _ELSEWHERE:
        return getattr(import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'scalescope.api' has no attribute '{name}'")


class Silent:
    """A progress listener of any verb that shows nothing."""

    def __getattr__(self, _: str) -> Any:
        return lambda *told, **named: None


def doctor() -> "Machine":
    """What this machine has."""
    from scalescope.jobs.machine import describe_machine

    return describe_machine()


@takes_paths
def measure(
    model: "str | WorkloadSpec" = "", *, listener: Any = None, **options: Unpack[MeasureOptions]
) -> "Measurement":
    """Launch a model, or a command instead, at every point; `scaling` makes curves of what was measured.

    Args:
        model: A built-in name, `package.module:factory`, `file.py:factory`, or a description; empty with `command`.
        listener: Is told how it goes on, as `measurement.sweep` describes; nobody by default.
        **options: As the options of `scalescope measure`, by the names in `MeasureOptions`: `np=[1, 2]`,
            `batch=[32]`, `hosts="a:2,b:2"`, `knobs={"bucket_cap_mb": 4}`, `budget_s="10m"`.

    Returns:
        Every launch, with its steps and phases.

    Raises:
        UsageError: The request cannot be carried out as it is.
        WorkFailed: No launch succeeded.
    """
    from scalescope.api.requests import measure_request
    from scalescope.measurement import sweep

    return sweep.measure(measure_request(model, **options), listener or Silent())[1]


@takes_paths
def resume(
    folder: str | Path,
    *,
    launches: int | None = None,
    precision: str | float | None = None,
    budget_s: str | float | None = None,
    timeout_s: str | float | None = None,
    listener: Any = None,
) -> "Measurement":
    """Resume an interrupted measurement, or add launches to a finished one; the limits replace those it had."""
    from scalescope.api.requests import checked_options
    from scalescope.measurement.sweep import continue_measurement

    limits = {"launches": launches, "precision": precision, "budget_s": budget_s, "timeout_s": timeout_s}
    return continue_measurement(Path(folder), checked_options(limits), listener or Silent())[1]


def scaling(measurement: "Measurement") -> "Scaling":
    """The curves of a measurement: speedups with intervals, what limits them, and sentences."""
    from scalescope.measurement.study import study

    return study(measurement)


@takes_paths
def estimate(model: "str | WorkloadSpec", *, listener: Any = None, **options: Unpack[EstimateOptions]) -> "Prediction":
    """How fast a model would be at every number of processes and batch size.

    Args:
        model: A built-in name, `package.module:factory`, `file.py:factory`, or a description.
        listener: Is told how it goes on, as `estimation.estimate` describes; nobody by default.
        **options: As the options of `scalescope estimate`, by the names in `EstimateOptions`.

    Returns:
        The map, with the recommended cell and the checks.

    Raises:
        UsageError: The request cannot be carried out as it is.
    """
    from scalescope.api.requests import estimate_request
    from scalescope.estimation import estimate as work

    return work.estimate(estimate_request(model, **options), listener or Silent())[1]


@takes_paths
def probe(*, listener: Any = None, **options: Unpack[ProbeOptions]) -> "Cluster":
    """What collectives cost among the ranks of this machine or of named hosts; also written as cluster.toml."""
    from scalescope.api.requests import probe_request

    return run_probe(probe_request(**options), listener or Silent())[1]


def run_probe(request: "ProbeRequest", listener: Any) -> "tuple[Path, Cluster]":
    """Probe into a folder of its own; the folder and what was found."""
    from msgspec.structs import replace

    from scalescope.estimation.probe import probe_cluster
    from scalescope.jobs.folders import result_folder
    from scalescope.records.cluster_file import write_cluster

    with result_folder("probe", request.folder) as folder:
        if (folder / CLUSTER_FILE).exists():  # people edit it to describe a larger cluster
            raise UsageError(f"{folder} already holds a probe: choose another folder with -o")
        cluster = probe_cluster(replace(request, folder=str(folder)), listener)
        write_cluster(cluster, folder / CLUSTER_FILE)
    return folder, cluster


@takes_paths
def explain(
    paths: str | Path | Sequence[str | Path] = (),
    *,
    model: "str | WorkloadSpec" = "",
    estimate: str | Path = "",
    listener: Any = None,
    **options: Unpack[CaptureOptions],
) -> "Scaling | Explanation | Autotune":
    """Where the time goes: in files that are there, or in a model or a command that is captured now.

    Args:
        paths: Traces of all ranks, a folder of measure or explain, logs, a scaling table, an autotune log.
        model: Trained and captured, instead of paths; or pass `command`.
        estimate: A folder of estimate, or a cluster.toml, to compare the trace with.
        listener: Is told how a capture goes on; nobody by default.
        **options: Of a capture, as `measure` takes them, and `from_start` and `cpu_detail`. For logs: `np`, the
            number of processes of each, and `pattern`, a regular expression with named groups for the lines to read.

    Returns:
        An Explanation of traces, a Scaling of tables, logs and measurements, an Autotune of Horovod's autotune log.

    Raises:
        UsageError: A file cannot be read, or the request cannot be carried out as it is.
    """
    from scalescope.api.requests import log_counts, traced_request
    from scalescope.diagnosis.sources import explain as read

    given = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    beside = Path(estimate) if estimate else None
    if not model and not options.get("command"):
        counts = log_counts(options.get("np", ()))
        return read(given, np=counts, pattern=options.get("pattern", ""), estimate=beside)
    if given:
        raise UsageError("name files, a MODEL or a command to explain, and only one of them")
    from scalescope.measurement.trace import traced_run

    captured = traced_run(traced_request(model, **options), listener or Silent())
    return read([captured], estimate=beside)


@takes_paths
def tune(model: "str | WorkloadSpec" = "", *, listener: Any = None, **options: "Unpack[TuneOptions]") -> "Tuning":
    """Search for faster knobs of a model, or a command; the default is kept unless another setting is clearly faster.

    Args:
        model: A built-in name, `package.module:factory`, `file.py:factory`, or a description; empty with `command`.
        listener: Is told how it goes on, as `tuner.journal` describes; nobody by default.
        **options: As the options of `scalescope tune`, by the names in `TuneOptions`.

    Returns:
        What was tried and decided.

    Raises:
        UsageError: The request cannot be carried out as it is.
    """
    from scalescope.api.tune_request import tune_request
    from scalescope.tuner.run import tune as search

    return search(tune_request(model, **options), listener or Silent())[1]


@takes_paths
def draw(
    record: "Measurement | Scaling | Prediction | Explanation | Autotune | Tuning",
    folder: str | Path,
    formats: Sequence[str] = ("html", "png"),
) -> list[Path]:
    """Draw what was measured, read, predicted, explained or tuned; the files."""
    from scalescope.charts import write_charts
    from scalescope.records.run import Measurement

    return write_charts(scaling(record) if isinstance(record, Measurement) else record, Path(folder), formats)


def tabulate(
    record: "Measurement | Scaling | Prediction | Explanation",
    form: Literal["csv", "markdown", "latex"] = "markdown",
) -> str:
    """What was measured, read, predicted or explained as a table for a paper, a proposal or another program."""
    from scalescope.records.explanation import Explanation
    from scalescope.records.prediction import Prediction
    from scalescope.records.run import Measurement

    if isinstance(record, Prediction | Explanation):
        from scalescope.report import prediction_tables as of_prediction
        from scalescope.show import document_of, files

        if form == "latex":
            raise UsageError("a prediction or an explanation is written as csv or markdown: choose one of them")
        if isinstance(record, Explanation):
            document = document_of(record)
            return files.as_csv(document.files["explanation"]) if form == "csv" else files.as_markdown(document)
        return of_prediction.as_csv(record) if form == "csv" else of_prediction.as_markdown(record)
    from scalescope.report.tables import as_csv, as_latex, as_markdown

    curves = scaling(record) if isinstance(record, Measurement) else record
    return {"csv": as_csv, "markdown": as_markdown, "latex": as_latex}[form](curves)
