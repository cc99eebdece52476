"""One launch from its settings to a Run or a Failure; what starts processes is replaced by what they would leave."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_up_launches import SCRIPT, TORCHRUN, Does, Runner, launched, says, settled, trains
from made_up_ranks import rank_log

from scalescope.errors import UsageError
from scalescope.jobs import launch as launching
from scalescope.jobs.launch import launch_folder, run_job
from scalescope.jobs.own_ranks import StartsItsOwnRanks
from scalescope.jobs.plan import points
from scalescope.progress import Progress
from scalescope.records.job import Host, Job
from scalescope.records.run import Failure, Point, Run


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    made = Runner()
    monkeypatch.setattr(launching, "run", made.run)
    return made


def test_a_launch_has_a_folder_of_its_round_and_a_trace_one_of_its_point(tmp_path: Path) -> None:
    settings = settled(tmp_path)
    point = Point(engine="ddp", np=2, batch=8, threads_per_rank=1)
    assert launch_folder(settings, 3, point) == tmp_path / "launches" / "03-ddp-np2-b8"
    traced = msgspec.structs.replace(settings, trace="5-9")
    arm = msgspec.structs.replace(point, arm="traced")
    assert launch_folder(traced, 3, arm) == tmp_path / "traces" / "ddp-np2-b8"


def test_a_good_launch_is_a_run_of_its_round(tmp_path: Path, runner: Runner) -> None:
    runner.does = [trains]
    run = launched(settled(tmp_path, timeout_s=77.0, env={"TOKEN": "hunter2"}))
    assert isinstance(run, Run)
    assert (run.round, run.folder, run.steps, run.as_it_is) == (3, "launches/03-ddp-np2-b32", 20, "")
    assert run.load is not None
    (job,) = runner.jobs
    assert (runner.timeouts, job.port > 0, job.launch.startswith("03-ddp-np2-b32-")) == ([77.0], True, True)
    task = json.loads(Path(job.folder, "task.json").read_text())
    assert (task["steps"], task["batch"]) == (30, 32)
    command = Path(job.folder, "command.txt").read_text()
    assert "TOKEN=***" in command
    assert "hunter2" not in command
    assert command.endswith("\n")


def test_ranks_elsewhere_have_no_load_of_this_machine(tmp_path: Path, runner: Runner) -> None:
    runner.does = [trains]
    run = launched(settled(tmp_path, hosts=(Host("a", 2),)))
    assert isinstance(run, Run)
    assert run.load is None


def test_a_script_has_no_task(tmp_path: Path, runner: Runner) -> None:
    runner.does = [trains]
    assert isinstance(launched(settled(tmp_path, command=SCRIPT)), Run)
    assert not Path(runner.jobs[0].folder, "task.json").exists()


def test_a_rank_that_died_is_a_failure_with_its_last_words(tmp_path: Path, runner: Runner) -> None:
    runner.does = [says(TORCHRUN.format(3))]
    failure = launched(settled(tmp_path))
    assert isinstance(failure, Failure)
    assert (failure.round, failure.folder) == (3, "launches/03-ddp-np2-b32")
    assert failure.problem == "rank 0 ended with exit code 3 before its first step"
    assert "exitcode" in failure.details


def test_a_crash_after_the_training_is_a_warning_and_its_steps_count(tmp_path: Path, runner: Runner) -> None:
    runner.does = [says(TORCHRUN.format(-11), trained=True)]
    run = launched(settled(tmp_path))
    assert isinstance(run, Run)
    assert run.warnings[0].startswith("rank 0 crashed while it was closing down")


TAKEN = says("RuntimeError: address already in use (EADDRINUSE)\n", "rank0.out")


@pytest.mark.parametrize(("port", "attempts"), [(None, 3), (4000, 1)])
def test_a_port_that_was_taken_meanwhile_is_chosen_anew(
    tmp_path: Path, runner: Runner, port: int | None, attempts: int
) -> None:
    runner.does = [TAKEN]
    assert isinstance(launched(settled(tmp_path, port=port)), Failure)
    assert len(runner.jobs) == attempts
    assert len({job.launch for job in runner.jobs}) == attempts
    assert port is None or runner.jobs[0].port == port


def test_another_port_may_be_free(tmp_path: Path, runner: Runner) -> None:
    runner.does = [TAKEN, trains]
    assert isinstance(launched(settled(tmp_path)), Run)
    assert len(runner.jobs) == 2
    assert not Path(runner.jobs[0].folder, "rank0.out").exists()


def test_other_trouble_is_not_tried_again(tmp_path: Path, runner: Runner) -> None:
    runner.does = [says("ValueError\n", "rank0.out")]
    launched(settled(tmp_path))
    assert len(runner.jobs) == 1


def test_a_full_disk_is_named(tmp_path: Path, runner: Runner) -> None:
    runner.does = [says("OSError: No space left on device\n", "rank0.out")]
    failure = launched(settled(tmp_path))
    assert isinstance(failure, Failure)
    assert failure.problem.startswith("the disk is full (rank 0 failed before its first step): free some space")


def starts_ranks(job: Job, _: object) -> str:
    raise StartsItsOwnRanks("the script starts its ranks itself")


def test_a_script_that_starts_its_ranks_is_started_as_it_is(tmp_path: Path, runner: Runner) -> None:
    runner.does = [starts_ranks, trains]
    run = launched(settled(tmp_path, command=SCRIPT, np=(2,)))
    assert isinstance(run, Run)
    assert run.as_it_is == "the script starts its ranks itself, so it was started as it is, without torchrun"
    assert run.warnings[0] == run.as_it_is
    assert runner.first_words == [sys.executable] * 2
    assert runner.jobs[1].command == SCRIPT


def test_as_it_is_the_number_of_ranks_must_fit(tmp_path: Path, runner: Runner) -> None:
    runner.does = [starts_ranks, lambda job, watch: trains(msgspec.structs.replace(job, np=3), watch)]
    failure = launched(settled(tmp_path, command=SCRIPT, np=(2,)))
    assert isinstance(failure, Failure)
    assert failure.problem.startswith("--np 2 was asked for and the command started 3 ranks: put {np}")
    assert failure.problem.endswith(
        "(the script starts its ranks itself, so it was started as it is, without torchrun)"
    )


def test_one_process_that_fails_under_a_launcher_is_tried_without_it(tmp_path: Path, runner: Runner) -> None:
    runner.does = [says(TORCHRUN.format(1)), trains]
    run = launched(settled(tmp_path, command=SCRIPT, np=(1,)))
    assert isinstance(run, Run)
    assert run.as_it_is.startswith("under torchrun it failed before its first step, so it was started again as plain `")


def test_one_that_fails_either_way_says_so(tmp_path: Path, runner: Runner) -> None:
    runner.does = [says(TORCHRUN.format(1))]
    failure = launched(settled(tmp_path, command=SCRIPT, np=(1,)))
    assert isinstance(failure, Failure)
    assert failure.problem == "rank 0 ended with exit code 1 before its first step, under torchrun and without it alike"


def many_ranks(job: Job, watch: object) -> str:
    for rank in range(job.np):
        rank_log(Path(job.folder), pid=rank + 1, rank=rank)
        rank_log(Path(job.folder), pid=rank + 101, rank=rank, began_s=70)
    return "exit code 1"


@pytest.mark.parametrize(
    ("fields", "does", "tries"),
    [
        ({"command": SCRIPT, "np": (2,)}, many_ranks, 2),
        ({"command": SCRIPT, "np": (2,), "launcher_args": ("--max-restarts=3",)}, many_ranks, 1),
        ({"np": (2,)}, many_ranks, 1),
        ({"command": SCRIPT, "np": (2,)}, says("x\n"), 1),
        ({"command": SCRIPT, "np": (1,), "hosts": (Host("a", 1),)}, says("x\n"), 1),
        ({"command": SCRIPT, "np": (1,)}, says("x\n", trained=True), 1),
        ({"command": SCRIPT, "np": (1,), "launcher": "own"}, says("x\n"), 1),
        ({"command": SCRIPT, "np": (1,)}, trains, 1),
    ],
)
def test_only_a_script_with_too_many_ranks_or_one_process_is_tried_again(
    tmp_path: Path, runner: Runner, fields: dict[str, Any], does: Does, tries: int
) -> None:
    runner.does = [does]
    settings = settled(tmp_path, **fields)
    run_job(settings, points(settings)[-1], tmp_path / "launch", 30, Progress())
    assert len(runner.jobs) == tries


def prints_steps(job: Job, watch: Any) -> str:
    for number in range(12):
        with open(Path(job.folder, "rank0.out"), "a") as file:
            file.write(f"step {number}\n")
        watch.tick()
    return ""


def test_without_an_optimizer_the_lines_that_match_are_the_steps(tmp_path: Path, runner: Runner) -> None:
    runner.does = [prints_steps]
    command = (sys.executable, "x.py", "--tee=3")
    run = launched(settled(tmp_path, command=command, np=(1,), pattern="step", launcher="torchrun"))
    assert isinstance(run, Run)
    assert (run.source, run.steps) == ("pattern", 11)
    assert any("torchrun --tee passes lines on every 0.1 s" in warning for warning in run.warnings)
    assert not any("lines from other hosts" in warning for warning in run.warnings)


def test_lines_from_other_hosts_may_be_late_unless_they_tell_their_time(tmp_path: Path, runner: Runner) -> None:
    runner.does = [prints_steps]
    hosts = (Host("a", 1),)
    run = launched(settled(tmp_path, command=SCRIPT, np=(1,), hosts=hosts, pattern="step"))
    assert isinstance(run, Run)
    assert sum(warning.startswith("lines from other hosts arrive") for warning in run.warnings) == 1
    timed = r"step (?P<step_s>\d+)"
    run = launched(settled(tmp_path / "2", command=SCRIPT, np=(1,), hosts=hosts, pattern=timed))
    assert isinstance(run, Run)
    assert not any("lines from" in warning for warning in run.warnings)


def test_with_an_optimizer_lines_do_not_count(tmp_path: Path, runner: Runner) -> None:
    runner.does = [trains]
    run = launched(settled(tmp_path, command=SCRIPT, np=(1,), pattern="step"))
    assert isinstance(run, Run)
    assert (run.source, run.steps) == ("optimizer", 20)


def test_a_launch_without_steps_shows_the_last_output(tmp_path: Path, runner: Runner) -> None:
    runner.does = [says("hello\n", "rank0.out", problem="")]
    failure = launched(settled(tmp_path))
    assert isinstance(failure, Failure)
    assert failure.problem.startswith("no rank made an optimizer step")
    assert failure.details == "hello"
    runner.does = [says("from the launcher\n", problem="")]
    failure = launched(settled(tmp_path))
    assert isinstance(failure, Failure)
    assert failure.details == "from the launcher"


def test_a_script_that_removed_its_records_before_they_were_read_is_told_so(tmp_path: Path, runner: Runner) -> None:
    def empties(job: Job, _: object) -> str:
        shutil.rmtree(job.folder)
        return ""

    runner.does = [empties]
    failure = launched(settled(tmp_path))
    assert isinstance(failure, Failure)
    assert failure.problem.startswith(f"the script removed files of its launch from {tmp_path}")


@pytest.mark.parametrize(("line", "hint"), [(("mpirun", "x"), True), ((*SCRIPT, "{np}"), False)])
def test_ranks_elsewhere_that_wrote_nothing_may_lack_variables(
    tmp_path: Path, runner: Runner, line: tuple[str, ...], hint: bool
) -> None:
    runner.does = [says("", problem="")]
    failure = launched(settled(tmp_path, command=line, np=(2,), launcher="own"))
    assert isinstance(failure, Failure)
    assert ("on other hosts ranks need PYTHONPATH" in failure.problem) is hint


def test_too_few_steps_are_the_users_to_mend(tmp_path: Path, runner: Runner) -> None:
    runner.does = [lambda job, watch: trains(job, watch, steps=2)]
    with pytest.raises(UsageError, match="only 2 steps"):
        launched(settled(tmp_path))
