"""When something goes wrong: one clear line, the right rank named, nothing left running, what was finished kept."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

import needs
from command_line import CommandLine
from scalescope.records.run import Measurement
from scalescope.records.store import load

LAUNCHES = {
    "torchrun": ("ddp.py", ()),
    "mpirun": ("hvd.py", ()),
    "horovodrun": ("hvd.py", ("--knob", "controller=gloo")),
    "horovodrun over mpi": ("hvd.py", ("--launcher", "horovodrun", "--knob", "controller=mpi")),
}


def start(scalescope, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        scalescope.words(*words),
        cwd=scalescope.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )


def wait_for_steps(folder: Path, ranks: int, running: subprocess.Popen[str]) -> None:
    """Until every rank has made some steps."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        records = list(folder.glob("launches/*/agent-*.jsonl"))
        if len(records) == ranks and all(path.read_bytes().count(b'"step"') > 3 for path in records):
            return
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.1)
    raise AssertionError("the ranks did not start")


def wait_for_words(folder: Path, file: str, words: str, running: subprocess.Popen[str]) -> None:
    """Until a rank of the only launch has printed them."""
    deadline = time.monotonic() + 200
    while not any(words in path.read_text() for path in folder.glob(f"launches/*/{file}")):
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < deadline, f"{file} never said {words}"
        time.sleep(0.1)


def pid_of_rank(scalescope, rank: int) -> int:
    return int((scalescope.folder / f"pid.{rank}").read_text())


HANGS = {
    "ddp sleeps": ("ddp.py", "sleep", "about to sleep"),
    "ddp differs": ("ddp.py", "other collective", "about to differ"),
    "horovod sleeps": ("hvd.py", "sleep", "about to sleep"),
}


ALIVE = 'until grep -qs about "$SCALESCOPE_FOLDER/rank1.out"; do echo not yet; sleep 2; done & exec "$@"'
"""A rank with signs of life until the last one hangs: importing torch takes long on a busy machine."""


@pytest.fixture(scope="module")
def hanging(tmp_path_factory, scripts) -> Iterator[dict[str, tuple[CommandLine, subprocess.Popen[str]]]]:
    """Launches that hang, each begun when the one before it hangs, so that they wait for their timeouts together.

    The tests of killed ranks are made in that time."""
    begun = {}
    try:
        for name, (script, fault, last_words) in HANGS.items():
            if script == "hvd.py" and not (find_spec("horovod") and which("mpirun")):
                continue  # its test says so
            lab = CommandLine(tmp_path_factory.mktemp("hanging"))
            command = ("sh", "-c", ALIVE, "sh", sys.executable, str(scripts / script))
            command += ("--fault", fault)
            running = start(lab, "measure", "--np", "2", "--timeout", "15s", "-o", "out", "--", *command)
            begun[name] = lab, running
            wait_for_words(lab.folder / "out", "rank1.out", last_words, running)
        yield begun
    finally:
        for _, running in begun.values():
            if running.poll() is None:
                running.terminate()
                running.communicate(timeout=60)


@pytest.mark.usefixtures("hanging")
@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_killed_rank_is_named_and_all_are_gone(scalescope, scripts, launch: str) -> None:
    needs.openmpi()
    script, words = LAUNCHES[launch]
    if script == "hvd.py":
        needs.horovod()
    launcher = () if "--launcher" in words else ("--launcher", launch)
    command = (sys.executable, str(scripts / script), "--steps", "100000", "--pid-file", "pid")
    running = start(scalescope, "measure", "--np", "2", *launcher, *words, "-o", "out", "--", *command)
    wait_for_steps(scalescope.folder / "out", 2, running)
    os.kill(pid_of_rank(scalescope, 1), signal.SIGKILL)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 1
    assert "rank 1 was killed by SIGKILL (perhaps out of memory) after" in errors
    assert "rank 1 of 2 on" in errors  # its last output
    assert scalescope.processes() == []


