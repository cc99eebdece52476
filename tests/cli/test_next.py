"""The printed next command, pasted back: it trains the same model or command on the same engine, launcher and hosts."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import made_explanation
import made_predictions
import made_scalings
import msgspec
import pytest
import typer

from command_line import CommandLine
from scalescope.cli import application, split_at_dashes
from scalescope.jobs.request import traced_request
from scalescope.options import of_run
from scalescope.records.explanation import Finding
from scalescope.records.job import Host
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import EstimateRequest, MeasureRequest, Plan
from scalescope.records.run import Load, Measurement
from scalescope.records.store import load, save
from scalescope.records.study import Study
from scalescope.records.tuning import TuneRequest
from scalescope.verbs import find_verb
from scalescope.verbs.estimate import after_estimate
from scalescope.verbs.explain import after_traces, request_behind
from scalescope.verbs.measure import after_measure
from scalescope.verbs.verb import retyped

AROUND: dict[str, Any] = {
    "launcher": "mpirun",
    "hosts": (Host("a", 2), Host("b", 2)),
    "threads_per_rank": 3,
    "env": {"NCCL_DEBUG": "INFO", "A": "b c='d'"},
    "launcher_args": ("--bind-to", "a core", "-x"),
    "oversubscribe": True,
    "ssh": "rsh",
    "timeout_s": 90.0,
    "steps": 200,
}
CLUSTER = Path(__file__).parents[2] / "examples" / "clusters" / "ethernet-8x2.toml"
MODEL = WorkloadSpec(
    model="mlp", model_args={"width": 8, "depth": 2}, inputs=("8",), optimizer="adam", learning_rate=0.5
)
KNOBS = ("bucket_cap_mb=1.5", "static_graph=true")
MEASURED = MeasureRequest(
    workload=MODEL, np=(1, 4), batch=(8, 16), engines=("ddp",), knobs=KNOBS, device="cpu", **AROUND
)
SCRIPT = MeasureRequest(command=("python", "my train.py", "--lr", "1"), np=(2,), engines=("horovod",), **AROUND)
TUNED = TuneRequest(workload=MODEL, np=4, batch=8, engine="ddp", knobs=KNOBS, device="cpu", **AROUND)
ESTIMATED = EstimateRequest(
    workload=MODEL,
    engine="horovod",
    np=(1, 2, 3, 4),
    cluster="my cluster.toml",
    knobs=("cycle_time_ms=2",),
    device="cpu",
)


def test_values_of_variables_are_not_printed() -> None:
    line = retyped("tune", MEASURED)
    assert "NCCL_DEBUG=***" in line
    assert "INFO" not in line


def pasted(line: str) -> Any:
    """The request that a printed command leads to, once the values of variables are typed again."""
    program, verb, *words = shlex.split(line)
    words = [f"{name}={AROUND['env'][name]}" if (name := word.removesuffix("=***")) != word else word for word in words]
    assert program == "scalescope"
    words, command = split_at_dashes(words)
    context = typer.main.get_command(application()).commands[verb].make_context(verb, words, obj=command)
    told = {name: value for name, value in context.params.items() if name != "context" and _is_typed(context, name)}
    asked = find_verb(verb).ask(**({"command": command} if command else {}), **told)
    return traced_request(asked) if verb == "explain" else asked


def _is_typed(context: Any, name: str) -> bool:
    return str(context.get_parameter_source(name)).endswith("COMMANDLINE")


def training(request: Any, *but: str) -> dict[str, Any]:
    """What must not change from verb to verb."""
    fields = msgspec.structs.asdict(request)
    engines = fields.get("engines") or (fields.get("engine"),)
    same = {name: fields.get(name) for name in (*AROUND, "workload", "command", "device") if name in fields}
    same |= {"engine": engines[-1], "knobs": set(fields.get("knobs") or ())}
    return {name: value for name, value in same.items() if name not in but}


@pytest.mark.parametrize("request_", [MEASURED, SCRIPT, TUNED], ids=["model", "script", "tuned"])
@pytest.mark.parametrize("verb", ["measure", "explain", "tune"])
def test_the_next_command_repeats_the_training_after_every_verb_that_launches_it(request_, verb: str) -> None:
    again = pasted(retyped(verb, request_, np=4, batch=8 if request_.workload else ()))
    assert training(again) == training(request_)
    assert again.np == (4 if verb == "tune" else (4,))


def test_the_next_command_after_estimate_measures_with_its_engine_and_knobs() -> None:
    assert pasted(retyped("estimate", ESTIMATED)) == ESTIMATED
    measured = pasted(retyped("measure", ESTIMATED, np=(1, 4), batch=32, scaling=("strong",)))
    assert training(measured, *AROUND) == training(ESTIMATED, *AROUND, "command") | {"command": ()}
    assert (measured.np, measured.batch, measured.scaling) == ((1, 4), (32,), ("strong",))


def test_the_next_command_leaves_out_options_of_one_run() -> None:
    request = msgspec.structs.replace(
        MEASURED, seed=3, launches=2, precision=0.1, budget_s=9.0, trace=True, folder="out"
    )
    again = pasted(retyped("measure", request))
    assert again == MEASURED
    assert pasted(retyped("measure", request, trace=True)).trace


def test_the_next_command_writes_durations_with_units() -> None:
    request = msgspec.structs.replace(MEASURED, budget_s=33.10440147900226)
    line = retyped("measure", request, **of_run(request))
    assert "--budget 33.1s" in line
    assert pasted(line).budget_s == pytest.approx(33.1)
    assert "--seconds 33.3s" in retyped("estimate", ESTIMATED, seconds=100 / 3)


@pytest.mark.parametrize(
    ("finding", "verb"), [("exposed_communication", "tune"), ("input_bound", "measure"), ("", "measure")]
)
def test_the_next_command_after_explain_follows_its_first_finding(finding: str, verb: str) -> None:
    found = Finding(id=finding, sentence="", evidence={}, change="", gain=None)
    explanation = msgspec.structs.replace(made_explanation.ddp(), findings=(found,) if finding else ())
    line = after_traces(explanation, SCRIPT)
    assert line.split()[1] == verb
    assert training(pasted(line)) == training(SCRIPT)


def test_the_next_command_captures_where_a_finding_needs_it() -> None:
    change = "Find the rank that is late: `scalescope explain --np N --engine horovod -- COMMAND`."
    found = Finding(id="negotiation", sentence="", evidence={}, change=change, gain=None)
    explanation = msgspec.structs.replace(made_explanation.bare_horovod(), findings=(found,))
    again = pasted(after_traces(explanation, SCRIPT))
    assert again.trace
    assert training(again) == training(SCRIPT)


def test_the_next_command_after_traces_of_ours_repeats_how_they_were_captured(tmp_path: Path) -> None:
    request = msgspec.structs.replace(SCRIPT, env={})
    save(Plan(request=request, cwd=str(tmp_path), since_ns=0), tmp_path / "plan.json")
    (tmp_path / "traces" / "ddp-np2").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "traces" / "ddp-np2"):
        assert request_behind(made_explanation.ddp(), [place]) == request
    (tmp_path / "plan.json").unlink()
    known = request_behind(made_explanation.bare_horovod(), [tmp_path])
    assert known.engines == ("horovod",)


def test_what_can_be_neither_launched_nor_tuned_is_measured_next_as_it_is(tmp_path: Path) -> None:
    found = Finding(id="exposed_communication", sentence="", evidence={}, change="", gain=0.5)
    sharded = msgspec.structs.replace(made_explanation.ddp(), engine="fsdp", findings=(found,))
    request = request_behind(sharded, [tmp_path])
    assert request.engines == ()
    assert after_traces(sharded, request) == "scalescope measure --np 1,2 -- COMMAND"


def test_a_script_that_was_mapped_is_measured_as_it_is(scalescope: CommandLine) -> None:
    (scalescope.folder / "train.py").touch()
    request = EstimateRequest(command=("python3", "train.py"), np=(1, 2), cluster="cluster.toml")
    line = after_estimate(request, made_predictions.hopeless(), scalescope.folder)
    assert line == "scalescope measure --np 1,2 -- python3 train.py"
    assert scalescope.in_this_process("measure", "--dry-run", *shlex.split(line)[2:]).stdout


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"trace": True}, "scalescope explain 'a folder'"),
        ({"launches": 2}, "scalescope measure --resume 'a folder' --launches 5"),
        ({}, "scalescope explain mlp --np 4 --engine ddp"),
        ({"pattern": "step"}, "scalescope measure --resume 'a folder' --precision 3%"),
    ],
)
def test_measure_makes_sure_before_it_explains_poor_scaling(changes, part, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = msgspec.structs.replace(MEASURED, **changes)
    line = after_measure(request, made_scalings.measured(), tmp_path / "a folder")
    assert line.startswith(part)
    if "folder" not in part:
        assert training(pasted(line)) == training(request)


@pytest.mark.parametrize(
    "path", ["traces/kineto/gloo_small", "traces/horovod/mpi_cnn.json.gz", "autotune/gloo_fusion_held.csv"]
)
def test_the_next_command_after_a_bare_file_has_a_placeholder_for_the_script(
    scalescope: CommandLine, path: str
) -> None:
    said = scalescope.in_this_process("explain", str(Path(__file__).parents[1] / "data" / path)).stdout
    assert "train.py" not in said
    assert said.splitlines()[-1].startswith("Next: scalescope ")
    assert said.splitlines()[-1].endswith(" -- COMMAND")


def test_the_next_command_after_a_drawn_table_has_a_placeholder_for_the_script(scalescope: CommandLine) -> None:
    table = Path(__file__).parents[2] / "examples" / "data" / "lab11.csv"
    said = scalescope.in_this_process("explain", str(table), "-o", "out", "--formats", "svg").stdout
    assert said.splitlines()[-1].endswith(" -- COMMAND")


def disturbed(study: Path) -> None:
    """Other programs ran next to every launch of a kept study."""
    path = study / "measure" / "measurement.json"
    measured = load(path, Measurement)
    busy = Load(foreign_cores=1.1, cores=2, load_average=3.0)
    runs = tuple(msgspec.structs.replace(run, load=busy) for run in measured.runs)
    save(msgspec.structs.replace(measured, runs=runs), path)


def test_a_study_of_disturbed_launches_says_so_first_and_is_repeated_in_a_new_folder(scalescope: CommandLine) -> None:
    study = scalescope.folder / "study"
    shutil.copytree(Path(__file__).parents[1] / "data" / "kept" / "study", study)
    sure = scalescope.in_this_process("report", "study").stdout
    assert sure.startswith(
        "Use 1 process with batch 64: 2 processes reach 1.29x at an efficiency of 64 %, below the goal of 80 %, "
    ), "the speedup of one process over itself is no reason"
    assert "Next: scalescope study --resume study " in sure
    disturbed(study)
    doubted = scalescope.in_this_process("report", "study").stdout
    assert doubted.startswith("Not certain: other programs took up to 1.1 of 2 cores in 5 of 5 launches. ")
    assert " So far " in doubted.splitlines()[0]
    assert "interval" not in doubted.splitlines()[0].partition(" So far ")[2]
    (follow,) = [line for line in doubted.splitlines() if line.startswith("Next: ")]
    assert follow == "Next: scalescope study mlp --np 1,2 --batch 16,64 --engine ddp --budget 100s"


def test_what_follows_a_study_writes_its_page_again(scalescope: CommandLine) -> None:
    study = scalescope.folder / "study"
    shutil.copytree(Path(__file__).parents[1] / "data" / "kept" / "study", study)
    record = load(study / "study.json", Study)
    done = [msgspec.structs.replace(part, state="done") for part in record.parts]
    save(msgspec.structs.replace(record, parts=tuple(done)), study / "study.json")
    told = scalescope.in_this_process("report", "study").stdout
    assert told.splitlines()[-1] == ("Next: scalescope study --resume study --budget 3m")


def test_what_is_not_shown_names_the_command_that_shows_it(scalescope: CommandLine) -> None:
    """The command with --details would launch everything again."""
    asked = ("estimate", "mlp", "--step-time", "97ms", "--np", "1,2", "--batch", "32", "--cluster", str(CLUSTER))
    told = scalescope.in_this_process(*asked, "-o", "out", "--formats", "html").stdout
    (line,) = [line for line in told.splitlines() if line.startswith("All details: ")]
    command = line.partition(": ")[2]
    assert command == "scalescope report out --details"
    assert "Prediction and how wrong it was" not in told
    assert "Prediction and how wrong it was" in scalescope.in_this_process(*command.split()[1:]).stdout


def test_a_profile_of_another_device_is_refused_with_what_to_give_instead(scalescope: CommandLine) -> None:
    cluster = str(Path(__file__).parents[2] / "examples" / "clusters" / "h200-4x8.toml")
    asked = ("estimate", "mlp", "--np", "1,2", "--batch", "8,16", "--device", "cpu", "--cluster", cluster)
    told = scalescope.in_this_process(*asked, code=2).stderr
    assert "this machine's CPU: give step times of one GPU, --step-time 32=20ms,64=30ms, or a profile" in told
