"""A launch from its start to its end, on made-up processes."""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_system import Program, System

from scalescope.errors import UsageError, WorkFailed
from scalescope.launchers import processes, runner
from scalescope.launchers.processes import DISMISSED, INTERRUPTS, of_launch
from scalescope.launchers.runner import LAUNCHER_OUTPUT, end_launch, run
from scalescope.records.job import Command, Ending, Host, Job, Knobs

MARK = of_launch("mark")
TERM, KILL = signal.SIGTERM, signal.SIGKILL


class Watch:
    """Sees progress until a time."""

    def __init__(self, system: System, until: float = 0.0) -> None:
        self._system, self._until, self.ticks = system, until, 0

    def tick(self) -> int:
        self.ticks += 1
        return int(10 * min(self._system.clock.now, self._until))

    def stalled(self, seconds: float) -> tuple[str, str]:
        return f"stalled for {seconds:.1f} s", "details"


class Libc:
    """Notes what a child asks of the kernel."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def prctl(self, *numbers: int) -> None:
        self.asked.append(numbers)


@pytest.fixture(autouse=True)
def libc(monkeypatch: pytest.MonkeyPatch) -> Libc:
    """Otherwise the end of what started these tests would end them."""
    made = Libc()
    monkeypatch.setattr(runner, "_libc", made)
    return made


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(
        command=("train",), np=1, knobs=Knobs(engine="ddp"), folder=str(tmp_path), launch="mark", threads_per_rank=1
    )


def started(system: System, *programs: Program) -> list[Command]:
    """Commands that run these."""
    names = [f"program{number}" for number in range(len(programs))]
    system.programs |= dict(zip(names, programs, strict=True))
    return [Command(argv=(name, "word"), env={MARK.name: MARK.value}) for name in names]


def ended(system: System, job: Job, *programs: Program, timeout_s: float = 60.0) -> Ending:
    return run(started(system, *programs), job, Watch(system), timeout_s=timeout_s)


def test_a_launch_that_goes_well_has_its_times_and_nothing_else(system: System, job: Job) -> None:
    ending = ended(system, job, Program(seconds=20.0), Program(seconds=30.0))
    assert ending.started_ns == 1000 * 10**9
    assert ending.started_wall_ns == 6000 * 10**9
    assert ending.wall_s == pytest.approx(30.0, abs=0.011)
    assert (ending.problem, ending.details, ending.leftovers) == ("", "", 0)
    assert system.signals == []
    assert system.open_pidfds() == []


def test_a_command_gets_its_environment_its_folder_and_a_session(system: System, job: Job) -> None:
    job = msgspec.structs.replace(job, cwd="/home/of mine")
    ended(system, job, Program(seconds=1.0, says="x"))
    options: dict[str, Any] = system.started[1].options
    assert options["env"] == {**os.environ, MARK.name: MARK.value}
    assert (options["cwd"], options["start_new_session"]) == ("/home/of mine", True)
    assert (options["stdin"], options["stderr"]) == (subprocess.DEVNULL, subprocess.STDOUT)
    assert options["stdout"].name == str(Path(job.folder, LAUNCHER_OUTPUT))
    assert options["stdout"].mode == "ab"
    assert options["stdout"].closed


def test_a_job_without_a_folder_of_its_own_starts_here(system: System, job: Job) -> None:
    ended(system, job, Program(seconds=1.0))
    assert system.started[1].options["cwd"] is None


def test_no_interrupt_is_lost_while_a_process_starts(system: System, job: Job, libc: Libc) -> None:
    ended(system, job, Program(seconds=1.0))
    assert set(INTERRUPTS) <= system.mask_at_start
    assert not set(INTERRUPTS) & system.mask_in_child
    assert libc.asked == [(1, TERM)]  # PR_SET_PDEATHSIG
    assert not set(INTERRUPTS) & set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (FileNotFoundError(), r"there is no program 'program0': check the command's first word"),
        (PermissionError(), r"'program0' is not executable: chmod \+x it or name its interpreter"),
        (OSError(errno.E2BIG, ""), r"the command is too long .*: let the script read its arguments from a file"),
        (OSError(errno.ENOEXEC, ""), r"'program0' is no program: begin the script with #!/bin/sh, or name its"),
    ],
)
def test_a_command_that_cannot_be_started_is_a_usage_error(
    system: System, job: Job, trouble: OSError, said: str
) -> None:
    system.programs["program0"] = trouble
    with pytest.raises(UsageError, match=said):
        run([Command(argv=("program0",), env={})], job, Watch(system), timeout_s=1.0)
    assert not set(INTERRUPTS) & set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    assert system.started[0].heard == DISMISSED


def test_a_machine_without_room_for_a_process_is_not_a_full_disk(system: System, job: Job) -> None:
    system.programs["program0"] = OSError(errno.ENOMEM, "Cannot allocate memory")
    with pytest.raises(WorkFailed, match=r"'program0' could not be started \(Cannot allocate memory\): see the limits"):
        run([Command(argv=("program0",), env={})], job, Watch(system), timeout_s=1.0)


def test_the_watchdog_hears_of_the_end_and_knows_the_hosts(system: System, job: Job) -> None:
    job = msgspec.structs.replace(job, hosts=(Host("a", 1), Host("b", 1)), ssh="myssh")
    ended(system, job, Program(seconds=1.0))
    dog = system.started[0]
    assert tuple(dog.args[3:]) == (processes.__file__, "mark", "myssh", "a", "b")
    assert dog.heard == DISMISSED
    assert dog.stdin is not None
    assert dog.stdin.closed
    assert len(system.started) == 2, "after a good end nothing is left on hosts"


def test_the_first_exit_code_of_a_failure_is_reported(system: System, job: Job) -> None:
    ending = ended(system, job, Program(seconds=1.0), Program(seconds=2.0, code=3), Program(seconds=2.5, code=4))
    assert ending.problem == "the launcher ended with exit code 3"
    assert ending.wall_s == pytest.approx(2.5, abs=0.011)


def test_others_get_some_seconds_to_follow_one_that_failed(system: System, job: Job) -> None:
    failing = Program(seconds=10.0, code=3)
    assert ended(system, job, failing, Program(seconds=24.0)).wall_s == pytest.approx(24.0, abs=0.02)
    ending = ended(system, job, failing, Program(), Program(seconds=20.0, code=4), timeout_s=600.0)
    assert ending.wall_s == pytest.approx(25.0, abs=0.3)
    assert ending.problem == "the launcher ended with exit code 3"
    assert [number for _, number in system.signals] == [TERM]


def test_a_launch_in_which_nothing_happens_is_given_up(system: System, job: Job) -> None:
    watch = Watch(system, until=1030.0)
    ending = run(started(system, Program()), job, watch, timeout_s=8.0)
    assert ending.wall_s == pytest.approx(38.0, abs=0.6)
    assert ending.problem.startswith("stalled for 8.")
    assert (ending.details, ending.leftovers) == ("details", 0)
    assert watch.ticks > 38 / 0.3, "it is asked a few times a second, and once more at the end"


def test_the_watch_looks_once_more_after_the_end(system: System, job: Job) -> None:
    watch = Watch(system)
    run(started(system, Program(seconds=0.1)), job, watch, timeout_s=8.0)
    assert watch.ticks == 3


def test_processes_that_outlive_their_launcher_are_counted_and_ended(system: System, job: Job) -> None:
    follows, stays = Program(seconds=1.9), Program(asked_s=None)
    ending = ended(system, job, Program(seconds=1.0, starts=(follows, stays, stays)))
    assert (ending.problem, ending.leftovers) == ("", 2)
    pids = [child.pid for child in system.started[3:]]
    assert sorted(system.signals) == sorted((pid, number) for pid in pids for number in (TERM, KILL))
    assert system.clock.now == pytest.approx(1007.0, abs=0.2)  # a second to follow, five after being asked


def test_leftovers_are_not_counted_after_a_failure(system: System, job: Job) -> None:
    ending = ended(system, job, Program(seconds=1.0, code=1, starts=(Program(),)))
    assert (ending.problem, ending.leftovers) == ("the launcher ended with exit code 1", 0)


def test_on_other_systems_nothing_is_started(system: System, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(UsageError, match="ranks are started on Linux only"):
        ended(system, job, Program(seconds=1.0))
    assert system.started == []


def children(system: System, *programs: Program) -> Any:
    return [system.marked(MARK, program) for program in programs]


def test_launchers_are_asked_to_end_and_ranks_after_them(system: System, job: Job) -> None:
    job = msgspec.structs.replace(job, hosts=(Host("far", 1),))
    system.programs["ssh"] = Program(seconds=0.5)
    launcher, rank = children(system, Program(asked_s=2.0), Program())
    assert end_launch([launcher], job) == 1
    assert system.signals == [(launcher.pid, TERM), (rank.pid, TERM)]
    assert rank.ends_at == pytest.approx(1002.0, abs=0.051)
    assert launcher.returncode == -TERM
    assert system.words()[-1][5] == "far"


def test_a_launcher_that_does_not_listen_is_killed(system: System, job: Job) -> None:
    (deaf,) = children(system, Program(asked_s=None))
    assert end_launch([deaf], job) == 1
    assert system.signals == [(deaf.pid, TERM), (deaf.pid, KILL)], "asked once"
    assert deaf.ends_at == pytest.approx(1010.0, abs=0.2)
    assert deaf.returncode == -KILL


def test_a_launcher_without_the_mark_is_killed_all_the_same(system: System, job: Job) -> None:
    (deaf,) = children(system, Program(asked_s=None, loses_mark=True))
    assert end_launch([deaf], job) == 0
    assert system.signals == [(deaf.pid, TERM), (deaf.pid, KILL)]
    assert deaf.ends_at == pytest.approx(1005.0, abs=0.1)


def test_a_launcher_that_became_another_users_is_left(system: System, job: Job) -> None:
    (child,) = children(system, Program(loses_mark=True))
    system.others.add(child.pid)
    assert end_launch([child], job) == 0
    assert system.clock.now == pytest.approx(1006.0, abs=0.1)  # five seconds, and one for the last wait


def test_launchers_that_ended_get_no_signal(system: System, job: Job) -> None:
    finished = children(system, Program(seconds=0.0), Program(seconds=0.0))
    assert end_launch(finished, job) == 0
    assert (system.signals, system.clock.now) == ([], 1000.0)


@pytest.mark.parametrize(("code", "cleaned"), [(255, True), (0, False)])
def test_hosts_are_cleaned_after_a_bad_end_only(system: System, job: Job, code: int, cleaned: bool) -> None:
    system.programs["ssh"] = Program(seconds=0.5)
    finished = children(system, Program(seconds=0.0), Program(seconds=0.0, code=code))
    end_launch(finished, msgspec.structs.replace(job, hosts=(Host("far", 1),)))
    assert (len(system.started) > 2) is cleaned


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in INTERRUPTS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_interrupts_are_ignored_while_it_clears_up_and_heard_again_afterwards(
    system: System, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile: list[object] = []

    def look(*_: object) -> None:
        meanwhile.extend(signal.getsignal(number) for number in INTERRUPTS)

    def mine(*_: object) -> None:
        pass

    monkeypatch.setattr(runner, "end_on_hosts", look)
    for number in INTERRUPTS:
        signal.signal(number, mine)
    end_launch(children(system, Program()), job)
    assert meanwhile == [signal.SIG_IGN] * 3
    assert [signal.getsignal(number) for number in INTERRUPTS] == [mine] * 3
