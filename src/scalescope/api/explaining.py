"""Where the time goes, and what is drawn and written of any record."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from scalescope.api.silent import Silent
from scalescope.diagnosis.sources import explain as explain_sources
from scalescope.errors import UsageError
from scalescope.jobs.request import parse_hosts
from scalescope.measurement.study import study
from scalescope.measurement.sweep import Audience
from scalescope.measurement.trace import traced_run
from scalescope.records.autotune import Autotune
from scalescope.records.explanation import Explanation
from scalescope.records.prediction import Prediction
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Measurement
from scalescope.records.scaling import Scaling
from scalescope.records.tuning import Tuning


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


def draw(
    record: Measurement | Scaling | Prediction | Explanation | Autotune | Tuning, folder: str | Path
) -> list[Path]:
    """Draw what was measured, read, predicted, explained or tuned, as pages and PNG; the files."""
    from scalescope.charts import write_charts

    return write_charts(study(record) if isinstance(record, Measurement) else record, Path(folder))


def tabulate(
    record: Measurement | Scaling | Prediction | Explanation, form: Literal["csv", "markdown", "latex"] = "markdown"
) -> str:
    """What was measured, read, predicted or explained as a table for a paper, a proposal or another program."""
    if isinstance(record, Prediction | Explanation):
        from scalescope.report import explanation_tables as of_explanation
        from scalescope.report import prediction_tables as of_prediction

        if form == "latex":
            raise UsageError("a prediction or an explanation is written as csv or markdown: choose one of them")
        if isinstance(record, Explanation):
            return of_explanation.as_csv(record) if form == "csv" else of_explanation.as_markdown(record)
        return of_prediction.as_csv(record) if form == "csv" else of_prediction.as_markdown(record)
    from scalescope.report.tables import as_csv, as_latex, as_markdown

    return {"csv": as_csv, "markdown": as_markdown, "latex": as_latex}[form](_scaling_of(record))


def _scaling_of(record: Measurement | Scaling) -> Scaling:
    return study(record) if isinstance(record, Measurement) else record
