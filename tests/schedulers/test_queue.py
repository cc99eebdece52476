"""Submitting, asking and cancelling: what the commands of a scheduler print is read, and their failures are told."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from scalescope.errors import UsageError, WorkFailed
from scalescope.schedulers.queue import cancel, check_scheduler, state_of, submit
from scalescope.schedulers.slurm import Slurm

pytestmark = pytest.mark.launches

FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
SILENT = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


class Scripted(Slurm):
    """Slurm, whose commands are these lines of a shell."""

    program = "sh"

    def __init__(self, submits: str = "", asked: Sequence[str] = (), cancels: str = "") -> None:
        self._submits, self._asked, self._cancels = submits, asked, cancels

    def submit(self, script: str, after: str = "") -> tuple[str, ...]:
        return "sh", "-c", self._submits, script, after

    def questions(self, job_id: str) -> tuple[tuple[str, ...], ...]:
        return tuple(("sh", "-c", line, job_id) for line in self._asked)

    def cancel(self, job_ids: Sequence[str]) -> tuple[str, ...]:
        return "sh", "-c", self._cancels, *job_ids


def test_a_submitted_script_has_the_id_that_is_printed(tmp_path: Path) -> None:
    printed = 'echo "sbatch: hello from the site" >&2; echo "17;cluster"; test "$0" = job.sh && test "$1" = 16'
    assert submit(Scripted(printed), Path("job.sh"), after="16") == "17"


def test_a_refusal_is_an_error_of_the_request() -> None:
    printed = "echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2; exit 1"
    with pytest.raises(
        UsageError, match=r"Slurm refused the job \(Invalid partition name specified\): change partition"
    ):
        submit(Scripted(printed), Path("job.sh"))
    with pytest.raises(UsageError, match="Slurm refused the job"):
        submit(Scripted("echo no number"), Path("job.sh"))


def test_a_scheduler_that_is_down_refuses_nothing() -> None:
    with pytest.raises(WorkFailed, match=r"Slurm does not answer \(slurm_load_jobs error: Unable.* try again later"):
        submit(Scripted(SILENT), Path("job.sh"))


def test_the_first_command_that_knows_the_job_tells_its_state() -> None:
    running = "echo JobState=RUNNING Reason=None ExitCode=0:0 NodeList=n1"
    assert (found := state_of(Scripted(asked=[running, "exit 9"]), "17")) is not None
    assert (found.state, found.nodes) == ("running", "n1")
    ended = "echo 'TIMEOUT|None|0:1|n1'"
    assert (found := state_of(Scripted(asked=[FORGOTTEN, ended]), "17")) is not None
    assert found.out_of_time
    assert (
        state_of(Scripted(asked=[FORGOTTEN, "echo 'Slurm accounting storage is disabled' >&2; exit 1"]), "17") is None
    )


def test_a_scheduler_that_does_not_answer_is_no_scheduler_that_forgot() -> None:
    with pytest.raises(WorkFailed, match=r"Slurm does not answer \(slurm_load_jobs error: Unable to contact"):
        state_of(Scripted(asked=[SILENT, FORGOTTEN]), "17")
    assert state_of(Scripted(asked=[FORGOTTEN, SILENT]), "17") is None  # only its accounting is away


def test_jobs_are_cancelled_together(tmp_path: Path) -> None:
    cancel(Scripted(cancels=f'echo "$0 $1" > {tmp_path}/cancelled'), ["17", "18"])
    assert (tmp_path / "cancelled").read_text() == "17 18\n"
    cancel(Scripted(cancels="echo 'scancel: error: Kill job error on job id 17: Invalid job id' >&2; exit 1"), ["17"])
    with pytest.raises(WorkFailed, match=r"Slurm does not answer .* cancel them later with sh -c .* 17$"):
        cancel(Scripted(cancels=SILENT), ["17"])
    cancel(Scripted(cancels=f"touch {tmp_path}/none"), [])
    assert not (tmp_path / "none").exists()


def test_nothing_is_submitted_where_the_program_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_scheduler(Scripted())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="sh is not on the PATH: submit from a login node of Slurm"):
        check_scheduler(Scripted())
