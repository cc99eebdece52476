"""A verb in a job: what is submitted. In the job the same verb runs, without --submit, and writes the same folder."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scalescope.engines import USUAL, find_engine
from scalescope.errors import UsageError
from scalescope.jobs.folders import held, mark_of, result_folder
from scalescope.jobs.hosts import expecting
from scalescope.jobs.masking import masked
from scalescope.jobs.own_ranks import is_launch_line
from scalescope.launchers.torchrun import TORCHRUN
from scalescope.options import typed, typed_limits
from scalescope.progress import Progress
from scalescope.records.files import PLAN
from scalescope.records.site import Site, load_site
from scalescope.records.store import load, writing
from scalescope.records.study import StudyRequest
from scalescope.records.submission import SUBMISSION, WAITING, BatchJob, Submission
from scalescope.schedulers import Scheduler, find_scheduler
from scalescope.schedulers.queue import check_scheduler
from scalescope.show import document_of
from scalescope.text import plural
from scalescope.units import digits
from scalescope.verbs.submitted import Jobs, Script
from scalescope.verbs.verb import Ending, Verb, folder_command

_VARIABLES = "env.sh"


def submit_verb(verb: Verb, request: Any, progress: Progress) -> Any:
    """The record of a verb that runs in a job; with --no-wait the Submission."""
    _planned_inside(verb, request)  # what cannot be launched is refused before it waits in a queue
    check_scheduler(find_scheduler(request.submit))
    with result_folder(verb.name, request.folder) as folder:
        jobs = Jobs(verb, folder, _submission(verb, request, folder))
        before = load(folder / SUBMISSION, Submission) if (folder / SUBMISSION).exists() else None
        if (before and before.open_jobs) or (folder / PLAN).exists():
            raise UsageError(f"{folder} already holds results: resume them with {jobs.resume}, or choose another -o")
        _write_variables(getattr(request, "env", {}), folder)
        jobs.enqueue(_scripts(verb, request, folder))
    return jobs.collect(progress, request.patience_s, wait=not request.no_wait)


def jobs_elsewhere(verb: Verb, folder: Path, limits: Mapping[str, Any]) -> Jobs | None:
    """The submitted jobs of a folder; None where it is another verb's, or this process does their work."""
    if mark_of(folder) != verb.name:
        return None
    jobs = Jobs(verb, folder, load(folder / SUBMISSION, Submission))
    return None if _is_made_here(jobs, limits) else jobs


def planned(verb: Verb, request: Any) -> Iterator[str]:
    """Lines of a dry run: the job scripts, and what they cost."""
    *_, costs = _planned_inside(verb, request)
    scripts = _scripts(verb, request, Path(request.folder or f"results/{verb.name}").absolute())
    for script in scripts:
        yield f"# {script.name}"
        yield script.text
    yield _node_hours([script.nodes for script in scripts], _site(request))
    yield costs if costs.startswith("#") else f"# {costs}"


def of_submission(submission: Submission) -> Ending:
    """Jobs that nobody waits for."""
    folder = submission.folder
    assert folder
    return Ending(document_of(submission), folder_command(f"{submission.verb} --resume", folder))


def _is_made_here(jobs: Jobs, limits: Mapping[str, Any]) -> bool:
    """True in a job of the folder, and in another allocation, such as a notebook's, where something is missing."""
    here = os.environ.get(find_scheduler(jobs.submission.scheduler).job_variable, "")
    if not here or here in {job.id for job in jobs.submission.jobs}:
        return bool(here)
    return not jobs.open and bool(limits or not jobs.is_done) and not any(limits.get(name) for name in WAITING)


def collected(jobs: Jobs, limits: dict[str, Any], progress: Progress) -> Any:
    """Wait for jobs that are there; submit another one for what is missing, or for what `limits` add."""
    wait, patience_s = not limits.pop("no_wait", False), limits.pop("patience_s", None)
    check_scheduler(find_scheduler(jobs.submission.scheduler))
    if jobs.open:
        if limits:
            raise UsageError(f"{jobs.named} may still work in {jobs.folder}: see its end with {jobs.resume}")
        jobs.see_ends()
        # What they left, or how they ended, is told once: the next --resume submits what is missing.
        return jobs.collect(progress, patience_s, wait=wait) if jobs.open else jobs.left()
    if jobs.is_done and not limits:
        return jobs.left()
    with held(jobs.folder):
        jobs.check_unchanged()
        jobs.enqueue(_missing(jobs, limits))
    return jobs.collect(progress, patience_s, wait=wait)


