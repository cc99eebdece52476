"""The verbs as functions."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest
import typer

import scalescope
from scalescope.api.requests import CaptureOptions, EstimateOptions, MeasureOptions, ProbeOptions, measure_request
from scalescope.api.studies import StudyOptions
from scalescope.api.tune_request import TuneOptions
from scalescope.cli import application
from scalescope.cli.options import given
from scalescope.cli.tune import FixedKnobs
from scalescope.errors import UsageError
from scalescope.records.run import Measurement, Point, Run


class Notes:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.most_steps = 0

    def planned(self, points: int, fewest: int, most: int, done: int, seconds: float | None) -> None:
        self.told.append(f"{points} points, {fewest} to {most} launches, {done} done")

    def begins(self, index: int, point: Point, steps: int | None) -> None:
        self.told.append(f"{index} begins")

    def steps(self, count: int) -> None:
        self.most_steps = max(self.most_steps, count)

    def line(self, source: str, text: str) -> None:
        pass

    def ends(self, outcome: Run) -> None:
        self.told.append(f"{outcome.point.label} ends")


@pytest.mark.launches
def test_measure_returns_records_and_tells_its_listener(tmp_path) -> None:
    notes = Notes()
    record = scalescope.measure(
        "mlp",
        np=[2],
        batch=[4],
        knobs={"bucket_cap_mb": 1.5},
        steps=8,
        launches=1,
        folder=tmp_path / "out",
        listener=notes,
    )
    assert isinstance(record, Measurement)
    (run,) = record.runs
    assert (run.steps, run.point.np, run.point.global_batch, len(run.ranks)) == (8, 2, 8, 2)
    assert sum(run.phases.values()) == pytest.approx(run.wall_s, rel=0.02)
    assert notes.told == ["1 points, 1 to 1 launches, 0 done", "1 begins", "ddp-np2-b4 ends"]
    assert notes.most_steps == 8
    assert scalescope.tabulate(record, "csv").count("\n") == 2
    more = scalescope.resume(tmp_path / "out", launches=2)
    assert [each.round for each in more.runs] == [1, 2]


def test_what_was_read_is_studied_drawn_and_tabulated_alike(tmp_path) -> None:
    scaling = scalescope.explain(Path(__file__).parents[1] / "examples" / "data" / "lab11.csv")
    assert scaling.curves[0].fit
    assert "30.10" in scalescope.tabulate(scaling, "latex")
    assert any(path.name == "speedup.png" for path in scalescope.draw(scaling, tmp_path))


def test_one_thing_is_measured(tmp_path) -> None:
    for arguments in ({}, {"model": "mlp", "command": ["true"]}):
        with pytest.raises(UsageError, match="one thing"):
            scalescope.measure(**arguments, folder=tmp_path)


SHOWN = {"json", "details", "quiet", "verbose", "formats", "dry_run", "show_output"}
INSTEAD = {  # what the command line has for convenience, and what it stands for
    "measure": {"relative_to": "smallest", "resume": None},
    "estimate": {"max_np": "np", "max_batch": "batch"},
    "probe": {},
    "study": {"resume": None},
    "explain": {"paths": None, "estimate": None, "export": None},
    "tune": {"offline": "method", "autotune": None, "resume": None, "join": None}
    | {name: "hold" for name in given(FixedKnobs()) if name not in ("hold", "config_file")},
}


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("measure", MeasureOptions),
        ("estimate", EstimateOptions),
        ("probe", ProbeOptions),
        ("tune", TuneOptions),
        ("study", StudyOptions),
    ],
)
def test_the_api_takes_what_the_verb_takes_by_the_same_names(verb: str, options: type) -> None:
    command = typer.main.get_command(application()).commands[verb]
    typed = {parameter.name for parameter in command.params} - SHOWN - {"model"}
    instead = INSTEAD[verb]
    told = {instead.get(name, name) for name in typed} - {None}
    assert told == set(get_type_hints(options)) - {"command"}


def test_what_explain_captures_is_asked_for_as_in_measure() -> None:
    command = typer.main.get_command(application()).commands["explain"]
    typed = {parameter.name for parameter in command.params} - SHOWN - INSTEAD["explain"].keys()
    own = set(get_type_hints(CaptureOptions)) - set(get_type_hints(MeasureOptions))
    assert own == {"from_start", "cpu_detail"}
    assert own <= typed <= set(get_type_hints(CaptureOptions))


def test_words_and_values_make_the_same_request() -> None:
    words = measure_request(
        "mlp",
        np="1..4",
        batch="8,16,...,64",
        hosts="a:2,b:2",
        engine="ddp,horovod",
        knobs=["bucket_cap_mb=4", "static_graph=true"],
        env=["A=b c"],
        launcher_args=["--bind-to core"],
        model_args=["width=8"],
        precision="5%",
        budget_s="10m",
    )
    values = measure_request(
        "mlp",
        np=[1, 2, 3, 4],
        batch=(8, 16, 32, 64),
        hosts="a:2,b:2",
        engine=["ddp", "horovod"],
        knobs={"bucket_cap_mb": 4, "static_graph": True},
        env={"A": "b c"},
        launcher_args=["--bind-to", "core"],
        model_args={"width": 8},
        precision=0.05,
        budget_s=600,
    )
    assert words == values


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"scaling": "odd"}, "--scaling takes strong, weak or both, not 'odd'"),
        ({"device": "tpu"}, "--device takes cpu, cuda or auto, not 'tpu'"),
        ({"env": ["x"]}, "--env takes NAME=VALUE"),
        ({"launcher_args": ["'a"]}, "close its quotes"),
        ({"timeout_s": "soon"}, "--timeout takes a time"),
    ],
)
def test_what_cannot_be_read_is_told(options: dict, part: str) -> None:
    with pytest.raises(UsageError, match=re.escape(part)):
        measure_request("mlp", **options)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        _ = scalescope.mesure
