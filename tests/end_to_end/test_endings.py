"""However scalescope ends, what it started ends too; and what is kept tells no secrets."""

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from command_line import WITHOUT_PICTURES, CommandLine
from scalescope.measurement.fingerprint import fingerprint_here
from scalescope.records.request import MeasureRequest, Plan
from scalescope.records.run import Measurement
from scalescope.records.store import load, save
from scalescope.records.tuning import TuneRequest
from scalescope.tuner.journal import TunePlan

STEPS = "for step in 1 2 3 4 5 6 7 8; do echo took 0.5 s; done"
OWN = ("--np", "1", "--launcher", "own", "--pattern", r"took (?P<step_s>\S+) s", "-o", "out")
"""Options for a launch line without torch, which starts at once."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[CommandLine]:
    """The command line; should a test fail, nothing of it is left."""
    scalescope = CommandLine(tmp_path)
    yield scalescope
    for pid in scalescope.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until(is_so, running: subprocess.Popen | None = None) -> None:
    deadline = time.monotonic() + 90
    while not is_so():
        assert running is None or running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_scalescope_takes_the_users_own_launch_line_along(lab: CommandLine) -> None:
    needs.programs("sh", "sleep")
    (lab.folder / "run.sh").write_text("sleep 1000 & sleep 1000 & echo begins; wait\n")
    words = lab.words("measure", *OWN, "--", "sh", "run.sh")
    running = subprocess.Popen(words, cwd=lab.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(lab.processes()) == 3, running)
    running.kill()
    running.wait()
    wait_until(lambda: not lab.processes())


def test_a_closed_terminal_ends_everything_and_keeps_what_is_finished(lab: CommandLine) -> None:
    needs.programs("sh", "sleep")
    second = "trap '' HUP; sleep 1000 & echo waits; wait"
    (lab.folder / "run.sh").write_text(f"if [ -e once ]; then {second}; else touch once; {STEPS}; fi\n")
    terminal, its_end = os.openpty()

    def take_the_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a test run under nohup ignores it

    running = subprocess.Popen(
        lab.words("measure", *OWN, "--launches", "2", "--", "sh", "run.sh"),
        cwd=lab.folder,
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
        preexec_fn=take_the_terminal,
    )
    os.close(its_end)
    os.set_blocking(terminal, False)

    def waits() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 65536)  # or what it prints would stop it
        return any("waits" in path.read_text() for path in lab.folder.glob("out/launches/02-*/launcher.out"))

    wait_until(waits, running)
    os.close(terminal)
    assert running.wait(60) == 130
    assert lab.processes() == []
    assert len(load(lab.folder / "out" / "measurement.json", Measurement).runs) == 1


def plan_of(verb: str, folder: Path) -> Plan | TunePlan:
    """What a measurement or a search set out to do that is about to go on with a launch that fails."""
    here = fingerprint_here(("false",), "auto")
    if verb == "measure":
        request = MeasureRequest(command=("false",), np=(1,), launcher="own")
        return Plan(request=request, cwd=str(folder), since_ns=0, fingerprint=here)
    asked = TuneRequest(command=("false",), np=2, launcher="own", method="offline")
    return TunePlan(request=asked, cwd=str(folder), fingerprint=here)


@pytest.mark.parametrize("verb", ["measure", "tune"])
def test_resuming_ends_orphans_of_its_folder_and_no_others(lab: CommandLine, verb: str) -> None:
    needs.programs("sleep")
    save(plan_of(verb, lab.folder), lab.folder / "out" / "plan.json")
    started = []
    for name in ("out/launches/01", "out2/launches/01"):
        environment = {**os.environ, "SCALESCOPE_FOLDER": str(lab.folder / name)}
        started.append(subprocess.Popen(["sleep", "1000"], env=environment))
    orphan, other = started
    try:
        wait_until(lambda: len(lab.processes()) == 2)
        lab.in_this_process(verb, "--resume", "out", code=1)
        assert orphan.wait(30) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("words", [("estimate", "mlp", "--np", "1"), ("probe", "--slots", "2")], ids=lambda w: w[0])
def test_a_profile_and_a_probe_without_progress_time_out(lab: CommandLine, words: tuple[str, ...]) -> None:
    """Importing torch takes longer than this, so that there is no progress in time."""
    done = lab.in_this_process(*words, "--timeout", "1s", "-o", "out", code=1)
    assert "nothing happened for 1 s: raise --timeout" in done.stderr
    assert lab.processes() == []


SECRET = "hunter2 and 'more'"
NEEDS_IT = f"""
import os
from pathlib import Path
assert os.environ["TOKEN"] == {SECRET!r}
process, seen = os.getpid(), []
while "measure" not in (words := Path(f"/proc/{{process}}/cmdline").read_text()):  # what the user typed
    seen.append(words)
    process = int(Path(f"/proc/{{process}}/stat").read_text().rpartition(")")[2].split()[1])
