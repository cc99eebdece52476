"""A study: what was asked, the parts it is made of, and what became of each; written as it goes."""

from typing import ClassVar, Literal

import msgspec

from scalescope.records.job import Host
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import Fingerprint
from scalescope.records.store import Record
from scalescope.records.training_name import training_name

STUDY = "study.json"  # The record, in the study's folder
# not needed: what the part would tell is known already; left out: the budget did not hold it.
State = Literal["planned", "running", "done", "failed", "not needed", "left out"]


class StudyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `scalescope study` can be told."""

    workload: WorkloadSpec | None = None
    command: tuple[str, ...] = ()  # The user's own training, instead of a workload
    np: tuple[int, ...] = ()  # Empty: 1 and doublings up to all slots
    batch: tuple[int, ...] = ()  # Of the map; measured is the recommended one. Empty: 8 to 512, or the script's own
    engines: tuple[str, ...] = ()  # Empty: DDP and, where installed, Horovod; of a script what it imports
    launcher: str = ""
    hosts: tuple[Host, ...] = ()
    threads_per_rank: int | None = None
    env: dict[str, str] = {}
    launcher_args: tuple[str, ...] = ()
    steps: int | None = None  # Of every launch that is measured
    device: str = "auto"
    timeout_s: float = 600.0
    ssh: str = "ssh"
    oversubscribe: bool = False
    budget_s: float = 300.0  # For everything together
    folder: str = ""

    @property
    def what(self) -> str:
        """The model or the command, for people."""
        return training_name(self.workload, self.command)


class StudyPlan(Record, frozen=True, kw_only=True, tag="study_plan"):
    """What a study set out to do; written before anything is launched."""

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
        """Of all parts together."""
        return sum(part.used_s for part in self.parts)

    def part(self, name: str) -> StudyPart:
        """The part of that name."""
        return next(part for part in self.parts if part.name == name)

    def with_part(self, part: StudyPart) -> "Study":
        """The study in which the part of this name is this one."""
        parts = tuple(part if each.name == part.name else each for each in self.parts)
        return msgspec.structs.replace(self, parts=parts)
