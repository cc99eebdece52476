from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scalescope.errors import UsageError
from scalescope.workloads import WorkloadSpec, check, load, spec_from_options
from scalescope.workloads.references import resolve

WriteCode = Callable[[str], str]

NET = """
class Net(nn.Module):
    def __init__(self, width: int = 4, name: str = "plain"):
        super().__init__()
        self.name = name
        self.layer = nn.Linear(6, width)

    def forward(self, x):
        return self.layer(x)

"""
BATCH = "def batch(n):\n    return torch.randn(n, 6)\n\n"


def test_a_class_in_a_file_with_arguments(user_code: WriteCode) -> None:
    file = user_code(NET)
    workload = load(spec_from_options(f"{file}:Net", model_args=["width=3", "name='007'"], inputs=["6"]))
    check(workload, 2)
    assert workload.model.name == "007"
    assert workload.model(*workload.batch(5)).shape == (5, 3)


def test_a_function_in_a_module_of_the_working_directory(user_code: WriteCode) -> None:
    user_code(NET + BATCH + "def small(width=2): return Net(width)\n")
    workload = load(WorkloadSpec(model="models:small", model_args={"width": 7}))
    check(workload, 2)
    assert workload.model(*workload.batch(3)).shape == (3, 7)


def test_a_file_finds_its_neighbours_and_is_imported_once(user_code: WriteCode, tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "neighbour_of_net.py").write_text("WIDTH = 6\n")
    (tmp_path / "deeper" / "net.py").write_text(
        "from __future__ import annotations\nimport torch\nfrom neighbour_of_net import WIDTH\n"
        "def make(wide: bool = False): return torch.nn.Linear(WIDTH, 9 if wide else 1)\n"
        "def batch(n): return torch.ones(n, WIDTH)\n"
        "seen = []\n"
        "def loss(output, target): seen.append(output.shape); return output.mean()\n"
    )
    spec = spec_from_options("deeper/net.py:make", model_args=["wide=true"], loss="deeper/net.py:loss")
    workload = load(spec)
    check(workload, 2)
    assert resolve("deeper/net.py:seen")[0] == [(2, 9)]


def test_several_inputs_reach_forward_in_order(user_code: WriteCode) -> None:
    file = user_code(
        "class Two(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.words = nn.Embedding(10, 4)\n"
        "    def forward(self, tokens, scale):\n        return self.words(tokens).mean(1) * scale\n"
    )
    workload = load(spec_from_options(f"{file}:Two", inputs=["int64:5:vocab=10", "4"]))
    check(workload, 2)
    assert [tuple(tensor.shape) for tensor in workload.batch(2)] == [(2, 5), (2, 4)]
    with pytest.raises(UsageError, match=r"give one --input for every argument of forward\(tokens, scale\)"):
        check(load(spec_from_options(f"{file}:Two", inputs=["int64:5:vocab=10"])), 2)


def test_batch_and_target_next_to_the_model_are_seeded(user_code: WriteCode) -> None:
    file = user_code(NET + BATCH + "def target(n): return torch.randint(4, (n,))\n")
    spec = WorkloadSpec(model=f"{file}:Net", loss="cross_entropy")
    first, again, other = load(spec, seed=1), load(spec, seed=1), load(spec, seed=2)
    check(first, 3)
    assert torch.equal(first.batch(3)[0], again.batch(3)[0])
    assert torch.equal(first.batch(3)[0], first.batch(3)[0])
    assert not torch.equal(first.batch(3)[0], other.batch(3)[0])
    target = first.target(8)
    assert isinstance(target, torch.Tensor)
    assert target.shape == (8,)


def test_an_input_option_goes_before_batch(user_code: WriteCode) -> None:
    file = user_code(NET + BATCH)
    assert load(spec_from_options(f"{file}:Net", inputs=["2x6"])).batch(3)[0].shape == (3, 2, 6)


