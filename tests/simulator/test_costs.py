import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.errors import UsageError
from scalescope.records.cluster import Cluster, Costs, Link, Operation
from scalescope.simulator.collectives import flat_ring_allreduce_s, ring_allreduce_s, tree_broadcast_s
from scalescope.simulator.costs import DESCRIBED_ERROR, STAND_IN_ERROR, CostModel

SIZES = tuple(4**power for power in range(1, 14))
INSIDE = Link(bytes_per_s=2e9, latency_s=3e-5)
BETWEEN = Link(bytes_per_s=1.25e8, latency_s=1e-4)
RATES = st.floats(1e6, 1e12)
LATENCIES = st.floats(0, 1e-3)
TIMES = st.lists(st.floats(1e-6, 10), min_size=len(SIZES), max_size=len(SIZES))


def cluster(*costs: Costs, **settings: object) -> Cluster:
    return Cluster(**{"nodes": 4, "slots_per_node": 16, "cores_per_node": 16, **settings}, costs=costs)


def table(ranks: int, seconds: Callable[[float], float], nodes: int = 1, **settings: object) -> Costs:
    times = tuple(float(seconds(size)) for size in SIZES)
    given = {"backend": "gloo", "operation": "allreduce", "error": 0.02, "cpu_seconds": times, **settings}
    return Costs(ranks=ranks, nodes=nodes, sizes_bytes=SIZES, seconds=times, **given)


def ring(ranks: int, nodes: int = 1, link: Link = INSIDE, **settings: object) -> Costs:
    return table(ranks, lambda size: ring_allreduce_s(size, ranks, link.bytes_per_s, link.latency_s), nodes, **settings)


def model(described: Cluster, backend: str = "gloo", operation: Operation = "allreduce") -> CostModel:
    return CostModel(described, backend, operation)


@given(RATES, LATENCIES, st.floats(4, 1e10), st.integers(2, 16))
def test_a_table_made_from_a_formula_gives_the_formula(rate: float, latency: float, size: float, ranks: int) -> None:
    link = Link(bytes_per_s=rate, latency_s=latency)
    found = model(cluster(ring(ranks, link=link))).seconds(size, ranks, 1)
    assert found == pytest.approx(ring_allreduce_s(size, ranks, rate, latency), rel=0.01)


@given(RATES, LATENCIES, st.floats(4, 1e10), st.sampled_from([2, 3, 4, 6, 8, 16, 32]))
def test_tables_of_2_and_4_ranks_tell_the_ring_of_others(rate: float, latency: float, size: float, ranks: int) -> None:
    link = Link(bytes_per_s=rate, latency_s=latency)
    found = model(cluster(ring(2, link=link), ring(4, link=link))).seconds(size, ranks, 1)
    assert found == pytest.approx(ring_allreduce_s(size, ranks, rate, latency), rel=0.03)


def test_one_table_scales_its_floor_with_the_hops_and_the_rest_with_the_bytes_sent() -> None:
    found = model(cluster(ring(2))).seconds(SIZES, 8, 1)
    np.testing.assert_allclose(found, ring_allreduce_s(SIZES, 8, 2e9, 3e-5), rtol=0.01)


def test_three_tables_tell_a_constant_too() -> None:
    def seconds(ranks: int, size: float) -> float:
        return 2e-4 + float(ring_allreduce_s(size, ranks, 2e9, 3e-5))

    tables = [table(ranks, lambda size, ranks=ranks: seconds(ranks, size)) for ranks in (2, 4, 8)]
    assert model(cluster(*tables)).seconds(1e6, 32, 1) == pytest.approx(seconds(32, 1e6), rel=0.03)


