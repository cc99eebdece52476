"""Whole steps on described clusters, to the second: a MiB between two ranks takes a second."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.records.cluster import Costs
from scalescope.records.profile import Gradient
from scalescope.simulator.compute import work
from scalescope.simulator.costs import DESCRIBED_ERROR
from simulator.made import MIB, contention, described, gradients, overlap, point, profile, proportional, stepped

ONE_BY_ONE = {"bucket_cap_mb": 1.0}
FOUR = profile()


def starts_and_ends(made) -> list[tuple[float, float]]:
    outcome = made.outcome
    return list(zip(outcome.starts_s[:, 0].tolist(), outcome.ends_s[:, 0].tolist(), strict=True))


def test_ddp_sends_buckets_under_backward_and_waits_for_the_last() -> None:
    made = stepped(FOUR, described(), 2, **ONE_BY_ONE)
    assert starts_and_ends(made) == [(1, 2), (2, 3), (3, 4), (4, 5)]
    assert made.step_s.tolist() == [2 + 5 + 1]
    assert made.exposed_s.tolist() == [1]
    assert made.outcome.hidden_s.tolist() == [3]


def test_more_ranks_send_more() -> None:
    made = stepped(FOUR, described(), 4, **ONE_BY_ONE)
    assert starts_and_ends(made) == [(1, 2.5), (2.5, 4), (4, 5.5), (5.5, 7)]
    assert made.step_s.tolist() == [2 + 7 + 1]


def test_a_bucket_that_is_ready_waits_for_an_earlier_one() -> None:
    kinds = (Gradient(name="half", bytes=MIB // 2, element_bytes=2), Gradient(name="whole", bytes=MIB))
    made = stepped(profile(point(ready_s=(1.0, 2.0)), gradients=kinds), described(), 2)
    assert starts_and_ends(made) == [(2, 3), (3, 3.5)]
    assert made.step_s.tolist() == [2 + 4 + 1]


def test_copies_lengthen_backward_and_the_end() -> None:
    # Half a second into each bucket, half a second out of it; three are out when the last one arrives at 7.
    cluster = described(copy_s_per_byte=0.5 / MIB)
    made = stepped(FOUR, cluster, 2, **ONE_BY_ONE)
    assert starts_and_ends(made) == [(1.5, 2.5), (3, 4), (4.5, 5.5), (6, 7)]
    assert made.outcome.backward_s.tolist() == [6]
    assert made.finish_s.tolist() == [1]
    assert made.step_s.tolist() == [2 + 7 + 1 + 1]
    views = stepped(FOUR, cluster, 2, **ONE_BY_ONE, gradient_as_bucket_view=True)
    assert views.step_s.tolist() == [8]


def test_the_way_back_waits_for_each_bucket() -> None:
    # A second into each and out of each: the first is out from 6 to 7, the second arrives at 10 and is out at 11.
    model = profile(point(ready_s=(1.0, 2.0)), gradients=gradients(1, 1))
    made = stepped(model, described(0.25, copy_s_per_byte=1 / MIB), 2, **ONE_BY_ONE)
    assert starts_and_ends(made) == [(2, 6), (6, 10)]
    assert made.outcome.backward_s.tolist() == [6]
    assert made.finish_s.tolist() == [1]


def test_buckets_take_memory_unless_gradients_live_in_them() -> None:
    alone = FOUR.points[0].memory_bytes
    made = stepped(FOUR, described(), [1, 2])
    assert made.memory_bytes.tolist() == [alone, alone + 4 * MIB]
    assert stepped(FOUR, described(), [2], gradient_as_bucket_view=True).memory_bytes.tolist() == [alone]


def test_buffers_are_sent_before_the_forward() -> None:
    model = msgspec.structs.replace(FOUR, buffers_bytes=(MIB, MIB // 2))
    made = stepped(model, described(), [1, 2, 8], **ONE_BY_ONE)
    assert made.broadcast_s.tolist() == [0, 1.5, 4.5]  # one after another, log2(p) levels
    assert made.exposed_s[1] == 1.5 + 1
    assert made.step_s[:2].tolist() == [7, 8 + 1.5]


def test_shared_cores_slow_both_while_both_go_on() -> None:
    # One bucket, ready at 2 of 4: its 1 s takes 3 s, in which backward does 1.5 s; the last 0.5 s go at full speed.
    model = profile(point(ready_s=(2.0,)), gradients=gradients(1))
    made = stepped(model, described(overlaps=(overlap(compute=2, communication=3),)), 2)
    assert starts_and_ends(made) == [(2, 5)]
    assert made.outcome.backward_s.tolist() == [5.5]
    assert made.step_s.tolist() == [2 + 5.5 + 1]


def test_overlap_slowdown_counts_as_far_as_compute_keeps_its_cores_busy() -> None:
    # With half of its cores busy, factors 2 and 3 become 1.5 and 2: the message takes 2 s, backward does 4/3 s of 2.
    model = profile(point(ready_s=(2.0,), cores_used=2.0), gradients=gradients(1), threads_per_rank=4)
    made = stepped(model, described(overlaps=(overlap(compute=2, communication=3),)), 2)
    assert starts_and_ends(made) == [(2, pytest.approx(4))]
    assert made.outcome.backward_s[0] == pytest.approx(4 + 2 / 3)


def test_overlap_slowdown_of_gpus_has_nothing_to_do_with_the_threads_of_the_host() -> None:
    model = profile(point(ready_s=(2.0,), cores_used=1.0), gradients=gradients(1), threads_per_rank=16, device="H200")
    both = overlap(compute=2, communication=3, backend="nccl")
    made = stepped(model, described(device="gpu", device_spread=0.0, overlaps=(both,)), 2)
    # NCCL has a latency of its own, and DDP a cost on a GPU.
    assert starts_and_ends(made) == [(pytest.approx(2, abs=1e-3), pytest.approx(5, abs=1e-3))]
    assert made.outcome.backward_s[0] == pytest.approx(5.5, abs=1e-3)


def test_overlap_slowdown_comes_from_the_backend_and_the_group_that_are_most_alike() -> None:
    overlaps = (
        overlap(compute=2, ranks=2),
        overlap(compute=3, ranks=8),
        overlap(compute=4, ranks=8, nodes=4),
        overlap(compute=9, ranks=2, backend="nccl"),
    )
    model = profile(point(ready_s=(0.0,)), gradients=gradients(64))
    made = stepped(model, described(slots=8, nodes=8, overlaps=overlaps), [1, 2, 3, 6, 8, 32], bucket_cap_mb=1)
    assert made.outcome.backward_s.tolist() == [4, 8, 8, 12, 12, 16]


def test_an_engine_that_never_rests_slows_all_compute() -> None:
    made = stepped(FOUR, described(1e9, overlaps=(overlap(idle=1.5),)), [1, 2])
    assert made.step_s == pytest.approx([7, 10.5])


def test_contention_and_the_slowest_rank_lengthen_compute() -> None:
    model = profile(point(noise=0.5), crowds=(contention(2, 1.5, noise=0.1),))
    made = stepped(model, described(1e9), [1, 2])
    assert made.step_s == pytest.approx([7, 7 * 1.5 * (1 + 0.1 / math.sqrt(math.pi))], rel=1e-3)


def test_ranks_contend_for_the_cores_of_a_node_not_of_the_cluster() -> None:
    model = profile(crowds=(contention(2, 1.5), contention(4, 2.0)))
    made = stepped(model, described(1e9, slots=2, nodes=4), [2, 4, 8])
    assert made.forward_s.tolist() == [3, 3, 3]


HALF_BEAT, ALMOST_NOTHING = 0.0005, 4 / MIB
"""Of Horovod's cycle of a ms; and of a message of 4 bytes, with which ranks agree."""


