"""Recorded steps with messages that take time: exact on paper, and equal to the simulations of DDP and FSDP2."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulator.made import described, gradients, overlap, point, profile
from tests.simulator.made_recorded import message, rank_zero, recorded_ddp, recorded_fsdp2

from scalescope.engines import DDP
from scalescope.records.timeline import BUSY, EXCHANGE, exposed, moments
from scalescope.simulator.events import OverlapSlowdown
from scalescope.simulator.recorded import message_costs, run
from scalescope.simulator.sharded import Group, Segment, ShardedStep
from scalescope.simulator.sharded import run as run_sharded
from scalescope.simulator.step import steps

SECONDS = st.floats(0.01, 20.0)


def test_a_message_that_is_over_before_it_is_needed_costs_nothing() -> None:
    made = run(rank_zero(2, 10.0, message(5.0, 8.0)), [2.0])
    assert (made.step_s, made.exposed_s, made.hidden_s) == (10.0, 0.0, 2.0)


def test_compute_waits_for_what_is_left_of_a_message() -> None:
    made = run(rank_zero(2, 10.0, message(5.0, 8.0)), [4.5])
    assert (made.step_s, made.exposed_s, made.hidden_s) == (11.5, 1.5, 3.0)


def test_a_message_waits_for_the_one_before_it_in_its_group_and_not_for_others() -> None:
    first, second = message(5.0, 8.0), message(6.0, 8.0)
    assert run(rank_zero(2, 10.0, first, second), [3.0, 2.0]).step_s == 12.0
    apart = msgspec.structs.replace(second, group="other")
    assert run(rank_zero(2, 10.0, first, apart), [3.0, 2.0]).step_s == 10.0


def test_what_is_issued_later_is_later_by_what_compute_waited_before() -> None:
    blocking = message(2.0, 2.0, operation="broadcast", phase="forward")
    made = run(rank_zero(2, 10.0, blocking, message(5.0, 8.0)), [4.0, 1.0])
    assert [(each.start_s, each.end_s) for each in made.travelled] == [(2.0, 6.0), (9.0, 10.0)]
    assert made.step_s == 14.0


def test_a_message_that_nobody_waits_for_costs_nothing() -> None:
    assert run(rank_zero(2, 10.0, message(9.0, None, phase="other")), [50.0]).step_s == 10.0


def test_gradients_are_needed_when_backward_ends_where_no_wait_was_seen() -> None:
    assert run(rank_zero(2, 10.0, message(7.0, None, operation="reduce_scatter")), [4.0]).step_s == 13.0


def test_compute_waits_for_a_reduce_scatter_before_it_issues_the_next() -> None:
    scatters = [message(at, None, operation="reduce_scatter") for at in (4.0, 6.0)]
    made = run(rank_zero(2, 10.0, *scatters, device="gpu"), [5.0, 1.0])
    assert [each.start_s for each in made.travelled] == [4.0, 9.0]
    assert made.step_s == 13.0


def test_collectives_of_fsdp2_block_over_gloo() -> None:
    gather = message(2.0, 5.0, operation="all_gather", phase="forward")
    assert run(rank_zero(2, 10.0, gather, engine="fsdp2"), [3.0]).step_s == 13.0
    assert run(rank_zero(2, 10.0, gather, engine="fsdp2", device="gpu"), [3.0]).step_s == 10.0


def test_overlap_slows_both_sides_while_it_lasts() -> None:
    made = run(rank_zero(2, 10.0, message(5.0, 8.0)), [1.0], OverlapSlowdown(2.0, 3.0))
    # The message takes 3 s next to compute, which gets 1.5 s done meanwhile.
    assert made.step_s == pytest.approx(11.5)
    assert made.hidden_s == pytest.approx(3.0)


def test_making_results_up_is_not_part_of_a_step_with_real_messages() -> None:
    record = rank_zero(2, 10.0, message(5.0, 8.0, fill_s=1.0), fill_s=1.0, recorded_step_s=9.0)
    assert run(record, [0.0]).step_s == 9.0


def test_the_timeline_of_a_step_has_its_exposed_communication() -> None:
    record = rank_zero(2, 10.0, message(5.0, 8.0), message(6.0, 8.0))
    made = run(record, [3.0, 2.0], OverlapSlowdown(1.5, 1.2))
    timeline = made.timeline(record, record.compute_s)
    seen = exposed(moments(timeline.spans, EXCHANGE), moments(timeline.spans, (*BUSY, "other")))
    assert seen.length == pytest.approx(made.exposed_s)
    assert timeline.steps[0].end_s == made.step_s
    busy = {name: moments(timeline.spans, (name,)).length for name in ("other", "forward", "optimizer")}
    assert busy == pytest.approx({"other": 1.0, "forward": 3.0, "optimizer": 2.0})


@given(costs=st.lists(SECONDS, min_size=6, max_size=6), ready=st.lists(st.floats(0.0, 9.0), min_size=4, max_size=4))
def test_a_recorded_ddp_step_takes_what_the_map_of_the_same_model_says(costs: list[float], ready: list[float]) -> None:
    one = profile(point(ready_s=sorted(min(each, 4.0) for each in ready)), gradients=gradients(*costs[:4]))
    exchange = DDP.exchange(one, {"bucket_cap_mb": 5.0, "gradient_as_bucket_view": True})
    slower = 1 + costs[4] / 10, 1 + costs[5] / 10
    cluster = described(overlaps=(overlap(*slower),))
    record = recorded_ddp(one, exchange, 2)
    seconds, _ = message_costs(record.messages, cluster, "gloo")
    made = run(record, seconds.tolist(), OverlapSlowdown(*slower))

    expected = steps(one, cluster, exchange, np.array([2]), np.array([8]))
    assert made.step_s == pytest.approx(float(expected.step_s[0]), rel=1e-6)
    assert made.exposed_s == pytest.approx(float(expected.exposed_s[0]), abs=1e-6)


@given(
    sizes=st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=2, max_size=6),
    replicas=st.floats(0.0, 5.0),
    forward=SECONDS,
    backward=SECONDS,
    copies=st.floats(0.0, 1.0),
    reshards=st.booleans(),
)
def test_a_recorded_fsdp2_step_takes_what_its_streams_do(
    sizes: list[tuple[float, float, float]],
    replicas: float,
    forward: float,
    backward: float,
    copies: float,
    reshards: bool,
) -> None:
    """Recorded without costs, simulated with them: as FSDP2's own rules say."""
    step = ShardedStep(
        groups=tuple(
            Group(str(at), 100, gather, scatter, replicas, reshards=reshards, copy_out_s=copies)
            for at, (gather, scatter, _) in enumerate(sizes)
        ),
        forward=tuple(Segment(at, forward * share) for at, (_, _, share) in enumerate(sizes)),
        backward=tuple(Segment(at, backward * share) for at, (_, _, share) in reversed(list(enumerate(sizes)))),
        optimizer_s=1.0,
    )
    record, costs = recorded_fsdp2(step)
    assert run(record, costs).step_s == pytest.approx(float(run_sharded(step).step_s), rel=1e-6)


