"""DDP inside a rank: join the group, wrap the model, change knobs between steps. Standard library and torch only."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .ddp_refusal_live import no_change_of_view, no_hierarchy, refusal

NAME = "ddp"
_MIB = 1024 * 1024
SET_AFTERWARDS = ("first_bucket_mb", "hierarchical_allreduce")  # Knobs for which the constructor has no argument


def watch(module: Any, agent: Any) -> None:
    """See every model that a script wraps."""
    kind = module.DistributedDataParallel
    construct = kind.__init__

    @functools.wraps(construct)
    def constructor(wrapper: Any, *arguments: Any, **options: Any) -> None:
        construct(wrapper, *arguments, **options)
        agent.exchanged.has_wrapped(NAME, wrapper.parameters)

    kind.__init__ = constructor
    if agent.rank_zero:
        kind._register_builtin_comm_hook = _register_hook_of_python
    if agent.tuned:
        from .ddp_training_live import Wrappers

        wrappers = Wrappers(agent.tuned)
        wrappers.watch(module)
        agent.tuned.sides.append(wrappers)


def _register_hook_of_python(wrapper: Any, kind: Any) -> None:
    """As rank 0 of N: a hook of C++ reads a future of C++, the one of the same name in Python reads ours."""
    hooks: Any = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
    hook = hooks.fp16_compress_hook if "FP16" in str(kind) else hooks.allreduce_hook
    wrapper.register_comm_hook(wrapper.process_group, hook)


def surveyed(root: Any) -> tuple[Any, Any]:
    """The wrapped model inside this one, whose steps a survey watches, and what makes the group of its ranks."""
    from .ddp_training_live import TorchControlGroup
    from .group_live import ControlGroup

    wrapped = next((part for part in root.modules() if type(part).__name__ == "DistributedDataParallel"), None)
    if wrapped is None:
        return root, ControlGroup

    def group() -> TorchControlGroup:
        by_hosts = groups_by_hosts(wrapped)
        made = TorchControlGroup(wrapped.process_group)
        made.hierarchical = None if isinstance(by_hosts, str) else by_hosts
        return made

    return wrapped, group


def start(device: str, knobs: dict[str, Any]) -> tuple[int, int]:
    """Join the process group; rank and number of ranks."""
    import torch.distributed as dist

    dist.init_process_group(knobs.get("backend") or ("nccl" if device.startswith("cuda") else "gloo"))
    return dist.get_rank(), dist.get_world_size()


def wrap(model: Any, make_optimizer: Callable[[Any], Any], knobs: dict[str, Any], passes: int = 1) -> tuple[Any, Any]:
    """The model in DistributedDataParallel with these knobs, which has no_sync for `passes`; its optimizer."""
    import torch

    device = next(model.parameters()).device
    ids = [device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", 0))]
    kind = torch.nn.parallel.DistributedDataParallel
    taken = inspect.signature(kind.__init__).parameters  # knobs have the names that PyTorch gives its arguments
    arguments = {name: value for name, value in knobs.items() if name in taken}
    wrapped = kind(model, device_ids=ids if device.type == "cuda" else None, **arguments)
    others = {name: knobs[name] for name in SET_AFTERWARDS if name in knobs}
    if why_not := switch_prepared(wrapped, others):
        warnings.warn(f"no hierarchical allreduce: {why_not}", stacklevel=2)
    return wrapped, make_optimizer(model.parameters())


def groups_by_hosts(ddp: Any) -> Any:
    """Groups for the wrapper's hierarchical allreduce, or why there are none; every rank calls it."""
    from . import hierarchical

    return hierarchical.prepare(ddp.process_group)


def switch_prepared(ddp: Any, values: dict[str, Any]) -> str:
    """Switch a new wrapper to these values; why its messages cannot be summed by hosts, if that was among them."""
    why_not = ""
    if values.get("hierarchical_allreduce"):
        groups_by_hosts(ddp)
        if why_not := no_hierarchy(ddp):
            values = {name: value for name, value in values.items() if name != "hierarchical_allreduce"}
    switch(ddp, values)
    return why_not


def current(ddp: Any) -> dict[str, Any]:
    """Current state of the wrapper, as values of its knobs."""
    cap = ddp.bucket_bytes_cap
    if hasattr(ddp, "_bucket_config"):
        first = ddp._bucket_config.first_bucket_bytes_cap
    else:
        usual = _distributed()._DEFAULT_FIRST_BUCKET_BYTES if ddp.bucket_bytes_cap_default else cap
        first = ddp.__dict__.get("_scalescope_first_bucket", usual)
    return {
        "bucket_cap_mb": cap / _MIB,
        "first_bucket_mb": first / _MIB,
        "gradient_as_bucket_view": bool(ddp.gradient_as_bucket_view),
        "static_graph": bool(ddp.static_graph),
        "hierarchical_allreduce": ddp.__dict__.get("_scalescope_hierarchical", False),
    }


