"""Allreduce in three phases: inside each host, between hosts, inside each host. Standard library and torch only.

The slow links between hosts then carry every gradient once per host instead of once per rank.
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

_WORKING_BACKENDS = {"gloo", "nccl"}


def prepare(process_group: dist.ProcessGroup | None = None) -> Groups | str:
    """Groups inside and between hosts, or why there are none; every rank calls it, and only the first call talks."""
    whole = process_group or dist.group.WORLD
    if whole is None:
        return "there is no process group"
    known = _registry()
    if whole not in known:
        known[whole] = _make(whole)
    return known[whole]


def prepared(process_group: dist.ProcessGroup) -> Groups | str:
    """Return what `prepare` found for this process group, without communication."""
    return _registry().get(process_group, "its groups were not prepared")


class Groups:
    """The groups of one rank, and an allreduce over them."""

    def __init__(self, hosts: list[list[int]], backend: str | None) -> None:
        own = dist.get_rank()
        host = next(ranks for ranks in hosts if own in ranks)
        self.hosts = len(hosts)
        self.ranks_per_host = len(host)
        self._ranks = host
        self._index = host.index(own)
        across = [ranks[self._index] for ranks in hosts]
        # Two groups inside a host: buckets are scattered and gathered at the same time, in no common order.
        self._scatter, self._gather, self._across = (
            dist.new_group(ranks, backend=backend, use_local_synchronization=True) for ranks in (host, host, across)
        )
        self._backends = _backends(self._across)
        self._entrance: queue.SimpleQueue[_Bucket] | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def hook(self, state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """A communication hook of DDP: the mean over all ranks."""
        return self._start(bucket.buffer().div_(self.hosts * self.ranks_per_host))

    def allreduce(self, tensor: torch.Tensor) -> None:
        """The sum over all ranks, in place; returns when it is there."""
        self._start(tensor.view(-1)).wait()
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)

    def _start(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        if self._backends[tensor.device.type] == "gloo":
            return self._start_in_threads(tensor)
        return self._start_on_stream(tensor)

    def _start_in_threads(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
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

    def _start_on_stream(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """One stream does all phases of all buckets in turn: communicators that run at once may wait for each other."""
        # Under their new names a newer torch does not warn.
        reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        device = tensor.device
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[device])
        with torch.cuda.stream(stream):
            missing = -tensor.numel() % self.ranks_per_host
            padded = torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor
            own = torch.empty_like(padded[: padded.numel() // self.ranks_per_host])
            reduce_scatter(own, padded, group=self._scatter)
            dist.all_reduce(own, group=self._across)
            all_gather(padded, own, group=self._gather)
            if missing:
                tensor.copy_(padded[: tensor.numel()])
            tensor.record_stream(stream)
            future.set_result(tensor)
        return future


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


def _make(whole: dist.ProcessGroup) -> Groups | str:
    unknown = set(_backends(whole).values()) - _WORKING_BACKENDS
    if unknown:
        return f"it works over gloo and nccl, not over {' and '.join(sorted(unknown))}"
    members = dist.get_process_group_ranks(whole)
    names = _names_of_hosts(whole, members)
    sizes = Counter(names)
    if len(sizes) == 1:
        return "all ranks are on one host"
    if len(set(sizes.values())) > 1:
        return f"the hosts have different numbers of ranks ({', '.join(str(size) for size in sizes.values())})"
    if len(sizes) == len(members):
        return "every host has one rank"
    hosts = [[rank for at, rank in enumerate(members) if names[at] == name] for name in sizes]
    return Groups(hosts, None if whole == dist.group.WORLD else dist.get_backend(whole))


def _names_of_hosts(whole: dist.ProcessGroup, members: list[int]) -> list[str]:
    """The host of every rank; SCALESCOPE_HOST names it where several hosts are played on one machine."""
    by_cpu = "cpu" in _backends(whole)
    group = whole if by_cpu else dist.new_group(members, backend="gloo", use_local_synchronization=True)
    names = [""] * len(members)
    dist.all_gather_object(names, os.environ.get("SCALESCOPE_HOST") or socket.gethostname(), group=group)
    if not by_cpu:
        dist.destroy_process_group(group)
    return names


def _backends(group: dist.ProcessGroup) -> dict[str, str]:
    """Backend for each kind of device."""
    pairs = (pair.partition(":") for pair in dist.get_backend_config(group).split(","))
    return {device: backend for device, _, backend in pairs}
