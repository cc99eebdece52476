"""DDP's own work on a GPU, and GPUs that differ."""

from pathlib import Path

import numpy as np
import pytest

from scalescope.engines.base import Exchange, Message
from scalescope.records.cluster import Cluster
from scalescope.records.cluster_file import load_cluster
from scalescope.simulator.gpu import described_overlap, own_cost, unequal
from simulator.made import described, gradients, overlap, point, profile, stepped

H200 = Cluster(nodes=1, slots_per_node=8, cores_per_node=8, device="gpu", gpu="H200")


def exchange(tensors: int, megabytes: float, buffers: int = 0, **more: object) -> Exchange:
    message = Message(int(1e6 * megabytes), 0, tensors)
    given = {"backend": "nccl", "messages": (message,), "broadcast_tensors": buffers, "copies": True, **more}
    return Exchange(**given)


# Wrapped less bare on an H200, milliseconds: make bench SECTION=ddp_gpu, without a wait after each step.
@pytest.mark.parametrize(
    ("tensors", "megabytes", "buffers", "measured_ms"),
    [
        (62, 46.76, 0, 0.43),
        (161, 102.2, 0, 0.96),
        (314, 178.2, 0, 1.54),
        (148, 367, 0, 1.14),
        (34, 1074, 0, 1.23),
        (62, 46.76, 60, 0.80),
        (161, 102.2, 159, 1.82),
        (314, 178.2, 312, 2.82),
    ],
)
def test_own_cost_is_what_was_measured(tensors: int, megabytes: float, buffers: int, measured_ms: float) -> None:
    assert 1e3 * own_cost(H200, exchange(tensors, megabytes, buffers)).step_s == pytest.approx(measured_ms, rel=0.15)


def test_copies_take_longer_where_memory_is_slower_and_none_are_made_into_views() -> None:
    large = exchange(1, 1000)
    v100 = own_cost(Cluster(nodes=1, slots_per_node=8, cores_per_node=8, device="gpu", gpu="V100"), large)
    assert v100.copy_s.sum() == pytest.approx(own_cost(H200, large).copy_s.sum() * 4.8 / 0.9, rel=0.02)
    views = exchange(1, 1000, copies=False)
    assert 0 < own_cost(H200, views).step_s < 0.2e-3


def test_cpus_have_what_their_cluster_says_and_so_has_a_probed_gpu() -> None:
    assert own_cost(described(), exchange(10, 10)).step_s == 0
    assert own_cost(described(copy_s_per_tensor=1.0), exchange(10, 10)).step_s == pytest.approx(20)
    probed = Cluster(
        nodes=1, slots_per_node=1, cores_per_node=1, device="gpu", copy_s_per_tensor=1.0, copy_s_per_byte=1e-6
    )
    assert own_cost(probed, exchange(10, 10)).copy_s.sum() == pytest.approx(20)


def test_what_ddp_was_measured_to_cost_on_a_cpu_counts_once() -> None:
    copying = described(copy_s_per_tensor=1.0)
    assert own_cost(copying, exchange(10, 10), measured_s=25.0).step_s == pytest.approx(25)
    assert own_cost(copying, exchange(10, 10), measured_s=5.0).step_s == pytest.approx(20)
    assert own_cost(copying, exchange(10, 10, copies=False), measured_s=25.0).step_s == pytest.approx(5)
    assert own_cost(H200, exchange(10, 10), measured_s=25.0).step_s < 1


def test_one_process_alone_pays_nothing_unless_it_is_wrapped() -> None:
    model = profile(point(ready_s=(1.0, 2.0)), gradients=gradients(1, 1), device="H200")
    slow = described(device="gpu", copy_s_per_tensor=0.25, copy_s_per_byte=0.25 / 2**20, device_spread=0.0)
    assert stepped(model, slow, 1).step_s == pytest.approx([7])
    wrapped = stepped(model, slow, 1, wrapped=True)
    assert wrapped.outcome.backward_s == pytest.approx([4 + 1])
    assert wrapped.step_s == pytest.approx([7 + 2 + 0.14e-3])
    assert wrapped.exposed_s == pytest.approx([0])


def test_nccl_slows_compute_by_the_multiprocessors_that_it_takes() -> None:
    dgx1 = load_cluster(Path("examples/clusters/dgx1-v100.toml"))
    found = [described_overlap(dgx1, *place) for place in ((2, 1), (4, 1), (8, 1), (16, 2), (2, 2))]
    shares = np.array([2, 8, 12, 6, 6]) / 80  # two channels for each link; 50 GB/s between nodes are nearly three
    np.testing.assert_allclose([each.compute for each in found], 1 + 0.65 * np.sqrt(shares))
    assert all(each.compute_error > 0 for each in found)
    # resnet50, vgg19 and a GPT on an H200, on average, next to kernels of 2 to 32 blocks.
    measured = np.array([1.056, 1.074, 1.149, 1.217, 1.322])
    np.testing.assert_allclose(1 + 0.65 * np.sqrt(np.array([2, 4, 8, 16, 32]) / 132), measured, rtol=0.04)
    model = profile(point(ready_s=(0.0,)), gradients=gradients(1), device="V100")
    link = {"device": "gpu", "device_spread": 0.0}
    assert stepped(model, described(1.0, **link), 2).outcome.backward_s > 4.01
    assert stepped(model, described(1.0, **link, overlaps=(overlap(backend="nccl"),)), 2).outcome.backward_s < 4.01


def test_the_slowest_of_many_gpus_is_slower_than_a_typical_one() -> None:
    slowest, error = unequal(H200, [1, 2, 8, 1000])
    np.testing.assert_allclose(slowest, 1 + 0.015 * np.array([0, 0.56, 1.42, 3.24]), rtol=0.001)
    assert error[0] == 0
    assert (np.diff(error) > 0).all()
    assert unequal(described(), [1, 8])[0].tolist() == [1, 1]
    spread = described(device="gpu", device_spread=0.1, overlaps=(overlap(backend="nccl"),))
    model = profile(point(ready_s=(1.0,)), gradients=gradients(1), device="H200")
    assert stepped(model, spread, [1, 8]).forward_s == pytest.approx([2, 2 * (1 + 0.1 * 1.42)], rel=0.01)
