from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from figure_parts import layers, rows, subtitle, with_data
from made_predictions import cluster, timeline
from made_scalings import NASTY

from breakdowns import break_down
from scalescope.records.cluster import Cluster
from scalescope.records.timeline import Span, Step, Timeline
from scalescope.show.charts.cluster import costs_chart
from scalescope.show.charts.explanation import timelines_chart
from scalescope.show.charts.saving import save_charts


def step_chart(timeline: Timeline, title: str, *lines: str) -> Any:
    return timelines_chart({"": timeline}, title, *lines)


def test_a_step_marks_communication_that_nothing_hides() -> None:
    figure = with_data(step_chart(timeline(ranks=3), "One step: cnn", "batch 64 each"))
    assert subtitle(figure) == ["One step: cnn", "batch 64 each", "of every rank: compute above, exchange below"]
    (panel,) = figure["vconcat"]
    assert panel["title"]["text"] == (
        "41 ms, of it 6 ms (15 %) exposed communication; 15 ms of communication is hidden (rank 2)"
    )
    bars = rows(layers(panel, "rect")[0])
    lost = [row for row in bars if row["activity"] == "exposed communication"]
    assert [(row["rank"], round(row["start"], 6), round(row["end"], 6)) for row in lost] == [
        (0, 31.0, 36.0),
        (1, 31.0, 36.5),
        (2, 31.0, 37.0),
    ]
    (bucket,) = [row for row in bars if row["rank"] == 0 and row["name"] == "allreduce bucket 1"]
    assert (bucket["size"], bucket["took"], bucket["began"]) == ("25 MiB", "9 ms", "20 ms")
    forward = next(row for row in bars if row["activity"] == "forward")
    assert forward["bottom"] <= bucket["top"]
    first, second = (row for row in bars if row["rank"] == 0 and row["name"].endswith(("bucket 0", "bucket 1")))
    assert first["bottom"] <= second["top"]  # at the same time, so one below the other


def test_of_many_ranks_some_are_drawn() -> None:
    many = with_data(step_chart(timeline(ranks=50), "x"))
    assert {row["rank"] for row in rows(layers(many["vconcat"][0], "rect")[0])} == {*range(31), 49}
    assert "of every rank: compute above, exchange below; 32 of 50 ranks are drawn" in subtitle(many)


def test_every_rank_that_is_drawn_is_named(tmp_path: Path) -> None:
    (path,) = save_charts({"step": step_chart(timeline(ranks=20), "x").to_dict()}, tmp_path, ("svg",))
    said = [element.text for element in ElementTree.parse(path).iter() if element.text]
    assert [text for text in said if text.startswith("rank ")] == [f"rank {rank}" for rank in range(20)]


def test_without_compute_nothing_is_called_exposed() -> None:
    spans = tuple(
        Span(rank=0, activity="communication", start_s=start, end_s=end) for start, end in ((1.0, 3.0), (6.0, 7.0))
    )
    copied = Span(rank=0, activity="copy", start_s=6.0, end_s=6.2)  # a timeline tells these, and no other compute
    bare = Timeline(source="horovod timeline", spans=(*spans, copied), steps=(Step(rank=0, start_s=0, end_s=10),))
    (panel,) = with_data(step_chart(bare, "x"))["vconcat"]
    assert panel["title"]["text"] == "10 s, 3 s of communication"
    assert not [row for row in rows(layers(panel, "rect")[0]) if row["activity"] == "exposed communication"]


def test_thousands_of_slivers_become_few_bars_and_keep_their_numbers() -> None:
    spans = [
        Span(rank=0, activity="forward", start_s=1e-5 * index, end_s=1e-5 * index + 8e-6, name=f"aten::{index}")
        for index in range(10_000)
    ]
    spans.append(Span(rank=0, activity="communication", start_s=0.05, end_s=0.15, name="allreduce", bytes=8))
    step = Step(rank=0, start_s=0, end_s=0.15)
    (panel,) = with_data(step_chart(Timeline(source="x", spans=tuple(spans), steps=(step,)), "x"))["vconcat"]
    bars = rows(layers(panel, "rect")[0])
    assert len(bars) < 1500
    assert max(row["end"] for row in bars if row["activity"] == "forward") == pytest.approx(99.998)
    hidden_s = break_down(Timeline(source="x", spans=tuple(spans), steps=(step,)), step).hidden_s
    assert hidden_s == pytest.approx(0.04, rel=1e-3)
    assert panel["title"]["text"].endswith("40 ms of communication is hidden")


def test_what_would_be_too_many_lines_at_once_is_one_bar() -> None:
    spans = tuple(
        Span(rank=0, activity="negotiation", start_s=0.1 * index, end_s=9.0, name=f"layer.{index}", bytes=4)
        for index in range(50)
    )
    step = Step(rank=0, start_s=0, end_s=10)
    (panel,) = with_data(step_chart(Timeline(source="x", spans=spans, steps=(step,)), "x"))["vconcat"]
    (bar,) = rows(layers(panel, "rect")[0])
    assert (bar["start"], bar["end"], bar["name"]) == (0, 9, "50 together: layer.0 ...")
    assert bar["size"] == "200 B"


def test_two_steps_share_their_axis(tmp_path: Path) -> None:
    chart = timelines_chart({"predicted": timeline(), "measured": timeline("kineto", slow=1.2)}, NASTY)
    figure = with_data(chart)
    first, second = figure["vconcat"]
    assert first["title"]["text"].startswith("predicted: 40.5 ms")
    assert second["title"]["text"].startswith("measured: 48.6 ms")
    domains = [panel["layer"][0]["encoding"]["x"]["scale"]["domain"] for panel in (first, second)]
    assert domains[0] == domains[1] == [0, pytest.approx(48.6)]
    (path,) = save_charts({"step": chart.to_dict()}, tmp_path, ("html",))
    assert b"<img src=x" not in path.read_bytes()


def test_an_empty_timeline_is_drawn_as_nothing(tmp_path: Path) -> None:
    chart = step_chart(Timeline(source="x", spans=(), steps=()), "nothing")
    assert save_charts({"step": chart.to_dict()}, tmp_path, ("svg",))[0].stat().st_size > 0


def test_costs_are_lines_by_size(tmp_path: Path) -> None:
    assert costs_chart(Cluster(nodes=1, slots_per_node=2, cores_per_node=2)) is None
    chart = costs_chart(cluster())
    (line,) = layers(with_data(chart), "line")
    assert line["encoding"]["x"]["scale"]["type"] == "log"
    found = [row for row in rows(line) if row["line"] == "gloo, 4 ranks on 2 nodes"]
    largest = max((row for row in found if row["operation"] == "allreduce"), key=lambda row: row["bytes"])
    assert (largest["bytes"], largest["rate"]) == (4**13, "84.7 MiB/s")
    assert len({(row["line"], row["operation"]) for row in rows(line)}) == 12
    (path,) = save_charts({"costs": chart.to_dict()}, tmp_path, ("svg",))
    said = {element.text for element in ElementTree.parse(path).iter() if element.text}
    assert {"64 KiB", "10 ms", "broadcast", "What collectives cost: two nodes"} <= said
