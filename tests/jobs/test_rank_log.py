"""Each kind of line that a rank writes, and how ranks and parts of steps are put together."""

import json
import tracemalloc
from pathlib import Path

import pytest
from made_up_ranks import S, launch, rank_log, span, step

from scalescope.agent.recorder import clock_name
from scalescope.errors import UsageError
from scalescope.jobs.rank_log import RankLog, Step, read_rank_logs, without_restarted

MANY = 20_000


def test_every_kind_of_line_is_taken_in(tmp_path: Path) -> None:
    log = rank_log(
        tmp_path,
        {"kind": "init_begin"},
        span("init", 52, 53),
        {"kind": "rank", "rank": 3, "world_size": 4, "backend": "nccl"},
        {"kind": "import", "ns": 7},
        {"kind": "engine", "name": "ddp"},
        {"kind": "collectives", "n": 5},
        {"kind": "collectives", "n": 3},
        span("evaluation", 54, 55),
        span("evaluation", 56, 57),
        span("save", 58, 59),
        {"kind": "read_changed_file", "path": "/x"},
        {"kind": "something new"},
        {"kind": "end", "t": 99},
        pid=8,
        rank=2,
    )
    assert (log.rank, log.world_size, log.backend, log.host, log.pid) == (3, 4, "nccl", "h", 8)
    assert (log.import_ns, log.engine, log.collectives, log.ended, log.began) == (7, "ddp", 5, 99, 50 * S)
    assert log.inits == [(52 * S, 53 * S)]
    assert log.evaluations == [(54 * S, 55 * S), (56 * S, 57 * S)]
    assert log.saves == [(58 * S, 59 * S)]
    assert (log.changed_files_read, log.in_init, log.events, log.steps()) == (["/x"], False, 0, [])


def test_a_rank_that_wrote_nothing_yet_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "agent-h-1.jsonl").touch()
    log = RankLog(tmp_path / "agent-h-1.jsonl")
    assert log.poll() == 0
    assert (log.rank, log.pid, log.world_size, log.stack_signal, log.events) == (None, 0, 0, 0, 0)
    assert (log.collectives, log.in_init, log.last_sign, log.import_ns, log.ended) == (None, False, 0, 0, 0)


def test_a_rank_is_in_its_init_until_that_has_ended(tmp_path: Path) -> None:
    log = rank_log(tmp_path, {"kind": "init_begin"})
    assert log.in_init
    with open(tmp_path / "agent-h-1.jsonl", "a") as file:
        file.write(json.dumps(span("init", 52, 53)) + "\n")
    assert log.poll() == 1
    assert not log.in_init


def test_lines_are_counted_once_and_only_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "agent-h-1.jsonl"
    path.write_text(json.dumps(step(1, 2)) + "\n" + json.dumps(step(2, 3)))
    log = RankLog(path)
    assert (log.poll(), log.events) == (1, 1)
    assert (log.poll(), log.events) == (0, 1)
    with open(path, "a") as file:
        file.write("\n{broken\n")
    assert (log.poll(), log.events) == (2, 2)
    assert [each.start for each in log.steps()] == [S, 2 * S]


def test_a_newer_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent-h-1.jsonl"
    path.write_text(json.dumps({"kind": "hello", "version": 2}) + "\n")
    with pytest.raises(UsageError, match=r"agent-h-1\.jsonl was written by a newer scalescope: upgrade this one"):
        RankLog(path).poll()


def test_steps_without_a_close_look_follow_each_other(tmp_path: Path) -> None:
    log = rank_log(tmp_path, {"kind": "steps", "s": 10, "i": 0, "ends": [12, 15]}, {"kind": "steps", "s": 15, "i": 0})
    assert log.steps() == [Step(10, 12, 0, 0, 0, 0), Step(12, 15, 0, 0, 0, 0)]
    assert (log.events, log.last_sign) == (2, 50 * S)


