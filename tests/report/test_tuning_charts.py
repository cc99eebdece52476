"""Charts of a tuning hold what was measured, predicted and decided."""

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
from rendered import charts, write_charts

from scalescope.records.tuning import Cell, Tuning


def drawn(tuning: Tuning, name: str) -> Any:
    return with_data(charts(tuning)[name])


def told(figure: Any) -> str:
    """All that stands above a figure, on one line."""
    return " ".join(subtitle(figure))


def cells(panel: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["x"], row["y"]): row for row in rows(layers(panel, "rect", stroke="white")[0])}


def outlines(panel: Any) -> list[tuple[str, str]]:
    """Places of the default and of what was found."""
    rings = [layer for layer in layers(panel, "rect", fillOpacity=0) if layer["mark"]["stroke"] != "white"]
    return [(row["x"], row["y"]) for layer in rings for row in rows(layer)]


def sampled(panel: Any) -> set[tuple[str, str]]:
    return {(row["x"], row["y"]) for row in rows(layers(panel, "point")[0])}


def test_the_landscape_shows_expected_times() -> None:
    expected = figure = drawn(two_hosts(), "landscape")
    assert cells(expected)["1", "on"]["time"] == pytest.approx(353, abs=1)
    assert cells(expected)["1", "on"]["predicted by the simulator"] == "378 ms"
    assert cells(expected)["as it is\n(25)", "off"]["time"] == pytest.approx(557, abs=1)
    assert len(cells(expected)) == 16
    assert layers(expected, "rect")[0]["encoding"]["color"]["scale"]["domain"][0] == pytest.approx(353, abs=1)
    assert outlines(expected) == [("as it is\n(25)", "off"), ("1", "on")]
    assert {("as it is\n(25)", "off"), ("1", "on"), ("0.25", "off")} <= sampled(expected)
    assert len(sampled(expected)) == 7
    words = told(figure)
    assert words.startswith("Step time over bucket_cap_mb and hierarchical_allreduce: train.py ddp on 4 processes of")
    assert "while training; fixed: first_bucket_mb 1 bright: fast; dots: sampled; dashed: the default" in words
    assert "; ring: the winner" in words
    assert words.endswith("with the best of gradient_as_bucket_view")


def test_the_two_knobs_that_say_most_are_drawn_whatever_their_order() -> None:
    turned = msgspec.structs.replace(two_hosts(), knobs=(VIEW, HIERARCHICAL, CAP))
    assert told(drawn(turned, "landscape")).startswith("Step time over bucket_cap_mb and hierarchical_allreduce")
    assert told(drawn(many_knobs(), "landscape")).startswith("Step time over bucket_cap_mb and threads_per_rank")


def test_a_cell_is_the_answer_the_default_or_the_fastest_setting_of_its_place() -> None:
    panel = drawn(many_knobs(), "landscape")
    assert outlines(panel) == [("as it is", "1"), ("8", "2")]
    assert cells(panel)["as it is", "1"]["setting"] == "the default"
    assert cells(panel)["8", "2"]["setting"] == "bucket_cap_mb 8, threads_per_rank 2 and nccl_algo Tree"
    assert "nccl_algo Tree" in cells(panel)["0.25", "8"]["setting"]


def test_forty_cells_of_horovod_stand_where_their_knobs_are() -> None:
    expected = drawn(horovod(), "landscape")
    assert len(cells(expected)) == 40
    assert outlines(expected) == [("128", "1"), ("16", "0.5")]
    encoding = layers(expected, "rect")[0]["encoding"]
    assert encoding["x"]["scale"]["domain"] == ["0", "1", "4", "8", "16", "32", "64", "128"]
    assert encoding["y"]["scale"]["domain"] == ["10", "5", "2.5", "1", "0.5"]


def test_colours_do_not_make_a_landscape_of_noise() -> None:
    flat = made((CAP, VIEW), lambda values: 0.0114, [{"bucket_cap_mb": 4.0}])
    panel = drawn(flat, "landscape")
    domain = layers(panel, "rect")[0]["encoding"]["color"]["scale"]["domain"]
    assert domain[-1] / domain[0] == pytest.approx(1.25)