@settings(max_examples=50)
@given(st.lists(TIMES, min_size=1, max_size=4))
def test_what_was_measured_is_met_and_more_bytes_are_never_faster(times: list[list[float]]) -> None:
    tables = [table(2**power, lambda size, own=own: own[SIZES.index(size)]) for power, own in enumerate(times, start=1)]
    costs = model(cluster(*tables, between=BETWEEN))
    for measured in tables:
        np.testing.assert_allclose(costs.seconds(SIZES, measured.ranks, 1), np.maximum.accumulate(measured.seconds))
    sizes = np.geomspace(1, 1e10, 80)
    for ranks, nodes in ((2, 1), (3, 1), (5, 1), (64, 1), (7, 2), (100_000, 12_500)):
        assert (np.diff(costs.seconds(sizes, ranks, nodes)) >= -1e-12).all()


def test_below_the_smallest_size_it_is_constant_and_above_the_largest_the_last_bandwidth_goes_on() -> None:
    times = {4: 1.0, 8: 3.0, 16: 2.0, 32: 5.0}
    measured = Costs(
        backend="gloo",
        operation="allreduce",
        ranks=2,
        nodes=1,
        sizes_bytes=tuple(times),
        seconds=tuple(times.values()),
        cpu_seconds=(0.0, 0.0, 0.0, 0.0),
        error=0.0,
    )
    costs = model(cluster(measured))
    np.testing.assert_allclose(costs.seconds([0, 1, 4, 6, 12, 24, 32, 48], 2, 1), [1, 1, 1, 2, 3, 4, 5, 7])


def test_a_table_of_one_size_grows_with_the_bytes() -> None:
    one = Costs(
        backend="nccl",
        operation="broadcast",
        ranks=2,
        nodes=1,
        sizes_bytes=(100,),
        seconds=(1.0,),
        cpu_seconds=(0.5,),
        error=0.0,
    )
    costs = model(cluster(one), "nccl", "broadcast")
    np.testing.assert_allclose(costs.seconds([50, 100, 300], 2, 1), [1, 1, 3])
    assert costs.seconds(100, 16, 1) == pytest.approx(4)


@settings(max_examples=50)
@given(RATES, RATES, LATENCIES, st.floats(1, 100), st.sampled_from(["gloo", "nccl", "horovod-mpi"]))
@pytest.mark.parametrize("operation", ["allreduce", "broadcast"])
@pytest.mark.parametrize("measured", [(), (ring(2), ring(4))], ids=["described", "measured inside"])
def test_more_bandwidth_is_never_slower(measured, operation, near, far, latency, more, backend) -> None:
    def seconds(inside: float, between: float) -> np.ndarray:
        links = {"inside": Link(bytes_per_s=inside, latency_s=latency)}
        links["between"] = Link(bytes_per_s=between, latency_s=latency)
        costs = model(cluster(*measured, **links), backend, operation)
        return costs.seconds([[4], [1e5], [1e9]], [1, 2, 8, 16, 4096], [1, 1, 1, 2, 512])

    assert (seconds(near * more, far) <= seconds(near, far) * (1 + 1e-9)).all()
    assert (seconds(near, far * more) <= seconds(near, far) * (1 + 1e-9)).all()


def test_gloo_on_described_links_is_a_ring_and_a_binomial_tree() -> None:
    described = cluster(inside=INSIDE, between=BETWEEN)
    assert model(described).seconds(1e6, 32, 2) == flat_ring_allreduce_s(1e6, 32, 2, INSIDE, BETWEEN)
    found = model(described, "horovod-gloo", "broadcast").seconds(1e6, 32, 2)
    assert found == tree_broadcast_s(1e6, 32, 2, INSIDE, BETWEEN)


def test_others_take_the_fastest_algorithm_unless_one_is_named() -> None:
    def seconds(algorithm: str, operation: Operation = "allreduce") -> np.ndarray:
        described = cluster(inside=INSIDE, between=BETWEEN, algorithm=algorithm)
        return model(described, "horovod-mpi", operation).seconds([4, 1e5, 1e9], 64, 4)

    for operation in ("allreduce", "broadcast"):
        named = [seconds(algorithm, operation) for algorithm in ("ring", "tree", "hierarchical")]
        np.testing.assert_array_equal(seconds("auto", operation), np.min(named, axis=0))


