"""Records of measuring: one Run per launch, and the Measurement that holds them."""

from typing import Annotated, ClassVar, Literal

import msgspec

from scalescope.errors import WorkFailed
from scalescope.records.job import NO_ENGINE
from scalescope.records.store import Inside, Record
from scalescope.text import plain, plural

_LONGEST_S = 1e12  # No launch takes as long: sums of larger numbers, which only an editor writes, would overflow
Seconds = Annotated[float, msgspec.Meta(ge=-_LONGEST_S, le=_LONGEST_S)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=1e-12, le=_LONGEST_S)]

# Every second of a launch belongs to one of these, in the order in which they usually come.
PHASES = ("launch", "import", "init", "build", "warmup", "steady", "evaluation", "pause", "teardown")
TRAIN = "train"  # What stands for all of TRAIN_PHASES in a table that does not tell them apart
TRAIN_PHASES = ("warmup", "steady", "evaluation", "pause")
INIT_PHASES = ("import", "init", "build")
LAUNCH_PHASES = ("launch", "teardown")


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration to measure."""

    engine: str
    np: int
    batch: int | None  # Per process; None when the script alone knows it
    threads_per_rank: int | None  # None: a launch line of the user decided it
    arm: str = ""  # A or B when a configuration is compared with itself
    assumed: bool = False  # No one named a script's engine: its ranks show it

    @property
    def global_batch(self) -> int | None:
        """Samples per step over all processes."""
        return None if self.batch is None else self.batch * self.np

    @property
    def label(self) -> str:
        """A short name that is fit for a file."""
        batch = "" if self.batch is None else f"-b{self.batch}"
        arm = f"-{self.arm}" if self.arm else ""
        return f"{'' if self.assumed else f'{self.engine}-'}np{self.np}{batch}{arm}"


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one rank in a launch."""

    rank: int
    host: str
    pid: int
    phases: dict[str, Seconds]  # Seconds per phase; they add up to the launch's wall time. Empty in a quick launch
    steps: int
    samples_per_step: float | None
    step_s: float | None  # Median steady step of this rank alone


class RankHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host of a launch, and the ranks that ran there."""

    name: str
    cpu: str = ""  # Its model, as the kernel names it; empty where it does not
    cores: int = 0  # Of the host, every hyperthread; 0: not known
    gpus: tuple[str, ...] = ()  # Models of all its GPUs, as NVIDIA's driver names them
    ranks: tuple[int, ...] = ()

    @property
    def kind(self) -> tuple[str, int, tuple[str, ...]]:
        """Hosts of one kind are expected to be equally fast."""
        return self.cpu, self.cores, self.gpus

    @property
    def words(self) -> str:
        """Description of its hardware, for people."""
        gpus = f" and {plural(len(self.gpus), 'GPU')}: {', '.join(dict.fromkeys(self.gpus))}" if self.gpus else ""
        return plain(f"{plural(self.cores, 'core')} of {self.cpu or 'an unnamed CPU'}{gpus}", 120)


QUIET = 0.25  # Cores of other programs up to which a launch, a round or a block of steps counts as undisturbed


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Load of this machine by other programs during a launch."""

    foreign_cores: float  # Cores' worth of CPU time that other processes, or the hypervisor, took on average
    cores: int
    load_average: float  # Over one minute


