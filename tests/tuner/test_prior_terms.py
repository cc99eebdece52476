"""What a survey becomes: a cluster with its costs, and how much messages and compute slow each other."""

from typing import Any

import pytest

from scalescope.records.tuning import Values
from scalescope.tuner.prior import Survey, cluster_of, predict, profile_of, read_survey
from tuner.surveys import MIB, survey


def told(**more: Any) -> Survey:
    return read_survey(survey(**more))


def slowdown(cpu_s: float, *, threads: int = 1, **more: Any) -> float:
    """Of compute, where a message of 1 s takes so many CPU seconds."""
    found = told(costs={"flat": [[1024, 1.0, cpu_s]]}, **more)
    (overlap,) = cluster_of(found, "gloo", "flat", threads).overlaps
    assert overlap.compute == overlap.communication
    return overlap.compute


def test_messages_slow_compute_where_both_want_more_cores_than_there_are() -> None:
    assert slowdown(0.2, cores=2) == pytest.approx(1 + 1.5 * (2 * 1.2 / 2 - 1))
    assert slowdown(0.2, cores=8) == 1.0
    assert slowdown(0.2, cores=2, ranks_per_host=1) == 1.0
    assert slowdown(0.2, cores=8, threads=4) == pytest.approx(1 + 1.5 * (2 * 4.2 / 8 - 1))
    assert slowdown(0.9, cores=2) == 2.0, "doing both at once takes as long as one after the other, and no longer"
    assert slowdown(5.0, cores=4, threads=2, ranks_per_host=2) == pytest.approx(1 + 1.5 * 0.5)
    assert slowdown(0.0, cores=1) == 1.0, "messages that need no core slow nobody"


def test_on_gpus_messages_slow_compute_by_a_tenth() -> None:
    (overlap,) = cluster_of(told(backend="nccl"), "nccl", "flat", 1).overlaps
    assert (overlap.compute, overlap.communication) == (1.1, 1.0)
    assert profile_of(told(backend="nccl")).device == "gpu"
    assert profile_of(told()).device == "cpu"


def test_a_cluster_has_the_costs_of_the_kind_that_is_asked_for() -> None:
    found = told(
        hosts=2,
        ranks_per_host=4,
        cores=6,
        costs={"flat": [[2048, 0.2, 0.1], [1024, 0.1, 0.05]], "hierarchical": [[1024, 0.3, 0.2]]},
    )
    assert (found.ranks, found.total_bytes) == (8, 8 * MIB)
    cluster = cluster_of(found, "gloo", "flat", 1)
    (costs,) = cluster.costs
    assert (costs.sizes_bytes, costs.seconds, costs.cpu_seconds) == ((1024, 2048), (0.1, 0.2), (0.05, 0.1))
    assert (costs.ranks, costs.nodes, costs.backend, costs.operation) == (8, 2, "gloo", "allreduce")
    assert (cluster.nodes, cluster.slots_per_node, cluster.cores_per_node, cluster.threads_per_rank) == (2, 4, 6, 1)
    assert cluster_of(found, "gloo", "hierarchical", 1).costs[0].seconds == (0.3,)
    assert cluster_of(told(costs={}), "gloo", "flat", 1).costs == ()


def test_a_message_takes_no_longer_than_a_larger_one() -> None:
    rows = [[1, 0.5, 0.1], [2, 0.2, 0.3], [3, 0.3, 0.2], [4, 0.25, 0.4]]
    (costs,) = cluster_of(told(costs={"flat": rows}), "gloo", "flat", 1).costs
    assert costs.seconds == (0.2, 0.2, 0.25, 0.25)
    assert costs.cpu_seconds == (0.1, 0.2, 0.2, 0.4)


def test_predictions_are_brought_to_the_step_that_was_surveyed() -> None:
    settings: list[Values] = [{}, {"bucket_cap_mb": 1.0, "first_bucket_mb": 1.0}]
    scaled = predict("ddp", settings, survey(step_s=0.6))
    plain = predict("ddp", settings, survey(step_s=0.0))
    assert scaled is not None
    assert plain is not None
    assert scaled[0] == pytest.approx(0.6)
    assert scaled[1] / scaled[0] == pytest.approx(plain[1] / plain[0])
    assert predict("ddp", settings, survey(gradients=[], ready_s=[])) is None


def test_more_threads_make_compute_faster_by_the_root_of_two() -> None:
    alone = survey(costs={}, ranks_per_host=1, cores=8, step_s=0.0)
    seconds = predict("ddp", [{}, {"threads_per_rank": 2}, {"threads_per_rank": 4}], alone)
    assert seconds is not None
    assert seconds[0] == pytest.approx(0.05 + 0.1 + 0.01)
    assert seconds[0] / seconds[1] == pytest.approx(2**0.5)
    assert seconds[0] / seconds[2] == pytest.approx(2.0)


def test_a_hierarchy_is_predicted_only_where_it_was_timed() -> None:
    flat = survey(hosts=2, mib_per_s=20.0)
    hierarchy: list[Values] = [{}, {"hierarchical_allreduce": True}]
    seconds = predict("ddp", hierarchy, flat)
    assert seconds is not None
    assert seconds[1] < seconds[0]
    untimed = predict("ddp", hierarchy, {**flat, "costs": {"flat": flat["costs"]["flat"]}})
    assert untimed is not None
    assert untimed[1] == pytest.approx(untimed[0])