def test_measured_inside_and_described_between_the_slower_one_counts() -> None:
    fast = Link(bytes_per_s=1e15, latency_s=0.0)
    inside = model(cluster(ring(2), ring(4))).seconds(SIZES, 32, 1)
    np.testing.assert_allclose(model(cluster(ring(2), ring(4), between=fast)).seconds(SIZES, 32, 2), inside)
    slow = model(cluster(ring(2), ring(4), between=BETWEEN)).seconds(1e9, 32, 2)
    assert slow == pytest.approx(2 * 31 / 32 * 1e9 / 1.25e8, rel=0.01)


def test_tables_of_the_same_nodes_come_first_and_those_of_several_nodes_before_described_links() -> None:
    between = Link(bytes_per_s=1e6, latency_s=1.0)
    costs = model(cluster(ring(2), ring(4, nodes=2, link=BETWEEN), ring(8, nodes=2, link=BETWEEN), between=between))
    for ranks, nodes in ((4, 2), (16, 2), (16, 4)):
        expected = ring_allreduce_s(1e7, ranks, BETWEEN.bytes_per_s, BETWEEN.latency_s)
        assert costs.seconds(1e7, ranks, nodes) == pytest.approx(expected, rel=0.03)
    assert costs.seconds(1e7, 2, 1) == pytest.approx(ring_allreduce_s(1e7, 2, 2e9, 3e-5), rel=0.01)


def test_one_rank_costs_nothing_and_needs_nothing() -> None:
    costs = model(cluster())
    assert (costs.seconds(1e9, 1, 1), costs.error(1, 1)) == (0, 0)


def test_gloo_stands_in_for_horovod_over_gloo_alone_and_only_where_that_was_not_measured() -> None:
    measured = cluster(ring(2), inside=BETWEEN)
    gloo = model(measured)
    assert model(measured, "horovod-gloo").seconds(1e6, 2, 1) == gloo.seconds(1e6, 2, 1)
    assert model(measured, "horovod-gloo").error(2, 1) == pytest.approx(0.02 + STAND_IN_ERROR)
    assert model(measured, "horovod-mpi").seconds(1e6, 2, 1) > 2 * gloo.seconds(1e6, 2, 1)
    own = cluster(ring(2), ring(2, link=BETWEEN, backend="horovod-gloo"))
    assert model(own, "horovod-gloo").seconds(1e6, 2, 1) > 2 * gloo.seconds(1e6, 2, 1)
    assert model(own, "horovod-gloo").error(2, 1) == pytest.approx(0.02)


def test_the_error_grows_with_the_distance_from_what_was_measured() -> None:
    costs = model(cluster(ring(2), ring(4, error=0.03), ring(8, nodes=2, error=0.01), inside=INSIDE))
    np.testing.assert_allclose(costs.error([1, 2, 4, 8, 16], 1), [0, 0.02, 0.03, 0.23, 0.43])
    np.testing.assert_allclose(costs.error([8, 8, 16], [2, 4, 4]), [0.01, 0.21, 0.41])
    between = model(cluster(ring(2), ring(8, error=0.03)))
    np.testing.assert_allclose(between.error([4, 5], 1), [0.07, 0.03 + 0.05 * math.log2(8 / 5)])
    assert costs.error(10**9, 1) == 0.5
    described = model(cluster(inside=INSIDE, between=BETWEEN))
    np.testing.assert_allclose(described.error([2, 8, 64, 8192], [1, 1, 8, 1024]), [0.1, 0.1, 0.19, 0.4])
    assert model(cluster(ring(2), between=BETWEEN)).error(4, 4) == pytest.approx(DESCRIBED_ERROR)


