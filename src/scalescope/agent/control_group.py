"""How ranks are controlled between steps: rank 0 hears the search through files, and all ranks agree on what is next.

The files lie in the folder of the launch. The search writes one file per directive, `directive-00000.json` and so on;
rank 0 appends lines to `reports.jsonl`. scalescope.tuner.controller_files is the other end and takes the names from
here.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

from .recorder import now

FORMAT_VERSION = 1
NO_ENGINE = "none"  # As records have it, which are not here
DIRECTIVE, REPORTS = "directive-{:05d}.json", "reports.jsonl"
PATIENCE_S = 120.0  # A search that does not answer for this long is believed to be gone


class Controller(Protocol):
    """Where rank 0 hears what to do next and tells what came of it."""

    def ask(self) -> dict[str, Any] | None:
        """The next directive; None: not known yet."""

    def tell(self, line: dict[str, Any]) -> None:
        """Something happened."""


class FileController:
    """The search at the other end of the files in a folder.

    A search that is gone, or that can be told nothing any more, is one that wants to let go.
    """

    def __init__(
        self, folder: str, is_alive: Callable[[], bool] = lambda: True, patience_s: float = PATIENCE_S
    ) -> None:
        self._folder, self._is_alive, self._patience_ns = folder, is_alive, int(patience_s * 1e9)
        self._next = self._waits_since = 0
        self._problem = ""

    def ask(self) -> dict[str, Any] | None:
        """What the next file holds, once it is there."""
        if self._problem:
            return let_go(self._problem)
        alive = self._is_alive()  # before the look: the last thing that a search writes still counts
        try:
            with open(os.path.join(self._folder, DIRECTIVE.format(self._next))) as file:  # noqa: PTH118 - cheap
                directive: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            self._waits_since = self._waits_since or now()
            if not alive:
                return let_go("the process of the search has ended")
            if now() - self._waits_since > self._patience_ns:
                return let_go(f"the search has not answered for {self._patience_ns * 1e-9:.0f} s")
            return None
        except (OSError, ValueError) as problem:
            return let_go(f"what the search wants next cannot be read: {problem}")
        self._next += 1
        self._waits_since = 0
        return directive

    def tell(self, line: dict[str, Any]) -> None:
        """Append a line at once."""
        try:
            with open(os.path.join(self._folder, REPORTS), "a") as file:  # noqa: PTH118
                file.write(json.dumps(line) + "\n")
        except OSError as problem:
            self._problem = f"the search cannot be told what was measured: {problem.strerror}"


def let_go(why: str) -> dict[str, Any]:
    """The directive to end the search and to leave the training as it was."""
    return {"kind": "let_go", "why": why}


_LARGEST_MESSAGE = 2048
_LONGEST_TROUBLE = 300  # Characters; escaped they still fit into a message


def objection(action: Callable[[], Any]) -> str:
    """What an action says against going on, or how it failed, in one line; empty: neither."""
    try:
        return str(action() or "")
    except Exception as problem:  # whatever it is, it must not end a training
        return one_line(problem)


def one_line(problem: BaseException) -> str:
    """The first line of an error's text."""
    return f"{type(problem).__name__}: {problem}".splitlines()[0]


class RankLeft(Exception):
    """A rank makes no steps together with the others for now, and says why."""


class ControlGroup:
    """One process alone; with an engine, its ranks."""

    engine, backend = NO_ENGINE, ""
    rank, size = 0, 1
    wraps_optimizers = False  # Whether the script's optimizer is inside one that waits for gradients

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        host = (os.environ.get("SCALESCOPE_HOST") or socket.gethostname())[:200]
        everybody = self.gather({"host": host, "cores": _as_ranges(list(cores))})
        self.hosts: list[str] = [each["host"] for each in everybody]
        here = {core for each in everybody if each["host"] == host for core in _from_ranges(each["cores"])}
        self.cores = len(here)  # Of this host, that its ranks may use
        self.ranks_here = self.hosts.count(host)

    def gather(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """What every rank says, on every rank."""
        said = [json.loads(row) for row in self._gather(encoded(message))]
        if any("left" in each for each in said):
            raise RankLeft(first_trouble(said))
        if any("failed" in each for each in said):
            raise RuntimeError(first_trouble(said))
        return said

    def share(self, message: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's message, on every rank."""
        return self.gather(message)[0]

    def agree(self, trouble: str) -> str:
        """The trouble of the first rank that has any, on every rank; empty: none has."""
        return first_trouble(self.gather(in_trouble(trouble)))

    def allreduce(self, tensor: Any, name: str) -> None:
        """Sum a tensor over all ranks, in place."""

    def leave(self, why: str) -> None:
        """Say that this rank agrees on nothing for now; who cannot hear that is not asked."""

    def close(self) -> None:
        """Leave: ranks that want to agree afterwards get an error instead of waiting for this one."""

    def _gather(self, data: bytes) -> list[bytes]:
        return [data]


class TorchControlGroup(ControlGroup):
    """The ranks of a process group that holds all of them, on a gloo group of their own."""

    engine = "ddp"

    def __init__(self, process_group: Any) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._training = process_group
        self._group: Any = dist.new_group(backend="gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.backend = str(dist.get_backend(process_group))
        super().__init__()

    def _gather(self, data: bytes) -> list[bytes]:
        import torch

        own = as_tensor(data)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self._dist.all_gather(rows, own, group=self._group)
        return [bytes(row.tolist()) for row in rows]

    def allreduce(self, tensor: Any, name: str) -> None:
        """As the training does it."""
        self._dist.all_reduce(tensor, group=self._training)

    def close(self) -> None:
        """Close the connections of the group."""
        group, self._group = self._group, None
        self._dist.destroy_process_group(group)


def in_trouble(why: str) -> dict[str, Any]:
    """What a rank says that may have trouble."""
    return {"trouble": why[:_LONGEST_TROUBLE]}


def first_trouble(said: list[dict[str, Any]]) -> str:
    """Of the first rank that has any; the others' names say little when all have the same."""
    return next((each["trouble"] for each in said if each.get("trouble")), "")


def encoded(message: dict[str, Any]) -> bytes:
    """A message as ranks exchange it."""
    data = json.dumps(message).encode()
    if len(data) > _LARGEST_MESSAGE:
        raise ValueError(f"a message of {len(data)} bytes to the ranks: at most {_LARGEST_MESSAGE} fit")
    return data


def as_tensor(data: bytes) -> Any:
    """Equally long on every rank; JSON does not mind spaces after it."""
    import torch

    return torch.frombuffer(bytearray(data.ljust(_LARGEST_MESSAGE)), dtype=torch.uint8)


def _as_ranges(numbers: list[int]) -> list[list[int]]:
    """First and last of every run, so that many cores fit into a message."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _from_ranges(ranges: list[list[int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}
