"""Counts the work of a step of a model on the meta device: nothing is computed and nothing takes memory.

The work of an operation is what binds it: its bytes, or its floating-point operations over what the device makes of
them in the time of one byte. Work is in bytes; only shares of it mean anything.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from scalescope.errors import UsageError
from scalescope.records.profile import Gradient, WorkloadSpec
from scalescope.workloads.loading import is_builtin, load, own_factory
from scalescope.workloads.references import one_line

# Floating-point operations in the time of a byte: V100 17 (float32), A100 and H100 about 100 (TF32), a CPU about 20.
OPERATIONS_PER_BYTE = 20.0
_FREE = ("empty", "detach", "new_empty", "empty_like", "empty_strided", "new_empty_strided")  # They start no kernel


@dataclass(frozen=True)
class StepWork:
    """Work of one step, and what the model is made of."""

    forward: float
    backward: float
    optimizer: float
    gradients: tuple[Gradient, ...]  # In the order in which backward finishes them
    ready: tuple[float, ...]  # Work of backward that is done by then
    buffers_bytes: tuple[int, ...]  # One size per kind of number
    buffers: int
    memory_bytes: int  # Parameters, gradients, the optimizer's state, and what forward keeps for backward


def step_work(spec: WorkloadSpec, batch: int) -> StepWork:
    """The work of a training step with `batch` samples.

    Raises:
        UsageError: The model cannot be built, or needs the values of its tensors.
    """
    if not is_builtin(spec.model):
        own_factory(spec.model)  # imported as usual, not on the meta device
    with torch.device("meta"):
        workload = load(spec)
    model = workload.model.to("meta")
    try:
        inputs = tuple(each.to("meta") for each in workload.batch(batch))
        target: Any = workload.target(batch)
        target = target.to("meta") if isinstance(target, torch.Tensor) else target
        optimizer = workload.optimizer(model.parameters())
        for _ in range(2):  # the first step makes the optimizer's state
            optimizer.zero_grad()
            with _Counted() as counted:
                with torch.device("meta"), _kept_bytes() as kept:
                    loss: Any = workload.loss(model(*inputs), target)
                forward = counted.work
                with _ready(model, counted) as ready:
                    loss.backward()
                backward = counted.work
                optimizer.step()
    except UsageError:
        raise
    except Exception as problem:
        raise UsageError(
            f"{spec.model} cannot be counted without its data ({one_line(problem)}): "
            "take a profile of it on any machine, and give it with --profile"
        ) from problem
    parameters = dict(model.named_parameters())
    order = sorted(ready, key=lambda name: ready[name])
    kinds: dict[Any, int] = {}
    for buffer in model.buffers():
        kinds[buffer.dtype] = kinds.get(buffer.dtype, 0) + _bytes(buffer)
    state = sum(_bytes(each) for each in tree_leaves(list(optimizer.state.values())) if isinstance(each, torch.Tensor))
    own = sum(map(_bytes, parameters.values())) + sum(kinds.values())
    return StepWork(
        forward=forward,
        backward=backward - forward,
        optimizer=counted.work - backward,
        gradients=tuple(
            Gradient(name=name, bytes=_bytes(parameters[name]), element_bytes=parameters[name].element_size())
            for name in order
        ),
        ready=tuple(ready[name] - forward for name in order),
        buffers_bytes=tuple(kinds.values()),
        buffers=sum(1 for _ in model.buffers()),
        memory_bytes=own + sum(_bytes(parameters[name]) for name in order) + state + sum(kept.values()),
    )


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the work of every operation while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and name not in _FREE:
            formula = flop_registry.get(func._overloadpacket)
            operations = formula(*args, **kwargs, out_val=result) if formula else 0
            moved = sum(_bytes(each) for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor))
            self.work += max(float(operations) / OPERATIONS_PER_BYTE, float(moved))
        return result


@contextlib.contextmanager
def _ready(model: Any, counted: _Counted) -> Iterator[dict[str, float]]:
    """By name of a parameter: the work that is done when its gradient is there."""
    found: dict[str, float] = {}

    def hook(name: str) -> Any:
        return lambda _: found.__setitem__(name, counted.work)

    handles = [
        parameter.register_post_accumulate_grad_hook(hook(name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _kept_bytes() -> Iterator[dict[int, int]]:
    """By storage: the bytes of what forward keeps for backward, parameters not counted."""
    found: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        if not isinstance(tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
