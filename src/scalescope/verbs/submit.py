"""A verb in a job: submitted, waited for, collected. In the job the same verb runs, without --submit.

The job's command writes into the result folder, which its nodes share; the process that waits reads there.
"""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scalescope.engines import USUAL, find_engine
from scalescope.errors import ScalescopeError, StoppedWaiting, Terminated, UsageError, WorkFailed
from scalescope.jobs.environment import expecting, masked
from scalescope.jobs.folders import held, mark_of, result_folder
from scalescope.jobs.output import last_lines
from scalescope.jobs.own_ranks import is_launch_line
from scalescope.jobs.request import engine_of_script
from scalescope.launchers.runner import uninterrupted, uninterrupted_until_done
from scalescope.launchers.torchrun import TORCHRUN
from scalescope.options import typed, typed_limits
from scalescope.progress import Progress
from scalescope.records.site import Site, load_site
from scalescope.records.store import in_folder, load, save, writing
from scalescope.records.study import StudyRequest
from scalescope.records.submission import SUBMISSION, BatchJob, JobState, Submission, SubmittedJob
from scalescope.schedulers import Scheduler, find_scheduler
from scalescope.schedulers.queue import cancel, check_scheduler, state_of, submit
from scalescope.show import document_of
from scalescope.text import listed, plain, plural
from scalescope.units import format_seconds
from scalescope.verbs.verb import Ending, Verb, folder_command, from_here

_VARIABLES = "env.sh"
_LONGEST_POLL_S = 20.0  # Schedulers are shared: a job that waits long is asked for seldom
_QUIET_LINES = 12  # Of what a job printed, when it failed without a word of ours


class _Part(NamedTuple):
    """What one job does."""

    script: str  # Name of the file
    what: str  # For people; empty: all of it
    nodes: int


class _Place(NamedTuple):
    """Whose jobs they are, and where they leave what they do."""

    verb: Verb
    scheduler: Scheduler
    folder: Path

    @property
    def resume(self) -> str:
        """The command that waits, collects, or submits what is missing."""
        return folder_command(f"{self.verb.name} --resume", self.folder)

    def output(self, job: SubmittedJob) -> Path:
        """File of what a job printed."""
        return self.folder / f"job-{job.id}.out"

    def state(self, job: SubmittedJob) -> JobState:
        """State of a job; one that is forgotten ended long ago, and its files tell how."""
        state = state_of(self.scheduler, job.id)
        if state is None:
            failed = _problem_in(self.output(job)) or self.record() is None
            return JobState(state="failed" if failed else "done", word="not known any more")
        return state

    def record(self) -> Any:
        """Record that the verb left in the folder; None: there is nothing yet."""
        assert self.verb.record
        with contextlib.suppress(UsageError):
            return self.verb.record(self.folder)
        return None

    def save(self, submission: Submission) -> None:
        """Keep what is known of the jobs."""
        save(submission, self.folder / SUBMISSION)


def waits_outside(verb: Verb, folder: Path) -> bool:
    """Does the verb's folder belong to submitted jobs, and is this process none of them?"""
    if mark_of(folder) != verb.name:
        return False
    submission = load(folder / SUBMISSION, Submission)
    return not os.environ.get(find_scheduler(submission.scheduler).job_variable)


def resubmitted(verb: Verb, folder: Path, limits: Mapping[str, Any], progress: Progress) -> Any:
    """Wait for the jobs of a folder, collect what they did, or submit what is missing."""
    submission = load(folder / SUBMISSION, Submission)
    place = _Place(verb, find_scheduler(submission.scheduler), folder.absolute())
    return _resubmitted(place, submission, dict(limits), progress)


def planned(verb: Verb, request: Any) -> Iterator[str]:
    """Lines of a dry run: the job scripts, and what they cost."""
    *_, costs = _planned_inside(verb, request)
    scripts = _scripts(verb, request, Path(request.folder or f"results/{verb.name}").absolute())
    for script, part in scripts.items():
        yield f"# {part.script}"
        yield script
    yield _node_hours([part.nodes for part in scripts.values()], _site(request))
    yield costs if costs.startswith("#") else f"# {costs}"


def of_submission(submission: Submission) -> Ending:
    """Jobs that nobody waits for."""
    folder = submission.folder
    assert folder
    return Ending(document_of(submission), folder_command(f"{submission.verb} --resume", folder))


