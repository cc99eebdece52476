"""Parts of steps as columns: cut, averaged and turned into records."""

import numpy as np
import pytest

from scalescope.intervals import union
from scalescope.traces.trace import Activities, HeldUp, Parts, breakdowns, exposed_of, mean_parts, parts_of


def columns(*steps: float, **known: list[float]) -> Parts:
    given = {name: np.array(values) for name, values in known.items()}
    names = ("compute", "optimizer", "exposed", "hidden", "input")
    rest = {name: given.get(name) for name in names}
    return Parts(step=np.array(steps), other=np.zeros(len(steps)), waiting=given.get("waiting"), **rest)


def test_later_steps_keep_what_is_known_of_them() -> None:
    later = columns(1.0, 2.0, 3.0, compute=[0.1, 0.2, 0.3], waiting=[0.0, 0.5, 0.6]).since(1)
    assert later.step.tolist() == [2.0, 3.0]
    assert later.compute is not None
    assert later.compute.tolist() == [0.2, 0.3]
    assert later.waiting is not None
    assert later.waiting.tolist() == [0.5, 0.6]
    assert later.optimizer is None
    assert later.other.tolist() == [0.0, 0.0]


def test_every_column_of_a_record_is_its_own() -> None:
    one = Parts(*(np.array([float(number)]) for number in range(1, 9)))
    (record,) = breakdowns(one)
    assert (record.step_s, record.compute_s, record.optimizer_s, record.exposed_s) == (1.0, 2.0, 3.0, 4.0)
    assert (record.hidden_s, record.input_s, record.other_s, record.waiting_s) == (5.0, 6.0, 7.0, 8.0)
    assert [each.step_s for each in breakdowns(columns(1.0, 2.0))] == [1.0, 2.0]
    assert breakdowns(columns(1.0))[0].compute_s is None


def test_mean_parts_cover_all_steps_and_parts_known_everywhere() -> None:
    one = columns(1.0, 2.0, compute=[0.5, 1.0], input=[0.1, 0.1])
    other = columns(6.0, compute=[3.0])
    mean = mean_parts([one, other])
    assert mean is not None
    assert [mean.step_s, mean.compute_s] == pytest.approx([3.0, 1.5])
    assert (mean.input_s, mean.exposed_s) == (None, None)
    assert mean_parts([one, columns()]) is not None
    assert mean_parts([columns()]) is None
    assert mean_parts([]) is None


def test_a_rank_holds_up_its_own_steps_only() -> None:
    told = HeldUp(np.array([0, 1, 1, 4, 2]), np.array([1, 1, 0, 1, 1]), np.array([0.1, 0.2, 0.4, 0.8, 1.6]))
    assert told.by_step(1, 4).tolist() == pytest.approx([0.1, 0.2, 1.6, 0.0])
    assert told.by_step(0, 4).tolist() == pytest.approx([0.0, 0.4, 0.0, 0.0])
    assert told.by_step(7, 2).tolist() == [0.0, 0.0]


def test_each_moment_of_a_step_counts_once_in_the_order_of_its_parts() -> None:
    activities = Activities(
        compute=union([0.0], [4.0]),
        optimizer=union([3.0], [6.0]),
        exchange=union([2.0], [8.0]),
        input=union([5.0], [9.0]),
    )
    parts = parts_of(activities, [0.0], [10.0])
    (record,) = breakdowns(parts)
    assert (record.step_s, record.compute_s, record.optimizer_s) == (10.0, 4.0, 2.0)
    assert (record.exposed_s, record.hidden_s, record.input_s, record.other_s) == (2.0, 4.0, 1.0, 1.0)
    alone = exposed_of(activities)
    assert (alone.starts.tolist(), alone.ends.tolist()) == ([6.0], [8.0])
    (given,) = breakdowns(parts_of(activities, [0.0], [10.0], union([6.0], [7.0])))
    assert (given.exposed_s, given.hidden_s) == (1.0, 5.0)


def test_unknown_parts_count_as_other() -> None:
    (record,) = breakdowns(parts_of(Activities(compute=None, optimizer=None, exchange=None, input=None), [1.0], [3.0]))
    assert (record.step_s, record.other_s) == (2.0, 2.0)
    assert {record.compute_s, record.optimizer_s, record.exposed_s, record.hidden_s, record.input_s} == {None}
