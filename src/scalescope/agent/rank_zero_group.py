"""A process group whose ranks but this one do not exist: every collective is complete at once.

Every rank is taken to hold what this one holds, so that values stay finite: a gather repeats the own part, a sum of the
script is N times as large. torch's own fake group copies N times in a gather, leaves what it reduces as it was in
memory in some releases, and gives DDP's reducer no tensors back.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from .halves import engine_file
from .rank_zero_recording import Recording
from .script_hooks import never_compile

NAME = "scalescope"  # Not that of a real one: DDP's logger would look for what is inside it
_STORE_S = 10.0
Told = Callable[[str], None]  # Hears a sentence


class Seams:
    """Places at which torch.distributed is made to start such groups instead of the script's."""

    def __init__(self, ranks: int, recording: Recording, warn: Told, miss: Told, refuse: Told) -> None:
        self._ranks, self._recording = ranks, recording
        self._warn, self._miss, self._refuse = warn, miss, refuse
        self.backend = ""  # As the script named it

    def replace(self, c10d: Any) -> None:
        """Take over torch.distributed.distributed_c10d, whose package is half imported."""
        self._c10d = c10d
        kind = group_class(c10d, self._recording, self._miss, self._refuse)
        devices: list[str] = []  # Of the group that is being made

        def create(options: Any, _: Any) -> Any:
            ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
            index = self._recording.add_group(str(options.group_id), ranks)
            return kind(options.group_rank, options.group_size, index, devices)

        c10d.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
        original = c10d._new_process_group_helper

        @functools.wraps(original)
        def make(
            size: Any, rank: Any, ranks: Any, backend: Any, store: Any, name: Any, *more: Any, **options: Any
        ) -> Any:
            asked, config = str(backend), c10d.BackendConfig(c10d.Backend(str(backend)))
            devices[:] = config.get_device_backend_map()
            options.update(dict.fromkeys({"backend_options", "pg_options", "device_id"} & options.keys()))
            group, kept = original(size, rank, ranks, c10d.Backend(NAME), store, name, *more, **options)
            if isinstance(group, kind):  # what it is called stays what the script named it
                c10d._world.pg_map[group] = (asked, kept)
                c10d._world.pg_backend_config[group] = str(config)
            return group, kept

        c10d._new_process_group_helper = make
        c10d.rendezvous = self._rendezvous
        c10d.init_process_group = self._init(c10d.init_process_group)
        c10d._store_based_barrier = lambda *arguments, **options: None
        self._keep_objects(c10d)

    def _rendezvous(self, *arguments: Any, **options: Any) -> Any:
        yield self._store(), 0, self._ranks

    def _store(self) -> Any:
        """Create a store with a short timeout: no other rank sets the keys that a script waits for."""
        from torch._C._distributed_c10d import HashStore

        store: Any = HashStore()
        store.set_timeout(timedelta(seconds=_STORE_S))
        return store

    def _init(self, original: Any) -> Any:
        @functools.wraps(original)
        def init_process_group(
            backend: Any = None,
            init_method: Any = None,
            timeout: Any = None,
            world_size: int = -1,
            rank: int = -1,
            store: Any = None,
            *more: Any,
            **options: Any,
        ) -> Any:
            if rank > 0:
                os._exit(0)  # a script that starts its ranks itself: one of them is enough
            if world_size not in (-1, self._ranks):
                self._warn(
                    f"the script says world_size={world_size}, not what WORLD_SIZE says: what it makes of its own "
                    f"number, such as a sampler, is not that of {self._ranks} ranks"
                )
            device = options.pop("device_id", None)
            if backend is None and device is not None:
                backend = self._c10d.Backend.default_device_backend_map.get(getattr(device, "type", "cuda"))
            self.backend = self.backend or str(backend or "").lower()
            return original(backend, None, timeout, self._ranks, 0, self._store(), *more, **options)

        return init_process_group

    def _keep_objects(self, c10d: Any) -> None:
        """Skip object broadcasts from other ranks: neither their content nor its length is known."""
        original = c10d.broadcast_object_list

        @functools.wraps(original)
        def broadcast_object_list(objects: Any, src: Any = None, group: Any = None, *more: Any, **options: Any) -> Any:
            if (src or options.get("group_src") or 0) != 0:
                self._miss("objects that another rank broadcasts are not known: the script went on with its own")
                return None
            return original(objects, src, group, *more, **options)

        c10d.broadcast_object_list = broadcast_object_list


