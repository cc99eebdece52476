"""The chart of a tuning holds what was measured, predicted and decided."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from figure_parts import layers, rows, subtitle, with_data
from made_tunings import keep_default, many_knobs, two_hosts, without_prior
from rendered import charts, write_charts

from scalescope.records.tuning import Tuning


def drawn(tuning: Tuning, name: str) -> Any:
    return with_data(charts(tuning)[name])


def told(figure: Any) -> str:
    """All that stands above a figure, on one line."""
    return " ".join(subtitle(figure))


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


def test_without_step_times_nothing_is_drawn() -> None:
    tuning = two_hosts()
    assert charts(msgspec.structs.replace(tuning, samples=(), default_step_s=None)) == {}
    assert list(charts(msgspec.structs.replace(tuning, default_step_s=None))) == ["convergence"]


def test_files_are_written_and_a_name_cannot_leave_its_page(tmp_path: Path) -> None:
    page, picture = write_charts(many_knobs(), tmp_path / "new", ("html", "png"))
    assert (page.name, picture.name) == ("convergence.html", "convergence.png")
    assert "<script>alert(1)" not in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
