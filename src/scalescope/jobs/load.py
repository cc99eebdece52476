"""The load of other programs on the cores that a job may use, while a launch runs."""

import os
import resource
import time
import zlib
from pathlib import Path
from typing import Any

import psutil

from scalescope import host
from scalescope.records.run import Load

# Interrupts are charged to no process: messages of our own ranks make most of them.
_NOT_OF_PROGRAMS = ("idle", "iowait", "irq", "softirq", "guest", "guest_nice")


class LoadMeter:
    """Counts CPU time from its making on: all that our cores worked, less what we and our children took.

    On a shared node the cores of other jobs do not count.
    """

    def __init__(self) -> None:
        self._load_average = os.getloadavg()[0]
        self._cores = host.allowed()
        self._began, self._busy_s, self._own_s = time.monotonic(), _busy_s(self._cores), _own_s()

    @property
    def elapsed_s(self) -> float:
        """Since its making."""
        return max(time.monotonic() - self._began, 1e-3)

    @property
    def own_s(self) -> float:
        """CPU seconds of this process and its children since then."""
        return _own_s() - self._own_s

    def read(self) -> Load:
        """The load since the beginning; all children that count must have been waited for."""
        foreign_s = (_busy_s(self._cores) - self._busy_s) - self.own_s
        return Load(
            foreign_cores=max(foreign_s / self.elapsed_s, 0.0),
            cores=len(self._cores),
            load_average=self._load_average,
        )


class Peers:
    """The ranks of this job on this rank's cores of this machine: their CPU time is not foreign."""

    def __init__(self, live: Any, device: Any, rank: int, world: int) -> None:
        import torch

        self._live, self._rank, self._world = live, rank, world
        self._values = torch.zeros(world + 1, dtype=torch.float64, device=device)
        machine = Path("/proc/sys/kernel/random/boot_id").read_text()
        places = self._of_all(1 + zlib.crc32(f"{machine}{sorted(host.allowed())}".encode()))
        self._here = places == places[rank]

    def foreign_cores(self, meter: LoadMeter) -> float:
        """Cores that other programs used among this rank's since the meter's making; every rank has to ask."""
        own_s = meter.own_s
        others_s = float(self._of_all(own_s)[self._here].sum()) - own_s
        return max(meter.read().foreign_cores - others_s / meter.elapsed_s, 0.0)

    def most(self, value: float) -> float:
        """The largest of all ranks' values; every rank has to ask."""
        return float(self._of_all(value).max())

    def _of_all(self, own: float) -> Any:
        """Every rank's value; the last element tells whether the engine adds or averages."""
        self._values.zero_()
        self._values[self._rank], self._values[-1] = own, 1.0
        self._live.wait(self._live.begin_allreduce(self._values, "scalescope.peers"))
        return (self._values[:-1] * self._world / self._values[-1]).round(decimals=9)


def _busy_s(cores: frozenset[int]) -> float:
    """CPU seconds that programs had these cores, or a hypervisor took them away."""
    everything = psutil.cpu_times(percpu=True)  # of the cores that are switched on, in the order of their numbers
    numbers = host.numbers()
    if len(numbers) == len(everything):  # else the system does not tell whose each is: all count
        everything = [times for number, times in zip(numbers, everything, strict=True) if number in cores]
    return sum(
        float(seconds)
        for times in everything
        for kind, seconds in times._asdict().items()
        if kind not in _NOT_OF_PROGRAMS
    )


def _own_s() -> float:
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
