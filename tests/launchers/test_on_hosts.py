"""Short lines on other hosts: whether they answer, see the folder, and what is ended and signalled there."""

import signal
import threading
from pathlib import Path

import pytest
from fake_system import FIRST_PID, Program, System

from scalescope.errors import UsageError, WorkFailed
from scalescope.launchers.processes import of_launch
from scalescope.launchers.runner import check_hosts, check_system, end_orphans, on_host, signal_rank, uninterrupted
from scalescope.records.job import Host, Job, Knobs

SSH = ("myssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
SHARED = Program(seconds=1.0, says="shared\n")


@pytest.fixture
def job() -> Job:
    return Job(
        command=("train",),
        np=2,
        knobs=Knobs(engine="ddp"),
        folder="/out/launch 1",
        launch="mark",
        threads_per_rank=1,
        hosts=(Host("a", 1), Host("b", 1)),
        ssh="myssh",
    )


def test_a_line_is_run_on_a_host_and_its_answer_given(system: System) -> None:
    system.programs["myssh"] = Program(seconds=1.0, code=3, says="out", complains="err")
    answer = on_host("myssh", "a", "echo x")
    assert answer is not None
    assert (answer.returncode, answer.stdout, answer.stderr) == (3, "out", "err")
    assert system.words() == [(*SSH, "a", "echo x")]


@pytest.mark.launches
def test_the_banner_of_a_host_may_be_in_any_encoding(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nprintf 'Willkommen in M\\374nchen\\n' >&2\necho shared\n")
    ssh.chmod(0o755)
    answer = on_host(str(ssh), "a", "true")
    assert answer is not None
    assert answer.stdout == "shared\n"


@pytest.mark.parametrize("seconds", [15.1, 1e6])
def test_a_host_that_takes_too_long_does_not_answer(system: System, seconds: float) -> None:
    system.programs["myssh"] = Program(seconds=seconds)
    assert on_host("myssh", "a", "true") is None
    assert system.clock.now == 1015.0
    assert on_host("none", "a", "true") is None


def test_hosts_that_see_the_folder_are_good(system: System, job: Job) -> None:
    system.programs["myssh"] = SHARED
    check_hosts(job)
    line = "test -d '/out/launch 1' && echo shared || echo apart"
    assert system.words() == [(*SSH, "a", line), (*SSH, "b", line)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Program(seconds=1.0, code=255, complains="warning: x\nno route to host\n"), "no route to host"),
        (Program(seconds=1.0, code=255), "no answer"),
        (Program(), "no answer"),
    ],
)
def test_an_unreachable_host_is_named_with_the_error_of_ssh(
    system: System, job: Job, answer: Program, said: str
) -> None:
    system.programs["myssh"] = lambda words: SHARED if words[5] == "a" else answer
    with pytest.raises(UsageError) as told:
        check_hosts(job)
    assert str(told.value) == f"host 'b' cannot be reached with myssh ({said}): try `myssh b true`"


def test_a_host_that_does_not_see_the_folder_is_named(system: System, job: Job) -> None:
    system.programs["myssh"] = lambda words: Program(seconds=1.0, says="apart\n") if words[5] == "b" else SHARED
    with pytest.raises(WorkFailed, match=r"host 'b' does not see /out/launch 1: choose a folder that all hosts share"):
        check_hosts(job)


def test_a_rank_gets_its_signal_here_or_on_its_host(system: System, job: Job) -> None:
    rank = system.marked(of_launch("mark"))
    signal_rank(job, "a", rank.pid, signal.SIGUSR1)
    assert system.signals == [(rank.pid, signal.SIGUSR1)]
    assert len(system.started) == 1
    system.programs["myssh"] = Program(seconds=1.0)
    elsewhere = FIRST_PID + 100
    signal_rank(job, "b", elsewhere, signal.SIGUSR1)
    line = f"grep -qzxF SCALESCOPE_LAUNCH=mark /proc/{elsewhere}/environ && kill -s 10 {elsewhere}"
    assert system.words()[1:] == [(*SSH, "b", line)]
    assert len(system.signals) == 1


def test_orphans_of_a_folder_are_killed_here_and_on_its_hosts(system: System) -> None:
    system.programs |= {"ssh": Program(seconds=1.0), "myssh": Program(seconds=1.0)}
    ours = system.add(Program(), env={"SCALESCOPE_FOLDER": "/out/launches/1"})
    other = system.add(Program(), env={"SCALESCOPE_FOLDER": "/outer/launches/1"})
    end_orphans("/out")
    assert system.signals == [(ours.pid, signal.SIGKILL)]
    assert not other.has_ended
    assert len(system.started) == 2
    end_orphans("/out", (Host("a", 1),), "myssh")
    (words,) = system.words()[2:]
    assert words[:6] == (*SSH, "a")
    assert "'^SCALESCOPE_FOLDER=/out/'" in words[6]


def test_this_system_is_looked_at_when_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_system()
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(UsageError, match=r"this is darwin: .*explain reads traces"):
        check_system()
    with pytest.raises(UsageError, match=r"this is darwin"):
        end_orphans(str(Path("/out")))


def test_a_thread_clears_up_without_touching_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def clear_up() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=clear_up)
    thread.start()
    thread.join()
    assert seen == [before]
