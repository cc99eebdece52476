"""Files that the trainers of Hugging Face and Lightning left, and what follows from them."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from command_line import CommandLine
from published import values
from scalescope.errors import UsageError
from scalescope.logs.curves import read_logs
from scalescope.logs.sources import recognise

DATA = Path(__file__).parent.parent / "data" / "trainers"
HF = [DATA / f"hf-{name}" / "trainer_state.json" for name in ("1gpu", "2gpus")]
LIGHTNING = [DATA / f"lightning-{name}" / "metrics.csv" for name in ("1gpu", "2gpus")]


def ended(path: Path) -> dict[str, float]:
    return next(entry for entry in json.loads(path.read_text())["log_history"] if "train_runtime" in entry)


def test_a_trainer_state_gives_the_train_speedup_and_says_what_is_in_it() -> None:
    scaling = read_logs(HF)
    one, two = (ended(path)["train_runtime"] for path in HF)
    assert values(scaling, "train")[2] == pytest.approx(one / two)
    assert not values(scaling, "steady")
    assert "evaluation is part of the train time" in scaling.findings
    assert scaling.what == "hf-1gpu/trainer_state.json, hf-2gpus/trainer_state.json"


def test_metrics_of_the_throughput_monitor_give_the_steady_and_the_train_speedup() -> None:
    scaling = read_logs(LIGHTNING)
    rows = [[row for row in csv.DictReader(path.read_text().splitlines()) if row["train/time"]] for path in LIGHTNING]
    seconds = [float(told[-1]["train/time"]) for told in rows]
    assert [point.train_s for point in scaling.curves[0].points] == pytest.approx(seconds)
    assert values(scaling, "train")[2] == pytest.approx(seconds[0] / seconds[1])
    logged = [float(row["train/samples_per_sec"]) for row in rows[1]]
    throughput = scaling.curves[0].points[1].throughput
    assert throughput is not None
    assert min(logged) < throughput.value < max(logged), "of both processes, as Lightning counts it"


def test_both_are_recognised_and_explained_on_the_command_line(scalescope: CommandLine) -> None:
    assert {recognise(path) for path in (*HF, *LIGHTNING)} == {"log"}
    for files in (HF, LIGHTNING):
        told = json.loads(scalescope.in_this_process("explain", *map(str, files), "--json").stdout)
        assert [point["np"] for point in told["points"]] == [1, 2]


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("hf-1gpu/checkpoint-48/trainer_state.json", "call trainer.save_state() after trainer.train()"),
        ("lightning-plain/metrics.csv", "train with the callback ThroughputMonitor of lightning.pytorch.callbacks"),
    ],
)
def test_a_file_without_times_names_what_adds_them(file: str, says: str) -> None:
    with pytest.raises(UsageError, match="has no t") as problem:
        read_logs([DATA / file], [1])
    assert says in str(problem.value)


@pytest.mark.parametrize("told", [-3.0, 1e300, "fast", None, [1]])
def test_a_time_that_no_training_has_is_refused(tmp_path: Path, told: object) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [{"train_runtime": told, "train_samples_per_second": 5.0}]}))
    with pytest.raises(UsageError, match="for train_runtime, which no training has: correct the file"):
        read_logs([path], [1])


@pytest.mark.parametrize("rows", ["0,9,2.0,320\n0,19,1.0,640\n", "0,9,1.0,320\n0,19,2.0,320\n", "0,9,nan,320\n"])
def test_metrics_that_run_backwards_are_refused(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train/time,train/samples\n" + rows)
    with pytest.raises(UsageError, match=r"does not tell one training|which no training has"):
        read_logs([path], [1])


def test_trainings_of_other_work_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "2gpus.json"
    path.write_text(json.dumps({"log_history": [{"train_runtime": 10.0, "train_samples_per_second": 307.2}]}))
    with pytest.raises(UsageError, match=r"trained on 1,536 samples and '.*2gpus.json' on 3,072: train each for the"):
        read_logs([HF[0], path])


def test_a_version_folder_does_not_count_as_processes(tmp_path: Path) -> None:
    path = tmp_path / "lightning_logs" / "version_2" / "metrics.csv"
    path.parent.mkdir(parents=True)
    shutil.copy(LIGHTNING[0], path)
    with pytest.raises(UsageError, match="add --np"):
        read_logs([path])
    assert [point.np for point in read_logs([path], [4]).curves[0].points] == [4]


def test_metrics_that_are_no_csv_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(f'epoch,step,train/time,train/samples\n0,9,"{"5" * 200_000}\n')
    with pytest.raises(UsageError, match=r"metrics.csv' is damaged \(field larger than .*: name another copy"):
        read_logs([path], [1])
