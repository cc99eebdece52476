"""What is told while a launch runs, and what is said about one that hangs or that died."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_up_ranks import S, rank_log, span, step

from scalescope.errors import WorkFailed
from scalescope.jobs.rank_log import RankLog
from scalescope.jobs.watch import LaunchWatch
from scalescope.launchers import find_launcher
from scalescope.launchers.runner import LAUNCHER_OUTPUT
from scalescope.records.job import Job, Knobs
from told import Told

IN_COLLECTIVE = '  File "/x/torch/distributed/c10d.py", line 9 in all_reduce\n  File "train.py", line 3 in step\n'
BUSY = '  File "train.py", line 7 in load\n'
TORCHRUN = "  rank      : {} (local_rank: {})\n  exitcode  : {} (pid: 7)\n"
LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:4242\n"


def watch_on(folder: Path, told: Told | None = None, np: int = 2, **options: Any) -> LaunchWatch:
    job = Job(
        command=("train.py",), np=np, knobs=Knobs(engine="ddp"), folder=str(folder), launch="x", threads_per_rank=1
    )
    return LaunchWatch(job, told or Told(), None, **options)


def test_progress_is_that_of_the_slowest_rank(tmp_path: Path) -> None:
    told = Told()
    watch = watch_on(tmp_path, told)
    assert (watch.tick(), told.steps) == (0, [])
    rank_log(tmp_path, step(60, 61), step(61, 62), pid=1)
    rank_log(tmp_path, step(60, 61), pid=2, rank=1)
    (tmp_path / "rank0.out").write_text("hello\n")
    assert watch.tick() == 3 + 2 + 6
    assert told.steps == [1]
    assert told.lines == [("rank0", "hello")]
    assert watch.tick() == 11, "nothing has happened"
    with open(tmp_path / "agent-h-2.jsonl", "a") as file:
        file.write(json.dumps(step(61, 62)) + "\n")
    assert watch.tick() == 12
    assert told.steps == [1, 1, 2]
    assert [log.rank for log in watch.logs] == [0, 1]
    assert watch.restarted == 0


def test_a_script_that_empties_the_folder_of_its_launch_is_told_so(tmp_path: Path) -> None:
    rank_log(tmp_path, step(60, 61))
    watch = watch_on(tmp_path)
    watch.tick()
    (tmp_path / "agent-h-1.jsonl").unlink()
    with pytest.raises(WorkFailed, match=r"removed files of its launch from .*, such as \{run_dir\}/out"):
        watch.tick()


def test_a_rank_that_was_started_again_is_counted(tmp_path: Path) -> None:
    rank_log(tmp_path, step(60, 61), pid=1)
    rank_log(tmp_path, step(70, 71), pid=2, began_s=65)
    watch = watch_on(tmp_path)
    watch.tick()
    assert ([log.pid for log in watch.logs], watch.restarted) == ([2], 1)


@pytest.mark.parametrize("keeps", [True, False])
def test_steps_are_kept_unless_they_are_only_counted(tmp_path: Path, keeps: bool) -> None:
    rank_log(tmp_path, step(60, 61))
    watch = watch_on(tmp_path, keeps_steps=keeps)
    watch.tick()
    assert (len(watch.logs[0].steps()), watch.logs[0].events) == (int(keeps), 1)
    default = watch_on(tmp_path)
    default.tick()
    assert len(default.logs[0].steps()) == 1


def stalled(folder: Path, *stacks: str, steps: tuple[int, ...] = (2, 2), in_init: bool = False) -> tuple[str, str]:
    """What is said about ranks whose Python stacks are these."""
    for rank, (count, stack) in enumerate(zip(steps, stacks, strict=True)):
        made = [step(60 + at, 61 + at) for at in range(count)]
        lines = [{"kind": "init_begin"}] if in_init else []
        rank_log(folder, *lines, *made, pid=rank + 1, rank=rank)
        (folder / f"stack-h-{rank + 1}.txt").write_text(f"Thread 0x1:\n  File x\n\nCurrent thread 0x2:\n{stack}")
    watch = watch_on(folder)
    watch.tick()
    return watch.stalled(61.6)


RETRY = """\
[E1119 18:38:34.384188725 socket.cpp:818] [c10d] The client socket has failed to connect to any network address of \
(10.78.0.99, 54527).
Exception raised from run at socket.cpp:820 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation)
"""


def test_an_address_that_ranks_cannot_connect_to_is_named_and_its_retries_are_no_progress(tmp_path: Path) -> None:
    watch = watch_on(tmp_path)
    for rank in (0, 1):
        rank_log(tmp_path, {"kind": "init_begin"}, pid=rank + 1, rank=rank)
    before, output = watch.tick(), tmp_path / "rank1.out"
    output.write_text(RETRY)
    assert watch.tick() == before
    problem = "ranks could not connect to 10.78.0.99:54527 for 62 s, where they meet: check that hosts reach"
    assert watch.stalled(61.6)[0].startswith(problem)
    assert "could not connect" not in watch.died(find_launcher("srun"))[0], "it had not given up"
    output.write_text(f"{RETRY}torch.distributed.DistNetworkError: The client socket has failed\n")
    assert watch.died(find_launcher("srun"))[0].startswith(problem.replace(" for 62 s", ""))
    output.write_text(f"{RETRY}connected at last, downloading data\n")
    assert watch.tick() > before
    assert "could not connect" not in watch.stalled(61.6)[0]


def test_a_rank_that_is_behind_hangs(tmp_path: Path) -> None:
    (tmp_path / "rank1.out").write_text("".join(f"line {number}\n" for number in range(9)))
    problem, details = stalled(tmp_path, IN_COLLECTIVE, BUSY, steps=(3, 1))
    assert problem == "no progress for 62 s: rank 1 hangs after 1 step"
    assert details.splitlines() == [
        "rank 1 on h (process 2) is busy or stuck, 1 steps done",
        "  last output:",
        *(f"    line {number}" for number in range(4, 9)),
        "  Python stack:",
        "    Current thread 0x2:",
        f"    {BUSY.rstrip()}",
        "rank 0 on h (process 1) waits for the others in a collective, 3 steps done",
        "  last output:",
        "  Python stack:",
        "    Current thread 0x2:",
        *(f"    {line}" for line in IN_COLLECTIVE.splitlines()),
    ]


def test_of_even_ranks_those_outside_collectives_hang(tmp_path: Path) -> None:
    problem, _ = stalled(tmp_path, IN_COLLECTIVE, BUSY, BUSY, steps=(2, 2, 2))
    assert problem == "no progress for 62 s: rank 1, 2 hangs after 2 steps"


@pytest.mark.parametrize("stack", [IN_COLLECTIVE, BUSY])
def test_ranks_that_are_all_alike_hang_together(tmp_path: Path, stack: str) -> None:
    assert stalled(tmp_path, stack, stack)[0] == "no progress for 62 s: all ranks hang after 2 steps"


def test_ranks_that_start_their_group_may_wait_for_ranks_that_nobody_started(tmp_path: Path) -> None:
    problem, _ = stalled(tmp_path, BUSY, BUSY, steps=(0, 0), in_init=True)
    assert problem.startswith("no progress for 62 s: all ranks hang while starting the process group, maybe for ranks")
    alone, _ = stalled(tmp_path / ".", BUSY, BUSY, steps=(0, 1), in_init=True)
    assert alone == "no progress for 62 s: rank 0 hangs while starting the process group"


def test_one_rank_alone_is_not_all_ranks(tmp_path: Path) -> None:
    assert stalled(tmp_path, BUSY, steps=(2,))[0] == "no progress for 62 s: rank 0 hangs after 2 steps"


def test_of_many_ranks_eight_are_shown(tmp_path: Path) -> None:
    _, details = stalled(tmp_path, *[BUSY] * 9, steps=(1,) * 9)
    assert details.count("  Python stack:") == 8
    assert "rank 8 on" not in details


def test_without_ranks_the_launchers_last_words_are_shown(tmp_path: Path) -> None:
    (tmp_path / LAUNCHER_OUTPUT).write_text("srun: waiting\n")
    problem, details = watch_on(tmp_path).stalled(30.2)
    assert problem == "nothing happened for 30 s and no rank has started"
    assert details == f"last output ({tmp_path / LAUNCHER_OUTPUT}):\n  srun: waiting"


def test_a_stack_that_does_not_come_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalescope.jobs.watch._STACK_WITHIN_S", 0.01)
    rank_log(tmp_path, step(60, 61))
    watch = watch_on(tmp_path)
    watch.tick()
    assert watch.stalled(9)[1].splitlines()[-1] == "    not available"


def test_ranks_are_asked_for_their_stacks_with_the_signal_that_they_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def answer(_: Job, host: str, pid: int, number: int) -> None:
        asked.append((host, pid, number))
        (tmp_path / f"stack-{host}-{pid}.txt").write_text(BUSY)

    monkeypatch.setattr("scalescope.jobs.watch.signal_rank", answer)
    hello = {"kind": "hello", "version": 1, "host": "far", "pid": 7, "rank": 0, "stack_signal": 10, "t": 50 * S}
    (tmp_path / "agent-far-7.jsonl").write_text(json.dumps(hello) + "\n")
    rank_log(tmp_path, step(60, 61), pid=8, rank=1)
    (tmp_path / "stack-h-8.txt").write_text(BUSY)
    watch = watch_on(tmp_path)
    watch.tick()
    watch.stalled(9)
    assert asked == [("far", 7, 10)]


def test_ranks_of_two_hosts_with_one_process_id_keep_their_stacks_apart(tmp_path: Path) -> None:
    for host, rank, stack in (("g", 1, BUSY), ("h", 0, IN_COLLECTIVE)):
        rank_log(tmp_path, step(60, 61), pid=8, rank=rank)
        log = (tmp_path / "agent-h-8.jsonl").rename(tmp_path / f"agent-{host}-8.jsonl")
        RankLog(log).stack_path.write_text(f"Current thread 1:\n{stack}")
    watch = watch_on(tmp_path)
    watch.tick()
    assert "rank 1 hangs" in watch.stalled(9)[0]


def test_the_stack_of_the_main_thread_is_shown_which_is_the_last_of_a_dump(tmp_path: Path) -> None:
    rank_log(tmp_path, step(60, 61), pid=8)
    (tmp_path / "stack-h-8.txt").write_text("Thread 1:\n  a\n\nThread 2:\n  b\n\nCurrent thread 3:\n  \x1b[1mc\n")
    watch = watch_on(tmp_path)
    watch.tick()
    assert watch.stalled(9)[1].splitlines()[-3:] == ["  Python stack:", "    Current thread 3:", "      c"]


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        (IN_COLLECTIVE, True),
        ('  File "/x/torch/autograd/graph.py", line 1 in backward\n', True),
        ('  File "/x/horovod/torch/mpi_ops.py", line 1 in poll\n', True),
        ('  File "mine.py", line 1 in wait\n', False),
        ('  File "/home/me/horovod-trials/train.py", line 1 in load\n', False),
        ('  File "/x/torch/nn/linear.py", line 1 in forward\n', False),
        (BUSY * 3 + IN_COLLECTIVE, True),
        (BUSY * 4 + IN_COLLECTIVE, False),
        ("", False),
    ],
)
def test_a_rank_waits_when_its_innermost_frames_are_in_a_collective(tmp_path: Path, frames: str, waits: bool) -> None:
    """Rank 1 is busy and has made as many steps: it alone hangs where rank 0 waits for it."""
    problem, _ = stalled(tmp_path, frames, BUSY)
    assert ("rank 1 hangs" if waits else "all ranks hang") in problem


def died(
    folder: Path, launcher: str, *, under: str = "torchrun", code: int = 0, **said: str
) -> tuple[tuple[str, str], str]:
    """What is said about a launch that failed, and whether that was after its training."""
    (folder / LAUNCHER_OUTPUT).write_text(launcher)
    for name, text in said.items():
        (folder / f"{name}.out").write_text(text)
    watch = watch_on(folder)
    watch.tick()
    launched_by = find_launcher(under)
    return watch.died(launched_by, code), watch.died_after_training(launched_by, code)


def test_a_death_is_reported_with_steps_and_last_output(tmp_path: Path) -> None:
    rank_log(tmp_path, step(60, 61), pid=1)
    rank_log(tmp_path, step(60, 61), step(61, 62), pid=2, rank=1)
    (problem, details), harmless = died(tmp_path, TORCHRUN.format(1, 1, 3), rank1="ValueError: mine\n")
    assert problem == "rank 1 ended with exit code 3 after 2 steps"
    assert details == f"last output ({tmp_path / 'rank1.out'}):\n  ValueError: mine"
    assert harmless == ""


def test_without_words_of_the_rank_the_launchers_are_shown(tmp_path: Path) -> None:
    (_, details), _ = died(tmp_path, TORCHRUN.format(1, 1, 3))
    assert details.startswith(f"last output ({tmp_path / LAUNCHER_OUTPUT}):\n")
    assert died(tmp_path, "")[0] == ("the launch failed before the first step", "")


@pytest.mark.parametrize(("code", "how"), [(128, "ended with exit code 128"), (129, "was killed by SIGHUP")])
def test_codes_above_128_are_signals(tmp_path: Path, code: int, how: str) -> None:
    assert died(tmp_path, TORCHRUN.format(0, 0, code))[0][0] == f"rank 0 {how} before its first step"


def test_files_of_no_rank_have_no_errors(tmp_path: Path) -> None:
    assert (
        died(tmp_path, "", rankings="Error: x\n", rank0="all is well\n")[0][0]
        == "the launch failed before the first step"
    )
    assert died(tmp_path, "", rank0="SomeError\n", rank1="Error\n")[0][0].startswith("rank 0 failed")
    assert died(tmp_path, "", rank0="", rank1="Error\n")[0][0].startswith("rank 1 failed")


def finished(folder: Path, *steps: int, ends: tuple[bool, ...] = (True, True)) -> None:
    for rank, (count, has_ended) in enumerate(zip(steps, ends, strict=True)):
        made = [step(60 + at, 61 + at) for at in range(count)]
        end = [{"kind": "end", "t": 99 * S}] if has_ended else [span("save", 90, 91)]
        rank_log(folder, *made, *end, pid=rank + 1, rank=rank)


CRASHED = TORCHRUN.format(1, 1, -11)
HARMLESS = "rank 1 crashed while it was closing down, after its training; its steps still count"


def test_a_crash_while_closing_down_does_no_harm(tmp_path: Path) -> None:
    finished(tmp_path, 3, 3)
    assert died(tmp_path, CRASHED)[1] == HARMLESS
    assert died(tmp_path, TORCHRUN.format(0, 0, 1) + CRASHED, rank0=LOST)[1] == HARMLESS


@pytest.mark.parametrize(
    "said",
    [
        "srun: error: node1: task 1: Segmentation fault (core dumped)\n",
        "srun: error: node1: task 0: Terminated\nsrun: error: node1: task 1: Aborted\n",
        "srun: error: node1: task 1: Exited with exit code 134\n",
    ],
)
@pytest.mark.parametrize("under", ["own", "srun"])
def test_a_crash_while_closing_down_is_told_alike_over_srun(tmp_path: Path, said: str, under: str) -> None:
    finished(tmp_path, 3, 3)
    assert died(tmp_path, said, under=under, code=139)[1] == HARMLESS
    failed = "srun: error: node1: task 1: Exited with exit code 1\n"
    assert died(tmp_path, failed, under=under, code=1)[1] == ""


def test_a_line_that_does_not_name_the_rank_that_crashed_is_told_alike(tmp_path: Path) -> None:
    finished(tmp_path, 3, 3)
    assert died(tmp_path, "", under="own", code=-11)[1] == HARMLESS.replace("rank 1", "the command")
    assert died(tmp_path, "", under="own", code=1)[1] == ""
    assert died(tmp_path, "", code=-11)[1] == "", "torchrun names every rank that died"


def test_a_line_whose_ranks_had_not_ended_failed(tmp_path: Path) -> None:
    finished(tmp_path, 3, 3, ends=(True, False))
    assert died(tmp_path, "", under="own", code=-11)[1] == ""


@pytest.mark.parametrize(
    ("steps", "ends", "launcher"),
    [
        ((3, 2), (True, True), CRASHED),
        ((0, 0), (True, True), CRASHED),
        ((3, 3), (True, False), CRASHED),
        ((3, 3), (True, True), TORCHRUN.format(1, 1, 1)),
        ((3, 3), (True, True), ""),
    ],
)
def test_any_other_end_is_a_failure(
    tmp_path: Path, steps: tuple[int, int], ends: tuple[bool, bool], launcher: str
) -> None:
    finished(tmp_path, *steps, ends=ends)
    assert died(tmp_path, launcher)[1] == ""


def test_a_rank_that_is_missing_is_a_failure(tmp_path: Path) -> None:
    finished(tmp_path, 3, ends=(True,))
    assert died(tmp_path, TORCHRUN.format(0, 0, -11))[1] == ""
