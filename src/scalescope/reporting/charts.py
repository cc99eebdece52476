"""Drawings of a measurement: one definition gives the interactive page, PNG, SVG and PDF."""

from pathlib import Path
from typing import Any

from scalescope.records.run import PHASES, Measurement, Run
from scalescope.records.store import writing

FORMATS = ("html", "png", "svg", "pdf")
_PHASE_COLOURS = {
    "launch": "#9aa5b1",
    "import": "#c3a6d8",
    "init": "#e8a33d",
    "build": "#8fc1e3",
    "warmup": "#f2d16b",
    "steady": "#2f7d4f",
    "evaluation": "#4a7ebb",
    "pause": "#d9d9d9",
    "teardown": "#6b6b6b",
}


def write_charts(measurement: Measurement, folder: Path) -> list[Path]:
    """Draw the phases and the throughput of a measurement; the files, pictures first."""
    written = []
    for name, chart in (("phases", phases_chart(measurement)), ("throughput", throughput_chart(measurement))):
        if chart is not None:
            written += _write(chart, folder, name)
    return written


def _write(chart: Any, folder: Path, name: str) -> list[Path]:
    paths = []
    for ending in FORMATS:
        path = folder / f"{name}.{ending}"
        options = {"inline": True} if ending == "html" else {"scale_factor": 2} if ending == "png" else {}
        with writing(path):
            chart.save(str(path), **options)
        paths.append(path)
    return paths


def _label(run: Run) -> str:
    engine = "alone" if run.point.engine == "none" else run.point.engine
    batch = "" if run.point.batch is None else f", batch {run.point.batch}"
    return f"{run.point.np} x {engine}{batch}"


def phases_chart(measurement: Measurement) -> Any:
    """One bar per point, cut into phases; its length is the launch's wall time."""
    import altair as alt

    order = {phase: index for index, phase in enumerate(PHASES)}
    rows = [
        {"point": _label(run), "phase": phase, "seconds": seconds, "order": order[phase]}
        for run in measurement.runs
        for phase, seconds in run.phases.items()
    ]
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar()
        .encode(
            x=alt.X("seconds:Q", title="seconds from the launcher's start to its end"),
            y=alt.Y("point:N", title=None, sort=[_label(run) for run in measurement.runs]),
            color=alt.Color(
                "phase:N",
                title="phase",
                scale=alt.Scale(domain=list(PHASES), range=[_PHASE_COLOURS[phase] for phase in PHASES]),
            ),
            order=alt.Order("order:Q"),
            tooltip=["point:N", "phase:N", alt.Tooltip("seconds:Q", format=".3f")],
        )
        .properties(title=f"Where the wall time went: {_shortened(measurement.what)}", width=560, height=alt.Step(28))
    )


def throughput_chart(measurement: Measurement) -> Any:
    """Samples per second over all processes, against their number; the ideal as a dashed line."""
    import altair as alt

    runs = [run for run in measurement.runs if run.throughput]
    if not runs:
        return None
    rows = []
    for run in runs:
        batch = "" if run.point.batch is None else f", batch {run.point.batch} each"
        series = ("alone" if run.point.engine == "none" else run.point.engine) + batch
        rows.append({"processes": run.point.np, "rate": run.throughput, "series": series})
    first = min(runs, key=lambda run: (run.point.np, run.point.engine != "none"))
    most = max(run.point.np for run in runs)
    ideal = [{"processes": np, "rate": (first.throughput or 0) * np / first.point.np} for np in (first.point.np, most)]
    x = alt.X(
        "processes:Q", title="processes", axis=alt.Axis(values=sorted({run.point.np for run in runs}), format="d")
    )
    y = alt.Y("rate:Q", title="samples/s over all processes", scale=alt.Scale(zero=True))
    lines = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(point=alt.OverlayMarkDef(size=80, filled=True))
        .encode(
            x=x,
            y=y,
            color=alt.Color("series:N", title=None),
            tooltip=["series:N", "processes:Q", alt.Tooltip("rate:Q", format=",.1f")],
        )
    )
    dashed = alt.Chart(alt.InlineData(values=ideal)).mark_line(strokeDash=[5, 4], color="#888888").encode(x=x, y=y)
    title = alt.TitleParams(
        f"Steady throughput: {_shortened(measurement.what)}",
        subtitle="one launch per point, no interval; dashed: in proportion to the smallest",
    )
    return (dashed + lines).properties(title=title, width=480, height=300)


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
