"""What a record says of a script that ran as rank 0 of N, from lines made by hand."""

from pathlib import Path
from typing import Any

import pytest
from made_up_ranks import rank_log, step

from scalescope.jobs.rank_zero_log import Role, read_process, record_of
from scalescope.records.rank_zero import RankZero

MIB = 2**20
END = {"why": "enough", "steps": 30, "memory": 800 * MIB, "build": 800 * MIB}


def record(folder: Path, **end: Any) -> RankZero:
    """30 steps of 1 s, all of them timed."""
    times = {"step_s": 1.0, "fill_s": 0.0, "forward": 0.3, "backward": 0.6, "optimizer": 0.1}
    rank_log(
        folder,
        *(step(60 + at, 61 + at) for at in range(30)),
        {"kind": "rank_zero_timed", "first": 0, "steps": 30, "cpu": 30.0, "seconds": 30.0},
        {"kind": "rank_zero_step", "finite": True, **times, "groups": [["world", 8, 1]], "messages": []},
        {"kind": "rank_zero_end", **END, **end},
    )
    (path,) = folder.iterdir()
    seen = read_process(path)
    assert seen
    return record_of(Role("train.py", 8, 8), seen, [seen])


@pytest.mark.parametrize(
    ("end", "warnings"),
    [
        ({}, ()),
        ({"build": 830 * MIB}, ()),
        ({"build": 900 * MIB}, ("before its first step it took 900 MiB, in steps 800 MiB",)),
    ],
)
def test_a_model_that_takes_more_memory_to_build_than_to_train_is_told(
    tmp_path: Path, end: dict[str, Any], warnings: tuple[str, ...]
) -> None:
    found = record(tmp_path, **end)
    assert found.memory_bytes == 800 * MIB
    assert found.warnings == warnings
