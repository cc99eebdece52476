"""What the launching parts of a study ask of their verbs, and what they do with what an interruption left."""

from pathlib import Path
from typing import Any

import made_predictions
import made_tunings
import msgspec
import pytest
from recorded_verbs import OF_MODEL, PROGRESS, SCRIPT, Verbs, done, part_of
from test_measurement import measurement, run

from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.folders import result_folder
from scalescope.records.explanation import Explanation
from scalescope.records.files import PREDICTION, TUNING
from scalescope.records.prediction import Prediction
from scalescope.records.run import Failure
from scalescope.records.store import append, load, save
from scalescope.records.study import StudyRequest
from scalescope.tuner.journal import SAMPLES


def test_three_launches_of_every_point_are_measured_and_an_interruption_is_continued(
    tmp_path: Path, verbs: Verbs
) -> None:
    done(tmp_path, "measure")
    ((_, asked, _),) = verbs.asked
    assert (asked.launches, asked.scaling, asked.engines, asked.budget_s) == (3, ("weak",), ("ddp",), 77.0)
    assert asked.folder == str(tmp_path / "measure")
    done(tmp_path, "measure")
    assert verbs.asked[1:] == [("continue", tmp_path / "measure", {"budget_s": 77.0})]


@pytest.mark.parametrize(
    ("part", "more"),
    [
        ("refine", {"precision": 0.05}),
        ("strong", {"launches": 3, "scaling": ("strong", "weak")}),
        ("engines", {"launches": 3, "engines": ("ddp", "horovod")}),
    ],
)
def test_time_that_is_left_adds_launches_to_the_same_measurement(
    tmp_path: Path, verbs: Verbs, part: str, more: dict[str, Any]
) -> None:
    done(tmp_path, part)
    assert verbs.asked == [("continue", tmp_path / "measure", {**more, "budget_s": 77.0})]


def test_launches_that_are_added_correct_the_map_anew(tmp_path: Path, verbs: Verbs) -> None:
    place = tmp_path / "estimate" / PREDICTION
    predicted = made_predictions.predicted(counts=(1, 2), batches=(8,))
    save(predicted, place)
    verbs.runs = [run("ddp", 2, 80)]
    done(tmp_path, "measure", SCRIPT, engines=("ddp",))
    first = load(place, Prediction)
    (one,) = first.checks
    (cell,) = [cell for cell in first.cells if cell.np == 2]
    assert cell.low_s < one.measured_s < cell.high_s, "one launch is no interval without a width"
    verbs.runs = [run("ddp", 2, 80), run("ddp", 2, 120, round=2)]
    save(measurement(*verbs.runs), tmp_path / "measure" / "measurement.json")
    done(tmp_path, "refine", SCRIPT, engines=("ddp",))
    (check,) = load(place, Prediction).checks
    assert check.predicted_s == one.predicted_s, "of the map as it was predicted"
    assert check.measured_low_s < check.measured_high_s


@pytest.mark.parametrize("request_", [OF_MODEL, SCRIPT], ids=["model", "script"])
def test_the_launches_that_measure_correct_the_map_once(tmp_path: Path, verbs: Verbs, request_: StudyRequest) -> None:
    place = tmp_path / "estimate" / PREDICTION
    save(made_predictions.predicted(counts=(1, 2), batches=(8,)), place)
    done(tmp_path, "measure", request_, engines=("ddp",))
    (check,) = load(place, Prediction).checks
    assert check.np == 2
    after = place.read_bytes()
    done(tmp_path, "measure", request_, engines=("ddp",))
    assert place.read_bytes() == after


def test_a_map_that_is_made_after_the_launches_is_corrected_by_them(tmp_path: Path, verbs: Verbs) -> None:
    done(tmp_path, "measure", engines=("ddp",))
    place = tmp_path / "estimate" / PREDICTION
    save(made_predictions.predicted(counts=(1, 2), batches=(8,)), place)
    done(tmp_path, "estimate", engines=("ddp",))
    assert [check.np for check in load(place, Prediction).checks] == [2]


def test_one_launch_of_the_target_is_traced_and_explained(tmp_path: Path, verbs: Verbs) -> None:
    done(tmp_path, "explain")
    ((_, asked, _),) = verbs.asked
    assert (asked.np, asked.trace, asked.engines) == ((4,), True, ("ddp",))
    assert load(tmp_path / "explain" / "explanation.json", Explanation).what == "explain"


def test_a_script_is_launched_with_the_engine_that_its_ranks_showed(tmp_path: Path, verbs: Verbs) -> None:
    """It may import another one, too."""
    done(tmp_path, "measure", SCRIPT, engines=("horovod",))
    for part in ("explain", "tune"):
        done(tmp_path, part, SCRIPT, engines=("horovod",))
    (_, measured, _), (_, traced, _), (_, tuned, _) = verbs.asked
    assert (measured.engines, traced.engines, tuned.engine) == ((), ("ddp",), "ddp")


