"""Draws the figures that need no measurement: README's map and page, and those of docs/concepts.

make figures
"""

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import altair as alt
import msgspec
import vl_convert
from altair.utils.schemapi import debug_mode

import scalescope
from scalescope.cli import run
from scalescope.engines import find_engine
from scalescope.estimation.step_time import profile_from_step_times
from scalescope.records.cluster_file import load_cluster
from scalescope.records.job import Knobs
from scalescope.records.prediction import Prediction
from scalescope.records.profile import ModelProfile, WorkloadSpec
from scalescope.records.scaling import Estimate
from scalescope.records.timeline import Timeline
from scalescope.show import document_of
from scalescope.show.charts.explanation import timelines_chart
from scalescope.show.charts.parts import (
    counts_axis,
    curve_layers,
    curve_row,
    data,
    frame,
    named,
    panel_title,
    rate_axis,
    tick_words,
)
from scalescope.show.charts.prediction import map_chart
from scalescope.show.charts.saving import rendered
from scalescope.show.prediction import BATCH_WORDS, MOST_CELLS, Grid, grids
from scalescope.simulator.grid import Question, predict
from scalescope.simulator.step import predicted_step

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CLUSTER = "examples/clusters/ethernet-8x2.toml"
# The step times were measured on one H200; the cluster is described.
GPUS = "examples/clusters/h200-4x8.toml"
MAP = (
    "scalescope estimate resnet50 --input 3x224x224 --step-time 32=26.7ms,64=32.1ms,128=60ms,256=116ms"
    f" --np 1..32 --batch 32,40,...,256 --cluster {GPUS}"
)
PAGE = "scalescope report examples/data/late-rank.json"
_FIRST_SCREEN = "1000,924"  # Pixels: what stands above the page's contents
_RESNET18 = {4: 0.1904, 8: 0.331, 16: 0.6437}  # Step by batch, measured on a machine with two cores
_RESNET50 = {32: 0.0267, 64: 0.0321, 128: 0.06, 256: 0.116}  # Of MAP
_BATCH, _PROCESSES = 16, 16
_SCALE = 1.5  # Pixels of a PNG over those of its figure
_CAPS_MB = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)


def main() -> None:
    """Write every figure."""
    for name, figure in {"map": annotated_map(mapped()), **concepts()}.items():
        (IMAGES / f"{name}.png").write_bytes(as_png(figure))
        print(f"docs/images/{name}.png")
    if shutil.which("chromium"):
        first_screen(IMAGES / "report.png")
        print("docs/images/report.png")


def first_screen(image: Path) -> None:
    """Photograph the top of the page that PAGE writes."""
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        run(
            [*(str(ROOT / word) if "/" in word else word for word in shlex.split(PAGE)[1:]), "-o", str(page), "--quiet"]
        )
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=8000"]
        place = [f"--user-data-dir={folder}/profile", f"--window-size={_FIRST_SCREEN}", f"--screenshot={image}"]
        subprocess.run(["chromium", *options, *place, page.as_uri()], check=True, stderr=subprocess.DEVNULL)


def concepts() -> dict[str, Any]:
    """The figures of docs/concepts/data-parallel.md by name."""
    with debug_mode(False):  # no validation of every part as it is made
        return _concepts()


def charts(record: Any) -> dict[str, Any]:
    """Every chart of a record by name."""
    return {figure.name: figure.draw() for figure in document_of(record).figures}


def _concepts() -> dict[str, Any]:
    three = charts(scalescope.explain(ROOT / "examples/data/lab11.csv"))
    return {
        "concept-data-parallel": timelines_chart(
            {"": _on_all_ranks(_step("ddp", 2), 2)}, "One step on 2 processes, DDP"
        ),
        "concept-ddp": ddp_steps(),
        "concept-fusion": fusion_chart(),
        "concept-scaling": scaling_chart(),
        "concept-speedups": three["speedup"],
        "concept-waterfall": three["waterfall"],
    }


def as_png(figure: Any) -> bytes:
    """With its own fonts: an SVG would be drawn with those of the reader, and words might not fit."""
    spec = figure if isinstance(figure, dict) else figure.to_dict(validate=False)
    svg = rendered(spec, "svg").decode()
    return bytes(vl_convert.svg_to_png(svg, scale=_SCALE))


def mapped() -> Prediction:
    """Predict what README's command predicts."""
    with TemporaryDirectory() as folder:
        words = [str(ROOT / word) if word == GPUS else word for word in shlex.split(MAP)[1:]]
        run([*words, "-o", folder, "--formats", "html", "--quiet"])
        return msgspec.json.decode((Path(folder) / "estimate.json").read_bytes(), type=Prediction)


def annotated_map(prediction: Prediction) -> dict[str, Any]:
    """Add words to the map at what there is to see."""
    best = prediction.recommended
    assert best is not None
    light, dark = "#ffffff", "#111111"
    words = [
        (9, 40, "9 GPUs need a second node: slower than 8 up to batch 72", light),
        (8, 40, "8 GPUs of one node: the exchange is hidden", light),
        (22, 152, "larger batches: more compute for the same messages", dark),
        (best.np - 1, best.batch - 64, f"recommended: {best.np} x {best.batch}", dark),
    ]
    with debug_mode(False):
        spec: dict[str, Any] = map_chart(prediction, MOST_CELLS).to_dict(validate=False)
    spec["concat"][0]["layer"] += [_label(spec, *each) for each in words]
    return spec


