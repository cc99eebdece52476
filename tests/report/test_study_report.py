"""A study's folder as one result: its answer, what it left out, its check and its document."""

import json
from pathlib import Path
from statistics import median

import made_explanation
import msgspec
import pytest
from made_results import folder_of, folders, with_steady
from made_scalings import measured
from made_tunings import two_hosts
from test_measurement import measurement, run

from scalescope.errors import UsageError
from scalescope.jobs.folders import result_folder
from scalescope.measurement.scaling import scaling_of
from scalescope.records.prediction import Check
from scalescope.records.profile import WorkloadSpec
from scalescope.records.results import Results
from scalescope.records.run import Load
from scalescope.records.store import save
from scalescope.records.study import STUDY, Study, StudyPart, StudyPlan, StudyRequest
from scalescope.records.tuning import RAN_TO_ITS_END
from scalescope.show import document_of
from scalescope.show.page import page_of
from scalescope.show.scaling import same_point
from scalescope.show.study import as_measured, method_words, on_page, setting_of
from scalescope.studies.results import read_results
from scalescope.units import format_seconds
from scalescope.verbs.report import with_commands

PARTS = (
    StudyPart(name="estimate", what="predict", planned_s=40.0, used_s=41.0, state="done"),
    StudyPart(name="measure", what="launch", planned_s=60.0, used_s=70.0, state="done"),
    StudyPart(name="explain", what="trace", used_s=3.0, state="failed", why="no rank answered"),
    StudyPart(name="tune", what="search", planned_s=70.0, state="left out", why="it takes about 70 s"),
)
STUDIED = Study(what="cnn", budget_s=300.0, parts=PARTS)
PLAN = StudyPlan(
    request=StudyRequest(workload=WorkloadSpec(model="cnn"), np=(1, 2), budget_s=300.0),
    cwd="/",
    engines=("ddp",),
    np=(1, 2),
    batches=(8,),
    start_s=4.0,
    sample_s=0.001,
)


def study_folder(place: Path, study: Study = STUDIED) -> Path:
    folders(place)
    with result_folder("measure", place / "check" / "default"), result_folder("measure", place / "check" / "tuned"):
        for name, rates in {"default": (100, 102, 98), "tuned": (130, 131, 129)}.items():
            runs = [run("ddp", 2, rate, round=number) for number, rate in enumerate(rates, start=1)]
            save(measurement(*runs), place / "check" / name / "measurement.json")
    save(study, place / STUDY)
    save(PLAN, place / "plan.json")
    return _marked(place)


def _marked(place: Path) -> Path:
    mark = (place / "measure" / ".scalescope").read_text()
    (place / ".scalescope").write_text(mark.replace('"measure"', '"study"'))
    return place


def studied(tmp_path: Path, study: Study = STUDIED) -> Results:
    (results,) = read_results([study_folder(tmp_path / "s", study)])
    return with_commands(results, [tmp_path / "s"])


def test_all_parts_are_one_result_with_what_was_left_out_and_what_failed(tmp_path: Path) -> None:
    results = studied(tmp_path)
    assert results.kinds == {"prediction", "scaling", "explanation", "tuning"}
    told = document_of(results)
    assert told.answer.startswith("Use ")
    assert list(told.warnings[:2]) == [
        "explain failed: no rank answered",
        "left out for lack of time: tune; Next resumes with time for explain and tune",
    ]
    assert results.follow.endswith("s --budget 2m")
    assert "study --resume" in results.follow


def test_a_study_whose_answer_is_open_continues_in_its_folder_and_a_disturbed_one_begins_anew(tmp_path: Path) -> None:
    over = Study(what="cnn", budget_s=300.0, parts=tuple(part for part in PARTS if part.state == "done"))
    assert studied(tmp_path, over).follow.startswith("scalescope report ")
    rates = {1: (80.0, 80.0, 80.0), 2: (150.0, 120.0, 150.0)}
    for foreign_cores in (0.0, 1.5):
        runs = [run("ddp", np, rate, number) for np, each in rates.items() for number, rate in enumerate(each, 1)]
        busy = Load(foreign_cores=foreign_cores, cores=2, load_average=1.0)
        save(
            measurement(*(msgspec.structs.replace(each, load=busy) for each in runs)),
            tmp_path / "s" / "measure" / "measurement.json",
        )
        (results,) = read_results([tmp_path / "s"])
        assert results.scaling
        assert results.scaling.doubt.startswith("Not certain") == bool(foreign_cores)
        follow = with_commands(results, [tmp_path / "s"]).follow
        resumed = f"scalescope study --resume {tmp_path / 's'} --budget 1m"
        assert follow == ("scalescope study cnn --np 1,2" if foreign_cores else resumed)