def submitted(verb: Verb, request: Any, progress: Progress) -> Any:
    """Submit the jobs of a request, and wait for them."""
    scheduler = find_scheduler(request.submit)
    list(_planned_inside(verb, request))  # what cannot be launched is refused before it waits in a queue
    check_scheduler(scheduler)
    with result_folder(verb.name, request.folder) as folder:
        before = load(folder / SUBMISSION, Submission) if (folder / SUBMISSION).exists() else None
        place = _Place(verb, scheduler, folder)
        if (before and before.open_jobs) or (folder / "plan.json").exists():
            raise UsageError(f"{folder} already holds results: resume them with {place.resume}, or choose another -o")
        submission = Submission(
            verb=verb.name,
            scheduler=scheduler.name,
            site=_site(request),
            per_node=request.per_node,
            cores_per_rank=getattr(request, "threads_per_rank", None),
            cwd=str(Path.cwd()),
            asked=msgspec.to_builtins(msgspec.structs.replace(request, folder=str(folder), **_without_values(request))),
        )
        _write_variables(_variables(request), folder)
        submission = _enqueue(place, submission, _scripts(verb, request, folder))
    return _collected(place, submission, progress, request.patience_s, wait=not request.no_wait)


def _resubmitted(place: _Place, submission: Submission, limits: dict[str, Any], progress: Progress) -> Any:
    """Wait for jobs that are there; submit another one for what is missing, or for what `limits` add."""
    wait, patience_s = not limits.pop("no_wait", False), limits.pop("patience_s", None)
    check_scheduler(place.scheduler)
    if submission.open_jobs and limits:
        raise UsageError(f"{_named(submission)} may still work in {place.folder}: see its end with {place.resume}")
    if submission.open_jobs:
        for job in submission.open_jobs:
            state = place.state(job)
            submission = _with_end(submission, job, state if state.state in ("done", "failed") else None)
        place.save(submission)
        if submission.open_jobs:
            return _collected(place, submission, progress, patience_s, wait=wait)
        return _left(place, submission)  # or how they ended, once: the next --resume submits what is missing
    ended = submission.jobs[-1].ended if submission.jobs else None
    if ended and ended.state == "done" and not limits:
        return _left(place, submission)
    with held(place.folder):
        if load(place.folder / SUBMISSION, Submission) != submission:
            raise UsageError(f"another scalescope has just submitted for {place.folder}: see what became of it first")
        submission = _enqueue(place, submission, _again(place, submission, limits))
    return _collected(place, submission, progress, patience_s, wait=wait)


