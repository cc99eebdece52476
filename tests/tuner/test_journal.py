"""What a search cost, as its record tells it."""

from pathlib import Path

import pytest

from scalescope.progress import Progress
from scalescope.records.files import TUNING
from scalescope.records.store import load
from scalescope.records.tuning import Method, TuneRequest, Tuning
from scalescope.tuner.blocks import Block
from scalescope.tuner.journal import Journal
from scalescope.tuner.search import ONLINE
from scalescope.tuner.tuner import Tuner
from tuner.landscapes import space

FINALIST = {"bucket_cap_mb": 1.0}


def searched(
    folder: Path, seconds: float, *, method: Method = "online", first_s: float = 0.1, complete: bool = True
) -> Tuning:
    """The default in 13 steps, then three pairs of 14 with steps of 0.1 s and 0.08 s; `seconds`: of every sample."""
    tuner = Tuner(space(), None, ONLINE, finalist=FINALIST)
    journal = Journal(folder, TuneRequest(command=("python", "train.py")), space(), tuner, method=method)
    while asked := tuner.next():
        step_s = first_s if asked.phase == "default" else 0.08 if asked.values else 0.1
        block = Block(step_s=(step_s,) * asked.steps, discarded=2, waited=1, seconds=seconds)
        journal.add(tuner.tell(asked, block), Progress())
    return journal.close(complete=complete, why_not="interrupted")


def test_the_steps_until_a_search_has_paid_off_are_its_loss_over_the_gain_of_a_step(tmp_path: Path) -> None:
    found = searched(tmp_path, 1.5)
    assert (found.decision, found.values) == ("use", FINALIST)
    assert (found.cost.search_steps, found.cost.confirm_steps) == (13, 42)
    assert found.cost.seconds == pytest.approx(7 * 1.5)
    assert found.cost.lost_s == pytest.approx(7 * 1.5 - 55 * 0.1)
    assert found.cost.worst == pytest.approx(1.0)
    assert found.cost.break_even_steps == 250
    assert load(tmp_path / TUNING, Tuning) == found


def test_launches_of_a_search_by_relaunch_are_all_cost(tmp_path: Path) -> None:
    cost = searched(tmp_path, 1.5, method="offline").cost
    assert cost.lost_s == pytest.approx(10.5)
    assert cost.break_even_steps == 525


def test_a_search_that_gained_time_has_paid_off_at_once(tmp_path: Path) -> None:
    cost = searched(tmp_path, 0.6).cost
    assert cost.lost_s == pytest.approx(-1.3)
    assert cost.break_even_steps == 0


def test_without_a_faster_winner_a_search_never_pays_off(tmp_path: Path) -> None:
    slower = searched(tmp_path / "slower", 1.5, first_s=0.02)
    assert slower.winner_step_s is not None
    assert slower.default_step_s is not None
    assert slower.winner_step_s > slower.default_step_s
    assert slower.cost.break_even_steps is None
    undecided = searched(tmp_path / "undecided", 1.5, complete=False)
    assert (undecided.decision, undecided.reason) == ("undecided", "interrupted")
    assert undecided.cost.break_even_steps is None
