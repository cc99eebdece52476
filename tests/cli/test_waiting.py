"""Waiting for a job: what is said by how it waits and ends, with a scheduler whose commands are lines of a shell."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from command_line import CommandLine
from scalescope.schedulers import SCHEDULERS
from scalescope.schedulers.slurm import Slurm

pytestmark = pytest.mark.launches

JOB = ("measure", "mlp", "--np", "1", "--per-node", "1", "--submit", "slurm", "-o", "out")
KEPT = Path(__file__).parents[1] / "data" / "kept" / "study" / "measure"
SILENT = "echo 'Unable to contact slurm controller' >&2; exit 1"


def shows(word: str, reason: str = "None", code: str = "0:0") -> str:
    return f"echo JobState={word} Reason={reason} ExitCode={code} NodeList=n1"


class Scripted(Slurm):
    """Slurm whose jobs 17, 18, ... run `job`, a line of a shell, when they are submitted; answers one after another."""

    program = "sh"
    ends_within_s = 0.1

    def __init__(self, folder: Path, job: str, answers: Sequence[str]) -> None:
        self._folder, self._job, self._answers, self._last = folder, job, list(answers), 16

    def submit(self, script: str, after: str = "") -> tuple[str, ...]:
        self._last += 1
        return "sh", "-c", f'cd "$(dirname {script})"; {self._job or "true"}; echo {self._last}'

    def questions(self, job_id: str) -> tuple[tuple[str, ...], ...]:
        return (("sh", "-c", self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]),)

    def cancel(self, job_ids: Sequence[str]) -> tuple[str, ...]:
        return "touch", *(str(self._folder / f"cancelled-{job_id}") for job_id in job_ids)


@pytest.fixture
def slurm_that(scalescope: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces Slurm: `slurm_that("echo hi > job-17.out", shows("FAILED"))`."""

    def replace(job: str, *answers: str) -> None:
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        monkeypatch.setitem(SCHEDULERS, "slurm", Scripted(scalescope.folder, job, answers))

    return replace


def test_without_waiting_the_job_and_how_to_collect_are_told(scalescope: CommandLine, slurm_that) -> None:
    slurm_that("", shows("PENDING", "Priority"))
    done = scalescope.in_this_process(*JOB, "--no-wait", "--json")
    assert json.loads(done.stdout)["jobs"] == [{"id": "17", "what": "", "nodes": 1, "script": "job.sh", "ended": None}]
    assert "Submitted to slurm: job 17, 1 node.\nNext: scalescope measure --resume out\n" in done.stderr
    again = scalescope.in_this_process("measure", "--resume", "out", "--no-wait")
    assert "job 17" in again.stdout
    refused = scalescope.in_this_process("measure", "--resume", "out", "--launches", "9", code=2).stderr
    assert "job 17 may still work in" in refused
    second = scalescope.in_this_process(*JOB, code=2).stderr
    assert "already holds results: resume them with scalescope measure --resume out" in second


@pytest.mark.parametrize(
    ("code", "said"),
    [(2, "--np 9: there is room for 2"), (1, "np1: no launch succeeded\ndetails")],
)
def test_the_error_of_the_job_is_the_error_here(scalescope: CommandLine, slurm_that, code: int, said: str) -> None:
    slurm_that(f"printf '6 launches\\nscalescope: {said}\\n' > job-17.out", shows("FAILED", code=f"{code}:0"))
    told = scalescope.in_this_process(*JOB, code=code).stderr
    first, *details = said.splitlines()
    assert "\n".join([f"scalescope: {first} (job 17 on n1)", *details]) in told


