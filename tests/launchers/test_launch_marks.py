"""What tells our processes from others, on made-up processes and in this one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_system import FIRST_PID, Program, System

from scalescope.launchers.processes import (
    Mark,
    _leads,
    carries,
    carrying,
    end_marked,
    of_folder,
    of_launch,
    pidfd_of,
    signal_marked,
)

MARK = of_launch("01-ddp-np2")


def test_marks_match_a_whole_launch_or_anything_in_a_folder() -> None:
    assert MARK == ("SCALESCOPE_LAUNCH", "01-ddp-np2", False)
    assert of_folder("/out") == ("SCALESCOPE_FOLDER", "/out", True)
    assert Mark("A", "b") == ("A", "b", False)


@pytest.mark.parametrize(
    ("environment", "launch", "folder"),
    [
        ("SCALESCOPE_LAUNCH=01-ddp-np2", True, False),
        ("A=1\0SCALESCOPE_LAUNCH=01-ddp-np2\0B=2\0", True, False),
        ("SCALESCOPE_LAUNCH=01-ddp-np22\0", False, False),
        ("XSCALESCOPE_LAUNCH=01-ddp-np2\0", False, False),
        ("SCALESCOPE_FOLDER=/out/launches/1\0", False, True),
        ("SCALESCOPE_FOLDER=/out\0", False, False),
        ("SCALESCOPE_FOLDER=/outer/launches/1\0", False, False),
        ("", False, False),
    ],
)
def test_a_mark_is_one_whole_variable(environment: str, launch: bool, folder: bool) -> None:
    assert MARK.is_in(environment.encode()) is launch
    assert of_folder("/out").is_in(environment.encode()) is folder


def test_grep_gets_whole_lines_of_a_launch_and_a_pattern_of_a_folder() -> None:
    assert MARK.for_grep == "-qzxF SCALESCOPE_LAUNCH=01-ddp-np2"
    assert of_launch("a b").for_grep == "-qzxF 'SCALESCOPE_LAUNCH=a b'"
    assert of_folder("/a.b/[c]*").for_grep == r"-qz '^SCALESCOPE_FOLDER=/a\.b/\[c]\*/'"


@pytest.fixture
def of_this_process() -> Mark:
    """A variable that this process was started with, as a mark."""
    with open("/proc/self/environ", "rb") as file:
        name, _, value = os.fsdecode(file.read().split(b"\0")[0]).partition("=")
    return Mark(name, value)


def test_this_process_carries_what_it_was_started_with(of_this_process: Mark) -> None:
    assert carries(os.getpid(), of_this_process)
    assert os.getpid() in set(carrying(of_this_process))
    assert not carries(os.getpid(), MARK)
    assert not carries(FIRST_PID, of_this_process)
    assert list(carrying(MARK)) == []


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals SIGUSR2 that reached this process."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("has_pidfds", [True, False])
def test_a_signal_reaches_a_process_with_the_mark_and_no_other(
    of_this_process: Mark, heard: list[int], monkeypatch: pytest.MonkeyPatch, has_pidfds: bool
) -> None:
    if not has_pidfds:
        monkeypatch.delattr(os, "pidfd_open")
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    signal_marked(os.getpid(), MARK, signal.SIGUSR2)
    assert heard == []
    signal_marked(os.getpid(), of_this_process, signal.SIGUSR2)
    assert heard == [signal.SIGUSR2]
    signal_marked(FIRST_PID, of_this_process, signal.SIGUSR2)  # there is none: nothing happens
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_descriptor_stands_for_a_process_that_is_there() -> None:
    descriptor = pidfd_of(os.getpid())
    assert descriptor is not None
    os.close(descriptor)
    assert pidfd_of(FIRST_PID) is None


def test_a_process_leads_its_session_or_does_not() -> None:
    session = os.getsid(0)
    assert _leads(os.getpid()) is (session == os.getpid())
    assert not _leads(FIRST_PID)


def test_processes_are_asked_once_and_killed_when_they_do_not_follow(system: System) -> None:
    polite, slow, deaf = (system.marked(MARK, Program(asked_s=asked_s)) for asked_s in (0.0, 1.0, None))
    stranger = system.marked(of_launch("another"))
    assert end_marked(MARK, 3.0) == 3
    asked = [(each.pid, signal.SIGTERM) for each in (polite, slow, deaf)]
    assert sorted(system.signals) == sorted([*asked, (deaf.pid, signal.SIGKILL)])
    assert system.signals[-1] == (deaf.pid, signal.SIGKILL)
    assert deaf.ends_at == pytest.approx(1003.0, abs=0.051)
    assert not stranger.has_ended
    assert system.open_pidfds() == []


def test_a_process_that_was_asked_to_end_is_not_asked_again(system: System) -> None:
    told, other = system.marked(MARK, Program(seconds=1.0)), system.marked(MARK)
    assert end_marked(MARK, 3.0, [told.pid]) == 2
    assert system.signals == [(other.pid, signal.SIGTERM)]


def test_without_time_to_end_all_are_killed_at_once(system: System) -> None:
    children = [system.marked(MARK, Program(asked_s=None)) for _ in range(2)]
    assert end_marked(MARK) == 2
    assert sorted(system.signals) == [(each.pid, signal.SIGKILL) for each in children]


def test_the_most_at_a_time_are_counted(system: System) -> None:
    for seconds in (0.1, 0.2, 5.0):
        system.marked(MARK, Program(seconds=seconds, asked_s=None))
    assert end_marked(MARK, 1.0) == 3
    assert end_marked(MARK, 1.0) == 0


def test_a_process_of_another_user_is_given_up_after_a_while(system: System) -> None:
    child = system.marked(MARK)
    system.others.add(child.pid)
    assert end_marked(MARK, 2.0) == 1
    assert system.clock.now == pytest.approx(1007.0, abs=0.1)
    assert system.signals == []