def switch(ddp: Any, values: dict[str, Any]) -> None:
    """Give the wrapper what it had at first, changed by `values`; on every rank, between steps.

    Knobs that need new processes are left alone.
    """
    before = current(ddp)
    wanted = _changed(ddp.__dict__.get("_scalescope_original", before), values)
    if wanted == before and ddp.reducer is not None:  # it is None after a switch that failed
        return
    if "_scalescope_original" not in ddp.__dict__:
        if why_not := refusal(ddp):
            raise ValueError(f"DDP's knobs cannot change: {why_not}")
        ddp._scalescope_original = before
        parameters, expect_sparse_gradient = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp._scalescope_parameters = parameters, expect_sparse_gradient, names
    if wanted["hierarchical_allreduce"] and not before["hierarchical_allreduce"] and (why_not := no_hierarchy(ddp)):
        raise ValueError(f"no hierarchical allreduce: {why_not}")
    moves_in = wanted["gradient_as_bucket_view"] and not before["gradient_as_bucket_view"]
    if moves_in and (why_not := no_change_of_view(ddp)):
        raise ValueError(f"gradient_as_bucket_view cannot change: {why_not}")
    _rebuild(ddp, wanted)
    if ddp.static_graph:
        _rebuild_after_accumulation(ddp)


def _changed(original: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Arguments for DDP with these values changed; as in DDP itself, a bucket size holds for the first bucket too."""
    asked = {name: value for name, value in values.items() if name in original and value is not None}
    if asked.pop("static_graph", original["static_graph"]) != original["static_graph"]:
        raise ValueError("static_graph cannot change while training")
    if "bucket_cap_mb" in asked:
        asked.setdefault("first_bucket_mb", asked["bucket_cap_mb"])
    for name in {"bucket_cap_mb", "first_bucket_mb"} & asked.keys():
        asked[name] = int(asked[name] * _MIB) / _MIB
    return {**original, **asked}


def _rebuild(ddp: Any, wanted: dict[str, Any]) -> None:
    parameters, expect_sparse_gradient, names = ddp._scalescope_parameters
    if ddp.reducer is not None:
        ddp._check_reducer_finalized()
        ddp._remove_autograd_hooks()
    ddp.reducer = ddp.logger = None  # the old buckets go before the new ones come
    if ddp.gradient_as_bucket_view and not wanted["gradient_as_bucket_view"]:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
    ddp.gradient_as_bucket_view = wanted["gradient_as_bucket_view"]
    static_graph, ddp.static_graph = ddp.static_graph, False
    first, cap = int(wanted["first_bucket_mb"] * _MIB), int(wanted["bucket_cap_mb"] * _MIB)
    with _limited(ddp, first, cap):
        ddp._ddp_init_helper(parameters, expect_sparse_gradient, names, static_graph)
    ddp._has_rebuilt_buckets = False
    if static_graph:
        ddp._set_static_graph()
    _register_hooks(ddp, wanted["hierarchical_allreduce"])


def _rebuild_after_accumulation(ddp: Any) -> None:
    """A reducer learns a static graph in its first backward, but nothing right if that only accumulates."""
    import torch

    accumulated = False

    def prepare_forward(module: Any, _: Any) -> None:
        nonlocal accumulated
        if not module.require_backward_grad_sync:
            accumulated = True
            module._static_graph_delay_allreduce_enqueued = True
        elif torch.is_grad_enabled():
            handle.remove()
            if accumulated:
                _rebuild(module, current(module))

    handle = ddp.register_forward_pre_hook(prepare_forward)


def _register_hooks(ddp: Any, by_hosts: bool) -> None:
    """The script's own hook again, or ours; ours is not listed among the wrapper's."""
    hooks = list(ddp._comm_hooks)
    if by_hosts:
        from . import hierarchical

        groups: Any = hierarchical.prepared(ddp.process_group)
        hooks.append((groups.hook, None))
    for hook, state in hooks:
        ddp.logger._set_comm_hook_name(hook.__qualname__)
        _distributed()._register_comm_hook(ddp.reducer, state, hook)
    ddp._scalescope_hierarchical = by_hosts


@contextlib.contextmanager
def _limited(ddp: Any, first: int, cap: int) -> Iterator[None]:
    """A reducer that is made meanwhile fills its buckets up to these bytes."""
    dist = _distributed()
    ddp.bucket_bytes_cap = cap
    ddp.bucket_bytes_cap_default = True  # that is, the first bucket has a size of its own
    if hasattr(ddp, "_bucket_config"):
        changed = {"first_bucket_bytes_cap": first, "bucket_bytes_cap": cap}
        ddp._bucket_config = dataclasses.replace(ddp._bucket_config, **changed)
    ddp._scalescope_first_bucket = first
    usual, dist._DEFAULT_FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES, first
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = usual


def _distributed() -> Any:
    """torch.distributed with what it does not export."""
    return importlib.import_module("torch.distributed")


def agree(value: int) -> int:
    """Rank 0's value on every rank; ranks that come earlier wait for rank 0."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    shared = torch.tensor([value], dtype=torch.int64, device=device)
    dist.broadcast(shared, src=0)
    return int(shared.item())


def finish() -> None:
    """Leave the process group."""
    import torch.distributed as dist

    dist.destroy_process_group()


def begin_allreduce(tensor: Any, name: str) -> Any:
    """Start to sum a tensor over the ranks, in place; what `wait` takes."""
    import torch.distributed as dist

    return dist.all_reduce(tensor, async_op=True)


def wait(handle: Any) -> None:
    """Wait until the collective is done."""
    handle.wait()


def broadcast(tensor: Any, name: str) -> None:
    """Rank 0's values on every rank, in place."""
    import torch.distributed as dist

    dist.broadcast(tensor, src=0)


def is_done(handle: Any) -> bool:
    """True if the collective is done."""
    return bool(handle.is_completed())
