"""Cores that other programs used: CPU times of a made-up machine, of this rank, and of its peers."""

import os
import resource
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from scalescope import host
from scalescope.jobs import load
from scalescope.jobs.load import LoadMeter, Peers


class Times(NamedTuple):
    user: float = 0.0
    system: float = 0.0
    steal: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0
    softirq: float = 0.0
    guest: float = 0.0
    guest_nice: float = 0.0


class Machine:
    """What the kernel says about CPU time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.all = Times()  # of core 8, which is ours
        self.others = Times()  # of core 12, which is another job's
        self.own: dict[int, tuple[float, float]] = {}

    def usage(self, who: int) -> SimpleNamespace:
        user, system = self.own.get(who, (0.0, 0.0))
        return SimpleNamespace(ru_utime=user, ru_stime=system)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(load, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [made.all, made.others])
    monkeypatch.setattr(host, "numbers", lambda: [8, 12])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {8})
    monkeypatch.setattr(resource, "getrusage", made.usage)
    return made


def test_foreign_load_is_the_cpu_time_of_neither_us_nor_our_children(machine: Machine) -> None:
    machine.all = Times(1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000)
    machine.own = {resource.RUSAGE_SELF: (100, 100), resource.RUSAGE_CHILDREN: (100, 100)}
    meter = LoadMeter()
    machine.now += 10
    machine.all = Times(1020, 1010, 1005, 5000, 6000, 6500, 7000, 8000)
    machine.own = {resource.RUSAGE_SELF: (101, 102), resource.RUSAGE_CHILDREN: (103, 104)}
    found = meter.read()
    assert (meter.elapsed_s, meter.own_s) == (10, 10)
    assert found.foreign_cores == pytest.approx((35 - 10) / 10)
    assert found.cores == 1


def test_work_on_cores_of_other_jobs_is_not_foreign_load(machine: Machine) -> None:
    meter = LoadMeter()
    machine.now += 10
    machine.all, machine.others = Times(user=10), Times(user=1000)
    assert meter.read().foreign_cores == pytest.approx(1.0)


def test_rounding_makes_no_negative_load_and_no_division_by_zero(machine: Machine) -> None:
    meter = LoadMeter()
    machine.own = {resource.RUSAGE_SELF: (5, 0)}
    assert meter.elapsed_s == 1e-3
    assert meter.read().foreign_cores == 0.0


def test_the_load_average_is_that_of_the_beginning(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 7.0, 8.0))
    meter = LoadMeter()
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    assert meter.read().load_average == 1.5


def test_cpu_time_of_this_process_is_not_foreign() -> None:
    meter = LoadMeter()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert meter.own_s >= 0.04


class Live:
    """An engine whose other ranks say what they are told to; it adds or averages."""

    def __init__(self, world: int, averages: bool) -> None:
        self.world, self.averages = world, averages
        self.others: dict[int, float] = {}

    def begin_allreduce(self, values: torch.Tensor, name: str) -> torch.Tensor:
        assert name == "scalescope.peers"
        for rank, value in self.others.items():
            values[rank] += value
        values[-1] += self.world - 1
        if self.averages:
            values /= self.world
        return values

    def wait(self, handle: torch.Tensor) -> None:
        assert handle.dtype == torch.float64


def place_number() -> int:
    return 1 + zlib.crc32(f"{Path('/proc/sys/kernel/random/boot_id').read_text()}[8]".encode())


@pytest.mark.parametrize("averages", [True, False])
def test_peers_on_the_same_machine_are_no_foreigners(machine: Machine, averages: bool) -> None:
    live = Live(3, averages)
    live.others = {0: place_number(), 2: place_number() + 1}  # rank 2 is elsewhere
    peers = Peers(live, torch.device("cpu"), 1, 3)
    meter = LoadMeter()
    machine.now += 10
    machine.all = Times(user=40)
    machine.own = {resource.RUSAGE_SELF: (8, 0)}
    live.others = {0: 12.0, 2: 1000.0}
    assert peers.foreign_cores(meter) == pytest.approx((40 - 8 - 12) / 10)
    live.others = {0: 50.0, 2: 0.0}
    assert peers.foreign_cores(meter) == 0.0


@pytest.mark.parametrize("averages", [True, False])
def test_the_most_of_all_ranks_is_known_to_all(machine: Machine, averages: bool) -> None:
    live: Any = Live(2, averages)
    live.others = {1: place_number()}
    peers = Peers(live, torch.device("cpu"), 0, 2)
    live.others = {1: 0.75}
    assert (peers.most(0.5), peers.most(0.9)) == pytest.approx((0.75, 0.9))
