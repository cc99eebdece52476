"""Processes that exist on a made-up clock only: what starts, signals, waits for and finds them meets these instead.

They stand at what the operating system offers (Popen, /proc, pidfds, select): no code of ours is replaced.
"""

import errno
import io
import math
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from scalescope.launchers import processes, runner

FIRST_PID = 2**22 + 1  # More than Linux gives to any process


@dataclass(frozen=True)
class Program:
    """How a command behaves once it runs."""

    seconds: float = math.inf
    code: int = 0
    asked_s: float | None = 0.0  # How long after SIGTERM it ends; None: it goes on
    says: str = ""
    complains: str = ""
    starts: tuple["Program", ...] = ()  # Processes of its own, with its environment
    loses_mark: bool = False  # Whether it takes everything out of its environment


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def time_ns(self) -> int:
        return round((self.now + 5000) * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Child:
    """A process, with the part of Popen that is in use."""

    def __init__(self, system: "System", pid: int, program: Program, argv: Sequence[str], options: Any) -> None:
        self._system, self.pid, self.program, self.args, self.options = system, pid, program, argv, options
        environment = options.get("env") or {}
        self.environment = {} if program.loses_mark else environment
        self.ends_at, self.code = system.clock.now + program.seconds, program.code
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = io.BytesIO() if options.get("stdin") == subprocess.PIPE else None
        self.heard = b""

    @property
    def has_ended(self) -> bool:
        return self._system.clock.now >= self.ends_at

    def poll(self) -> int | None:
        if self.has_ended:
            self.returncode = self.code
        return self.returncode

    def wait(self, timeout: float = math.inf) -> int:
        assert self.ends_at < math.inf or timeout < math.inf, "it waits forever"
        now = self._system.clock.now
        self._system.clock.now = max(now, min(self.ends_at, now + timeout))
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            self._system.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, data: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        if self.stdin and isinstance(data, bytes):
            self.heard, self.ends_at = data, self._system.clock.now
        self.wait(math.inf if timeout is None else timeout)
        return self.program.says, self.program.complains

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class System:
    """All processes there are."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.programs: dict[str, Program | Callable[[Sequence[str]], Program] | OSError] = {}
        self.started: list[Child] = []
        self.signals: list[tuple[int, int]] = []  # Which reached a process that ran
        self.others: set[int] = set()  # Processes of another user
        self.mask_in_child: set[int] = set()
        self.mask_at_start: set[int] = set()
        self._pidfds: dict[int, int] = {}
        self._listdir = os.listdir

    def start(self, argv: Sequence[str], **options: Any) -> Child:
        """As Popen does; a watchdog is known by its file."""
        found = Program() if processes.__file__ in argv else self.programs.get(argv[0], FileNotFoundError(argv[0]))
        if isinstance(found, OSError):
            raise found
        if prepare := options.get("preexec_fn"):
            self.mask_at_start = set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            prepare()
            self.mask_in_child = set(signal.pthread_sigmask(signal.SIG_SETMASK, self.mask_at_start))
        program = found if isinstance(found, Program) else found(argv)
        return self.add(program, argv, **options)

    def add(self, program: Program, argv: Sequence[str] = (), **options: Any) -> Child:
        child = Child(self, FIRST_PID + len(self.started), program, argv, options)
        self.started.append(child)
        for each in program.starts:
            self.add(each, **options)
        return child

    def marked(self, mark: processes.Mark, program: Program = Program()) -> Child:  # noqa: B008
        """A process that runs and carries a mark."""
        return self.add(program, env={"A": "1", mark.name: mark.value})

    def words(self) -> list[tuple[str, ...]]:
        return [tuple(child.args) for child in self.started]

    def _of(self, pid: int) -> Child:
        if not 0 <= pid - FIRST_PID < len(self.started):
            raise ProcessLookupError(errno.ESRCH, "no such process")
        return self.started[pid - FIRST_PID]

    def kill(self, pid: int, number: int) -> None:
        child = self._of(pid)
        if child.has_ended:
            raise ProcessLookupError(errno.ESRCH, "no such process")
        if pid in self.others:
            raise PermissionError(errno.EPERM, "not yours")
        self.signals.append((pid, number))
        delay_s = child.program.asked_s if number == signal.SIGTERM else 0.0
        if number in (signal.SIGTERM, signal.SIGKILL) and delay_s is not None:
            child.ends_at, child.code = min(child.ends_at, self.clock.now + delay_s), -number

    def pidfd_open(self, pid: int) -> int:
        self._of(pid)
        descriptor = os.open(os.devnull, os.O_RDONLY)
        self._pidfds[descriptor] = pid
        return descriptor

    def pidfd_send_signal(self, descriptor: int, number: int) -> None:
        self.kill(self._pidfds[descriptor], number)

    def open_pidfds(self) -> list[int]:
        return [each for each in self._pidfds if Path(f"/proc/self/fd/{each}").exists()]

    def select(self, reads: Sequence[int], _writes: object, _errors: object, within_s: float) -> None:
        first = min((self._of(self._pidfds[each]).ends_at for each in reads), default=math.inf)
        self.clock.now = max(self.clock.now, min(first, self.clock.now + within_s))

    def open_in_proc(self, path: str, mode: str) -> io.BytesIO:
        """Open /proc/PID/environ, which is empty as soon as the process has ended."""
        child = self._of(int(path.split("/")[2]))
        shown = "" if child.has_ended else "".join(f"{name}={value}\0" for name, value in child.environment.items())
        assert mode == "rb"
        return io.BytesIO(shown.encode())

    def listdir(self, path: Any = ".") -> list[str]:
        if path != "/proc":
            return self._listdir(path)
        return ["self", "cpuinfo", *(str(child.pid) for child in self.started)]

    def install(self, patch: pytest.MonkeyPatch, *, has_pidfds: bool = True) -> None:
        """Let the code of launchers meet these processes and no others."""
        for module in (processes, runner):
            patch.setattr(module, "time", self.clock)
        patch.setattr(subprocess, "Popen", self.start)
        patch.setattr(os, "listdir", self.listdir)
        patch.setattr(os, "kill", self.kill)
        patch.setattr(processes, "open", self.open_in_proc, raising=False)
        patch.setattr("select.select", self.select)
        patch.setattr(signal, "pidfd_send_signal", self.pidfd_send_signal)
        if has_pidfds:
            patch.setattr(os, "pidfd_open", self.pidfd_open)
        else:
            patch.delattr(os, "pidfd_open")
