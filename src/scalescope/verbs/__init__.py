"""The verbs, a file each: what one is asked for, the function of its room that does it, its help and how it ends.

Rooms are imported where they are used: a verb loads what it needs, --help needs none, and explain of files no torch.
"""

import contextlib
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from scalescope.errors import ScalescopeError, UsageError
from scalescope.options import EMPTY, flags, read
from scalescope.progress import Progress
from scalescope.records.files import PLAN
from scalescope.records.store import load
from scalescope.records.submission import SUBMISSION, WAITING, Submission
from scalescope.verbs.verb import Verb

_NAMES = ("study", "estimate", "probe", "measure", "explain", "tune", "report", "compare", "doctor")  # As help has them
VERBS: tuple[Verb, ...] = tuple(import_module(f"{__name__}.{name}").VERB for name in _NAMES)


def find_verb(name: str) -> Verb:
    """The verb of this name."""
    return next(verb for verb in VERBS if verb.name == name)


def run_verb(verb: Verb, request: Any, progress: Progress) -> Any:
    """The record of a verb, from a job where one was asked for; with --no-wait the Submission."""
    if not getattr(request, "submit", ""):
        return verb.run(request, progress)
    from scalescope.verbs.submit import submit_verb

    return submit_verb(verb, request, progress)


def resume_verb(verb: Verb, folder: Path, limits: Mapping[str, Any], progress: Progress) -> Any:
    """The record of a verb that is resumed here, or in another job where its folder was made by one."""
    if (folder / SUBMISSION).is_file():
        from scalescope.verbs.submit import collected, jobs_elsewhere

        if jobs := jobs_elsewhere(verb, folder, limits):
            return collected(jobs, dict(limits), progress)
    if any(limits.get(name) for name in WAITING):
        raise UsageError(f"{folder} was not made by a submitted job: leave --no-wait and --patience out")
    if verb.resume is None:
        raise UsageError(f"{folder} holds no submitted {verb.name}: type its command again")
    return verb.resume(folder, limits, progress)


def plan_verb(verb: Verb, request: Any) -> Iterable[str]:
    """Lines of a dry run: what the verb would start, or the job script where one would be submitted."""
    assert verb.dry_run
    if not getattr(request, "submit", ""):
        return verb.dry_run(request)
    from scalescope.verbs.submit import planned

    return planned(verb, request)


def planned_request(verb: Verb, folder: Path) -> Any:
    """Request of a result folder; None where its plan does not tell."""
    with contextlib.suppress(ScalescopeError, msgspec.ValidationError):
        if (folder / SUBMISSION).is_file():
            return msgspec.convert(load(folder / SUBMISSION, Submission).asked, verb.request, strict=False)
        return load(folder / PLAN, verb.plan()).request if verb.plan else None
    return None


def limits_of(verb: Verb, given: Mapping[str, Any]) -> dict[str, Any]:
    """New limits for a verb that is resumed.

    Raises:
        UsageError: Something else was given.
    """
    if given.get("command"):
        raise UsageError(f"--resume knows what to {verb.name}: leave the command out")
    for name, value in given.items():
        flag, option = flags(verb.request).get(name, (name, None))
        if value not in EMPTY and (option is None or not option.opt.again):
            raise UsageError(f"--resume keeps what was asked: leave {flag} out, or start over without --resume")
    return read(verb.request, given)
