import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from figure_parts import layers, rows, subtitle, with_data
from made_predictions import both, checked, crowded, hopeless, large, predicted, single, too_large
from made_scalings import NASTY

import needs
from scalescope.charts import FORMATS, charts, save_charts, write_charts
from scalescope.charts.map import map_chart
from scalescope.charts.map_parts import QUANTITIES, range_of
from scalescope.errors import UsageError, WorkFailed
from scalescope.records.prediction import Prediction

RING = "#e6007e"


@pytest.fixture(scope="module")
def of_checked() -> dict[str, Any]:
    return drawn(checked())


def drawn(prediction: Prediction) -> dict[str, Any]:
    return {name: with_data(chart) for name, chart in charts(prediction).items()}


def test_only_what_there_are_numbers_for_is_drawn(of_checked: Any) -> None:
    assert list(of_checked) == ["map", "efficiency", "throughput", "checks"]
    assert list(charts(both())) == ["map", "efficiency", "throughput"]
    assert list(charts(single())) == ["map", "efficiency"]
    assert list(charts(predicted(counts=(1,)))) == ["map"]
    assert list(charts(too_large())) == ["map", "efficiency"]


def test_the_map_holds_the_cells_and_rings_the_recommended_one(of_checked: Any) -> None:
    figure = of_checked["map"]
    strong, weak = figure["concat"]
    (cells,) = layers(weak, "rect", strokeWidth=1)
    assert len(rows(cells)) == 48
    (best,) = [row for row in rows(cells) if (row["np"], row["column"]) == (8, 512)]
    assert best["speedup"] == pytest.approx(7.09, abs=0.005)
    assert best["speedup_words"] == "7.09 (6.69 to 7.54)"
    assert best["step_s_words"] == "467 ms (439 ms to 495 ms)"
    assert (best["global"], best["fits"], best["mark"]) == (4096, True, "~")
    (ring,) = layers(weak, "rect", stroke=RING)
    assert rows(ring) == [{"np": 8, "column": 512}]
    assert not layers(strong, "rect", stroke=RING)
    encoding = cells["encoding"]
    assert encoding["y"]["scale"]["domain"] == [8, 6, 4, 3, 2, 1]
    assert (encoding["x"]["title"], encoding["y"]["title"]) == ("batch of a process", "processes")
    assert strong["layer"][0]["encoding"]["x"]["title"] == "global batch"
    told = {each["title"] for each in encoding["tooltip"]}
    assert told >= {quantity.title for quantity in QUANTITIES.values()} | {"hidden communication", "global batch"}
    title, verdict, advice, trust, key = subtitle(figure)
    assert title == "Prediction: cnn with ddp"
    assert verdict.startswith("The prediction was wrong here: 1 of 4 checked cells")
    assert advice.startswith("recommended: 8 processes with batch 512 each give 7.09x (6.69 to 7.54)")
    assert trust.startswith("4 cells run for real: wrong by 4.5 % on average")
    assert key == (
        "black: slower than one process; bold line: speedup 1; ring: recommended; ~: beyond the profiled batches; "
        "blank: fewer samples than processes"
    )


def test_below_one_cells_are_black_and_behind_a_line(of_checked: Any) -> None:
    strong, weak = of_checked["map"]["concat"]
    conditions = strong["layer"][0]["encoding"]["color"]["condition"]
    assert {"test": "quantity == 'speedup' && datum.slower", "value": "#1c1c1c"} in conditions
    slower = {(row["np"], row["column"]) for row in rows(layers(strong, "rect", strokeWidth=1)[0]) if row["slower"]}
    assert slower == {(np, batch) for np in (2, 3, 4) for batch in (4, 8)} | {
        (np, batch) for np in (6, 8) for batch in (8, 16, 32)
    }
    flat, upright = layers(strong, "rule", stroke="black")
    assert {(row["np"], row["column"]) for row in rows(flat)} == {(1, 4), (1, 8), (4, 16), (4, 32)}
    assert {(row["np"], row["column"]) for row in rows(upright)} == {(2, 8), (3, 8), (4, 8), (6, 32), (8, 32)}
    assert not layers(weak, "rule", stroke="black")


