"""Measures what DDP and FSDP2 cost one process by themselves: blocks with each and bare ones, in pairs.

Their order alternates, and both are made in one process, so that drift of the machine does not count. FSDP2 runs as
rank 0 of N, of which no other rank exists: hooks, copies, the optimizer on a shard and memory are real, and its
collectives take no time.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from scalescope.agent.rank_zero import between_steps, risen_bytes
from scalescope.agent.rank_zero_group import Seams
from scalescope.agent.rank_zero_recording import Recording
from scalescope.estimation.profile_blocks import Block, Pair, Sharding
from scalescope.estimation.profile_plan import steps_of_block
from scalescope.jobs.step_clock import StepClock
from scalescope.records.profile import WorkloadSpec

_PAIRS = 2  # Of blocks with an engine and without it, in one launch
_WARM_UP = 3  # Steps: DDP rebuilds its buckets after the first


class EngineCosts:
    """Blocks with engines, next to those of a bare model that is there already.

    Engines have models of their own: hooks that they leave on parameters would slow the bare one down.
    """

    def __init__(self, workload: WorkloadSpec, bare: StepClock, device: Any, write: Callable[[Block], None]) -> None:
        self._workload, self._bare, self._device, self._write = workload, bare, device, write

    def wrapped(self, batch: int) -> None:
        """DDP over a group of one, among the real ranks that are connected."""
        import torch
        import torch.distributed as dist

        from scalescope.workloads import load

        group = dist.new_group([0], use_local_synchronization=True)
        apart = load(self._workload)
        model = torch.nn.parallel.DistributedDataParallel(apart.model, process_group=group)
        clock = StepClock(dataclasses.replace(apart, model=model), self._device)
        for each in (self._bare, clock):
            each.use(batch)
            for _ in range(_WARM_UP):
                each.step()
        self._pairs("wrapped", clock, batch)

    def sharded(self, sharding: Sharding, batches: Sequence[int], *, weigh: bool) -> None:
        """An engine that shards as rank 0 of N; no real process group may be open in this process.

        Args:
            sharding: The engine, and the numbers of processes.
            batches: Batch sizes, each of them for every number.
            weigh: Look at memory as well.
        """
        from torch.distributed import distributed_c10d as c10d

        recording = Recording()
        if self._device.type == "cuda":
            recording.use_gpu()
        Seams(max(sharding.ranks), recording, warn=_ignore, miss=_ignore, refuse=_refuse).replace(c10d)
        c10d.init_process_group("nccl" if self._device.type == "cuda" else "gloo")
        for count in sharding.ranks:
            self._as_rank_zero(sharding, count, batches, recording, weigh=weigh)

    def _as_rank_zero(
        self, sharding: Sharding, count: int, batches: Sequence[int], recording: Recording, *, weigh: bool
    ) -> None:
        """Blocks of one number of processes; its model goes before the next one comes."""
        from torch.distributed import distributed_c10d as c10d
        from torch.distributed.device_mesh import DeviceMesh

        from scalescope.workloads import load

        live = importlib.import_module(sharding.live_module)
        apart = load(self._workload)
        mesh = DeviceMesh.from_group(c10d.new_group(list(range(count))), self._device.type)
        model, _ = live.wrap(apart.model.to(self._device), apart.optimizer, sharding.knobs, mesh=mesh)
        clock = StepClock(dataclasses.replace(apart, model=model), self._device)
        for batch in batches:
            fills_s = []  # Alike in every step; the shortest was not interrupted by other programs
            for each in (self._bare, clock):
                each.use(batch)
            for _ in range(_WARM_UP):
                self._bare.step()
                recording.begin()
                clock.step()
                recording.end()
                fills_s.append(recording.summary()["fill_s"])
            memory = [self._peak_bytes(each) if weigh else 0 for each in (self._bare, clock)]
            self._pairs("sharded", clock, batch, count, min(fills_s), memory)

    def _pairs(
        self,
        kind: Pair,
        clock: StepClock,
        batch: int,
        ranks: int = 1,
        fill_s: float = 0.0,
        memory_bytes: Sequence[int] = (0, 0),
    ) -> None:
        step_s = sum(clock.step()[:3])
        sides: list[tuple[Pair, StepClock, float, int]] = [
            ("bare", self._bare, 0.0, memory_bytes[0]),
            (kind, clock, fill_s, memory_bytes[1]),
        ]
        for number in range(_PAIRS):
            for name, each, made_up_s, peak_bytes in reversed(sides) if number % 2 else sides:
                times = [each.step() for _ in range(max(steps_of_block(step_s) // 2, 2))]
                block = Block(
                    batch=batch,
                    copies=1,
                    forward_s=[one.forward_s for one in times],
                    backward_s=[one.backward_s for one in times],
                    optimizer_s=[one.optimizer_s for one in times],
                    memory_bytes=peak_bytes,
                    pair=name,
                    ranks=ranks,
                    fill_s=made_up_s,
                )
                self._write(block)

    def _peak_bytes(self, clock: StepClock) -> int:
        """The most that this model takes in a step: what it holds between steps, and what rises above that."""
        import torch

        held = clock.held_bytes()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
            clock.step()
            return held + torch.cuda.max_memory_allocated(self._device) - before
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            clock.step()  # makes known what the next one frees
            between_steps()
            clock.step()
        return held + risen_bytes(profile)


def _ignore(_sentence: str) -> None:
    pass


def _refuse(why: str) -> NoReturn:
    raise RuntimeError(why)
