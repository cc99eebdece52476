"""The parts of a study in their fixed order: each is done if it fits into what is left of the budget."""

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from scalescope.errors import ScalescopeError
from scalescope.progress import Kind, Progress
from scalescope.records.study import OVER, PAGE_S, Study, StudyPart
from scalescope.text import plain
from scalescope.units import format_seconds

_ALWAYS = ("estimate", "measure")  # Whatever the budget: without them there is no answer
_FIRST = ("estimate", "measure", "explain", "tune", "check")  # Time for these is kept free by those before them


class Work(Protocol):
    """The parts themselves."""

    def seconds(self, part: str) -> float:
        """Seconds that a part is expected to take, by what is known now."""

    def skip_reason(self, part: str) -> str:
        """The reason to leave out a part that has nothing to tell; empty: it has."""

    def run(self, part: str, seconds: float, progress: Progress) -> None:
        """Do it, or what an interruption left of it; `seconds`: what the budget leaves for it."""


class PartProgress(Progress):
    """Progress of the verb that does a part: its stages name the part and count the study's budget down."""

    def __init__(self, progress: Progress, part: str, left_s: Callable[[], float]) -> None:
        self._progress, self._part, self._left_s = progress, part, left_s

    def stage(self, what: str, seconds: float | None = None, steps: int | None = None) -> None:
        """A stage of the verb."""
        self._progress.stage(f"{self._part}: {what}", self._left_s(), steps)

    def advance(self, steps: int) -> None:
        """Steps of its launch."""
        self._progress.advance(steps)

    def output(self, source: str, line: str) -> None:
        """Output of its launch."""
        self._progress.output(source, line)

    def note(self, text: str, kind: Kind = "plain") -> None:
        """A note of the verb, which is a detail of a study."""
        self._progress.note(text, "problem" if kind == "problem" else "detail")


def planned(study: Study, work: Work, left_s: float) -> Study:
    """The study with what each part that is not over would take, and with those left out that do not fit."""
    for part in study.parts:
        if part.state in OVER:
            continue
        seconds, why = work.seconds(part.name), work.skip_reason(part.name)
        state, seconds = ("not needed", 0.0) if why else ("planned", seconds)
        if not why and seconds > left_s and part.name not in _ALWAYS:
            state, why = "left out", _no_room(seconds, left_s)
        else:
            left_s -= seconds
        study = study.with_part(msgspec.structs.replace(part, planned_s=seconds, state=state, why=why))
    return study


def plan_lines(study: Study, left_s: float) -> list[str]:
    """The parts of a study and about how long each takes; `left_s`: what the budget has."""
    total = sum(part.planned_s for part in study.parts if part.state == "planned")
    has = format_seconds(round(left_s)) if left_s >= 1 else "nothing"
    lines = [f"Study of {plain(study.what, 60)}: about {format_seconds(total)}; the budget has {has}"]
    for part in study.parts:
        about = format_seconds(part.planned_s) if part.planned_s else ""
        about = {"left out": "left out", "done": "finished", "not needed": "not needed"}.get(part.state, about)
        lines.append(f"  {part.name:<9}{about:>10}  {part.what}")
    return lines


def conduct(
    study: Study,
    work: Work,
    progress: Progress,
    keep: Callable[[Study], None],
    clock: Callable[[], float] = time.monotonic,
    *,
    before_s: float = 0.0,
) -> Study:
    """Do every part that is not over and fits; the study as it ends. One that fails does not end it.

    What a part takes is asked for before it begins: those before it have shown what a launch takes.
    """
    ends = clock() + study.budget_s - study.used_s - before_s - PAGE_S  # `before_s`: spent on the plan
    pending = [part.name for part in study.parts if part.state not in OVER]
    study = planned(study, work, ends - clock())
    keep(study)
    for line in plan_lines(study, ends - clock() + PAGE_S):
        progress.note(line)
    while pending:
        name = pending.pop(0)
        left_s, seconds = ends - clock(), work.seconds(name)
        part = msgspec.structs.replace(study.part(name), planned_s=seconds, why="")
        earlier_s = part.used_s
        if why := work.skip_reason(name):
            part = msgspec.structs.replace(part, state="not needed", planned_s=0.0, why=why)
        elif seconds > left_s and name not in _ALWAYS:
            part = msgspec.structs.replace(part, state="left out", why=_no_room(seconds, left_s))
        else:
            part = msgspec.structs.replace(part, state="running")
            study = study.with_part(part)
            keep(study)
            shown = PartProgress(progress, name, lambda: ends - clock() + PAGE_S)
            shown.stage(part.what)
            part = _done(part, study, work, _share(name, seconds, pending, work, left_s), shown, keep, clock)
        study = study.with_part(part)
        keep(study)
        if part.state == "done":
            in_all = f", {format_seconds(part.used_s)} in all runs" if earlier_s else ""
            progress.note(f"{name}: done in {format_seconds(part.used_s - earlier_s)}{in_all}")
        else:
            kind: Kind = "problem" if part.state == "failed" else "plain"
            progress.note(f"{name}: {part.state}: {plain(part.why, 300)}", kind)
    return study


def _no_room(seconds: float, left_s: float) -> str:
    left = f"{format_seconds(left_s)} of the budget were" if left_s >= 1 else "nothing of the budget was"
    return f"it takes about {format_seconds(seconds)} and {left} left"


def _share(part: str, seconds: float, later: list[str], work: Work, left_s: float) -> float:
    """Seconds that a part may take: all that is left, but for what those after it need.

    The first parts keep time free for each other alone; refine, which goes on as long as there is time, for all that
    fit.
    """
    free_s = 0.0
    for each in later:
        needs_s = 0.0 if work.skip_reason(each) else work.seconds(each)
        if each in _FIRST or (part == "refine" and free_s + needs_s <= left_s - seconds):
            free_s += needs_s
    return max(left_s - free_s, seconds)


def _done(
    part: StudyPart,
    study: Study,
    work: Work,
    seconds: float,
    progress: Progress,
    keep: Callable[[Study], None],
    clock: Callable[[], float],
) -> StudyPart:
    """The part after it was done; its time counts in every case."""
    began, before = clock(), part.used_s
    try:
        work.run(part.name, seconds, progress)
    except ScalescopeError as problem:
        first, *more = str(problem).splitlines()
        why = f"{first} ({more[-1].strip()})" if more else first  # what a rank printed last usually says it
        return msgspec.structs.replace(part, state="failed", used_s=before + clock() - began, why=why)
    except BaseException:
        keep(study.with_part(msgspec.structs.replace(part, used_s=before + clock() - began)))
        raise
    return msgspec.structs.replace(part, state="done", used_s=before + clock() - began)