def test_horovod_sends_at_the_next_beat_and_then_without_a_pause() -> None:
    made = stepped(FOUR, described(), 2, engine="horovod")
    starts, ends = made.outcome.starts_s[:, 0], made.outcome.ends_s[:, 0]
    assert ends == pytest.approx([2 + HALF_BEAT, 3 + HALF_BEAT, 4 + HALF_BEAT, 5 + HALF_BEAT])
    assert starts == pytest.approx([ALMOST_NOTHING + when + HALF_BEAT for when in (1, 2, 3, 4)])
    assert made.step_s[0] == pytest.approx(8 + HALF_BEAT)
    assert made.exposed_s[0] == pytest.approx(1 + HALF_BEAT)


def test_horovod_fuses_what_got_ready_meanwhile() -> None:
    # Of half the rate: the first until 3, then two together until 7, then the last until 9.
    made = stepped(FOUR, described(0.5), 2, engine="horovod")
    assert made.outcome.ends_s[:, 0] == pytest.approx([3 + HALF_BEAT, 7 + HALF_BEAT, 0, 9 + HALF_BEAT], abs=1e-4)
    apart = stepped(FOUR, described(0.5), 2, engine="horovod", fusion_threshold_mb=1)
    assert apart.outcome.ends_s[:, 0] == pytest.approx([3.0005, 5.0005, 7.0005, 9.0005], abs=1e-4)


