"""Replays of a step whose times can be worked out by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalescope.diagnosis.explanation import explained
from scalescope.diagnosis.replay import MessageCosts, Replay, best_bucket, gain, replay_of
from scalescope.diagnosis.traces import read_job

MIB = 1024 * 1024


def replay(
    ready: list[float], sizes: list[float], *, step_s: float, per_byte: float = 1.0, each: float = 0.0
) -> Replay:
    """Messages that cost `each` and so much per byte."""
    known = np.unique(np.array(sizes, dtype=float))
    return Replay(
        step_s=step_s,
        ready_s=np.array(ready, dtype=float),
        bytes=np.array(sizes, dtype=float),
        sizes=known,
        seconds=each + per_byte * known,
        usual_bytes_per_s=1 / per_byte,
    )


def test_a_link_twice_as_fast_halves_what_follows_the_last_gradient() -> None:
    job = replay([4, 10], [2, 4], step_s=16)
    assert job.end_s(job.ready_s, job.bytes) == 14
    assert job.with_links(2) == 16 - 2
    assert job.with_links(1) == 16


def test_messages_wait_for_each_other() -> None:
    job = replay([1, 2, 3], [5, 5, 5], step_s=20)
    assert job.end_s(job.ready_s, job.bytes) == 16
    assert job.with_links(5) == 20 - 12


def test_smaller_messages_leave_earlier_and_each_pays_its_fixed_cost() -> None:
    job = replay([10.0], [10.0], step_s=25)  # one message, made evenly until 10, sent until 20
    assert job.with_buckets(5) == pytest.approx(25 - 5)
    paying = replay([10.0, 10.0], [8.0, 2.0], step_s=30, each=1.0)
    assert paying.with_buckets(1) > paying.with_buckets(10)


def test_the_best_size_is_the_one_with_the_shortest_step() -> None:
    job = replay([5.0, 10.0], [5.0, 5.0], step_s=20, each=0.5)
    caps = (1.0, 2.5, 10.0)
    cap, step_s = best_bucket(job, caps)
    assert step_s == min(job.with_buckets(each) for each in caps)
    assert job.with_buckets(cap) == step_s


def test_costs_between_and_beyond_the_seen_sizes_are_straight_lines() -> None:
    cost = replay([1, 2], [10, 20], step_s=5, per_byte=2, each=3).cost
    assert cost(np.array([0.0, 5, 10, 15, 20, 40])).tolist() == [3, 13, 23, 33, 43, 83]


def test_one_size_alone_is_a_fixed_cost_and_the_usual_rate() -> None:
    costs = MessageCosts(sizes=np.array([4.0]), seconds=np.array([3.0]), usual_bytes_per_s=2.0)
    assert costs.cost(np.array([0.0, 4.0, 10.0])).tolist() == [1, 3, 6]


def test_messages_are_ready_when_the_last_rank_is() -> None:
    job = read_job(sorted((Path(__file__).parents[1] / "data" / "traces" / "kineto" / "gloo_small").iterdir()))
    explanation = explained(job)
    assert job.compared is not None

    def ready_s(*late_s: float) -> np.ndarray:
        assert job.compared is not None
        late = np.tile(late_s, (len(job.compared.late_s), 1))
        found = replay_of(replace(job, compared=replace(job.compared, late_s=late)), explanation)
        assert found is not None
        return found.ready_s

    assert ready_s(0.0, 0.01) - ready_s(0.0, 0.0) == pytest.approx(0.01)
    assert ready_s(0.02, 0.0) - ready_s(0.0, 0.0) == pytest.approx(0.0), "the first trace is the last rank's"


def test_a_gain_is_relative_to_the_new_step() -> None:
    assert gain(0.15, 0.1) == pytest.approx(0.5)
