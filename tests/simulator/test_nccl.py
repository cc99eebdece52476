"""NCCL over described links, against what its own model says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.engines import find_engine
from scalescope.records.cluster import Among, Cluster, Link
from scalescope.simulator.costs import CostModel
from scalescope.simulator.nccl import PROTOCOLS, ROUTES, Nccl
from simulator.made import gradients, point, profile

NVLINK = Link(bytes_per_s=250e9, latency_s=5e-6)
NETWORK = Link(bytes_per_s=25e9, latency_s=8e-6)
SIXTEEN = Cluster(nodes=16, slots_per_node=8, cores_per_node=128, device="gpu", inside=NVLINK, between=NETWORK)


def test_it_says_what_nccls_own_formula_says_for_16_nodes_of_8() -> None:
    # tuning.cc by hand, 128 ranks on 16 nodes with one card of 200 Gbit/s. A tree with LL128 sends 25 MiB:
    # 14 us + 2 (7 x 1.25 + 4 x 8.5) us, and 2 N over 25 GB/s x 0.92 x 120/128 x what a tree reaches (0.9).
    found = CostModel(SIXTEEN, "nccl", "allreduce").seconds([64 << 10, 25 << 20], 128, 16)
    large_s = 99.5e-6 + 2 * (25 << 20) / (25e9 * 0.92 * 120 / 128 * 0.9)
    assert found[1] == pytest.approx(large_s)
    assert large_s == pytest.approx(2.80e-3, rel=0.01)
    # 64 KiB: LL, 6.8 us + 2 (7 x 0.6 + 4 x 5) us, at 1/3.8 of 0.92 of the link and 0.6 of that.
    assert found[0] == pytest.approx(55.2e-6 + 2 * (64 << 10) / (25e9 * 0.92 / 3.8 * 0.6))


def test_on_one_node_small_messages_go_with_ll_and_large_ones_around_a_ring() -> None:
    model = CostModel(SIXTEEN, "nccl", "allreduce")
    assert model.seconds(4, 8, 1) == pytest.approx((6.6 + 14 * 0.6) * 1e-6, rel=0.01)
    assert model.seconds(1 << 30, 8, 1) == pytest.approx((8.4 + 14 * 3.4) * 1e-6 + 1.75 * (1 << 30) / 250e9)


def test_a_gather_goes_around_a_ring_once_and_never_with_a_tree() -> None:
    # tuning.cc by hand: 8.4 us + 7 hops of 3.4 us and 7/8 of the bytes over 250 GB/s; no plateau across nodes.
    for operation in ("allgather", "reducescatter"):
        model = CostModel(SIXTEEN, "nccl", operation)
        assert model.seconds(1 << 30, 8, 1) == pytest.approx((8.4 + 7 * 3.4) * 1e-6 + 7 / 8 * (1 << 30) / 250e9)
        large_s = (8.4 + 112 * 3.4 + 15 * 14.0) * 1e-6 + 127 / 128 * (8 << 30) / 25e9
        assert model.seconds(8 << 30, 128, 16) == pytest.approx(large_s)
        assert model.seconds(4, 8, 1) == pytest.approx((6.6 + 7 * 0.6) * 1e-6, rel=0.01)


def test_ll128_needs_nvlink_unless_it_is_the_only_one_allowed() -> None:
    places = (1 << 20, 8, 1, NVLINK, NETWORK)
    free, without = (Nccl(nvlink=False, protocols=use) for use in (PROTOCOLS, ("LL", "Simple")))
    assert free.seconds("allreduce", "ring", *places) == without.seconds("allreduce", "ring", *places)
    assert Nccl(nvlink=False, protocols=("LL128",)).seconds("allreduce", "ring", *places) > 0


def test_between_two_nodes_a_tree_needs_half_of_what_a_ring_needs() -> None:
    nccl = Nccl(protocols=("Simple",))
    ring, tree = (nccl.seconds("allreduce", route, 1 << 30, 16, 2, NVLINK, NETWORK) for route in ROUTES)
    assert tree < 0.65 * ring


def test_a_network_slower_than_infiniband_adds_its_latency_to_every_hop_between_nodes() -> None:
    slow = Link(bytes_per_s=25e9, latency_s=114e-6)
    nccl = Nccl()
    tree = [nccl.seconds("allreduce", "tree", 4, 16, 2, NVLINK, link) for link in (NETWORK, slow)]
    assert tree[1] - tree[0] == pytest.approx(2 * 100e-6)
    ring = [nccl.seconds("broadcast", "ring", 4, 16, 2, NVLINK, link) for link in (NETWORK, slow)]
    assert ring[1] - ring[0] == pytest.approx(100e-6)


def test_fewer_ranks_of_a_node_have_the_links_that_are_said_of_them() -> None:
    among = (Among(ranks=4, bytes_per_s=80e9), Among(ranks=2, bytes_per_s=20e9))
    partly = Cluster(nodes=2, slots_per_node=8, cores_per_node=8, inside=NVLINK, between=NETWORK, among=among)
    seconds = CostModel(partly, "nccl", "allreduce").seconds(1 << 30, [2, 3, 4, 8, 4], [1, 1, 1, 1, 2])
    sent = np.array([1.0, 4 / 3, 1.5, 1.75, 1.5]) * (1 << 30)  # of the last two ranks of each node: over 20 GB/s, too
    np.testing.assert_allclose(seconds, sent / [20e9, 80e9, 80e9, 250e9, 20e9], rtol=0.01)


@given(
    st.integers(1, 1000).flatmap(lambda m: st.tuples(st.integers(m, 8 * m), st.just(m))),
    st.sampled_from(ROUTES),
    st.sets(st.sampled_from(PROTOCOLS), min_size=1),
    st.booleans(),
)
def test_more_bytes_are_never_faster(place: tuple[int, int], route: str, protocols: set[str], nvlink: bool) -> None:
    sizes = np.geomspace(1, 1e11, 300)
    nccl = Nccl(nvlink=nvlink, protocols=tuple(protocols) if protocols != {"LL128"} else PROTOCOLS)
    seconds = nccl.seconds("allreduce", route, sizes, *place, NVLINK, NETWORK)
    assert (np.diff(seconds) >= 0).all()
    assert (seconds > 0).all() == (place[0] > 1)


def test_knobs_hold_nccl_to_a_route_and_a_protocol() -> None:
    model = profile(point(ready_s=(1.0,)), gradients=gradients(1), device="H200")
    free, tree, simple = (
        find_engine("ddp").exchange(model, knobs) for knobs in ({}, {"nccl_algo": "Tree"}, {"nccl_proto": "Simple"})
    )

    def seconds(exchange) -> float:
        costs = CostModel(SIXTEEN, exchange.backend, "allreduce", exchange.algorithm, exchange.protocol)
        return float(costs.seconds(4, 8, 1))

    assert seconds(tree) == pytest.approx((6.8 + 14 * 0.6) * 1e-6, rel=0.01)
    assert seconds(simple) == pytest.approx((8.4 + 14 * 3.4) * 1e-6, rel=0.01)
    assert seconds(free) < seconds(tree) < seconds(simple)