@pytest.mark.parametrize(
    ("job", "answer", "said"),
    [
        (
            "echo no such module > job-17.out",
            shows("FAILED", code="1:0"),
            r"ended with FAILED on n1: see out/job-17.out\nno such",
        ),
        (
            "echo 10 launches > job-17.out",
            shows("OUT_OF_MEMORY"),
            r"ended with OUT_OF_MEMORY on n1: see .*\n10 launches",
        ),
        (
            "",
            shows("FAILED", code="0:53"),
            "ended at once on n1 .FAILED. and wrote nothing into .*: choose a folder that the nodes",
        ),
        (
            "touch plan.json job-17.out",
            shows("NODE_FAIL"),
            "ended with NODE_FAIL on n1; what was finished is kept; resume with: ",
        ),
        (
            "touch plan.json job-17.out",
            shows("TIMEOUT"),
            "reached its time limit; what was finished is kept; resume with: ",
        ),
        ("touch job-17.out", shows("TIMEOUT"), "reached its time limit: raise time in the --site file"),
        ("touch job-17.out", shows("CANCELLED"), "was cancelled: type the command again"),
        ("touch job-17.out", shows("COMPLETED"), "ended and left no result: see out/job-17.out"),
        ("touch job-17.out", "echo Invalid job id >&2; exit 1", "ended with not known any more"),
        (
            f"cp -r {KEPT}/. . && echo '*** JOB 17 ON n1 CANCELLED AT 2026-11-19T14:00:00 DUE TO TIME LIMIT ***' "
            "> job-17.out",
            "echo Invalid job id >&2; exit 1",
            "reached its time limit; what was finished is kept; resume with: ",
        ),
    ],
)
def test_the_end_of_a_job_says_what_to_do(
    scalescope: CommandLine, slurm_that, job: str, answer: str, said: str
) -> None:
    slurm_that(job, shows("PENDING"), answer)
    assert re.search(f"scalescope: job 17 {said}", scalescope.in_this_process(*JOB, code=1).stderr)


def test_a_scheduler_that_is_silent_for_a_while_is_asked_again(scalescope: CommandLine, slurm_that) -> None:
    slurm_that("echo gone > job-17.out", SILENT, SILENT, shows("FAILED", code="1:0"))
    assert "ended with FAILED" in scalescope.in_this_process(*JOB, "--verbose", code=1).stderr


def test_a_job_that_waits_too_long_or_for_ever_is_cancelled(scalescope: CommandLine, slurm_that) -> None:
    slurm_that("", shows("PENDING", "Resources"))
    told = scalescope.in_this_process(*JOB, "--patience", "1s", code=1).stderr
    assert re.search(
        r"waited longer than --patience .*Resources.* scalescope measure --resume out submits it again", told
    )
    (scalescope.folder / "cancelled-17").unlink()
    slurm_that("", shows("PENDING", "PartitionNodeLimit"))
    never = scalescope.in_this_process(*JOB, code=2).stderr  # in the same folder, where nothing has begun
    assert "would never start job 17 (PartitionNodeLimit), so it was cancelled: change --nodes" in never
    assert (scalescope.folder / "cancelled-17").exists()


def test_a_job_whose_nodes_are_not_given_back_is_over_when_its_command_is(scalescope: CommandLine, slurm_that) -> None:
    slurm_that(f"cp -r {KEPT}/. . && touch job-17.out", shows("COMPLETING"))
    assert "Records: out" in scalescope.in_this_process(*JOB, "--formats", "html").stdout
    said = "*** JOB 17 ON n1 CANCELLED AT 2026-11-19T14:00:00 DUE TO TIME LIMIT ***"
    slurm_that(f"touch plan.json && echo '{said}' > job-17.out", shows("COMPLETING"))
    told = scalescope.in_this_process(*JOB[:-1], "late", code=1).stderr
    assert "job 17 reached its time limit; what was finished is kept" in told


