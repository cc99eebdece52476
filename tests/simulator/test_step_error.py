"""How far a step may be off because of its messages, by hand: one of 6 s under 10 s of backward."""

import numpy as np
import pytest

from scalescope.simulator.compute import OverlapFactors
from scalescope.simulator.events import Outcome
from scalescope.simulator.step import _HALF, _sent_error

WHOLE_S = 20.0


def relative_error(*, start_s: float, sending: float = 0.0, compute: float = 0.0, link: float = 0.0) -> float:
    one = np.ones(1)
    outcome = Outcome(
        backward_s=10 * one,
        sent_s=10 * one,
        hidden_s=6 * one,
        starts_s=np.array([[start_s]]),
        ends_s=np.array([[start_s + 6]]),
        since_cycle_s=0 * one,
    )
    factors = OverlapFactors(2 * one, one, one, compute * one, sending * one, 0 * one)
    return float(_sent_error(outcome, 0 * one, WHOLE_S * one, factors, link * one)[0])


def test_a_slower_message_fills_the_pause_after_it_first_and_slows_compute_for_longer() -> None:
    # 10 % longer under way are 0.6 s, in which compute loses half of its speed.
    assert relative_error(start_s=1.0, sending=0.1) == pytest.approx(0.3 / WHOLE_S)
    assert relative_error(start_s=4.0, sending=0.1) == pytest.approx((0.6 + 0.3) / WHOLE_S)


def test_compute_that_loses_more_next_to_a_message_takes_longer() -> None:
    assert relative_error(start_s=4.0, compute=0.1) == pytest.approx(6 * 0.1 / 2 / WHOLE_S)


def test_a_link_that_is_slower_than_thought_counts_at_the_end_of_the_interval() -> None:
    more = np.expm1(_HALF * 0.1)
    last = np.log1p(6 * more * 1.5 / WHOLE_S) / _HALF
    assert relative_error(start_s=4.0, link=0.1) == pytest.approx(last)
    early = np.log1p(6 * more * 0.5 / WHOLE_S) / _HALF  # the message fits into the pause, compute is slower
    assert relative_error(start_s=1.0, link=0.1) == pytest.approx(early)


def test_errors_of_their_own_add_up_by_their_squares() -> None:
    both = relative_error(start_s=4.0, sending=0.1, compute=0.1)
    assert both == pytest.approx(np.hypot(0.9 / WHOLE_S, 0.3 / WHOLE_S))
