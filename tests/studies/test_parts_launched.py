"""What the launching parts of a study ask of their verbs, and what they do with what an interruption left."""

from pathlib import Path
from typing import Any

import made_predictions
import made_tunings
import msgspec
import pytest
from recorded_verbs import OF_MODEL, SCRIPT, Verbs, done, part_of
from test_measurement import run

from scalescope.errors import UsageError, WorkFailed
from scalescope.estimation.estimate import PREDICTION
from scalescope.jobs.folders import result_folder
from scalescope.records.explanation import Explanation
from scalescope.records.prediction import Prediction
from scalescope.records.store import append, load, save
from scalescope.records.study import StudyRequest
from scalescope.studies.budget import Scope
from scalescope.tuner.journal import RECORD, SAMPLES


@pytest.mark.parametrize(("launches", "told", "precision"), [(5, None, 0.05), (4, 4, None), (3, 3, None)])
def test_with_time_for_all_launches_measuring_goes_on_to_its_precision(
    tmp_path: Path, verbs: Verbs, launches: int, told: int | None, precision: float | None
) -> None:
    done(tmp_path, "measure", scope=Scope(launches=launches))
    ((_, asked, _),) = verbs.asked
    assert (asked.launches, asked.precision, asked.budget_s) == (told, precision, 77.0)
    assert asked.folder == str(tmp_path / "measure")


def test_an_interrupted_measurement_is_continued(tmp_path: Path, verbs: Verbs) -> None:
    done(tmp_path, "measure", scope=Scope(launches=2))
    done(tmp_path, "measure", scope=Scope(launches=2))
    done(tmp_path, "refine")
    assert verbs.asked[1:] == [
        ("continue", tmp_path / "measure", {"budget_s": 77.0}),
        ("continue", tmp_path / "measure", {"launches": None, "precision": 0.05, "budget_s": 77.0}),
    ]


def test_where_all_engines_fail_the_first_is_measured_alone(tmp_path: Path, verbs: Verbs) -> None:
    verbs.fails = [WorkFailed("horovod died; nothing was measured\nTraceback")]
    with pytest.raises(WorkFailed, match=r"^horovod died; ddp alone was measured instead$"):
        done(tmp_path, "measure", scope=Scope(others=True))
    assert [asked.engines for _, asked, _ in verbs.asked] == [("ddp", "horovod"), ("ddp",)]
    assert verbs.names() == ["measure", "measure"]


@pytest.mark.parametrize("others", [True, False])
def test_a_failure_stays_one_where_something_was_measured_or_nothing_can_be_left_out(
    tmp_path: Path, verbs: Verbs, others: bool
) -> None:
    if others:
        with result_folder("measure", tmp_path / "measure"):
            append(run("ddp", 2, 80), tmp_path / "measure" / "runs.jsonl")
    verbs.fails = [WorkFailed("it died")]
    with pytest.raises(WorkFailed, match=r"^it died$"):
        done(tmp_path, "measure", scope=Scope(others=others))
    assert len(verbs.asked) == 1


def test_a_measured_script_corrects_its_map_once(tmp_path: Path, verbs: Verbs) -> None:
    place = tmp_path / "estimate" / PREDICTION
    made_before = made_predictions.predicted(counts=(1, 2), batches=(8,))
    save(made_before, place)
    done(tmp_path, "measure", engines=("ddp",))
    assert load(place, Prediction) == made_before  # a model's map has its own checks
    done(tmp_path, "measure", SCRIPT, engines=("ddp",))
    (check,) = load(place, Prediction).checks
    assert [check.np, check.measured_s] == pytest.approx([2, 0.2])
    after = place.read_bytes()
    done(tmp_path, "measure", SCRIPT, engines=("ddp",))
    assert place.read_bytes() == after


def test_one_launch_of_the_target_is_traced_and_explained(tmp_path: Path, verbs: Verbs) -> None:
    done(tmp_path, "explain")
    ((_, asked, _),) = verbs.asked
    assert (asked.np, asked.launches, asked.trace, asked.engines) == ((4,), 1, True, ("ddp",))
    assert load(tmp_path / "explain" / "explanation.json", Explanation).what == "explain"


@pytest.mark.parametrize(
    ("request_", "threads", "steps"),
    [(OF_MODEL, None, None), (msgspec.structs.replace(OF_MODEL, threads_per_rank=2), 2, None), (SCRIPT, None, 500)],
    ids=["model", "threads", "script"],
)
def test_the_target_is_tuned_within_what_is_left(
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
    save(msgspec.structs.replace(whole, complete=False), place / RECORD)
    done(tmp_path, "tune")
    assert verbs.asked == [("resume", place, 77.0)] * 2
    save(whole, place / RECORD)
    done(tmp_path, "tune")
    assert len(verbs.asked) == 2
    (place / RECORD).unlink()
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
    save(kept, tmp_path / "tune" / RECORD)
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


def test_what_a_part_left_is_known_after_it_even_where_it_fails(tmp_path: Path, verbs: Verbs) -> None:
    known = part_of(tmp_path)
    known.run("measure", Scope(), 77.0)
    assert known._launch_s() == 4.0
    save(made_tunings.keep_default(), tmp_path / "tune" / RECORD)
    verbs.fails = [WorkFailed("no")]
    with pytest.raises(WorkFailed):
        known.run("explain", Scope(), 77.0)
    assert known.needless("check") == "the default is kept"
