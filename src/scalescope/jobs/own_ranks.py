"""Commands that start their ranks themselves: seen in their words, in a script's source, or while a launch runs."""

import ast
import os
import re
import socket
import time
from collections.abc import Collection
from pathlib import Path

from scalescope.jobs.command import is_python, module_of, program_of, script_of, source_of, without_env
from scalescope.jobs.rank_log import RankLog
from scalescope.records.training_name import LAUNCH_MODULES, LAUNCH_PROGRAMS

_TWO_WORDS = {("fabric", "run"), ("lightning", "run")}
# Launch lines that stay on this machine unless --nnodes says otherwise.
_ON_ONE_HOST = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_SPAWNERS = {
    "torch.multiprocessing.spawn",
    "torch.multiprocessing.start_processes",
    "torch.multiprocessing.spawn.spawn",
    "ignite.distributed.spawn",
    "accelerate.notebook_launcher",
    "accelerate.debug_launcher",
}
STARTS_RANKS = "the script starts its ranks itself"
# A variable that launchers set, other than where a script sets it: environ["RANK"] = ..., {"RANK": ...}
_ASKS_FOR_RANK = re.compile(r"""(["'])(?:LOCAL_)?RANK\1(?!\]\s*=[^=]|\s*:)""")
_INIT_S = 20.0  # A process group whose ranks are all there is made in a second


def is_launch_line(command: tuple[str, ...]) -> bool:
    """True when the command's words are those of a launcher."""
    words = without_env(command)
    name = program_of(words)
    return name in LAUNCH_PROGRAMS or (name, *words[1:2]) in _TWO_WORDS or module_of(words) in LAUNCH_MODULES


def starts_ranks_itself(command: tuple[str, ...]) -> bool:
    """True for a launch line, and for a script whose source starts ranks and takes none from a launcher."""
    return is_launch_line(command) or _spawns(source_of(script_of(without_env(command))))


def places_ranks_elsewhere(command: tuple[str, ...], launcher: str) -> bool:
    """True when a launch line of the user may start ranks on other machines, where nothing of this one holds."""
    if not command or not (launcher == "own" or is_launch_line(command)):
        return False
    words = without_env(command)
    if program_of(words) in _ON_ONE_HOST or module_of(words) in _ON_ONE_HOST:
        line = f" {' '.join(words)} "
        return " --nnodes" in line and not re.search(r" --nnodes[= ]1(:1)? ", line)
    return is_launch_line(command) or not (is_python(words) or script_of(words))


def _spawns(source: str) -> bool:
    """True when a script calls a function that starts ranks, and never asks for the rank that a launcher gives."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
        called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    meaning: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            meaning |= {alias.asname or alias.name: package + alias.name for alias in node.names}
    parts = [name.partition(".") for name in called]
    spawns = any(meaning.get(first, first) + dot + rest in _SPAWNERS for first, dot, rest in parts)
    return spawns and not _ASKS_FOR_RANK.search(source)


class StartsItsOwnRanks(Exception):
    """A launch is given up because its script starts, or waits for, ranks of its own; says what was seen."""


class OwnRanksWatch:
    """Looks for ranks that the script of a launch has started itself, on this machine."""

    def __init__(self, launch: str, np: int) -> None:
        self._mark = f"SCALESCOPE_LAUNCH={launch}".encode()
        self._np = np
        self._host = socket.gethostname()
        self._of_a_rank: dict[int, bool] = {}
        self._init_since: dict[int, float] = {}

    def check(self, logs: Collection[RankLog]) -> None:
        """Raise StartsItsOwnRanks when launchers' ranks cannot explain these records."""
        if "RANK" in os.environ or (len(logs) <= self._np and not any(log.in_init for log in logs)):
            return  # started inside a rank, where ours cannot be told from it; or nothing is strange
        here = [log for log in logs if log.host == self._host and self._mark in _variables(log.pid)]
        waited_s = [self._in_init_s(log) for log in here]
        children = [self._is_child_of_a_rank(log.pid) for log in here]
        worlds = {log.world_size for log, child in zip(here, children, strict=True) if child and log.world_size}
        stuck = max(waited_s, default=0.0) > _INIT_S
        if any(children) and (len(here) > self._np or worlds - {self._np} or stuck):
            raise StartsItsOwnRanks(STARTS_RANKS)
        if self._np == 1 and stuck:
            raise StartsItsOwnRanks("the script waited for ranks that nobody started")

    def _in_init_s(self, log: RankLog) -> float:
        if not log.in_init or log.engine:  # in training it waits for nobody
            self._init_since.pop(log.pid, None)
            return 0.0
        return time.monotonic() - self._init_since.setdefault(log.pid, time.monotonic())

    def _is_child_of_a_rank(self, pid: int) -> bool:
        """True when a process above this one is a rank too, and has torch: no shell or wrapper around the script."""
        if pid not in self._of_a_rank:
            above = _parent(pid)
            while above > 1 and above != os.getpid() and not self._is_rank(above):
                above = _parent(above)
            self._of_a_rank[pid] = self._is_rank(above)
        return self._of_a_rank[pid]

    def _is_rank(self, pid: int) -> bool:
        variables = _variables(pid)
        has_torch = b"libtorch" in _read(pid, "maps")
        return self._mark in variables and any(word.startswith(b"RANK=") for word in variables) and has_torch


def _variables(pid: int) -> list[bytes]:
    return _read(pid, "environ").split(b"\0")


def _parent(pid: int) -> int:
    words = _read(pid, "stat").rpartition(b")")[2].split()
    return int(words[1]) if len(words) > 1 else 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path("/proc", str(pid), name).read_bytes()
    except OSError:
        return b""  # it has ended
