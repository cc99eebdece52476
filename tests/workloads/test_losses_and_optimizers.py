from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from scalescope.errors import UsageError
from scalescope.workloads import WorkloadSpec, check, load
from scalescope.workloads.training import LOSSES, OPTIMIZERS, find_loss, find_optimizer

WriteCode = Callable[[str], str]
Pair = namedtuple("Pair", ["mean", "logits"])

ONES = torch.ones(2, 3)
TWOS = torch.full((2, 3), 2.0)


@pytest.mark.parametrize(
    ("output", "value"),
    [
        (TWOS, 4.0),
        ((TWOS, ONES), 5.0),
        ([TWOS, torch.tensor([7])], 4.0),
        ({"a": TWOS, "b": {"c": ONES}}, 5.0),
        ({"loss": torch.tensor(0.25), "logits": TWOS}, 0.25),
        ({"loss": None, "logits": TWOS, "hidden": ONES}, 4.0),
        (SimpleNamespace(logits=TWOS, hidden=ONES), 4.0),
        (SimpleNamespace(loss=torch.tensor(0.5)), 0.5),
        (SimpleNamespace(mean=TWOS, spread=ONES), 5.0),
        (Pair(mean=ONES, logits=TWOS), 4.0),
    ],
)
def test_the_default_loss_reads_any_output(output: object, value: float) -> None:
    assert LOSSES["mean_square"](output, None).item() == pytest.approx(value)


@pytest.mark.parametrize("output", [None, "text", [], torch.tensor([1, 2])])
def test_an_output_without_float_tensors_is_refused(output: object) -> None:
    with pytest.raises(UsageError, match=r"give --loss file.py:function"):
        LOSSES["mean_square"](output, None)
    with pytest.raises(UsageError, match=r"give --loss file.py:function"):
        LOSSES["mse"](output, None)


@pytest.mark.parametrize("name", LOSSES)
def test_every_named_loss_makes_up_its_target(name: str) -> None:
    output = torch.rand(4, 3, requires_grad=True)
    loss = LOSSES[name](output, None)
    loss.backward()
    assert loss.shape == ()
    assert output.grad is not None
    assert output.grad.abs().sum() > 0


def test_named_losses_use_the_target_and_the_main_tensor() -> None:
    scores, classes = torch.randn(4, 3, 5), torch.randint(3, (4, 5))
    assert LOSSES["cross_entropy"](scores, classes) == functional.cross_entropy(scores, classes)
    assert LOSSES["cross_entropy"]({"logits": scores}, classes) == functional.cross_entropy(scores, classes)
    assert LOSSES["l1"]((TWOS, ONES), ONES).item() == 1.0
    tokens = torch.randint(5, (4, 3))
    expected = functional.cross_entropy(scores.transpose(1, 2), tokens)
    torch.testing.assert_close(LOSSES["next_token"](scores, tokens), expected)
    with pytest.raises(UsageError, match=r"target\(n\) returns dict: return a tensor, or give --loss file.py:function"):
        LOSSES["mse"](ONES, {"y": ONES})


def test_own_loss_and_optimizer_are_called_as_documented(user_code: WriteCode) -> None:
    file = user_code(
        "def make(): return nn.Linear(2, 2)\n"
        "def batch(n): return torch.ones(n, 2)\n"
        "def target(n): return ['kept', n]\n"
        "def loss(output, target):\n    assert target == ['kept', 3]\n    return output.sum()\n"
        "def optimizer(parameters): return torch.optim.SGD(parameters, lr=0.5, nesterov=True, momentum=0.1)\n"
    )
    workload = load(WorkloadSpec(model=f"{file}:make", loss=f"{file}:loss", optimizer=f"{file}:optimizer"))
    check(workload, 3)
    optimizer = workload.optimizer(workload.model.parameters())
    assert optimizer.param_groups[0]["nesterov"]
    with pytest.raises(UsageError, match="sets its own learning rate: remove"):
        find_optimizer(f"{file}:optimizer", 0.1)


def test_own_loss_and_optimizer_that_return_the_wrong_thing(user_code: WriteCode) -> None:
    file = user_code("def number(output, target): return 1.0\ndef nothing(parameters): pass\nSIZE = 3\n")
    with pytest.raises(UsageError, match="number returns float: a loss must return a tensor with one number"):
        find_loss(f"{file}:number")(ONES, None)
    with pytest.raises(UsageError, match=r"nothing returns NoneType: it must return a torch.optim.Optimizer"):
        find_optimizer(f"{file}:nothing", None)(nn.Linear(1, 1).parameters())
    with pytest.raises(UsageError, match="SIZE is not a function"):
        find_loss(f"{file}:SIZE")
    with pytest.raises(UsageError, match="SIZE is not a function"):
        find_optimizer(f"{file}:SIZE", None)


def test_a_loss_that_is_not_one_number_is_refused_before_the_work(user_code: WriteCode) -> None:
    file = user_code("def make(): return nn.Linear(2, 2)\ndef each(output, target): return output.square()\n")
    with pytest.raises(UsageError, match=r"each returns 4x2 float32: a loss must return one number; take its mean"):
        check(load(WorkloadSpec(model=f"{file}:make", inputs=("2",), loss=f"{file}:each")), 4)


def test_a_loss_that_does_not_fit_names_both_shapes(user_code: WriteCode) -> None:
    file = user_code("def make(): return nn.Linear(2, 2)\ndef target(n): return torch.zeros(n + 1, dtype=torch.long)\n")
    expected = r"cross_entropy rejects the output \(4x2 float32\) of .* with target\(n\) \(5 int64\): .*; give another"
    with pytest.raises(UsageError, match=expected):
        check(load(WorkloadSpec(model=f"{file}:make", inputs=("2",), loss="cross_entropy")), 4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_named_optimizer_takes_steps(name: str) -> None:
    layer = nn.Linear(2, 1)
    before = layer.weight.detach().clone()
    optimizer = find_optimizer(name, None)(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(layer.weight, before)
    assert find_optimizer(name, 0.125)(layer.parameters()).param_groups[0]["lr"] == 0.125


def test_sgd_has_momentum() -> None:
    assert find_optimizer("sgd", None)(nn.Linear(1, 1).parameters()).param_groups[0]["momentum"] == 0.9