@pytest.mark.parametrize(
    ("settings", "place", "message"),
    [
        (
            {},
            (2, 1),
            "cluster.toml describes no link inside a node and no measured allreduce costs for gloo: "
            "add [inside] bandwidth and latency, or run scalescope probe",
        ),
        (
            {"inside": INSIDE},
            (4, 2),
            "cluster.toml describes no link between nodes and no measured allreduce costs for gloo between nodes: "
            "add [between] bandwidth and latency, or run scalescope probe",
        ),
    ],
)
def test_what_is_missing_is_named(settings: dict[str, Link], place: tuple[int, int], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        model(cluster(**settings)).seconds(4, *place)
    assert str(caught.value) == message


def test_a_missing_link_between_nodes_is_named_beside_measured_costs_inside() -> None:
    with pytest.raises(UsageError, match=r"no link between nodes .* add \[between\]"):
        model(cluster(ring(2))).seconds(4, 4, 2)
    assert model(cluster(between=BETWEEN)).seconds(4, 4, 4) > 0  # one rank a node: no link inside is used


@pytest.mark.parametrize("tables", [(), (ring(2), ring(4), ring(8, nodes=2))], ids=["described", "measured"])
def test_arrays_give_what_single_numbers_give_up_to_100_000_ranks(tables: tuple[Costs, ...]) -> None:
    costs = model(cluster(*tables, inside=INSIDE, between=BETWEEN), "gloo")
    sizes, ranks = np.array([[4.0], [1e5], [1e9]]), np.array([1, 2, 3, 8, 9, 64, 99_999, 100_000])
    nodes = -(-ranks // 4)
    grid = costs.seconds(sizes, ranks, nodes)
    assert np.isfinite(grid).all()
    one_by_one = [[costs.seconds(size, p, m) for p, m in zip(ranks, nodes, strict=True)] for size in sizes[:, 0]]
    np.testing.assert_allclose(grid, one_by_one, rtol=1e-12)
    single = [costs.error(p, m) for p, m in zip(ranks, nodes, strict=True)]
    np.testing.assert_allclose(costs.error(ranks, nodes), single)
    everywhere = np.arange(1, 100_001)
    assert costs.seconds(1e6, everywhere, -(-everywhere // 4)).shape == (100_000,)


def test_gloo_gathers_around_a_ring_and_sums_everything_where_it_should_scatter() -> None:
    described = cluster(inside=INSIDE)
    sizes = np.array([4.0, 1e6, 1e9])
    whole = model(described).seconds(sizes, 4, 1)
    np.testing.assert_allclose(model(described, operation="allgather").seconds(sizes, 4, 1), whole / 2)
    np.testing.assert_allclose(model(described, operation="reducescatter").seconds(sizes, 4, 1), whole)
    halves = model(described, "nccl", "allgather").seconds(sizes, 4, 1)
    np.testing.assert_allclose(model(described, "nccl", "reducescatter").seconds(sizes, 4, 1), halves)


@pytest.mark.parametrize("operation", ["allgather", "reducescatter"])
def test_a_measured_gather_is_met_and_told_for_other_ranks(operation: Operation) -> None:
    def seconds(ranks: int) -> Callable[[float], float]:
        return lambda size: 3 * float(ring_allreduce_s(size, ranks, 2e9, 3e-5))

    costs = model(cluster(*(table(p, seconds(p), operation=operation) for p in (2, 4)), ring(2)), operation=operation)
    for ranks in (2, 4, 16):
        assert costs.seconds(1e6, ranks, 1) == pytest.approx(seconds(ranks)(1e6), rel=0.03)


def test_where_only_allreduce_was_measured_its_halves_stand_in() -> None:
    measured = cluster(ring(2), ring(4))
    gather, scatter = (model(measured, operation=operation) for operation in ("allgather", "reducescatter"))
    whole = model(measured)
    assert gather.seconds(1e6, 4, 1) == pytest.approx(whole.seconds(1e6, 4, 1) / 2, rel=0.01)
    assert scatter.seconds(1e6, 4, 1) == pytest.approx(whole.seconds(1e6, 4, 1), rel=0.01)
    assert gather.error(4, 1) == pytest.approx(whole.error(4, 1) + STAND_IN_ERROR)
