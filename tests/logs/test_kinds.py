"""Which kind of file is what, and which of them are explained together."""

import re
from pathlib import Path

import msgspec
import pytest

import scalescope
from measurement.observed import launch, measurement
from scalescope.errors import UsageError
from scalescope.logs.sources import explain, recognise
from scalescope.logs.tables import read_table
from scalescope.measurement.scaling import scaling_of
from scalescope.records.request import ExplainRequest
from scalescope.records.store import save
from scalescope.show import document_of
from scalescope.verbs.explain import after_table

TABLE = "np,train_s\n1,100\n2,60\n4,40\n"
LOG = "".join(f"Epoch {number}: 10.0 s\n" for number in range(1, 6))


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_files_are_recognised_by_what_they_hold(tmp_path: Path) -> None:
    assert recognise(written(tmp_path / "a.CSV", "anything\n")) == "table"
    assert recognise(written(tmp_path / "a.tsv", "anything\n")) == "table"
    assert recognise(written(tmp_path / "table.txt", TABLE)) == "table"
    assert recognise(written(tmp_path / "run.log", LOG)) == "log"
    made = measurement([launch(np=1), launch(np=2)])
    save(made, tmp_path / "m.json")
    save(scaling_of(made), tmp_path / "s.json")
    assert recognise(tmp_path / "m.json") == "measurement"
    assert recognise(tmp_path / "s.json") == "scaling"


def test_a_result_folder_stands_for_its_measurement(tmp_path: Path) -> None:
    made = measurement([launch(np=1), launch(np=2)])
    save(made, tmp_path / "measurement.json")
    assert explain([tmp_path]) == explain([tmp_path / "measurement.json"]) == scaling_of(made)
    save(scaling_of(made), tmp_path / "only" / "scaling.json")
    assert explain([tmp_path / "only"]) == scaling_of(made)
    assert explain([str(tmp_path)], pattern="") == scaling_of(made)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"kind": "tuning"}', "'x.json' is a scalescope tuning already: scalescope report "),
        ('{"traceEvents": []}', "'x.json' is JSON of another program: name "),
        ("damaged", "'x.json' is JSON of another program: name "),
    ],
)
def test_json_of_another_kind_is_refused(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        recognise(written(tmp_path / "x.json", text))
    assert str(caught.value).startswith(told)


def test_files_of_different_kinds_are_refused(tmp_path: Path) -> None:
    table, log = written(tmp_path / "t.csv", TABLE), written(tmp_path / "run.log", LOG)
    with pytest.raises(UsageError, match="name something to explain: "):
        explain([])
    with pytest.raises(UsageError, match=r"'t.csv' is a table, 'run.log' is a log: explain one kind at a time"):
        explain([table, log])
    with pytest.raises(UsageError, match="2 files, each a table: explain one at a time, or see what changed with"):
        explain([table, written(tmp_path / "u.csv", TABLE)])
    with pytest.raises(UsageError, match=r"--np and --pattern go with logs, 't.csv' is a table: leave them out"):
        explain([table], np=[2])
    with pytest.raises(UsageError, match=r"holds no measurement.json: name one that scalescope measure wrote"):
        explain([written(tmp_path / "empty" / "x.txt", "").parent])


def test_a_python_script_is_answered_with_the_command_that_traces_it(tmp_path: Path) -> None:
    script = written(tmp_path / "my train.py", "for epoch in range(3): print('Epoch 1 took 3 s')\n")
    with pytest.raises(UsageError, match=re.escape(f"type scalescope explain -- python '{script}'")):
        scalescope.explain(script)


def test_a_table_is_read_as_a_curve(tmp_path: Path) -> None:
    found = explain([written(tmp_path / "t.csv", TABLE)])
    assert found.source == "table"
    assert [point.np for point in found.curves[0].points] == [1, 2, 4]


def test_the_headline_of_a_table_is_of_the_curve_that_is_shown() -> None:
    scaling = read_table(Path(__file__).parents[2] / "examples" / "data" / "mlp-two-cores.csv")
    told = document_of(scaling)
    assert told.answer.startswith("Weak scaling, ddp, batch 256 each: 2 processes reach 1.44x")
    assert [row.point.batch for row in told.brief[0].rows] == [256, 256]


def test_next_command_repeats_the_training_that_a_record_knows() -> None:
    """A table knows no training; a measurement's record knows a model, or the script with its options."""
    measured = read_table(Path(__file__).parents[2] / "examples" / "data" / "mlp-two-cores.csv")
    request = ExplainRequest(paths=("x.json",), folder="out")
    assert after_table(measured, request) == "scalescope measure --np 1,2 -- COMMAND"
    told = [
        after_table(msgspec.structs.replace(measured, source="measurement", what=what), request)
        for what in ("cnn", "train.py --lr 1e-3", "sh run.sh")
    ]
    assert told == [
        "scalescope measure cnn --np 1,2",
        "scalescope measure --np 1,2 -- python train.py --lr 1e-3",
        "scalescope measure --np 1,2 -- sh run.sh",
    ]
