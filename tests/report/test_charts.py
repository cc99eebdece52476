import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from made_scalings import NASTY, lab11, measured, nearly_nothing, once, ranges
from rendered import charts, write_charts

import needs
import scalescope.show
from scalescope.errors import UsageError, WorkFailed
from scalescope.measurement.verdict import what_stands_out
from scalescope.records.scaling import Curve, Estimate, Loss, Scaling, ScalingPoint, best_batch
from scalescope.show.charts import saving
from scalescope.show.charts.saving import FORMATS
from scalescope.show.charts.scaling import batch_chart
from scalescope.units import format_rate

EVERYTHING = ["speedup", "waterfall", "throughput", "batch", "phases"]


@pytest.fixture(scope="module")
def of_lab() -> dict[str, Any]:
    return drawn(lab11())


@pytest.fixture(scope="module")
def of_measured() -> dict[str, Any]:
    return drawn(measured())


def drawn(scaling: Scaling) -> dict[str, Any]:
    return {name: with_data(chart.to_dict(), {}) for name, chart in charts(scaling).items()}


def with_data(spec: Any, datasets: dict[str, Any]) -> Any:
    """The figure with its rows where they are used; altair collects them at the top."""
    if isinstance(spec, list):
        return [with_data(each, datasets) for each in spec]
    if not isinstance(spec, dict):
        return spec
    datasets = spec.get("datasets", datasets)
    if spec.get("name") in datasets:
        return {"values": datasets[spec["name"]]}
    return {name: with_data(value, datasets) for name, value in spec.items() if name != "datasets"}


def rows(spec: Any) -> list[dict[str, Any]]:
    """All data of a figure, wherever it is."""
    if isinstance(spec, dict):
        own = spec["data"]["values"] if isinstance(spec.get("data"), dict) and "values" in spec["data"] else []
        return [*own, *(row for name, value in spec.items() if name not in ("data", "encoding") for row in rows(value))]
    return [row for each in spec for row in rows(each)] if isinstance(spec, list) else []


def texts(spec: Any) -> list[str]:
    """All titles of a figure, its own first."""
    if isinstance(spec, list):
        return [text for each in spec for text in texts(each)]
    if not isinstance(spec, dict):
        return []
    title = spec.get("title")
    own = [title["text"], *title.get("subtitle", [])] if isinstance(title, dict) and "text" in title else []
    return own + [text for value in spec.values() for text in texts(value)]


def marks(spec: Any) -> list[dict[str, Any]]:
    if isinstance(spec, list):
        return [mark for each in spec for mark in marks(each)]
    if not isinstance(spec, dict):
        return []
    return ([spec["mark"]] if "mark" in spec else []) + [mark for value in spec.values() for mark in marks(value)]


def values(spec: Any, kind: str) -> dict[float, float]:
    found = {row["at"]: row["value"] for row in rows(spec) if str(row.get("kind", "")).startswith(kind)}
    return dict(sorted(found.items()))


def ideal(panel: Any) -> dict[float, float]:
    return {row["at"]: row["value"] for row in rows(panel["layer"][0])}


def test_a_page_needs_no_bundling_the_second_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    saving.vega_script.cache_clear()
    (first, *_) = write_charts(lab11(), tmp_path / "one", ("html",))
    (kept,) = (tmp_path / "cache" / "scalescope").iterdir()
    assert kept.read_text() in first.read_text()
    kept.write_text("/* kept */")
    saving.vega_script.cache_clear()
    (second, *_) = write_charts(lab11(), tmp_path / "two", ("html",))
    assert "/* kept */" in second.read_text()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # cannot be written to
    saving.vega_script.cache_clear()
    (third, *_) = write_charts(lab11(), tmp_path / "three", ("html",))
    saving.vega_script.cache_clear()
    assert third.read_text() == first.read_text()


def test_the_renderer_is_not_started_where_nothing_can_be_drawn(monkeypatch) -> None:
    for missing in ("altair", "vl_convert", ""):
        saving.renderer(os.getpid()).end()
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, missing, None)
            saving.start_renderer()
        assert bool(saving.renderer.cache_info().currsize) == (not missing)


def test_a_renderer_that_was_killed_is_said_and_replaced(tmp_path: Path) -> None:
    saving.start_renderer()
    saving.renderer(os.getpid()).process.kill()
    with pytest.raises(WorkFailed, match="ended by SIGKILL: free some memory"):
        write_charts(lab11(), tmp_path, ("svg",))
    assert list(tmp_path.iterdir()) == []
    assert write_charts(lab11(), tmp_path, ("svg",))


