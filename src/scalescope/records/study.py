"""A study: what was asked, the parts it is made of, and what became of each; written as it goes."""

from typing import Annotated as A  # noqa: N817 - every field says it
from typing import Any, ClassVar, Literal

import msgspec

from scalescope.errors import UsageError
from scalescope.options import COUNT, COUNTS, NAMES, SECONDS, Opt
from scalescope.records.request import Fingerprint, TrainingRequest
from scalescope.records.store import Record

STUDY = "study.json"  # The record, in the study's folder
# not needed: what the part would tell is known already; left out: the budget did not hold it.
State = Literal["planned", "running", "done", "failed", "not needed", "left out"]
OVER = ("done", "not needed")  # States of parts that a resumed study leaves alone
PAGE_S = 8.0  # To read the results and write the page, after all parts
_LEAST_BUDGET_S = 10.0


def _read_budget(value: Any, flag: str) -> float:
    """A time in which something can be launched."""
    seconds = float(SECONDS.read(value, flag))
    if seconds < _LEAST_BUDGET_S:
        raise UsageError(f"{flag} {seconds:g}s is too short for anything: give a minute or more, such as 5m")
    return seconds


_BUDGET = SECONDS._replace(read=_read_budget)


class StudyRequest(TrainingRequest, frozen=True, kw_only=True):
    """Options of `scalescope study`."""

    # Empty: 1 and doublings up to all slots
    np: A[tuple[int, ...], Opt("Numbers of processes: 1,2,4 (default: 1, 2, 4, ... up to all slots).", COUNTS)] = ()
    batch: A[
        tuple[int, ...],
        Opt(
            "Batch sizes of the map: 32,64 or 8,16,...,512; the recommended one is measured (default: 8 to 512, "
            "as far as the budget allows; of a command the script's own).",
            COUNTS,
        ),
    ] = ()
    steps: A[
        int | None,
        Opt("Stop launches after N steps (default: 30 to 100 of a command).", COUNT, group="Launch"),
    ] = None
    engines: A[
        tuple[str, ...],
        Opt(
            "ddp, horovod, fsdp2 or several: ddp,horovod; the first one is tuned (default: what the script imports; "
            "for a MODEL ddp and, where installed, horovod).",
            NAMES,
            flag="--engine",
            keyword="engine",
            metavar="NAME",
        ),
    ] = ()
    budget_s: A[
        float,
        Opt(
            "Time for everything together: 5m, 1h; what does not fit is left out.",
            _BUDGET,
            flag="--budget",
            group="Statistics",
            of_run=True,
            again=True,
        ),
    ] = 300.0


class StudyPlan(Record, frozen=True, kw_only=True, tag="study_plan"):
    """Plan of a study; written before anything is launched."""

    current_version: ClassVar[int] = 1

    request: StudyRequest
    cwd: str
    fingerprint: Fingerprint | None = None
    engines: tuple[str, ...]  # The first one's knobs are tuned, and its map is drawn
    np: tuple[int, ...]
    batches: tuple[int, ...]  # Of the map; empty: the script alone knows
    threads_per_rank: int | None = None  # Equal in all launches; None: a launch line of the user decides it
    start_s: float  # What it takes to start and to end a launch, about
    sample_s: float  # Of a step with one sample in one process, about; 0: not known
    notes: tuple[str, ...] = ()  # What a reader of the result should know


class StudyPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a study."""

    name: str
    what: str  # That it does, for people
    planned_s: float = 0.0  # As expected when the study, or the part, began
    state: State = "planned"
    used_s: float = 0.0
    why: str = ""  # It failed, was not needed or was left out
    without: tuple[str, ...] = ()  # What the budget did not hold of a part that was done


class Study(Record, frozen=True, kw_only=True, tag="study"):
    """The parts of a study and where they stand."""

    current_version: ClassVar[int] = 1

    what: str
    budget_s: float
    parts: tuple[StudyPart, ...]

    @property
    def used_s(self) -> float:
        """Seconds of all parts together."""
        return sum(part.used_s for part in self.parts)

    @property
    def left_out(self) -> tuple[StudyPart, ...]:
        """Parts that the budget did not hold."""
        return tuple(part for part in self.parts if part.state == "left out")

    @property
    def unfinished(self) -> tuple[StudyPart, ...]:
        """Parts that a resumed study does: left out, failed, or not begun."""
        return tuple(part for part in self.parts if part.state not in OVER)

    def part(self, name: str) -> StudyPart:
        """The part of that name."""
        return next(part for part in self.parts if part.name == name)

    def with_part(self, part: StudyPart) -> "Study":
        """The study in which the part of this name is this one."""
        parts = tuple(part if each.name == part.name else each for each in self.parts)
        return msgspec.structs.replace(self, parts=parts)
