"""Rounds of launches: what is launched, kept, given up and said, with launches that start nothing."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from measurement.made_sweeps import request, settled
from measurement.observed import launch as observed
from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs import launch as launching
from scalescope.jobs.launch import check_requirements
from scalescope.jobs.plan import Settings
from scalescope.measurement import sweep
from scalescope.measurement.capture import traced_commands
from scalescope.measurement.sweep import continue_measurement, dry_run, measure, traced_after
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import Plan
from scalescope.records.run import Failure, Measurement, Point, Run
from scalescope.records.store import load, load_lines
from told import Told


class Launches:
    """Takes the place of `launch`: a run of 0.1 s steps, unless `answers` has something else for the point."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Point, int]] = []
        self.settings: list[Settings] = []
        self.answers: Callable[[int, Point], dict[str, Any] | str | None] = lambda number, point: None

    def __call__(self, settings: Settings, number: int, point: Point, steps: int, progress: object) -> Run | Failure:
        self.asked.append((number, point, steps))
        self.settings.append(settings)
        answer = self.answers(number, point)
        if isinstance(answer, str):
            return Failure(point=point, round=number, folder="", problem=answer, details="its last lines")
        made = observed(np=point.np, round_=number, batch=point.batch)
        return msgspec.structs.replace(made, point=point, **(answer or {}))


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launches:
    made = Launches()
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "launch", made)
    monkeypatch.setattr(launching, "has_module", lambda python, module: True)
    return made


def test_every_point_is_launched_as_often_as_asked_and_kept(launches: Launches, tmp_path: Path) -> None:
    told = Told()
    found = measure(request(np=(1, 2), launches=2), told)
    folder = found.folder
    assert folder
    assert folder == tmp_path / "out"
    assert len(found.runs) == 4
    assert [run.round for run in found.runs] == [1, 1, 2, 2]
    assert [run.point.np for run in found.runs] == [1, 2, 1, 2], "in the order in which they were planned"
    assert found.stopped == "2 launches of every point were asked for"
    assert load(folder / "measurement.json", Measurement) == found
    assert len(load_lines(folder / "runs.jsonl", Run)) == 4
    assert told.notes == ["4 launches at 2 points."]
    labels = [point.label for _, point, _ in launches.asked]
    assert [what for what, _, _ in told.stages] == [
        f"launch {index}/4 {label}" for index, label in enumerate(labels, 1)
    ]
    assert told.details == [f"{label}: 100 ms a step" for label in labels]
    assert (found.what, found.binding, found.named_hosts) == (request().what, "none", False)
    assert found.torch
    plan = load(folder / "plan.json", Plan)
    assert plan.request.threads_per_rank == launches.settings[0].threads_per_rank


def test_a_point_that_fails_twice_is_given_up_and_fails_the_whole(launches: Launches, tmp_path: Path) -> None:
    launches.answers = lambda number, point: "rank 1 died" if point.np == 2 else None
    with pytest.raises(WorkFailed) as caught:
        measure(request(np=(1, 2), launches=3), Told())
    assert str(caught.value) == (f"ddp-np2: rank 1 died; 1 of 2 points are kept in {tmp_path / 'out'}\nits last lines")
    kept = load(tmp_path / "out" / "measurement.json", Measurement)
    assert len(kept.runs) == 3
    assert [failure.point.np for failure in kept.failures] == [2]
    assert kept.stopped


def test_a_launch_that_fails_once_is_kept_as_a_failure(launches: Launches) -> None:
    launches.answers = lambda number, point: "rank 0 died" if number == 2 else None
    found = measure(request(launches=3), Told())
    assert [run.round for run in found.runs] == [1, 3]
    assert [failure.round for failure in found.failures] == [2]


def test_where_nothing_works_nothing_more_is_tried(launches: Launches) -> None:
    launches.answers = lambda number, point: "no such module"
    with pytest.raises(WorkFailed, match="no such module; nothing was measured\nits last lines"):
        measure(request(np=(1, 2, 4), launches=3), Told())
    assert len(launches.asked) == 2
    launches.asked.clear()
    with pytest.raises(WorkFailed, match="nothing was measured"):
        measure(request(launches=3, folder="alone"), Told())
    assert len(launches.asked) == 1


