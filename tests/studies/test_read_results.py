"""What folders and files hold, read into one result per training: whole, partial, and refused."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import made_explanation
import made_predictions
import made_tunings
import msgspec
import pytest
from made_autotune import autotune
from made_results import MACHINE, curves, folder_of, folders
from test_measurement import measurement, run

from scalescope.errors import UsageError
from scalescope.records.cluster_file import write_cluster
from scalescope.records.explanation import TRACE_RECORD, Explanation, RankTrace, TraceFolder
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import EstimatePlan, EstimateRequest, MeasureRequest, Plan
from scalescope.records.results import Results
from scalescope.records.run import Point
from scalescope.records.store import append, save
from scalescope.records.tuning import TuneRequest
from scalescope.studies.results import read_results
from scalescope.tuner.journal import TunePlan
from simulator import made

TABLE = Path(__file__).parents[2] / "examples" / "data" / "lab11.csv"
TRACES = Path(__file__).parents[1] / "data" / "traces" / "kineto" / "gloo_small"
PLAN = Plan(request=MeasureRequest(command=("x",), seed=11), cwd="/", since_ns=0, fingerprint=MACHINE)
MODEL = WorkloadSpec(model="cnn")
AUTOTUNE = autotune()


def one(*paths: Path) -> Results:
    (found,) = read_results(paths)
    return found


def trace_folder(batch: int | None = 32) -> TraceFolder:
    point = Point(engine="ddp", np=2, batch=batch, threads_per_rank=1)
    return TraceFolder(
        what="cnn", point=point, engine="ddp", backend="gloo", np=2, ranks=(), steps=60, untraced_step_s=None
    )


def traced(folder: Path, explanation: Explanation | None = None, **record: Any) -> Path:
    """A traced launch that was explained already."""
    explanation = explanation or msgspec.structs.replace(made_explanation.ddp(2, 6), what="cnn")
    save(explanation, folder / "explanation.json")
    save(trace_folder(**record), folder / TRACE_RECORD)
    return folder


def test_every_verb_is_listed_with_its_folder(tmp_path: Path) -> None:
    estimate = EstimatePlan(request=EstimateRequest(workload=MODEL), fingerprint=MACHINE)
    tune = TunePlan(request=TuneRequest(command=("x",)), cwd="/", fingerprint=MACHINE)
    paths = [
        folder_of(tmp_path / "e", "estimate", plan=estimate, estimate=made_predictions.single()),
        folder_of(tmp_path / "m", "measure", plan=PLAN, scaling=curves()),
        folder_of(tmp_path / "t", "tune", plan=tune, tuning=made_tunings.two_hosts("cnn")),
    ]
    found = one(*paths)
    assert [(each.verb, each.folder, each.seed, each.fingerprint) for each in found.done] == [
        ("estimate", str(paths[0]), None, MACHINE),
        ("measure", str(paths[1]), 11, MACHINE),
        ("tune", str(paths[2]), None, MACHINE),
    ]
    assert found.missing == ()
    assert found.name == "e"


def test_results_of_one_kind_or_of_another_training_stand_apart(tmp_path: Path) -> None:
    first = folder_of(tmp_path / "a", "measure", scaling=curves())
    again = folder_of(tmp_path / "b", "measure", scaling=curves())
    other = folder_of(tmp_path / "c", "tune", tuning=made_tunings.two_hosts("resnet"))
    own = folder_of(tmp_path / "d", "tune", tuning=made_tunings.two_hosts("cnn"))
    assert [each.name for each in read_results([first, again, other])] == ["a", "b", "c"]
    assert [(each.name, len(each.kinds)) for each in read_results([first, other, own])] == [("a", 2), ("c", 1)]
    with pytest.raises(UsageError, match="a folder of scalescope estimate, measure, explain, tune or study"):
        read_results([])


def test_traces_and_logs_join_the_only_training_there_is(tmp_path: Path) -> None:
    first = folder_of(tmp_path / "a", "measure", scaling=curves())
    other = folder_of(tmp_path / "b", "measure", scaling=curves("resnet"))
    launch = folder_of(tmp_path / "t", "explain", explanation=made_explanation.ddp(2, 6))
    assert one(first, launch).kinds == {"scaling", "explanation"}
    assert one(launch, first).kinds == {"scaling", "explanation"}
    log = folder_of(tmp_path / "l", "explain", autotune=AUTOTUNE)
    assert one(first, launch, log).kinds == {"scaling", "explanation", "autotune"}
    both = folder_of(tmp_path / "x", "explain", explanation=made_explanation.ddp(2, 6), autotune=AUTOTUNE)
    assert one(first, both).kinds == one(both, first).kinds == {"scaling", "explanation", "autotune"}
    assert [each.name for each in read_results([first, other, launch])] == ["a", "b", "t"]


def test_a_probe_joins_any_results(tmp_path: Path) -> None:
    probe = folder_of(tmp_path / "p", "probe")
    write_cluster(made_predictions.cluster(), probe / "cluster.toml")
    assert one(probe).cluster == made_predictions.cluster()
    first, second = (folder_of(tmp_path / name, "measure", scaling=curves(name)) for name in ("a", "b"))
    found = read_results([first, second, probe])
    assert [each.cluster is not None for each in found] == [True, False]
    assert one(probe, first).what == "a"


def test_a_record_or_a_file_may_be_named_itself(tmp_path: Path) -> None:
    save(measurement(run("none", 1, 80), run("ddp", 2, 120)), tmp_path / "m.json")
    found = one(tmp_path / "m.json")
    assert (found.name, found.kinds) == ("m.json", frozenset({"scaling"}))
    assert found.measurement
    save(made_tunings.two_hosts(), tmp_path / "t.json")
    assert one(tmp_path / "t.json").settings
    save(made_tunings.keep_default(), tmp_path / "k.json")
    assert one(tmp_path / "k.json").settings == ()
    save(made_predictions.single(), tmp_path / "p.json")
    assert one(tmp_path / "p.json").prediction == made_predictions.single()
    save(made_explanation.ddp(2, 6), tmp_path / "x.json")
    assert one(tmp_path / "x.json").traced_batches == (None,)
    assert (one(TABLE).name, one(TABLE).kinds) == ("lab11.csv", frozenset({"scaling"}))


def test_missing_paths_and_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'nowhere' does not exist: name a folder of scalescope estimate"):
        read_results([Path("nowhere")])
    with pytest.raises(UsageError, match="holds no results: name a folder of scalescope estimate"):
        read_results([tmp_path])
    (tmp_path / "damaged.json").write_text("{")
    with pytest.raises(UsageError):
        read_results([tmp_path / "damaged.json"])


def test_a_folder_without_our_mark_is_explained(tmp_path: Path) -> None:
    found = one(shutil.copytree(TRACES, tmp_path / "theirs"))
    assert (found.name, found.kinds) == ("theirs", frozenset({"explanation"}))


def test_folders_of_verbs_are_looked_for_one_level_down(tmp_path: Path) -> None:
    place = tmp_path / "all"
    folders(place)
    (place / "notes").mkdir()
    (place / "file").write_text("")
    folder_of(place / "other", "doctor", scaling=curves())
    assert (one(place).name, len(one(place).kinds)) == ("all", 4)
    folder_of(place / "second", "tune", tuning=made_tunings.two_hosts())
    with pytest.raises(UsageError, match="holds more than one tuning, the last in tune: name those to show"):
        read_results([place])
    alone = folder_of(tmp_path / "own", "measure", scaling=curves("own"))
    folder_of(alone / "below", "tune", tuning=made_tunings.two_hosts())
    assert one(alone).kinds == {"scaling"}


def test_unfinished_results_name_the_command_that_finishes_them(tmp_path: Path) -> None:
    place = tmp_path / "my results"
    begun = folder_of(place / "m", "measure", plan=PLAN)
    with pytest.raises(UsageError) as caught:
        read_results([begun])
    again = f"scalescope measure --resume {shlex.quote(str(begun))}"
    assert str(caught.value) == f"{begun} holds no results yet: no launch of {begun} has finished yet: {again}"
    request = TuneRequest(command=("x",), method="offline")
    search = folder_of(place / "t", "tune", plan=TunePlan(request=request, cwd="/"))
    append(made_tunings.two_hosts().samples[0], search / "samples.jsonl")
    folder_of(place / "x", "explain", explanation=made_explanation.ddp(2, 6))
    plan = EstimatePlan(request=EstimateRequest(workload=MODEL), fingerprint=MACHINE)
    estimate = folder_of(place / "e", "estimate", plan=plan)
    assert one(place).missing == (
        f"the estimate in {estimate} is not finished: type the same command to continue",
        f"no launch of {begun} has finished yet: {again}",
        f"the search in {search} ended after 1 sample: scalescope tune --resume {shlex.quote(str(search))}",
    )
    assert one(place).kinds == {"explanation"}


def test_an_estimate_has_its_step_its_profile_and_its_cluster(tmp_path: Path) -> None:
    step, profile = made_predictions.timeline(), made.profile()
    place = folder_of(tmp_path / "e", "estimate", estimate=made_predictions.single(), step=step, profile=profile)
    write_cluster(made_predictions.cluster(), place / "cluster.toml")
    found = one(place)
    assert (found.predicted_step, found.profile, found.cluster) == (step, profile, made_predictions.cluster())
    (place / "profile.json").write_text("{}")
    assert (one(place).profile, one(place).prediction) == (None, made_predictions.single())


def test_traced_launches_of_a_measurement_come_with_their_batches(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "m", "measure", scaling=curves())
    traced(place / "traces" / "b", batch=16)
    traced(place / "traces" / "a", batch=None)
    save(made_explanation.ddp(2, 6), place / "traces" / "c" / "explanation.json")
    (place / "traces" / "empty").mkdir()
    (place / "traces" / "file").write_text("")
    found = one(place)
    assert found.traced_batches == (None, 16, None)
    assert len(found.explanations) == 3


def test_traced_launches_without_an_explanation_are_explained_when_read(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "m", "measure", scaling=curves())
    launch = shutil.copytree(TRACES, place / "traces" / "a")
    ranks = tuple(RankTrace(rank=rank, host="h", profile=f"rank{rank}.json.gz") for rank in (0, 1))
    save(msgspec.structs.replace(trace_folder(), ranks=ranks), launch / TRACE_RECORD)
    found = one(place)
    assert found.traced_batches == (32,)
    assert found.explanations[0].ranks == (0, 1)