def test_the_line_of_the_efficiency_map_is_the_goal(of_checked: Any) -> None:
    _, weak = of_checked["efficiency"]["concat"]
    (_, upright) = layers(weak, "rule", stroke="black")
    assert {(row["np"], row["column"]) for row in rows(upright)} == {(2, 4), (3, 8), (4, 8), (6, 64), (8, 64)}
    assert "bold line: efficiency 80 %" in subtitle(of_checked["efficiency"])[-1]
    (quantity, _) = of_checked["efficiency"]["params"]
    assert quantity == {"name": "quantity", "value": "efficiency"}


def test_nodes_begin_at_dashed_lines(of_checked: Any) -> None:
    _, weak = of_checked["map"]["concat"]
    (rule,) = layers(weak, "rule", strokeDash=[4, 2])
    assert rows(rule) == [{"np": 6, "words": "2 nodes"}]
    assert rule["encoding"]["y"]["bandPosition"] == 1  # the lower edge of the first row on two nodes
    assert not layers(drawn(predicted(slots=8))["map"]["concat"][0], "rule", strokeDash=[4, 2])


def test_the_reader_chooses_the_quantity(of_checked: Any) -> None:
    quantity, info = of_checked["map"]["params"]
    assert quantity["value"] == "speedup"
    assert quantity["bind"]["options"] == list(QUANTITIES)
    assert quantity["bind"]["labels"][-1] == "device-hours for a million samples"
    assert '"step_s": {"title": "step time"' in info["expr"]


def test_legends_name_round_values_within_their_range() -> None:
    cells = both().cells
    speedup = range_of("speedup", cells)
    assert (speedup["low"], speedup["logarithmic"], speedup["labels"]) == (1.0, True, ["1", "2", "4"])
    assert speedup["ticks"][0] == 0
    assert range_of("efficiency", cells)["labels"] == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]
    assert range_of("step_s", cells)["labels"] == ["10 ms", "20 ms", "50 ms", "100 ms", "200 ms"]
    for prediction in (both(), hopeless(), single(), large()):
        for name in QUANTITIES:
            found = range_of(name, prediction.cells)
            assert found["low"] < found["high"]
            assert 2 <= len(found["ticks"]) <= 8
            assert all(-1e-9 <= tick <= 1 + 1e-9 for tick in found["ticks"])


def test_what_does_not_fit_is_struck_through() -> None:
    figure = drawn(crowded())["map"]
    (panel,) = figure["concat"]
    (slashes,) = layers(panel, "point")
    assert slashes["transform"] == [{"filter": "!datum.fits"}]
    assert {row["column"] for row in rows(slashes) if not row["fits"]} == {256, 512}
    assert "grey: does not fit into memory" in subtitle(figure)[-1]
    assert not layers(drawn(predicted())["map"]["concat"][0], "point")


def test_large_maps_are_thinned_small_and_quick(tmp_path: Path) -> None:
    chart = map_chart(large())
    page, picture = save_charts({"map": chart}, tmp_path, ("html", "png"))
    assert page.stat().st_size < 5_000_000
    assert picture.read_bytes().startswith(b"\x89PNG")
    figure = with_data(chart)
    assert subtitle(figure)[-1] == "shown: 64 of 1,024 batches"
    (panel,) = figure["concat"]
    assert len(rows(layers(panel, "rect")[0])) == 64 * 64
    assert not [layer for layer in layers(panel, "text") if "words" not in rows(layer)[0]]  # no room for numbers
    labels = [row["words"] for row in rows(layers(panel, "text")[0])]
    assert labels == [f"{count} nodes" for count in range(2, 9)]


