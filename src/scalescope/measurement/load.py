"""How busy this machine was with other things while a launch ran."""

import os
import resource
import time

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

    def read(self) -> Load:
        """The load since the beginning; all children that count must have been waited for."""
        foreign_s = (_busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return Load(
            foreign_cores=max(foreign_s / self.elapsed_s, 0.0),
            cores=host.cores().machine_logical,
            load_average=self._load_average,
        )


def _busy_s() -> float:
    """CPU seconds that all cores have worked, or were taken away by a hypervisor."""
    times = psutil.cpu_times()._asdict()
    return float(sum(seconds for kind, seconds in times.items() if kind not in _IDLE))


def _own_s() -> float:
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