class Unsteady(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a launch that keep no even pace."""

    kind: Literal["faster", "slower", "kinds"]
    sentence: str  # One of the launch's warnings
    drift: float = 0.0  # Relative, from the first to the last quarter, above 0; 0: no steady state was reached at all


class Run(Record, frozen=True, kw_only=True, tag="run"):
    """One launch, measured."""

    current_version: ClassVar[int] = 1

    point: Point
    round: int = 1  # Launches of one round were made one after the other and are compared with each other
    folder: Inside  # type: ignore[assignment]  # Relative to the measurement's folder
    wall_s: Seconds
    phases: dict[str, Seconds]  # Seconds per phase, the mean over ranks; they add up to wall_s
    steps: int
    warmup_steps: int
    # A step's time is the mean over ranks of their own times (steady.step_times).
    step_s: PositiveSeconds  # The typical steady step: the median over blocks of their median steps
    mean_step_s: PositiveSeconds  # Elapsed steady time over its steps; throughput and speedups come from it
    blocks: tuple[Seconds, ...] = ()  # The median step of every block of steady steps, in order
    # In a quick launch, per pair of blocks: elapsed time over steps of one process alone and of all processes.
    pairs: tuple[tuple[float, float], ...] = ()
    throughput: float | None  # Samples over elapsed steady time, of all ranks together
    samples_per_step: float | None  # Over all ranks
    engine_seen: str  # What the ranks really used; empty when only their output was read
    # Whether ranks exchanged something in every step; None: not known, or there was one rank.
    exchanges: bool | None = None
    as_it_is: str = ""  # Why the command was started without the launcher that was planned; empty: it was not
    backend: str
    source: str  # Where steps came from: the optimizer, or a pattern on the output
    ranks: tuple[RankSummary, ...]
    hosts: tuple[RankHost, ...] = ()  # In order of their first rank; empty when only output was read
    batch_job: str = ""  # Of the batch system that the ranks ran under: `slurm 4711`; empty: none
    load: Load | None = None  # None when ranks ran on other machines
    warnings: tuple[str, ...] = ()
    unsteady: Unsteady | None = None  # None: even steps, or a record of before this was kept

    @property
    def train_s(self) -> float:
        """From the first step to the last one, with what happened between them."""
        return sum(self.phases.get(phase, 0.0) for phase in TRAIN_PHASES)

    @property
    def nodes(self) -> int:
        """Hosts that the ranks ran on."""
        return max(len({rank.host for rank in self.ranks}), 1)


class Failure(Record, frozen=True, kw_only=True, tag="failure"):
    """A launch that did not end well."""

    point: Point
    round: int = 1
    folder: Inside  # type: ignore[assignment]  # As that of a Run
    problem: str
    details: str

    def error(self, what: str, kept: str = "") -> WorkFailed:
        """The error of work that ended with this launch: one line, and then what its ranks said."""
        return WorkFailed(f"{what}: {self.problem}{kept}\n{self.details}".rstrip())


def _engine(run: Run) -> str:
    """The engine that was seen; none for ranks that exchange by other means: FSDP, or an exchange by hand."""
    if run.engine_seen == NO_ENGINE and run.point.np > 1 and run.exchanges is not False:
        return ""
    return run.engine_seen or run.point.engine


class Measurement(Record, frozen=True, kw_only=True, tag="measurement"):
    """A sweep over points: what was asked, where it ran and what came out."""

    current_version: ClassVar[int] = 2

    what: str  # The model or the command
    scaling: tuple[str, ...]  # strong, weak or both; they share launches where they meet
    # As asked: global for strong, per process for weak scaling; empty when the script alone knows.
    batch: tuple[int, ...] = ()
    precision: float | None = None  # The precision of speedups at which launches ended
    quick: bool = False  # Whether launches interleaved blocks of one process alone and of all processes
    created: str
    scalescope: str
    torch: str
    host: str
    cores: int
    launcher: dict[str, str]  # Per engine, the launcher that was used
    binding: str
    named_hosts: bool = False  # Whether the user named hosts: then the node is a unit too
    runs: tuple[Run, ...]
    failures: tuple[Failure, ...] = ()
    traces: tuple[Inside, ...] = ()  # Folders of traced launches, relative to the measurement's
    stopped: str = ""  # Why no more launches were made
    warnings: tuple[str, ...] = ()  # About the measurement as a whole

    def as_seen(self) -> "Measurement":
        """A copy with every point under the engine that its ranks really used, where that is known."""
        points = {
            run.point: msgspec.structs.replace(run.point, engine=_engine(run), assumed=False) for run in self.runs
        }
        runs = (msgspec.structs.replace(run, point=points[run.point]) for run in self.runs)
        return msgspec.structs.replace(self, runs=tuple(runs))
