"""Every term of NCCL's model by itself: what a collective takes whatever its size, and the rate of large ones."""

import math

import numpy as np
import pytest

from scalescope.records.cluster import Algorithm, Cluster, Gpu, Link, Operation
from scalescope.simulator.nccl import Nccl, channels

FAST = Link(bytes_per_s=1e30, latency_s=5e-6)
NVLINK, NETWORK = Link(bytes_per_s=240e9, latency_s=5e-6), Link(bytes_per_s=25e9, latency_s=8e-6)


def alone_us(
    protocol: str, route: Algorithm, ranks: int, nodes: int, operation: Operation = "allreduce", *, nvlink: bool = True
) -> float:
    """Microseconds of a message of no bytes."""
    nccl = Nccl(nvlink=nvlink, protocols=(protocol,))
    return float(nccl.seconds(operation, route, 0, ranks, nodes, FAST, FAST)) * 1e6


@pytest.mark.parametrize(
    ("protocol", "base", "nvlink", "pcie", "sending"),
    [("LL", 6.6, 0.6, 1.0, 1.0), ("LL128", 14.0, 1.9, 2.5, 1.9), ("Simple", 8.4, 3.4, 5.7, 3.4)],
)
def test_a_ring_takes_its_base_and_two_hops_for_each_further_rank(
    protocol: str, base: float, nvlink: float, pcie: float, sending: float
) -> None:
    far = {"LL": 2.7, "LL128": 4.0, "Simple": 14.0}[protocol]
    tree_far = {"LL": 5.0, "LL128": 8.5, "Simple": 14.0}[protocol]
    assert alone_us(protocol, "ring", 8, 1) == pytest.approx(base + 14 * nvlink)
    assert alone_us(protocol, "ring", 8, 1, nvlink=False) == pytest.approx(base + 14 * pcie)
    assert alone_us(protocol, "ring", 16, 2) == pytest.approx(base + 28 * sending + 2 * far)
    assert alone_us(protocol, "ring", 4, 4) == pytest.approx(base + 6 * tree_far), "one rank on each node"
    assert alone_us(protocol, "ring", 1, 1) == 0


@pytest.mark.parametrize(
    ("protocol", "base", "nvlink", "pcie", "far"),
    [("LL", 6.8, 0.6, 1.0, 5.0), ("LL128", 14.0, 1.25, 1.9, 8.5), ("Simple", 8.4, 4.0, 4.0, 14.0)],
)
def test_a_tree_takes_its_base_and_twice_the_hops_of_a_node_and_of_its_levels(
    protocol: str, base: float, nvlink: float, pcie: float, far: float
) -> None:
    assert alone_us(protocol, "tree", 8, 1) == pytest.approx(base + 14 * nvlink)
    assert alone_us(protocol, "tree", 8, 1, nvlink=False) == pytest.approx(base + 14 * pcie)
    assert alone_us(protocol, "tree", 40, 5) == pytest.approx(base + 14 * nvlink + 2 * 2 * far)


@pytest.mark.parametrize(
    ("protocol", "base", "near", "pcie", "far"),
    [("LL", 6.6, 0.6, 1.0, 2.7), ("LL128", 14.0, 1.9, 2.5, 4.0), ("Simple", 8.4, 4.0, 4.0, 14.0)],
)
def test_a_broadcast_goes_once_around(protocol: str, base: float, near: float, pcie: float, far: float) -> None:
    assert alone_us(protocol, "ring", 16, 2, "broadcast") == pytest.approx(base + 14 * near + far)
    assert alone_us(protocol, "ring", 16, 2, "broadcast", nvlink=False) == pytest.approx(base + 14 * pcie + far)


def rate(
    protocol: str,
    route: Algorithm,
    ranks: int,
    nodes: int,
    gpu: Gpu | None = None,
    operation: Operation = "allreduce",
    inside: Link = NVLINK,
    between: Link = NETWORK,
) -> float:
    """GB/s of a message as large as any."""
    nccl = Nccl(gpu=gpu, protocols=(protocol,))
    small, large = nccl.seconds(operation, route, [1e12, 3e12], ranks, nodes, inside, between)
    return 2e12 / float(large - small) / 1e9


def test_rings_send_what_their_protocol_leaves_of_the_slowest_link() -> None:
    sent = 2 * 7 / 8
    assert rate("Simple", "ring", 8, 1) == pytest.approx(240 / sent)
    assert rate("LL128", "ring", 8, 1) == pytest.approx(0.92 * 240 / sent)
    sent = 2 * 15 / 16
    assert rate("Simple", "ring", 16, 2) == pytest.approx(25 / sent)
    assert rate("LL", "ring", 16, 2) == pytest.approx(12.5 / sent)
    assert rate("Simple", "ring", 8, 1, operation="broadcast") == pytest.approx(240)


def test_trees_send_twice_and_need_half_of_the_link_between_two_nodes() -> None:
    assert rate("Simple", "tree", 8, 1) == pytest.approx(0.92 * 240 / 2)
    assert rate("LL128", "tree", 8, 1) == pytest.approx(0.92 * 240 * 7 / 9 / 2)
    assert rate("Simple", "tree", 32, 4) == pytest.approx(0.92 * 25 / 2)
    assert rate("LL128", "tree", 32, 4) == pytest.approx(0.92 * 25 * 120 / 128 / 2)
    assert rate("Simple", "tree", 16, 2) == pytest.approx(0.92 * 50 / 2)
    assert rate("LL", "tree", 32, 4) == pytest.approx(0.92 * 25 / 3.8 / 2)