@given(
    issued=st.lists(st.floats(0.0, 8.0), min_size=1, max_size=8),
    costs=st.lists(SECONDS, min_size=8, max_size=8),
    longer=st.floats(0.0, 5.0),
    which=st.integers(0, 7),
)
def test_a_longer_message_never_makes_a_step_faster(
    issued: list[float], costs: list[float], longer: float, which: int
) -> None:
    record = rank_zero(2, 10.0, *(message(at) for at in sorted(issued)))
    more = [cost + longer * (at == which % len(issued)) for at, cost in enumerate(costs[: len(issued)])]
    assert run(record, more).step_s >= run(record, costs[: len(issued)]).step_s - 1e-9


@given(issued=st.lists(st.floats(0.0, 8.0), min_size=0, max_size=8), slow=st.floats(1.0, 3.0))
def test_links_that_cost_nothing_leave_the_step_of_rank_0(issued: list[float], slow: float) -> None:
    record = rank_zero(2, 10.0, *(message(at) for at in sorted(issued)))
    assert run(record, [0.0] * len(issued), OverlapSlowdown(slow, slow)).step_s == pytest.approx(10.0)


def test_groups_of_a_node_do_not_cross_nodes_and_replicas_share_the_link() -> None:
    cluster = described(1000.0, nodes=4, slots=8)
    shard = message(ranks=8, stride=1, bytes_=2**26)
    replicas = message(ranks=4, stride=8, bytes_=2**23)
    apart = message(ranks=4, stride=8, bytes_=2**26)
    (inside, beside, alone), _ = message_costs([shard, replicas, apart], cluster, "gloo")
    # Eight groups of replicas send an eighth each over the link of a node: as much as one that sends all.
    one = message(ranks=4, stride=1, bytes_=2**26)
    flat = described(1000.0, nodes=4, slots=1)
    assert beside == pytest.approx(message_costs([one], flat, "gloo")[0][0])
    assert alone == pytest.approx(8 * beside)
    assert inside == pytest.approx(message_costs([shard], described(1000.0, slots=8), "gloo")[0][0])
