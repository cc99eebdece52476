"""DDP inside a rank: join the group, wrap the model. Standard library and torch only."""

from __future__ import annotations

import os
from typing import Any

_WRAPPER_ARGUMENTS = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")


def start(device: str, knobs: dict[str, Any]) -> tuple[int, int]:
    """Join the process group; rank and number of ranks."""
    import torch.distributed as dist

    dist.init_process_group(knobs.get("backend") or ("nccl" if device.startswith("cuda") else "gloo"))
    return dist.get_rank(), dist.get_world_size()


def wrap(model: Any, optimizer: Any, knobs: dict[str, Any]) -> tuple[Any, Any]:
    """The model in DistributedDataParallel with these knobs; the optimizer as it is."""
    import torch

    device = next(model.parameters()).device
    ids = [device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", 0))]
    arguments = {name: knobs[name] for name in _WRAPPER_ARGUMENTS if name in knobs}
    wrapped = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=ids if device.type == "cuda" else None, **arguments
    )
    return wrapped, optimizer


def agree(value: int) -> int:
    """Rank 0's value on every rank; who comes first waits for rank 0."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    said = torch.tensor([value], dtype=torch.int64, device=device)
    dist.broadcast(said, src=0)
    return int(said.item())


def finish() -> None:
    """Leave the process group."""
    import torch.distributed as dist

    dist.destroy_process_group()


def begin_allreduce(tensor: Any, name: str) -> Any:
    """Start to sum a tensor over the ranks, in place; what `wait` takes."""
    import torch.distributed as dist

    return dist.all_reduce(tensor, async_op=True)


def wait(handle: Any) -> None:
    """Until the collective is done."""
    handle.wait()


def broadcast(tensor: Any, name: str) -> None:
    """Rank 0's values on every rank, in place."""
    import torch.distributed as dist

    dist.broadcast(tensor, src=0)


def is_done(handle: Any) -> bool:
    """Whether the collective is done."""
    return bool(handle.is_completed())
