"""The jobs of a verb, one after another: queued, waited for until its end, and what it leaves.

A job runs the verb in the result folder, which its nodes share; the process that waits reads there.
"""

import contextlib
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scalescope.errors import ScalescopeError, StoppedWaiting, Terminated, UsageError, WorkFailed
from scalescope.jobs.output import last_lines
from scalescope.launchers.runner import uninterrupted, uninterrupted_until_done
from scalescope.progress import Progress
from scalescope.records.store import in_folder, load, save, writing
from scalescope.records.submission import SUBMISSION, JobState, Submission, SubmittedJob
from scalescope.schedulers import find_scheduler
from scalescope.schedulers.queue import cancel, state_of, submit
from scalescope.text import plain, plural
from scalescope.units import digits, format_seconds
from scalescope.verbs.verb import Verb, folder_command, from_here

_LONGEST_POLL_S = 20.0  # Schedulers are shared: a job that waits long is asked for seldom
_QUIET_LINES = 12  # Of what a job printed, when it failed without a word of ours


class Script(NamedTuple):
    """The script of a job."""

    name: str  # Of its file
    nodes: int
    text: str


class Jobs:
    """Jobs that were submitted for a result folder; what is known of them is kept there."""

    def __init__(self, verb: Verb, folder: Path, submission: Submission) -> None:
        self.verb, self.folder, self.submission = verb, folder.absolute(), submission
        self._scheduler = find_scheduler(submission.scheduler)

    @property
    def last(self) -> SubmittedJob:
        """The job that was submitted last: each does what was missing before it."""
        return self.submission.jobs[-1]

    @property
    def is_open(self) -> bool:
        """True when the last job was not seen to end."""
        return self.last.ended is None

    @property
    def is_done(self) -> bool:
        """True when the last job did all that was missing."""
        return self.last.ended is not None and self.last.ended.state == "done"

    @property
    def resume(self) -> str:
        """The command that waits, collects, or submits what is missing."""
        return folder_command(f"{self.verb.name} --resume", self.folder)

    def check_unchanged(self) -> None:
        """UsageError where another process has submitted for the folder meanwhile."""
        if load(self.folder / SUBMISSION, Submission) != self.submission:
            raise UsageError(f"another scalescope has just submitted for {self.folder}: see what became of it first")

    def enqueue(self, script: Script) -> None:
        """Write a script and submit it."""
        path, before, job_id = self.folder / script.name, self.submission, ""
        try:
            with writing(path):
                path.write_text(script.text)
            with uninterrupted_until_done():
                job_id = submit(self._scheduler, path)
            job = SubmittedJob(id=job_id, script=script.name, nodes=script.nodes)
            self._keep(jobs=(*before.jobs, job))
        except BaseException:
            with uninterrupted():
                cancel(self._scheduler, [job_id] if job_id else [])
                if not before.jobs:
                    (self.folder / SUBMISSION).unlink(missing_ok=True)
            raise

    def see_end(self) -> None:
        """Ask once how the open job stands."""
        state = self._state()
        if state.state in ("done", "failed"):
            self._end(state)

    def collect(self, progress: Progress, *, wait: bool) -> Any:
        """Wait until the job has ended, and return the record that it left; with `wait` off the submission."""
        if not wait:
            return in_folder(self.submission, self.folder)
        try:
            self._end(self._wait(progress))
        except Terminated:
            raise StoppedWaiting(f"left in the queue: job {self.last.id}; collect with: {self.resume}") from None
        except KeyboardInterrupt:
            self._cancel()
            raise StoppedWaiting(
                f"cancelled job {self.last.id}; what was finished is kept; resume with: {self.resume}"
            ) from None
        return self.left()

    def left(self) -> Any:
        """Return the record that the jobs left; raise the error of the last one where it failed."""
        if not self.is_done:
            raise self._failure()
        record = self._record()
        if record is None:
            raise WorkFailed(f"job {self.last.id} ended and left no result: see {from_here(self._output)}")
        return record

    # Waiting

    def _wait(self, progress: Progress) -> JobState:
        """Show the job while it waits and runs; its state when it has ended.

        Raises:
            UsageError: It would never start; it is cancelled.
        """
        job = self.last
        progress.note(self._greeting(job))
        began, told_nodes, ending_since = time.monotonic(), False, 0.0
        shown = len(self.verb.finished(self.folder))  # Lines of an earlier job are known
        while True:
            waited_s = time.monotonic() - began
            state = None
            try:
                state = self._state()
            except WorkFailed as silent:
                progress.stage(f"job {job.id}: {silent}; trying again")
            if state and state.ending:
                ending_since = ending_since or waited_s
                if waited_s - ending_since > self._scheduler.ends_within_s:
                    state = self._end_in_output() or msgspec.structs.replace(state, state="done")
            if state and state.state == "waiting":
                if state.never:
                    self._cancel()
                    raise UsageError(
                        f"{self._scheduler.title} would never start job {job.id} ({state.reason}), so it was "
                        f"cancelled: change {state.never}"
                    )
                begins = f", expected at {state.begins}" if state.begins else ""
                progress.stage(f"job {job.id} waits ({state.reason or state.word}{begins})")
            elif state:
                if state.nodes and not told_nodes:
                    told_nodes = True
                    progress.note(f"Job {job.id} runs on {state.nodes}.")
                finished = self.verb.finished(self.folder)
                for line in finished[shown:]:
                    progress.note(line)
                shown = len(finished)
                if state.state != "running":
                    return state
                said = last_lines(self._output, 1)
                progress.stage(f"job {job.id}: {plain(said[-1], 200) if said else 'starting'}")
            time.sleep(min(_LONGEST_POLL_S, 0.5 + waited_s / 20))

    def _greeting(self, job: SubmittedJob) -> str:
        time_s, script = self.submission.site.time_s, from_here(self.folder / job.script)
        limit = (
            f" for at most {format_seconds(time_s)}: {digits(job.nodes * time_s / 3600)} node-hours" if time_s else ""
        )
        return f"Job {job.id}, {plural(job.nodes, 'node')}{limit}; script: {script}. Ctrl-C cancels it."

    def _cancel(self) -> None:
        """Cancel the job, whatever else is pressed."""
        with uninterrupted():
            cancel(self._scheduler, [self.last.id])
            self._end(JobState(state="failed", word="CANCELLED", cancelled=True))

    # What is known of jobs

    def _keep(self, *, jobs: tuple[SubmittedJob, ...]) -> None:
        self.submission = msgspec.structs.replace(self.submission, jobs=jobs)
        save(self.submission, self.folder / SUBMISSION)

    def _end(self, state: JobState) -> None:
        *before, job = self.submission.jobs
        self._keep(jobs=(*before, msgspec.structs.replace(job, ended=state)))

    @property
    def _output(self) -> Path:
        """File of what the last job printed."""
        return self.folder / f"job-{self.last.id}.out"

    def _record(self) -> Any:
        """Record that the verb left in the folder; None: there is nothing yet."""
        assert self.verb.record
        with contextlib.suppress(UsageError):
            return self.verb.record(self.folder)
        return None

    def _state(self) -> JobState:
        """State of the last job; one that is forgotten ended long ago, and its files tell how."""
        state = state_of(self._scheduler, self.last.id) or self._end_in_output()
        if state is None:
            failed = _problem_in(self._output) or self._record() is None
            return JobState(state="failed" if failed else "done", word="not known any more")
        return state

    def _end_in_output(self) -> JobState | None:
        return self._scheduler.last_words("\n".join(last_lines(self._output, 200)))

    def _failure(self) -> ScalescopeError:
        """One line that says how the last job ended, what is kept and what to do."""
        state, output = self.last.ended, self._output
        assert state
        kept = ""
        if self.verb.resume and (self.folder / "plan.json").exists():
            kept = f"; what was finished is kept; resume with: {self.resume}"
        name = f"job {self.last.id}"
        where = f" on {state.nodes}" if state.nodes else ""
        if state.out_of_time:
            return WorkFailed(f"{name} reached its time limit{kept or ': raise time in the --site file'}")
        if state.cancelled:
            return WorkFailed(f"{name} was cancelled{kept or ': type the command again to submit it again'}")
        if state.own and (problem := _problem_in(output)):
            kind = UsageError if state.exit_code == UsageError.exit_code else WorkFailed
            first, *more = problem.splitlines()
            return kind("\n".join([f"{first} ({name}{where})", *more]))
        if not output.exists():
            return WorkFailed(
                f"{name} ended at once{where} ({state.word}) and wrote nothing into {self.folder}: choose a folder "
                "that the nodes share with -o"
            )
        said = "\n".join(last_lines(output, _QUIET_LINES))
        see = f": see {from_here(output)}"
        return WorkFailed(f"{name} ended with {state.word}{where}{kept or see}\n{said}".rstrip())


def _problem_in(output: Path) -> str:
    """The error with which our own process in the job ended; empty where it said none."""
    lines = last_lines(output, 200)
    starts = [at for at, line in enumerate(lines) if line.startswith("scalescope: ")]
    return "\n".join(lines[starts[-1] :]).removeprefix("scalescope: ") if starts else ""
