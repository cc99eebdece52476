"""Processes of ours are found and ended, and no others, on new kernels and on old ones."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from far_host import FarHost
from scalescope.errors import UsageError
from scalescope.launchers.processes import (
    Endings,
    Mark,
    carries,
    carrying,
    end_marked,
    of_folder,
    of_launch,
    signal_marked,
    wait_by_looking,
)
from scalescope.launchers.runner import check_system

MARK = of_launch(f"launch-of-test-{os.getpid()}")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that carries the mark."""
    process = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK.name: MARK.value})
    while not carries(process.pid, MARK):  # until it has replaced the fork of this process
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


@pytest.mark.launches
def test_processes_with_another_mark_are_left_alone(sleeper) -> None:
    for other in (of_launch(MARK.value[:-1]), of_launch(f"{MARK.value}s"), of_folder("/")):
        signal_marked(sleeper.pid, other, signal.SIGKILL)
    assert sleeper.poll() is None
    assert list(carrying(MARK)) == [sleeper.pid]
    assert end_marked(MARK) == 1
    assert sleeper.wait(30) == -signal.SIGKILL
    signal_marked(sleeper.pid, MARK, signal.SIGKILL)  # it has ended, and its id is free


@pytest.mark.launches
def test_without_pidfds_it_goes_the_same(sleeper, monkeypatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    signal_marked(sleeper.pid, of_launch("another"), signal.SIGKILL)
    endings = Endings([sleeper])
    assert endings.next(0.05) == []
    assert end_marked(MARK) == 1
    assert endings.next(30) == [sleeper]
    assert endings.left == []
    endings.close()


@pytest.mark.launches
def test_waiting_by_looking_ends_with_the_first_child(sleeper) -> None:
    wait_by_looking([sleeper], 0.05)
    assert sleeper.poll() is None
    with subprocess.Popen(["sleep", "0.1"]) as short:
        wait_by_looking([sleeper, short], 60)
        assert short.returncode == 0


@pytest.mark.launches
@pytest.mark.parametrize("mark", [of_launch("01-ddp-np2 'x'"), of_folder("/results/a.b [c]*$ ^\\d")], ids=str)
def test_grep_finds_what_python_finds(mark: Mark, tmp_path: Path) -> None:
    end = "/launches/1" if mark.is_folder else ""
    texts = {
        f"A=1\0{mark.name}={mark.value}{end}\0B=2\0": True,
        f"A=1\0X{mark.name}={mark.value}{end}\0": False,
        f"A={mark.name}={mark.value}{end}\0": False,
        f"{mark.name}={mark.value}2{end}\0": False,
        f"{mark.name}={mark.value.replace('.', '-')[:-1]}{end}\0": False,
    }
    for text, expected in texts.items():
        (tmp_path / "environ").write_text(text)
        found = subprocess.run(["sh", "-c", f"grep {mark.for_grep} {tmp_path}/environ"], check=False)
        assert mark.is_in(text.encode()) == expected == (found.returncode == 0), text


def test_other_systems_than_linux_are_refused() -> None:
    check_system("linux")
    with pytest.raises(UsageError, match=r"this is darwin: run it on a Linux machine"):
        check_system("darwin")


RUN = """
import os, signal, sys
from pathlib import Path
from scalescope.launchers.runner import run
from scalescope.records.job import Command, Host, Job
from scalescope.records.job import Knobs

folder, ssh, launch = sys.argv[1:]

class Watch:
    def tick(self):
        if Path(folder, "die").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return 0
    def stalled(self, seconds): return "stalled", ""

job = Job(command=(), np=1, knobs=Knobs(engine="ddp"), folder=folder, launch=launch,
          threads_per_rank=1, hosts=(Host("far", 1),), ssh=ssh)
line = f"exec env SCALESCOPE_LAUNCH={job.launch} sleep 1000"
print(run([Command(argv=(ssh, "far", line), env={})], job, Watch(), timeout_s=100).problem)
"""
"""A launch on another host; it is killed when it finds a file."""


@pytest.mark.launches
@pytest.mark.parametrize("end", ["the connection is lost", "scalescope is killed"])
def test_a_host_is_cleaned_although_the_client_is_gone(far_host: FarHost, tmp_path: Path, end: str) -> None:
    """In a process namespace of its own, so that it cannot end the processes of the host as if they ran here."""
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    stays = ["sh", "-c", '"$@"; echo "exit code $?"; exec sleep 100', "sh"]  # the namespace goes with its first process
    words = [*alone, *stays, sys.executable, "-c", RUN, str(tmp_path), str(far_host.ssh), MARK.value]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        try:
            wait_until(lambda: any(carries(pid, MARK) for pid in far_host.running))
            (ours,) = far_host.running
            if end == "the connection is lost":
                far_host.lose_connections()
                assert running.stdout.readline() == "the launcher ended with exit code 255\n"
            else:
                (tmp_path / "die").touch()
                assert running.stdout.readline() == "exit code 137\n"
            wait_until(lambda: ours not in far_host.running)
        finally:
            running.kill()


def wait_until(is_so) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.launches
def test_the_watchdog_goes_with_its_launch(tmp_path: Path) -> None:
    needs.programs("sleep")
    code = RUN.replace('argv=(ssh, "far", line)', 'argv=("sleep", "0.1")').replace('hosts=(Host("far", 1),), ', "")
    words = [sys.executable, "-c", code, str(tmp_path), "none", MARK.value]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "\n", done.stderr
    watchdogs = [path for path in Path("/proc").glob("[0-9]*/cmdline") if MARK.value.encode() in words_of(path)]
    assert watchdogs == []


def words_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
