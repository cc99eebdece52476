"""How long rank 0 lets ranks step together, and what the other ranks do meanwhile."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from estimation.test_profiler import TASK, Ranks, directed
from scalescope.engines import ddp_live
from scalescope.estimation.profile_blocks import Block, file_of
from scalescope.estimation.profile_ranks import main


def test_a_rank_that_is_not_the_first_follows_and_leaves_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks: Any = Ranks(2, 8, 5, 0)
    left: list[bool] = []
    for name, played in {
        "start": lambda device, knobs: (1, 2),
        "agree": ranks.agree,
        "begin_allreduce": ranks.begin_allreduce,
        "wait": ranks.wait,
        "finish": lambda: left.append(True),
    }.items():
        monkeypatch.setattr(ddp_live, name, played)
    path = tmp_path / "task.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(TASK, together=(2,))))
    assert main([str(path)]) == 0
    assert ranks.log == [0, 0, 0, "scalescope.wait", 0]
    (line,) = (tmp_path / file_of(1)).read_bytes().splitlines()
    block = msgspec.json.decode(line, type=Block)
    assert (block.batch, block.copies, len(block.cpu_s)) == (8, 2, 5)
    assert left == [True]


def together(seconds: float, repeats: int = 3, **ranks: Any) -> list[Any]:
    made = directed(Ranks(**ranks), batches=(4,), seconds=seconds, repeats=repeats, together=(2,))
    return [each[:2] for each in made]


def test_ranks_step_together_once_however_late_it_is_and_again_while_there_is_time() -> None:
    alone, both = (4, 1), (4, 2)
    assert together(1000.0) == [alone, *[both, alone] * 3]
    assert together(0.5) == [alone, both, alone], "the first round is made in any case"
    assert together(3.0) == [alone, *[both, alone] * 2], "all of its time is not more than its time"
    assert together(2.9) == [alone, both, alone]


def test_a_disturbed_profile_may_take_six_tenths_more() -> None:
    alone, both = (4, 1), (4, 2)
    assert together(2.6, 9, foreign=(0.9,)) == [alone, both, alone, alone, both, alone]
    assert together(2.4, 9, foreign=(0.9,)) == [alone, both, alone, alone], "4 s are more than 1.6 times 2.4 s"
    assert together(2.4, 9) == [alone, both, alone]
