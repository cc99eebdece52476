"""One file of JSON lines per rank, written as things happen. Times are nanoseconds of the host's monotonic clock."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

now = time.monotonic_ns  # one clock for all processes of a host, and never set

FORMAT_VERSION = 1
# In which launchers tell a process its rank, the surest first.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK", "SLURM_PROCID")


class LineFile:
    """A file of lines of this rank. A failed write is reported once, and the training continues without it."""

    def __init__(self, path: str, what: str, how: int) -> None:
        self._what, self._number = what, -1
        try:
            self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o644)
        except OSError as problem:
            self._give_up(problem)

    @property
    def is_open(self) -> bool:
        """True until it is closed, or a line could not be written."""
        return self._number >= 0

    def write(self, lines: str) -> None:
        """Hand lines to the operating system."""
        data = lines.encode()
        try:
            while data and self.is_open:
                data = data[os.write(self._number, data) :]
        except OSError as problem:
            self._give_up(problem)

    def close(self) -> None:
        """Take no more lines."""
        if self.is_open:
            with contextlib.suppress(OSError):
                os.close(self._number)
            self._number = -1

    def _give_up(self, problem: OSError) -> None:
        say(f"cannot write this rank's {self._what}: {problem.strerror}")
        self.close()


class Recorder:
    """Holds lines back until the process turns out to be a rank, then appends them to its file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._started_wall_ns = time.time_ns()
        self.started = now()
        self._file: LineFile | None = None
        self._pending: list[str] = []

    def after_fork(self) -> None:
        """A forked child is another process: a data-loader worker that never steps, or a rank of its own."""
        self._begin()

    @property
    def is_rank(self) -> bool:
        """True when this process has shown itself to be a rank."""
        return self._file is not None and self._file.is_open

    @property
    def is_broken(self) -> bool:
        """True when writing has failed: nothing is kept or written any more."""
        return self._file is not None and not self._file.is_open

    def become_rank(self, stack_signal: int) -> None:
        """Open the file and say who this is; launchers and data-loader workers never come here."""
        if self.is_rank or self.is_broken:
            return
        host = socket.gethostname()
        who = f"{''.join(c if c.isalnum() else '_' for c in host)}-{os.getpid()}"
        self.stack_path = os.path.join(self._folder, f"stack-{who}.txt")  # noqa: PTH118 - cheap
        hello = {
            "kind": "hello",
            "version": FORMAT_VERSION,
            "host": host,
            "pid": os.getpid(),
            "rank": rank_from_environment(),
            "wall_ns": self._started_wall_ns,
            "t": self.started,
            "clock": clock_name(),
            "stack_signal": stack_signal,
            **machine(),
        }
        self._file = LineFile(os.path.join(self._folder, f"agent-{who}.jsonl"), "record", os.O_APPEND)  # noqa: PTH118 - cheap
        self._pending.insert(0, json.dumps(hello) + "\n")
        self.flush()

    def line(self, kind: str, **fields: Any) -> None:
        """Write one line at once, or keep it until this process is known to be a rank."""
        self.text(json.dumps({"kind": kind, **fields}) + "\n")

    def text(self, lines: str) -> None:
        """Write lines that are ready."""
        if not self.is_broken:
            self._pending.append(lines)
            self.flush()

    def flush(self) -> None:
        """Hand all pending lines to the operating system."""
        if self._file is not None:
            self._file.write("".join(self._pending))
            self._pending.clear()


def say(line: str) -> None:
    """A line for people; past Python's buffers, which would keep what a full disk does not take until the very end."""
    with contextlib.suppress(OSError):
        os.write(2, f"scalescope: {line}\n".encode(errors="replace"))


def reason(problem: BaseException) -> str:
    """A problem in one line."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return [*str(problem).splitlines(), type(problem).__name__][0]


_said: set[str] = set()


def say_once(what: str, problem: BaseException) -> None:
    """Whatever goes wrong in the agent, the training goes on; what is missing then, and why, is said once."""
    if what not in _said:
        _said.add(what)
        say(f"{what}: {reason(problem)}")


def guarded(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, that says once what is missing where it would raise."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as problem:
            say_once(what, problem)

    return call


def clock_name() -> str:
    """Processes with the same name share the monotonic clock: same boot, same time namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/time')}"  # noqa: PTH115 - pathlib is slow
    except OSError:
        return ""


# Batch systems, and the variable in which each tells a job its number.
_BATCH_SYSTEMS = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID", "lsf": "LSB_JOBID"}
_FIRST_CPU_BYTES = 4096  # Of /proc/cpuinfo, which takes a while to read on a machine of many cores


def machine() -> dict[str, Any]:
    """The host that a rank runs on, and the batch job that it belongs to."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 0,
        "gpus": gpu_models(),
        "batch_job": batch_job(),
    }


def cpu_model() -> str:
    """The model of the host's CPU, as the kernel names it; empty where it does not."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", "rb") as file:
        for line in file.read(_FIRST_CPU_BYTES).decode(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def batch_job() -> str:
    """`slurm 4711`; empty outside of a job."""
    found = (f"{name} {os.environ[variable]}" for name, variable in _BATCH_SYSTEMS.items() if os.environ.get(variable))
    return next(found, "")


def gpu_models(folder: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """Models of the host's GPUs, whether or not this rank may use them; CUDA is not started for it."""
    models = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - pathlib is slow
            with open(f"{folder}/{name}/information", errors="replace") as file:
                told = dict(line.split(":", 1) for line in file if ":" in line)
            models.append(told.get("Model", "").strip())
    return models


def rank_from_environment() -> int | None:
    """The rank as the launcher told it."""
    for name in RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None