def test_what_to_write_in_a_script_is_one_line(tmp_path: Path) -> None:
    lines = ("In your script:", "  model = DDP(model)", "  apply_tuned(model)", "In the environment of every rank: A=1")
    told = document_of(msgspec.structs.replace(studied(tmp_path), settings=lines)).do
    assert told == "In your script: model = DDP(model); apply_tuned(model); In the environment of every rank: A=1"
    flat = document_of(msgspec.structs.replace(studied(tmp_path), settings=("A=1:", "B=2"))).do
    assert flat == "A=1:; B=2", "only indented lines belong to a heading"


def test_a_measurement_without_a_launch_has_no_method(tmp_path: Path) -> None:
    measured = msgspec.structs.replace(studied(tmp_path), measurement=measurement())
    assert "launched" not in method_words(measured)


def test_a_traced_step_unlike_the_measured_ones_is_a_warning(tmp_path: Path) -> None:
    results = msgspec.structs.replace(studied(tmp_path), prediction=None)
    point = setting_of(results).point
    assert point
    assert point.step_s
    for times, warns in ((1.2, False), (6.0, True), (0.5, True)):
        traced = msgspec.structs.replace(
            results.explanations[-1], step_s=times * point.step_s.value, ranks=tuple(range(point.np)), overhead=None
        )
        told = document_of(msgspec.structs.replace(results, explanations=(traced,))).warnings
        assert any(line.startswith("a traced step took") for line in told) == warns


def test_an_answer_about_another_batch_is_a_warning(tmp_path: Path) -> None:
    results = studied(tmp_path)
    cell = setting_of(results).cell
    assert cell
    one, other = cell.batch, cell.batch + 1

    def warned(**changes: object) -> list[str]:
        told = document_of(msgspec.structs.replace(results, **changes)).warnings
        return [line for line in told if line.startswith("not of the setting above")]

    assert warned(traced_batches=(other, one)) == warned(traced_batches=(None,)) == warned(traced_batches=())
    ending = f"where the time goes; measure and explain with --batch {one:g}"
    (line,) = warned(traced_batches=(one, other), scaling=None)
    assert line == f"not of the setting above, but of another batch: {ending}"
    assert warned(traced_batches=(other,), prediction=None) == []
    assert results.scaling
    (curve, *_) = results.scaling.curves
    for batch, told in ((other, True), (one, False), (None, False)):
        points = tuple(msgspec.structs.replace(point, batch=batch) for point in curve.points)
        scaling = msgspec.structs.replace(results.scaling, curves=(msgspec.structs.replace(curve, points=points),))
        assert any("batch: scaling" in line for line in warned(scaling=scaling, traced_batches=())) == told


def test_a_script_alone_with_its_engine_is_the_measured_point_of_one_process(tmp_path: Path) -> None:
    results = studied(tmp_path)
    assert results.scaling
    assert results.prediction
    curve = results.scaling.curves[0]
    alone = msgspec.structs.replace(results.prediction.cells[0], np=1, scaling=curve.scaling)
    for engine, found in (("none", True), ("ddp", True), ("horovod", False)):
        points = [msgspec.structs.replace(curve.points[0], np=1, batch=alone.batch, engine=engine)]
        if engine == "none":
            points.insert(0, msgspec.structs.replace(points[0], engine="ddp"))
        scaling = msgspec.structs.replace(
            results.scaling, curves=(msgspec.structs.replace(curve, points=tuple(points)),)
        )
        point = same_point(scaling, alone, "ddp")
        assert (point.engine if point else "") == (engine if found else "")


def test_a_cell_that_launches_checked_is_shown_with_what_was_predicted_of_it(tmp_path: Path) -> None:
    results = studied(tmp_path)
    assert results.prediction
    cell = next(each for each in results.prediction.cells if (each.np, each.batch, each.scaling) == (2, 32, "weak"))
    check = Check.of(cell, (2 * cell.step_s,))
    twice = msgspec.structs.replace(cell, step_s=2 * cell.step_s, speedup=cell.speedup / 2, verified=True)
    advice = results.prediction.recommended
    assert advice
    advice = msgspec.structs.replace(advice, np=2, batch=32, scaling="weak", engine=cell.engine)
    prediction = msgspec.structs.replace(results.prediction, cells=(twice,), checks=(check,), recommended=advice)
    checked = msgspec.structs.replace(results, prediction=prediction)
    assert setting_of(checked).point
    assert f", {cell.speedup:.2f}x predicted (" in document_of(checked).answer
    apart = msgspec.structs.replace(checked, study=None)
    assert "x when the map was verified (" in document_of(apart).answer, "estimate --verify has its own launches"
    assert "x measured (" in document_of(msgspec.structs.replace(apart, scaling=None)).answer


