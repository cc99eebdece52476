"""Jobs of a verb: queued, waited for until they end, and what they leave.

A job runs the verb in the result folder, which its nodes share; the process that waits reads there.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scalescope.errors import ScalescopeError, StoppedWaiting, Terminated, UsageError, WorkFailed
from scalescope.jobs.output import last_lines
from scalescope.launchers.runner import uninterrupted, uninterrupted_until_done
from scalescope.progress import Progress
from scalescope.records.files import PLAN
from scalescope.records.store import in_folder, load, save, writing
from scalescope.records.submission import SUBMISSION, JobState, Submission, SubmittedJob
from scalescope.schedulers import find_scheduler
from scalescope.schedulers.queue import cancel, state_of, submit
from scalescope.text import listed, plain, plural
from scalescope.units import digits, format_seconds
from scalescope.verbs.verb import Verb, folder_command, from_here

_LONGEST_POLL_S = 20.0  # Schedulers are shared: a job that waits long is asked for seldom
_QUIET_LINES = 12  # Of what a job printed, when it failed without a word of ours


class Script(NamedTuple):
    """The script of one job."""

    name: str  # Of its file
    what: str  # Its part of the work, such as np 8; empty: all of it
    nodes: int
    text: str


class Jobs:
    """Jobs that were submitted for a result folder; what is known of them is kept there."""

    def __init__(self, verb: Verb, folder: Path, submission: Submission) -> None:
        self.verb, self.folder, self.submission = verb, folder.absolute(), submission
        self._scheduler = find_scheduler(submission.scheduler)

    @property
    def open(self) -> tuple[SubmittedJob, ...]:
        """Jobs that were not seen to end."""
        return self.submission.open_jobs

    @property
    def resume(self) -> str:
        """The command that waits, collects, or submits what is missing."""
        return folder_command(f"{self.verb.name} --resume", self.folder)

    @property
    def named(self) -> str:
        """Open jobs, for people."""
        return f"job{'s' if len(self.open) > 1 else ''} {listed([job.id for job in self.open])}"

    @property
    def is_done(self) -> bool:
        """True when the last job did all that was missing."""
        ended = self.submission.jobs[-1].ended if self.submission.jobs else None
        return ended is not None and ended.state == "done"

    def check_unchanged(self) -> None:
        """UsageError where another process has submitted for the folder meanwhile."""
        if load(self.folder / SUBMISSION, Submission) != self.submission:
            raise UsageError(f"another scalescope has just submitted for {self.folder}: see what became of it first")

    def enqueue(self, scripts: Sequence[Script]) -> None:
        """Write scripts and submit them, each to begin after the one before; all or none."""
        before, begun = self.submission, list[str]()
        try:
            for script in scripts:
                path = self.folder / script.name
                with writing(path):
                    path.write_text(script.text)
                with uninterrupted_until_done():
                    begun.append(submit(self._scheduler, path, begun[-1] if begun else ""))
                job = SubmittedJob(id=begun[-1], script=script.name, what=script.what, nodes=script.nodes)
                self._keep(jobs=(*self.submission.jobs, job))
        except BaseException:
            with uninterrupted():
                cancel(self._scheduler, begun)
                if not before.jobs:
                    (self.folder / SUBMISSION).unlink(missing_ok=True)
            raise

    def see_ends(self) -> None:
        """Ask once how the open jobs stand."""
        for job in self.open:
            state = self._state(job)
            if state.state in ("done", "failed"):
                self._end(job, state)

    def collect(self, progress: Progress, patience_s: float | None, *, wait: bool) -> Any:
        """Wait until all jobs have ended, and return the record that they left; with `wait` off the submission."""
        if not wait:
            return in_folder(self.submission, self.folder)
        try:
            for job in self.open:
                self._end(job, self._wait_for(job, progress, patience_s))
        except Terminated:
            raise StoppedWaiting(f"left in the queue: {self.named}; collect with: {self.resume}") from None
        except KeyboardInterrupt:
            named = self.named
            self._give_up()
            raise StoppedWaiting(f"cancelled {named}; what was finished is kept; resume with: {self.resume}") from None
        return self.left()

    def left(self) -> Any:
        """Return the record that the jobs left; raise the error of the first whose work no later one has done."""
        if failed := self._failed():
            raise self._failure(failed)
        record = self._record()
        if record is None:
            last = self.submission.jobs[-1]
            raise WorkFailed(f"job {last.id} ended and left no result: see {from_here(self._output(last))}")
        return record

    # Waiting

    def _wait_for(self, job: SubmittedJob, progress: Progress, patience_s: float | None) -> JobState:
        """Show a job while it waits and runs; its state when it has ended.

        Raises:
            WorkFailed: It waited longer than it may; it is cancelled.
            UsageError: It would never start; it is cancelled.
        """
        progress.note(self._greeting(job))
        began, told_nodes, ending_since = time.monotonic(), False, 0.0
        shown = len(self.verb.finished(self.folder))  # Lines of an earlier job are known
        while True:
            waited_s = time.monotonic() - began
            state = None
            try:
                state = self._state(job)
            except WorkFailed as silent:
                progress.stage(f"job {job.id}: {silent}; trying again")
            if state and state.ending:
                ending_since = ending_since or waited_s
                if waited_s - ending_since > self._scheduler.ends_within_s:
                    state = self._end_in_output(job) or msgspec.structs.replace(state, state="done")
            if state and state.state == "waiting":
                begins = f", expected at {state.begins}" if state.begins else ""
                progress.stage(f"job {job.id} waits ({state.reason or state.word}{begins})")
                self._check_patience(job, state, waited_s, patience_s)
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
                said = last_lines(self._output(job), 1)
                progress.stage(f"job {job.id}: {plain(said[-1], 200) if said else 'starting'}")
            time.sleep(min(_LONGEST_POLL_S, 0.5 + waited_s / 20))

    def _greeting(self, job: SubmittedJob) -> str:
        time_s = self.submission.site.time_s
        limit = (
            f" for at most {format_seconds(time_s)}: {digits(job.nodes * time_s / 3600)} node-hours" if time_s else ""
        )
        what = f" ({job.what})" if job.what else ""
        script = from_here(self.folder / job.script)
        return f"Job {job.id}{what}, {plural(job.nodes, 'node')}{limit}; script: {script}. Ctrl-C cancels it."

    def _check_patience(self, job: SubmittedJob, state: JobState, waited_s: float, patience_s: float | None) -> None:
        if state.never:
            self._give_up()
            raise UsageError(
                f"{self._scheduler.title} would never start job {job.id} ({state.reason}), so it was cancelled: "
                f"change {state.never}"
            )
        if patience_s is not None and waited_s >= patience_s:
            self._give_up()
            raise WorkFailed(
                f"job {job.id} waited longer than --patience {format_seconds(patience_s)} "
                f"({state.reason or state.word}) and was cancelled: ask for fewer nodes or less time, or wait longer: "
                f"{self.resume} submits it again"
            )

    def _give_up(self) -> None:
        """Cancel all jobs that have not ended, whatever else is pressed."""
        with uninterrupted():
            cancel(self._scheduler, [job.id for job in self.open])
            for job in self.open:
                self._end(job, JobState(state="failed", word="CANCELLED", cancelled=True))

    # What is known of jobs

    def _keep(self, *, jobs: tuple[SubmittedJob, ...]) -> None:
        self.submission = msgspec.structs.replace(self.submission, jobs=jobs)
        save(self.submission, self.folder / SUBMISSION)

    def _end(self, job: SubmittedJob, state: JobState) -> None:
        ended = msgspec.structs.replace(job, ended=state)
        self._keep(jobs=tuple(ended if each.id == job.id else each for each in self.submission.jobs))

    def _output(self, job: SubmittedJob) -> Path:
        """File of what a job printed."""
        return self.folder / f"job-{job.id}.out"

    def _record(self) -> Any:
        """Record that the verb left in the folder; None: there is nothing yet."""
        assert self.verb.record
        with contextlib.suppress(UsageError):
            return self.verb.record(self.folder)
        return None

    def _state(self, job: SubmittedJob) -> JobState:
        """State of a job; one that is forgotten ended long ago, and its files tell how."""
        state = state_of(self._scheduler, job.id) or self._end_in_output(job)
        if state is None:
            failed = _problem_in(self._output(job)) or self._record() is None
            return JobState(state="failed" if failed else "done", word="not known any more")
        return state

    def _end_in_output(self, job: SubmittedJob) -> JobState | None:
        return self._scheduler.last_words("\n".join(last_lines(self._output(job), 200)))

    # How jobs ended

    def _failed(self) -> SubmittedJob | None:
        """The first failed job whose work no later one has done; None: all is done."""
        *_, last = jobs = self.submission.jobs
        parts = {job.script: job for job in jobs}.values() if last.what else [last]  # the last attempt of each
        failed = None
        for job in parts:
            if job.ended and job.ended.state == "done":  # which did what those before it had left
                failed = None
            elif job.ended:
                failed = failed or job
        return failed

    def _failure(self, job: SubmittedJob) -> ScalescopeError:
        """One line that says how a job ended, what is kept and what to do."""
        state = job.ended
        assert state
        output, kept = self._output(job), ""
        if self.verb.resume and (self.folder / PLAN).exists():
            kept = f"; what was finished is kept; resume with: {self.resume}"
        name = f"job {job.id}" + (f" ({job.what})" if job.what else "")
        where = f" on {state.nodes}" if state.nodes else ""
        if state.out_of_time:
            limit = self.submission.site.time_s
            time_limit = f"its time limit of {format_seconds(limit)}" if limit else "its time limit"
            return WorkFailed(f"{name} reached {time_limit}{kept or ': raise time in the --site file'}")
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
