"""Interleaved blocks as ranks make them, on a made-up clock, and when there are enough of them."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.jobs import interleaved
from scalescope.jobs.interleaved import FILE, Interleaved, ratio_is_known, read_pairs, run_interleaved
from scalescope.records.run import QUIET


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


class Live:
    """All ranks say what this one says; a rank that is not the first hears what it is told."""

    def __init__(self, *hears: int) -> None:
        self.said: list[int] = []
        self._hears = list(hears)

    def agree(self, value: int) -> int:
        self.said.append(value)
        return self._hears.pop(0) if self._hears else value


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[tuple[str, int]]]:
    """Run a rank; the order of its steps, as kinds and how many."""
    clock = Clock()
    monkeypatch.setattr(interleaved, "time", clock)
    monkeypatch.setattr(interleaved, "LoadMeter", lambda: "meter")

    def run(rank: int, live: Live, together_s: float = 0.2, alone_s: float = 0.1, **plan: Any) -> list[tuple[str, int]]:
        done: list[tuple[str, int]] = []

        def step(kind: str, seconds: float) -> None:
            clock.now += seconds
            if done and done[-1][0] == kind:
                done[-1] = (kind, done[-1][1] + 1)
            else:
                done.append((kind, 1))

        peers: Any = SimpleNamespace(
            foreign_cores=lambda meter: 0.125 * (meter == "meter"), most=lambda value: 2 * value
        )
        chosen = Interleaved(**{"precision": 1e-9, "seconds": 8.0, **plan})
        run_interleaved(
            *(lambda: step("all", together_s), lambda: step("alone", alone_s)), live, peers, rank, chosen, tmp_path
        )
        return done

    return run


def lines(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE.format(rank=rank)).read_text().splitlines()]


def test_blocks_are_interleaved_and_their_order_alternates(
    made: Callable[..., list[tuple[str, int]]], tmp_path: Path
) -> None:
    live = Live()
    done = made(0, live)
    # five steps of each kind first; a block of 0.5 s has five steps of 0.1 s; 1.5 s of warm-up, then pairs of 1.5 s
    assert done == [("all", 5), ("alone", 10), ("all", 10), ("alone", 10), ("all", 10), ("alone", 10), ("all", 5)]
    assert live.said == [5, *[1, 0] * 5, 0]
    written = lines(tmp_path, 0)
    assert [(each["pair"], each["mode"]) for each in written[:4]] == [
        *((0, "alone"), (0, "all")),
        *((1, "all"), (1, "alone")),
    ]
    assert written[0]["seconds"] == pytest.approx([0.1] * 5)
    assert {each["foreign_cores"] for each in written} == {0.25}
    found = read_pairs(tmp_path, 1)
    assert [each for pair in found.seconds for each in pair] == pytest.approx([0.1, 0.2] * 5)
    assert found.foreign_cores == 0.25


def test_a_block_has_three_steps_at_least(made: Callable[..., list[tuple[str, int]]]) -> None:
    live = Live()
    made(0, live, alone_s=0.4)
    assert live.said[0] == 3


def test_other_ranks_make_the_agreed_steps_and_none_alone(
    made: Callable[..., list[tuple[str, int]]], tmp_path: Path
) -> None:
    live = Live(4, 1, 0, 1, 0, 0)
    assert made(1, live) == [("all", 5 + 4 + 4)]
    assert live.said == [0] * 6
    assert [each["mode"] for each in lines(tmp_path, 1)] == ["all", "all"]


PLAN = Interleaved(precision=0.05, seconds=10.0)


@pytest.mark.parametrize(
    ("ratios", "foreign", "elapsed_s", "enough"),
    [
        ([1.0] * 8, 0.0, 1.0, True),
        ([1.0] * 7, 0.0, 1.0, False),
        ([1.0, 2.0] * 4, 0.0, 1.0, False),
        ([1.0, 2.0] * 50, 0.0, 1.0, True),
        ([1.0, 3.0] * 49, 0.0, 1.0, False),
        ([1.0, 2.0], 0.0, 10.0, False),
        ([1.0, 2.0], 0.0, 10.1, True),
        ([1.0], 0.0, 10.1, False),
        ([1.0] * 8, QUIET, 1.0, True),
        ([1.0] * 8, QUIET + 0.01, 1.0, False),
        ([1.0] * 8, 1.0, 30.0, False),
        ([1.0] * 8, 1.0, 30.1, True),
        ([1.0] * 100, 1.0, 29.0, False),
    ],
)
def test_pairs_are_enough_when_they_agree_or_time_is_spent(
    ratios: list[float], foreign: float, elapsed_s: float, enough: bool
) -> None:
    assert ratio_is_known([(ratio, foreign) for ratio in ratios], PLAN, elapsed_s) is enough


def test_without_a_time_a_launch_goes_on_for_a_minute() -> None:
    plan = Interleaved(precision=1e-9)
    pairs = [(1.0, 0.0), (2.0, 0.0)]
    assert (ratio_is_known(pairs, plan, 60.0), ratio_is_known(pairs, plan, 60.1)) == (False, True)


def test_a_pair_that_a_rank_did_not_finish_does_not_count(tmp_path: Path) -> None:
    for rank in range(2):
        made = [{"pair": pair, "mode": "all", "seconds": [2.0]} for pair in range(3 - rank)]
        made += [{"pair": pair, "mode": "alone", "seconds": [1.0]} for pair in range(3) if rank == 0]
        text = "".join(json.dumps(each) + "\n" for each in made)
        (tmp_path / FILE.format(rank=rank)).write_text(text + '{"pair": 9')
    assert read_pairs(tmp_path, 2).seconds == ((1.0, 2.0),) * 2
    assert len(read_pairs(tmp_path, 1).seconds) == 3
    assert read_pairs(tmp_path, 3) == ((), 0.0)


@pytest.mark.parametrize(("foreign", "count"), [((QUIET, QUIET, 1.0), 2), ((QUIET, 1.0, 1.0), 3)])
def test_quiet_pairs_count_alone_when_there_are_two(tmp_path: Path, foreign: tuple[float, ...], count: int) -> None:
    made = []
    for pair, cores in enumerate(foreign):
        for mode in ("alone", "all"):
            made.append({"pair": pair, "mode": mode, "seconds": [1.0], "foreign_cores": cores})
    (tmp_path / FILE.format(rank=0)).write_text("".join(json.dumps(each) + "\n" for each in made))
    assert len(read_pairs(tmp_path, 1).seconds) == count
