"""Executes what launchers describe: starts processes, waits, and leaves none behind. The one impure launcher file."""

import contextlib
import ctypes
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from scalescope.errors import UsageError, WorkFailed
from scalescope.records.job import Command, Ending, Job
from scalescope.records.store import writing

LAUNCHER_OUTPUT = "launcher.out"
_TICK_S = 0.25
_TERMINATE_WITHIN_S = 5.0
_ANSWER_WITHIN_S = 15.0
_OTHERS_MAY_FOLLOW_S = 15.0
"""After one command has failed, how long the others may take to notice."""


class Watch(Protocol):
    """Looks on while a launch runs."""

    def tick(self) -> int:
        """Called a few times a second; returns a number that grows as long as anything happens."""

    def stalled(self, seconds: float) -> tuple[str, str]:
        """Nothing has happened for so long: one line and details, asked for while the ranks still run."""


def run(commands: Sequence[Command], job: Job, watch: Watch, *, timeout_s: float) -> Ending:
    """Start the commands and wait for their end; afterwards no process of this launch is left, whatever happened."""
    problem = details = ""
    started_ns, started_wall_ns = time.monotonic_ns(), time.time_ns()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            processes.append(_start(command, job))
        problem, details = _wait(processes, watch, timeout_s)
        ended_ns = time.monotonic_ns()
        watch.tick()
    finally:
        leftovers = end_launch(processes, job)
    failed = [process.returncode for process in processes if process.returncode]
    if failed and not problem:
        problem = f"the launcher ended with exit code {failed[0]}"
    return Ending(
        started_ns=started_ns,
        ended_ns=ended_ns,
        started_wall_ns=started_wall_ns,
        problem=problem,
        details=details,
        leftovers=0 if problem else leftovers,
    )


def _start(command: Command, job: Job) -> subprocess.Popen[bytes]:
    path = Path(job.folder, LAUNCHER_OUTPUT)
    with writing(path), open(path, "ab") as output:
        # An interrupt that arrives while the process is forked would be lost: Python's own fork handlers swallow it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            return subprocess.Popen(
                command.argv,
                env={**os.environ, **command.env},
                cwd=job.cwd or None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_in_the_child,
            )
        except FileNotFoundError:
            raise UsageError(f"there is no program '{command.argv[0]}': check the command's first word") from None
        except PermissionError:
            raise UsageError(f"'{command.argv[0]}' is not executable: chmod +x it or name its interpreter") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_libc = ctypes.CDLL(None)


def _in_the_child() -> None:
    """Even when we are killed with SIGKILL, the launcher is asked to end its ranks; interrupts reach it as usual."""
    _libc.prctl(1, int(signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)


def _wait(processes: list[subprocess.Popen[bytes]], watch: Watch, timeout_s: float) -> tuple[str, str]:
    """Wait for all; give up when nothing happens any more, or when the rest does not follow one that failed."""
    seen, seen_at, failed_at = watch.tick(), time.monotonic(), 0.0
    with contextlib.ExitStack() as stack:
        waiting = {}
        for process in processes:
            descriptor = os.pidfd_open(process.pid)
            stack.callback(os.close, descriptor)
            waiting[descriptor] = process
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], _TICK_S)
            for descriptor in ready:
                failed_at = time.monotonic() if waiting.pop(descriptor).wait() and not failed_at else failed_at
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
    with _uninterrupted():
        alive = [process for process in processes if process.poll() is None]
        for process in alive:
            _signal(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _TERMINATE_WITHIN_S
        while any(process.poll() is None for process in alive) and time.monotonic() < deadline:
            time.sleep(0.05)
        count = 0
        for _ in range(100):
            marked = list(processes_of(job.launch))
            if not marked:
                break
            count = max(count, len(marked))
            for pid in marked:
                _signal(pid, signal.SIGKILL)
            for process in processes:
                process.poll()
            time.sleep(0.05)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
        if alive:  # after a good end there is nothing to remove elsewhere
            for host in job.hosts:
                on_host(job.ssh, host.name, _KILL_MARKED % shlex.quote(job.launch))
        return count


_KILL_MARKED = (
    "for p in /proc/[0-9]*; do if grep -qzxF SCALESCOPE_LAUNCH=%s $p/environ 2>/dev/null; "
    'then kill -9 "${p#/proc/}"; fi; done'
)


def on_host(ssh: str, host: str, line: str, stdin: str = "") -> subprocess.CompletedProcess[str] | None:
    """Run a short shell line on a host; None when the host does not answer in time."""
    words = (ssh, "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", host, line)
    try:
        return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=_ANSWER_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def processes_of(launch: str) -> Iterator[int]:
    """Ids of all processes on this machine that carry the launch's mark in their environment."""
    mark = f"SCALESCOPE_LAUNCH={launch}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def end_orphans(folder: str) -> None:
    """End ranks that work for this folder and outlived the scalescope that started them."""
    mark = f"SCALESCOPE_FOLDER={folder}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if any(word.startswith(mark) for word in (entry / "environ").read_bytes().split(b"\0")):
                    _signal(int(entry.name), signal.SIGKILL)


def signal_rank(job: Job, host: str, pid: int, number: int) -> None:
    """Send a signal to a rank, here or on its host."""
    if pid in processes_of(job.launch):
        _signal(pid, number)
    else:
        on_host(job.ssh, host, f"kill -s {number} {pid}")


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C or SIGTERM must not stop the clearing up after the first."""
    try:
        previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals do not arrive here
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
