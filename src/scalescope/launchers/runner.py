"""Executes what launchers describe: starts processes, waits, and leaves none behind. The one impure launcher file."""

import contextlib
import ctypes
import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from scalescope.errors import UsageError, WorkFailed
from scalescope.launchers.processes import (
    ANSWER_WITHIN_S,
    DISMISSED,
    INTERRUPTS,
    SSH_OPTIONS,
    TERMINATE_WITHIN_S,
    Endings,
    carries,
    carrying,
    end_marked,
    end_on_hosts,
    of_folder,
    of_launch,
    signal_marked,
    start_watchdog,
)
from scalescope.records.job import Command, Ending, Host, Job
from scalescope.records.store import writing

LAUNCHER_OUTPUT = "launcher.out"
_TICK_S = 0.25
_OTHERS_MAY_FOLLOW_S = 15.0  # After one command has failed, how long the others may take to notice
_FOLLOWS_WITHIN_S = 1.0


class Watch(Protocol):
    """Looks on while a launch runs."""

    def tick(self) -> int:
        """Called a few times a second; returns a number that grows as long as anything happens."""

    def stalled(self, seconds: float) -> tuple[str, str]:
        """One line and details when nothing has happened for this long, asked for while the ranks still run."""


def run(commands: Sequence[Command], job: Job, watch: Watch, *, timeout_s: float) -> Ending:
    """Start the commands and wait for their end; afterwards no process of this launch is left, whatever happened."""
    check_system()
    problem = details = ""
    processes: list[subprocess.Popen[bytes]] = []
    with _guarded(job) as dismiss:
        started_ns, started_wall_ns = time.monotonic_ns(), time.time_ns()
        try:
            for command in commands:
                _start(command, job, processes)
            problem, details = _wait(processes, watch, timeout_s)
            ended_ns = time.monotonic_ns()
            watch.tick()
        finally:
            leftovers = end_launch(processes, job)
            dismiss()
    failed = [process.returncode for process in processes if process.returncode]
    if failed and not problem:
        problem = f"the launcher {how_it_ended(failed[0])}"
    return Ending(
        started_ns=started_ns,
        ended_ns=ended_ns,
        started_wall_ns=started_wall_ns,
        code=failed[0] if failed else 0,
        problem=problem,
        details=details,
        leftovers=0 if problem else leftovers,
    )


def signal_of(code: int) -> int:
    """The signal that ended a process, told by its exit code: -9 for Python, 137 for a shell; 0: none did."""
    number = -code if code < 0 else code - 128
    return number if number in signal.valid_signals() else 0


def how_it_ended(code: int) -> str:
    """A verb for the end of a process with this exit code."""
    number = signal_of(code)
    if number == signal.SIGKILL:
        return "was killed by SIGKILL (perhaps out of memory)"
    if number:
        named = number in set(signal.Signals)  # real-time signals have no names
        return f"was killed by {signal.Signals(number).name if named else f'signal {number}'}"
    return f"ended with exit code {code}" if code else "failed"


def check_system(system: str = "") -> None:
    """UsageError where processes cannot be found again by what /proc tells about them."""
    if (system or sys.platform) != "linux":
        raise UsageError(
            f"ranks are started on Linux only, and this is {system or sys.platform}: run it on a Linux machine; "
            "explain reads traces, tables and logs here, too"
        )


@contextlib.contextmanager
def _guarded(job: Job) -> Iterator[Callable[[], object]]:
    """Let a watchdog end the launch when this process is killed; yields how to dismiss it when nothing is left."""
    watchdog = start_watchdog(job.launch, job.ssh, [host.name for host in job.hosts])
    assert watchdog.stdin
    try:
        yield lambda: watchdog.communicate(DISMISSED)
    finally:
        with contextlib.suppress(OSError):
            watchdog.stdin.close()