def _missing(jobs: Jobs, limits: dict[str, Any]) -> list[Script]:
    """Scripts for what is missing: those that did not end well once more, or where something was begun the rest."""
    verb, folder, submission = jobs.verb, jobs.folder, jobs.submission
    if verb.resume is None or not (folder / PLAN).exists():
        failed = {job.script: job for job in submission.jobs if not (job.ended and job.ended.state == "done")}
        return [Script(job.script, job.what, job.nodes, (folder / name).read_text()) for name, job in failed.items()]
    if submission.asked.get("per_point"):  # points of jobs that did not run are not in the plan yet
        limits.setdefault("np", tuple(submission.asked["np"]))
    counts = limits.get("np", ())
    most = max(counts, default=1) if isinstance(counts, tuple) else counts
    nodes = max([-(-most // submission.per_node), *(job.nodes for job in submission.jobs)])
    words = (*_program(verb), "--resume", str(folder), *typed_limits(verb.request, limits))
    return [_script(submission, folder, f"job-{len(submission.jobs) + 1}.sh", "", nodes, words)]


# What is submitted


def _submission(verb: Verb, request: Any, folder: Path) -> Submission:
    """The request to the scheduler, before there are jobs; it is kept, so values of --env are not in it."""
    hidden = {"env": masked(request.env)} if "env" in request.__struct_fields__ else {}
    return Submission(
        verb=verb.name,
        scheduler=request.submit,
        site=_site(request),
        per_node=request.per_node,
        cores_per_rank=getattr(request, "threads_per_rank", None),
        cwd=str(Path.cwd()),
        asked=msgspec.to_builtins(msgspec.structs.replace(request, folder=str(folder), **hidden)),
    )


def _scripts(verb: Verb, request: Any, folder: Path) -> list[Script]:
    """One job for everything, or one for every number of processes, of which all but the first add to the folder."""
    submission = _submission(verb, request, folder)

    def script(name: str, what: str, np: int, words: Sequence[str]) -> Script:
        nodes = max(request.nodes, default=0) or -(-np // request.per_node)
        return _script(submission, folder, name, what, nodes, words)

    if not getattr(request, "per_point", False):
        return [script("job.sh", "", max(_counts(request)), _words(verb, request, folder))]
    first, *others = sorted(_counts(request))
    more = (*_program(verb), "--resume", str(folder), "--np")
    return [
        script(f"job-np{first}.sh", f"np {first}", first, _words(verb, request, folder, np=(first,))),
        *(script(f"job-np{np}.sh", f"np {np}", np, (*more, str(np))) for np in others),
    ]


def _script(submission: Submission, folder: Path, name: str, what: str, nodes: int, words: Sequence[str]) -> Script:
    job = BatchJob(
        name=f"scalescope-{submission.verb}",
        command=tuple(words),
        cwd=submission.cwd,
        folder=str(folder),
        variables=str(folder / _VARIABLES) if submission.asked.get("env") else "",
        nodes=nodes,
        per_node=submission.per_node,
        cores_per_rank=submission.cores_per_rank,
        site=submission.site,
    )
    return Script(name, what, nodes, find_scheduler(submission.scheduler).script(job))


def _counts(request: Any) -> tuple[int, ...]:
    np = getattr(request, "np", ())
    return ((np,) if isinstance(np, int) else tuple(np)) or (request.per_node,)


def _words(verb: Verb, request: Any, folder: Path, **changes: Any) -> tuple[str, ...]:
    """The verb's own command for this request, without what concerns the queue."""
    text = typed(_program(verb), verb.request, _inside(request, folder), whole=True, **changes)
    return tuple(shlex.split(text))


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
    from scalescope.jobs.command import engine_of_script  # with numpy, which --help does without

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


def _write_variables(variables: Mapping[str, str], folder: Path) -> None:
    """Values of --env, readable for their owner only."""
    if not variables:
        return
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    path = folder / _VARIABLES
    path.unlink(missing_ok=True)
    with writing(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(lines)


def _node_hours(nodes: Sequence[int], site: Site) -> str:
    jobs = plural(len(nodes), "job")
    if site.time_s is None:
        return f"# {jobs}: {sum(nodes)} node-hours for every hour; no time limit but that of the partition"
    hours = site.time_s / 3600
    each = " + ".join(f"{count} x {hours:.3g} h" for count in nodes)
    return f"# {jobs}: at most {digits(hours * sum(nodes))} node-hours ({each})"
