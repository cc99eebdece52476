"""A judged autotune log for people and programs: terminal, JSON, sentence and chart."""

import json
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from figure_parts import layers, rows, subtitle, with_data
from rendered import charts, shown, write_charts

from scalescope.logs.autotune import read_autotune
from scalescope.records.autotune import Autotune
from scalescope.records.explanation import Loss
from scalescope.show import document_of
from scalescope.show.autotune import next_commands
from scalescope.show.charts.saving import FORMATS

DATA = Path(__file__).parent.parent / "data" / "autotune"
OLDER = "hierarchical_allreduce,hierarchical_allgather,cache_enabled,cycle_time_ms,tensor_fusion_threshold,score"
NASTY = "[bold]\x1b[31m</script><script>alert(1)</script>.csv"


@pytest.fixture(scope="module")
def walked() -> Autotune:
    return read_autotune(DATA / "gloo_switches_walked.csv")


@pytest.fixture(scope="module")
def held() -> Autotune:
    return read_autotune(DATA / "gloo_fusion_held.csv")


def sentence(record: Autotune) -> str:
    return document_of(record).answer


def words(text: str) -> str:
    return " ".join(text.split())


def of_rows(tmp_path: Path, *lines: str) -> Autotune:
    path = tmp_path / "autotune.csv"
    path.write_text("\n".join([OLDER, *lines, ""]))
    return read_autotune(path)


def test_the_terminal_tells_what_was_tried_and_what_to_set(walked: Autotune) -> None:
    told = words(shown(walked, details=False))
    assert "36 samples of 30 settings; its last row selects line 33" in told
    assert "samples of one setting scatter by 26 %" in told
    assert "from settings that were sampled again, 6 repeats" in told
    assert "the default (128 MiB, 1 ms) was never tried: nothing here says that the choice beats it" in told
    assert "the score that won, 166.8, is the best of 3 samples: the lowest is 141.9" in told
    assert "HOROVOD_HIERARCHICAL_ALLGATHER=1 HOROVOD_CACHE_CAPACITY=1024" in shown(walked, width=80)  # one line
    assert (
        "Do: export HOROVOD_FUSION_THRESHOLD=4194304 HOROVOD_CYCLE_TIME=5 HOROVOD_HIERARCHICAL_ALLGATHER=1 "
        "HOROVOD_CACHE_CAPACITY=1024" in told
    )


def test_a_fusion_threshold_that_the_user_fixed_is_not_called_outside(held: Autotune) -> None:
    told = words(shown(held))
    assert "the default (128 MiB, 1 ms) was never tried: nothing here says" in told
    assert "what a smooth surface through neighbouring settings leaves over" in told
    assert "outside" not in told


def test_the_sentence_answers(walked: Autotune, held: Autotune) -> None:
    assert sentence(walked) == (
        "Autotune chose fusion 4 MiB, cycle 5 ms, hierarchical allgather on, cache on, which leads the next setting by "
        "26 % while samples of one setting scatter by 26 %: it is among the best, and did not beat the noise; "
        "measure it against the default (128 MiB, 1 ms), which was never tried."
    )
    assert "which is 7 % behind the next setting on average" in sentence(held)
    other = msgspec.structs.replace(walked, recommended=0, verdict="noise", finished=False)
    assert sentence(other).startswith("Autotune did not finish; its best so far is fusion 4 MiB")
    assert "it did not beat the noise; measure the steadier fusion 4 MiB, cycle 5 ms, hierarchical allgather off" in (
        sentence(other)
    )


def test_a_choice_that_horovod_does_not_apply_is_warned_of(tmp_path: Path) -> None:
    record = of_rows(tmp_path, "0,0,0,5,4,90", "0,0,1,5,4,60", "0,0,0,5,4,90")
    told = words(shown(record))
    assert "it chose cache_enabled=0, and Horovod does not apply that to the rest of the training" in told


def test_little_is_said_about_little(tmp_path: Path) -> None:
    one = of_rows(tmp_path, "0,0,1,5,4,90")
    assert "which is the only setting that was tried; measure it against the default" in sentence(one)
    two = of_rows(tmp_path, "0,0,1,5,4,90", "0,0,1,50,32,60")
    assert "leads the next setting by 50 %; the noise cannot be told from this few samples" in sentence(two)
    assert document_of(two).json()["beat_the_noise"] is None
    for record in (one, two):
        for chart in charts(record).values():
            chart.to_dict()


def test_what_was_not_read_is_told(walked: Autotune) -> None:
    lost = msgspec.structs.replace(walked, lost=Loss(events=2, bytes=30, reason="line 3 is not a row of numbers"))
    assert "not read: 2 lines: line 3 is not a row of numbers" in words(shown(lost))


def test_a_name_cannot_paint_the_terminal_or_leave_its_page(walked: Autotune, tmp_path: Path) -> None:
    nasty = msgspec.structs.replace(walked, file=NASTY)
    assert "\x1b" not in shown(nasty)
    assert "[bold]" in shown(nasty)
    for page in write_charts(nasty, tmp_path, ("html",)):
        assert "<script>alert(1)" not in page.read_text()


def test_the_document_is_json_with_units(walked: Autotune) -> None:
    document = json.loads(json.dumps(document_of(walked).json(), allow_nan=False))
    assert document["kind"] == "autotune log"
    assert (document["samples"], document["settings"], len(document["tried"])) == (36, 30, 36)
    assert document["choice"]["score_bytes_per_s"] == pytest.approx(166.805e6)
    assert document["choice"]["knobs"]["cycle_time_ms"] == 4.99987
    assert document["recommended"]["samples"] == 3
    assert document["verdict"] == "among the best"
    assert document["beat_the_noise"] is False
    assert document["noise"]["source"] == "repeats"
    assert document["environment"]["HOROVOD_CYCLE_TIME"] == "5"


def test_the_next_commands_measure_both_alike(walked: Autotune) -> None:
    tuned, default = next_commands(walked)
    assert "--np 2" in tuned
    assert "--env HOROVOD_FUSION_THRESHOLD=4194304 --env HOROVOD_CYCLE_TIME=5" in tuned
    assert "--env" not in default
    assert document_of(walked).json()["next"] == next_commands(walked)
    assert tuned.split()[-2:] == default.split()[-2:] == ["--", "COMMAND"]


def test_files_of_every_format_are_real(walked: Autotune, tmp_path: Path) -> None:
    written = write_charts(walked, tmp_path / "new", FORMATS)
    assert {path.name for path in written} == {f"autotune_scores.{ending}" for ending in FORMATS}
    for path in written:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert path.stat().st_size > 5000


def test_scores_are_drawn_with_the_best_so_far_and_repeats_joined(walked: Autotune) -> None:
    figure = with_data(charts(walked)["autotune_scores"])
    points, ring = (rows(layer) for layer in layers(figure, "point"))
    best, joined = (rows(layer) for layer in layers(figure, "line"))
    assert [row["score"] for row in points] == [sample.score for sample in walked.samples]
    assert [row["sample"] for row in best] == [1, 3, 6, 32, 36]
    assert [row["score"] for row in best] == sorted(row["score"] for row in best)
    assert {row["samples of this setting"] for row in joined} == {2, 3}
    assert len(joined) == 10
    assert [row["sample"] for row in ring] == [32]
    assert len({row["switches"] for row in points}) == 4
    assert "36 samples of 30 settings" in subtitle(figure)[1]
