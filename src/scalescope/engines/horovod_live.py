"""Horovod inside a rank: start it, wrap the optimizer, see what a script does with it; its timeline.

Standard library, torch and horovod only.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

NAME = "horovod"
NOT_TUNED = "the script trained with Horovod, but without hvd.DistributedOptimizer: use it, or --offline"


def watch(module: Any, agent: Any) -> None:
    """See its start, the optimizers that it wraps and, where steps are captured, waits for others."""
    construct = module.DistributedOptimizer

    @functools.wraps(construct)
    def constructor(*arguments: Any, **options: Any) -> Any:
        optimizer = construct(*arguments, **options)
        agent.exchanged.has_wrapped(
            NAME, lambda: [each for group in optimizer.param_groups for each in group["params"]]
        )
        return optimizer

    module.DistributedOptimizer = constructor
    if agent.tuned and agent.tuned.waits:
        from .horovod_training_live import HorovodTraining

        agent.tuned.sides.append(HorovodTraining(module, agent.tuned))

    def identity() -> None:
        agent.is_rank(module.rank(), module.size(), os.environ.get("HOROVOD_CONTROLLER", ""), NAME)

    module.init = agent.timed_init(module.init, identity)
    if agent.capture:  # the timeline, before Horovod starts; waits, before a script wraps its optimizer
        os.environ["HOROVOD_TIMELINE"] = os.path.join(agent.capture.folder, "timeline.json")  # noqa: PTH118
        os.environ["HOROVOD_TIMELINE_MARK_CYCLES"] = "1"
        timed = agent.capture.timed
        optimizer = sys.modules["horovod.torch.optimizer"]._DistributedOptimizer
        optimizer.synchronize = timed("synchronize", optimizer.synchronize)
        operations: Any = sys.modules["horovod.torch.mpi_ops"]  # where a script's own collectives wait
        operations.synchronize = module.synchronize = timed("synchronize", operations.synchronize)
    # makes a step on zero gradients, so that there is a state to broadcast
    module.broadcast_optimizer_state = agent.clock.no_step_inside(module.broadcast_optimizer_state)


def surveyed(root: Any) -> tuple[Any, Any]:
    """The model whose steps a survey watches, and what makes the group of its ranks."""
    from .horovod_group_live import HorovodControlGroup

    return root, functools.partial(HorovodControlGroup, sys.modules["horovod.torch"])


class Tracer:
    """Horovod's own timeline; rank 0 writes it, every rank switches."""

    def __init__(self, folder: str, window: Any) -> None:
        self._again = os.path.join(folder, "timeline-again.json")  # noqa: PTH118
        end, length = window.end, window.compare
        can_switch = length and hasattr(sys.modules["horovod.torch"], "stop_timeline")
        self._switches = {end: False, end + length: True, end + 2 * length: False} if can_switch else {}
        self.is_on = True

    def between_steps(self, done: int) -> bool:
        """Switch it on or off after these steps, or leave it; whether it was switched."""
        if done not in self._switches:
            return False
        horovod = sys.modules["horovod.torch"]
        self.is_on = self._switches[done]
        if self.is_on:
            horovod.start_timeline(self._again, mark_cycles=True)
        else:
            horovod.stop_timeline()
        return True

    def close(self) -> None:
        """Horovod closes it when it ends."""


def start(device: str, knobs: dict[str, Any]) -> tuple[int, int]:
    """Start Horovod; rank and number of ranks."""
    import horovod.torch as hvd

    hvd.init()
    return hvd.rank(), hvd.size()


def wrap(model: Any, make_optimizer: Callable[[Any], Any], knobs: dict[str, Any], passes: int = 1) -> tuple[Any, Any]:
    """The model as it is, equal on all ranks; the optimizer averages gradients before each step, of `passes`."""
    import horovod.torch as hvd

    optimizer = make_optimizer(model.parameters())
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
    """True if the collective is done."""
    import horovod.torch as hvd

    return bool(hvd.poll(handle))