def test_what_did_not_win_is_not_called_a_winner() -> None:
    assert "ring: the finalist" in told(drawn(keep_default(), "landscape"))
    alone = made((CAP, VIEW), small_tensors_surface, [{"bucket_cap_mb": 0.5}], pairs=0)
    for tuning in (unfinished(), alone):
        figure = drawn(tuning, "landscape")
        assert "ring" not in told(figure)
        assert outlines(figure) == [("as it is\n(25)", "off")]


def test_one_knob_is_a_map_of_one_row() -> None:
    figure = drawn(one_knob(), "landscape")
    places = ["0.25", "0.5", "1", "2", "4", "8", "as it is\n(25)", "50"]
    assert {place for place, _ in cells(figure)} == set(places)
    assert figure["layer"][0]["encoding"]["x"]["scale"]["domain"] == places
    assert {place for place, _ in sampled(figure)} == {"as it is\n(25)", "1", "0.25", "2", "4", "0.5"}
    assert outlines(figure) == [("as it is\n(25)", ""), ("1", "")]


def test_convergence_has_every_sample_the_best_so_far_and_the_default() -> None:
    tuning = two_hosts()
    figure = drawn(tuning, "convergence")
    (points,) = layers(figure, "point")
    assert [row["time"] for row in rows(points)] == pytest.approx(
        [1e3 * (sample.step_s or 0.0) for sample in tuning.samples]
    )
    assert {row["kind"] for row in rows(points)} == {"the default", "the winner", "another setting"}
    default, bars = layers(figure, "rule")
    assert rows(default)[0]["time"] == pytest.approx(556.8, abs=0.5)
    assert rows(bars)[0]["high"] - rows(bars)[0]["low"] == pytest.approx(4e3 * (tuning.samples[0].error_s or 0.0))
    (best,) = layers(figure, "line")
    assert [row["sample"] for row in rows(best)] == [0, 1, 7.5]
    (grey,) = layers(figure, "rect")
    assert rows(grey)[0]["sample"] == 7.5


def test_samples_that_were_cut_or_failed_stand_at_the_upper_edge() -> None:
    figure = drawn(keep_default(), "convergence")
    (points,) = layers(figure, "point")
    (cut,) = [row for row in rows(points) if row["kind"] == "cut: clearly worse"]
    scale = points["encoding"]["y"]["scale"]
    assert scale["domain"][1] < 13 < cut["time"]
    assert scale["clamp"]
    assert "at the upper edge: failed, or beyond it" in told(figure)
    (points,) = layers(drawn(without_prior(), "convergence"), "point")
    (failed,) = [row for row in rows(points) if row["kind"] == "failed"]
    assert (failed["sample"], failed["time"]) == (4, points["encoding"]["y"]["scale"]["domain"][1])
    assert failed["decision"] == "rank 1 ended with code 1"


def test_only_what_is_known_is_drawn() -> None:
    tuning = two_hosts()
    nothing = msgspec.structs.replace(tuning, samples=(), cells=(), default_step_s=None)
    assert charts(nothing) == {}
    assert list(charts(msgspec.structs.replace(tuning, cells=()))) == ["convergence"]
    assert list(charts(msgspec.structs.replace(tuning, default_step_s=None))) == ["landscape", "convergence"]


def test_a_search_with_no_second_place_through_its_answer_is_drawn_along_what_was_tried() -> None:
    tuning = keep_default()
    answer = {"bucket_cap_mb": 0.5, "gradient_as_bucket_view": True}
    lonely = tuple(
        Cell(values=values, predicted_s=None, expected_s=0.02, error=0.1)
        for values in ({}, answer, {"bucket_cap_mb": 1.0})
    )
    tuning = msgspec.structs.replace(tuning, cells=lonely, knobs=(CAP, VIEW), finalist=answer)
    panel = drawn(tuning, "landscape")
    assert len(cells(panel)) == 3


def test_files_are_written_and_a_name_cannot_leave_its_page(tmp_path: Path) -> None:
    nasty = msgspec.structs.replace(many_knobs(), samples=(), default_step_s=None)
    page, picture = write_charts(nasty, tmp_path / "new", ("html", "png"))
    assert (page.name, picture.name) == ("landscape.html", "landscape.png")
    assert "<script>alert(1)" not in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
