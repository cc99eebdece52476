"""The work of a step, counted without computing anything."""

from pathlib import Path

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.records.profile import WorkloadSpec
from scalescope.workloads.work import step_work

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1000, 1000), nn.Linear(1000, 4000)

    def forward(self, x):
        y = self.second(torch.relu(self.first(x)))
        return y if not DATA or y.sum().item() > 0 else -y

def batch(n):
    return torch.randn(n, 1000)
"""


def net(folder: Path, *, reads_data: bool = False) -> WorkloadSpec:
    path = folder / f"net{int(reads_data)}.py"
    path.write_text(NET + f"\nDATA = {reads_data}\n")
    return WorkloadSpec(model=f"{path}:Net")


def test_backward_is_twice_the_forward_and_the_last_layer_comes_first(tmp_path: Path) -> None:
    made = step_work(net(tmp_path), 4096)
    assert made.backward == pytest.approx(2 * made.forward, rel=0.25)
    assert made.optimizer < 0.1 * made.forward
    names = [gradient.name for gradient in made.gradients]
    assert {*names[:2]} == {"second.weight", "second.bias"}
    assert {*names[2:]} == {"first.weight", "first.bias"}
    assert list(made.ready) == sorted(made.ready)
    # The second layer has four fifths of the work; the first needs no gradient of its input.
    assert 0.75 < made.ready[1] / made.backward < 0.95
    assert made.ready[-1] == pytest.approx(made.backward, rel=0.01)
    assert sum(gradient.bytes for gradient in made.gradients) == 4 * (1001 * 1000 + 1001 * 4000)


def test_work_and_memory_grow_with_the_batch(tmp_path: Path) -> None:
    small, large = (step_work(net(tmp_path), batch) for batch in (1024, 4096))
    assert large.forward == pytest.approx(4 * small.forward, rel=0.2)
    kept = 4 * 3072 * (1000 + 1000 + 4000)  # what 3,072 more samples leave for backward: an input, a relu, a result
    assert kept <= large.memory_bytes - small.memory_bytes <= 1.7 * kept


def test_buffers_and_the_state_of_the_optimizer_are_counted() -> None:
    plain, adam = (step_work(WorkloadSpec(model="cnn", optimizer=name), 8) for name in ("sgd", "adam"))
    assert plain.buffers == 9
    assert len(plain.buffers_bytes) == 2
    assert adam.optimizer > plain.optimizer
    assert adam.memory_bytes > plain.memory_bytes


def test_a_model_that_needs_its_data_is_named_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Net cannot be counted without its data .*--profile"):
        step_work(net(tmp_path, reads_data=True), 8)


def test_buffers_take_memory(tmp_path: Path) -> None:
    (tmp_path / "tables.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, size=1):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(4, 10)\n"
        "        self.register_buffer('table', torch.zeros(size))\n"
        "    def forward(self, x):\n"
        "        return self.layer(x)\n"
    )
    spec = WorkloadSpec(model=f"{tmp_path / 'tables.py'}:Net", inputs=("4",))
    small, large = (step_work(msgspec.structs.replace(spec, model_args={"size": size}), 8) for size in (1, 1001))
    assert (small.buffers_bytes, large.buffers_bytes) == ((4,), (4004,))
    assert large.memory_bytes - small.memory_bytes == 4000
