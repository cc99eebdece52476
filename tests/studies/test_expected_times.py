"""What each part of a study is expected to take, which setting is looked at, and which part has nothing to tell."""

from pathlib import Path
from typing import Any

import made_predictions
import made_tunings
import msgspec
import pytest
from test_expectations import MODEL, expectations
from test_measurement import measurement, run

from scalescope.errors import UsageError
from scalescope.jobs.rank_program import starting_s
from scalescope.records.files import PREDICTION, TUNING
from scalescope.records.prediction import Prediction
from scalescope.records.run import Load, Run
from scalescope.records.store import save
from scalescope.records.study import StudyRequest
from scalescope.studies.parts import OF_SCRIPTS, PARTS, Parts, is_open, kept, narrowing_s

SCRIPT = StudyRequest(command=("python", "x.py"), device="cpu")


def of_model(folder: Path, budget_s: float = 300.0, **changes: Any) -> Parts:
    return expectations(folder, StudyRequest(workload=MODEL, device="cpu", budget_s=budget_s), **changes)


def predicted(folder: Path, prediction: Prediction) -> None:
    save(prediction, folder / "estimate" / PREDICTION)


def measured(folder: Path, *runs: Run, place: str = "measure", **changes: Any) -> None:
    save(msgspec.structs.replace(measurement(*runs), **changes), folder / place / "measurement.json")


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> StudyRequest:
    """A machine that takes four ranks, whatever it really has."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    return StudyRequest(workload=MODEL)


def test_a_script_has_every_part_of_a_model(tmp_path: Path) -> None:
    names = ["estimate", "measure", "explain", "tune", "check", "refine", "strong", "engines"]
    model, script = of_model(tmp_path).parts, expectations(tmp_path, SCRIPT).parts
    assert [part.name for part in model] == names
    assert [part.what for part in model] == list(PARTS.values())
    assert [part.name for part in script] == names
    assert [part.what for part in script] == list(OF_SCRIPTS.values())
    assert script[0].what.startswith("survey the script")
    assert {part.state for part in model} == {"planned"}


@pytest.mark.parametrize(
    ("sample_s", "launch_s"),
    [(0.001, 5 + 3.2), (0.01, 5 + 6.0), (0.05, 5 + 24.0), (0.0, 5 + 5.0)],
    ids=["a hundred steps", "six seconds", "fifteen steps", "unknown"],
)
def test_a_launch_makes_six_seconds_of_steps_but_not_too_few_or_too_many(
    tmp_path: Path, sample_s: float, launch_s: float
) -> None:
    expected = of_model(tmp_path, sample_s=sample_s)
    assert expected._launch_s() == pytest.approx(launch_s)
    assert expected._launch_s(7.0) == 12.0
    assert expected.seconds("check") == pytest.approx(6 * launch_s + 5)


def test_parts_take_the_time_of_their_launches(tmp_path: Path) -> None:
    expected = of_model(tmp_path)  # 32 samples of 1 ms, and 5 s to start
    seconds = {part: expected.seconds(part) for part in PARTS}
    assert seconds["measure"] == pytest.approx(3 * 3 * 8.2 + 2.5)
    assert seconds["explain"] == pytest.approx(5 + 80 * 0.032 + 2.5 + 5)
    assert seconds["tune"] == pytest.approx(5 + 300 * 0.032 + 2.5)
    assert seconds["refine"] == pytest.approx(2 * 3 * 8.2)


@pytest.mark.parametrize(
    ("budget_s", "profile_s", "probe_s", "launches"),
    [(300.0, 18.0, 6.0, 3), (9000.0, 18.0, 8.0, 3), (9.0, 3.0, 1.0, 1), (150.0, 12.5, 3.0, 2)],
)
def test_profile_and_probe_take_their_part_of_a_small_budget(
    tmp_path: Path, budget_s: float, profile_s: float, probe_s: float, launches: int
) -> None:
    expected = of_model(tmp_path, budget_s)
    assert expected._profile_s == pytest.approx(profile_s)
    assert expected._probe_s == pytest.approx(probe_s)
    assert expected.seconds("estimate") == pytest.approx(profile_s + probe_s + (launches + 1) * starting_s(2))


def test_more_processes_are_probed_in_more_groups(tmp_path: Path) -> None:
    eight = of_model(tmp_path, np=(1, 2, 8))  # of 2, of 4 and of 8
    assert eight.seconds("estimate") == pytest.approx(18.0 + 3 * starting_s(8) + 3 * (6.0 + starting_s(8)))


@pytest.mark.parametrize(("batches", "launches"), [((), 2), ((8,), 2), ((8, 16, 32), 6)])
def test_a_script_is_surveyed_alone_and_together_with_every_batch(
    tmp_path: Path, batches: tuple[int, ...], launches: int
) -> None:
    expected = expectations(tmp_path, SCRIPT, batches=batches, sample_s=0.0)
    assert expected.seconds("estimate") == pytest.approx(launches * (5 + 5.0) + 6.0 + starting_s(2))


@pytest.mark.parametrize(("batches", "batch"), [((8, 16, 32, 64), 32), ((8, 16, 64), 16), ((64, 128), 128), ((8,), 8)])
def test_without_a_map_the_usual_or_the_middle_batch_is_looked_at(
    tmp_path: Path, batches: tuple[int, ...], batch: int
) -> None:
    assert of_model(tmp_path, np=(1, 4, 2), batches=batches)._target == (4, batch)


def test_a_script_is_looked_at_on_most_processes_with_its_first_batch(tmp_path: Path) -> None:
    assert expectations(tmp_path, SCRIPT, np=(1, 4, 2), batches=(64, 8))._target == (4, 64)
    bare = expectations(tmp_path, SCRIPT, np=(1, 2), batches=(), sample_s=0.02)
    assert bare._target == (2, None)
    assert bare._step_s == 0.02


def test_the_recommended_cell_is_looked_at_once_there_is_a_map(tmp_path: Path, four_gpus: StudyRequest) -> None:
    made = made_predictions.predicted(counts=(1, 2, 4), batches=(8, 64))
    predicted(tmp_path, made)
    expected = expectations(tmp_path, four_gpus, np=(1, 2), batches=(8, 64))
    assert expected._target == (4, 64)
    assert expected._counts == (1, 2, 4)
    (step_s,) = [cell.step_s for cell in made.cells if (cell.np, cell.batch) == (4, 64)]
    assert expected._step_s == step_s


def test_a_map_that_recommends_one_process_is_looked_at_on_most(tmp_path: Path, four_gpus: StudyRequest) -> None:
    predicted(tmp_path, made_predictions.predicted(counts=(1, 2, 4), batches=(8, 64), network_s=4.0))
    expected = expectations(tmp_path, four_gpus, np=(2, 8), batches=(8, 64))
    assert expected._target == (8, 64)
    assert expected._counts == (1, 2, 8)
    assert expected._step_s == 0.064  # no such cell


def test_a_map_that_recommends_two_processes_is_looked_at_on_two(tmp_path: Path, four_gpus: StudyRequest) -> None:
    predicted(tmp_path, made_predictions.single())
    assert expectations(tmp_path, four_gpus, np=(1, 2, 4))._target == (2, 32)


def test_a_launched_setting_stays_the_target_when_the_map_changes(tmp_path: Path, four_gpus: StudyRequest) -> None:
    predicted(tmp_path, made_predictions.predicted(counts=(1, 2, 4), batches=(16, 64)))
    measured(tmp_path, run("none", 1, 80), run("ddp", 2, 80), run("ddp", 4, 80))
    assert expectations(tmp_path, four_gpus)._target == (4, 8)


@pytest.mark.parametrize("counts", [(1, 2, 3), (3,)], ids=["recommends another", "holds no other"])
def test_a_number_of_processes_that_was_not_launched_is_not_looked_at(
    tmp_path: Path, four_gpus: StudyRequest, counts: tuple[int, ...]
) -> None:
    predicted(tmp_path, made_predictions.predicted(counts=counts, batches=(64,)))
    assert expectations(tmp_path, four_gpus)._target == (3, 64)
    measured(tmp_path, run("none", 1, 80), run("ddp", 2, 80))
    assert expectations(tmp_path, four_gpus)._target == (2, 8)


def test_a_survey_predicts_the_time_of_launches_until_they_are_measured(tmp_path: Path) -> None:
    survey = [run("none", 1, 80, wall_s=3.0), run("ddp", 2, 80, wall_s=0.5), run("ddp", 2, 40, wall_s=9.0)]
    measured(tmp_path, *survey, place="estimate/survey")  # 10 steps of 0.1, 0.2 and 0.4 s
    expected = expectations(tmp_path, SCRIPT, batches=())
    assert expected._launch_s() == pytest.approx((3.0 + 0.5 + 9.0) / 3)
    assert expected._start_s == pytest.approx((2.0 + 0.0 + 5.0) / 3)
    assert expected._step_s == pytest.approx(0.3)
    assert expected._launch_s(1.0) == pytest.approx(7.0 / 3 + 1.0)
    measured(tmp_path, run("none", 1, 80, wall_s=50.0))
    assert expectations(tmp_path, SCRIPT, batches=())._launch_s() == 50.0


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.05, 100), (0.12, 50), (0.15, 40), (1.0, 30), (9.0, 30)], ids=lambda each: str(each)
)
def test_a_script_makes_six_seconds_of_steps_but_not_too_few_or_too_many(
    tmp_path: Path, step_s: float, steps: int
) -> None:
    expected = expectations(tmp_path, SCRIPT, batches=(), sample_s=step_s)
    assert expected._measured().steps == steps
    told = expectations(tmp_path, msgspec.structs.replace(SCRIPT, steps=7), batches=())
    assert told._measured().steps == 7
    assert of_model(tmp_path)._measured().steps is None


def test_the_measurement_asks_for_the_target_on_every_number_of_processes(tmp_path: Path) -> None:
    expected = of_model(tmp_path, np=(2, 4), engines=("ddp", "horovod"), threads_per_rank=3)
    first, other = expected._measured(), expected._measured(folder="other", launches=2, trace=True)
    assert (first.np, first.batch, first.scaling) == ((1, 2, 4), (32,), ("weak",))
    assert (first.engines, first.threads_per_rank, first.launches) == (("ddp",), 3, 3)
    assert (first.folder, first.workload, first.device) == (str(tmp_path / "measure"), MODEL, "cpu")
    assert (other.launches, other.trace, other.folder) == (2, True, str(tmp_path / "other"))
    assert expectations(tmp_path, SCRIPT, batches=())._measured().batch == ()


def test_checking_needs_a_setting_to_use(tmp_path: Path) -> None:
    assert of_model(tmp_path).skip_reason("check") == ""
    save(made_tunings.keep_default(), tmp_path / "tune" / TUNING)
    assert of_model(tmp_path).skip_reason("check") == "the default is kept"
    assert [of_model(tmp_path).skip_reason(part) for part in ("estimate", "measure", "explain", "tune")] == [""] * 4
    save(made_tunings.two_hosts(), tmp_path / "tune" / TUNING)
    assert of_model(tmp_path).skip_reason("check") == ""


def launches(apart: float, count: int = 5) -> list[Run]:
    """One process, always the same, and two that differ by so much from launch to launch."""
    rates = [120 * (1 + apart * (at % 2)) for at in range(count)]
    return [each for at, rate in enumerate(rates, 1) for each in (run("none", 1, 80.0, at), run("ddp", 2, rate, at))]


def test_refining_needs_a_speedup_that_is_not_known_within_five_percent(tmp_path: Path) -> None:
    assert of_model(tmp_path).skip_reason("refine") == ""
    measured(tmp_path, *launches(0.01))
    assert of_model(tmp_path).skip_reason("refine") == "every steady speedup is known within 5 %"
    measured(tmp_path, *launches(0.3))
    assert of_model(tmp_path).skip_reason("refine") == ""
    measured(tmp_path, run("none", 1, 80))
    assert of_model(tmp_path).skip_reason("refine") == "nothing was measured on several processes"


def test_a_range_of_few_launchesis_open_and_one_process_alone_is_not() -> None:
    assert [is_open(measurement(*launches(apart))) for apart in (0.0, 0.07, 0.08)] == [False, False, True]
    assert is_open(measurement(*launches(0.0, 4)))
    assert not is_open(measurement(run("none", 1, 80)))


def test_a_record_that_cannot_be_read_is_refused_and_not_taken_for_none(tmp_path: Path) -> None:
    place = tmp_path / "estimate" / PREDICTION
    assert kept(place, Prediction) is None
    made = made_predictions.single()
    predicted(tmp_path, made)
    assert kept(place, Prediction) == made
    place.write_text("{")
    with pytest.raises(UsageError, match="is not a readable scalescope record"):
        of_model(tmp_path)
    save(msgspec.structs.replace(made, version=99), place)
    with pytest.raises(UsageError, match="has format 99 and this scalescope reads format"):
        of_model(tmp_path)


def disturbed(*runs: Run) -> list[Run]:
    busy = Load(foreign_cores=1.5, load_average=3.0, cores=2)
    return [msgspec.structs.replace(each, load=busy) for each in runs]


def test_launches_that_were_disturbed_are_outnumbered_when_the_study_is_resumed(tmp_path: Path) -> None:
    first = launches(0.01, 5)
    measured(tmp_path, *first)
    assert of_model(tmp_path).skip_reason("refine") != ""
    measured(tmp_path, *disturbed(*first))
    again = of_model(tmp_path)
    assert again.skip_reason("refine") == ""
    assert (again._wanted, again.seconds("refine")) == (11, pytest.approx(2 * 6 * again._launch_s()))
    measured(tmp_path, *disturbed(*launches(0.01, 3)))
    assert of_model(tmp_path)._wanted == 5, "the first time it has as many launches as others"


def test_an_open_answer_is_expected_to_take_the_launches_that_narrow_it() -> None:
    assert narrowing_s(measurement(*launches(0.3, 3))) == pytest.approx(2 * 2 * 4.0)
    wide = measurement(*launches(0.2, 6))
    assert narrowing_s(wide) > narrowing_s(measurement(*launches(0.1, 6)))
    assert narrowing_s(measurement(*launches(2.0, 6))) == pytest.approx(2 * (30 - 6) * 4.0), "never more than 30"
