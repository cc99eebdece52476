"""What a user asks of measure, probe and estimate, and the plans that interrupted work is resumed from."""

from typing import Any, ClassVar, Literal

import msgspec

from scalescope.records.job import Host
from scalescope.records.profile import WorkloadSpec
from scalescope.records.store import Record
from scalescope.records.training_name import training_name
from scalescope.stats import FEWEST


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the software, which must not change between launches that are compared."""

    host: str
    cpu: str  # Its model, as the kernel names it; empty where it does not
    cores: int  # That the process may use
    gpus: tuple[str, ...]  # Their names
    python: str
    torch: str  # Empty: none


ScalingKind = Literal["strong", "weak"]
# What --scaling says and what it stands for.
SCALINGS: dict[str, tuple[ScalingKind, ...]] = {"strong": ("strong",), "weak": ("weak",), "both": ("strong", "weak")}

QUICK_PRECISION = (
    0.05  # A quick launch ends when its speedup is known within this fraction, unless another is asked for
)


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `scalescope measure` can be told."""

    workload: WorkloadSpec | None = None
    command: tuple[str, ...] = ()  # The user's own training, instead of a workload
    np: tuple[int, ...] = (1, 2)
    batch: tuple[int, ...] = ()
    scaling: tuple[ScalingKind, ...] = ("weak",)
    engines: tuple[str, ...] = ()
    launcher: str = ""
    hosts: tuple[Host, ...] = ()
    knobs: tuple[str, ...] = ()
    threads_per_rank: int | None = None
    env: dict[str, str] = {}
    launcher_args: tuple[str, ...] = ()
    steps: int | None = None
    pattern: str = ""
    device: str = "auto"
    timeout_s: float = 600.0
    port: int | None = None
    ssh: str = "ssh"
    oversubscribe: bool = False
    folder: str = ""
    launches: int | None = None  # Most launches per configuration; None: 5, or 30 with a precision
    precision: float | None = None  # Stop when every steady speedup is known within this fraction
    budget_s: float | None = None  # Start no launch that would end later than this
    quick: bool = False  # One launch per point, which interleaves blocks of one process alone and of all processes
    smallest: bool = False  # Speedups are relative to the smallest number of processes when that is not 1
    trace: bool = False  # One more launch of every point, in which some steps are captured
    from_start: bool = False  # Captured are the first steps, not steady ones
    cpu_detail: bool = False  # Operators of the CPU are captured, too, where GPUs do the work
    seed: int | None = None  # Random seed for the launch order

    @property
    def most_launches(self) -> int:
        """The largest number of launches of a point."""
        return self.launches or (1 if self.quick else 30 if self.precision else FEWEST)

    @property
    def what(self) -> str:
        """The model or the command, for people."""
        return training_name(self.workload, self.command)


# What is launched and how, under one name in every request that launches.
_LAUNCHED = (
    "workload",
    "command",
    "launcher",
    "hosts",
    "env",
    "launcher_args",
    "device",
    "timeout_s",
    "ssh",
    "oversubscribe",
)


def launch_of(request: msgspec.Struct) -> dict[str, Any]:
    """The training of a request, and where and how it is started: what `measure`, `tune` and `study` have in common."""
    return {name: getattr(request, name) for name in _LAUNCHED}


class Plan(Record, frozen=True, kw_only=True, tag="plan"):
    """What a measurement set out to do; written before its first launch."""

    current_version: ClassVar[int] = 2

    request: MeasureRequest  # With everything settled that must not change when it is resumed elsewhere
    cwd: str
    steps: int = 0  # Of every launch of a MODEL, found by trying it; 0: not tried yet, or a script
    seconds: float | None = None  # Guess for one launch of each point
    since_ns: int  # When it began, nanoseconds since the epoch
    fingerprint: Fingerprint | None = None  # Where it began; None: not known
    notes: tuple[str, ...] = ()  # What happened on the way that a reader of the result should know


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `scalescope probe` can be told."""

    backends: tuple[str, ...] = ()  # Empty: gloo, or nccl where there are GPUs
    hosts: tuple[Host, ...] = ()
    slots: int | None = None  # Ranks of a node; None: its GPUs, or its cores over the threads of a rank
    threads_per_rank: int = 1
    device: str = "auto"
    seconds: float = 8.0  # For each group of ranks
    rounds: int = 6
    env: dict[str, str] = {}
    ssh: str = "ssh"
    timeout_s: float = 600.0
    folder: str = ""


class EstimateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `scalescope estimate` can be told."""

    workload: WorkloadSpec
    np: tuple[int, ...] = ()  # Empty: as many as the cluster has slots
    batch: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    scaling: tuple[ScalingKind, ...] = ("weak",)
    engine: str = "ddp"
    knobs: tuple[str, ...] = ()
    cluster: str = ""  # A file; empty: this machine, probed on the way
    profile: str = ""  # A file; empty: taken here
    step_time: dict[int, float] = {}  # Known seconds of one process by batch, so that nothing is profiled
    threads_per_rank: int | None = None
    device: str = "auto"
    seconds: float = 18.0  # For the profile
    repeats: int = 8  # Blocks of steps of each batch size, as far as time allows
    efficiency: float = 0.8
    verify: int = 0
    launches: int = 3  # Of every cell that is verified
    timeout_s: float = 600.0
    folder: str = ""


class EstimatePlan(Record, frozen=True, kw_only=True, tag="estimate_plan"):
    """What an estimate set out to do; written first, so that an interrupted one can be resumed."""

    request: EstimateRequest  # Without its folder
    fingerprint: Fingerprint
    finished: bool = False
