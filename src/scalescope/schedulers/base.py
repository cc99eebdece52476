"""The contract of schedulers, and what their scripts share."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from scalescope.errors import UsageError
from scalescope.records.submission import BatchJob, JobState
from scalescope.text import is_one_line, plain


class Refusal(NamedTuple):
    """Reason for which a scheduler did not take a job."""

    words: str  # Its own, shortened
    setting: str  # To change


class Scheduler(Protocol):
    """A batch system: a BatchJob in, a job script and commands out, nothing started; what commands print is read."""

    name: str
    title: str
    program: str  # Submits, and must be on the PATH
    job_variable: str  # Set inside a job
    node_launcher: str  # Starts a torchrun on every node of a job
    rank_launcher: str  # Starts every rank of a job
    ends_within_s: float  # From the end of a job's command; a node that does not answer holds that up for minutes

    def script(self, job: BatchJob) -> str:
        """Describe the job so that a person can read, edit and submit it."""

    def submit(self, script: str, after: str = "") -> tuple[str, ...]:
        """The command that submits a script; it does not start before job `after` has ended."""

    def job_id(self, printed: str) -> str:
        """The id of the job in what that command printed; empty where it tells none."""

    def refusal(self, errors: str) -> Refusal:
        """Why it did not."""

    def questions(self, job_id: str) -> tuple[tuple[str, ...], ...]:
        """Commands that tell where a job stands; one after another until one knows."""

    def state(self, printed: str) -> JobState | None:
        """State of the job, read from the output of such a command; None: it does not know the job."""

    def is_silent(self, errors: str) -> bool:
        """True for errors of a command that got no answer, and False where the answer was no."""

    def last_words(self, output: str) -> JobState | None:
        """The end of a forgotten job, as the scheduler wrote it into the job's output; None: it wrote none."""

    def cancel(self, job_ids: Sequence[str]) -> tuple[str, ...]:
        """The command that cancels jobs."""


def commands_of(job: BatchJob) -> list[str]:
    """The shell lines of a job, the same under every scheduler: set-up, variables, the command."""
    lines = [f"module load {shlex.join(job.site.modules)}"] if job.site.modules else []
    lines += job.site.setup
    if job.variables:
        lines.append(f". {shlex.quote(job.variables)}  # values of --env")
    return [*lines, f"exec {shlex.join(job.command)}"]


def shell_of(job: BatchJob) -> str:
    """The first line of a script; `module` is a function of login shells."""
    return "#!/bin/bash -l" if job.site.modules else "#!/bin/bash"


def check_path(path: str) -> None:
    """UsageError for a folder that no scheduler's option can name."""
    if not is_one_line(path) or '"' in path or "\\" in path:
        raise UsageError(
            f"a job script cannot name the folder '{plain(path, 100)}': rename it without quotes, backslashes and "
            "control characters"
        )
