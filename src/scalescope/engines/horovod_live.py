"""Horovod inside a rank: start it, wrap the optimizer. Standard library, torch and horovod only."""

from __future__ import annotations

from typing import Any


def start(device: str, knobs: dict[str, Any]) -> tuple[int, int]:
    """Start Horovod; rank and number of ranks."""
    import horovod.torch as hvd

    hvd.init()
    return hvd.rank(), hvd.size()


def wrap(model: Any, optimizer: Any, knobs: dict[str, Any]) -> tuple[Any, Any]:
    """The model as it is, equal on all ranks; the optimizer averages gradients before each step."""
    import horovod.torch as hvd

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def agree(value: int) -> int:
    """Rank 0's value on every rank; who comes first waits for rank 0."""
    import horovod.torch as hvd
    import torch

    return int(hvd.broadcast(torch.tensor([value], dtype=torch.int64), root_rank=0, name="scalescope.agree").item())


def finish() -> None:
    """Stop Horovod's thread."""
    import horovod.torch as hvd

    hvd.shutdown()
