from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from figure_parts import layers, rows, subtitle, with_data
from made_explanation import bare_horovod, compared, ddp, nasty, without_steps
from rendered import charts, write_charts

from scalescope.errors import UsageError
from scalescope.records.explanation import Explanation, StepAccount
from scalescope.show.charts.explanation import accounting_over_np, step_times_chart
from scalescope.show.charts.saving import FORMATS, save_charts


def drawn(explanation: Explanation) -> dict[str, Any]:
    return {name: with_data(chart) for name, chart in charts(explanation).items()}


def test_only_what_there_are_numbers_for_is_drawn() -> None:
    assert list(charts(ddp())) == ["step", "accounting", "step_times"]
    assert list(charts(ddp(1, straggler=None))) == ["step", "accounting", "step_times"]
    assert not charts(without_steps())


def test_parts_of_a_rank_follow_each_other_to_the_end_of_its_step() -> None:
    explanation = ddp()
    figure = drawn(explanation)["accounting"]
    bars = rows(layers(figure, "bar")[0])
    own = [row for row in bars if row["rank"] == "rank 1 (straggler): 112 ms"]
    parts, (hidden,) = own[:-1], own[-1:]
    assert [row["part"] for row in parts] == ["compute", "exposed transfer", "input", "optimizer", "other"]
    assert all(left["end"] == pytest.approx(right["start"]) for left, right in pairwise(parts))
    assert parts[-1]["end"] == pytest.approx(1e3 * explanation.per_rank[1].parts.step_s)
    assert hidden["part"] == "hidden communication"
    assert hidden["below"]
    assert hidden["end"] < parts[0]["end"]  # under compute


def test_what_a_bare_timeline_cannot_tell_is_not_drawn() -> None:
    figures = drawn(bare_horovod())
    bars = rows(layers(figures["accounting"], "bar")[0])
    assert [row["part"] for row in bars] == [
        "waiting for other ranks",
        "exposed transfer",
        "other",
    ]
    assert "not told by this source, and in other: compute, input, optimizer" in subtitle(figures["accounting"])


def test_bars_over_numbers_of_ranks_are_in_their_order_and_named_once() -> None:
    assert accounting_over_np([without_steps()]) is None
    figure = with_data(accounting_over_np([ddp(4), ddp(1, straggler=None), ddp(2), ddp(2)]))
    assert drawn_labels(figure) == ["1 rank, ddp", "2 ranks, ddp", "2 ranks, ddp #2", "4 ranks, ddp"]
    mixed = with_data(accounting_over_np([ddp(2), msgspec.structs.replace(bare_horovod(), world_size=2)]))
    assert drawn_labels(mixed) == ["2 ranks, ddp", "2 ranks, horovod"]
    alike = with_data(accounting_over_np([ddp(2), ddp(2)], ["before", "after"]))
    assert drawn_labels(alike) == ["before, 2 ranks, ddp", "after, 2 ranks, ddp"]


def drawn_labels(figure: Any) -> list[str]:
    return [label.rpartition(":")[0] for label in figure["layer"][0]["encoding"]["y"]["scale"]["domain"]]


def test_the_predicted_step_stands_above_the_measured_one() -> None:
    figure = drawn(compared())["step"]
    first, second = figure["vconcat"]
    assert first["title"]["text"].startswith("predicted: 75.6 ms")
    assert second["title"]["text"].startswith("measured: 104 ms")
    assert {row["rank"] for row in rows(layers(second, "rect")[0])} == {0, 1}
    assert "step 30, a representative one; rank 1 is the straggler: the others wait for it" in subtitle(figure)
    (zoom,) = figure["params"]
    for panel in (first, second):  # one zoom for both
        assert {layer.get("name") for layer in panel["layer"]} & set(zoom["views"])


def test_warmup_changes_and_far_steps_are_marked() -> None:
    figure = drawn(ddp())["step_times"]
    (field,) = layers(figure, "rect")
    assert rows(field) == [{"step": -0.5, "end": 2.5}]
    (rule,) = layers(figure, "rule")
    assert [(row["step"], row["what"]) for row in rows(rule)] == [(29.5, "94 ms to 107 ms")]
    assert any("longer steps end above the axis" in line for line in subtitle(figure))
    (line,) = layers(figure, "line")
    assert len(rows(line)) == 60
    top = line["encoding"]["y"]["scale"]["domain"][1]
    assert 180 < top < 200  # all steady steps are on the axis, the first is not


def test_thousands_of_steps_stay_light_and_keep_their_extremes(tmp_path: Path) -> None:
    explanation = ddp(4, 20_000)
    chart = step_times_chart(explanation)
    figure = with_data(chart)
    (band,) = layers(figure, "area")
    assert len(rows(band)) <= 600
    assert max(row["top"] for row in rows(band)) == pytest.approx(
        1e3 * max(step.parts.step_s for step in explanation.steps)
    )
    assert "median of 34 steps each" in subtitle(figure)[1]
    (picture, page) = save_charts({"step_times": chart.to_dict()}, tmp_path, ("svg", "html"))
    assert picture.stat().st_size < 500_000
    assert page.stat().st_size < 1_500_000


def test_one_step_is_no_run() -> None:
    steps: tuple[StepAccount, ...] = ddp().steps[:2]
    assert step_times_chart(msgspec.structs.replace(ddp(), steps=steps)) is None
    alike = tuple(
        msgspec.structs.replace(step, parts=msgspec.structs.replace(step.parts, step_s=0.0)) for step in ddp().steps
    )
    assert with_data(step_times_chart(msgspec.structs.replace(ddp(), steps=alike)))["layer"]


@pytest.mark.parametrize("ranks", [1, 2, 16])
def test_every_rank_is_named_once(ranks: int, tmp_path: Path) -> None:
    written = write_charts(ddp(ranks, straggler=None), tmp_path, ("svg",))
    (path,) = [path for path in written if path.stem == "accounting"]
    said = [element.text for element in ElementTree.parse(path).iter() if element.text]
    named = [text.partition(":")[0] for text in said if text.startswith("rank ")]
    assert named == [f"rank {rank}" for rank in range(ranks)]


def test_files_of_every_format_are_real_and_hold_no_users_markup(tmp_path: Path) -> None:
    written = write_charts(nasty(), tmp_path / "new", FORMATS)
    assert {path.name for path in written} == {
        f"{name}.{ending}" for name in ("accounting", "step", "step_times") for ending in FORMATS
    }
    for path in written:
        content = path.read_bytes()
        if path.suffix == ".svg":
            said = "".join(ElementTree.fromstring(content).itertext())
            assert "<script>" in said
            assert "\x1b" not in said
        elif path.suffix == ".html":
            assert content.lower().count(b"</script>") == content.lower().count(b"<script")
            assert b"alert(1)</" not in content
        else:
            assert content.startswith({".png": b"\x89PNG", ".pdf": b"%PDF-"}[path.suffix])
    with pytest.raises(UsageError, match="choose from html, png, svg, pdf"):
        write_charts(nasty(), tmp_path, ("gif",))
