"""Memory that is left in a rank. Standard library and torch only."""

from __future__ import annotations

import contextlib
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
    if device.type == "cuda":
        import torch

        cuda: Any = torch.cuda
        in_reserve = cuda.memory_reserved(device) - cuda.memory_allocated(device)  # by this process
        free = int(cuda.mem_get_info(device)[0] + in_reserve)
    else:
        free = _free_on_host(proc, cgroup) // max(ranks_here, 1)
    return f"{needed >> 20} MiB are needed and {free >> 20} MiB are free" if 2 * needed > free else ""


def _free_on_host(proc: str, cgroup: str) -> int:
    """Free bytes of the machine, or of the container where that has less; no limit where neither tells."""
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
