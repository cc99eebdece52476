"""Steps of FSDP2 to the second: which compute waits for which gather."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.simulator.events import OverlapSlowdown
from scalescope.simulator.sharded import Group, Segment, ShardedOutcome, ShardedStep, replay, run


def blocks(
    names: str = "abc", forward_s: float = 4.0, backward_s: float = 8.0, launch_s: float = 0.0, **more: object
) -> ShardedStep:
    """Equal blocks without a root: a gather takes 2 s, a reduce-scatter 3 s."""
    group = {"bytes": 100, "gather_s": 2.0, "scatter_s": 3.0}
    own = {name: more.pop(name) for name in tuple(more) if name in Group.__dataclass_fields__}
    return ShardedStep(
        groups=tuple(Group(**{"name": name, **group, **own}) for name in names),
        forward=tuple(Segment(at, forward_s, launch_s) for at in range(len(names))),
        backward=tuple(Segment(at, backward_s, launch_s) for at in reversed(range(len(names)))),
        **more,
    )


def times(outcome: ShardedOutcome, kind: str) -> list[tuple[str, float, float]]:
    return [(each.name, float(each.start_s), float(each.end_s)) for each in outcome.done if each.kind == kind]


def test_gathers_run_ahead_of_forward_by_two_and_one_ahead_in_backward() -> None:
    made = run(blocks("abcd"))
    # c waits until a is copied out, which is at 2 and long over; d until b is, which is when its compute begins, at 6.
    assert times(made, "gather")[:4] == [("a", 0, 2), ("b", 2, 4), ("c", 4, 6), ("d", 6, 8)]
    assert times(made, "forward") == [("a", 2, 6), ("b", 6, 10), ("c", 10, 14), ("d", 14, 18)]
    # d again as soon as its parameters were copied out in forward, c when backward of d begins, b after d is reduced.
    assert times(made, "gather")[4:] == [("d", 14, 16), ("c", 18, 20), ("b", 29, 31), ("a", 37, 39)]
    assert times(made, "scatter") == [("d", 26, 29), ("c", 34, 37), ("b", 42, 45), ("a", 50, 53)]
    assert made.step_s == 53
    assert made.exposed_s == 2 + 3


def test_a_gather_waits_until_the_parameters_of_two_groups_before_are_copied_out() -> None:
    slow = blocks("abcd", forward_s=10.0)
    assert times(run(slow), "gather")[:4] == [("a", 0, 2), ("b", 2, 4), ("c", 4, 6), ("d", 12, 14)]


def count(made: ShardedOutcome, kind: str) -> int:
    return sum(each.kind == kind for each in made.done)


def test_compute_waits_for_the_reduce_scatter_of_the_group_before() -> None:
    made = run(blocks("ab", scatter_s=20.0, reshards=False))
    assert times(made, "backward") == [("b", 10, 18), ("a", 18, 26)]
    # b's is over at 38; only then a's is issued.
    assert times(made, "scatter") == [("b", 18, 38), ("a", 38, 58)]


def test_a_gather_in_backward_waits_for_the_reduce_scatter_issued_before_it() -> None:
    made = run(blocks("abc", scatter_s=20.0))
    assert times(made, "scatter")[0] == ("c", 22, 42)
    assert times(made, "gather")[-1] == ("a", 42, 44)


def test_the_root_stays_gathered_and_is_reduced_last() -> None:
    root = Group(name="root", bytes=10, gather_s=1.0, scatter_s=1.0, reshards=False)
    step = blocks("ab")
    forward = (Segment(0, 1.0), *(replace(each, group=each.group + 1) for each in step.forward), Segment(0, 1.0))
    backward = (Segment(0, 2.0), *(replace(each, group=each.group + 1) for each in step.backward), Segment(0, 2.0))
    made = run(replace(step, groups=(root, *step.groups), forward=forward, backward=backward))
    assert [name for name, *_ in times(made, "gather")] == ["root", "a", "b", "b", "a"]
    assert [name for name, *_ in times(made, "scatter")] == ["b", "a", "root"]
    # The root's backward begins at 12; what it prefetches was issued long before, and waits for b's copy out at 7.
    assert times(made, "gather")[3][1:] == (7, 9)
    assert times(made, "backward") == [("root", 12, 14), ("b", 14, 22), ("a", 22, 30), ("root", 30, 32)]
    assert times(made, "scatter")[1:] == [("a", 30, 33), ("root", 33, 34)]
    assert made.step_s == 34


def test_parameters_that_are_kept_are_gathered_once() -> None:
    step = blocks(gather_s=9.0)
    kept = run(step.without_reshard())
    assert (count(run(step), "gather"), count(kept, "gather")) == (6, 3)
    assert kept.step_s < run(step).step_s


def test_a_smaller_group_gathers_faster_in_backward() -> None:
    step = replace(blocks("ab", regather_s=0.5), blocking=True)
    assert [end - start for _, start, end in times(run(step), "gather")] == [2, 2, 0.5, 0.5]


def test_hsdp_sums_shards_after_each_reduce_scatter() -> None:
    made = run(blocks("ab", allreduce_s=5.0))
    assert times(made, "scatter") == [("b", 18, 21), ("a", 26, 29)]
    assert times(made, "allreduce") == [("b", 21, 26), ("a", 29, 34)]
    assert made.step_s == 34


def test_accumulation_gathers_in_every_pass_and_reduces_in_the_last() -> None:
    step = blocks(passes=3)
    made = run(step)
    assert (count(made, "gather"), count(made, "scatter")) == (3 * 6, 3)
    every = replace(step, syncs_every_pass=True)
    assert count(run(every), "scatter") == 9
    assert replay(every) - replay(step) == 2 * 3  # what was exposed at the end of the two other passes
    assert replay(every.synced_once()) == replay(step)
    over_gloo = replace(every, blocking=True)
    assert replay(over_gloo) - replay(over_gloo.synced_once()) == 2 * 9


def test_a_cpu_that_is_not_ahead_issues_gathers_late_and_prefetch_hides_them() -> None:
    late = blocks(forward_s=4.0, launch_s=6.0)
    assert times(run(late), "gather")[:3] == [("a", 0, 2), ("b", 6, 8), ("c", 12, 14)]
    prefetched = run(late.with_prefetch())
    assert times(prefetched, "gather")[:3] == [("a", 0, 2), ("b", 2, 4), ("c", 6, 8)]
    assert run(late).exposed_s - prefetched.exposed_s == 4


def test_a_cpu_that_waits_for_compute_cannot_run_ahead() -> None:
    step = blocks()
    waits = replace(step, forward=tuple(replace(each, synchronizes=True) for each in step.forward))
    assert times(run(waits), "gather")[:3] == [("a", 0, 2), ("b", 6, 8), ("c", 12, 14)]
    assert replay(waits) == replay(step) + 2 * 2 + 2  # b and c in forward, and c's second gather
    assert replay(waits) - replay(waits.with_prefetch()) == 2 * 2


def test_compute_that_cannot_be_launched_fast_enough_ends_with_its_launch() -> None:
    made = run(blocks("a", forward_s=1.0, backward_s=1.0, launch_s=10.0, gather_s=0.0, scatter_s=0.0))
    assert made.step_s == 20


def test_a_cpu_that_is_late_gains_what_it_need_not_issue() -> None:
    late = blocks("ab", gather_s=0.0, scatter_s=0.0, launch_s=20.0, gather_launch_s=3.0, scatter_launch_s=5.0)
    assert replay(late) == 4 * 20 + 4 * 3 + 2 * 5
    assert replay(late) - replay(late.without_reshard()) == 2 * 3
    every = replace(late, passes=2, syncs_every_pass=True)
    assert replay(every) - replay(every.synced_once()) == 2 * 5


def test_copies_are_compute() -> None:
    made = run(blocks("a", copy_out_s=0.5, copy_in_s=0.25, reshards=False))
    assert made.step_s == 2 + 0.5 + 4 + 8 + 0.25 + 3
    assert made.compute_s == 12.75


def test_overlap_stretches_both_as_far_as_they_overlap() -> None:
    alone = run(blocks("abcd"))
    slowed = run(blocks("abcd"), OverlapSlowdown(compute=1.5, sending=1.0))
    share = float(alone.hidden_s) / float(alone.compute_s)
    assert slowed.compute_s == pytest.approx(alone.compute_s * (1 + share * 0.5))
    sending = run(blocks("abcd"), OverlapSlowdown(compute=1.0, sending=1.5))
    share = float(alone.hidden_s) / float(alone.collectives_s)
    assert sending.collectives_s == pytest.approx(alone.collectives_s * (1 + share * 0.5))
    assert sending.compute_s == alone.compute_s
    assert run(blocks("abcd", blocking=True), OverlapSlowdown(2.0, 2.0)) == run(blocks("abcd", blocking=True))


def test_every_cell_has_its_own_seconds() -> None:
    gather_s = np.array([2.0, 9.0, 0.0])
    together = run(blocks(gather_s=gather_s)).step_s
    assert together.tolist() == [replay(blocks(gather_s=float(each))) for each in gather_s]


SECONDS = st.floats(0, 20).map(lambda value: round(value, 2))


@st.composite
def steps(draw: st.DrawFn) -> ShardedStep:
    """A root with any number of blocks, each with any times."""
    count = draw(st.integers(1, 5))
    groups = [
        Group(
            name=str(index),
            bytes=draw(st.integers(1, 1000)),
            gather_s=draw(SECONDS),
            scatter_s=draw(SECONDS),
            allreduce_s=draw(st.sampled_from([0.0, 3.0])),
            reshards=index > 0 and draw(st.booleans()),
            copy_out_s=draw(st.sampled_from([0.0, 0.5])),
            copy_in_s=draw(st.sampled_from([0.0, 0.5])),
        )
        for index in range(count + 1)
    ]
    launch_s = draw(st.sampled_from([0.0, 2.0, 10.0]))
    order = [0, *range(1, count + 1), 0]
    return ShardedStep(
        groups=tuple(groups),
        forward=tuple(Segment(index, draw(SECONDS), launch_s) for index in order),
        backward=tuple(Segment(index, draw(SECONDS), launch_s) for index in reversed(order)),
        optimizer_s=draw(SECONDS),
        passes=draw(st.integers(1, 3)),
        syncs_every_pass=draw(st.booleans()),
        forward_prefetch=draw(st.integers(0, 2)),
    )


def with_links(step: ShardedStep, share: float) -> ShardedStep:
    """The step with collectives that take this part of their time."""
    groups = tuple(
        replace(
            group,
            gather_s=share * group.gather_s,
            scatter_s=share * group.scatter_s,
            allreduce_s=share * group.allreduce_s,
        )
        for group in step.groups
    )
    return replace(step, groups=groups)


def computed(step: ShardedStep) -> float:
    """Of all passes, without copies."""
    return step.passes * sum(float(each.seconds) for each in (*step.forward, *step.backward))


def unhurried(step: ShardedStep) -> ShardedStep:
    """The step with a CPU that is far ahead."""
    return replace(
        step,
        forward=tuple(replace(each, launch_s=0.0) for each in step.forward),
        backward=tuple(replace(each, launch_s=0.0) for each in step.backward),
    )


@given(steps())
def test_with_infinitely_fast_links_the_step_is_the_compute(step: ShardedStep) -> None:
    made = run(unhurried(with_links(step, 0.0)))
    assert made.step_s == pytest.approx(made.compute_s + step.optimizer_s)
    copies = sum(each.copy_out_s for each in step.groups) + sum(each.copy_in_s for each in step.groups)
    assert computed(step) <= made.compute_s + 1e-9
    assert made.compute_s <= computed(step) + 2 * step.passes * copies + 1e-9
    assert made.exposed_s == pytest.approx(0.0)


@given(steps(), st.floats(0, 1))
def test_more_bandwidth_never_makes_a_step_slower(step: ShardedStep, share: float) -> None:
    assert replay(with_links(step, share)) <= replay(step) + 1e-9


@given(steps(), st.integers(1, 3))
def test_prefetch_never_makes_a_step_slower(step: ShardedStep, ahead: int) -> None:
    assert replay(replace(step, forward_prefetch=ahead)) <= replay(replace(step, forward_prefetch=0)) + 1e-9


@given(steps())
def test_prefetch_in_backward_never_makes_a_step_slower(step: ShardedStep) -> None:
    assert replay(replace(step, backward_prefetch=1)) <= replay(replace(step, backward_prefetch=0)) + 1e-9


@given(steps())
def test_parameters_that_stay_never_need_more_gathers(step: ShardedStep) -> None:
    assert count(run(step.without_reshard()), "gather") <= count(run(step), "gather")


@given(steps())
def test_over_gloo_a_step_is_compute_and_the_sum_of_its_collectives(step: ShardedStep) -> None:
    made = run(unhurried(replace(step, blocking=True)))
    assert made.step_s == pytest.approx(made.compute_s + made.collectives_s + step.optimizer_s)
    assert made.exposed_s == pytest.approx(made.collectives_s)
    assert replay(unhurried(replace(step, blocking=True)).with_prefetch()) == pytest.approx(float(made.step_s))


@given(steps())
def test_no_step_is_shorter_than_its_compute_or_its_collectives(step: ShardedStep) -> None:
    made = run(step)
    assert made.step_s >= max(made.compute_s, made.collectives_s - 3.0 * count(made, "allreduce")) - 1e-9
    assert made.exposed_s <= made.collectives_s + made.step_s
    assert count(made, "gather") >= step.passes * len(step.groups)
    reduced = step.passes if step.syncs_every_pass else 1
    assert count(made, "scatter") == reduced * len(step.groups)


@given(steps())
def test_collectives_of_one_communicator_never_overlap(step: ShardedStep) -> None:
    made = run(step)
    sent = [each for each in made.done if each.kind in ("gather", "scatter")]
    for before, after in pairwise(sent):
        assert after.start_s >= before.end_s - 1e-9