def test_files_of_every_format_are_real(tmp_path: Path) -> None:
    written = write_charts(lab11(NASTY), tmp_path / "new" / "folder", FORMATS)
    assert {path.name for path in written} == {
        f"{name}.{ending}" for name in ("speedup", "waterfall", "phases") for ending in FORMATS
    }
    for path in written:
        content = path.read_bytes()
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
        elif path.suffix == ".pdf":
            assert content.startswith(b"%PDF-")
            assert content.rstrip().endswith(b"%%EOF")
        elif path.suffix == ".svg":
            svg = ElementTree.fromstring(content)
            assert svg.tag.endswith("svg")
            assert NASTY in "".join(svg.itertext())
        else:
            assert content.lower().count(b"</script>") == content.lower().count(b"<script")
            assert b"<img src=x" not in content
            assert b"\\u003c/script\\u003e\\u003cimg src=x onerror=alert(1)\\u003e" in content


@pytest.mark.launches
def test_a_browser_shows_a_users_text_as_text(tmp_path: Path) -> None:
    needs.programs("chromium")
    (page, *_) = write_charts(lab11(NASTY), tmp_path, ("html",))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        ["chromium", *options, "--virtual-time-budget=5000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in done.stdout
    assert "<img src=x" not in done.stdout.replace('<img src="x"', "<img src=x")
    assert "end to end: launch to end" in done.stdout


def test_only_what_is_asked_for_is_written(tmp_path: Path) -> None:
    assert [path.suffix for path in write_charts(lab11(), tmp_path, ("svg",))] == [".svg"] * 3
    with pytest.raises(UsageError, match="choose from html, png, svg, pdf"):
        write_charts(lab11(), tmp_path, ("svg", "gif"))
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkFailed, match="choose another folder"):
        write_charts(lab11(), tmp_path / "file", ("svg",))


def test_what_a_source_does_not_tell_is_not_drawn(of_lab: Any, of_measured: Any) -> None:
    assert charts(nearly_nothing()) == {}
    assert list(of_lab) == ["speedup", "waterfall", "phases"]
    assert set(of_measured) == set(EVERYTHING)
    assert charts(Scaling(what="x", source="table", curves=())) == {}


def test_the_speedup_figure_holds_the_records_numbers_and_the_ideal(of_lab: Any) -> None:
    figure = of_lab["speedup"]
    speedups, efficiency = figure["concat"][0]["hconcat"]
    assert ideal(speedups) == {1: 1, 2: 2, 4: 4, 8: 8, 16: 16, 32: 32}
    assert values(speedups, "steady")[32] == pytest.approx(30.10, abs=0.005)
    assert values(speedups, "train")[32] == pytest.approx(11.64, abs=0.005)
    assert values(speedups, "end to end")[2] == pytest.approx(0.983, abs=0.0005)
    assert values(efficiency, "steady")[32] == pytest.approx(190 / 202)
    assert ideal(efficiency) == dict.fromkeys((1, 2, 4, 8, 16, 32), 1.0)
    assert texts(figure)[:3] == [
        "Speedup and efficiency: lab11.csv",
        "relative to 1 process; dashed: the ideal",
        "one launch each, no interval: launches differ",
    ]
    assert not [mark for mark in marks(figure) if mark["type"] == "errorbar"]


def test_axes_are_logarithmic_from_eightfold_on(of_lab: Any, of_measured: Any) -> None:
    wide = of_lab["speedup"]["concat"][0]["hconcat"][0]["layer"][1]["encoding"]
    narrow = of_measured["speedup"]["concat"][0]["hconcat"][0]["layer"][1]["encoding"]
    assert (wide["x"]["scale"]["type"], wide["x"]["scale"]["base"], wide["y"]["scale"]["type"]) == ("log", 2, "log")
    assert wide["x"]["axis"]["values"] == [1, 2, 4, 8, 16, 32]
    assert "type" not in narrow["x"]["scale"]
    assert narrow["x"]["axis"]["values"] == [1, 2, 4]


def test_every_curve_has_a_row_with_its_title(of_measured: Any) -> None:
    shown = texts(of_measured["speedup"])
    assert "strong scaling, ddp, global batch 16" in shown
    assert "weak scaling, horovod, batch 64 each" in shown
    assert len(of_measured["speedup"]["concat"]) == 12
    assert "solid bars: 95 % t-intervals over launches, each by itself" in shown


def test_ranges_do_not_look_like_intervals(of_measured: Any) -> None:
    of_ranges = drawn(ranges())
    for name, figure in of_ranges.items():
        if name in ("speedup", "throughput"):
            assert any(
                "hollow points with thin bars: range of fewer than 5 launches, no interval" in text
                for text in texts(figure)
            )
            bars = [mark for mark in marks(figure) if mark["type"] == "errorbar"]
            assert bars
            assert all(bar["ticks"] is False for bar in bars)
            assert any(mark.get("fill") == "white" for mark in marks(figure))
    solid = [mark for mark in marks(of_measured["speedup"]) if mark["type"] == "errorbar"]
    assert all(bar["ticks"] for bar in solid)
    assert all(bar["thickness"] > bars[0]["thickness"] for bar in solid)