def _start(command: Command, job: Job, processes: list[subprocess.Popen[bytes]]) -> None:
    path = Path(job.folder, LAUNCHER_OUTPUT)
    with writing(path):
        output = open(path, "ab")  # noqa: SIM115 - closed below
    with output:
        # An interrupt that arrives while the process is forked would be lost: Python's own fork handlers swallow it.
        # One that arrived before the process is in the list would lose the process.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        try:
            process = subprocess.Popen(
                command.argv,
                env={**os.environ, **command.env},
                cwd=job.cwd or None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_in_the_child,
            )
            processes.append(process)
        except FileNotFoundError:
            raise UsageError(f"there is no program '{command.argv[0]}': check the command's first word") from None
        except PermissionError:
            raise UsageError(f"'{command.argv[0]}' is not executable: chmod +x it or name its interpreter") from None
        except OSError as problem:
            if problem.errno == errno.E2BIG:
                raise UsageError(
                    "the command is too long to be started (128 KiB): let the script read its arguments from a file"
                ) from None
            if problem.errno == errno.ENOEXEC:
                raise UsageError(
                    f"'{command.argv[0]}' is no program: begin the script with #!/bin/sh, or name its interpreter"
                ) from None
            raise WorkFailed(
                f"'{command.argv[0]}' could not be started ({problem.strerror}): see the limits of memory and "
                "processes with ulimit -a"
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


_libc = ctypes.CDLL(None)


def _in_the_child() -> None:
    """Even when we are killed with SIGKILL, the launcher is asked to end its ranks; interrupts reach it as usual."""
    _libc.prctl(1, int(signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)


def _wait(processes: list[subprocess.Popen[bytes]], watch: Watch, timeout_s: float) -> tuple[str, str]:
    """Wait for all; give up when nothing happens any more, or when the rest does not follow one that failed."""
    seen, seen_at, failed_at = watch.tick(), time.monotonic(), 0.0
    with contextlib.closing(Endings(processes)) as endings:
        while endings.left:
            failed = [process for process in endings.next(_TICK_S) if process.returncode]
            failed_at = time.monotonic() if failed and not failed_at else failed_at
            if failed_at and time.monotonic() - failed_at > _OTHERS_MAY_FOLLOW_S:
                return "", ""
            progress, clock = watch.tick(), time.monotonic()
            if progress != seen:
                seen, seen_at = progress, clock
            elif clock - seen_at > timeout_s:
                return watch.stalled(clock - seen_at)
    return "", ""


def end_launch(processes: Sequence[subprocess.Popen[bytes]], job: Job) -> int:
    """End every process of the launch: the launchers politely, then whatever carries the launch's mark; how many."""
    with uninterrupted():
        alive = [process for process in processes if process.poll() is None]
        for process in alive:
            _send(process, signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_WITHIN_S
        while any(process.poll() is None for process in alive) and time.monotonic() < deadline:
            time.sleep(0.05)
        mark = of_launch(job.launch)
        if not alive:  # what ends by itself right after its parent, such as multiprocessing's tracker, is not left over
            deadline = time.monotonic() + _FOLLOWS_WITHIN_S
            while any(carrying(mark)) and time.monotonic() < deadline:
                time.sleep(0.02)
        count = end_marked(mark, TERMINATE_WITHIN_S, [process.pid for process in alive])
        for process in processes:
            _send(process, signal.SIGKILL)  # one that has taken the mark out of its environment
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
        # An ssh client may be gone while what it started still runs; after a good end nothing is left elsewhere.
        if alive or any(process.returncode for process in processes):
            end_on_hosts(job.ssh, [host.name for host in job.hosts], mark)
        return count


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    """To a child of ours; nothing when it has ended, and nothing to one that has become another user's."""
    with contextlib.suppress(PermissionError):
        process.send_signal(number)


def on_host(ssh: str, host: str, line: str, stdin: str = "") -> subprocess.CompletedProcess[str] | None:
    """Run a short shell line on a host; None when the host does not answer in time."""
    words = (ssh, *SSH_OPTIONS, host, line)
    try:
        return subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def end_orphans(folder: str, hosts: Sequence[Host] = (), ssh: str = "ssh") -> None:
    """End ranks that work for this folder and outlived the scalescope that started them."""
    check_system()
    end_marked(of_folder(folder))
    end_on_hosts(ssh, [host.name for host in hosts], of_folder(folder))


def signal_rank(job: Job, host: str, pid: int, number: int) -> None:
    """Send a signal to a rank, here or on its host."""
    mark = of_launch(job.launch)
    if carries(pid, mark):
        signal_marked(pid, mark, number)
    else:
        on_host(job.ssh, host, f"grep {mark.for_grep} /proc/{pid}/environ && kill -s {number} {pid}")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A second Ctrl-C, SIGTERM or SIGHUP must not stop the clearing up after the first."""
    try:
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS}
    except ValueError:  # not the main thread: signals do not arrive here
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted_until_done() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP come afterwards, not in the middle of what must be whole."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def check_hosts(job: Job) -> None:
    """Every named host answers and sees the folder of the results."""
    for host in job.hosts:
        answer = on_host(job.ssh, host.name, f"test -d {shlex.quote(job.folder)} && echo shared || echo apart")
        if answer is None or answer.returncode:
            said = (answer.stderr.strip().splitlines() or ["no answer"])[-1] if answer else "no answer"
            raise UsageError(
                f"host '{host.name}' cannot be reached with {job.ssh} ({said}): try `{job.ssh} {host.name} true`"
            )
        if "shared" not in answer.stdout:
            raise WorkFailed(
                f"host '{host.name}' does not see {job.folder}: choose a folder that all hosts share with -o"
            )
