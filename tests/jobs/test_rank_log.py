"""A rank's record while it grows."""

import json
import tracemalloc
from pathlib import Path

from scalescope.jobs.rank_log import RankLog

MANY = 20_000


def line(kind: str, **fields: object) -> str:
    return json.dumps({"kind": kind, **fields}) + "\n"


def test_steps_that_are_only_counted_take_no_memory(tmp_path: Path) -> None:
    """A search looks on while a training of any length runs; every step used to take 270 bytes."""
    path = tmp_path / "agent-h-1.jsonl"
    path.write_text("".join(line("step", s=at, f=1, o=2, t=at + 1, w=0, n=4, i=0) for at in range(MANY)))
    counts, keeps = RankLog(path, keeps_steps=False), RankLog(path)
    held = {}
    for log in (counts, keeps):
        tracemalloc.start()
        log.poll()
        held[log] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    assert counts.events == keeps.events == MANY
    assert counts.last_sign == keeps.last_sign == MANY
    assert held[keeps] > 100 * MANY
    assert held[counts] < MANY


def test_lines_that_grow_with_a_training_are_not_kept_either(tmp_path: Path) -> None:
    path = tmp_path / "agent-h-1.jsonl"
    log = RankLog(path, keeps_steps=False)
    for at in range(0, 30, 3):
        with path.open("a") as file:
            file.write(line("steps", s=at, i=0, ends=[at + 1, at + 2]) + line("evaluation", s=at + 2, t=at + 3))
            file.write(line("save", s=1, t=2) + line("gpu", marks=[["end", 1, 5]]))
        log.poll()
    assert (log.events, log.last_sign) == (20, 30)
    assert (log.steps(), log.evaluations, len(log.saves)) == ([], [(29, 30)], 1)
    assert log._gpu_marks == []