def test_horovods_cycle_and_cache_cost_what_they_cost() -> None:
    slow = stepped(FOUR, described(), 2, engine="horovod", cycle_time_ms=200)
    assert slow.step_s[0] == pytest.approx(8 + 0.1)
    forgetful = stepped(FOUR, described(), 2, engine="horovod", cache_capacity=3)
    usual = stepped(FOUR, described(), 2, engine="horovod")
    assert forgetful.step_s[0] - usual.step_s[0] == pytest.approx(4 * ALMOST_NOTHING)


def test_a_probed_message_already_waited_for_its_beat() -> None:
    # 4 bytes took 3 ms when probed: half a cycle of 1 ms, 2.5 ms to agree. A MiB took a second more.
    probed = Costs(
        backend="horovod-mpi",
        operation="allreduce",
        ranks=2,
        nodes=1,
        sizes_bytes=(4, MIB),
        seconds=(0.003, 1.003),
        cpu_seconds=(0.0, 0.0),
        error=0.0,
    )
    made = stepped(FOUR, described(costs=(probed,)), 2, engine="horovod")
    assert made.outcome.starts_s[0, 0] == pytest.approx(1 + 2 * HALF_BEAT + 0.002)
    assert made.outcome.ends_s[0, 0] == pytest.approx(2 + 2 * HALF_BEAT + 0.002)


def test_no_engine_exchanges_nothing() -> None:
    made = stepped(FOUR, described(), [1, 2], engine="none")
    assert made.step_s.tolist() == [7, 7]
    assert made.exposed_s.tolist() == [0, 0]


def test_endless_compute_hides_everything_but_the_last_bucket() -> None:
    model = profile(point(forward_s=1e5, backward_s=4e5, ready_s=(1e5, 2e5, 3e5, 4e5)), gradients=gradients(7, 9, 8, 5))
    made = stepped(model, described(), 2, **ONE_BY_ONE)
    assert made.step_s.tolist() == [1e5 + 4e5 + 5 + 1]
    assert made.outcome.hidden_s.tolist() == [24]


def test_without_compute_a_step_is_the_sum_of_its_messages() -> None:
    model = profile(point(8, 0.0, 0.0, 0.0, (0.0,) * 4), gradients=gradients(7, 9, 8, 5))
    made = stepped(model, described(latency_s=0.25), [2, 4], **ONE_BY_ONE)
    assert made.step_s.tolist() == [29 + 4 * 2 * 0.25, 1.5 * 29 + 4 * 6 * 0.25]


def test_the_error_is_of_compute_and_of_links_as_far_as_they_show() -> None:
    # At 2 ranks a step of 8 s of compute waits 2 s for its message: 0.8 of 3 % and 0.2 of 10 %.
    model = msgspec.structs.replace(
        proportional(8, gradient_mib=2), points=(msgspec.structs.replace(proportional(8).points[0], error=0.03),)
    )
    made = stepped(model, described(), [1, 2])
    assert made.error == pytest.approx([0.03, np.hypot(0.8 * 0.03, 0.2 * DESCRIBED_ERROR)], rel=0.04)


def test_longer_messages_fill_pauses_first_and_what_is_left_comes_after_backward() -> None:
    # Messages of a second, ready every second or every ten: without pauses a cost that is off moves all of them.
    packed = profile(point(8, 0.0, 4.0, 0.0, (1.0, 2.0, 3.0, 4.0)))
    paused = profile(point(8, 0.0, 40.0, 0.0, (10.0, 20.0, 30.0, 40.0)))
    tight, loose = (stepped(model, described(), 2, **ONE_BY_ONE) for model in (packed, paused))
    assert tight.exposed_s == loose.exposed_s == 1
    more = np.expm1(1.6449 * DESCRIBED_ERROR)
    assert tight.error == pytest.approx(np.log1p(4 * more / 5) / 1.6449, rel=1e-3)
    assert loose.error == pytest.approx(np.log1p(1 * more / 41) / 1.6449, rel=1e-3)