@pytest.mark.parametrize(
    ("ends", "verdict"), [((0.66, 1.54), "not shown to be faster than one"), ((0.5, 0.9), "slower than one")]
)
def test_processes_that_are_not_faster_than_one_are_not_recommended(
    tmp_path: Path, ends: tuple[float, float], verdict: str
) -> None:
    results = msgspec.structs.replace(studied(tmp_path), prediction=None)
    assert document_of(results).answer.startswith("Use 4 processes")
    assert results.scaling
    results = msgspec.structs.replace(results, scaling=with_steady(results.scaling, *ends))
    document = document_of(results)
    assert document.answer.startswith("Use 1 process: 4 processes")
    assert verdict in document.answer
    assert document.do.startswith("To make more processes pay: ")
    answer = document.json()["answer"]
    assert (answer["np"], answer["not_faster"]["np"]) == (1, 4)


def test_a_curve_of_others_without_a_baseline_leaves_the_verdict_on_a_slower_setting(tmp_path: Path) -> None:
    results = msgspec.structs.replace(studied(tmp_path), prediction=None)
    assert results.scaling
    slower = with_steady(results.scaling, 0.5, 0.9)
    points = [msgspec.structs.replace(point, engine="other", throughput=None) for point in slower.curves[0].points]
    apart = msgspec.structs.replace(slower.curves[0], engine="other", baseline_np=None, points=tuple(points))
    both = msgspec.structs.replace(slower, curves=(*slower.curves, apart))
    assert not setting_of(msgspec.structs.replace(results, scaling=both)).pays


def test_the_check_of_the_tuned_setting_stands_next_to_its_sentence(tmp_path: Path) -> None:
    results = studied(tmp_path)
    assert results.check
    assert results.check.verdict == "faster"
    (line,) = [each for each in document_of(results).reasons if "Launched on their own" in each]
    assert "1.30x (1.27 to 1.33), confirmed" in line
    assert "Launched on their own" in page_of(*on_page([results]))


def test_the_page_shows_every_part(tmp_path: Path) -> None:
    text = page_of(*on_page([studied(tmp_path)]))
    assert "Parts of the study" in text
    assert "failed: no rank answered" in text
    assert "left out: it takes about 70 s" in text
    assert "scalescope study cnn --np 1,2" in text


def test_the_document_holds_what_each_verb_prints_and_what_became_of_the_parts(tmp_path: Path) -> None:
    document = json.loads(json.dumps(document_of(studied(tmp_path), page="report.html").json()))
    assert {"np", "batch", "engine", "speedup", "bottleneck", "settings"} <= document["answer"].keys()
    assert document["answer"]["speedup"]["expected"]["value"] > 0
    assert document["estimate"]["cells"]
    assert document["measure"]["points"]
    assert document["explain"]["accounting"]
    assert document["tune"]["decision"] == "use"
    assert document["check"]["verdict"] == "faster"
    assert [part["state"] for part in document["parts"]] == ["done", "done", "failed", "left out"]
    assert document["page"].endswith("report.html")


def test_an_unfinished_study_says_how_to_continue(tmp_path: Path) -> None:
    parts = (PARTS[0], msgspec.structs.replace(PARTS[1], state="running"))
    results = studied(tmp_path, Study(what="cnn", budget_s=300.0, parts=parts))
    assert results.missing[0].startswith("not finished: measure: scalescope study --resume ")
    empty = folder_of(tmp_path / "empty", "study", study=STUDIED)
    with pytest.raises(UsageError, match="holds no results yet: scalescope study --resume"):
        read_results([empty])


def test_strong_scaling_that_was_measured_stands_in_the_answer(tmp_path: Path) -> None:
    results = msgspec.structs.replace(studied(tmp_path), prediction=None)
    both = measured(batches=(32,), engines=("ddp",), kinds=("strong", "weak"))
    document = document_of(msgspec.structs.replace(results, scaling=both))
    strong = document.json()["answer"]["strong"]
    (point,) = [each for curve in both.curves if curve.scaling == "strong" for each in curve.points if each.np == 4]
    assert (strong["np"], strong["global_batch"]) == (4, 32)
    assert strong["speedup"]["value"] == point.speedup["steady"].value
    words = f" Strong scaling, batch 32 divided among 4 processes: {strong['speedup']['value']:.2f}x measured"
    assert words in document.answer
    weak = document_of(msgspec.structs.replace(results, scaling=measured(batches=(32,), kinds=("weak",))))
    assert "Strong" not in weak.answer
    assert weak.json()["answer"]["strong"] is None


