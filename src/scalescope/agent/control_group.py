"""How much memory this rank could take without harm to the training.
How ranks meet between steps: what each of them says, which hosts there are, and an allreduce to probe.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from typing import Any


def no_room_for(
    needed: int, device: Any, ranks_here: int, *, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup"
) -> str:
    """Why `needed` bytes are too many, in one line: they are more than half of what is free; empty: they are not.

    Args:
        needed: Bytes that this rank is about to take.
        device: The torch.device that is to hold them.
        ranks_here: Ranks of this host, each of which takes as much.
        proc: The folder in which the kernel accounts for memory.
        cgroup: The folder in which it does so for this container.
    """
    free = _free_on_gpu(device) if device.type == "cuda" else _free_on_host(proc, cgroup) // max(ranks_here, 1)
    return f"{needed >> 20} MiB are needed and {free >> 20} MiB are free" if 2 * needed > free else ""


def _free_on_gpu(device: Any) -> int:
    """What nobody has, and what this process holds in reserve."""
    import torch

    cuda: Any = torch.cuda
    free, _ = cuda.mem_get_info(device)
    return int(free + cuda.memory_reserved(device) - cuda.memory_allocated(device))


def _free_on_host(proc: str, cgroup: str) -> int:
    """Of the machine, or of the container where that has less; where neither tells, any amount."""
    free = [_named(f"{proc}/meminfo", "MemAvailable:", 1 << 50) << 10]
    with contextlib.suppress(OSError, ValueError), open(f"{cgroup}/memory.max") as limit:
        with open(f"{cgroup}/memory.current") as current:
            used = int(current.read()) - _named(f"{cgroup}/memory.stat", "inactive_file", 0)  # a cache gives way
        free.append(int(limit.read()) - used)
    return max(min(free), 0)


def _named(path: str, name: str, otherwise: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(name)), otherwise)
    return otherwise


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


class Meeting:
    """One process alone; with an engine, its ranks."""

    engine, backend = "none", ""
    rank, size = 0, 1

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
        return [_decoded(row) for row in self._gather(_encoded(message))]

    def share(self, message: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's message, on every rank."""
        return _decoded(self._gather(_encoded(message))[0])

    def agree(self, trouble: str) -> str:
        """The trouble of the first rank that has any, on every rank; empty: none has."""
        return first_trouble(self.gather(in_trouble(trouble)))

    def allreduce(self, tensor: Any, name: str) -> None:
        """Sum a tensor over all ranks, in place."""

    def close(self) -> None:
        """Leave: ranks that meet afterwards get an error instead of waiting for this one."""

    def _gather(self, data: Any) -> list[Any]:
        return [data]


class TorchMeeting(Meeting):
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

    def _gather(self, data: Any) -> list[Any]:
        import torch

        rows = [torch.empty_like(data) for _ in range(self.size)]
        self._dist.all_gather(rows, data, group=self._group)
        return rows

    def allreduce(self, tensor: Any, name: str) -> None:
        """As the training does it."""
        self._dist.all_reduce(tensor, group=self._training)

    def close(self) -> None:
        """Close the connections of the group."""
        group, self._group = self._group, None
        self._dist.destroy_process_group(group)


class HorovodMeeting(Meeting):
    """Horovod's ranks."""

    engine = "horovod"

    def __init__(self, horovod: Any) -> None:
        self._horovod = horovod
        self.rank, self.size = horovod.rank(), horovod.size()
        self.backend = "mpi" if horovod.mpi_enabled() else "gloo"
        super().__init__()

    def _gather(self, data: Any) -> list[Any]:
        return list(self._horovod.allgather(data.reshape(1, -1), name="scalescope.words"))

    def allreduce(self, tensor: Any, name: str) -> None:
        """As the training does it."""
        self._horovod.allreduce_(tensor, name=f"scalescope.{name}", op=self._horovod.Sum)


def in_trouble(why: str) -> dict[str, Any]:
    """What a rank says that may have trouble."""
    return {"trouble": why[:_LONGEST_TROUBLE]}


def first_trouble(said: list[dict[str, Any]]) -> str:
    """Of the first rank that has any; the others' names say little when all have the same."""
    return next((each["trouble"] for each in said if each.get("trouble")), "")


def _encoded(message: dict[str, Any]) -> Any:
    import torch

    data = json.dumps(message).encode()
    if len(data) > _LARGEST_MESSAGE:
        raise ValueError(f"a message of {len(data)} bytes to the ranks: at most {_LARGEST_MESSAGE} fit")
    return torch.frombuffer(bytearray(data.ljust(_LARGEST_MESSAGE)), dtype=torch.uint8)


def _decoded(row: Any) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(bytes(row.tolist()))
    return message


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
