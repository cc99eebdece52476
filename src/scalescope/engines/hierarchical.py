"""Allreduce over gloo in three phases: inside each host, between hosts, inside each host.

The slow links between hosts then carry every gradient once per host instead of once per rank, as NCCL does by itself.
Standard library and torch only.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def prepare(process_group: dist.ProcessGroup, device: str = "cpu") -> Groups | str:
    """Groups inside and between hosts, or why there are none; every rank calls it, and only the first call talks.

    Args:
        process_group: All ranks.
        device: The kind of device that holds what is summed.
    """
    known = _registry()
    if process_group not in known:
        known[process_group] = _make(process_group, device)
    return known[process_group]


def prepared(process_group: dist.ProcessGroup) -> Groups | str:
    """Return what `prepare` found for this process group, without communication."""
    return _registry().get(process_group, "its groups were not prepared")


class Groups:
    """The groups of one rank, and an allreduce over them."""

    def __init__(self, hosts: list[list[int]]) -> None:
        own = dist.get_rank()
        host = next(ranks for ranks in hosts if own in ranks)
        self.hosts = len(hosts)
        self.ranks_per_host = len(host)
        self._ranks = host
        self._index = host.index(own)
        across = [ranks[self._index] for ranks in hosts]
        # Two groups inside a host: buckets are scattered and gathered at the same time, in no common order.
        self._scatter, self._gather, self._across = (
            dist.new_group(ranks, backend="gloo", use_local_synchronization=True) for ranks in (host, host, across)
        )
        self._entrance: queue.SimpleQueue[_Bucket] | None = None

    def hook(self, state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """A communication hook of DDP: the mean over all ranks."""
        return self._start(bucket.buffer().div_(self.hosts * self.ranks_per_host))

    def allreduce(self, tensor: torch.Tensor) -> None:
        """The sum over all ranks, in place; returns when it is there."""
        self._start(tensor.view(-1)).wait()
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)

    def _start(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        if self._entrance is None:
            gather = _in_thread(self._gather_parts, _Bucket.finish)
            across = _in_thread(self._reduce_across, gather.put)
            self._entrance = _in_thread(self._scatter_parts, across.put)
        bucket = _Bucket(tensor)
        self._entrance.put(bucket)
        return bucket.future.then(torch.futures.Future.wait)

    def _scatter_parts(self, bucket: _Bucket) -> None:
        parts = self._parts(bucket.on_cpu())
        own = parts[self._index]
        received = [torch.empty_like(own) for _ in self._others]
        self._exchange(self._scatter, [parts[other] for other in self._others], received)
        for addend in received:
            own.add_(addend)

    def _reduce_across(self, bucket: _Bucket) -> None:
        own = self._parts(bucket.values)[self._index]
        if own.numel():
            dist.all_reduce(own, group=self._across)

    def _gather_parts(self, bucket: _Bucket) -> None:
        parts = self._parts(bucket.values)
        self._exchange(self._gather, [parts[self._index]] * len(self._others), [parts[at] for at in self._others])
        bucket.back_to_device()

    @property
    def _others(self) -> list[int]:
        return [index for index in range(self.ranks_per_host) if index != self._index]

    def _parts(self, values: torch.Tensor) -> list[torch.Tensor]:
        """One part for each rank of the host, as equal as they can be; some are empty when there are few values."""
        ends = [values.numel() * index // self.ranks_per_host for index in range(self.ranks_per_host + 1)]
        return [values[ends[index] : ends[index + 1]] for index in range(self.ranks_per_host)]

    def _exchange(self, group: Any, sent: list[torch.Tensor], received: list[torch.Tensor]) -> None:
        """Send something to every other rank of the host and receive something from it.

        Over gloo this takes half the time of its reduce-scatter and all-gather.
        """
        started = []
        for position, other in enumerate(self._others):
            if received[position].numel():
                started.append(dist.irecv(received[position], self._ranks[other], group=group))
            if sent[position].numel():
                started.append(dist.isend(sent[position], self._ranks[other], group=group))
        for work in started:
            if work is not None:
                work.wait()


Groups.hook.__annotations__.clear()  # DDP wants its own types there, or none


class _Bucket:
    """A tensor on its way through the phases."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.values = self._tensor = tensor
        self._error: Exception | None = None
        self._ready: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._ready = torch.cuda.current_stream(tensor.device).record_event()
        self.future: torch.futures.Future[Any] = torch.futures.Future(
            devices=[tensor.device] if tensor.is_cuda else None
        )

    def on_cpu(self) -> torch.Tensor:
        """Return the values in host memory, from where gloo can send them, once they are there."""
        if self._ready is not None:
            self._ready.synchronize()
            self.values = self._tensor.cpu()
        return self.values

    def back_to_device(self) -> None:
        """The reduced values where they came from."""
        if self.values is not self._tensor:
            self._tensor.copy_(self.values)

    def attempt(self, phase: Callable[[_Bucket], None]) -> None:
        """Go through a phase; after an error through none."""
        try:
            if self._error is None:
                phase(self)
        except Exception as error:
            self._error = error

    def finish(self) -> None:
        """Hand the result or the error to whoever waits."""
        if self._error is None:
            self.future.set_result(self._tensor)
        else:
            self.future.set_exception(self._error)


def _in_thread(phase: Callable[[_Bucket], None], then: Callable[[_Bucket], None]) -> queue.SimpleQueue[_Bucket]:
    """A thread that takes buckets through a phase in the order in which they come, the same on every rank."""
    waiting: queue.SimpleQueue[_Bucket] = queue.SimpleQueue()

    def work() -> None:
        while True:
            bucket = waiting.get()
            bucket.attempt(phase)
            then(bucket)

    threading.Thread(target=work, name="scalescope-hierarchical", daemon=True).start()
    return waiting


def _registry() -> weakref.WeakKeyDictionary[dist.ProcessGroup, Groups | str]:
    """Kept by torch: this file may be loaded under several names in one process."""
    name = "_scalescope_groups"
    if not hasattr(dist, name):
        setattr(dist, name, weakref.WeakKeyDictionary())
    registry: weakref.WeakKeyDictionary[dist.ProcessGroup, Groups | str] = getattr(dist, name)
    return registry


def _make(whole: dist.ProcessGroup, device: str) -> Groups | str:
    backends = dict(pair.split(":", 1) for pair in dist.get_backend_config(whole).split(","))
    if backends.get(device) != "gloo":
        return f"it works over gloo, not over {backends.get(device, 'nothing')}"
    members = dist.get_process_group_ranks(whole)
    names = [""] * len(members)  # SCALESCOPE_HOST names hosts where several are played on one machine
    dist.all_gather_object(names, os.environ.get("SCALESCOPE_HOST") or socket.gethostname(), group=whole)
    sizes = Counter(names)
    if len(sizes) == 1:
        return "all ranks are on one host"
    if len(set(sizes.values())) > 1:
        return f"the hosts have different numbers of ranks ({', '.join(str(size) for size in sizes.values())})"
    if len(sizes) == len(members):
        return "every host has one rank"
    return Groups([[rank for at, rank in enumerate(members) if names[at] == name] for name in sizes])
