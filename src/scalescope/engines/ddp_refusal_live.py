"""Reasons not to change DDP's knobs while it trains. Standard library and torch only."""

from __future__ import annotations

from typing import Any

_MAKERS = ("_build_params_for_reducer", "_build_debug_param_to_name_mapping", "_ddp_init_helper", "_set_static_graph")
_INTERNALS = ("reducer", "bucket_bytes_cap_default", "_comm_hooks", "_remove_autograd_hooks", *_MAKERS)

UNEVEN_INPUTS = "it trains with uneven inputs: give every rank equally many batches and leave join() out"
_UNUSED = (
    "find_unused_parameters is on: if every parameter gets a gradient in every step, switch it off with "
    "DistributedDataParallel(..., find_unused_parameters=False), in Hugging Face's TrainingArguments with "
    "ddp_find_unused_parameters=False"
)


def refusal(ddp: Any) -> str:
    """Why its knobs cannot change while training, in one line; empty: they can."""
    import torch
    import torch.distributed as dist

    kind: Any = torch.nn.parallel.DistributedDataParallel
    if not isinstance(ddp, kind):
        return f"{type(ddp).__name__} is not a DistributedDataParallel"
    if getattr(ddp, "_use_python_reducer", False) or any(_is_compiled(module) for module in ddp.modules()):
        return "the model is compiled"
    if getattr(ddp, "mixed_precision", None) is not None:
        return "DDP's own mixed precision is on"
    if getattr(ddp, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params is used"
    missing = [name for name in _INTERNALS if not hasattr(ddp, name)]
    if missing:
        return f"torch {torch.__version__} has no {missing[0]} in DistributedDataParallel"
    if isinstance(ddp.module, torch.nn.ParameterList):
        return "replicate() wraps the model, and its DDP is never called: wrap it in DistributedDataParallel instead"
    if ddp.find_unused_parameters:
        return _UNUSED
    if getattr(ddp, "bucket_bytes_cap_list", None):
        return "bucket_cap_mb_list sets the size of each bucket"
    if getattr(ddp, "is_multi_device_module", False):
        return "the model spans several devices"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in ddp.parameters()):
        return "its optimizer runs inside the backward"
    if ddp._join_config.enable:
        return UNEVEN_INPUTS
    data = ddp._get_ddp_logging_data()
    if data.get("comm_hook") and not ddp._comm_hooks and not ddp.__dict__.get("_scalescope_hierarchical"):
        return "a built-in communication hook is registered"
    if any(not isinstance(state, (type(None), dist.ProcessGroup)) for _, state in ddp._comm_hooks):
        return "its communication hook keeps a state, which may depend on the buckets"
    if data.get("num_parameter_tensors") not in (None, len(ddp._build_params_for_reducer()[0])):
        return "parameters were frozen or thawed after DDP wrapped the model"
    return ""


def fixed(ddp: Any) -> dict[str, str]:
    """Knobs that this wrapper cannot change, and why; to be asked while there are gradients."""
    found = {"hierarchical_allreduce": no_hierarchy(ddp), "gradient_as_bucket_view": no_change_of_view(ddp)}
    return {name: why_not for name, why_not in found.items() if why_not}


def no_hierarchy(ddp: Any) -> str:
    """Why its messages cannot be summed by hosts, once the groups for that were prepared."""
    from . import hierarchical

    if ddp._comm_hooks:
        return "the script has a communication hook of its own"
    if any(ddp._build_params_for_reducer()[1]):
        return "the model has sparse gradients"
    groups = hierarchical.prepared(ddp.process_group)
    return groups if isinstance(groups, str) else ""


def no_change_of_view(ddp: Any) -> str:
    """Why gradients must not move into buckets, or out of those that the script moved them into."""
    original = ddp.__dict__.get("_scalescope_original")
    if original and original["gradient_as_bucket_view"] != ddp.gradient_as_bucket_view:
        return ""  # it has changed already: the way back is open
    views = any(_is_view(parameter.grad) for parameter in ddp.parameters())
    return "the gradients are views of a buffer, which the script may rely on" if views else ""


def _is_view(gradient: Any) -> bool:
    """True if a gradient shares its memory with something else, such as a buffer for all gradients."""
    import torch

    if gradient is None or gradient.layout is not torch.strided:
        return False
    whole = gradient.untyped_storage().nbytes()
    return bool(gradient._is_view() or whole != gradient.numel() * gradient.element_size())


def _is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
