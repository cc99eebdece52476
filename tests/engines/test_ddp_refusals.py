"""Why DDP's knobs may not change, one reason at a time, on real wrappers of one rank."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalescope.engines import ddp_live
from scalescope.engines.ddp_refusal_live import UNEVEN_INPUTS, no_change_of_view, refusal

pytestmark = pytest.mark.usefixtures("one_rank")


def wrapped(model: nn.Module | None = None, **arguments: Any) -> Any:
    return DistributedDataParallel(model or nn.Linear(4, 4), **arguments)


def hook(state, bucket):  # type: ignore[no-untyped-def]
    future = torch.futures.Future()  # type: ignore[var-annotated]
    future.set_result(bucket.buffer())
    return future


def test_a_plain_wrapper_is_refused_nothing_and_asks_the_same_inside_a_rank() -> None:
    assert refusal(wrapped()) == ""
    assert refusal(wrapped(static_graph=True, gradient_as_bucket_view=True, bucket_cap_mb=2)) == ""


def test_something_else_than_ddp_is_named() -> None:
    assert refusal(nn.Linear(4, 4)) == "Linear is not a DistributedDataParallel"


def test_a_compiled_model_is_refused_whichever_part_was_compiled() -> None:
    class OptimizedModule(nn.Linear):
        """What torch.compile returns has this name."""

    assert refusal(wrapped(nn.Sequential(nn.Linear(4, 4), OptimizedModule(4, 4)))) == "the model is compiled"
    in_place = wrapped()
    in_place.module._compiled_call_impl = print
    assert refusal(in_place) == "the model is compiled"
    by_python = wrapped()
    by_python._use_python_reducer = True
    assert refusal(by_python) == "the model is compiled"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("mixed_precision", object(), "DDP's own mixed precision is on"),
        ("_delay_all_reduce_params", [1], "delay_all_reduce_named_params is used"),
        ("bucket_bytes_cap_list", [1, 2], "bucket_cap_mb_list sets the size of each bucket"),
        ("is_multi_device_module", True, "the model spans several devices"),
    ],
)
def test_an_option_of_ddp_that_forbids_it_is_named(name: str, value: object, why: str) -> None:
    ddp = wrapped()
    setattr(ddp, name, value)
    assert refusal(ddp) == why
    with pytest.raises(ValueError, match=f"DDP's knobs cannot change: {why}"):
        ddp_live.switch(ddp, {"bucket_cap_mb": 1})


def test_a_torch_without_what_is_needed_is_named() -> None:
    ddp = wrapped()
    del ddp.bucket_bytes_cap_default
    assert refusal(ddp) == f"torch {torch.__version__} has no bucket_bytes_cap_default in DistributedDataParallel"


def test_replicate_is_refused() -> None:
    ddp = wrapped(nn.ParameterList([torch.ones(2)]))
    assert refusal(ddp).startswith("replicate() wraps the model, and its DDP is never called")


def test_unused_parameters_are_refused_with_both_ways_to_switch_them_off() -> None:
    why = refusal(wrapped(find_unused_parameters=True))
    assert "DistributedDataParallel(..., find_unused_parameters=False)" in why
    assert "ddp_find_unused_parameters=False" in why


def test_an_optimizer_inside_the_backward_is_refused() -> None:
    ddp = wrapped()
    ddp.module.bias._in_backward_optimizers = []
    assert refusal(ddp) == "its optimizer runs inside the backward"


def test_uneven_inputs_are_refused_while_they_are_joined() -> None:
    ddp = wrapped()
    with ddp.join():
        assert refusal(ddp) == UNEVEN_INPUTS


def test_hooks_are_refused_that_cannot_be_registered_again() -> None:
    own = wrapped()
    own.register_comm_hook(None, hook)
    assert refusal(own) == ""
    of_group = wrapped()
    of_group.register_comm_hook(dist.group.WORLD, hook)
    assert refusal(of_group) == ""
    with_state = wrapped()
    with_state.register_comm_hook({"sum": 0}, hook)
    assert refusal(with_state) == "its communication hook keeps a state, which may depend on the buckets"
    built_in = wrapped()
    built_in._register_builtin_comm_hook(torch._C._distributed_c10d.BuiltinCommHookType.ALLREDUCE)
    assert refusal(built_in) == "a built-in communication hook is registered"
    built_in._scalescope_hierarchical = True
    assert refusal(built_in) == "", "the hook is ours"


def test_parameters_that_were_frozen_or_thawed_since_are_refused() -> None:
    ddp = wrapped()
    ddp.module.bias.requires_grad_(False)
    assert refusal(ddp) == "parameters were frozen or thawed after DDP wrapped the model"
    ddp.module.bias.requires_grad_(True)
    assert refusal(ddp) == ""


def with_gradient(gradient: torch.Tensor | None) -> Any:
    ddp = wrapped(nn.Linear(4, 1, bias=False))
    ddp.module.weight.grad = gradient
    return ddp


SHARED = "the gradients are views of a buffer, which the script may rely on"


@pytest.mark.parametrize(
    ("gradient", "why_not"),
    [
        (None, ""),
        (torch.ones(1, 4), ""),
        (torch.ones(1, 4).to_sparse(), ""),
        (torch.ones(2, 4)[:1], SHARED),
        (torch.ones(4).view(1, 4), SHARED),
        (torch.ones(8)[:4].detach().unsqueeze(0), SHARED),
        (torch.ones(8).set_(torch.ones(9).untyped_storage(), 0, (1, 4), (4, 1)), SHARED),
    ],
    ids=["none", "its own", "sparse", "a row", "a whole buffer", "a part", "a part and no view"],
)
def test_gradients_that_share_their_memory_must_not_move(gradient: torch.Tensor | None, why_not: str) -> None:
    assert no_change_of_view(with_gradient(gradient)) == why_not


def test_gradients_that_were_moved_may_come_back() -> None:
    ddp = with_gradient(torch.ones(2, 4)[:1])
    ddp._scalescope_original = {"gradient_as_bucket_view": False}
    assert no_change_of_view(ddp) == SHARED
    ddp.gradient_as_bucket_view = True
    assert no_change_of_view(ddp) == ""
