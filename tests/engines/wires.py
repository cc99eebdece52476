"""torch.distributed as far as the hierarchical allreduce uses it, with all ranks in one process."""

import queue
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace

import torch

from scalescope.engines.hierarchical import Groups

S = 20.0
"""Seconds after which a message that nobody sends is given up."""


class Group:
    """Some ranks, as one of them sees them."""

    def __init__(self, owner: int, ranks: Sequence[int], number: int, backends: str) -> None:
        self.owner, self.ranks, self.number, self.backends = owner, list(ranks), number, backends


class Received:
    def __init__(self, wire: "queue.SimpleQueue[torch.Tensor]", tensor: torch.Tensor) -> None:
        self._wire, self._tensor = wire, tensor

    def wait(self) -> None:
        self._tensor.copy_(self._wire.get(timeout=S))


class Wires:
    """torch.distributed as far as it is used, for the rank that is told; messages are noted as they are sent."""

    def __init__(self) -> None:
        self.rank = 0
        self.backends = "cpu:gloo,cuda:nccl"
        self.names: dict[int, str] = {}
        self.sent: list[tuple[int, int, int, int]] = []  # group, from, to, values
        self.made: list[tuple[list[int], str | None, bool]] = []
        self.destroyed: list[Group] = []
        self.group = SimpleNamespace(WORLD=None)
        self.broken: Exception | None = None
        self._wires: dict[tuple[int, int, int], queue.SimpleQueue[torch.Tensor]] = defaultdict(queue.SimpleQueue)

    def get_rank(self) -> int:
        return self.rank

    def new_group(self, ranks: Sequence[int], backend: str | None, use_local_synchronization: bool) -> Group:
        self.made.append((list(ranks), backend, use_local_synchronization))
        return Group(self.rank, ranks, len(self.made) % 3, self.backends)

    def destroy_process_group(self, group: Group) -> None:
        self.destroyed.append(group)

    def get_backend_config(self, group: Group) -> str:
        return group.backends

    def get_backend(self, group: Group) -> str:
        return group.backends.rpartition(":")[2]

    def get_process_group_ranks(self, group: Group) -> list[int]:
        return group.ranks

    def all_gather_object(self, names: list[str], own: str, group: Group) -> None:
        names[:] = [own if rank == self.rank else self.names[rank] for rank in group.ranks]

    def isend(self, tensor: torch.Tensor, to: int, group: Group) -> None:
        assert to in group.ranks
        assert tensor.numel() > 0
        self.sent.append((group.number, group.owner, to, tensor.numel()))
        self._wires[group.number, group.owner, to].put(tensor.clone())

    def irecv(self, tensor: torch.Tensor, source: int, group: Group) -> Received:
        if self.broken:
            raise self.broken
        assert source in group.ranks
        return Received(self._wires[group.number, source, group.owner], tensor)

    def all_reduce(self, tensor: torch.Tensor, group: Group) -> None:
        assert tensor.numel() > 0
        others = [rank for rank in group.ranks if rank != group.owner]
        own = tensor.clone()
        for other in others:
            self._wires[group.number, group.owner, other].put(own)
        for other in others:
            tensor += self._wires[group.number, other, group.owner].get(timeout=S)

    def reduce_scatter_single(self, own: torch.Tensor, values: torch.Tensor, group: Group) -> None:
        assert own.numel() * len(group.ranks) == values.numel()
        whole = values.clone()
        self.all_reduce(whole, group)
        own.copy_(whole.chunk(len(group.ranks))[group.ranks.index(group.owner)])

    def all_gather_single(self, values: torch.Tensor, own: torch.Tensor, group: Group) -> None:
        values.zero_()
        values.chunk(len(group.ranks))[group.ranks.index(group.owner)].copy_(own)
        self.all_reduce(values, group)


def ranks_of(wires: Wires, hosts: list[list[int]]) -> dict[int, Groups]:
    found = {}
    for rank in sorted(rank for host in hosts for rank in host):
        wires.rank = rank
        found[rank] = Groups(hosts, None)
    return found
