"""What every scheduler promises: a job in, a readable script and commands out, nothing started."""

import shlex
import subprocess
from pathlib import Path

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.launchers import LAUNCHERS
from scalescope.records.site import Site
from scalescope.records.submission import BatchJob
from scalescope.schedulers import SCHEDULERS, Scheduler, find_scheduler

EVERY_SCHEDULER = pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
SITE = Site(
    account="project1",
    partition="gpu",
    time_s=5400.0,
    gpus="a100:4",
    modules=("cuda/12.4", "a b; touch oops"),
    setup=("export COLOUR='blue sky'",),
    extra=("--exclusive",),
)


def job(**changes) -> BatchJob:
    plain = BatchJob(
        name="scalescope-measure",
        command=(
            "python",
            "-m",
            "scalescope",
            "measure",
            "--",
            "python",
            "x.py",
            "$(touch oops)",
            "it's;`id`\n#SBATCH -N9",
        ),
        cwd="/home/of mine",
        folder="/results/a b",
        nodes=4,
        per_node=2,
        site=SITE,
    )
    return msgspec.structs.replace(plain, **changes)


@EVERY_SCHEDULER
def test_the_same_job_gives_the_same_script(scheduler: Scheduler) -> None:
    assert scheduler.script(job()) == scheduler.script(job())


@EVERY_SCHEDULER
def test_what_is_asked_for_is_in_the_script_and_what_is_not_is_not(scheduler: Scheduler) -> None:
    script = scheduler.script(job())
    for word in ("project1", "gpu", "a100:4", "01:30:00", "cuda/12.4", "COLOUR='blue sky'", "--exclusive"):
        assert word in script
    assert ". '/results/a b/env.sh'" in scheduler.script(job(variables="/results/a b/env.sh"))
    bare = scheduler.script(job(site=Site()))
    for word in ("--env", "account", "partition", "gpu", "time", "module", "cpus"):
        assert word not in bare.lower()


@pytest.mark.launches
@EVERY_SCHEDULER
def test_a_command_of_any_words_arrives_word_by_word_and_adds_no_directive(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    """A shell that runs the script's own lines gets the words, and starts nothing else."""
    lines = scheduler.script(job(site=Site())).splitlines()
    command = "\n".join(lines).partition("\n\n")[2].replace("exec python", "printf '%s\\0'", 1)
    printed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert printed.split("\0")[:-1] == list(job().command[1:])
    assert list(tmp_path.iterdir()) == []
    first_command = next(at for at, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[:first_command] if "N9" in line]


@EVERY_SCHEDULER
def test_modules_are_quoted(scheduler: Scheduler) -> None:
    assert f"module load cuda/12.4 {shlex.quote('a b; touch oops')}\n" in scheduler.script(job())


@EVERY_SCHEDULER
@pytest.mark.parametrize("folder", ["/a\nb", '/a"b', "/a\\b", "/a\x1bb"])
def test_a_folder_that_no_directive_can_name_is_refused(scheduler: Scheduler, folder: str) -> None:
    for changes in ({"folder": folder}, {"cwd": folder}):
        with pytest.raises(UsageError, match="a job script cannot name the folder"):
            scheduler.script(job(**changes))


@EVERY_SCHEDULER
def test_ranks_of_a_job_are_started_by_launchers_of_its_scheduler(scheduler: Scheduler) -> None:
    for name in (scheduler.node_launcher, scheduler.rank_launcher):
        assert LAUNCHERS[name].scheduler == scheduler.name


@EVERY_SCHEDULER
def test_words_that_are_no_answer_tell_neither_an_id_nor_a_state(scheduler: Scheduler) -> None:
    for text in ("", "error", "\n\n", "slurm_load_jobs error: Invalid job id specified", "1|2"):
        assert scheduler.job_id(text) == ""
        assert scheduler.state(text) is None
        assert scheduler.last_words(text) is None
        assert not scheduler.is_silent(text)


def test_an_unknown_scheduler_shows_the_nearest() -> None:
    with pytest.raises(UsageError, match="no scheduler 'slrum' \\(did you mean slurm"):
        find_scheduler("slrum")


SHOWN = """JobId=17 JobName=scalescope-measure
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}
   SubmitTime=2026-11-19T14:00:00 EligibleTime=2026-11-19T14:00:00
   StartTime={start} EndTime=Unknown Deadline=N/A
   ReqNodeList=n9 ExcNodeList=(null)
   NodeList={nodes}
   Command=/x/JobState=RUNNING
"""


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (("PENDING", "Resources", "0:0", "2026-11-19T15:00:00", "(null)"), ("waiting", "Resources", "", 0)),
        (("PENDING", "Priority", "0:0", "Unknown", "(null)"), ("waiting", "Priority", "", 0)),
        (("RUNNING", "None", "0:0", "2026-11-19T15:00:00", "n[1-4]"), ("running", "", "n[1-4]", 0)),
        (("COMPLETED", "None", "0:0", "2026-11-19T15:00:00", "n[1-4]"), ("done", "", "n[1-4]", 0)),
        (("FAILED", "NonZeroExitCode", "2:0", "2026-11-19T15:00:00", "n1"), ("failed", "NonZeroExitCode", "n1", 2)),
        (("FAILED", "RaisedSignal:53", "0:53", "2026-11-19T15:00:00", "n1"), ("failed", "RaisedSignal:53", "n1", 53)),
        (("COMPLETING", "NonZeroExitCode", "1:0", "2026-11-19T15:00:00", "n2"), ("failed", "NonZeroExitCode", "n2", 1)),
        (("COMPLETING", "None", "0:0", "2026-11-19T15:00:00", "n2"), ("running", "", "n2", 0)),
        (("NODE_FAIL", "NodeDown", "1:0", "2026-11-19T15:00:00", "n1"), ("failed", "NodeDown", "n1", 1)),
    ],
)
def test_a_state_is_read_from_scontrol_and_from_sacct(told, expected) -> None:
    slurm = find_scheduler("slurm")
    word, reason, code, start, nodes = told
    found = slurm.state(SHOWN.format(state=word, reason=reason, code=code, start=start, nodes=nodes))
    assert found is not None
    assert (found.state, found.reason, found.nodes, found.exit_code) == expected
    assert found.begins == ("2026-11-19 15:00:00" if start[0] == "2" and word == "PENDING" else "")
    again = slurm.state(f"{word}|{reason}|{code}|{expected[2]}\n")
    assert again is not None
    assert (again.state, again.reason, again.nodes, again.exit_code) == expected