def test_compute_that_takes_longer_than_a_step_of_one_process_is_the_reason() -> None:
    def of(rate: float) -> Results:
        runs = [run("none", 1, rate, number) for number in (1, 2, 3)]
        runs += [run("ddp", 2, 100, number) for number in (1, 2, 3)]
        measured = msgspec.structs.replace(measurement(*runs), scaling=("weak",))
        traced = msgspec.structs.replace(made_explanation.ddp(2, 6), findings=())
        assert traced.accounting
        return Results(
            name="s", measurement=measured, scaling=scaling_of(measured), explanations=(traced,), traced_batches=(8,)
        )

    parts = made_explanation.ddp(2, 6).accounting
    assert parts
    compute_s = parts.compute_s or 0.0
    results = of(8 / compute_s * 1.5)
    assert results.measurement
    alone_s = median(each.step_s for each in results.measurement.runs if each.point.np == 1)
    told = document_of(results)
    (reason,) = [line for line in told.reasons if "share cores, caches and memory" in line]
    assert reason == (
        f"Compute takes {format_seconds(compute_s)} a step on 2 processes, a whole step of one process "
        f"{format_seconds(alone_s)}: the ranks share cores, caches and memory."
    )
    assert not [line for line in told.reasons if "Nothing stands out" in line]
    assert "fewer threads per rank" in told.do
    assert told.json()["answer"]["contention"] == {"np": 2, "compute_s": compute_s, "one_process_s": alone_s}
    alike = document_of(of(8 / compute_s * 1.1))
    assert [line for line in alike.reasons if "Nothing stands out" in line]
    assert alike.json()["answer"]["contention"] is None


def test_an_interval_of_disturbed_launches_says_that_it_speaks_of_these_alone() -> None:
    rates = {1: (80.0, 81.0, 79.0, 80.0, 80.0, 81.0), 2: (100.0, 120.0, 90.0, 105.0, 98.0, 110.0)}
    busy = Load(foreign_cores=1.5, cores=2, load_average=1.0)
    runs = [run("ddp", np, rate, number, load=busy) for np, each in rates.items() for number, rate in enumerate(each)]
    for rounds, words in ((6, "of these launches alone)"), (2, "in these 2 launches)")):
        measured = measurement(*(each for each in runs if each.round < rounds))
        told = document_of(Results(name="s", measurement=measured, scaling=scaling_of(measured), tuning=two_hosts()))
        assert " measured (" in told.answer
        assert words in told.answer
        assert ("95 % interval" in told.answer) == (rounds > 2)


def test_after_a_study_that_measured_nothing_the_command_is_typed_again_when_the_script_is_mended(
    tmp_path: Path,
) -> None:
    why = "np2: 2 processes ran and none joined a process group: each trained alone"
    parts = tuple(
        msgspec.structs.replace(part, state="failed", why=why) if part.name == "measure" else part for part in PARTS
    )
    place = study_folder(tmp_path / "s", msgspec.structs.replace(STUDIED, parts=parts))
    request = msgspec.structs.replace(PLAN.request, workload=None, command=("python", "x.py"))
    save(msgspec.structs.replace(PLAN, request=request), place / "plan.json")
    save(measurement(run("none", 1, 80)), place / "measure" / "measurement.json")
    (results,) = (with_commands(each, [place]) for each in read_results([place]))
    assert results.follow == "scalescope study --np 1,2 -- python x.py"
    (line,) = [line for line in document_of(results).warnings if line.startswith("Next is ")]
    assert line == (
        "Next is when the script is mended; for its MODEL: scalescope estimate FILE.py:FUNCTION --input SHAPE"
    )


def test_a_measured_cell_is_shown_as_measured_and_an_untrusted_map_is_one_line(tmp_path: Path) -> None:
    results = studied(tmp_path)
    assert results.prediction
    places = [
        (cell, point)
        for cell in results.prediction.cells
        if cell.np > 1 and not cell.verified and (point := same_point(results.scaling, cell, results.prediction.engine))
    ]
    assert places
    shown = as_measured(results.prediction, results.scaling)
    for cell, point in places:
        assert point.step_s
        (now,) = [
            each for each in shown.cells if (each.np, each.batch, each.scaling) == (cell.np, cell.batch, cell.scaling)
        ]
        assert (now.verified, now.step_s, now.speedup) == (True, point.step_s.value, point.speedup["steady"].value)
    doubted = msgspec.structs.replace(results.prediction, doubts=("the machine was busy",))
    told = document_of(msgspec.structs.replace(results, prediction=doubted))
    (section,) = [each for each in told.sections if each.name == "predicted"]
    assert section.lines == ["This map is not to be trusted: the machine was busy."]
    assert (*section.facts, *section.tables, *section.figures()) == ()
    assert told.json()["estimate"] == document_of(doubted).json()


def test_a_search_that_ran_a_script_to_its_end_is_a_warning(tmp_path: Path) -> None:
    results = studied(tmp_path)
    assert results.tuning
    assert RAN_TO_ITS_END not in document_of(results).warnings
    ended = msgspec.structs.replace(results, tuning=msgspec.structs.replace(results.tuning, notes=(RAN_TO_ITS_END,)))
    assert RAN_TO_ITS_END in document_of(ended).warnings