def test_a_logarithmic_axis_survives_an_interval_that_reaches_zero() -> None:
    def wild(value: float) -> Estimate:
        return Estimate(value=value, low=-1.0, high=2 * value, interval="t", count=5)

    points = tuple(
        ScalingPoint(engine="ddp", np=np, speedup={"steady": wild(np), "train": wild(0.2)}) for np in (1, 2, 16)
    )
    curve = Curve(engine="ddp", scaling="weak", baseline_np=1, baseline_engine="ddp", points=points)
    figure = drawn(Scaling(what="x", source="measurement", curves=(curve,)))["speedup"]
    assert min(row["low"] for row in rows(figure) if "low" in row) > 0


def test_engines_share_a_panel_per_kind_and_batch_and_keep_their_colours(of_measured: Any) -> None:
    figure = of_measured["throughput"]
    assert texts(figure)[-6:] == [
        *(f"strong scaling, global batch {batch}" for batch in (16, 32, 64)),
        *(f"weak scaling, batch {batch} each" for batch in (16, 32, 64)),
    ]
    strong, weak = figure["concat"][1], figure["concat"][4]
    colours = weak["layer"][1]["encoding"]["color"]["scale"]
    assert dict(zip(colours["domain"], colours["range"], strict=True)) == {
        "alone": "#808080",
        "ddp": "#0072b2",
        "horovod": "#e69f00",
    }
    alone = 32 / (0.004 + 0.0008 * 32)
    assert ideal(weak) == pytest.approx({1: alone, 2: 2 * alone, 4: 4 * alone})
    assert {row["series"] for row in rows(strong["layer"][1])} == {"ddp", "horovod"}
    assert strong["layer"][0]["encoding"]["y"]["scale"] == weak["layer"][0]["encoding"]["y"]["scale"]


def test_ticks_name_nodes_when_they_differ() -> None:
    record = measured(counts=(1, 2, 4), batches=(32,), kinds=("weak",), ranks_per_node=2)
    x = drawn(record)["throughput"]["concat"][0]["layer"][0]["encoding"]["x"]
    assert x["title"] == "processes (nodes)"
    assert 'datum.value == 4 ? "4 (2)"' in x["axis"]["labelExpr"]


def test_the_best_batch_is_marked_and_said(of_measured: Any) -> None:
    figure = of_measured["batch"]
    assert "ring: batch 64 is the fastest, 1,159 samples/s (alone)" in texts(figure)
    (best,) = rows(figure["layer"][-1])
    assert best["value"] == pytest.approx(64 / (0.004 + 0.0008 * 64))
    assert {row["engine"] for row in rows(figure) if "engine" in row} == {"alone", "ddp", "horovod"}
    assert "batch" not in charts(measured(batches=(32,), kinds=("weak",)))


def test_batches_whose_intervals_meet_are_not_told_apart() -> None:
    def curve(batch: int, rate: float) -> Curve:
        sure = Estimate(value=rate, low=0.9 * rate, high=1.1 * rate, interval="t", count=5)
        point = ScalingPoint(engine="none", np=1, batch=batch, throughput=sure)
        return Curve(engine="none", scaling="weak", batch=batch, baseline_np=1, baseline_engine="none", points=(point,))

    record = Scaling(what="x", source="measurement", curves=(curve(8, 50.0), curve(16, 98.0), curve(32, 100.0)))
    said = texts(drawn(record)["batch"])
    assert "ring: batch 32 is the fastest, 100 samples/s; not told apart from 16" in said
    (finding,) = what_stands_out(record.curves)
    assert finding == "on 1 process batch 32 was the fastest: 100 samples/s; batch 16 may be as good"


def test_the_best_batch_of_one_launch_each_is_told_as_that() -> None:
    def curve(batch: int, rate: float) -> Curve:
        once = Estimate(value=rate, low=rate, high=rate)
        point = ScalingPoint(engine="none", np=1, batch=batch, throughput=once)
        return Curve(engine="none", scaling="weak", batch=batch, baseline_np=1, baseline_engine="none", points=(point,))

    record = Scaling(what="x", source="measurement", curves=(curve(8, 50.0), curve(16, 98.0)))
    assert "ring: batch 16 was the fastest in one launch each, 98 samples/s" in texts(drawn(record)["batch"])


def test_shared_configurations_have_one_bar(of_measured: Any) -> None:
    figure = of_measured["phases"]
    bars = [row for row in rows(figure) if row.get("phase") == "steady"]
    assert len(bars) == len({row["point"] for row in bars}) == 27
    assert {"alone, batch 16", "1 x ddp, batch 16", "4 x horovod, batch 64 each"} <= {row["point"] for row in bars}
    totals = {row["point"]: row["seconds"] for row in rows(figure) if "words" in row}
    parts = [row["seconds"] for row in rows(figure) if row["point"] == "alone, batch 32" and "phase" in row]
    assert totals["alone, batch 32"] == pytest.approx(sum(parts)) == pytest.approx(8.93)