def test_jobs_that_cannot_be_cancelled_are_not_called_cancelled(
    scalescope: CommandLine, slurm_that, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_that("", shows("PENDING", "Resources"))
    monkeypatch.setattr(Scripted, "cancel", lambda self, job_ids: ("sh", "-c", SILENT, *job_ids))
    told = scalescope.in_this_process(*JOB, "--patience", "1s", code=1).stderr
    assert "so jobs are left in the queue: cancel them later with " in told
    assert "was cancelled" not in told


def test_what_one_job_of_a_curve_left_undone_a_later_one_has_done(scalescope: CommandLine, slurm_that) -> None:
    """A job for every point: each resumes the measurement, and so makes launches that the one before it missed."""
    slurm_that(f"cp -r {KEPT}/. . && touch job-17.out", shows("TIMEOUT"), shows("COMPLETED"))
    each = ("measure", "mlp", "--np", "1,2", "--per-node", "1", "--per-point", *JOB[6:], "--formats", "html")
    assert "Records: out" in scalescope.in_this_process(*each).stdout
    slurm_that("touch plan.json job-19.out", shows("TIMEOUT"), shows("NODE_FAIL"))
    told = scalescope.in_this_process(*each[:-3], "other", code=1).stderr
    assert "job 17 (np 1) reached its time limit" in told, "the first that failed"


def test_what_was_said_once_is_submitted_again(scalescope: CommandLine, slurm_that) -> None:
    slurm_that("touch job-17.out", shows("CANCELLED"))
    scalescope.in_this_process(*JOB, "--no-wait")
    assert "was cancelled" in scalescope.in_this_process("measure", "--resume", "out", code=1).stderr
    again = scalescope.in_this_process("measure", "--resume", "out", "--no-wait", "--json")
    assert [job["ended"] for job in json.loads(again.stdout)["jobs"]] == ["CANCELLED", None]


def test_in_an_allocation_of_something_else_jobs_are_still_waited_for_and_shown(
    scalescope: CommandLine, slurm_that, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's, for example; a job of the folder resumes, as does an allocation where something is missing."""
    moved = """sed -i 's#"cwd": "[^"]*"#"cwd": "/nowhere"#' plan.json"""
    slurm_that(f"cp -r {KEPT}/. . && touch job-17.out && {moved}", shows("RUNNING"), shows("COMPLETED"))
    scalescope.in_this_process(*JOB, "--no-wait")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    for _ in range(2):  # the job is open, and then it is done
        told = scalescope.in_this_process("measure", "--resume", "out", "--json")
        assert told.stdout.startswith('{"kind": "measurement"')
    for job, more in (("17", ()), ("4711", ("--launches", "9"))):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        resumed = scalescope.in_this_process("measure", "--resume", "out", *more, code=2).stderr
        assert "/nowhere, where the measurement was started, does not exist" in resumed


def test_a_folder_of_no_job_is_not_collected(scalescope: CommandLine) -> None:
    (scalescope.folder / "out").mkdir()
    told = scalescope.in_this_process("probe", "--resume", "out", code=2).stderr
    assert "out holds no submitted probe: type its command again" in told
    told = scalescope.in_this_process("measure", "--resume", "out", "--no-wait", code=2).stderr
    assert "was not made by a submitted job: leave --no-wait and --patience out" in told


def test_what_a_job_left_is_shown_and_more_points_get_the_nodes_that_they_need(
    scalescope: CommandLine, slurm_that
) -> None:
    slurm_that(f"cp -r {KEPT}/. . && touch job-17.out", shows("COMPLETED"))
    done = scalescope.in_this_process(*JOB, "--formats", "html")
    assert "Records: out" in done.stdout
    assert scalescope.in_this_process("measure", "--resume", "out", "--json").stdout.startswith(
        '{"kind": "measurement"'
    )
    told = scalescope.in_this_process("measure", "--resume", "out", "--np", "3,8", "--no-wait", "--json")
    assert [(job["script"], job["nodes"]) for job in json.loads(told.stdout)["jobs"]] == [
        ("job.sh", 1),
        ("job-2.sh", 8),
    ]
    script = (scalescope.folder / "out" / "job-2.sh").read_text()
    assert "#SBATCH --nodes=8\n" in script
    assert f"measure --resume {scalescope.folder / 'out'} --np 3,8\n" in script
