"""Which parts of a study fit into its budget, in which scope, and their order: decided before every part anew."""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from scalescope.errors import ScalescopeError
from scalescope.records.study import Study, StudyPart
from scalescope.units import format_seconds

PAGE_S = 8.0  # To read the results and write the page, after all parts
FEWEST_LAUNCHES, USUAL_LAUNCHES = 3, 5
_OVER = ("done", "not needed")


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a study is done."""

    others: bool = False  # Engines next to the first one: Horovod next to DDP
    strong: bool = False  # Next to weak scaling
    launches: int = USUAL_LAUNCHES
    check: bool = True
    tune: bool = True
    verify: bool = True
    explain: bool = True

    def holds(self, part: str) -> bool:
        """Whether a part is done at all; the map and a measurement always are."""
        return bool(getattr(self, part, True))

    def without(self, full: "Scope") -> tuple[str, ...]:
        """What a measurement in this scope lacks against the full one."""
        lacks = [("Horovod", full.others and not self.others), ("strong scaling", full.strong and not self.strong)]
        said = [name for name, is_missing in lacks if is_missing]
        if self.launches < full.launches:
            first = self.launches + 1
            said.append(f"launch{'' if first == full.launches else f'es {first} to'} {full.launches} of every point")
        return tuple(said)


def reductions(full: Scope) -> Iterator[Scope]:
    """Smaller and smaller scopes: what tells least about the answer goes first."""
    scope = full
    yield scope
    changes: list[dict[str, bool | int]] = [{"others": False}, {"strong": False}]
    changes += [{"launches": count} for count in range(full.launches - 1, FEWEST_LAUNCHES - 1, -1)]
    changes += [{"check": False}, {"tune": False}, {"verify": False}]
    changes += [*({"launches": count} for count in range(FEWEST_LAUNCHES - 1, 0, -1)), {"explain": False}]
    for change in changes:
        smaller = msgspec.structs.replace(scope, **change)
        if smaller != scope:
            scope = smaller
            yield scope


def fit(full: Scope, cost_s: Callable[[Scope], float], left_s: float) -> Scope:
    """The largest scope that fits into the time; where none does, the smallest."""
    scope = full
    for scope in reductions(full):
        if cost_s(scope) <= left_s:
            break
    return scope


class Work(Protocol):
    """The parts themselves."""

    def full(self) -> Scope:
        """Everything that can be done, as far as it is known."""

    def seconds(self, part: str, scope: Scope) -> float:
        """What a part is expected to take, by what is known now."""

    def lacks(self, scope: Scope) -> tuple[str, ...]:
        """What the measurement lacks that was made, or would be made, in this scope."""

    def needless(self, part: str) -> str:
        """Why a part has nothing to tell; empty: it has."""

    def run(self, part: str, scope: Scope, seconds: float) -> None:
        """Do it, or what an interruption left of it; `seconds`: what the budget leaves for it."""


class StudyListener(Protocol):
    """Is told how a study goes on, next to what the verbs tell their listeners."""

    def plan_made(self, study: Study, left_s: float) -> None:
        """Before the first part: all of them, with the seconds that each is expected to take."""

    def part_begins(self, part: StudyPart, left_s: float) -> None:
        """A part begins; what is left of the budget."""

    def part_ends(self, part: StudyPart) -> None:
        """A part is over, or is left out."""


def planned(study: Study, work: Work, left_s: float) -> Study:
    """The study with what each part that is not over would take, and with those left out that do not fit."""
    full, pending = work.full(), [part.name for part in study.parts if part.state not in _OVER]
    scope = fit(full, lambda each: _cost(work, pending, each), left_s)
    for name in pending:
        part, held = study.part(name), scope.holds(name)
        study = study.with_part(
            msgspec.structs.replace(
                part,
                planned_s=work.seconds(name, scope),
                state="planned" if held else "left out",
                why="" if held else _no_room(work.seconds(name, full), left_s),
                without=work.lacks(scope) if name == "measure" else (),
            )
        )
    return study


def conduct(
    study: Study,
    work: Work,
    listener: StudyListener,
    keep: Callable[[Study], None],
    clock: Callable[[], float] = time.monotonic,
    *,
    before_s: float = 0.0,
) -> Study:
    """Do every part that is not over and fits; the study as it ends. One that fails does not end it.

    The scope is chosen anew before every part, by what is left of the budget and by what was learned on the way: a part
    that took longer costs later ones their place, and one that took less gives it back.
    """
    ends = clock() + study.budget_s - study.used_s - before_s - PAGE_S  # `before_s`: spent on the plan
    study = planned(study, work, ends - clock())
    keep(study)
    listener.plan_made(study, ends - clock() + PAGE_S)
    pending = [part.name for part in study.parts if part.state not in _OVER]
    while pending:
        left_s, full = ends - clock(), work.full()
        scope = fit(full, lambda each: _cost(work, pending, each), left_s)
        name = pending.pop(0)
        part = study.part(name)
        part = msgspec.structs.replace(part, planned_s=work.seconds(name, scope), why="", without=())
        if why := work.needless(name):
            part = msgspec.structs.replace(part, state="not needed", planned_s=0.0, why=why)
        elif not scope.holds(name):
            part = msgspec.structs.replace(part, state="left out", why=_no_room(part.planned_s, left_s))
        else:
            part = msgspec.structs.replace(part, state="running")
            study = study.with_part(part)
            keep(study)
            listener.part_begins(part, left_s + PAGE_S)
            share_s = max(left_s - _cost(work, pending, scope), 0.0)
            part = _done(part, study, work, scope, share_s, keep, clock)
            study = study.with_part(part)
            if name in ("measure", "refine"):
                measured = msgspec.structs.replace(study.part("measure"), without=work.lacks(scope))
                study, part = study.with_part(measured), measured if name == "measure" else part
        study = study.with_part(part)
        keep(study)
        listener.part_ends(part)
    return study


def _cost(work: Work, parts: list[str], scope: Scope) -> float:
    return sum(work.seconds(name, scope) for name in parts if scope.holds(name) and not work.needless(name))


def _no_room(seconds: float, left_s: float) -> str:
    left = f"{format_seconds(left_s)} of the budget were" if left_s >= 1 else "nothing of the budget was"
    return f"it takes about {format_seconds(seconds)} and {left} left"


def _done(
    part: StudyPart,
    study: Study,
    work: Work,
    scope: Scope,
    seconds: float,
    keep: Callable[[Study], None],
    clock: Callable[[], float],
) -> StudyPart:
    """The part after it was done; its time counts in every case."""
    began, before = clock(), part.used_s
    try:
        work.run(part.name, scope, seconds)
    except ScalescopeError as problem:
        first, *more = str(problem).splitlines()
        why = f"{first} ({more[-1].strip()})" if more else first  # what a rank printed last usually says it
        return msgspec.structs.replace(part, state="failed", used_s=before + clock() - began, why=why)
    except BaseException:
        keep(study.with_part(msgspec.structs.replace(part, used_s=before + clock() - began)))
        raise
    return msgspec.structs.replace(part, state="done", used_s=before + clock() - began)