def test_a_table_that_tells_init_and_train_gets_a_bar_of_both(of_lab: Any) -> None:
    bars = [(row["point"], row["phase"], row["seconds"]) for row in rows(of_lab["phases"]) if "phase" in row]
    assert bars[:2] == [("1 x horovod, batch 64", "init", 68), ("1 x horovod, batch 64", "train", 163)]
    assert len(bars) == 12
    assert {row["words"] for row in rows(of_lab["phases"]) if "words" in row} >= {"231 s", "125 s"}


def test_the_waterfall_goes_from_ideal_to_end_to_end(of_lab: Any) -> None:
    (panel,) = of_lab["waterfall"]["concat"]
    steps = [(row["step"], row["words"]) for row in panel.get("data", panel["layer"][0].get("data"))["values"]]
    assert steps == [
        ("ideal", "32.00"),
        ("lost efficiency", "- 1.90"),
        ("steady", "30.10"),
        ("fixed cost", "- 18.46"),
        ("train", "11.64"),
        ("init", "- 9.79"),
        ("end to end", "1.85"),
    ]
    assert "horovod, 32 processes" in texts(panel)


def test_gains_have_another_colour_than_losses() -> None:
    losses = (
        Loss(name="efficiency", lost=0.5, left=1.5),
        Loss(name="warmup", lost=-0.2, left=1.7),
        Loss(name="uneven", lost=0.004, left=1.696),  # would read 0.00
    )
    points = (ScalingPoint(engine="ddp", np=1), ScalingPoint(engine="ddp", np=2, waterfall=losses))
    curve = Curve(engine="ddp", scaling="weak", baseline_np=1, baseline_engine="ddp", points=points)
    figure = drawn(Scaling(what="x", source="measurement", curves=(curve,)))["waterfall"]
    bars = {row["step"]: row for row in rows(figure)}
    assert bars["warm-up"]["words"] == "+ 0.20"
    assert bars["warm-up"]["colour"] != bars["lost efficiency"]["colour"]
    assert list(bars) == ["ideal", "lost efficiency", "steady", "warm-up", "train"]
    assert "full bars: speedups; orange: what is lost on the way; light blue: what is gained" in texts(figure)


def test_users_texts_are_short_and_on_one_line() -> None:
    record = lab11("python train.py\n" + "--option value " * 30)
    for figure in drawn(record).values():
        title = texts(figure)[0]
        assert "python train.py --option value" in title
        assert "\n" not in title
        assert len(title.split(": ", 1)[1]) <= 60


def test_unknown_engines_and_single_points_are_drawn_too() -> None:
    points = tuple(
        ScalingPoint(engine=NASTY, np=np, throughput=once(90.0 * np), speedup={"steady": once(0.9 * np)})
        for np in (2, 3)
    )
    curve = Curve(engine=NASTY, scaling="weak", baseline_np=2, baseline_engine=NASTY, points=points)
    found = drawn(Scaling(what="x", source="table", curves=(curve,)))
    assert set(found) == {"speedup", "throughput"}
    assert len(found["speedup"]["concat"][0]["hconcat"]) == 1  # no efficiency is known
    assert ideal(found["speedup"]["concat"][0]["hconcat"][0]) == {2: 1, 3: 1.5}


@pytest.mark.parametrize("record", [measured(), measured(counts=(2, 4))], ids=["from 1", "from 2"])
def test_the_ring_and_the_finding_name_the_same_batch(record: Scaling) -> None:
    best = best_batch(record.curves)
    assert best is not None
    (finding,) = [each for each in what_stands_out(record.curves) if "was the fastest" in each]
    ring = next(text for text in texts(batch_chart(record).to_dict()) if text.startswith("ring: batch"))
    assert f"batch {best.batch:g} was the fastest: {format_rate(best.rate.value)} samples/s" in finding
    assert f"batch {best.batch:g} is the fastest, {format_rate(best.rate.value)} samples/s" in ring


@pytest.mark.parametrize("file", ["scaling", "prediction", "explanation", "tuning", "autotune", "cluster"])
def test_every_declared_chart_has_a_section(file: str) -> None:
    """A section of a Document of the charts' own record: in that of another one a chart would never appear."""
    texts = [path.read_text() for path in Path(scalescope.show.__file__).parent.glob("*.py")]
    own = "".join(text for text in texts if re.search(rf'charted\(\s*"{file}"', text))
    charts = import_module(f"scalescope.show.charts.{file}").CHARTS
    assert charts
    assert {chart.section for chart in charts} <= set(re.findall(r'Section\(\s*"([\w-]+)"', own))
