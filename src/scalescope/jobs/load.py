"""The load of other programs on this machine while a launch runs."""

import os
import resource
import time
from pathlib import Path
from typing import Any

import psutil

from scalescope import host
from scalescope.records.run import Load

_IDLE = ("idle", "iowait", "guest", "guest_nice")


class LoadMeter:
    """Counts CPU time from its making on: all there was, less what we and our children took."""

    def __init__(self) -> None:
        self._load_average = os.getloadavg()[0]
        self._began, self._busy_s, self._own_s = time.monotonic(), _busy_s(), _own_s()

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
        foreign_s = (_busy_s() - self._busy_s) - self.own_s
        return Load(
            foreign_cores=max(foreign_s / self.elapsed_s, 0.0),
            cores=host.cores().machine_logical,
            load_average=self._load_average,
        )


class Peers:
    """The ranks of this job on this rank's machine: their CPU time is not foreign."""

    def __init__(self, live: Any, device: Any, rank: int, world: int) -> None:
        import torch

        self._live, self._rank, self._world = live, rank, world
        self._values = torch.zeros(world + 1, dtype=torch.float64, device=device)
        machine = Path("/proc/sys/kernel/random/boot_id").read_text()
        machines = self._of_all(1 + int(machine[:8], 16))
        self._here = machines == machines[rank]

    def foreign_cores(self, meter: LoadMeter) -> float:
        """Cores that other programs used on this rank's machine since the meter's making; every rank has to ask."""
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


def _busy_s() -> float:
    """CPU seconds that all cores have worked, or were taken away by a hypervisor."""
    times = psutil.cpu_times()._asdict()
    return float(sum(seconds for kind, seconds in times.items() if kind not in _IDLE))


def _own_s() -> float:
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
