"""Jobs that wait their turn: what is asked of a scheduler, where a job stands, and what was submitted for a folder."""

from typing import Any, ClassVar, Literal

import msgspec

from scalescope.records.site import Site
from scalescope.records.store import Record

SUBMISSION = "submission.json"  # The record, in the result folder
WAITING = ("patience_s", "no_wait")  # Options of whoever waits, not of the job


class BatchJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job: what is asked for it, and the command that runs once in it, on its first node."""

    name: str
    command: tuple[str, ...]
    cwd: str
    folder: str  # Absolute; gets what the job prints, so its nodes have to see it
    variables: str = ""  # File that sets variables for the command; empty: none
    nodes: int
    per_node: int  # Ranks
    cores_per_rank: int | None = None  # None: left to the scheduler
    site: Site


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a job."""

    state: Literal["waiting", "running", "done", "failed"]
    word: str  # The scheduler's own, such as TIMEOUT
    reason: str = ""  # It waits
    never: str = ""  # The setting to change before it could ever start; empty: it may
    begins: str = ""  # As expected; empty: not known
    nodes: str = ""
    exit_code: int = 0
    ending: bool = False  # Its command has ended, and not all nodes have been given back
    own: bool = True  # Its command ended by itself, so what that printed says why
    out_of_time: bool = False
    cancelled: bool = False


class SubmittedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a submission."""

    id: str
    script: str  # In the folder
    what: str = ""  # Its part of the work, such as np 8; empty: all of it
    nodes: int
    ended: JobState | None = None  # None: not seen yet


class Submission(Record, frozen=True, kw_only=True, tag="submission"):
    """Jobs that were submitted for a result folder, in order."""

    current_version: ClassVar[int] = 1

    verb: str
    scheduler: str
    site: Site
    per_node: int
    cores_per_rank: int | None = None
    cwd: str
    asked: dict[str, Any]  # The request, without the values of its variables
    jobs: tuple[SubmittedJob, ...] = ()

    @property
    def open_jobs(self) -> tuple[SubmittedJob, ...]:
        """Those that were not seen to end."""
        return tuple(job for job in self.jobs if job.ended is None)
