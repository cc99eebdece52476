"""Autotune logs of every version, cut, damaged or made up: read as far as they go, or one clear line."""

from pathlib import Path

import pytest
from autotune_logs import DATA, HEADER, HELD_FUSION, HELD_SWITCHES, OLDER, WALKED, judged, scores
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalescope.errors import UsageError
from scalescope.logs.autotune import read_autotune
from scalescope.logs.autotune_log import is_autotune_log


@pytest.mark.parametrize(
    "header",
    [
        HEADER,
        OLDER,
        "hierarchical_allreduce,hierarchical_allgather,cycle_time_ms,tensor_fusion_threshold,score",
        "hierarchical_allreduce,cycle_time_ms,tensor_fusion_threshold,score",
        "\ufeffscore, tensor_fusion_threshold ,cycle_time_ms\r",
        "# what it did\n" + HEADER,
    ],
)
def test_logs_of_every_version_are_recognised(header: str) -> None:
    assert is_autotune_log(header + "\n0,0,0, 1,5,4,89.7\n")


@pytest.mark.parametrize("text", ["", "np,score\n1,2\n", "cycle_time_ms tensor_fusion_threshold score\n", "{}"])
def test_other_files_are_not_recognised(text: str, tmp_path: Path) -> None:
    assert not is_autotune_log(text)
    with pytest.raises(UsageError, match=r"is no log of Horovod's autotune.*HOROVOD_AUTOTUNE_LOG"):
        judged(tmp_path, text)


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    record = judged(
        tmp_path, f"score,cache_enabled,tensor_fusion_threshold,surprise,cycle_time_ms\n{'7,0,4,x,5' + chr(10)}"
    )
    (sample,) = record.samples
    assert (sample.score, sample.knobs.fusion_threshold_mb, sample.knobs.cycle_time_ms) == (7, 4, 5)
    assert sample.knobs.switches == {"cache_enabled": False}


def test_a_log_without_samples_says_what_to_do() -> None:
    with pytest.raises(
        UsageError, match=r"has no samples that can be read: autotune needs more steps than this run made.*train longer"
    ):
        read_autotune(DATA / "gloo_short_run.csv")


def test_a_log_without_its_last_row_is_not_finished(tmp_path: Path) -> None:
    *kept, _ = WALKED.read_text().splitlines(keepends=True)
    record = judged(tmp_path, "".join(kept))
    assert (record.finished, len(record.samples)) == (False, 36)
    assert record.samples[record.winner].line == 33


def test_a_log_cut_anywhere_keeps_every_whole_row(tmp_path: Path) -> None:
    data = WALKED.read_bytes()
    every = scores(read_autotune(WALKED))
    first = data.index(b"\n", data.index(b"\n") + 1) + 1
    ends_of_rows = [at + 1 for at in range(first, len(data)) if data[at : at + 1] == b"\n"]
    for end in sorted({*range(first, len(data), 211), *ends_of_rows[::3], *ends_of_rows[-2:]} - {len(data)}):
        record = judged(tmp_path, data[:end])
        assert scores(record) == every[: data[:end].count(b"\n") - 1]
        assert record.lost.events == (data[end - 1 : end] != b"\n")
    for end in range(first):
        with pytest.raises(UsageError):
            judged(tmp_path, data[:end])


def test_a_last_row_without_line_break_is_still_the_choice(tmp_path: Path) -> None:
    record = judged(tmp_path, WALKED.read_bytes().rstrip())
    assert (record.finished, len(record.samples), record.lost.events) == (True, 36, 0)


def test_bad_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    bad = [
        b"\xff\xfe\x00\x1b[31m",
        b"0,0,0,1,5",
        b"0,0,0,1,5,4,nan",
        b"0,0,0,1,5,4,-1",
        b"0,0,0,2,5,4,9",
        b"a,b,c,d,e,f,g",
    ]
    good = [b"0,0,0,1,5,4,%d" % score for score in (80, 90)]
    record = judged(tmp_path, b"\n".join([HEADER.encode(), good[0], *bad, good[1], b"\0\0\0\0", b""]))
    assert scores(record) == [80, 90]
    assert record.lost.events == len(bad)
    assert record.lost.reason == "line 3 is not a whole row of numbers, and 5 more"


def test_rows_with_absurd_numbers_are_left_out(tmp_path: Path) -> None:
    rows = ["0,0,0,1,1e308,4,9", "0,0,0,1,5,1e308,9", "0,0,0,1,inf,4,9", "0,0,0,1,5,4,1e309", "0,0,0,1,5,4,9"]
    record = judged(tmp_path, "\n".join([HEADER, *rows, ""]))
    assert (len(record.samples), record.lost.events) == (1, 4)


def test_of_two_logs_in_one_file_the_last_is_read(tmp_path: Path) -> None:
    record = judged(tmp_path, HELD_SWITCHES.read_text() + HELD_FUSION.read_text())
    assert scores(record) == scores(read_autotune(HELD_FUSION))


def test_very_many_rows_are_read(tmp_path: Path) -> None:
    rows = [f"0,0,0, 1,5,{fusion / 75:.6g},{100 + fusion % 7}" for fusion in range(20_000)]
    record = judged(tmp_path, "\n".join([HEADER, *rows, ""]))
    assert len(record.samples) == 20_000
    assert sum(setting.samples for setting in record.settings) == 20_000


row_like = st.lists(
    st.one_of(st.sampled_from(["0", "1", " 1", "5", "64", "-1", "1e-300", "nan", "", "\0"]), st.floats().map(str)),
    min_size=5,
    max_size=8,
).map(",".join)


@given(
    lines=st.lists(st.one_of(row_like, st.just(HEADER), st.text(max_size=20)), max_size=20), tail=st.binary(max_size=8)
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_files_raise_usage_errors_only(tmp_path: Path, lines: list[str], tail: bytes) -> None:
    text = "\n".join([HEADER, "0,0,0, 1,5,4,89.7", *lines])
    try:
        record = judged(tmp_path, text.encode(errors="replace") + tail)
    except UsageError:
        return
    assert record.samples
    assert int(record.environment["HOROVOD_FUSION_THRESHOLD"]) >= 0
    assert float(record.environment["HOROVOD_CYCLE_TIME"]) >= 0
