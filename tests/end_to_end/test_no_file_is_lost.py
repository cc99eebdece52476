"""No file of a user's is lost, whatever -o names; and two at once do not meet."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import CommandLine
from scalescope.errors import UsageError
from scalescope.estimation.probe_ranks import ProbeTask
from scalescope.jobs.folders import emptied, result_folder
from scalescope.jobs.rank_program import RankProgram, run_ranks
from scalescope.records.job import Knobs
from scalescope.records.request import MeasureRequest, Plan
from scalescope.records.store import save
from scalescope.records.tuning import TuneRequest
from scalescope.tuner.journal import TunePlan

DATA = Path(__file__).parents[2] / "examples" / "data"
TRACES = sorted((Path(__file__).parents[1] / "data" / "traces" / "kineto" / "gloo_small").iterdir())
RUN = {
    "measure": ("measure", "mlp", "-o", "mine"),
    "tune": ("tune", "mlp", "-o", "mine"),
    "probe": ("probe", "-o", "mine"),
    "estimate": ("estimate", "mlp", "-o", "mine"),
    "explain": ("explain", str(DATA / "lab11.csv"), "-o", "mine"),
    "explain a command": ("explain", "-o", "mine", "--", sys.executable, "train.py"),
}
FILES = {
    "training/model.pt": "weights",
    "profile/notes.txt": "mine",
    "gloo-2-1/data.bin": "mine",
    "plan.json": '{"kind": "roadmap", "version": 1, "quarters": 4}',
    "scaling.csv": "np,seconds\n1,2\n",
    "cluster.toml": "nodes = 64\n",
    "tuned.yaml": "ddp: {bucket_cap_mb: 3}\n",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(scalescope: CommandLine, *words: str) -> str:
    """The one line that is said; nothing in the user's folder changes."""
    before = contents(scalescope.folder)
    said = scalescope.in_this_process(*words, code=2).stderr
    assert contents(scalescope.folder) == before
    assert said.count("\n") == 1, said
    return said


@pytest.mark.parametrize("words", RUN.values(), ids=RUN.keys())
def test_a_folder_with_files_of_the_user_is_left_as_it_is(scalescope: CommandLine, words: tuple[str, ...]) -> None:
    for name, text in FILES.items():
        path = scalescope.folder / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (scalescope.folder / "train.py").touch()
    assert f"scalescope {words[0]} did not write: choose another folder with -o" in refused(scalescope, *words)


@pytest.mark.parametrize("verb", ["measure", "tune"])
@pytest.mark.parametrize("own", ["our own of the other verb", "the user's"])
def test_a_plan_of_another_kind_is_not_overwritten(scalescope: CommandLine, verb: str, own: str) -> None:
    plans = {
        "measure": TunePlan(request=TuneRequest(np=2), cwd=str(scalescope.folder)),
        "tune": Plan(request=MeasureRequest(), cwd=str(scalescope.folder), since_ns=0),
    }
    with result_folder(verb, scalescope.folder / "out") as folder:  # ours, and then someone put another plan there
        save(plans[verb], folder / "plan.json")
        if own == "the user's":
            (folder / "plan.json").write_text("buy milk")
    assert "move it away, or choose another folder with -o" in refused(scalescope, verb, "mlp", "-o", "out")
    assert "plan.json" in refused(scalescope, verb, "--resume", "out")


def test_a_verb_does_not_write_into_the_results_of_another(scalescope: CommandLine) -> None:
    with result_folder("measure", scalescope.folder / "mine"):
        (scalescope.folder / "mine" / "runs.jsonl").touch()
    assert "holds results of scalescope measure" in refused(scalescope, *RUN["tune"])
    assert "holds results of scalescope measure" in refused(scalescope, *RUN["explain"])


def test_a_folder_that_the_user_put_among_ours_survives(scalescope: CommandLine) -> None:
    with result_folder("tune", scalescope.folder / "out") as folder:
        (folder / "training").mkdir()
        (folder / "training" / "model.pt").write_text("weights")
    (scalescope.folder / "train.py").touch()
    command = ("--", sys.executable, "train.py")  # it is never started
    said = scalescope.in_this_process("tune", "--np", "2", "-o", "out", *command, code=2).stderr
    assert "training holds files that scalescope did not write: move it away" in said
    assert (folder / "training" / "model.pt").read_text() == "weights"