def test_the_error_of_overlap_factors_counts_as_far_as_messages_are_hidden_and_grows_with_the_distance() -> None:
    def error(ranks: int, **vague: float) -> float:
        made = stepped(paced, described(1e3, slots=8, overlaps=(overlap(2.0, 1.5, **vague),)), ranks, **ONE_BY_ONE)
        return float(made.error[0])

    paced = profile(point(8, 0.0, 4.0, 0.0, (0.0,)), gradients=gradients(2000))
    sure = error(2)
    assert error(2, compute_error=0.2) > error(2, compute_error=0.1) > sure
    assert error(2, communication_error=0.2) > sure
    assert error(8) > error(4) > sure
    hidden = stepped(paced, described(1e3, overlaps=(overlap(2.0, 1.5, compute_error=0.2),)), 2, **ONE_BY_ONE)
    share = float(hidden.outcome.hidden_s[0] / hidden.step_s[0])
    assert error(2, compute_error=0.2) == pytest.approx(np.hypot(sure, 0.2 / 2 * share), rel=1e-3)


LAST = point(ready_s=(4.0,))


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_hierarchical_allreduce_crosses_hosts_once(nodes: int) -> None:
    """Two ranks on each host over a slow link: flat sends 2 (p - 1) / p, by hosts 2 (m - 1) / m of a message."""
    slow = described(slots=2, nodes=nodes, inside=described(1e6).inside)
    model, ranks = profile(LAST, gradients=gradients(8)), 2 * nodes
    flat, by_hosts = (stepped(model, slow, ranks, hierarchical_allreduce=on).exposed_s[0] for on in (False, True))
    assert flat / by_hosts == pytest.approx((ranks - 1) / ranks * nodes / (nodes - 1), rel=1e-3)  # 1.5 for 2 x 2
    for count in (2, 3):  # one host, and hosts with unequal numbers of ranks, have no such groups
        same = [float(stepped(model, slow, count, hierarchical_allreduce=on).step_s[0]) for on in (False, True)]
        assert same[0] == same[1]


def test_a_hierarchical_allreduce_uses_what_was_probed_inside_and_between() -> None:
    def probed(ranks: int, nodes: int, second_s: float) -> Costs:
        return Costs(
            backend="gloo",
            operation="allreduce",
            ranks=ranks,
            nodes=nodes,
            sizes_bytes=(4, MIB),
            seconds=(1e-6, second_s),
            cpu_seconds=(0.0, 0.0),
            error=0.0,
        )

    cluster = described(slots=2, nodes=2, costs=(probed(2, 1, 0.5), probed(2, 2, 4.0), probed(4, 2, 7.0)))
    model = profile(LAST, gradients=gradients(1))
    flat, by_hosts = (stepped(model, cluster, 4, hierarchical_allreduce=on) for on in (False, True))
    assert (flat.exposed_s[0], by_hosts.exposed_s[0]) == pytest.approx((7.0, 4.5))


def test_synchronized_batch_norms_wait_for_their_statistics_in_both_directions() -> None:
    # 2 ranks: two latencies of 0.25 s for each of two exchanges of each layer, and hardly a byte.
    plain, synchronized = profile(), profile(norm_channels=(64, 64, 128))
    before, after = (stepped(model, described(latency_s=0.25), [1, 2]) for model in (plain, synchronized))
    more = after.step_s - before.step_s
    sent = sum(4 * (2 * size + 1) + 8 * size for size in (64, 64, 128)) / MIB
    assert more == pytest.approx([0, 3 * 2 * 2 * 0.25 + sent])
    assert after.exposed_s - before.exposed_s == pytest.approx(more)


SIZES_MIB = st.floats(0.001, 40)


@st.composite
def models(draw: st.DrawFn):
    """Profiles of a few points and gradients."""
    sizes = draw(st.lists(SIZES_MIB, min_size=1, max_size=5))
    shares = sorted(draw(st.lists(st.floats(0, 1), min_size=len(sizes), max_size=len(sizes))))
    points, backward = [], 0.0
    for batch in draw(st.sampled_from([(8,), (4, 32), (1, 8, 64)])):
        backward += draw(st.floats(1e-4, 20))
        forward, optimizer = draw(st.floats(1e-4, 10)), draw(st.floats(1e-4, 2))
        ready = [share * backward for share in shares]
        points.append(point(batch, forward, backward, optimizer, ready, noise=draw(st.floats(0, 0.1))))
    crowds = draw(st.sampled_from([(), (contention(2, 1.3, noise=0.05),), (contention(2, 1.1), contention(4, 1.7))]))
    buffers = draw(st.sampled_from([(), (1000,), (MIB, 8)]))
    return profile(*points, gradients=gradients(*sizes), crowds=crowds, buffers_bytes=buffers)