def end_of(hanging, name: str) -> list[str]:
    """What a launch that hung said when it was given up; nothing of it is left."""
    lab, running = hanging[name]
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 1, errors
    assert lab.processes() == []
    return errors.splitlines()


def test_a_rank_that_sleeps_is_told_from_the_one_that_waits(hanging) -> None:
    first, *details = end_of(hanging, "ddp sleeps")
    assert "rank 1 hangs after 10 steps" in first
    stack = details.index("  Python stack:")
    assert details.index("    about to sleep") < stack
    assert "ddp.py" in details[stack + 2]
    assert any("rank 0" in line and "waits for the others in a collective" in line for line in details)


def test_ranks_that_hang_in_different_collectives_show_both_stacks(hanging) -> None:
    first, *details = end_of(hanging, "ddp differs")
    assert "all ranks hang after 10 steps" in first
    assert any("in broadcast" in line for line in details)
    assert any("in backward" in line for line in details)


def test_a_horovod_rank_that_sleeps_is_named(hanging) -> None:
    needs.horovod()
    needs.openmpi()
    first, *details = end_of(hanging, "horovod sleeps")
    assert "rank 1 hangs after 10 steps" in first
    assert "    about to sleep" in details


SHORT_ONE_FIRST = "0"
"""Makes an order in which the launch that ends comes before the one that does not."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing_running_and_says_how_to_go_on(scalescope, scripts, number: int) -> None:
    """The first of two launches prints steps and is over; the second is a training that would take an hour."""
    wrapper = scalescope.folder / "run.sh"
    steps = "for step in 1 2 3 4 5 6 7 8; do echo took 0.5 s; done"
    command = f"exec {sys.executable} {scripts / 'ddp.py'} --steps 100000"
    wrapper.write_text(f"#!/bin/sh\nif [ $1 = 1 ]; then {steps}; else {command}; fi\n")
    wrapper.chmod(0o755)
    chosen = ("--batch", "1,2", "--seed", SHORT_ONE_FIRST, "--pattern", r"took (?P<step_s>\S+) s")
    running = start(scalescope, "measure", "--np", "2", *chosen, "-o", "out", "--", str(wrapper), "{batch}")
    second = scalescope.folder / "out" / "launches" / "01-np2-b2"
    deadline = time.monotonic() + 120
    while len(list(second.glob("agent-*.jsonl"))) < 2:
        assert running.poll() is None, running.stderr.read()
        assert time.monotonic() < deadline, "the second launch did not start"
        time.sleep(0.1)
    running.send_signal(number)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130
    assert "interrupted" in errors
    assert "scalescope measure --resume out" in errors
    assert errors.count("\n") == 1
    assert scalescope.processes() == []
    assert len(load(scalescope.folder / "out" / "measurement.json", Measurement).runs) == 1


def test_a_killed_parent_takes_its_launch_along(scalescope, scripts) -> None:
    command = (sys.executable, str(scripts / "ddp.py"), "--steps", "100000")
    running = start(scalescope, "measure", "--np", "2", "-o", "out", "--", *command)
    wait_for_steps(scalescope.folder / "out", 2, running)
    running.kill()
    running.communicate()
    deadline = time.monotonic() + 60
    while scalescope.processes() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert scalescope.processes() == []


def test_a_point_that_fails_keeps_the_others(scalescope) -> None:
    (scalescope.folder / "picky.py").write_text(
        "import sys\nif sys.argv[1] == '4': raise ValueError('planted')\nimport torch\n"
        "w = torch.zeros(2, requires_grad=True); o = torch.optim.SGD([w], lr=1)\n"
        "for _ in range(6): w.sum().backward(); o.step()\n"
    )
    words = ("--np", "1", "--batch", "2,4", "-o", "out")
    done = scalescope("measure", *words, "--", sys.executable, "picky.py", "{batch}", code=1)
    alike = "before its first step, under torchrun and without it alike; 1 of 2 points are kept in"
    assert f"np1-b4: rank 0 ended with exit code 1 {alike}" in done.stderr
    assert "ValueError: planted" in done.stderr
    measurement = load(scalescope.folder / "out" / "measurement.json", Measurement)
    assert [run.point.batch for run in measurement.runs] == [2]
    assert [failure.point.batch for failure in measurement.failures] == [4]


BOMB = """
import sys
class Bomb:
    def __del__(self, abort=os.abort):
        abort()
