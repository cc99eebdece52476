"""The verbs as functions."""

from pathlib import Path

import pytest

import scalescope
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


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        _ = scalescope.mesure
