"""Result folders read together: whole, partial, damaged, and of several trainings."""

from pathlib import Path

import made_explanation
import made_predictions
import made_tunings
import msgspec
import pytest
from made_results import MACHINE, curves, folder_of, folders, full
from test_measurement import measurement, run

from scalescope.errors import UsageError
from scalescope.records.cluster_file import write_cluster
from scalescope.records.explanation import TRACE_RECORD, TraceFolder
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import EstimatePlan, EstimateRequest, MeasureRequest, Plan
from scalescope.records.run import Point
from scalescope.records.store import append, save
from scalescope.records.tuning import TuneRequest
from scalescope.studies.results import read_results
from scalescope.tuner.journal import TunePlan
from simulator import made

DATA = Path(__file__).parents[1] / "data"
EXAMPLES = Path(__file__).parents[2] / "examples" / "data"


def test_folders_of_one_training_are_joined_and_others_stand_apart(tmp_path: Path) -> None:
    (one,) = read_results(folders(tmp_path / "a"))
    assert one.kinds == {"prediction", "scaling", "explanation", "tuning"}
    assert one.done[0].seed == 11
    assert one.done[0].fingerprint == MACHINE
    two = read_results([*folders(tmp_path / "b"), *folders(tmp_path / "c", "resnet18")])
    assert [each.what for each in two] == ["cnn", "resnet18"]
    assert [len(each.kinds) for each in two] == [4, 4]
    again = folder_of(tmp_path / "later", "measure", scaling=curves())
    assert [each.name for each in read_results([tmp_path / "b" / "measure", again])] == ["measure", "later"]


def test_a_folder_of_folders_is_one_training(tmp_path: Path) -> None:
    folders(tmp_path / "study")
    (one,) = read_results([tmp_path / "study"])
    assert (one.name, len(one.kinds)) == ("study", 4)
    folder_of(tmp_path / "study" / "second", "measure", scaling=curves())
    with pytest.raises(UsageError, match="holds more than one scaling, the last in second: name those to show"):
        read_results([tmp_path / "study"])


def test_launches_of_an_interrupted_measurement_are_shown(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "m", "measure", measurement=measurement(run("none", 1, 80), run("ddp", 2, 120)))
    (one,) = read_results([place])
    assert one.measurement
    assert one.scaling
    assert len(one.scaling.curves[0].points) == 2


def test_an_unfinished_result_says_how_to_finish_it(tmp_path: Path) -> None:
    request = MeasureRequest(command=("true",))
    begun = folder_of(tmp_path / "m", "measure", plan=Plan(request=request, cwd="/", since_ns=0))
    with pytest.raises(UsageError, match=r"no launch of .* has finished yet: scalescope measure --resume"):
        read_results([begun])
    plan = EstimatePlan(request=EstimateRequest(workload=WorkloadSpec(model="cnn")), fingerprint=MACHINE)
    with pytest.raises(UsageError, match="is not finished: type the same command to continue"):
        read_results([folder_of(tmp_path / "e", "estimate", plan=plan)])
    search = folder_of(tmp_path / "t", "tune", plan=TunePlan(request=TuneRequest(command=("true",)), cwd="/"))
    for sample in made_tunings.two_hosts().samples[:3]:
        append(sample, search / "samples.jsonl")
    with pytest.raises(UsageError, match="ended after 3 samples: it cannot be resumed; type the same command"):
        read_results([search])
    (search / "launches").mkdir()  # a search by relaunch
    with pytest.raises(UsageError, match="ended after 3 samples: scalescope tune --resume"):
        read_results([search])


def test_traces_next_to_a_measurement_are_explained(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "m", "measure", scaling=curves())
    (place / "traces" / "ddp-np2-b32").mkdir(parents=True)
    save(made_explanation.ddp(), place / "traces" / "ddp-np2-b32" / "explanation.json")
    (one,) = read_results([place])
    assert one.kinds == {"scaling", "explanation"}


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (EXAMPLES / "lab11.csv", "scaling"),
        (DATA / "traces" / "horovod" / "gloo_nocache.json.gz", "explanation"),
        (DATA / "autotune" / "mpi_switches_held.csv", "autotune"),
    ],
)
def test_files_that_explain_reads_are_results_too(file: Path, kind: str) -> None:
    (one,) = read_results([file])
    assert one.kinds == {kind}


def test_a_record_may_be_named_itself(tmp_path: Path) -> None:
    save(full().tuning, tmp_path / "mine.json")
    (one,) = read_results([tmp_path / "mine.json"])
    assert one.kinds == {"tuning"}
    assert one.settings


def test_what_holds_nothing_is_refused_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist: name a folder of scalescope estimate"):
        read_results([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="holds no results: name a folder of scalescope estimate"):
        read_results([tmp_path])
    (tmp_path / "scaling.json").write_text('{"kind": "scaling", "version": 99}')
    with pytest.raises(UsageError, match="pip install --upgrade scalescope"):
        read_results([tmp_path])


def test_an_unreadable_cluster_does_not_hide_the_map(tmp_path: Path) -> None:
    place = folders(tmp_path)[0]
    (place / "cluster.toml").write_text("nodes = 'many'")
    (one,) = read_results([place])
    assert one.prediction
    assert one.cluster is None


def test_a_traced_step_gets_the_predicted_one_above_it(tmp_path: Path) -> None:
    place = folders(tmp_path)[0]
    save(made.profile(made.point(batch=32)), place / "profile.json")
    write_cluster(made_predictions.cluster(), place / "cluster.toml")
    traced = folder_of(tmp_path / "traced", "explain")
    launch = traced / "traces" / "ddp-np2-b32"
    launch.mkdir(parents=True)
    save(msgspec.structs.replace(made_explanation.ddp(), what="cnn"), launch / "explanation.json")
    point = Point(engine="ddp", np=2, batch=32, threads_per_rank=1)
    record = TraceFolder(
        what="cnn", point=point, engine="ddp", backend="gloo", np=2, ranks=(), steps=60, untraced_step_s=None
    )
    save(record, launch / TRACE_RECORD)
    (alone,) = read_results([traced])
    assert alone.explanations[0].predicted_step is None  # nothing to predict it from
    (both,) = read_results([place, traced])
    predicted = both.explanations[0].predicted_step
    assert predicted
    assert {span.activity for span in predicted.spans} >= {"forward", "backward", "communication", "optimizer"}
