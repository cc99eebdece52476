"""The verbs as functions."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
import typer

import scalescope
from scalescope import api
from scalescope.api.stub import stub
from scalescope.cli import application
from scalescope.errors import UsageError
from scalescope.jobs.request import measure_request
from scalescope.measurement.fingerprint import fingerprint_here
from scalescope.options import options_of
from scalescope.records.run import Measurement
from scalescope.verbs import VERBS
from scalescope.verbs.verb import Verb
from told import Told


@pytest.mark.launches
def test_measure_returns_records_and_shows_its_progress(tmp_path) -> None:
    told = Told()
    record = scalescope.measure(
        "mlp",
        np=[2],
        batch=[4],
        knobs={"bucket_cap_mb": 1.5},
        steps=8,
        launches=1,
        folder=tmp_path / "out",
        progress=told,
    )
    assert isinstance(record, Measurement)
    assert record.folder == tmp_path / "out"
    (run,) = record.runs
    assert (run.steps, run.point.np, run.point.global_batch, len(run.ranks)) == (8, 2, 8, 2)
    assert sum(run.phases.values()) == pytest.approx(run.wall_s, rel=0.02)
    (plan,), ((what, seconds, steps),) = told.notes, told.stages
    assert plan.startswith("1 launch at 1 point; about ")
    assert (what, steps) == ("launch 1/1 ddp-np2-b4", 8)
    assert seconds
    assert told.details[0].startswith("ddp-np2-b4: ")
    assert max(told.steps) == 8
    assert scalescope.tabulate(record, "csv").count("\n") == 2
    more = scalescope.resume(tmp_path / "out", launches=2)
    assert [each.round for each in more.runs] == [1, 2]


def test_what_explain_read_can_be_drawn_and_tabulated(tmp_path) -> None:
    scaling = scalescope.explain(Path(__file__).parents[1] / "examples" / "data" / "lab11.csv")
    assert scaling.curves[0].fit
    assert "30.10" in scalescope.tabulate(scaling, "latex")
    assert any(path.name == "speedup.png" for path in scalescope.draw(scaling, tmp_path))


def test_measure_refuses_a_model_together_with_a_command(tmp_path) -> None:
    for arguments in ({}, {"model": "mlp", "command": ["true"]}):
        with pytest.raises(UsageError, match="one thing"):
            scalescope.measure(**arguments, folder=tmp_path)


def test_the_stub_lists_the_keywords_of_every_verb() -> None:
    assert stub() == (Path(scalescope.__file__).parent / "api" / "__init__.pyi").read_text(), (
        "run python -m scalescope.api.stub"
    )


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_option_is_typed_and_passed_by_one_name(verb: Verb) -> None:
    command = typer.main.get_command(application()).commands[verb.name]
    typed = {parameter.name for parameter in command.params} - {"context", "help_all", *verb.takes}
    passed = {option.keyword for option in options_of(verb.request) if not option.opt.after_dashes}
    short = {"offline"}
    assert typed - short == passed - ({"model"} if verb.name == "explain" else set())


def test_a_verb_without_a_function_of_its_own_takes_its_arguments_by_place_and_by_name() -> None:
    table = Path(__file__).parents[1] / "examples" / "data" / "lab11.csv"
    for results in (scalescope.api.report([table]), scalescope.api.report(paths=[table])):
        assert [each.name for each in results] == ["lab11.csv"]
    with pytest.raises(TypeError, match="report takes 1 arguments without a name, not 2"):
        scalescope.api.report([table], [table])


def test_an_unknown_keyword_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"there is no option 'lauches' \(did you mean launches"):
        scalescope.measure("mlp", lauches=2)
    with pytest.raises(UsageError, match="resume takes the folder"):
        scalescope.study("mlp", resume=True)


def test_a_verb_that_is_resumed_takes_new_limits_only(tmp_path: Path) -> None:
    for options, part in (({"steps": 40}, "leave --steps out"), ({"folder": "x"}, "leave -o out")):
        with pytest.raises(UsageError, match=part):
            scalescope.measure(resume=tmp_path, **options)


def test_words_and_values_make_the_same_request() -> None:
    words = measure_request(
        model="mlp",
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
        model="mlp",
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
        measure_request(model="mlp", **options)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        _ = scalescope.mesure


def test_study_returns_the_results_of_its_verbs_and_writes_the_page(tmp_path: Path) -> None:
    kept, folder = Path(__file__).parent / "data" / "kept" / "study", tmp_path / "study"
    shutil.copytree(kept, folder)
    for path in folder.rglob("plan.json"):  # as if it had been begun here
        plan = json.loads(path.read_text().replace('"/home/user"', f'"{tmp_path}"'))
        plan["fingerprint"] = msgspec.to_builtins(fingerprint_here((), "auto"))
        path.write_text(json.dumps(plan))
    results = scalescope.study(resume=folder)
    assert results.study is not None
    assert {"estimate", "measure", "explain", "tune"} <= {part.name for part in results.study.parts}
    assert None not in (results.prediction, results.scaling, results.check)
    assert results.explanations
    assert results.tuning is not None
    assert results.tuning.what in (folder / "report.html").read_text()


def test_a_verb_without_a_function_of_its_own_takes_keywords_and_another_name_is_no_function() -> None:
    with pytest.raises(UsageError, match="there is no option 'formal'"):
        api.report(formal=True)
    with pytest.raises(AttributeError, match="has no attribute 'sing'"):
        _ = api.sing