def _again(place: _Place, submission: Submission, limits: dict[str, Any]) -> dict[str, _Part]:
    """Scripts for what is missing: those that did not end well once more, or where something was begun the rest."""
    verb, folder = place.verb, place.folder
    missing = [job for job in submission.jobs if job.ended is None or job.ended.state == "failed"]
    if verb.resume is None or not (folder / "plan.json").exists():
        return {(folder / job.script).read_text(): _Part(job.script, job.what, job.nodes) for job in missing}
    if submission.asked.get("per_point"):  # points of jobs that did not run are not in the plan yet
        limits.setdefault("np", tuple(submission.asked["np"]))
    counts = limits.get("np", ())
    most = max(counts, default=1) if isinstance(counts, tuple) else counts
    job = BatchJob(
        name=_name(verb),
        command=(*_program(verb), "--resume", str(folder), *typed_limits(verb.request, limits)),
        cwd=submission.cwd,
        folder=str(folder),
        variables=str(folder / _VARIABLES) if (folder / _VARIABLES).exists() else "",
        nodes=max([-(-most // submission.per_node), *(job.nodes for job in submission.jobs)]),
        per_node=submission.per_node,
        cores_per_rank=submission.cores_per_rank,
        site=submission.site,
    )
    return {place.scheduler.script(job): _Part(f"job-{len(submission.jobs) + 1}.sh", "", job.nodes)}


# What is submitted


def _scripts(verb: Verb, request: Any, folder: Path) -> dict[str, _Part]:
    """One job for everything, or one for every number of processes, of which all but the first add to the folder."""
    counts = _counts(request)
    planned = {("job.sh", "", max(counts)): _words(verb, request, folder)}
    if getattr(request, "per_point", False):
        first, *others = sorted(counts)
        planned = {(f"job-np{first}.sh", f"np {first}", first): _words(verb, request, folder, np=(first,))}
        more = (*_program(verb), "--resume", str(folder), "--np")
        planned |= {(f"job-np{np}.sh", f"np {np}", np): (*more, str(np)) for np in others}
    scheduler, scripts = find_scheduler(request.submit), {}
    for (name, what, np), words in planned.items():
        job = BatchJob(
            name=_name(verb),
            command=words,
            cwd=str(Path.cwd()),
            folder=str(folder),
            variables=str(folder / _VARIABLES) if _variables(request) else "",
            nodes=max(request.nodes, default=0) or -(-np // request.per_node),
            per_node=request.per_node,
            cores_per_rank=getattr(request, "threads_per_rank", None),
            site=_site(request),
        )
        scripts[scheduler.script(job)] = _Part(name, what, job.nodes)
    return scripts


def _counts(request: Any) -> tuple[int, ...]:
    np = getattr(request, "np", ())
    return ((np,) if isinstance(np, int) else tuple(np)) or (request.per_node,)


def _words(verb: Verb, request: Any, folder: Path, **changes: Any) -> tuple[str, ...]:
    """The verb's own command for this request, without what concerns the queue."""
    text = typed(_program(verb), verb.request, _inside(request, folder), whole=True, **changes)
    return tuple(shlex.split(text))


def _name(verb: Verb) -> str:
    return f"scalescope-{verb.name}"


def _program(verb: Verb) -> tuple[str, ...]:
    installed = Path(sys.executable).with_name("scalescope")
    # Not the modules of the folder that it runs in
    program = (str(installed),) if installed.is_file() else (sys.executable, "-P", "-m", "scalescope")
    return *program, verb.name


def _inside(request: Any, folder: Path) -> Any:
    """The request that the job carries out."""
    if getattr(request, "start_from", None) is not None:
        raise UsageError("--start-from trains without a search: submit your training yourself, or leave --submit out")
    changes: dict[str, Any] = {"submit": "", "patience_s": None, "no_wait": False, "folder": str(folder)}
    fields = request.__struct_fields__
    if "env" in fields:
        changes["env"] = {}  # in a file, which the script reads
    if "launcher" in fields:
        changes["launcher"] = _launcher(request, find_scheduler(request.submit))
    if "per_point" in fields:
        changes["per_point"] = False
    if not _site(request).container:
        changes["site"] = ""
    return msgspec.structs.replace(request, **changes)


def _launcher(request: Any, scheduler: Scheduler) -> str:
    """As asked; a torchrun on every node where that starts the engine's ranks, else what starts every rank.

    A command that starts its ranks itself stays as it is.
    """
    if request.launcher or (request.command and is_launch_line(request.command)):
        return str(request.launcher)
    engines = getattr(request, "engines", ()) or tuple(filter(None, [getattr(request, "engine", "")]))
    if not engines and isinstance(request, StudyRequest) and request.workload:  # with Horovod where that is installed
        return scheduler.rank_launcher
    engines = engines or ((engine_of_script(request.command),) if request.command else (USUAL.name,))
    usual = {find_engine(name).launcher({}) for name in engines}
    return scheduler.node_launcher if usual == {TORCHRUN.name} else scheduler.rank_launcher


def _planned_inside(verb: Verb, request: Any) -> list[str]:
    """List what the verb would start in the job; UsageError where it cannot."""
    counts, inside = _counts(request), _inside(request, Path(request.folder or "results"))
    with expecting(-(-max(counts) // request.per_node), request.per_node):
        return list(verb.dry_run(inside)) if verb.dry_run else [""]


def _site(request: Any) -> Site:
    return load_site(request.site) if request.site else Site()


def _variables(request: Any) -> dict[str, str]:
    return getattr(request, "env", {}) or {}


def _without_values(request: Any) -> dict[str, Any]:
    return {"env": masked(request.env)} if "env" in request.__struct_fields__ else {}


def _write_variables(variables: Mapping[str, str], folder: Path) -> None:
    """Values of --env, readable for their owner only."""
    if not variables:
        return
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    path = folder / _VARIABLES
    path.unlink(missing_ok=True)
    with writing(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(lines)


def _enqueue(place: _Place, submission: Submission, scripts: Mapping[str, _Part]) -> Submission:
    """Write scripts and submit them, each to begin after the one before; all or none."""
    begun: list[str] = []
    try:
        for script, part in scripts.items():
            path = place.folder / part.script
            with writing(path):
                path.write_text(script)
            with uninterrupted_until_done():
                begun.append(submit(place.scheduler, path, begun[-1] if begun else ""))
            job = SubmittedJob(id=begun[-1], script=part.script, what=part.what, nodes=part.nodes)
            submission = msgspec.structs.replace(submission, jobs=(*submission.jobs, job))
            place.save(submission)
    except BaseException:
        with uninterrupted():
            cancel(place.scheduler, begun)
            if len(submission.jobs) == len(begun):  # nothing was submitted for this folder before
                (place.folder / SUBMISSION).unlink(missing_ok=True)
        raise
    return submission


def _node_hours(nodes: Sequence[int], site: Site) -> str:
    jobs = plural(len(nodes), "job")
    if site.time_s is None:
        return f"# {jobs}: {sum(nodes)} node-hours for every hour; no time limit but that of the partition"
    hours = site.time_s / 3600
    each = " + ".join(f"{count} x {hours:.3g} h" for count in nodes)
    return f"# {jobs}: at most {hours * sum(nodes):.3g} node-hours ({each})"


# Waiting


def _collected(
    place: _Place, submission: Submission, progress: Progress, patience_s: float | None, *, wait: bool
) -> Any:
    """Collect what the jobs leave; with `wait` off return the submission."""
    if not wait:
        return in_folder(submission, place.folder)
    try:
        for job in submission.open_jobs:
            state = _Wait(place, submission, job, progress, patience_s).until_it_ends()
            submission = _with_end(submission, job, state)
            place.save(submission)
    except Terminated:
        raise StoppedWaiting(f"left in the queue: {_named(submission)}; collect with: {place.resume}") from None
    except KeyboardInterrupt:
        _give_up(place, submission)
        raise StoppedWaiting(
            f"cancelled {_named(submission)}; what was finished is kept; resume with: {place.resume}"
        ) from None
    return _left(place, submission)


def _named(submission: Submission) -> str:
    ids = [job.id for job in submission.open_jobs]
    return f"job{'s' if len(ids) > 1 else ''} {listed(ids)}"


class _Wait:
    """Shows a job while it waits and runs."""

    def __init__(
        self, place: _Place, submission: Submission, job: SubmittedJob, progress: Progress, patience_s: float | None
    ) -> None:
        self._place, self._submission, self._job = place, submission, job
        self._progress, self._patience_s = progress, patience_s
        self._shown = len(place.verb.finished(place.folder))  # Lines of an earlier job are known
        self._running = False
        self._began = time.monotonic()

    def until_it_ends(self) -> JobState:
        """Wait until the job has ended, and return its state.

        Raises:
            WorkFailed: It waited longer than it may; it is cancelled.
        UsageError: It would never start; it is cancelled.
        """
        self._progress.note(self._greeting())
        while True:
            state = self._ask()
            if state:
                self._show(state)
                if state.state in ("done", "failed"):
                    return state
                self._check_patience(state)
            time.sleep(min(_LONGEST_POLL_S, 0.5 + (time.monotonic() - self._began) / 20))

    def _ask(self) -> JobState | None:
        """State of the job; None: the scheduler does not answer."""
        try:
            return self._place.state(self._job)
        except WorkFailed as silent:
            self._progress.stage(f"job {self._job.id}: {silent}; trying again")
            return None

    def _greeting(self) -> str:
        job, time_s = self._job, self._submission.site.time_s
        limit = f" for at most {format_seconds(time_s)}: {job.nodes * time_s / 3600:.3g} node-hours" if time_s else ""
        what = f" ({job.what})" if job.what else ""
        script = from_here(self._place.folder / job.script)
        return f"Job {job.id}{what}, {plural(job.nodes, 'node')}{limit}; script: {script}. Ctrl-C cancels it."

    def _show(self, state: JobState) -> None:
        job = self._job
        if state.state == "waiting":
            begins = f", expected at {state.begins}" if state.begins else ""
            self._progress.stage(f"job {job.id} waits ({state.reason or state.word}{begins})")
            return
        if not self._running and state.nodes:
            self._running = True
            self._progress.note(f"Job {job.id} runs on {state.nodes}.")
        finished = self._place.verb.finished(self._place.folder)
        for line in finished[self._shown :]:
            self._progress.note(line)
        self._shown = len(finished)
        if state.state == "running":
            said = last_lines(self._place.output(job), 1)
            self._progress.stage(f"job {job.id}: {plain(said[-1], 200) if said else 'starting'}")

    def _check_patience(self, state: JobState) -> None:
        if state.never:
            _give_up(self._place, self._submission)
            raise UsageError(
                f"{self._place.scheduler.title} would never start job {self._job.id} ({state.reason}), so it was "
                f"cancelled: change {state.never}"
            )
        waited_s = time.monotonic() - self._began
        if state.state != "waiting" or self._patience_s is None or waited_s < self._patience_s:
            return
        _give_up(self._place, self._submission)
        raise WorkFailed(
            f"job {self._job.id} waited longer than --patience {format_seconds(self._patience_s)} "
            f"({state.reason or state.word}) and was cancelled: ask for fewer nodes or less time, or wait longer: "
            f"{self._place.resume} submits it again"
        )


def _give_up(place: _Place, submission: Submission) -> None:
    """Cancel all jobs that have not ended, whatever else is pressed."""
    with uninterrupted():
        cancel(place.scheduler, [job.id for job in submission.open_jobs])
        for job in submission.open_jobs:
            submission = _with_end(submission, job, JobState(state="failed", word="CANCELLED", cancelled=True))
        place.save(submission)


def _with_end(submission: Submission, job: SubmittedJob, state: JobState | None) -> Submission:
    ended = msgspec.structs.replace(job, ended=state)
    jobs = tuple(ended if each.id == job.id else each for each in submission.jobs)
    return msgspec.structs.replace(submission, jobs=jobs)


# What jobs leave


def _left(place: _Place, submission: Submission) -> Any:
    """The record that the jobs left; an error of the first that failed since all went well."""
    last = submission.jobs[-1]
    for job in submission.jobs if last.what else [last]:
        if job.ended and job.ended.state == "failed":
            raise _failure(place, submission, job, job.ended)
    record = place.record()
    if record is None:
        raise WorkFailed(f"job {last.id} ended and left no result: see {from_here(place.output(last))}")
    return record


def _problem_in(output: Path) -> str:
    """The error with which our own process in the job ended; empty where it said none."""
    lines = last_lines(output, 200)
    starts = [at for at, line in enumerate(lines) if line.startswith("scalescope: ")]
    return "\n".join(lines[starts[-1] :]).removeprefix("scalescope: ") if starts else ""


def _failure(place: _Place, submission: Submission, job: SubmittedJob, state: JobState) -> ScalescopeError:
    """One line that says how a job ended, what is kept and what to do."""
    output, kept = place.output(job), ""
    if place.verb.resume and (place.folder / "plan.json").exists():
        kept = f"; what was finished is kept; resume with: {place.resume}"
    name = f"job {job.id}" + (f" ({job.what})" if job.what else "")
    where = f" on {state.nodes}" if state.nodes else ""
    if state.out_of_time:
        limit = submission.site.time_s
        time_limit = f"its time limit of {format_seconds(limit)}" if limit else "its time limit"
        return WorkFailed(f"{name} reached {time_limit}{kept or ': raise time in the --site file'}")
    if state.cancelled:
        return WorkFailed(f"{name} was cancelled{kept or ': type the command again to submit it again'}")
    if state.own and (problem := _problem_in(output)):
        kind = UsageError if state.exit_code == UsageError.exit_code else WorkFailed
        return kind(f"{problem} ({name}{where})")
    if not output.exists():
        return WorkFailed(
            f"{name} ended at once{where} ({state.word}) and wrote nothing into {place.folder}: choose a folder that "
            "the nodes share with -o"
        )
    said = "\n".join(last_lines(output, _QUIET_LINES))
    return WorkFailed(f"{name} ended with {state.word}{where}{kept or f': see {from_here(output)}'}\n{said}".rstrip())
