"""A study's folder as one result, and predicted steps next to traced ones."""

from pathlib import Path
from typing import Any

import made_explanation
import made_predictions
import msgspec
import pytest
from made_results import MACHINE, folder_of, folders
from test_measurement import measurement, run
from test_read_results import MODEL, one, traced

from scalescope.engines import DDP
from scalescope.errors import UsageError
from scalescope.records.cluster_file import write_cluster
from scalescope.records.explanation import Explanation
from scalescope.records.job import Knobs
from scalescope.records.store import save
from scalescope.records.study import STUDY, Study, StudyPart, StudyPlan, StudyRequest
from scalescope.records.timeline import Timeline
from scalescope.simulator.step import predicted_step as predicted
from scalescope.studies.results import read_results
from simulator import made


def predicted_step(tmp_path: Path, explanation: Explanation | None = None, batch: int | None = 32) -> Timeline | None:
    place = folder_of(
        tmp_path / "e", "estimate", estimate=made_predictions.predicted(), profile=made.profile(made.point(batch=32))
    )
    write_cluster(made_predictions.cluster(), place / "cluster.toml")
    launch = folder_of(tmp_path / "x", "explain")
    traced(launch, explanation, batch=batch)
    return one(place, launch).explanations[0].predicted_step


def test_a_traced_step_gets_the_predicted_one_of_as_many_ranks(tmp_path: Path) -> None:
    profile, knobs = made.profile(made.point(batch=32)), Knobs(engine="ddp", values=DDP.values_for("gloo"))
    two, four = (predicted(profile, made_predictions.cluster(), knobs, ranks, 32) for ranks in (2, 4))
    assert two != four
    assert predicted_step(tmp_path) == two
    unknown = msgspec.structs.replace(made_explanation.ddp(4, 6), world_size=None, what="cnn")
    assert predicted_step(tmp_path / "four", unknown) == four


@pytest.mark.parametrize("why", ["no batch", "no engine", "has one"])
def test_a_traced_step_that_nothing_is_predicted_for_stays_as_it_is(tmp_path: Path, why: str) -> None:
    own = made_predictions.timeline("own")
    changed: dict[str, dict[str, Any]] = {"no engine": {"engine": "none"}, "has one": {"predicted_step": own}}
    explanation = msgspec.structs.replace(made_explanation.ddp(2, 6), what="cnn", **changed.get(why, {}))
    step = predicted_step(tmp_path, explanation, None if why == "no batch" else 32)
    assert step == (own if why == "has one" else None)


def study_folder(place: Path, *states: Any, checked: bool = True) -> Path:
    folders(place)
    parts = tuple(StudyPart(name=f"part{at}", what="", state=state) for at, state in enumerate(states))
    plan = StudyPlan(
        request=StudyRequest(workload=MODEL),
        cwd="/",
        engines=("ddp",),
        np=(1, 2),
        batches=(8,),
        start_s=4.0,
        sample_s=0.001,
        fingerprint=MACHINE,
    )
    if checked:
        for name, rate in (("default", 100), ("tuned", 130)):
            runs = [run("ddp", 2, rate, number) for number in (1, 2, 3)]
            folder_of(place / "check" / name, "measure", measurement=measurement(*runs))
    (place / ".scalescope").write_text((place / "measure" / ".scalescope").read_text().replace('"measure"', '"study"'))
    save(plan, place / "plan.json")
    save(Study(what="cnn", budget_s=300.0, parts=parts), place / STUDY)
    return place


def test_a_study_is_one_result_with_its_check_and_its_open_parts(tmp_path: Path) -> None:
    place = study_folder(tmp_path / "s", "done", "planned", "failed", "running", "left out", "not needed")
    found = one(place)
    assert (found.name, len(found.kinds)) == ("s", 4)
    assert found.study
    assert len(found.study.parts) == 6
    assert found.missing == (f"not finished: part1, part3: scalescope study --resume -o {place}",)
    assert [(each.verb, each.folder) for each in found.done][-1] == ("study", str(place))
    assert found.done[-1].fingerprint == MACHINE
    assert found.check
    assert [found.check.a, found.check.b] == pytest.approx([0.16, 16 / 130])
    assert found.check.verdict == "faster"


def test_a_finished_study_misses_nothing_and_may_have_no_check(tmp_path: Path) -> None:
    found = one(study_folder(tmp_path / "s", "done", checked=False))
    assert (found.check, found.missing) == (None, ())
    half = study_folder(tmp_path / "half", "done")
    (half / "check" / "tuned" / "measurement.json").unlink()
    assert one(half).check is None
    damaged = study_folder(tmp_path / "damaged", "done")
    (damaged / "check" / "tuned" / "measurement.json").write_text("{}")
    assert one(damaged).check is None


def test_a_study_without_its_record_says_how_to_go_on(tmp_path: Path) -> None:
    place = study_folder(tmp_path / "s", "done")
    (place / STUDY).unlink()
    found = one(place)
    assert (found.study, found.missing) == (None, (f"scalescope study --resume -o {place}",))
    (place / "plan.json").unlink()
    save(Study(what="cnn", budget_s=300.0, parts=()), place / STUDY)
    assert "study" not in [each.verb for each in one(place).done]
    empty = folder_of(tmp_path / "empty", "study", study=Study(what="cnn", budget_s=300.0, parts=()))
    with pytest.raises(UsageError, match="holds no results yet: scalescope study --resume -o"):
        read_results([empty])
