"""Phases on a made-up clock: exact times, no processes."""

import json
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from made_up_ranks import S, launch, rank_log, span, step

from scalescope.errors import WorkFailed
from scalescope.jobs.collect import collect, split_into_phases
from scalescope.jobs.rank_log import without_restarted
from scalescope.records.run import PHASES, Point


def test_every_second_is_in_one_phase(tmp_path: Path) -> None:
    log = rank_log(
        tmp_path,
        {"kind": "import", "ns": 3 * S},
        span("init", 54, 56),
        step(60, 64),
        step(64, 65),
        step(65, 66),
        span("evaluation", 66.5, 68.5),
        step(70, 71),
        span("evaluation", 71, 72),
        span("save", 72, 72.5),
        {"kind": "end", "t": 73 * S},
    )
    phases = split_into_phases(log, log.steps(), 1, launch(48, 74))
    assert phases == pytest.approx(
        {
            "launch": 2,
            "import": 3,
            "init": 2,
            "build": 5,
            "warmup": 4,
            "steady": 3,
            "evaluation": 3,
            "pause": 2.5,
            "teardown": 1.5,
        }
    )
    assert tuple(phases) == PHASES
    assert sum(phases.values()) == pytest.approx(74 - 48)


@pytest.mark.parametrize("wall_s", [1000, 4600, -2600])
def test_a_clock_that_is_set_during_a_launch_changes_no_phase(tmp_path: Path, wall_s: int) -> None:
    lines = ({"kind": "import", "ns": S}, step(60, 62), step(62, 63), {"kind": "end", "t": 64 * S})
    log = rank_log(tmp_path, *lines, wall_s=wall_s)
    phases = split_into_phases(log, log.steps(), 1, launch(45, 66, wall_s=995))
    assert (phases["launch"], phases["build"], phases["teardown"]) == pytest.approx((5, 9, 3))
    assert sum(phases.values()) == pytest.approx(66 - 45)


def test_the_clock_of_another_host_is_placed_by_the_time_since_the_epoch(tmp_path: Path) -> None:
    log = rank_log(tmp_path, step(60, 62), clock="another boot")
    phases = split_into_phases(log, log.steps(), 0, launch(700, 715, wall_s=998))
    assert (phases["launch"], phases["build"], phases["steady"], phases["teardown"]) == pytest.approx((2, 10, 2, 1))


def test_a_rank_that_was_restarted_counts_once(tmp_path: Path) -> None:
    first = rank_log(tmp_path, step(60, 62), pid=1)
    second = rank_log(tmp_path, step(70, 72), pid=2, began_s=65)
    other = rank_log(tmp_path, step(60, 62), pid=3, rank=1)
    assert without_restarted([first, second, other]) == [second, other]
    beside = rank_log(tmp_path, step(60, 66), pid=4)  # two at once with one rank: that is no restart
    assert without_restarted([beside, second, other]) == [second, beside, other]


def test_imports_counted_twice_never_make_a_phase_negative(tmp_path: Path) -> None:
    log = rank_log(tmp_path, {"kind": "import", "ns": 30 * S}, span("init", 51, 53), step(55, 56))
    phases = split_into_phases(log, log.steps(), 0, launch(50, 60))
    assert phases["import"] == pytest.approx(3)
    assert phases["build"] == 0


def test_optimizers_in_turn_make_one_step_and_an_interruption_parts_them(tmp_path: Path) -> None:
    log = rank_log(tmp_path, step(60, 61, 0), step(61, 62, 1), step(62, 63, 0), step(63, 64, 1), step(70, 71, 0))
    assert [(each.start / S, each.end / S) for each in log.steps()] == [(60, 62), (62, 64), (70, 71)]


def test_gpu_times_replace_the_clock_where_they_are_known(tmp_path: Path) -> None:
    marks = [["begin", 0, 0], ["end", 1, 3 * S], ["end", 3, 7 * S], ["begin", 3, 9 * S], ["end", 4, 10 * S]]
    steps = [step(second, second + 1) for second in range(60, 65)]
    log = rank_log(tmp_path, *steps, {"kind": "gpu", "marks": marks})
    assert [each.seconds for each in log.steps()] == pytest.approx([3, 2, 2, 1, 1])


def test_a_step_is_the_mean_over_ranks_and_the_steps_add_up_to_the_elapsed_time(tmp_path: Path) -> None:
    logs = []
    for rank in range(2):
        ends = [60, *(60 + 4 * count + (count + rank) % 2 for count in range(1, 40)), 220]  # late in turn
        steps = [step(start, end) for start, end in pairwise(ends)]
        group = {"kind": "rank", "rank": rank, "world_size": 2, "backend": "gloo"}
        logs.append(rank_log(tmp_path, group, *steps, pid=rank + 1, rank=rank))
    point = Point(engine="ddp", np=2, batch=8, threads_per_rank=1)
    run = collect(point, logs, launch(50, 230), "launch", own=False)
    assert run.step_s == pytest.approx(4)
    assert (run.steps - run.warmup_steps) * run.mean_step_s == pytest.approx(run.phases["steady"])


@pytest.mark.parametrize(
    ("worlds", "np", "how", "why"),
    [
        ((0, 0), 2, {}, "2 processes ran and none joined a process group: each trained alone"),
        ((4, 4), 2, {}, "2 processes were launched but the script saw a world of 4: name the engine"),
        ((2,), 2, {}, "2 ranks were launched and 1 made steps: see the ranks' output"),
        ((2, 2), 4, {"own": True}, "--np 4 was asked for and the command started 2 ranks: put {np} where"),
        ((), 1, {}, "no rank made an optimizer step: check that the script trains with torch.optim"),
    ],
)
def test_ranks_that_do_not_train_together_are_refused(
    tmp_path: Path, worlds: tuple[int, ...], np: int, how: dict, why: str
) -> None:
    steps = [step(second, second + 1) for second in range(60, 68)]
    logs = [rank_log(tmp_path, pid=9, rank=9)]
    for rank, world in enumerate(worlds):
        group = [{"kind": "rank", "rank": rank, "world_size": world, "backend": "gloo"}] if world else []
        logs.append(rank_log(tmp_path, *group, *steps, pid=rank + 1, rank=rank))
    point = Point(engine="ddp", np=np, batch=8, threads_per_rank=1)
    with pytest.raises(WorkFailed, match=re.escape(why)):
        collect(point, logs, launch(50, 70), "launch", **{"own": False, **how})


def test_processes_that_outlived_their_launcher_are_warned_of(tmp_path: Path) -> None:
    log = rank_log(tmp_path, *(step(second, second + 1) for second in range(60, 68)))
    point = Point(engine="none", np=1, batch=8, threads_per_rank=1)
    assert collect(point, [log], launch(50, 70), "launch", own=False).warnings == ()
    left = msgspec.structs.replace(launch(50, 70), leftovers=2)
    (warning,) = collect(point, [log], left, "launch", own=False).warnings
    assert warning.startswith("2 processes still ran after the launcher's end")


def test_a_torn_line_is_left_out_and_the_rest_kept(tmp_path: Path) -> None:
    log = rank_log(tmp_path, step(60, 61))
    with open(tmp_path / "agent-h-1.jsonl", "ab") as file:
        file.write(b'{"kind":"step","s":6\n' + json.dumps(step(61, 62)).encode() + b'\n{"kind":"st')
    log.poll()
    assert log.events == 2
