from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from figure_parts import layers, rows, subtitle, with_data
from made_predictions import cluster, timeline
from made_scalings import NASTY

from scalescope.records.cluster import Cluster
from scalescope.records.timeline import Span, Step, Timeline
from scalescope.reporting.charts import save_charts
from scalescope.reporting.charts.cluster import costs_chart
from scalescope.reporting.charts.step import exposed, step_chart, step_charts
from scalescope.timelines.breakdown import break_down


def test_a_step_marks_communication_that_nothing_hides() -> None:
    figure = with_data(step_chart(timeline(ranks=3), "One step: cnn", "batch 64 each"))
    assert subtitle(figure) == ["One step: cnn", "batch 64 each"]
    (panel,) = figure["vconcat"]
    assert panel["title"]["text"] == (
        "41 ms, of it 6 ms (15 %) exposed communication; 15 ms of communication is hidden (rank 2, the slowest)"
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


def test_exposed_means_what_the_breakdown_means() -> None:
    def span(activity: Any, start: float, end: float) -> Span:
        return Span(rank=0, activity=activity, start_s=start, end_s=end)

    spans = (
        span("backward", 0, 4),
        span("copy", 5, 6),
        span("communication", 1, 7),
        span("negotiation", 6.5, 9),
        span("optimizer", 8, 10),
    )
    step = Step(rank=0, start_s=0, end_s=10)
    found = exposed(spans)
    assert found == [(4, 5), (6, 8)]
    told = break_down(Timeline(source="x", spans=spans, steps=(step,)), step)
    assert told.exposed_s == sum(end - start for start, end in found)


def test_of_many_steps_the_median_is_drawn_and_of_many_ranks_some() -> None:
    steps = tuple(Step(rank=0, start_s=start, end_s=end) for start, end in ((0, 9), (10, 12), (20, 23)))
    spans = tuple(
        Span(rank=0, activity="forward", start_s=step.start_s, end_s=step.end_s, name=f"step {index}")
        for index, step in enumerate(steps)
    )
    (panel,) = with_data(step_chart(Timeline(source="x", spans=spans, steps=steps), "x"))["vconcat"]
    assert [(row["name"], row["start"], row["end"]) for row in rows(layers(panel, "rect")[0])] == [("step 2", 0, 3)]
    many = with_data(step_chart(timeline(ranks=20), "x"))
    assert {row["rank"] for row in rows(layers(many["vconcat"][0], "rect")[0])} == {0, 1, 2, 3, 4, 5, 6, 19}
    assert "8 of 20 ranks are drawn" in subtitle(many)


def test_two_steps_share_their_axis(tmp_path: Path) -> None:
    chart = step_charts({"predicted": timeline(), "measured": timeline("kineto", slow=1.2)}, NASTY)
    figure = with_data(chart)
    first, second = figure["vconcat"]
    assert first["title"]["text"].startswith("predicted: 40.5 ms")
    assert second["title"]["text"].startswith("measured: 48.6 ms")
    domains = [panel["layer"][0]["encoding"]["x"]["scale"]["domain"] for panel in (first, second)]
    assert domains[0] == domains[1] == [0, pytest.approx(48.6)]
    (path,) = save_charts({"step": chart}, tmp_path, ("html",))
    assert b"<img src=x" not in path.read_bytes()


def test_an_empty_timeline_is_drawn_as_nothing(tmp_path: Path) -> None:
    chart = step_chart(Timeline(source="x", spans=(), steps=()), "nothing")
    assert save_charts({"step": chart}, tmp_path, ("svg",))[0].stat().st_size > 0


def test_costs_are_lines_by_size_beside_their_bandwidth(tmp_path: Path) -> None:
    assert costs_chart(Cluster(nodes=1, slots_per_node=2, cores_per_node=2)) is None
    chart = costs_chart(cluster())
    seconds, bandwidth = with_data(chart)["hconcat"]
    assert seconds["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
    found = [row for row in rows(layers(bandwidth, "line")[0]) if row["line"] == "gloo, 4 ranks on 2 nodes"]
    largest = max((row for row in found if row["operation"] == "allreduce"), key=lambda row: row["bytes"])
    assert largest["bytes"] == 4**13
    assert largest["bandwidth"] == pytest.approx(1.6e9 / 12, rel=0.01)  # of the link, whatever the ranks
    assert largest["bandwidth_words"] == "133 MB/s"
    assert len({(row["line"], row["operation"]) for row in rows(layers(seconds, "line")[0])}) == 12
    (path,) = save_charts({"costs": chart}, tmp_path, ("svg",))
    said = {element.text for element in ElementTree.parse(path).iter() if element.text}
    assert {"64 KiB", "10 ms", "1 GB/s", "broadcast", "What collectives cost: two nodes"} <= said
