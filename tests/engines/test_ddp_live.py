"""DDP's knobs change on a live wrapper of one real rank, over gloo."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scalescope.engines import ddp_live, hierarchical, plain_live
from scalescope.engines.base import MIB
from scalescope.engines.ddp_refusal_live import fixed, refusal

LAYER = 2400
"""Bytes of a layer of the trained model: its weight and its bias."""
UNSET = {
    "bucket_cap_mb": 25.0,
    "first_bucket_mb": 1.0,
    "gradient_as_bucket_view": False,
    "static_graph": False,
    "hierarchical_allreduce": False,
}


pytestmark = pytest.mark.usefixtures("one_rank")


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(24, 24), nn.Tanh())])


class Layout:
    """A hook of the script that notes the bytes of the buckets of a step."""

    def __init__(self, ddp: Any) -> None:
        self._ddp, self._sizes = ddp, list[int]()
        ddp.register_comm_hook(None, self.note)

    def note(self, state: Any, bucket: Any) -> Any:
        self._sizes.append(bucket.buffer().numel() * 4)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    note.__annotations__.clear()  # DDP wants its own types there, or none

    def of_step(self) -> list[int]:
        """DDP makes its buckets anew after the first step."""
        for _ in range(2):
            self._sizes.clear()
            self._ddp(torch.ones(1, 24)).sum().backward()
        return list(self._sizes)


def test_an_untouched_wrapper_tells_what_ddp_does_by_itself() -> None:
    assert ddp_live.current(DistributedDataParallel(perceptron())) == UNSET
    told = DistributedDataParallel(perceptron(), bucket_cap_mb=4, gradient_as_bucket_view=True, static_graph=True)
    assert ddp_live.current(told) == {
        **UNSET,
        "bucket_cap_mb": 4.0,
        "first_bucket_mb": 4.0,
        "gradient_as_bucket_view": True,
        "static_graph": True,
    }


def test_buckets_are_as_the_knobs_say_and_nothing_restores_the_first_ones() -> None:
    ddp = DistributedDataParallel(perceptron())
    layout = Layout(ddp)
    assert layout.of_step() == [6 * LAYER]
    ddp_live.switch(ddp, {"bucket_cap_mb": 0.002})
    assert layout.of_step() == [LAYER] * 6
    assert ddp_live.current(ddp)["bucket_cap_mb"] == ddp_live.current(ddp)["first_bucket_mb"] == 2097 / MIB
    ddp_live.switch(ddp, {"first_bucket_mb": 0.001})
    assert layout.of_step() == [LAYER, 5 * LAYER]
    assert ddp_live.current(ddp) == {**UNSET, "first_bucket_mb": 1048 / MIB}
    ddp_live.switch(ddp, {"bucket_cap_mb": 0.004, "first_bucket_mb": 0.002, "backend": "gloo"})
    assert layout.of_step() == [LAYER, 2 * LAYER, 2 * LAYER, LAYER]
    ddp_live.switch(ddp, {})
    assert layout.of_step() == [6 * LAYER]
    assert ddp_live.current(ddp) == UNSET
    assert ddp_live._distributed()._DEFAULT_FIRST_BUCKET_BYTES == MIB, "other wrappers are as usual"


def test_the_wrapper_takes_its_arguments_and_the_rest_is_set_afterwards() -> None:
    model = perceptron()
    knobs = {"bucket_cap_mb": 4, "first_bucket_mb": 0.5, "gradient_as_bucket_view": True, "backend": "gloo"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        wrapped, optimized = ddp_live.wrap(model, list, knobs)
    assert [str(each.message) for each in said if "hierarchical" in str(each.message)] == []
    assert wrapped.module is model
    assert list(map(id, optimized)) == list(map(id, model.parameters()))
    assert ddp_live.current(wrapped) == {
        **UNSET,
        "bucket_cap_mb": 4.0,
        "first_bucket_mb": 0.5,
        "gradient_as_bucket_view": True,
    }


def test_a_hierarchy_that_cannot_be_is_one_warning_and_the_other_knobs_hold() -> None:
    knobs = {"hierarchical_allreduce": True, "first_bucket_mb": 2}
    with pytest.warns(UserWarning, match="no hierarchical allreduce: all ranks are on one host") as said:
        wrapped, _ = ddp_live.wrap(perceptron(), list, knobs)
    assert Path(said[0].filename).name == Path(__file__).name, "it points at the script"
    assert ddp_live.current(wrapped) == {**UNSET, "first_bucket_mb": 2.0}


def test_nothing_is_rebuilt_where_nothing_changes() -> None:
    ddp: Any = DistributedDataParallel(perceptron())
    reducer = ddp.reducer
    ddp_live.switch(ddp, {"bucket_cap_mb": None, "first_bucket_mb": 1.0, "unknown": 3})
    assert ddp.reducer is reducer
    assert "_scalescope_original" not in ddp.__dict__
    ddp_live.switch(ddp, {"bucket_cap_mb": 1})
    assert ddp.reducer is not reducer
    ddp.reducer = None  # as after a switch that failed
    ddp_live.switch(ddp, {"bucket_cap_mb": 1})
    assert ddp.reducer is not None


def test_a_static_graph_stays_and_cannot_be_asked_for() -> None:
    ddp: Any = DistributedDataParallel(perceptron(), static_graph=True)
    layout = Layout(ddp)
    layout.of_step()
    ddp_live.switch(ddp, {"bucket_cap_mb": 0.002, "static_graph": True})
    layout.of_step()  # with a static graph DDP makes its buckets anew a step later
    assert layout.of_step() == [LAYER] * 6
    assert ddp.static_graph
    assert ddp._get_ddp_logging_data()["static_graph"]
    with pytest.raises(ValueError, match="static_graph cannot change while training"):
        ddp_live.switch(ddp, {"static_graph": False})


def trained(make_views: bool | None, *, static: bool = False, passes: int = 1) -> list[torch.Tensor]:
    """Parameters after some steps, the knobs changed in between unless that is None."""
    ddp = DistributedDataParallel(perceptron(), static_graph=static)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    for step in range(6):
        optimizer.zero_grad()
        turns = passes if step else 1  # a static graph starts with an exchange
        for turn in range(turns):
            ddp.require_backward_grad_sync = turn == turns - 1
            ddp(torch.randn(4, 24, generator=data)).square().mean().backward()
        optimizer.step()
        if make_views is not None and step in (1, 3):
            ddp_live.switch(ddp, {"bucket_cap_mb": 0.002, "gradient_as_bucket_view": make_views and step == 1})
    return [parameter.detach() for parameter in ddp.parameters()]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("views", [False, True])
def test_a_training_whose_knobs_change_ends_with_the_same_bits(static: bool, passes: int, views: bool) -> None:
    plain, switched = trained(None, static=static, passes=passes), trained(views, static=static, passes=passes)
    assert all(torch.equal(one, other) for one, other in zip(plain, switched, strict=True))


def test_a_static_graph_is_learned_anew_once_after_steps_that_only_accumulate() -> None:
    ddp: Any = DistributedDataParallel(perceptron(), static_graph=True)
    batch = torch.ones(1, 24)
    ddp(batch).sum().backward()
    ddp_live.switch(ddp, {"bucket_cap_mb": 0.002})
    first = ddp.reducer
    with torch.no_grad():
        ddp(batch)
    with ddp.no_sync():
        ddp(batch).sum().backward()
    assert ddp.reducer is first
    assert len(ddp._forward_pre_hooks) == 1, "it waits for a step that exchanges"
    ddp(batch).sum().backward()
    second = ddp.reducer
    assert second is not first
    assert len(ddp._forward_pre_hooks) == 0
    ddp(batch).sum().backward()
    assert ddp.reducer is second
    assert ddp_live.current(ddp)["bucket_cap_mb"] == 2097 / MIB


def test_a_static_graph_whose_first_step_exchanges_is_learned_at_once() -> None:
    ddp: Any = DistributedDataParallel(perceptron(), static_graph=True)
    ddp(torch.ones(1, 24)).sum().backward()
    ddp_live.switch(ddp, {"bucket_cap_mb": 0.002})
    reducer = ddp.reducer
    ddp(torch.ones(1, 24)).sum().backward()
    assert ddp.reducer is reducer
    assert len(ddp._forward_pre_hooks) == 0


def test_gradients_move_into_the_buckets_and_out_again() -> None:
    ddp = DistributedDataParallel(perceptron())
    layout = Layout(ddp)
    layout.of_step()
    ddp_live.switch(ddp, {"gradient_as_bucket_view": True})
    ddp.zero_grad()
    layout.of_step()
    gradients = [parameter.grad for parameter in ddp.parameters()]
    assert len({gradient.untyped_storage().data_ptr() for gradient in gradients if gradient is not None}) == 1
    values = [gradient.clone() for gradient in gradients if gradient is not None]
    assert fixed(ddp) == {"hierarchical_allreduce": "the script has a communication hook of its own"}
    ddp_live.switch(ddp, {"gradient_as_bucket_view": False})
    after = [parameter.grad for parameter in ddp.parameters() if parameter.grad is not None]
    assert len({gradient.untyped_storage().data_ptr() for gradient in after}) == len(values) == len(after) == 12
    assert all(torch.equal(one, other) for one, other in zip(values, after, strict=True))


def test_gradients_that_the_script_keeps_in_a_buffer_do_not_move() -> None:
    ddp = DistributedDataParallel(perceptron())
    buffer = torch.zeros(sum(parameter.numel() for parameter in ddp.parameters()))
    at = 0
    for parameter in ddp.parameters():
        parameter.grad = buffer[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()
    why_not = "the gradients are views of a buffer, which the script may rely on"
    assert fixed(ddp)["gradient_as_bucket_view"] == why_not
    with pytest.raises(ValueError, match=f"gradient_as_bucket_view cannot change: {why_not}"):
        ddp_live.switch(ddp, {"gradient_as_bucket_view": True})
    ddp_live.switch(ddp, {"bucket_cap_mb": 2})
    assert ddp_live.current(ddp)["bucket_cap_mb"] == 2


def test_what_holds_a_knob_is_said() -> None:
    ddp = DistributedDataParallel(perceptron())
    with pytest.raises(ValueError, match="no hierarchical allreduce: "):
        ddp_live.switch(ddp, {"hierarchical_allreduce": True})
    assert hierarchical.prepare(ddp.process_group) == "all ranks are on one host"
    assert fixed(ddp) == {"hierarchical_allreduce": "all ranks are on one host"}
    sparse = DistributedDataParallel(nn.Embedding(8, 4, sparse=True))
    assert fixed(sparse)["hierarchical_allreduce"] == "the model has sparse gradients"
    asked = {"hierarchical_allreduce": True, "first_bucket_mb": 2}
    assert ddp_live.switch_prepared(sparse, asked) == "the model has sparse gradients", "and no error in a script"
    assert ddp_live.current(sparse)["first_bucket_mb"] == 2


def test_a_hierarchy_that_is_there_sums_and_its_hook_is_not_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    group = dist.group.WORLD
    monkeypatch.setitem(hierarchical._registry(), group, hierarchical.Groups([[0]], None))
    ddp: Any = DistributedDataParallel(perceptron())
    before = ddp._get_ddp_logging_data().get("comm_hook")
    ddp_live.switch(ddp, {"hierarchical_allreduce": True})
    assert ddp_live.current(ddp) == {**UNSET, "hierarchical_allreduce": True}
    assert "Groups.hook" in ddp._get_ddp_logging_data()["comm_hook"] != before
    assert ddp._comm_hooks == []
    assert refusal(ddp) == ""
    for _ in range(2):
        ddp.zero_grad()
        ddp(torch.ones(1, 24)).sum().backward()
    found = [parameter.grad for parameter in ddp.parameters()]
    alone = perceptron()
    alone(torch.ones(1, 24)).sum().backward()
    for one, other in zip(found, alone.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)
    ddp_live.switch(ddp, {})
    assert ddp_live.current(ddp) == UNSET


def test_collectives_of_one_rank_change_nothing() -> None:
    assert ddp_live.agree(2**40 + 1) == 2**40 + 1
    tensor = torch.tensor([3.0, 5.0])
    handle = ddp_live.begin_allreduce(tensor, "sum")
    ddp_live.wait(handle)
    assert ddp_live.is_done(handle)
    ddp_live.broadcast(tensor, "rank 0's")
    assert tensor.tolist() == [3.0, 5.0]


def test_a_rank_joins_and_leaves_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(dist, "init_process_group", asked.append)
    for device, knobs in (("cpu", {}), ("cuda:1", {}), ("cuda", {"backend": "gloo"}), ("cpu", {"backend": None})):
        assert ddp_live.start(device, knobs) == (0, 1)
    assert asked == ["gloo", "nccl", "gloo", "gloo"]
    left: list[bool] = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda: left.append(True))
    ddp_live.finish()
    assert left == [True]


def test_one_process_alone_agrees_with_itself() -> None:
    assert plain_live.start("cpu", {}) == (0, 1)
    model = perceptron()
    assert plain_live.wrap(model, lambda parameters: len(list(parameters)), {}, passes=2) == (model, 12)
    assert plain_live.agree(7) == 7
    plain_live.finish()