@pytest.mark.parametrize(
    ("gpu", "most"), [(None, 87.7), ("V100", 39.0), ("A100", 87.7), ("H100", 141.0), ("H200", 141.0), ("B200", 282.0)]
)
def test_ll_reaches_what_the_gpu_allows_on_one_node_and_the_host_on_more(gpu: Gpu | None, most: float) -> None:
    def reached(ranks: int, nodes: int, route: Algorithm = "ring") -> float:
        sent = 2.0 if route == "tree" else 2 * (ranks - 1) / ranks
        return rate("LL", route, ranks, nodes, gpu, inside=FAST, between=FAST) * sent

    assert reached(8, 1) == pytest.approx(most)
    assert reached(8, 1, "tree") == pytest.approx(most)
    assert reached(16, 2) == pytest.approx(39.0)
    assert reached(24, 3) == pytest.approx(20.4)


@pytest.mark.parametrize(
    ("protocol", "tenths"),
    [
        ("LL", {64: 10, 1024: 9, 16384: 7, 262144: 4, 1 << 20: 5, 8 << 20: 8, 512 << 20: 10}),
        ("LL128", {64: 10, 1024: 10, 16384: 8, 262144: 6, 1 << 20: 6, 8 << 20: 9, 512 << 20: 10}),
        ("Simple", {64: 9, 1024: 9, 16384: 7, 262144: 5, 1 << 20: 5, 8 << 20: 8, 512 << 20: 10}),
    ],
)
def test_a_tree_reaches_a_part_of_its_rate_by_size(protocol: str, tenths: dict[int, int]) -> None:
    slow = Link(bytes_per_s=1e6, latency_s=0.0)
    nccl = Nccl(protocols=(protocol,))
    full = {"LL": 0.92e6 / 3.8, "LL128": 0.92e6 * 7 / 9, "Simple": 0.92e6}[protocol]
    nothing = float(nccl.seconds("allreduce", "tree", 0, 8, 1, FAST, slow))
    for size, part in tenths.items():
        seconds = float(nccl.seconds("allreduce", "tree", size, 8, 1, slow, slow)) - nothing
        assert seconds == pytest.approx(2 * size / (full * part / 10))


@pytest.mark.parametrize(("gpu", "factor"), [(None, 1.4), ("H100", 1.4), ("V100", 1.9)])
def test_large_messages_lengthen_the_hops_of_simple_rings_across_nodes(gpu: Gpu | None, factor: float) -> None:
    nccl = Nccl(gpu=gpu, protocols=("Simple",))
    hops_us = 8.4 + 28 * 3.4 + 2 * 14.0
    inside = Link(bytes_per_s=40e9, latency_s=0.0)
    edge = 64 * 16 * 2  # of 16 ranks and two channels
    sizes = np.array([edge - 1, edge])
    seconds = nccl.seconds("allreduce", "ring", sizes, 16, 2, inside, NETWORK)
    sent_s = 2 * 15 / 16 * sizes / 25e9
    assert (seconds - sent_s) * 1e6 == pytest.approx([hops_us, factor * hops_us])
    one = nccl.seconds("allreduce", "ring", 1 << 20, 8, 1, inside, NETWORK)
    assert (one - 1.75 * (1 << 20) / 40e9) * 1e6 == pytest.approx(8.4 + 14 * 3.4), "not on one node"
    unlimited = nccl.seconds("allreduce", "ring", 64 * 16, 16, 2, Link(bytes_per_s=math.inf, latency_s=0.0), NETWORK)
    assert (unlimited - 2 * 15 / 16 * 64 * 16 / 25e9) * 1e6 == pytest.approx(factor * hops_us)


def test_a_slow_network_adds_what_it_is_slower_than_nccl_assumes() -> None:
    def us(latency_s: float) -> float:
        network = Link(bytes_per_s=1e30, latency_s=latency_s)
        return float(Nccl(protocols=("LL",)).seconds("allreduce", "ring", 0, 16, 2, FAST, network)) * 1e6

    assert us(0.0) == us(14e-6) == pytest.approx(6.6 + 28 * 1.0 + 2 * 2.7)
    assert us(24e-6) - us(0.0) == pytest.approx(20.0)


def test_links_of_50_gb_per_second_count_as_nvlink() -> None:
    def on(bytes_per_s: float, protocol: str | None = None) -> Nccl:
        inside = Link(bytes_per_s=bytes_per_s, latency_s=0.0)
        return Nccl.on(Cluster(nodes=1, slots_per_node=8, cores_per_node=8, inside=inside), protocol)

    assert (on(50e9).nvlink, on(49.9e9).nvlink) == (True, False)
    assert on(50e9, "LL").protocols == ("LL",)
    assert on(50e9).protocols == ("LL", "LL128", "Simple")
    assert Nccl.on(Cluster(nodes=1, slots_per_node=8, cores_per_node=8), None).nvlink


@pytest.mark.parametrize(
    ("gb_per_s", "count"), [(1, 2), (20, 2), (29, 2), (31, 4), (240, 24), (320, 32), (450, 32), (1800, 32)]
)
def test_two_channels_carry_a_link(gb_per_s: float, count: int) -> None:
    assert channels(gb_per_s * 1e9) == count