def test_ranks_do_not_empty_a_folder_of_the_user(tmp_path: Path) -> None:
    """As profile and probe run them, into folders such as DIR/profile."""
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "notes.txt").write_text("mine")
    program = RankProgram(
        module="scalescope.estimation.probe_ranks",
        task=ProbeTask(engine="ddp", knobs={}, device="cpu", rounds=1, seconds=1.0, sizes=(4,)),
        np=1,
        knobs=Knobs(engine="ddp"),
        folder=tmp_path / "profile",
        writes="probe-rank*.jsonl",
    )
    with pytest.raises(UsageError, match="profile holds files that scalescope did not write: move it away"):
        run_ranks(program)
    assert contents(tmp_path) == {"profile/notes.txt": b"mine"}


TUNES_ITSELF = """
import sys, torch, scalescope, torch.distributed as dist
from scalescope.errors import UsageError
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for place in sys.argv[1:]:
    try:
        with scalescope.tuning(model, folder=place):
            print("entered", place)
    except UsageError as problem:
        print(problem)
"""


def test_tuning_in_a_script_keeps_the_users_files(tmp_path: Path) -> None:
    (tmp_path / "mine" / "training").mkdir(parents=True)
    (tmp_path / "mine" / "training" / "model.pt").write_text("weights")
    with result_folder("tune", tmp_path / "ours"):
        emptied(tmp_path / "ours" / "training", "launch")
        (tmp_path / "ours" / "plan.json").write_text("buy milk")
    (tmp_path / "train.py").write_text(TUNES_ITSELF)
    before = contents(tmp_path)
    words = [sys.executable, "train.py", "mine", "ours"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    mine, ours = done.stdout.splitlines()
    assert "mine holds files that scalescope tune did not write" in mine
    assert "plan.json is no 'tune_plan'" in ours
    assert contents(tmp_path) == before


def test_explain_replaces_nothing_that_it_did_not_write(scalescope: CommandLine) -> None:
    shutil.copy(DATA / "lab11.csv", scalescope.folder / "scaling.csv")  # a name that explain writes too
    assert "did not write" in refused(scalescope, "explain", "scaling.csv", "-o", ".")
    for path in TRACES:
        shutil.copy(path, scalescope.folder)
    one, other = (path.name for path in TRACES)
    assert "choose another name" in refused(scalescope, "explain", "--export", one, other)
    for _ in range(2):
        scalescope.in_this_process("explain", one, other, "--export", "all.json")
    assert json.loads((scalescope.folder / "all.json").read_bytes())["traceEvents"]


def test_two_probes_at_once_both_finish(scalescope: CommandLine) -> None:
    words = scalescope.words("probe", "--slots", "2", "--seconds", "0.1s", "--backend", "gloo")
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(words, cwd=scalescope.folder, **pipes) for _ in range(2)]
    said = [running.communicate(timeout=120)[1] for running in both]
    assert [running.returncode for running in both] == [0, 0], said
    folders = list((scalescope.folder / "results").iterdir())
    assert len(folders) == 2
    assert all((folder / "cluster.toml").exists() and folder.name.startswith("probe-") for folder in folders)


def test_a_probe_does_not_disturb_another_or_replace_its_cluster(scalescope: CommandLine) -> None:
    with result_folder("probe", scalescope.folder / "mine") as folder:
        assert "another scalescope is writing into" in refused(scalescope, *RUN["probe"])
        (folder / "cluster.toml").write_text("nodes = 64\n")
    assert "already holds a probe: choose another folder" in refused(scalescope, *RUN["probe"])


def test_a_refused_request_leaves_no_folder(scalescope: CommandLine) -> None:
    assert "no backend" in refused(scalescope, "probe", "--backend", "smoke")
    assert list(scalescope.folder.glob("results/*")) == []
