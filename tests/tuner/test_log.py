"""The log of a search: readable rows that are on disk at once."""

import csv
from pathlib import Path

import pytest

from scalescope.errors import UsageError
from scalescope.records.tuning import Sample, SearchedKnob
from scalescope.tuner.journal import SampleLog, check_log_file

CAP = SearchedKnob(name="bucket_cap_mb", values=(1.0, None), default=25.0)
ALGORITHM = SearchedKnob(name="nccl_algo", values=("Ring", None))
HELD = {"gradient_as_bucket_view": True}


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_has_the_setting_and_its_speed(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "logs" / "tune.csv", [CAP, ALGORITHM], HELD)
    log.add(Sample(index=0, phase="default", values={}, step_s=0.02, error_s=0.0005, steps=10, seconds=0.25), 0.02)
    log.add(
        Sample(
            index=1,
            phase="confirm",
            pair=2,
            values={"bucket_cap_mb": 1.0, "nccl_algo": "Ring"},
            step_s=0.016,
            predicted_s=0.015,
            cut=True,
            decision="faster, so far",
        ),
        0.02,
    )
    first, second = rows(tmp_path / "logs" / "tune.csv")
    assert first == {
        "sample": "0",
        "phase": "default",
        "pair": "",
        "bucket_cap_mb": "25",
        "nccl_algo": "default",
        "gradient_as_bucket_view": "true",
        "step_ms": "20",
        "error_ms": "0.5",
        "speedup": "1.0000",
        "steps": "10",
        "seconds": "0.250",
        "predicted_ms": "",
        "cut": "no",
        "decision": "",
    }
    assert (second["bucket_cap_mb"], second["nccl_algo"], second["pair"]) == ("1", "Ring", "2")
    assert (second["step_ms"], second["speedup"], second["predicted_ms"]) == ("16", "1.2500", "15")
    assert (second["cut"], second["decision"]) == ("yes", "faster, so far")


def test_a_failed_sample_has_a_row_with_its_problem_on_one_line(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "tune.csv", [CAP], {})
    log.add(Sample(index=3, phase="search", values={}, problem='rank 1 said "no"\n\x1b[31mred\x07'), None)
    (row,) = rows(tmp_path / "tune.csv")
    assert (row["step_ms"], row["speedup"]) == ("", "")
    assert row["decision"] == 'rank 1 said "no" red'
    assert (tmp_path / "tune.csv").read_text().count("\n") == 2


def test_a_kill_while_writing_loses_the_last_row_at_most(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "tune.csv", [CAP], {})
    for index in range(3):
        log.add(Sample(index=index, phase="search", values={}, step_s=0.01), 0.01)
        assert [row["sample"] for row in rows(tmp_path / "tune.csv")] == [str(count) for count in range(index + 1)]


def test_a_log_of_an_earlier_search_is_begun_anew(tmp_path: Path) -> None:
    for _ in range(2):
        log = SampleLog(tmp_path / "tune.csv", [CAP], {})
        log.add(Sample(index=0, phase="default", values={}), None)
    assert len(rows(tmp_path / "tune.csv")) == 1


def test_a_file_that_is_no_log_is_never_overwritten(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    for path in (script, tmp_path):
        with pytest.raises(UsageError, match=r"choose|name"):
            SampleLog(path, [CAP], {})
    assert script.read_text() == "import torch\n"
    check_log_file(tmp_path / "new" / "tune.csv")
