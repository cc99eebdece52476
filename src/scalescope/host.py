"""Finds what a job may use of the machine it runs on: cores within affinity mask and cgroup quota, memory, GPUs.

Other hosts are asked by running this very file there, so it needs the standard library of Python 3.9 only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SYSFS_CPUS = Path("/sys/devices/system/cpu")
_PROC_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_PATIENCE_S = 60.0  # For a driver that hangs


class Cores(NamedTuple):
    """Cores of this machine; `logical` counts every hyperthread."""

    physical: int  # A process may use these: cores within its mask, as many as its quota pays for; at least 1
    logical: int  # The same in hyperthreads; at least 1
    allowed: float  # The same without rounding: the smaller of mask and quota
    machine_physical: int | None  # All cores of the machine; None where the system does not say
    machine_logical: int


def cores(
    mask: frozenset[int] | None = None,
    *,
    cpus: Path = _SYSFS_CPUS,
    proc: Path = _PROC_CGROUP,
    cgroups: Path = _CGROUPS,
) -> Cores:
    """Cores that this process and its children may use; `mask` overrides the affinity mask."""
    mask = allowed() if mask is None else mask
    quota = cpu_quota(proc, cgroups)
    everything = {number: _core_of(cpus, number) for number in numbers(cpus)}
    in_mask = {everything.get(number) or frozenset([number]) for number in mask}
    return Cores(
        physical=max(int(min(len(in_mask), quota)), 1),
        logical=max(int(min(len(mask), quota)), 1),
        allowed=min(float(len(mask)), quota),
        machine_physical=len(set(everything.values())) if everything and all(everything.values()) else None,
        machine_logical=len(everything) or os.cpu_count() or 1,
    )


def allowed() -> frozenset[int]:
    """Numbers of the cores that this process and its children may use."""
    # Only Linux has affinity masks.
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def cpu_quota(proc: Path = _PROC_CGROUP, cgroups: Path = _CGROUPS) -> float:
    """Cores that the control groups of this process pay for; infinity without a limit."""
    limits = [float("inf")]
    for folder in _control_groups(proc, cgroups, "cpu"):
        words = _words(folder / "cpu.max")  # version 2, else version 1
        words = words or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0] not in ("max", "-1"):
            limits.append(int(words[0]) / int(words[1]))
    return min(limits)


def memory_limit_bytes(proc: Path = _PROC_CGROUP, cgroups: Path = _CGROUPS) -> float:
    """Memory that the control groups of this process allow; infinity without a limit."""
    limits = [float("inf")]
    for folder in _control_groups(proc, cgroups, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += [float(word) for word in _words(folder / name) if word != "max"]
    return min(limits)


class Card(NamedTuple):
    """A GPU of this machine."""

    name: str
    memory_bytes: int  # 0 where it shares the memory of the processor


def cards() -> list[Card]:
    """The GPUs of this machine, as the driver lists them, whether or not a job may use them."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(query, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = (
        [line.rsplit(",", 1) for line in listing.stdout.splitlines() if "," in line] if not listing.returncode else []
    )
    return [Card(name.strip(), int(size) * 2**20 if size.strip().isdigit() else 0) for name, size in rows]


def gpus() -> int:
    """GPUs that a job here may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    return len(cards())


def threads_per_rank(cores: int, ranks: int) -> int:
    """Threads of each rank where `ranks` of them share these cores."""
    return max(cores // max(ranks, 1), 1)


def slots(device: str) -> int:
    """Ranks that have a device of their own here: one per GPU, or per logical core on `cpu` and without GPUs."""
    return (device != "cpu" and gpus()) or cores().logical


def numbers(cpus: Path = _SYSFS_CPUS) -> list[int]:
    """Logical cores that are there and switched on."""
    folders = [path.parent for path in cpus.glob("cpu[0-9]*/topology")]
    return sorted(int(folder.name[3:]) for folder in folders if _words(folder / "online") != ["0"])


def _core_of(cpus: Path, number: int) -> frozenset[int]:
    """The hyperthreads of the physical core that a logical one belongs to; empty where the system does not say."""
    topology = cpus / f"cpu{number}" / "topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the older name comes second
        for word in _words(topology / name):
            return frozenset(_expand(word))
    return frozenset()


def _expand(ranges: str) -> Iterator[int]:
    """The numbers of `0-1,4`."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _control_groups(proc: Path, root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups and of the groups around them, versions 1 and 2."""
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in lines:
        if controllers and controller not in controllers.split(","):
            continue
        bases = [root / controller, root / controllers] if controllers else [root, root / "unified"]
        for base in bases:
            # In a container the path is the host's and not to be seen: the container's own group is the mount itself.
            inner = base.joinpath(*(part for part in path.split("/") if part not in ("", "..")))
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(base))


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


if __name__ == "__main__":
    print(json.dumps(cores()._asdict()))
