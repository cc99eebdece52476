"""What is recorded of a step: phases, collectives, and clocks from which what was made up is taken off."""

from typing import Any

import pytest

from scalescope.agent import rank_zero_recording
from scalescope.agent.rank_zero_recording import Recording

MS = 1_000_000


class Clock:
    """Shows what it is told to show."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> int:
        return round(self.ms * MS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rank_zero_recording, "now", clock)
    return clock


@pytest.fixture
def recording(clock: Clock) -> Recording:
    recording = Recording()
    recording.add_group("0", list(range(8)))
    recording.begin()
    return recording


def ended(recording: Recording, origin: int = 0) -> dict[str, Any]:
    recording.end()
    return recording.summary(origin)


def issued(recording: Recording, operation: str = "all_reduce", module: str = "") -> int:
    return recording.issue(operation, 400, "float32", 0, module, False)


def test_messages_have_the_phase_in_which_they_are_issued(recording: Recording, clock: Clock) -> None:
    issued(recording)
    recording.enter("forward")
    clock.ms = 1
    issued(recording)
    recording.leave("forward")
    recording.enter("backward")
    clock.ms = 3
    issued(recording)
    recording.leave("backward")
    recording.enter("optimizer")
    clock.ms = 7
    found = ended(recording)
    assert [row[4] for row in found["messages"]] == ["other", "forward", "backward"]
    assert [row[7] for row in found["messages"]] == pytest.approx([0, 0.001, 0.003])
    assert [found[part] for part in ("forward", "backward", "optimizer")] == pytest.approx([0.001, 0.002, 0.004])
    assert found["step_s"] == pytest.approx(0.007)


def test_what_is_made_up_is_taken_off_the_clock_of_compute(recording: Recording, clock: Clock) -> None:
    recording.enter("forward")
    clock.ms = 2
    first = issued(recording)
    began = recording.fill_begins()
    clock.ms = 5
    recording.filled(first, began)
    recording.wait(first)
    clock.ms = 6
    issued(recording)
    recording.leave("forward")
    found = ended(recording)
    assert [row[7] for row in found["messages"]] == pytest.approx([0.002, 0.003])
    assert found["messages"][0][8:] == pytest.approx([0.002, 0.003])  # needed at once, made up in 3 ms
    assert found["fill_s"] == pytest.approx(0.003)
    assert found["forward"] == pytest.approx(0.003)
    assert found["step_s"] == pytest.approx(0.006)


def test_a_bucket_is_needed_at_the_end_of_backward(recording: Recording, clock: Clock) -> None:
    recording.enter("backward")
    bucket = issued(recording)
    recording.needed_after_backward(bucket)
    recording.wait(bucket)
    clock.ms = 4
    recording.leave("backward")
    assert ended(recording)["messages"][0][8] == pytest.approx(0.004)


def test_a_gather_is_needed_when_its_owner_says_so(recording: Recording, clock: Clock) -> None:
    gather = issued(recording, "all_gather", "layers.1")
    recording.own_gather(17, gather)
    recording.wait(gather)
    clock.ms = 2
    recording.gather_is_needed(16)
    recording.gather_is_needed(17)
    assert ended(recording)["messages"][0][8] == pytest.approx(0.002)


def test_a_work_of_an_earlier_step_changes_nothing(recording: Recording, clock: Clock) -> None:
    old = issued(recording)
    recording.end()
    recording.wait(old)
    recording.begin()
    issued(recording)
    recording.wait(old)
    recording.needed_after_backward(old)
    assert ended(recording)["messages"][0][8] is None


def test_a_forward_inside_the_optimizer_is_no_part_of_it(recording: Recording, clock: Clock) -> None:
    recording.enter("optimizer")
    clock.ms = 1
    recording.enter("forward")
    clock.ms = 4
    recording.leave("forward")
    clock.ms = 6
    recording.leave("optimizer")
    found = ended(recording)
    assert (found["forward"], found["optimizer"]) == pytest.approx((0.003, 0.003))


def test_a_phase_that_raised_ends_with_the_one_around_it(recording: Recording, clock: Clock) -> None:
    recording.enter("backward")
    recording.enter("forward")
    recording.leave("backward")
    issued(recording)
    assert ended(recording)["messages"][0][4] == "other"


def test_what_lies_before_backward_is_the_forward_of_a_model_that_is_not_seen(
    recording: Recording, clock: Clock
) -> None:
    issued(recording)
    clock.ms = 2
    recording.enter("backward")
    clock.ms = 3
    recording.leave("backward")
    issued(recording)
    found = ended(recording)
    assert (found["forward"], found["backward"]) == pytest.approx((0.002, 0.001))
    assert [row[4] for row in found["messages"]] == ["forward", "other"]


def test_a_step_after_a_pause_begins_after_it(recording: Recording, clock: Clock) -> None:
    clock.ms = 5
    recording.enter("forward")
    clock.ms = 6
    issued(recording)
    clock.ms = 8
    recording.leave("forward")
    found = ended(recording, origin=4 * MS)
    assert found["messages"][0][7] == pytest.approx(0.002)
    assert (found["step_s"], found["forward"]) == pytest.approx((0.004, 0.003))


@pytest.mark.parametrize(("ranks", "stride"), [([0, 1, 2], 1), ([0, 4], 4), ([0, 1, 4], 0), ([0], 1)])
def test_a_group_knows_how_far_its_ranks_are_apart(ranks: list[int], stride: int) -> None:
    recording = Recording()
    recording.add_group("g", ranks)
    assert recording.groups[0].stride == stride