def test_no_launch_begins_that_would_end_after_the_budget(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [50.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def takes_ten_seconds(number: int, point: Point) -> dict[str, Any]:
        clock[0] += 10.0
        return {"wall_s": 10.0}

    launches.answers = takes_ten_seconds
    found = measure(request(launches=9, budget_s=40.0), Told())
    assert (len(found.runs), found.stopped) == (4, "the budget was spent")
    found = measure(request(launches=9, budget_s=5.0, folder="short"), Told())
    assert len(found.runs) == 1, "the first of every point is made anyway"
    found = measure(request(launches=3, folder="unlimited"), Told())
    assert len(found.runs) == 3


def test_a_resumed_measurement_makes_the_missing_launches(launches: Launches, tmp_path: Path) -> None:
    def interrupted(number: int, point: Point) -> None:
        if number == 2:
            raise KeyboardInterrupt

    launches.answers = interrupted
    with pytest.raises(KeyboardInterrupt, match=str(tmp_path / "out")):
        measure(request(launches=3), Told())
    launches.answers = lambda number, point: None
    launches.asked.clear()
    told = Told()
    found = continue_measurement(tmp_path / "out", {"launches": 4}, told)
    assert [number for number, _, _ in launches.asked] == [2, 3, 4]
    assert told.notes == ["4 launches at 1 point; 1 are there already; about 17.7 s."]
    assert [what.split()[1] for what, _, _ in told.stages] == ["2/4", "3/4", "4/4"]
    assert len(found.runs) == 4


def test_how_a_command_had_to_be_started_holds_for_its_next_launches(launches: Launches) -> None:
    why = "it starts its ranks itself"
    launches.answers = lambda number, point: {"as_it_is": why} if point.np == 2 and number == 1 else None
    measure(request(np=(2,), launches=2), Told())
    assert [settings.as_it_is for settings in launches.settings] == ["", why]


def test_a_model_is_rehearsed_once_and_its_time_is_guessed(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed: list[int] = []

    def rehearse(settings: Settings, planned: list[Point]) -> tuple[int, float]:
        rehearsed.append(len(planned))
        return 25, 8.0

    monkeypatch.setattr(sweep, "rehearse", rehearse)
    told = Told()
    found = measure(request(workload=WorkloadSpec(model="cnn"), command=(), batch=(8,), launches=2), told)
    folder = found.folder
    assert folder
    assert rehearsed == [2], "with one process of no engine, to compare with"
    assert [steps for _, _, steps in launches.asked] == [25] * 4
    assert told.stages[0][1:] == (16.0, 25)
    assert told.notes == ["4 launches at 2 points; about 16 s."]
    assert load(folder / "plan.json", Plan).steps == 25


def test_a_precise_measurement_is_planned_with_the_fewest_launches(launches: Launches) -> None:
    told = Told()
    measure(request(np=(1, 2), launches=7, precision=0.5), told)
    assert told.notes == ["10 launches or more at 2 points."]
    assert len(launches.asked) == 10


def test_traced_launches_follow_and_are_named(
    launches: Launches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[tuple[int, Run | None]] = []

    def traced_launch(settings: Settings, point: Point, known: Run | None, progress: object) -> None:
        traced.append((point.np, known))

    monkeypatch.setattr(sweep, "traced_launch", traced_launch)
    found = measure(request(np=(1, 2), launches=2, trace=True), Told())
    folder = found.folder
    assert folder
    assert [np for np, _ in traced] == [1, 2]
    assert all(known is not None and known.round == 2 for _, known in traced)
    assert found.traces == ("traces/ddp-np1", "traces/ddp-np2")
    assert found.stopped
    (folder / "traces" / "ddp-np1").mkdir(parents=True)
    (folder / "traces" / "ddp-np1" / "traced.json").write_text("")
    traced.clear()
    continue_measurement(folder, {}, Told())
    assert [np for np, _ in traced] == [2], "the other one is there"
    assert [point.np for point in traced_after(request(np=(1, 2), trace=True))] == [1, 2]
    assert traced_after(request(np=(1, 2))) == []


def test_a_dry_run_shows_every_point_and_starts_nothing(launches: Launches) -> None:
    shown = dry_run(request(np=(1, 2)))
    assert [point.np for point, _ in shown] == [1, 2]
    assert all("train.py" in " ".join(lines) for _, lines in shown)
    assert "29500" in " ".join(shown[1][1])
    assert "29777" in " ".join(dry_run(request(np=(2,), port=29777))[0][1])
    assert launches.asked == []


def test_a_traced_launch_is_shown_with_its_steps_of_the_most_processes(launches: Launches) -> None:
    lines = "\n".join(traced_commands(request(np=(1, 2), steps=60)))
    assert "traces/ddp-np2" in lines
    assert "29500" in lines
    assert "21:20:10" in lines
    assert "21:20:10" in "\n".join(traced_commands(request(np=(2,))))
    assert "0:40:10" in "\n".join(traced_commands(request(np=(2,), from_start=True)))
    assert ":full" in "\n".join(traced_commands(request(np=(2,), cpu_detail=True)))


def test_missing_programs_and_modules_are_refused_before_the_first_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    asked: list[str] = []

    def has(python: str, module: str) -> bool:
        asked.append(module)
        return module != "horovod"

    monkeypatch.setattr(launching, "has_module", has)
    check_requirements(settled())
    absent = request(command=("no-such-program", "train.py"))
    with pytest.raises(UsageError, match="there is no program 'no-such-program' here: check the command's first word"):
        check_requirements(settled(request=absent))
    check_requirements(settled(request=absent, named_hosts=True))
    horovod = {"engines": ("horovod",), "launchers": {"horovod": "torchrun"}}
    with pytest.raises(UsageError, match=r"has no Horovod: see docs/guides/horovod\.md"):
        check_requirements(settled(**horovod))
    check_requirements(settled(engines=("horovod",), launchers={"horovod": "own"}))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="mpirun is not on the PATH: "):
        check_requirements(settled(launchers={"ddp": "mpirun"}))