Path(f"seen{{os.environ['RANK']}}").write_text("\\n".join(seen))
for _ in range(8):
    print("took 0.5 s", flush=True)
"""


def test_values_of_env_reach_ranks_and_are_not_seen_elsewhere(lab: CommandLine) -> None:
    (lab.folder / "train.py").write_text(NEEDS_IT)
    words = ("--np", "2", "--engine", "ddp", *OWN[4:], "--env", f"TOKEN={SECRET}")
    first = lab("measure", *words, "--oversubscribe", "--", sys.executable, "train.py")
    assert "TOKEN=***" in lab.in_this_process("measure", *words[:-4], *words[-2:], "--dry-run", "--", "true").stdout
    then = lab("measure", "--resume", "out", "--launches", "2")
    page = lab.in_this_process("report", "out")
    assert len(load(lab.folder / "out" / "measurement.json", Measurement).runs) == 2
    assert "hunter2" not in first.stdout + first.stderr + then.stdout + then.stderr + page.stdout
    seen = [(lab.folder / f"seen{rank}").read_text() for rank in range(2)]
    assert all("torch.distributed.run" in processes and "hunter2" not in processes for processes in seen)
    files = [path for path in (lab.folder / "out").rglob("*") if path.is_file()]
    assert {"plan.json", "scaling.json", "report.html", "command.txt", "rank1.out"} <= {path.name for path in files}
    holding = [path for path in files if b"hunter2" in path.read_bytes()]
    assert [path.name for path in holding] == ["env.json"]
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600
    assert any("TOKEN=***" in path.read_text() for path in files if path.name == "command.txt")
    holding[0].unlink()
    said = lab.in_this_process("measure", "--resume", "out", "--launches", "3", code=2).stderr
    assert "env.json does not give the values of --env TOKEN" in said


MACOS = """
import os, sys
import scalescope.cli
scalescope.cli.run(["measure", "--np", "1", "--dry-run", "--", "true"])  # loads what libraries make of the real system
sys.platform = "darwin"
for name in ("pidfd_open", "sched_getaffinity", "eventfd"):
    delattr(os, name)
scalescope.cli.main()
"""
"""As far as it can be seen here: without the functions that only Linux has."""


def test_a_system_that_is_not_linux_is_refused_in_one_line(lab: CommandLine) -> None:
    words = [sys.executable, "-c", MACOS, "measure", "--np", "1", "--", "true"]
    done = subprocess.run(words, cwd=lab.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("scalescope: ranks are started on Linux only, and this is darwin")
    assert done.stderr.count("\n") == 1


def test_arguments_that_are_not_utf8_are_told_in_one_line(lab: CommandLine) -> None:
    words = [os.fsencode(word) for word in lab.words("measure", "--np", "1", "--", "python", "train.py")]
    done = subprocess.run([*words, b"--name", b"caf\xe9"], cwd=lab.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr == "scalescope: the argument 'caf\\udce9' is not UTF-8: rename the file or retype it\n"


OLD_KERNEL = f"import os; del os.pidfd_open; {WITHOUT_PICTURES}"


def test_a_kernel_without_pidfds_is_supported(lab: CommandLine) -> None:
    needs.programs("sh")
    words = [sys.executable, "-c", OLD_KERNEL, "measure", *OWN, "--launches", "1", "--", "sh", "-c", STEPS]
    done = subprocess.run(words, cwd=lab.folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(load(lab.folder / "out" / "measurement.json", Measurement).runs) == 1