@pytest.mark.parametrize(
    ("request_", "threads", "steps"),
    [(OF_MODEL, None, None), (msgspec.structs.replace(OF_MODEL, threads_per_rank=2), 2, None), (SCRIPT, None, 500)],
    ids=["model", "threads", "script"],
)
def test_the_target_is_tuned_within_the_rest_of_the_budget(
    tmp_path: Path, verbs: Verbs, request_: StudyRequest, threads: int | None, steps: int | None
) -> None:
    done(tmp_path, "tune", request_, threads_per_rank=7)
    ((_, asked, _),) = verbs.asked
    engine = "" if request_.command else "ddp"
    assert (asked.np, asked.engine, asked.budget_s, asked.folder) == (4, engine, 77.0, str(tmp_path / "tune"))
    assert (asked.threads_per_rank, asked.steps, asked.batch) == (threads, steps, 8 if steps else 16)


def test_fewer_processes_than_all_are_tuned_with_the_threads_of_all(tmp_path: Path, verbs: Verbs) -> None:
    save(made_predictions.single(), tmp_path / "estimate" / PREDICTION)
    done(tmp_path, "tune", threads_per_rank=7)
    assert (verbs.asked[0][1].np, verbs.asked[0][1].threads_per_rank) == (2, 7)


def test_a_search_that_was_begun_is_resumed_or_begun_anew(tmp_path: Path, verbs: Verbs) -> None:
    place = tmp_path / "tune"
    whole = made_tunings.two_hosts()
    with result_folder("tune", place):
        append(whole.samples[0], place / SAMPLES)
    done(tmp_path, "tune")
    save(msgspec.structs.replace(whole, complete=False), place / TUNING)
    done(tmp_path, "tune")
    assert verbs.asked == [("resume", place, 77.0)] * 2
    save(whole, place / TUNING)
    done(tmp_path, "tune")
    assert len(verbs.asked) == 2
    (place / TUNING).unlink()
    verbs.fails = [UsageError("its ranks are gone")]
    done(tmp_path, "tune")
    assert verbs.names() == ["resume", "resume", "resume", "tune"]
    assert not (place / SAMPLES).exists()


@pytest.mark.parametrize(("values", "threads"), [({}, 7), ({"threads_per_rank": 2}, 2)])
def test_the_tuned_setting_and_the_default_are_launched_in_turn(
    tmp_path: Path, verbs: Verbs, values: dict[str, Any], threads: int
) -> None:
    kept = msgspec.structs.replace(
        made_tunings.two_hosts(), held={"first_bucket_mb": 1.0}, values={"bucket_cap_mb": 2.0, **values}
    )
    save(kept, tmp_path / "tune" / TUNING)
    done(tmp_path, "check", threads_per_rank=7)
    default, tuned = (tmp_path / "check" / name for name in ("default", "tuned"))
    assert verbs.names() == ["measure", "measure", *["continue"] * 4]
    assert [(what, limits) for _, what, limits in verbs.asked[2:]] == [
        (place, {"launches": launches}) for launches in (2, 3) for place in (default, tuned)
    ]
    plain, changed = (asked for _, asked, _ in verbs.asked[:2])
    assert (plain.knobs, plain.threads_per_rank, plain.launches, plain.np) == ((), 7, 1, (4,))
    assert (changed.knobs, changed.threads_per_rank, changed.launches) == (
        ("first_bucket_mb=1", "bucket_cap_mb=2"),
        threads,
        1,
    )
    assert [asked.folder for asked in (plain, changed)] == [str(default), str(tuned)]


def test_without_a_tuned_setting_there_is_nothing_to_check(tmp_path: Path, verbs: Verbs) -> None:
    with pytest.raises(WorkFailed, match="there is no tuned setting to check"):
        done(tmp_path, "check")


def test_results_of_a_failed_part_are_used_by_the_next_one(tmp_path: Path, verbs: Verbs) -> None:
    known = part_of(tmp_path)
    known.run("measure", 77.0, PROGRESS)
    assert known._launch_s() == 4.0
    save(made_tunings.keep_default(), tmp_path / "tune" / TUNING)
    verbs.fails = [WorkFailed("no")]
    with pytest.raises(WorkFailed):
        known.run("explain", 77.0, PROGRESS)
    assert known.skip_reason("check") == "the default is kept"


def test_parts_that_need_several_processes_are_not_needed_where_none_could_be_launched(
    tmp_path: Path, verbs: Verbs
) -> None:
    known = part_of(tmp_path)
    alone = measurement(run("none", 1, 80))
    died = Failure(point=run("ddp", 2, 80).point, folder="launches/01-np2", problem="rank 0 ended", details="")
    with result_folder("measure", tmp_path / "measure"):
        save(msgspec.structs.replace(alone, failures=(died,)), tmp_path / "measure" / "measurement.json")
    verbs.fails = [WorkFailed("np2: rank 0 ended")]
    with pytest.raises(WorkFailed):
        known.run("measure", 77.0, PROGRESS)
    place = tmp_path / "measure" / "launches" / "01-np2"
    why = f"nothing was measured: {died.point.label}: rank 0 ended; log: {place}"
    several = ("explain", "tune", "check", "refine", "strong", "engines")
    assert [known.skip_reason(part) for part in several] == [why] * 6
    assert [known.skip_reason(part) for part in ("estimate", "measure")] == ["", ""]
    known.run("measure", 77.0, PROGRESS)
    assert known.skip_reason("explain") == "", "mended"
