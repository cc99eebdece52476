"""Drawings of a tuning hold what was measured, predicted and decided."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from figure_parts import layers, rows, subtitle, with_data
from made_search import made
from made_tunings import (
    CAP,
    HIERARCHICAL,
    VIEW,
    horovod,
    keep_default,
    many_knobs,
    one_knob,
    small_tensors_surface,
    two_hosts,
    unfinished,
    without_prior,
)

from scalescope.charts import charts, write_charts
from scalescope.charts.convergence import convergence_chart
from scalescope.charts.landscape import landscape_chart
from scalescope.charts.landscape_parts import slice_of
from scalescope.records.tuning import Cell, Tuning

DRAWERS = {"landscape": landscape_chart, "convergence": convergence_chart}


def drawn(tuning: Tuning, name: str) -> Any:
    return with_data(DRAWERS[name](tuning))


def cells(panel: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["x"], row["y"]): row for row in rows(layers(panel, "rect", strokeWidth=1)[0])}


def outlines(panel: Any) -> list[tuple[str, str]]:
    """Places of the default, if it is there, and of what was found."""
    rings = [layer for layer in layers(panel, "rect", fillOpacity=0) if layer["mark"]["stroke"] != "white"]
    return [(row["x"], row["y"]) for layer in rings for row in rows(layer)]


def numbers(panel: Any) -> dict[tuple[str, str], str]:
    return {(row["x"], row["y"]): row["number"] for row in rows(layers(panel, "text")[-1])}


def test_the_landscape_shows_expected_and_predicted_times_on_one_scale() -> None:
    figure = drawn(two_hosts(), "landscape")
    expected, predicted = figure["concat"]
    assert cells(expected)["1", "on"]["time"] == pytest.approx(353, abs=1)
    assert cells(expected)["as it is\n(25)", "off"]["time"] == pytest.approx(557, abs=1)
    assert cells(predicted)["1", "on"]["words"] == "378"
    assert len(cells(expected)) == len(cells(predicted)) == 16
    scales = [layers(panel, "rect")[0]["encoding"]["color"]["scale"] for panel in (expected, predicted)]
    assert scales[0] == scales[1]
    assert scales[0]["domain"][0] == pytest.approx(353, abs=1)
    assert outlines(expected) == outlines(predicted) == [("as it is\n(25)", "off"), ("1", "on")]
    assert numbers(expected)["as it is\n(25)", "off"] == "0"
    assert numbers(expected)["1", "on"] == "1"
    assert len(numbers(expected)) == 7
    title, *conditions, key, beside, held = subtitle(figure)
    assert title == "Step time over bucket_cap_mb and hierarchical allreduce: train.py"
    assert "use bucket_cap_mb 1 and hierarchical allreduce: 1.58x" in conditions[-1]
    assert "ring: the winner; dashed: the default" in key
    assert beside == "drawn for gradient as bucket view off"
    assert held == "fixed: first_bucket_mb 1"


def test_the_two_knobs_that_say_most_are_drawn_whatever_their_order() -> None:
    tuning = two_hosts()
    turned = msgspec.structs.replace(tuning, knobs=(VIEW, HIERARCHICAL, CAP))
    assert subtitle(drawn(turned, "landscape"))[0].startswith("Step time over bucket_cap_mb and hierarchical allreduce")
    figure = drawn(many_knobs(), "landscape")
    assert subtitle(figure)[0].startswith("Step time over bucket_cap_mb and threads_per_rank")
    assert "drawn for nccl_algo Tree, hierarchical allreduce off, gradient as bucket view off" in subtitle(figure)


def test_the_default_and_samples_with_other_knobs_are_shown_where_they_are() -> None:
    panel = drawn(many_knobs(), "landscape")["concat"][0]
    assert outlines(panel) == [("as it is", "1"), ("8", "2")]
    assert cells(panel)["as it is", "1"]["words"] == "1.38*"
    assert cells(panel)["as it is", "1"]["setting"] == "the default"
    few = msgspec.structs.replace(two_hosts(), samples=two_hosts().samples[:1] + two_hosts().samples[6:7])
    panel = drawn(few, "landscape")["concat"][0]
    white, grey = (layer["mark"]["fill"] for layer in layers(panel, "point"))
    assert (white, grey) == ("white", "#bbbbbb")
    assert [row["number"] for row in rows(layers(panel, "point")[1])] == ["6"]
    assert "grey circles: samples with other values of these" in subtitle(drawn(few, "landscape"))


def test_a_default_that_differs_from_the_winner_elsewhere_only_is_told() -> None:
    tuning = msgspec.structs.replace(two_hosts(), values={"gradient_as_bucket_view": True})
    figure = drawn(tuning, "landscape")
    assert "the default lies behind the ring" in subtitle(figure)[-2]
    assert outlines(figure["concat"][0]) == [("as it is\n(25)", "off")]


def test_forty_cells_of_horovod_stand_where_their_knobs_are() -> None:
    expected, _ = drawn(horovod(), "landscape")["concat"]
    assert len(cells(expected)) == 40
    assert outlines(expected) == [("128", "1"), ("16", "0.5")]
    encoding = layers(expected, "rect")[0]["encoding"]
    assert encoding["x"]["scale"]["domain"] == ["0", "1", "4", "8", "16", "32", "64", "128"]
    assert encoding["y"]["scale"]["domain"] == ["10", "5", "2.5", "1", "0.5"]


def test_colours_do_not_make_a_landscape_of_noise() -> None:
    flat = made((CAP, VIEW), lambda values: 0.0114, [{"bucket_cap_mb": 4.0}])
    panel = drawn(flat, "landscape")["concat"][0]
    domain = layers(panel, "rect")[0]["encoding"]["color"]["scale"]["domain"]
    assert domain[-1] / domain[0] == pytest.approx(1.25)


def test_without_predictions_there_is_one_panel() -> None:
    (panel,) = drawn(without_prior(), "landscape")["concat"]
    assert panel["title"]["text"] == "expected from the samples"
    assert ("2", "off") not in numbers(panel)  # it failed


def test_what_did_not_win_is_not_called_a_winner() -> None:
    assert "ring: the finalist" in subtitle(drawn(keep_default(), "landscape"))[2]
    assert "ring: the fastest sample" in subtitle(drawn(unfinished(), "landscape"))[2]
    alone = made((CAP, VIEW), small_tensors_surface, [{"bucket_cap_mb": 0.5}], pairs=0)
    figure = drawn(alone, "landscape")
    assert "ring" not in subtitle(figure)[2]
    assert outlines(figure["concat"][0]) == [("as it is\n(25)", "off")]


def test_one_knob_is_a_line_with_its_band_and_samples() -> None:
    figure = drawn(one_knob(), "landscape")
    expected, predicted = layers(figure, "line")
    assert [row["x"] for row in rows(expected)] == ["0.25", "0.5", "1", "2", "4", "8", "as it is\n(25)", "50"]
    assert all(row["low"] < row["time"] < row["high"] for row in rows(expected))
    assert predicted["encoding"]["y"]["field"] == "predicted"
    (numbered,) = layers(figure, "text")
    assert {row["number"]: row["x"] for row in rows(numbered)}["1"] == "1"
    ring = layers(figure, "point")[-1]
    assert [row["x"] for row in rows(ring)] == ["1"]


def test_convergence_has_every_sample_the_best_so_far_and_the_default() -> None:
    tuning = two_hosts()
    figure = drawn(tuning, "convergence")
    (points,) = layers(figure, "point")
    assert [row["time"] for row in rows(points)] == pytest.approx(
        [1e3 * (sample.step_s or 0.0) for sample in tuning.samples]
    )
    assert {row["kind"] for row in rows(points)} == {"the default", "the winner", "another setting"}
    bars, default = layers(figure, "rule", strokeWidth=1.4)[0], layers(figure, "rule", strokeWidth=1.3)[0]
    assert rows(bars)[0]["high"] - rows(bars)[0]["low"] == pytest.approx(4e3 * (tuning.samples[0].error_s or 0.0))
    assert rows(default)[0]["time"] == pytest.approx(556.8, abs=0.5)
    (best,) = layers(figure, "line")
    assert [row["sample"] for row in rows(best)] == [0, 1, 7.5]
    (grey,) = layers(figure, "rect")
    assert rows(grey)[0]["sample"] == 7.5


def test_samples_that_were_cut_or_failed_stand_at_the_edge() -> None:
    figure = drawn(keep_default(), "convergence")
    (cut,) = [row for row in rows(layers(figure, "point")[0]) if row["kind"] == "cut: clearly worse"]
    low, high = layers(figure, "point")[0]["encoding"]["y"]["scale"]["domain"]
    assert low < cut["time"] < high < 13
    assert cut["beyond"] == "23.8"
    assert "at the upper edge: samples beyond it" in subtitle(figure)[3]
    filled, crosses = layers(drawn(without_prior(), "convergence"), "point")
    assert [row["sample"] for row in rows(crosses)] == [4]
    assert 4 not in {row["sample"] for row in rows(filled)}


def test_only_what_is_known_is_drawn() -> None:
    tuning = two_hosts()
    nothing = msgspec.structs.replace(tuning, samples=(), cells=(), default_step_s=None)
    assert charts(nothing) == {}
    assert list(charts(msgspec.structs.replace(tuning, cells=()))) == ["convergence"]
    assert list(charts(msgspec.structs.replace(tuning, default_step_s=None))) == ["landscape", "convergence"]


def test_files_are_written_and_a_name_cannot_leave_its_page(tmp_path: Path) -> None:
    nasty = msgspec.structs.replace(many_knobs(), samples=(), default_step_s=None)
    page, picture = write_charts(nasty, tmp_path / "new", ("html", "png"))
    assert (page.name, picture.name) == ("landscape.html", "landscape.png")
    assert "<script>alert(1)" not in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_search_with_no_second_place_through_its_answer_is_drawn_along_what_was_tried() -> None:
    tuning = keep_default()
    lonely = ({}, {"bucket_cap_mb": 0.5, "gradient_as_bucket_view": True}, {"bucket_cap_mb": 1.0})
    cells = tuple(Cell(values=values, predicted_s=None, expected_s=0.02, error=0.1) for values in lonely)
    answer = {"bucket_cap_mb": 0.5, "gradient_as_bucket_view": True}
    part = slice_of(msgspec.structs.replace(tuning, cells=cells, knobs=(CAP, VIEW), finalist=answer))
    assert part is not None
    assert len(part.cells) == 3
