"""Verbs in jobs of a real Slurm: submitted with sbatch from the login node, waited for, stopped and collected."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from scalescope.schedulers.slurm import SLURM

MODEL = ("mlp", "--model-arg", "width=64", "--steps", "8")


class Login:
    """The login node, in a folder that all nodes see."""

    def __init__(self, slurm: Any, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder

    def words(self, *words: str) -> list[str]:
        return CommandLine(self.folder).words(*words)

    def __call__(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = self.slurm.run(self.words(*words), cwd=self.folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, f"exit code {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}"
        return done

    def started(self, *words: str) -> subprocess.Popen[str]:
        """A command that waits."""
        command = self.slurm.command("controller", self.words(*words))
        environment = {**os.environ, **self.slurm.env}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
        )

    def slurm_says(self, *words: str) -> str:
        return str(self.slurm.run(list(words), cwd=self.folder, capture_output=True, text=True).stdout)

    def jobs(self) -> list[str]:
        """Jobs that were submitted here and have not ended."""
        listed = [
            line.split(maxsplit=1) for line in self.slurm_says("squeue", "--noheader", "--format=%i %Z").splitlines()
        ]
        return [job for job, folder in listed if folder == str(self.folder)]

    def job(self, folder: str = "out", number: int = -1) -> str:
        """The id of a submitted job."""
        return str(json.loads((self.folder / folder / "submission.json").read_bytes())["jobs"][number]["id"])

    def nodes(self, job: str) -> list[str]:
        """The nodes that a running job has."""
        listed = re.findall(r"\sNodeList=(\S+)", self.slurm_says("scontrol", "show", "job", job))
        return self.slurm_says("scontrol", "show", "hostnames", listed[0]).split()

    def state(self, job: str) -> str:
        return re.findall(r"JobState=(\w+)", self.slurm_says("scontrol", "show", "job", job))[0]

    def wait_for(self, is_true: Callable[[], Any], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def runs(self, folder: str = "out") -> int:
        path = self.folder / folder / "runs.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def login(slurm: Any, tmp_path: Path) -> Iterator[Login]:
    node = Login(slurm, tmp_path)
    yield node
    node.slurm_says("scancel", *node.jobs())
    node.wait_for(lambda: not node.jobs())


@pytest.fixture(scope="module", autouse=True)
def late(slurm: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    """A job that will reach its time limit, which is a minute at least: it begins before the tests of this file."""
    node = Login(slurm, tmp_path_factory.mktemp("late"))
    (node.folder / "site.toml").write_text('time = "1m"\n')
    script = str(Path(__file__).parents[1] / "scripts" / "ddp.py")
    asked = ("--np", "1", "--per-node", "1", "--submit", "slurm", "--no-wait", "--steps", "40", "--launches", "60")
    command = ("--", sys.executable, script, "--steps", "40", "--pause", "0.2")
    node("measure", *asked, "--site", "site.toml", "-o", "out", *command)
    yield node
    node.slurm_says("scancel", *node.jobs())


def test_one_job_measures_all_numbers_of_nodes_with_a_torchrun_on_each(login: Login, scripts: Path) -> None:
    """In a folder with blanks and quotes; set-up, container and a secret reach the ranks, no file that others read."""
    out = login.folder / "it's 100%"
    script = str(scripts / "ddp.py")
    names = ("TOKEN", "BOX", "OMP_NUM_THREADS")
    show = f"import os, runpy; names = {names}; print(*map(os.environ.get, names)); runpy.run_path({script!r})"
    site = login.folder / "site.toml"
    site.write_text('setup = ["export PLACE=box"]\ncontainer = "sh -c \'BOX=in-a-$PLACE exec \\"$@\\"\' container"\n')
    asked = (
        "--nodes",
        "1,2",
        "--per-node",
        "2",
        "--steps",
        "12",
        "--env",
        "TOKEN=sec'ret",
        "--env",
        "OMP_NUM_THREADS=3",
        "-o",
        str(out),
    )
    job = ("--submit", "slurm", "--site", "site.toml")
    done = login("measure", "--json", *job, *asked, "--", sys.executable, "-c", show)
    measured = json.loads(done.stdout)
    points = {point["np"]: point for point in measured["points"]}
    assert sorted(points) == [2, 4]
    assert {np: (point["nodes"], point["engine_seen"]) for np, point in points.items()} == {
        2: (1, "ddp"),
        4: (2, "ddp"),
    }
    assert points[4]["speedup"]["steady"]["value"] > 0  # relative to one node
    assert measured["launcher"] == {"ddp": "srun-torchrun"}
    command = (out / points[4]["folder"] / "command.txt").read_text()
    assert "--ntasks-per-node=1" in command
    assert "--rdzv-backend c10d" in command
    assert (out / points[4]["folder"] / "rank3.out").read_text().startswith("sec'ret in-a-box 3\n")
    readable = [path for path in out.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert [path for path in readable if b"sec'ret" in path.read_bytes() and path.suffix != ".out"] == []
    assert re.search(r"Job \d+, 2 nodes; script: .*job\.sh\. Ctrl-C cancels it\.", done.stderr)
    assert re.search(r"Job \d+ runs on n\[\d-\d\]\.", done.stderr)
    assert re.search(r"^np4: .* a step", done.stderr, re.MULTILINE)
    # Collected once more, with nothing submitted, and the script is one that a person can submit.
    again = login("measure", "--resume", str(out), "--json")
    assert json.loads(again.stdout)["points"] == measured["points"]
    assert len(json.loads((out / "submission.json").read_bytes())["jobs"]) == 1


def test_a_job_for_every_point_adds_to_one_curve_with_plain_srun(login: Login) -> None:
    asked = ("--np", "1,3", "--per-node", "2", "--per-point", "--launcher", "srun", "-o", "out")
    done = login("measure", *MODEL, "--json", "--submit", "slurm", *asked)
    points = json.loads(done.stdout)["points"]
    assert {(point["np"], point["nodes"]) for point in points} == {(1, 1), (3, 2)}
    assert {point["threads_per_rank"] for point in points} == {1}
    jobs = json.loads((login.folder / "out" / "submission.json").read_bytes())["jobs"]
    assert [(job["what"], job["nodes"], job["ended"]["word"]) for job in jobs] == [
        ("np 1", 1, "COMPLETED"),
        ("np 3", 2, "COMPLETED"),
    ]
    three = next(point for point in points if point["np"] == 3)
    assert "srun --ntasks 3" in (login.folder / "out" / three["folder"] / "command.txt").read_text()


def test_the_line_of_a_course_with_its_library_and_exports_is_submitted_and_collected_later(
    login: Login, scripts: Path
) -> None:
    """LD_PRELOAD=libmpi.so srun -n N --export ALL,MV2_...=...: as the fourth seed has it."""
    library = next(Path("/usr/lib").glob("*/libm.so.6"))
    exports = "ALL,MV2_USE_CUDA=1,MV2_USE_GDR=0,MV2_CUDA_BLOCK_SIZE=8388608,MV2_HYBRID_BINDING_POLICY=spread"
    first = "MASTER_ADDR=$(scontrol show hostnames $SLURM_STEP_NODELIST | head -1) MASTER_PORT=29517"
    show = "echo $MV2_CUDA_BLOCK_SIZE $LD_PRELOAD >seen.$SLURM_PROCID"
    script = f"{show}; RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS {first} exec {sys.executable} {scripts / 'ddp.py'}"
    line = (f"LD_PRELOAD={library}", "srun", "-n", "{np}", "--export", exports, "sh", "-c", script)
    asked = ("--np", "2", "--per-node", "1", "--submit", "slurm", "--no-wait", "--steps", "12", "-o", "out")
    done = login("measure", "--json", *asked, "--", *line)
    told = json.loads(done.stdout)
    assert (told["kind"], told["verb"], [job["ended"] for job in told["jobs"]]) == ("submission", "measure", [None])
    assert "Next: scalescope measure --resume out" in done.stderr
    collected = login("measure", "--resume", "out", "--json")
    (point,) = json.loads(collected.stdout)["points"]
    assert (point["np"], point["nodes"], point["engine_seen"], point["threads_per_rank"]) == (2, 2, "ddp", None)
    for rank in range(2):
        assert (login.folder / f"seen.{rank}").read_text().split() == ["8388608", str(library)]


def test_a_capture_over_two_nodes_is_explained_from_the_login_node(login: Login) -> None:
    asked = ("--np", "2", "--per-node", "1", "--submit", "slurm", "--json", "-o", "out")
    done = login("explain", "mlp", "--model-arg", "width=64", *asked)
    told = json.loads(done.stdout)
    assert (told["kind"], told["ranks"]) == ("run folder", 2)
    hosts = [path.name.split("-")[1] for path in (login.folder / "out" / "traces").glob("*/agent-*.jsonl")]
    assert len(hosts) == len(set(hosts)) == 2
    again = login("explain", "--resume", "out", "--json")
    assert json.loads(again.stdout)["accounting"] == told["accounting"]


def test_what_slurm_refuses_is_told_in_its_words_with_the_setting_and_leaves_nothing(login: Login) -> None:
    (login.folder / "site.toml").write_text('partition = "gpus"\n')
    asked = ("--np", "1", "--per-node", "1", "--submit", "slurm", "--site", "site.toml", "-o", "out")
    refused = login("measure", *MODEL, *asked, code=2).stderr
    assert "Slurm refused the job (" in refused
    assert "nvalid partition" in refused
    assert "change partition in the --site file" in refused
    assert refused.count("\n") == 1
    assert not (login.folder / "out").exists()
    (login.folder / "site.toml").write_text("")
    never = login("measure", *MODEL, "--nodes", "9", *asked[2:], code=2).stderr
    assert re.search(r"Slurm would never start job \d+ \(Partition\w+\), so it was cancelled: change --nodes", never)
    (login.folder / "site.toml").write_text('extra = ["--frobnicate"]\n')
    unknown = login("measure", *MODEL, *asked, code=2).stderr  # in the same folder, where nothing ran
    assert "extra in the --site file" in unknown
    assert not login.jobs()


def test_an_error_in_the_job_is_told_as_if_it_had_happened_here(login: Login) -> None:
    asked = ("--np", "1", "--per-node", "1", "--submit", "slurm")
    failed = login("measure", *asked, "-o", "one", "--", sys.executable, "-c", "raise ValueError('planted')", code=1)
    assert re.search(r"\(job \d+ on n\d\)", failed.stderr)
    assert "planted" in failed.stderr
    nowhere = login.slurm.lab.network.replace(".0/24", ".99")  # an address of no host
    alone = ("--np", "2", *asked[2:], "--launcher", "srun", "--env", f"MASTER_ADDR={nowhere}", "--timeout", "6s")
    lost = login("measure", *MODEL, *alone, "-o", "three", code=1).stderr
    assert re.search(rf"np2-b32: ranks could not connect to {nowhere}:\d+ for \d+ s, where they meet: check", lost)
    (login.folder / "site.toml").write_text('setup = ["echo no such module >&2; exit 3"]\n')
    broken = login("measure", *MODEL, *asked, "--site", "site.toml", "-o", "two", code=1).stderr
    assert re.search(r"scalescope: job \d+ ended with FAILED on n\d: see two/job-\d+\.out\nno such module", broken)


def test_ctrl_c_cancels_the_job_and_a_closed_terminal_leaves_it(login: Login) -> None:
    asked = ("--np", "1", "--per-node", "1", "--submit", "slurm", "--steps", "100000", "-o")
    command = ("--", sys.executable, "-c", "import time; time.sleep(1000)")
    waiting = login.started("measure", *asked, "out", *command)
    login.wait_for(
        lambda: (login.folder / "out" / "submission.json").exists() and login.state(login.job()) == "RUNNING"
    )
    waiting.send_signal(signal.SIGINT)
    said, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    resume = "what was finished is kept; resume with: scalescope measure --resume out"
    assert f"interrupted: cancelled job {login.job()}; {resume}" in said
    login.wait_for(lambda: login.state(login.job()) == "CANCELLED")
    left = login.started("measure", *asked, "left", *command)
    login.wait_for(lambda: (login.folder / "left" / "submission.json").exists() and login.state(login.job("left")))
    left.terminate()
    said, _ = left.communicate(timeout=60)
    assert f"left in the queue: job {login.job('left')}; collect with: scalescope measure --resume left" in said
    assert login.state(login.job("left")) in ("PENDING", "RUNNING")


def test_jobs_that_wait_too_long_are_cancelled_with_the_reason_and_can_be_submitted_again(login: Login) -> None:
    """A job for each of two points: the second attempt of both counts, not how the first one ended."""
    blocking = login.slurm_says("sbatch", "--parsable", "--nodes=4", "--wrap", "sleep 300").strip()
    login.wait_for(lambda: login.state(blocking) == "RUNNING")
    asked = ("--np", "1,2", "--per-node", "1", "--per-point", "--submit", "slurm", "--patience", "2s", "-o", "out")
    refused = login("measure", *MODEL, *asked, code=1).stderr
    assert re.search(r"job \d+ waited longer than --patience .* \((Resources|Priority)\) and was cancelled", refused)
    assert [login.state(login.job(number=number)) for number in (0, 1)] == ["CANCELLED"] * 2
    login.slurm_says("scancel", blocking)
    points = json.loads(login("measure", "--resume", "out", "--json").stdout)["points"]
    assert {(point["np"], point["nodes"]) for point in points} == {(1, 1), (2, 2)}
    jobs = json.loads((login.folder / "out" / "submission.json").read_bytes())["jobs"]
    scripts = [(job["script"], job["ended"]["word"]) for job in jobs]
    assert scripts == [(f"job-np{np}.sh", word) for word in ("CANCELLED", "COMPLETED") for np in (1, 2)]


def test_a_folder_that_nodes_do_not_see_is_named(login: Login) -> None:
    """A folder that the login node alone has: its nodes find no place for the job's output."""
    private = login.slurm.private
    asked = ("--np", "1", "--per-node", "1", "--submit", "slurm", "-o", str(private / "out"))
    refused = login("measure", *MODEL, *asked, code=1).stderr
    assert "choose a folder that the nodes share with -o" in refused