@st.composite
def clusters(draw: st.DrawFn):
    factors = st.floats(1, 3)
    overlaps = draw(st.sampled_from([(), (overlap(draw(factors), draw(factors), idle=draw(factors)),)]))
    copy_s_per_byte = draw(st.sampled_from([0.0, 1e-9, 1e-7]))
    return described(
        draw(st.floats(0.1, 1e4)),
        latency_s=draw(st.floats(0, 1e-2)),
        slots=4,
        nodes=4,
        overlaps=overlaps,
        copy_s_per_byte=copy_s_per_byte,
    )


CELLS = ([1, 2, 3, 4, 8, 16], [8, 1, 8, 64, 20, 100])


@settings(max_examples=60)
@given(models(), clusters(), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(model, cluster, more: float) -> None:
    link = msgspec.structs.replace(cluster.inside, bytes_per_s=more * cluster.inside.bytes_per_s)
    slower = stepped(model, cluster, *CELLS)
    faster = stepped(model, msgspec.structs.replace(cluster, inside=link, between=link), *CELLS)
    assert (faster.step_s <= slower.step_s * (1 + 1e-9)).all()
    near = stepped(model, msgspec.structs.replace(cluster, inside=link), *CELLS)
    assert (near.step_s <= slower.step_s * (1 + 1e-9)).all()


@settings(max_examples=60)
@given(models(), clusters(), st.floats(0, 1))
def test_less_overlap_slowdown_is_never_slower(model, cluster, share: float) -> None:
    less = tuple(
        overlap(1 + share * (each.compute - 1), 1 + share * (each.communication - 1), idle=each.idle)
        for each in cluster.overlaps
    )
    slower = stepped(model, cluster, *CELLS)
    faster = stepped(model, msgspec.structs.replace(cluster, overlaps=less), *CELLS)
    assert (faster.step_s <= slower.step_s * (1 + 1e-9)).all()


@given(models(), clusters(), st.sampled_from(["ddp", "horovod"]))
def test_one_process_is_the_profile_itself(model, cluster, engine: str) -> None:
    for measured in model.points:
        made = stepped(model, cluster, 1, measured.batch, engine=engine)
        alone = work(model, [measured.batch])
        assert made.step_s[0] == alone.step_s[0] == pytest.approx(measured.step_s, rel=1e-12)
        assert made.exposed_s[0] == made.outcome.hidden_s[0] == made.finish_s[0] == 0
        assert made.error[0] == measured.error


@settings(max_examples=60)
@given(models(), clusters())
def test_a_step_takes_its_compute_and_its_messages(model, cluster) -> None:
    made = stepped(model, cluster, *CELLS)
    outcome = made.outcome
    alone = work(model, CELLS[1])
    travelling = (outcome.ends_s - outcome.starts_s).sum(axis=0)
    rest = made.broadcast_s + made.forward_s + made.optimizer_s
    assert (made.step_s >= alone.step_s * (1 - 1e-9)).all()
    assert (made.step_s >= rest + outcome.backward_s - 1e-9).all()
    assert (made.step_s >= rest + outcome.starts_s[0] + travelling - 1e-8).all()
    assert outcome.hidden_s + outcome.exposed_s == pytest.approx(travelling, rel=1e-9, abs=1e-9)
    assert (made.finish_s >= 0).all()


@settings(max_examples=60)
@given(models(), clusters(), st.sampled_from(["ddp", "horovod"]))
def test_many_cells_at_once_are_what_each_is_alone(model, cluster, engine: str) -> None:
    together = stepped(model, cluster, *CELLS, engine=engine)
    for cell, (ranks, batch) in enumerate(zip(*CELLS, strict=True)):
        alone = stepped(model, cluster, ranks, batch, engine=engine)
        for name in ("step_s", "exposed_s", "finish_s", "error", "memory_bytes"):
            found = getattr(together, name)[cell]
            assert found == pytest.approx(getattr(alone, name)[0], rel=1e-9, abs=1e-12), (name, ranks)