def test_throughput_has_bands_and_the_ideal(of_checked: Any) -> None:
    figure = of_checked["throughput"]
    strong, weak = figure["concat"]
    (band,) = layers(weak, "area")
    (first,) = [row for row in rows(band) if (row["at"], row["batch"]) == (8, "512")]
    assert first["low"] < first["rate"] < first["high"]
    assert first["high"] / first["rate"] == pytest.approx(1 / 0.94)
    (dashed,) = layers(weak, "line", strokeDash=[5, 4])
    alone = 512 / (0.004 + 0.0008 * 512)
    ideal = {row["at"]: row["rate"] for row in rows(dashed) if row["batch"] == "512"}
    assert ideal == pytest.approx({np: np * alone for np in (1, 2, 3, 4, 6, 8)})
    assert len({row["batch"] for row in rows(band)}) == 6
    assert "6 of 8 batches are drawn" in subtitle(figure)
    assert layers(strong, "area")[0]["encoding"]["color"]["legend"]["title"] == "global batch"
    assert [row["words"] for row in rows(layers(weak, "text")[0])] == ["2 nodes"]
    assert {row["batch"] for row in rows(layers(drawn(crowded())["throughput"]["concat"][0], "area")[0])}.isdisjoint(
        {"256", "512"}
    )


def test_checks_stand_against_the_diagonal(of_checked: Any) -> None:
    figure = of_checked["checks"]
    scatter, errors = figure["hconcat"]
    (points,) = layers(scatter, "point")
    found = [(row["measured"], row["predicted"]) for row in rows(points)]
    assert found[2] == (pytest.approx(1000 * checked().checks[2].measured_s), pytest.approx(237, abs=1))
    (diagonal,) = layers(scatter, "line")
    assert all(row["measured"] == row["predicted"] for row in rows(diagonal))
    assert [row["error_words"] for row in rows(layers(errors, "point")[0])] == ["+3.0 %", "-2.0 %", "+12.0 %", "+1.0 %"]
    assert [row["inside"] for row in rows(points)].count("outside it") == 1
    assert "3 of 4 inside the predicted interval" in subtitle(figure)[1]


def test_files_of_every_format_are_real_and_hold_no_users_markup(tmp_path: Path) -> None:
    prediction = msgspec.structs.replace(checked(), what=NASTY)
    written = write_charts(prediction, tmp_path / "new", FORMATS)
    assert {path.name for path in written} == {
        f"{name}.{ending}" for name in ("map", "efficiency", "throughput", "checks") for ending in FORMATS
    }
    for path in written:
        content = path.read_bytes()
        if path.suffix == ".svg":
            assert NASTY in "".join(ElementTree.fromstring(content).itertext())
        elif path.suffix == ".html":
            assert content.lower().count(b"</script>") == content.lower().count(b"<script")
            assert b"<img src=x" not in content
        else:
            assert content.startswith({".png": b"\x89PNG", ".pdf": b"%PDF-"}[path.suffix])
    with pytest.raises(UsageError, match="choose from html, png, svg, pdf"):
        write_charts(prediction, tmp_path, ("gif",))
    with pytest.raises(WorkFailed, match="choose another folder"):
        write_charts(prediction, tmp_path / "new" / "map.svg", ("svg",))


def test_a_static_map_shows_speedups_and_their_legend(tmp_path: Path) -> None:
    (path, *_) = write_charts(both(), tmp_path, ("svg",))
    said = [element.text for element in ElementTree.parse(path).iter() if element.text]
    assert {"strong scaling: speedup", "weak scaling: speedup", "~0.25", "1.12", "~7.09", "2 nodes"} <= set(said)
    assert "undefined" not in said


@pytest.mark.launches
def test_a_browser_shows_another_quantity_when_it_is_chosen(tmp_path: Path) -> None:
    needs.programs("chromium")
    (page, *_) = write_charts(both(), tmp_path, ("html",))
    before, _, after = page.read_text(encoding="utf-8").rpartition("</body>")
    choose = (
        "<script>setTimeout(() => { const menu = document.querySelector('select'); menu.selectedIndex = 2;"
        " menu.dispatchEvent(new Event('change')); menu.dispatchEvent(new Event('input')) }, 2000)</script></body>"
    )
    script = before.replace('"mode": "vega-lite"', '"mode": "vega-lite", "renderer": "svg"')
    page.write_text(script + choose + after, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        ["chromium", *options, "--virtual-time-budget=8000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert "weak scaling: step time" in done.stdout
    assert ">200 ms<" in done.stdout  # the legend
    assert ">~467 ms<" in done.stdout  # a cell