def test_a_close_look_keeps_everything(tmp_path: Path) -> None:
    line = {"kind": "step", "s": 1, "f": 2, "o": 3, "t": 4, "w": 5, "n": 6, "i": 0}
    assert rank_log(tmp_path, line).steps() == [Step(1, 4, 2, 3, 5, 6)]
    assert Step(S, 3 * S, 0, 0, 0, 0).seconds == pytest.approx(2)
    assert Step(S, 3 * S, 0, 0, 0, 0, 5 * S).seconds == pytest.approx(5)


def test_the_last_sign_of_life_is_the_latest_of_all(tmp_path: Path) -> None:
    assert rank_log(tmp_path).last_sign == 50 * S
    assert rank_log(tmp_path, step(60, 61)).last_sign == 61 * S
    assert rank_log(tmp_path, step(60, 61), span("save", 61, 63), span("evaluation", 61, 62)).last_sign == 63 * S
    assert (
        rank_log(tmp_path, step(60, 61), span("evaluation", 61, 64), {"kind": "end", "t": 65 * S}).last_sign == 65 * S
    )
    assert rank_log(tmp_path, span("init", 51, 58)).last_sign == 58 * S


def test_parts_of_two_optimizers_make_one_step(tmp_path: Path) -> None:
    first = {"kind": "step", "s": 10, "f": 11, "o": 12, "t": 20, "w": 3, "n": 4, "i": 0}
    second = {"kind": "step", "s": 20, "f": 21, "o": 22, "t": 30, "w": 5, "n": 8, "i": 1}
    marks = [["begin", 0, 0], ["end", 1, 7], ["end", 2, 18]]
    assert rank_log(tmp_path, first, second).steps() == [Step(10, 30, 11, 22, 8, 8)]
    assert rank_log(tmp_path, first, second, {"kind": "gpu", "marks": marks}).steps() == [
        Step(10, 30, 11, 22, 8, 8, 18)
    ]
    half = rank_log(tmp_path, {**first, "f": 0}, second, {"kind": "gpu", "marks": marks[:2]})
    assert half.steps() == [Step(10, 30, 21, 22, 8, 8, None)]
    apart = rank_log(tmp_path, first, {**second, "i": 0})
    assert len(apart.steps()) == 2


def test_marks_of_a_gpu_that_end_nothing_new_only_move_the_time(tmp_path: Path) -> None:
    steps = [step(60 + at, 61 + at) for at in range(3)]
    marks = [["end", 1, 10], ["end", 1, 15], ["end", 3, 25]]
    log = rank_log(tmp_path, *steps, {"kind": "gpu", "marks": marks})
    assert [each.gpu_ns for each in log.steps()] == [10, 5, 5]


def test_a_clock_is_the_launchs_own_on_the_same_boot_only(tmp_path: Path) -> None:
    ending = launch(700, 800, wall_s=990)
    assert rank_log(tmp_path).at(60 * S, ending) == 60 * S
    for clock in ("another", ""):
        assert rank_log(tmp_path, clock=clock).at(60 * S, ending) == (700 + 1000 - 990 + 60 - 50) * S
    assert clock_name()


def test_ranks_are_read_in_order_and_those_without_a_number_come_last(tmp_path: Path) -> None:
    rank_log(tmp_path, pid=30, rank=0)
    rank_log(tmp_path, pid=20, rank=2)
    rank_log(tmp_path, pid=10, rank=1)
    (tmp_path / "agent-h-5.jsonl").touch()
    (tmp_path / "other.jsonl").write_text("{}")
    assert [log.rank for log in read_rank_logs(tmp_path)] == [0, 1, 2, None]


def test_a_rank_that_ended_just_when_another_began_is_kept(tmp_path: Path) -> None:
    first = rank_log(tmp_path, {"kind": "end", "t": 65 * S}, pid=1)
    second = rank_log(tmp_path, pid=2, began_s=65)
    assert without_restarted([second, first]) == [first, second]
    later = rank_log(tmp_path, pid=2, began_s=66)
    assert without_restarted([later, first]) == [later]


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