if rank == last:
    sys.bomb = Bomb()  # goes off when the interpreter takes its modules apart
"""


def test_a_crash_after_the_training_is_a_warning(scalescope, scripts) -> None:
    (scalescope.folder / "crashes.py").write_text((scripts / "ddp.py").read_text() + BOMB)
    done = scalescope("measure", "--np", "2", "--json", "--", sys.executable, "crashes.py")
    (point,) = json.loads(done.stdout)["points"]
    assert point["steps"] == 30
    assert "rank 1 crashed while it was closing down, after its training; its steps still count" in point["warnings"]


def test_a_full_disk_is_said_and_nothing_hangs(scalescope) -> None:
    needs.root()
    needs.programs("mount", "umount")
    (scalescope.folder / "long.py").write_text(
        "import torch\nw = torch.zeros(2, requires_grad=True); o = torch.optim.SGD([w], lr=1)\n"
        "for _ in range(6000): w.sum().backward(); o.step()\n"
    )
    disk = scalescope.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        words = ("--np", "1", "--launcher", "own", "-o", str(disk / "out"))
        done = scalescope("measure", *words, "--", sys.executable, "long.py", code=1)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert "disk is full" in done.stderr
    assert "-o" in done.stderr
    assert "Traceback" not in done.stderr
    assert scalescope.processes() == []


def test_a_taken_port_is_said_when_it_was_asked_for(scalescope) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = scalescope.in_this_process("measure", "mlp", "--np", "2", "--port", str(port), code=2)
        assert done.stderr == f"scalescope: port {port} is taken: choose another with --port, or leave --port out\n"


DIES_ONCE = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(12):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    if first and step == 6 and dist.get_rank() == 1:
        os._exit(3)
"""


def test_ranks_that_torchrun_restarts_count_once(scalescope) -> None:
    (scalescope.folder / "dies_once.py").write_text(DIES_ONCE)
    # torch 2.13 mixes up the two generations of a gloo group when its agent lends them its store
    own_store = ("--env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
    line = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node={np}", "--max-restarts=1")
    done = scalescope("measure", "--np", "2", *own_store, "-o", "out", "--json", "--", *line, "dies_once.py")
    (point,) = json.loads(done.stdout)["points"]
    assert point["steps"] == 12
    assert "2 ranks had to be started again" in " ".join(point["warnings"])
    (run,) = load(scalescope.folder / "out" / "measurement.json", Measurement).runs
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert len(list(scalescope.folder.glob("out/launches/*/agent-*.jsonl"))) == 4


def test_a_launcher_or_a_plain_command_that_is_killed_is_named_with_its_signal(scalescope) -> None:
    (scalescope.folder / "kills.py").write_text(
        "import os, signal, sys, time\n"
        "if os.environ.get('RANK') == '0': os.kill(os.getppid(), signal.SIGKILL)  # torchrun\n"
        "if 'RANK' not in os.environ: os.abort()\n"
        "time.sleep(60)\n"
    )
    command = ("--", sys.executable, "kills.py")
    killed = scalescope("measure", "--np", "2", "-o", "out", *command, code=1).stderr
    assert "np2: the launcher was killed by SIGKILL (perhaps out of memory) before the first step" in killed
    aborted = scalescope("measure", "--np", "1", "--engine", "none", "-o", "plain", *command, code=1).stderr
    assert "none-np1: the command was killed by SIGABRT before the first step" in aborted
    assert scalescope.processes() == []