def group_class(c10d: Any, recording: Recording, miss: Told, refuse: Told) -> Any:
    """The class of such groups, for this torch."""
    import torch
    from torch._C._distributed_c10d import FakeProcessGroup, ReduceOp, Work

    operations: Any = ReduceOp.RedOpType
    sum_, product = operations.SUM, operations.PRODUCT
    owner_of = engine_file("sharded_live").owner_of

    class Done(Work):
        """Complete from the beginning."""

        def __init__(self, number: int, result: list[Any]) -> None:
            super().__init__()
            self._number, self._result = number, result

        def wait(self, timeout: Any = None) -> bool:
            if self._number >= 0:
                recording.wait(self._number)
            return True

        def is_completed(self) -> bool:
            return True

        def is_success(self) -> bool:
            return True

        def synchronize(self) -> None:
            self.wait()

        def result(self) -> list[Any]:
            return self._result

        def get_future(self) -> Any:
            """With the tensors in it: DDP's reducer and communication hooks take them from here."""
            if self._number >= 0:
                recording.needed_after_backward(self._number)
            devices = sorted({each.device for each in self._result if each.is_cuda}, key=str)
            future: Any = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
            future.set_result(self._result)
            return future

    class RankZeroGroup(c10d.ProcessGroup):  # type: ignore[misc]
        """Rank 0, or any, of a group in which nobody else is."""

        def __init__(self, rank: int, size: int, index: int, devices: list[str]) -> None:
            super().__init__(rank, size)
            self._index, self._here, self._size = index, rank, size
            self._inside = FakeProcessGroup._create_internal(rank, size)
            for device in devices:  # so that objects go through the same device as with the real ones
                self._register_backend(torch.device(device), c10d.ProcessGroup.BackendType.CUSTOM, self._inside)
            self._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)

        def getBackendName(self) -> str:  # noqa: N802 - torch's name
            return NAME

        def _run(
            self,
            operation: str,
            larger: list[Any],
            fill: Callable[[], None] | None = None,
            result: Iterable[Any] = (),
        ) -> Any:
            """Note the collective, make its result up, and be done."""
            if larger and larger[0].is_cuda and torch.cuda.is_current_stream_capturing():
                refuse("the script captures collectives in a CUDA graph, which run it unseen: leave the graph out")
            if not recording.is_on:
                if fill:
                    with torch.no_grad():
                        fill()
                return Done(-1, list(result))
            module, prefetched, owner = owner_of(sys._getframe(1))
            size = sum(each.numel() * each.element_size() for each in larger)
            dtype = str(larger[0].dtype)[6:] if larger else ""
            number = recording.issue(operation, size, dtype, self._index, module, prefetched)
            if owner:
                if operation == "all_gather":
                    recording.own_gather(owner, number)
                else:
                    recording.needed_after_backward(number)
            if fill:
                began = recording.fill_begins()
                with torch.no_grad():
                    fill()
                recording.filled(number, began)
            return Done(number, list(result))

        def _reduced(self, tensors: list[Any], opts: Any) -> None:
            """Replace tensors, in place, by what a reduction over equal ranks yields."""
            operation = getattr(opts, "reduceOp", sum_)
            operation = getattr(operation, "op", operation)
            for each in tensors:
                if operation == sum_:
                    each.detach().mul_(self._size)
                elif operation == product:
                    each.detach().pow_(self._size)

        def allreduce(self, tensors: list[Any], opts: Any = None) -> Any:
            if _is_reducer(sys._getframe().f_back):  # it divided by N before: its gradients are smaller, all alike
                return self._run("all_reduce", tensors, None, tensors)
            return self._run("all_reduce", tensors, lambda: self._reduced(tensors, opts), tensors)

        allreduce_coalesced = allreduce

        def reduce(self, tensors: list[Any], opts: Any = None) -> Any:
            return self._run("reduce", tensors, lambda: self._reduced(tensors, opts), tensors)

        def broadcast(self, tensors: list[Any], opts: Any = None) -> Any:
            return self._run("broadcast", tensors, None, tensors)

        def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
            whole = [each for one in outputs for each in one]
            return self._run("all_gather", whole, lambda: _repeat(outputs, inputs), whole)

        def allgather_coalesced(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
            def fill() -> None:
                for one in outputs:
                    for output, own in zip(one, inputs):  # noqa: B905 - Python 3.9
                        output.detach().copy_(own)

            return self._run("all_gather", [each for one in outputs for each in one], fill)

        def all_gather_single(self, output: Any, own: Any, opts: Any = None) -> Any:
            return self.all_gather_single_coalesced([output], [own])

        def all_gather_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
            def fill() -> None:
                for output, own in zip(outputs, inputs):  # noqa: B905
                    _spread(output.detach(), own.detach(), self._size)

            return self._run("all_gather", outputs, fill)

        _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced

        def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Any:
            def fill() -> None:
                for output, parts in zip(outputs, inputs):  # noqa: B905
                    output.detach().copy_(parts[self._here])
                self._reduced(outputs, opts)

            return self._run("reduce_scatter", [each for one in inputs for each in one], fill, outputs)

        def reduce_scatter_single(self, output: Any, whole: Any, opts: Any = None) -> Any:
            return self.reduce_scatter_single_coalesced([output], [whole], opts)

        def reduce_scatter_single_coalesced(self, outputs: list[Any], wholes: list[Any], opts: Any = None) -> Any:
            def fill() -> None:
                for output, whole in zip(outputs, wholes):  # noqa: B905
                    own = whole.detach().reshape(self._size, -1)[self._here]
                    output.detach().copy_(own.view_as(output))
                self._reduced(outputs, opts)

            return self._run("reduce_scatter", wholes, fill)

        _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced

        def all_to_all_single(self, output: Any, own: Any, to: Any, of: Any, opts: Any = None) -> Any:
            def fill() -> None:
                if to or of or not own.shape[0] or own.shape[0] % self._size:
                    _repeat_rows(output.detach(), own.detach())
                else:  # of every rank the part that is for this one
                    part = own.detach()[self._here * (own.shape[0] // self._size) :][: own.shape[0] // self._size]
                    _spread(output.detach(), part, self._size)

            return self._run("all_to_all", [output if output.numel() > own.numel() else own], fill)

        alltoall_base = all_to_all_single

        def alltoall(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
            def fill() -> None:
                for output in outputs:
                    _repeat_rows(output.detach(), inputs[self._here].detach())

            return self._run("all_to_all", max(outputs, inputs, key=_numbers), fill, outputs)

        def gather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
            whole = [each for one in outputs for each in one] or inputs * self._size
            return self._run("gather", whole, lambda: _repeat(outputs, inputs), whole if outputs else ())

        def scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Any:
            if not inputs:
                return self._receive("scatter", "scatters", outputs, outputs * self._size)

            def fill() -> None:
                for output, parts in zip(outputs, inputs):  # noqa: B905
                    output.detach().copy_(parts[self._here])

            return self._run("scatter", [each for one in inputs for each in one], fill, outputs)

        def send(self, tensors: list[Any], to: int, tag: int = 0) -> Any:
            return self._run("send", tensors)

        def recv(self, tensors: list[Any], of: int, tag: int = 0) -> Any:
            return self._receive("recv", "sends", tensors, tensors)

        def _receive(self, operation: str, does: str, tensors: list[Any], whole: list[Any]) -> Any:
            miss(f"what another rank {does} ({operation}) is not known: the script went on with zeros")

            def fill() -> None:
                for each in tensors:
                    each.detach().zero_()

            return self._run(operation, whole, fill, tensors)

        def recv_anysource(self, tensors: list[Any], tag: int = 0) -> Any:
            return self.recv(tensors, -1, tag)

        def barrier(self, opts: Any = None) -> Any:
            return self._run("barrier", [])

        def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
            self._run("barrier", []).wait()

        def shutdown(self) -> None:
            pass

        def abort(self) -> None:
            pass

        def _start_coalescing(self, device: Any = None) -> None:
            pass

        def _end_coalescing(self, device: Any = None) -> Any:
            return Done(-1, [])

    for kind in (Done, RankZeroGroup):  # torch.compile must not trace what C++ calls inside a compiled region
        for member in vars(kind).values():
            if hasattr(member, "__code__"):
                never_compile(member)
    return RankZeroGroup


def _is_reducer(caller: Any) -> bool:
    """True if DDP's reducer (C++) calls: from a thread of autograd without Python, or from its wrapper."""
    if caller is None or caller.f_code.co_name == "_engine_run_backward":
        return True
    return bool(caller.f_code.co_filename.endswith("parallel/distributed.py"))


def _numbers(tensors: list[Any]) -> int:
    return sum(each.numel() for each in tensors)


def _spread(output: Any, own: Any, size: int) -> None:
    """Copy what this rank holds into the part of every rank, in one kernel where the memory allows it."""
    if output.is_contiguous():
        output.view(size, -1).copy_(own.reshape(1, -1).expand(size, -1))
    else:
        for part in output.chunk(size):
            part.copy_(own.view_as(part))


def _repeat(outputs: list[list[Any]], inputs: list[Any]) -> None:
    for one, own in zip(outputs, inputs):  # noqa: B905
        for output in one:
            output.detach().copy_(own)


def _repeat_rows(output: Any, own: Any) -> None:
    """As often as it fits: sizes may differ."""
    if own.numel() and output.numel():
        rows = own.reshape(-1)
        output.copy_(rows.repeat(-(-output.numel() // rows.numel()))[: output.numel()].view_as(output))
    else:
        output.zero_()