def test_a_job_that_can_never_start_names_what_to_change() -> None:
    told = {"code": "0:0", "start": "Unknown", "nodes": "(null)"}
    found = find_scheduler("slurm").state(SHOWN.format(state="PENDING", reason="PartitionTimeLimit", **told))
    assert found is not None
    assert found.never.startswith("time or partition")
    waits = find_scheduler("slurm").state(SHOWN.format(state="PENDING", reason="Resources", **told))
    assert waits is not None
    assert waits.never == ""


def test_sacct_names_who_cancelled_a_job() -> None:
    found = find_scheduler("slurm").state("CANCELLED by 1000|None|0:15|n1\n")
    assert found is not None
    assert (found.state, found.cancelled, found.out_of_time) == ("failed", True, False)
    late = find_scheduler("slurm").state("TIMEOUT|TimeLimit|0:1|n1\n")
    assert late is not None
    assert (late.cancelled, late.out_of_time) == (False, True)


@pytest.mark.parametrize(
    ("why", "word", "cancelled", "out_of_time"),
    [
        ("", "CANCELLED", True, False),
        (" DUE TO TIME LIMIT", "TIMEOUT", False, True),
        (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "NODE_FAIL", False, False),
        (" DUE TO PREEMPTION", "PREEMPTION", False, False),
    ],
)
def test_a_forgotten_job_is_read_from_slurms_words_in_its_output(
    why: str, word: str, cancelled: bool, out_of_time: bool
) -> None:
    said = f"np1: 3 ms a step\nslurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-11-19T14:00:00{why} ***"
    found = find_scheduler("slurm").last_words(said)
    assert found is not None
    assert (found.state, found.word, found.nodes) == ("failed", word, "n1")
    assert (found.cancelled, found.out_of_time) == (cancelled, out_of_time)


@pytest.mark.parametrize(
    ("errors", "words", "setting"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", "Invalid partition", "sinfo"),
        (
            "sbatch: error: x\nsbatch: error: Batch job submission failed: Invalid account or account/partition "
            "combination specified\n",
            "Invalid account",
            "account in the --site",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds a limit)",
            "time limit",
            "time in the --site",
        ),
        ("sbatch: error: Batch job submission failed: Node count specification invalid", "Node count", "--nodes"),
        (
            "sbatch: unrecognized option '--excl'\nTry \"sbatch --help\" for more information",
            "unrecognized",
            "extra in",
        ),
        ("", "no reason", "--dry-run"),
    ],
)
def test_a_refusal_is_in_slurms_own_words_with_the_setting_to_change(errors: str, words: str, setting: str) -> None:
    found = find_scheduler("slurm").refusal(errors)
    assert words in found.words
    assert setting in found.setting
    assert len(found.words) <= 160


@pytest.mark.parametrize(
    ("seconds", "clock"), [(60.0, "00:01:00"), (61.0, "00:02:00"), (5400.0, "01:30:00"), (129600.0, "1-12:00:00")]
)
def test_a_time_limit_is_written_in_whole_minutes(seconds: float, clock: str) -> None:
    assert f"#SBATCH --time={clock}\n" in find_scheduler("slurm").script(job(site=Site(time_s=seconds)))


def test_a_job_starts_once_in_its_folder_and_its_output_lies_with_the_results() -> None:
    script = find_scheduler("slurm").script(job(folder="/results/100% a"))
    for option in ("no-requeue", 'chdir="/home/of mine"', 'output="/results/100%% a/job-%j.out"'):
        assert f"#SBATCH --{option}\n" in script


def test_a_job_may_wait_for_another_one() -> None:
    slurm = find_scheduler("slurm")
    assert slurm.submit("job.sh", "17") == ("sbatch", "--parsable", "--dependency=afterany:17", "job.sh")
    assert slurm.submit("job.sh") == ("sbatch", "--parsable", "job.sh")
    assert (slurm.job_id("17\n"), slurm.job_id("sbatch: lua: hello\n18;cluster2\n")) == ("17", "18")
    assert slurm.cancel(["17", "18"]) == ("scancel", "17", "18")