def collected(login: Login, folder: str, word: str) -> str:
    """What the command that collects says of a job that ended like this; it waits for its end."""
    said = login("measure", "--resume", folder, code=1).stderr
    assert word in said
    return said


def test_jobs_that_are_cancelled_or_lose_a_node_or_a_link_keep_what_was_finished(login: Login, scripts: Path) -> None:
    """A job that is cancelled, one whose slurmd is killed, and one of two nodes whose link goes down."""
    slurm, command = login.slurm, ("--", sys.executable, str(scripts / "ddp.py"), "--steps", "40")
    asked = ("--per-node", "1", "--submit", "slurm", "--no-wait", "--steps", "40", "--timeout", "8s")
    for folder in ("cancelled", "lost"):
        login("measure", "--np", "1", *asked, "--launches", "60", "-o", folder, *command)
    login("measure", "--np", "2", *asked, "--launches", "2", "-o", "cut", *command, "--pause", "0.2")
    for folder in ("cancelled", "lost"):
        login.wait_for(lambda folder=folder: login.runs(folder) >= 1)
    login.slurm_says("scancel", login.job("cancelled"))
    (node,) = login.nodes(login.job("lost"))
    slurm.kill_node(node)
    login.slurm_says("scontrol", "update", f"nodename={node}", "state=down", "reason=killed")  # or after 5 minutes
    login.wait_for(lambda: len(list((login.folder / "cut" / "launches" / "02-np2").glob("agent-*"))) == 2)
    cut = login.nodes(login.job("cut"))[-1]
    slurm.lab.plug(cut, into=False)
    try:
        for folder, word in (("cancelled", "was cancelled"), ("lost", "NODE_FAIL")):
            told = collected(login, folder, word)
            assert f"what was finished is kept; resume with: scalescope measure --resume {folder}" in told
        printed = login.folder / "cancelled" / f"job-{login.job('cancelled')}.out"
        assert (ending := SLURM.last_words(printed.read_text())) is not None
        assert ending.cancelled
        shown = " ".join(login("measure", "--resume", "cut").stdout.split())
        assert "np2: a launch failed and was left out: no progress for" in shown
    finally:
        slurm.lab.plug(cut, into=True)
        slurm.start_node(node)
        login.slurm_says("scontrol", "update", f"nodename={node}", "state=resume")
    assert login.runs("cut") == 1
    login.wait_for(lambda: not login.jobs())  # the allocation is given back when the node answers again
    (point,) = json.loads(login("measure", "--resume", "cut", "--launches", "2", "--json").stdout)["points"]
    assert (point["np"], point["launches"]) == (2, 2)


def test_a_job_that_reached_its_time_limit_is_resumed_in_another_one(late: Login) -> None:
    said = collected(late, "out", "reached its time limit of 60 s")
    assert "what was finished is kept; resume with: scalescope measure --resume out" in said
    kept = late.runs()
    assert 1 <= kept < 60
    done = late("measure", "--resume", "out", "--launches", str(kept + 1), "--json")
    assert json.loads(done.stdout)["points"][0]["launches"] == kept + 1
    assert len(json.loads((late.folder / "out" / "submission.json").read_bytes())["jobs"]) == 2
