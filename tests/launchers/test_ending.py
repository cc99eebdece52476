"""How ends of children are seen, what is ended on other hosts, and what the watchdog does: on made-up processes."""

import io
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fake_system import Child, Program, System

from scalescope.launchers import processes
from scalescope.launchers.processes import (
    INTERRUPTS,
    Endings,
    end_on_hosts,
    of_folder,
    of_launch,
    start_watchdog,
    wait_by_looking,
    watch,
)

MARK = of_launch("01-ddp-np2")


def ran(system: System, *seconds: float) -> list[Any]:
    return [system.add(Program(seconds=each, code=number)) for number, each in enumerate(seconds)]


def test_children_are_returned_in_the_order_of_their_ends(system: System) -> None:
    late, early, never = children = ran(system, 3.0, 1.0, 1e6)
    endings = Endings(children)
    assert endings.next(0.5) == []
    assert system.clock.now == pytest.approx(1000.5, abs=0.011)
    assert endings.next(10.0) == [early]
    assert system.clock.now == pytest.approx(1001.0, abs=0.011)
    assert (endings.left, early.returncode) == ([late, never], 1)
    assert endings.next(10.0) == [late]
    assert system.clock.now == pytest.approx(1003.0, abs=0.011)
    assert endings.next(2.0) == []
    assert endings.left == [never]
    endings.close()
    assert system.open_pidfds() == []


def test_children_that_end_together_are_returned_together(system: System) -> None:
    children = ran(system, 1.0, 1.0)
    endings = Endings(children)
    assert (endings.next(5.0), endings.left) == (children, [])
    endings.close()


def test_a_child_without_a_descriptor_is_looked_at(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    children = ran(system, 9.0, 2.0)
    known = processes.pidfd_of
    monkeypatch.setattr(processes, "pidfd_of", lambda pid: None if pid == children[1].pid else known(pid))
    endings = Endings(children)
    assert endings.next(5.0) == [children[1]]
    endings.close()
    assert system.open_pidfds() == []


def test_looking_ends_with_the_first_child_or_with_the_time(system: System) -> None:
    wait_by_looking(ran(system, 2.0, 50.0), 30.0)
    assert system.clock.now == pytest.approx(1002.0, abs=0.011)
    wait_by_looking(ran(system, 50.0), 3.0)
    assert system.clock.now == pytest.approx(1005.0, abs=0.021)


def test_hosts_are_cleaned_at_once_with_what_grep_understands(system: System) -> None:
    system.programs["myssh"] = Program(seconds=1.0)
    end_on_hosts("myssh", ["a", "b"], of_folder("/out"))
    assert system.clock.now == 1001.0
    for words, host in zip(system.words(), ("a", "b"), strict=True):
        assert words[:6] == ("myssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", host)
        assert "if grep -qz '^SCALESCOPE_FOLDER=/out/' $p/environ" in words[6]
        assert 'kill -9 "${p#/proc/}"' in words[6]
    for child in system.started:
        assert [child.options[name] for name in ("stdin", "stdout", "stderr")] == [subprocess.DEVNULL] * 3


def test_hosts_that_do_not_answer_are_left_together(system: System) -> None:
    answers = {"slow": Program(seconds=10.0)}
    system.programs["ssh"] = lambda words: answers.get(words[5], Program())
    end_on_hosts("ssh", ["silent", "mute", "slow"], MARK)
    assert system.clock.now == 1015.0
    silent, mute, slow = system.started
    assert [each.returncode for each in (silent, mute, slow)] == [-signal.SIGKILL, -signal.SIGKILL, 0]


def test_without_an_ssh_no_host_is_cleaned(system: System) -> None:
    end_on_hosts("none", ["a"], MARK)
    end_on_hosts("none", [], MARK)
    assert (system.started, system.clock.now) == ([], 1000.0)


def test_a_watchdog_gets_the_launch_in_a_session_of_its_own(system: System) -> None:
    dog: Any = start_watchdog("mark", "myssh", ["a", "b"])
    assert dog.args == [sys.executable, "-I", "-S", processes.__file__, "mark", "myssh", "a", "b"]
    assert dog.options["start_new_session"] is True
    assert dog.options["stdin"] == subprocess.PIPE
    assert dog.options["stdout"] == dog.options["stderr"] == subprocess.DEVNULL


class Input:
    """Stands in for the watchdog's standard input."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.fixture
def handlers() -> Iterator[None]:
    """A watchdog ignores interrupts; this process does not."""
    before = {number: signal.getsignal(number) for number in INTERRUPTS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def watched(monkeypatch: pytest.MonkeyPatch, said: bytes, leads: Sequence[Child] = ()) -> None:
    """A watchdog that hears this, where these processes lead their sessions."""
    sessions = {child.pid: child.pid for child in leads}
    monkeypatch.setattr(sys, "stdin", Input(said))
    monkeypatch.setattr("os.getsid", lambda pid: sessions.get(pid, 0))
    watch(MARK.value, "ssh", ["far"])
    assert [signal.getsignal(number) for number in INTERRUPTS] == [signal.SIG_IGN] * 3


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("said", [b".", b".."])
def test_a_watchdog_that_is_dismissed_ends_nothing(
    system: System, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    rank = system.marked(MARK)
    watched(monkeypatch, said)
    assert not rank.has_ended
    assert len(system.started) == 1


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("said", [b"", b"x"])
def test_a_watchdog_whose_input_closes_ends_the_launch(
    system: System, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    system.programs["ssh"] = Program(seconds=1.0)
    launcher, rank = system.marked(MARK, Program(seconds=2.0)), system.marked(MARK)
    stranger = system.marked(of_launch("another"))
    watched(monkeypatch, said, [launcher])
    assert system.signals == [(rank.pid, signal.SIGTERM)]  # the kernel has told the launcher
    assert not stranger.has_ended
    assert system.words()[-1][5] == "far"
    assert "SCALESCOPE_LAUNCH=01-ddp-np2" in system.words()[-1][6]
