"""The step that ranks of a MODEL train: precision, and passes that exchange their gradients once."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from scalescope.errors import UsageError
from scalescope.jobs.train_model import _step
from scalescope.records.profile import WorkloadSpec
from scalescope.workloads import load

CPU = torch.device("cpu")


class Counted(torch.nn.Module):
    """A model that counts its passes, and those whose gradients are not exchanged, as DDP has them."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.seen, self.quiet = model, [], 0

    def forward(self, *inputs: torch.Tensor) -> Any:
        self.seen.append((len(inputs[0]), torch.is_autocast_enabled("cpu")))
        return self.model(*inputs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.quiet += 1
        yield


def stepped(batch: int, **options: Any) -> Counted:
    """The model after one step."""
    workload = load(WorkloadSpec(model="mlp", model_args={"width": 8, "depth": 1}, **options))
    model = Counted(workload.model)
    _step(workload, model, workload.optimizer(model.parameters()), batch, CPU)()
    return model


def test_a_step_in_passes_uses_every_sample_and_exchanges_once() -> None:
    found = stepped(10, accumulate=4)
    assert [size for size, _ in found.seen] == [3, 3, 2, 2]
    assert found.quiet == 3
    assert stepped(10).quiet == 0


def test_passes_add_up_to_the_mean_over_them() -> None:
    workload = load(WorkloadSpec(model="mlp", model_args={"width": 8, "depth": 1}))
    inputs, target = workload.batch(4), workload.target(4)
    workload.loss(workload.model(*inputs), target).backward()
    once = [parameter.grad.clone() for parameter in workload.model.parameters()]
    found = stepped(8, accumulate=2)  # the same four samples twice
    for parameter, gradient in zip(found.parameters(), once, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)


def test_a_batch_of_fewer_samples_than_passes_is_refused() -> None:
    with pytest.raises(UsageError, match="a batch of 2 cannot be split into 4 passes: lower --accumulate"):
        stepped(2, accumulate=4)


def test_mixed_precision_is_a_context_of_forward_and_loss() -> None:
    workload = load(WorkloadSpec(model="mlp", dtype="bf16"))
    with workload.precision("cpu"):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    with load(WorkloadSpec(model="mlp")).precision("cpu"):
        assert not torch.is_autocast_enabled("cpu")
    assert stepped(4).seen == [(4, False)]
