"""Horovod inside a rank: start it, wrap the optimizer. Standard library, torch and horovod only."""

from __future__ import annotations

from typing import Any


def start(device: str, knobs: dict[str, Any]) -> tuple[int, int]:
    """Start Horovod; rank and number of ranks."""
    import horovod.torch as hvd

    hvd.init()
    return hvd.rank(), hvd.size()


def wrap(model: Any, optimizer: Any, knobs: dict[str, Any], passes: int = 1) -> tuple[Any, Any]:
    """The model as it is, equal on all ranks; the optimizer averages gradients before each step, of `passes`."""
    import horovod.torch as hvd

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    named = model.named_parameters()
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=named, backward_passes_per_step=passes)


def agree(value: int) -> int:
    """Rank 0's value on every rank; ranks that come earlier wait for rank 0."""
    import horovod.torch as hvd
    import torch

    return int(hvd.broadcast(torch.tensor([value], dtype=torch.int64), root_rank=0, name="scalescope.agree").item())


def finish() -> None:
    """Stop Horovod's thread."""
    import horovod.torch as hvd

    hvd.shutdown()


def begin_allreduce(tensor: Any, name: str) -> Any:
    """Start to average a tensor over the ranks, in place; what `wait` takes."""
    import horovod.torch as hvd

    return hvd.allreduce_async_(tensor, name=name)


def wait(handle: Any) -> None:
    """Until the collective is done."""
    import horovod.torch as hvd

    hvd.synchronize(handle)


def broadcast(tensor: Any, name: str) -> None:
    """Rank 0's values on every rank, in place."""
    import horovod.torch as hvd

    hvd.broadcast_(tensor, root_rank=0, name=name)


def is_done(handle: Any) -> bool:
    """Whether the collective is done."""
    import horovod.torch as hvd

    return bool(hvd.poll(handle))
