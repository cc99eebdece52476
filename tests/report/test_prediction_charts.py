from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from figure_parts import layers, rows, subtitle, with_data
from made_predictions import both, checked, crowded, hopeless, large, predicted, single, timeline, too_large
from made_scalings import NASTY
from rendered import charts, write_charts

from scalescope.errors import UsageError, WorkFailed
from scalescope.records.prediction import Prediction
from scalescope.show import document_of
from scalescope.show.charts.saving import FORMATS, save_charts

RING = "#e6007e"


@pytest.fixture(scope="module")
def of_checked() -> dict[str, Any]:
    return drawn(checked())


def drawn(prediction: Prediction) -> dict[str, Any]:
    return {name: with_data(chart) for name, chart in charts(prediction).items()}


def test_only_what_there_are_numbers_for_is_drawn(of_checked: Any) -> None:
    assert list(of_checked) == ["map"]
    assert list(charts(too_large())) == ["map"]
    assert list(charts(both(), step=timeline())) == ["map", "step"]


def test_the_map_holds_the_cells_and_rings_the_recommended_one(of_checked: Any) -> None:
    figure = of_checked["map"]
    strong, weak = figure["concat"]
    (cells,) = layers(weak, "rect", strokeWidth=1)
    assert len(rows(cells)) == 48
    (best,) = [row for row in rows(cells) if (row["np"], row["column"]) == (8, 512)]
    assert best["speedup"] == pytest.approx(7.09, abs=0.005)
    assert best["speedup_words"] == "7.09 (6.69 to 7.54)"
    assert best["step"] == "467 ms (439 ms to 495 ms)"
    assert (best["global_batch"], best["fits"], best["words"], best["nodes"]) == (4096, True, "~7.09", 2)
    (ring,) = layers(weak, "rect", stroke=RING)
    assert rows(ring) == [{"np": 8, "column": 512}]
    assert not layers(strong, "rect", stroke=RING)
    encoding = cells["encoding"]
    assert encoding["y"]["scale"]["domain"] == [8, 6, 4, 3, 2, 1]
    assert (encoding["x"]["title"], encoding["y"]["title"]) == ("batch of a process", "processes (nodes)")
    assert strong["layer"][0]["encoding"]["x"]["title"] == "global batch"
    told = {each["title"] for each in encoding["tooltip"] if "title" in each}
    assert {"global batch", "hidden communication", "memory of a process", "step time"} <= told
    title, advice, trust, *key = subtitle(figure)
    assert title == "Prediction: cnn with ddp"
    assert advice.startswith("recommended: 8 processes with batch 512 each give 7.09x (6.69 to 7.54)")
    assert trust.startswith("4 cells run for real: wrong by 4.5 % on average")
    assert key == [
        "black: slower than one process; grey: does not fit into memory; ring: recommended",
        "points, =: measured; ~: beyond the profiled batches",
    ]


def test_cells_that_were_measured_have_a_point(of_checked: Any) -> None:
    strong, weak = of_checked["map"]["concat"]
    (point,) = layers(strong, "point")
    assert rows(point) == [{"np": 4, "column": 64, "measured": "20.4 ms", "predicted": "20.6 ms", "error": "+1.0 %"}]
    assert {(row["np"], row["column"]) for row in rows(layers(weak, "point")[0])} == {(2, 16), (4, 64), (8, 256)}
    assert not layers(drawn(predicted())["map"]["concat"][0], "point")


def test_nodes_begin_at_dashed_lines_and_are_named_next_to_processes(of_checked: Any) -> None:
    _, weak = of_checked["map"]["concat"]
    (rule,) = layers(weak, "rule", strokeDash=[4, 2])
    assert rows(rule) == [{"np": 6}]
    assert rule["encoding"]["y"]["bandPosition"] == 1  # the lower edge of the first row on two nodes
    one = drawn(predicted(slots=8))["map"]["concat"][0]
    assert not layers(one, "rule", strokeDash=[4, 2])
    assert one["layer"][0]["encoding"]["y"]["title"] == "processes"


def test_a_map_that_is_not_to_be_trusted_says_why() -> None:
    figure = drawn(msgspec.structs.replace(predicted(), doubts=("busy", "slow"), recommended=None))["map"]
    assert subtitle(figure)[1:4] == ["recommended: nothing, because the map is not to be trusted", "busy", "slow"]


def test_large_maps_are_thinned_small_and_quick(tmp_path: Path) -> None:
    chart = document_of(large()).figures[0].draw()
    page, picture = save_charts({"map": chart.to_dict()}, tmp_path, ("html", "png"))
    assert page.stat().st_size < 5_000_000
    assert picture.read_bytes().startswith(b"\x89PNG")
    figure = with_data(chart)
    assert subtitle(figure)[-1] == "shown: 64 of 1,024 batches"
    (panel,) = figure["concat"]
    assert len(rows(layers(panel, "rect")[0])) == 64 * 64
    assert not layers(panel, "text")  # no room for numbers


def test_files_of_every_format_are_real_and_hold_no_users_markup(tmp_path: Path) -> None:
    prediction = msgspec.structs.replace(checked(), what=NASTY)
    written = write_charts(prediction, tmp_path / "new", FORMATS)
    assert {path.name for path in written} == {f"map.{ending}" for ending in FORMATS}
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


def texts(path: Path) -> set[str]:
    return {element.text.strip() for element in ElementTree.parse(path).iter() if element.text}


def test_a_static_map_shows_speedups_and_their_legend(tmp_path: Path) -> None:
    (of_map,) = write_charts(both(), tmp_path, ("svg",))
    said = texts(of_map)
    assert {"strong scaling: speedup", "weak scaling: speedup", "~0.25", "1.12", "~7.09", "8 (2)", "4 (1)"} <= said
    assert {"2", "4", "6"} <= said  # the legend
    assert "undefined" not in said


@pytest.mark.parametrize("make", [crowded, too_large, hopeless, single])
def test_maps_without_speedups_are_drawn(make: Any, tmp_path: Path) -> None:
    (path, *_) = write_charts(make(), tmp_path, ("svg",))
    said = texts(path)
    assert ("mem" in said) == (make in (crowded, too_large))
    assert ("0.42" in said or "~0.42" in said) == (make is hopeless)
    assert not any("NaN" in each or "undefined" in each for each in said)
