"""Executes what schedulers describe: submits, asks and cancels. The one impure file of schedulers."""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scalescope.errors import UsageError, WorkFailed
from scalescope.records.submission import JobState
from scalescope.schedulers.base import Scheduler
from scalescope.text import plain

_ANSWER_WITHIN_S = 60.0  # A busy controller takes its time


def check_scheduler(scheduler: Scheduler) -> None:
    """UsageError where nothing can be submitted."""
    if not shutil.which(scheduler.program):
        raise UsageError(
            f"{scheduler.program} is not on the PATH: submit from a login node of {scheduler.title}, or see the script "
            "with --dry-run"
        )


def submit(scheduler: Scheduler, script: Path, after: str = "") -> str:
    """Submit a script; the id of its job.

    Raises:
        UsageError: The scheduler refused it: its own words, and the setting to change.
        WorkFailed: It does not answer.
    """
    done = _run(scheduler.submit(str(script), after))
    job_id = scheduler.job_id(done.stdout) if done.returncode == 0 else ""
    if not job_id:
        if scheduler.is_silent(done.stderr):
            raise WorkFailed(f"{scheduler.title} does not answer ({plain(done.stderr, 160)}): try again later")
        words, setting = scheduler.refusal(done.stderr or done.stdout)
        raise UsageError(f"{scheduler.title} refused the job ({words}): change {setting}")
    return job_id


def state_of(scheduler: Scheduler, job_id: str) -> JobState | None:
    """State of a job; None: the scheduler does not know it any more.

    Raises:
        WorkFailed: The scheduler does not answer.
    """
    problems = []
    for words in scheduler.questions(job_id):
        done = _run(words)
        if done.returncode == 0 and (found := scheduler.state(done.stdout)):
            return found
        problems.append(done.stderr)
    if scheduler.is_silent(problems[0]):  # the others only keep accounts
        raise WorkFailed(f"{scheduler.title} does not answer ({plain(problems[0], 160)})")
    return None


def cancel(scheduler: Scheduler, job_ids: Sequence[str]) -> None:
    """Cancel jobs; one that has ended stays as it is.

    Raises:
        WorkFailed: The scheduler does not answer, so they stay.
    """
    if job_ids:
        words = scheduler.cancel(job_ids)
        done = _run(words)
        if done.returncode and scheduler.is_silent(done.stderr):
            raise WorkFailed(
                f"{scheduler.title} does not answer ({plain(done.stderr, 160)}), so jobs are left in the queue: cancel "
                f"them later with {shlex.join(words)}"
            )


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """In a session of its own, so that a Ctrl-C of the terminal does not reach it."""
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_WITHIN_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]} timed out after {_ANSWER_WITHIN_S:.0f} s")
    except OSError as problem:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]}: {problem.strerror}")
