"""Agreement of an engine's ranks between steps. Standard library and torch only."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

NO_ENGINE = "none"  # As records have it, which are not here
NOTE_MARK = "scalescope-note:"  # Before a line of a rank that people should see next to the result
_LARGEST_MESSAGE = 2048
_LONGEST_TROUBLE = 300  # Characters; escaped they still fit into a message


def objection(action: Callable[[], Any]) -> str:
    """Run an action and return its objection to going on, or its error, in one line; empty: neither."""
    try:
        return str(action() or "")
    except Exception as problem:  # whatever it is, it must not end a training
        return one_line(problem)


def one_line(problem: BaseException) -> str:
    """The first line of an error's text."""
    return f"{type(problem).__name__}: {problem}".splitlines()[0]


def interface_address(name: str, request: int = 0x8915) -> str:
    """The IPv4 address of a network interface, which SIOCGIFADDR asks for, or its mask; empty where it has none."""
    import fcntl

    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking.fileno(), request, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return ""


class RankLeft(Exception):
    """A rank makes no steps together with the others for now, and says why."""


class ControlGroup:
    """Group of ranks that agree: one process alone, or with an engine its ranks."""

    engine, backend = NO_ENGINE, ""
    rank, size = 0, 1
    hierarchical: Any = None  # What has an `allreduce` by hosts, where a survey is to know its costs
    wraps_optimizers = False  # Whether the script's optimizer is inside one that waits for gradients

    def __init__(self) -> None:
        own_cores = sum(1 << core for core in os.sched_getaffinity(0))  # a bit each: a thousand fit into a message
        host = (os.environ.get("SCALESCOPE_HOST") or socket.gethostname())[:200]
        everybody = self.gather({"host": host, "cores": f"{own_cores:x}"})
        self.hosts: list[str] = [each["host"] for each in everybody]
        cores_here = 0
        for each in everybody:
            cores_here |= int(each["cores"], 16) if each["host"] == host else 0
        self.cores = f"{cores_here:b}".count("1")  # Of this host, that its ranks may use
        self.ranks_here = self.hosts.count(host)

    def gather(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Gather the messages of all ranks, on every rank."""
        messages = [json.loads(row) for row in self._gather(encoded(message))]
        if any("left" in each for each in messages):
            raise RankLeft(first_trouble(messages))
        if any("failed" in each for each in messages):
            raise RuntimeError(first_trouble(messages))
        return messages

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


def in_trouble(why: str) -> dict[str, Any]:
    """Message with which a rank reports trouble; empty trouble: it has none."""
    return {"trouble": why[:_LONGEST_TROUBLE]}


def first_trouble(messages: list[dict[str, Any]]) -> str:
    """Trouble of the first rank that has any: when all have the same, the others' names say little; empty: none has."""
    return next((each["trouble"] for each in messages if each.get("trouble")), "")


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