@pytest.mark.parametrize(
    ("reference", "options", "message"),
    [
        ("model.py:Net", {}, r"no file model.py \(did you mean models.py\?\): give the path from /"),
        ("nomodule.at_all:Net", {}, r"no module 'nomodule.at_all' in /.* or the environment: change to"),
        ("models.py:", {}, r"'models.py:' names no function or class: write package.module:name"),
        ("models.py:Nett", {}, r"no 'Nett' in models.py \(did you mean Net\?\): it has Net, Needs"),
        (
            "models.py:Net",
            {},
            r"no input known for models.py:Net: add --input 3x224x224, or write batch\(n\) in models.py",
        ),
        (
            "models.py:Needs",
            {"inputs": ["6"]},
            r"models.py:Needs needs a and b: add --model-arg a=VALUE --model-arg b=",
        ),
        (
            "models.py:Net",
            {"inputs": ["6"], "model_args": ["wdth=2"]},
            r"models.py:Net has no argument 'wdth' \(did you mean width\?\): it has width, name",
        ),
        ("models.py:a_list", {"inputs": ["6"]}, r"models.py:a_list returns list, not a torch.nn.Module: name a Module"),
        ("models.py:made", {"inputs": ["6"]}, r"models.py:made is Linear, not a factory: name a Module class"),
        ("models.py:lazy", {"inputs": ["6"]}, r"models.py:lazy has lazy layers .*: call the model once in a factory"),
        ("models.py:SIZE", {"inputs": ["6"]}, r"models.py:SIZE is int, not a factory: name a Module class"),
        (
            "models.py:broken",
            {"inputs": ["6"]},
            r"models.py:broken\(\) fails: ZeroDivisionError: division by zero; change",
        ),
        ("models.py:Net", {"inputs": ["6x"]}, r"bad --input '6x': write"),
        (
            "models.py:Net",
            {"inputs": ["6"], "loss": "cross_entrpy"},
            r"no loss 'cross_entrpy' \(did you mean cross_entropy\?\): use one of mean_square, mse",
        ),
        (
            "models.py:Net",
            {"inputs": ["6"], "optimizer": "adm"},
            r"no optimizer 'adm' \(did you mean .*adam.*\?\): use one of sgd, adam",
        ),
        ("models.py:Net", {"inputs": ["6"], "loss": "models.py:lose"}, r"no 'lose' in models.py"),
        (
            "models.py:Net",
            {"inputs": ["6"], "learning_rate": 0.0},
            r"learning rate must be above 0, not 0: for example",
        ),
    ],
)
def test_errors_say_what_to_type(
    user_code: WriteCode, reference: str, options: dict[str, list[str]], message: str
) -> None:
    user_code(
        NET + "def Needs(a, b, c=1): ...\ndef a_list(): return [1]\ndef broken(): return 1 / 0\n"
        "made = nn.Linear(1, 1)\ndef lazy(): return nn.LazyLinear(2)\nSIZE = 3\n"
    )
    with pytest.raises(UsageError, match=message) as caught:
        load(spec_from_options(reference, **options))
    assert "\n" not in str(caught.value)


def test_code_that_cannot_be_imported_is_reported_with_the_command_that_shows_where(user_code: WriteCode) -> None:
    user_code("import package_that_nobody_has\n")
    missing = r"cannot be imported: ModuleNotFoundError: No module named 'package_that_nobody_has'; `python "
    with pytest.raises(UsageError, match="models.py " + missing + r"models.py` shows"):
        load(WorkloadSpec(model="models.py:Net"))
    with pytest.raises(UsageError, match="models " + missing + r"-c 'import models'` shows"):
        load(WorkloadSpec(model="models:Net"))


@pytest.mark.parametrize(
    ("source", "inputs", "message"),
    [
        (
            NET + "make = Net\n",
            ["7"],
            r"models.py:make rejects its input \(2x7 float32\): mat1 and mat2 shapes cannot be multiplied .*; give the "
            r"shape of one sample, for example --input 3x224x224",
        ),
        (
            NET + "make = Net\ndef batch(n): return torch.ones(n, 7)\n",
            [],
            r"change batch\(n\) next to the model, or give",
        ),
        (
            "def make(): return nn.Embedding(9, 2)\n",
            ["5"],
            r"\(2x5 float32\): .*it needs integers: --input int64:5:vocab=",
        ),
        ("def make(): return nn.Embedding(9, 2)\n", ["int64:99:vocab=99"], r"smaller: lower vocab=N in --input"),
        (
            NET + "make = Net\ndef batch(n): return {'x': 1}\n",
            [],
            r"batch\(n\) returns dict: return a tensor, or a tuple",
        ),
        (
            NET + "make = Net\ndef batch(n): return 1 / 0\n",
            [],
            r"batch\(n\) of models.py:make fails: division by zero; fix",
        ),
        ("def make(): return nn.Identity()\n", ["5"], r"no gradients for models.py:make: .*; the loss must depend on"),
    ],
)
def test_check_names_the_shapes_the_reason_and_the_next_action(
    user_code: WriteCode, source: str, inputs: list[str], message: str
) -> None:
    file = user_code(source)
    workload = load(spec_from_options(f"{file}:make", inputs=inputs))
    with pytest.raises(UsageError, match=message) as caught:
        check(workload, 2)
    assert "\n" not in str(caught.value)


def test_check_of_batch_normalisation_asks_for_more_samples(user_code: WriteCode) -> None:
    file = user_code("def make(): return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))\n")
    workload = load(spec_from_options(f"{file}:make", inputs=["5"]))
    check(workload, 2)
    with pytest.raises(UsageError, match=r"more than 1 value per channel .*: give a larger --batch"):
        check(workload, 1)
    with pytest.raises(UsageError, match="give --batch 1 or more"):
        check(workload, 0)


def test_check_leaves_no_gradients_behind(user_code: WriteCode) -> None:
    file = user_code(NET + BATCH)
    workload = load(WorkloadSpec(model=f"{file}:Net"))
    check(workload, 2)
    assert all(parameter.grad is None for parameter in workload.model.parameters())
