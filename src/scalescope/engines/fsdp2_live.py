"""FSDP2 inside a rank: join the group, shard a model block by block. Standard library and torch only."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from .ddp_live import agree, begin_allreduce, broadcast, finish, is_done, start, wait
from .group_live import NOTE_MARK

__all__ = ["agree", "begin_allreduce", "broadcast", "finish", "is_done", "start", "wait", "wrap"]

_NO_BLOCKS = "{} has no blocks in a ModuleList or Sequential: FSDP2 shards and gathers it as a whole"


def wrap(
    model: Any, make_optimizer: Callable[[Any], Any], knobs: dict[str, Any], passes: int = 1, mesh: Any = None
) -> tuple[Any, Any]:
    """The model with its blocks and the rest of it sharded, over all ranks or a mesh of some; an optimizer of them.

    It gets a `no_sync` as DDP has it, for all `passes` of a step but the last.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = next(model.parameters()).device
    mesh = mesh or init_device_mesh(device.type, (dist.get_world_size(),))
    taken = inspect.signature(fully_shard).parameters  # knobs have the names that PyTorch gives its arguments
    options = {name: value for name, value in knobs.items() if name in taken}
    blocks, name = blocks_of(model), type(model).__name__  # which fully_shard changes
    for block in blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if not blocks and dist.get_rank() == 0:
        print(f"{NOTE_MARK} {_NO_BLOCKS.format(name)}", flush=True)

    @contextlib.contextmanager
    def no_sync() -> Iterator[None]:
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)

    model.no_sync = no_sync
    return model, make_optimizer(model.parameters())


def blocks_of(model: Any) -> list[Any]:
    """The parts that are sharded on their own: members of every outermost ModuleList or Sequential with parameters.

    Predictions know names alone: `base.in_blocks` tells the same blocks by them.
    """
    import torch

    containers = torch.nn.ModuleList, torch.nn.Sequential
    blocks = []
    for part in model.children():
        if isinstance(part, torch.nn.ModuleList) or not isinstance(model, containers):
            blocks += blocks_of(part)  # a list has no forward of its own to gather for
        elif any(True for _ in part.parameters()):
            blocks.append(part)
    return blocks
