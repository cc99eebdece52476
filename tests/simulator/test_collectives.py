import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.records.cluster import Link
from scalescope.simulator import collectives as c

NVLINK = Link(bytes_per_s=100.0, latency_s=1.0)
NETWORK = Link(bytes_per_s=10.0, latency_s=5.0)
FORMS = [
    c.flat_ring_allreduce_s,
    c.flat_tree_allreduce_s,
    c.hierarchical_allreduce_s,
    c.ring_broadcast_s,
    c.tree_broadcast_s,
    c.hierarchical_broadcast_s,
]
SIZES = st.floats(1, 1e10)
PLACES = st.integers(1, 12_500).flatmap(lambda m: st.tuples(st.integers(m, 8 * m), st.just(m)))
LINKS = st.builds(Link, bytes_per_s=st.floats(1e3, 1e12), latency_s=st.floats(0, 1e-2))


def test_the_ring_is_its_formula() -> None:
    assert c.ring_allreduce_s(400, 4, 100, 1.0) == pytest.approx(6 * 1 + 1.5 * 4)
    assert c.flat_ring_allreduce_s(400, 4, 1, NVLINK, NETWORK) == pytest.approx(6 * 1 + 1.5 * 4)


def test_a_ring_across_nodes_goes_at_the_slowest_link_and_counts_its_hops() -> None:
    assert c.flat_ring_allreduce_s(400, 8, 2, NVLINK, NETWORK) == pytest.approx(2 * (6 * 1 + 5) + 1.75 * 40)
    assert c.flat_ring_allreduce_s(400, 2, 2, NVLINK, NETWORK) == pytest.approx(2 * 5 + 40)


def test_a_hierarchical_allreduce_is_a_ring_inside_and_shares_of_it_between() -> None:
    inside, between = 6 * 1 + 1.5 * 4, 2 * 5 + 400 / 4 / (10 / 4)
    assert c.hierarchical_allreduce_s(400, 8, 2, NVLINK, NETWORK) == pytest.approx(inside + between)


def test_a_tree_of_a_small_message_is_its_hops_and_of_a_large_one_its_bytes() -> None:
    assert c.tree_allreduce_s(0, 1000, 100, 1.0) == pytest.approx(20)
    assert c.tree_allreduce_s(1e12, 1000, 100, 1.0) == pytest.approx(2e10, rel=1e-4)
    assert c.flat_tree_allreduce_s(0, 8, 2, NVLINK, NETWORK) == pytest.approx(2 * (2 * 1 + 5))


def test_broadcasts() -> None:
    assert c.tree_broadcast_s(400, 8, 2, NVLINK, NETWORK) == pytest.approx(2 * (1 + 4) + (5 + 4 * 40))
    assert c.hierarchical_broadcast_s(400, 8, 2, NVLINK, NETWORK) == pytest.approx(2 * (1 + 4) + (5 + 40))
    assert c.ring_broadcast_s(400, 2, 1, NVLINK, NETWORK) == pytest.approx(1 + 4)


@given(st.integers(1, 40), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_a_pipeline_takes_the_best_number_of_pieces(hops: int, latency: float, transfer: float) -> None:
    pieces = np.geomspace(1, 1e6, 4000)
    every = (hops - 1 + pieces) * (latency + transfer / pieces)
    assert c.pipelined_s(hops, hops * latency, transfer) == pytest.approx(every.min(), rel=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_one_rank_costs_nothing(form) -> None:
    assert form(1e6, 1, 1, NVLINK, NETWORK) == 0


@pytest.mark.parametrize("form", FORMS)
@given(size=SIZES, place=PLACES, inside=LINKS, between=LINKS, more=st.floats(1, 100))
def test_more_bytes_never_take_less_and_more_bandwidth_never_takes_more(form, size, place, inside, between, more):
    seconds = form(size, *place, inside, between)
    assert form(size * more, *place, inside, between) >= seconds * (1 - 1e-12)
    faster = Link(bytes_per_s=inside.bytes_per_s * more, latency_s=inside.latency_s)
    assert form(size, *place, faster, between) <= seconds * (1 + 1e-12)
    faster = Link(bytes_per_s=between.bytes_per_s * more, latency_s=between.latency_s)
    assert form(size, *place, inside, faster) <= seconds * (1 + 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_arrays_broadcast_up_to_100_000_ranks(form) -> None:
    sizes, ranks = np.array([[4.0], [1e6], [1e9]]), np.arange(1, 100_001)
    nodes = -(-ranks // 8)
    grid = form(sizes, ranks, nodes, NVLINK, NETWORK)
    assert grid.shape == (3, 100_000)
    assert np.isfinite(grid).all()
    for row, column in ((0, 0), (1, 12), (2, 99_999)):
        assert grid[row, column] == form(sizes[row, 0], ranks[column], nodes[column], NVLINK, NETWORK)