def _label(spec: dict[str, Any], np: int, batch: int, text: str, colour: str) -> dict[str, Any]:
    """A layer with words that begin at a cell of the map."""
    axes = spec["concat"][0]["layer"][0]["encoding"]
    at = {
        name: {key: part for key, part in axes[name].items() if key in ("field", "type", "scale", "axis", "title")}
        for name in ("x", "y")
    }
    return {
        "data": {"values": [{"np": np, "column": batch}]},
        "mark": {"type": "text", "align": "left", "baseline": "middle", "fontSize": 12, "color": colour, "text": text},
        "encoding": at,
    }


def ddp_steps() -> Any:
    """Draw the same step with one bucket, with DDP's own sizes, and with small ones."""
    spec = WorkloadSpec(model="resnet50", inputs=("3x224x224",))
    profile = profile_from_step_times(spec, _RESNET50, device="gpu", threads=1)
    sizes_mb = {"one bucket": {"bucket_cap_mb": 1000.0}, "25 MiB (default)": {}, "2 MiB": {"bucket_cap_mb": 2.0}}
    shown = {
        name: predicted_step(profile, load_cluster(ROOT / GPUS), Knobs(engine="ddp", values=values), 16, 128)
        for name, values in sizes_mb.items()
    }
    return timelines_chart(shown, "One step of resnet50 by bucket size: 16 GPUs on 2 nodes, DDP")


def fusion_chart() -> Any:
    """Predicted step over the size of a bucket, and of Horovod's fusion buffer."""
    rows = []
    for engine, knob in (("ddp", "bucket_cap_mb"), ("horovod", "fusion_threshold_mb")):
        seconds = [_step(engine, _PROCESSES, {knob: size}).steps[0].end_s for size in _CAPS_MB]
        name = f"{find_engine(engine).title}: {knob}"
        rows += [
            {"engine": name, "size": size, "longer": 100 * (each / min(seconds) - 1)}
            for size, each in zip(_CAPS_MB, seconds, strict=True)
        ]
    names = list(dict.fromkeys(str(row["engine"]) for row in rows))
    x = alt.X(
        "size:Q",
        title="MiB in one message, at most",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=list(_CAPS_MB), labelExpr=tick_words({size: f"{size:g}" for size in _CAPS_MB})),
    )
    y = alt.Y("longer:Q", title="step longer than the shortest, %")
    colour = named("engine", dict(zip(names, ("#0072b2", "#d55e00"), strict=True)), alt.Legend(title=None))
    line = alt.Chart(data(rows)).mark_line(point=True).encode(x=x, y=y, color=colour)
    where = f"resnet18 with batch {_BATCH} on {_PROCESSES} processes of {load_cluster(ROOT / CLUSTER).name}, predicted"
    return line.properties(width=480, height=220, **frame("Few large messages or many small ones", where))


def scaling_chart() -> Any:
    """Predicted throughput over processes in strong and in weak scaling, a line per batch."""
    panels = [_throughput(grid) for grid in grids(_curves())]
    words = "dashed: in proportion to one process"
    return alt.hconcat(
        *panels,
        spacing=30,
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="independent")),
        **frame("Predicted throughput: resnet18 with ddp", words),
    )


def _throughput(grid: Grid) -> Any:
    colours = dict(zip((f"{batch}" for batch in grid.batches), ("#440154", "#2a788e", "#7ad151"), strict=True))
    rows, ideal = [], []
    for (np, asked), cell in sorted(grid.cells.items()):
        rate, batch = cell.throughput, f"{asked}"
        rows.append(curve_row(np, Estimate(value=rate, low=rate, high=rate), batch, batch=batch))
        ideal.append({"at": np, "value": np * rate / cell.speedup, "series": batch})
    counts = counts_axis("processes", grid.counts)
    y = rate_axis([row["value"] for row in [*rows, *ideal]], logarithmic=counts.logarithmic)
    color = named("batch", colours, alt.Legend(title=BATCH_WORDS[grid.scaling]))
    layers = curve_layers(rows, ideal, counts.x, y, (), color=color)
    return alt.layer(*layers, width=380, height=300, title=panel_title(grid.words))


def _curves() -> Prediction:
    """Strong and weak scaling of one model."""
    return predict(
        Question(
            profile=_profile(),
            cluster=load_cluster(ROOT / CLUSTER),
            knobs=Knobs(engine="ddp"),
            np=(1, 2, 4, 6, 8, 12, 16),
            batches=(16, 32, 64),
            scalings=("weak", "strong"),
        )
    )


def _step(engine: str, processes: int, values: Mapping[str, float] | None = None) -> Timeline:
    knobs = Knobs(engine=engine, values=dict(values or {}))
    return predicted_step(_profile(), load_cluster(ROOT / CLUSTER), knobs, processes, _BATCH)


@cache
def _profile() -> ModelProfile:
    return profile_from_step_times(WorkloadSpec(model="resnet18"), _RESNET18, device="cpu", threads=1)


def _on_all_ranks(timeline: Timeline, count: int) -> Timeline:
    """The same step on every rank: predicted ranks look alike."""
    return msgspec.structs.replace(
        timeline,
        spans=tuple(msgspec.structs.replace(span, rank=rank) for rank in range(count) for span in timeline.spans),
        steps=tuple(msgspec.structs.replace(step, rank=rank) for rank in range(count) for step in timeline.steps),
    )


if __name__ == "__main__":
    main()
