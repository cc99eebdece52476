"""Requests of the verbs, one declaration per option, and the plans that interrupted work is resumed from."""

import re
from typing import Annotated as A  # noqa: N817 - every field says it
from typing import Any, ClassVar, Literal

import msgspec

from scalescope.errors import UsageError
from scalescope.options import (
    ASSIGNMENTS,
    COUNT,
    COUNTS,
    FILE,
    FILES,
    FLAG,
    FRACTION,
    NAMES,
    SECONDS,
    TEXT,
    TEXTS,
    VARIABLES,
    WORDS,
    Kind,
    Opt,
    choice,
    count,
)
from scalescope.records.comparison import TOLERANCE
from scalescope.records.job import HOSTS, Host
from scalescope.records.profile import WorkloadSpec
from scalescope.records.store import Record
from scalescope.records.training_name import training_name
from scalescope.stats import FEWEST
from scalescope.text import listed, plain
from scalescope.units import MOST_PER_HOST

FORMATS = ("html", "png", "svg", "pdf")  # Of pictures
USUAL_FORMATS = ("html", "png")
EFFICIENCY_GOAL = 0.8  # Efficiency from which on a setting counts as efficient, unless another is asked for
USUAL_BATCH = 32  # Of a MODEL, where none is asked for


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

_THREADS = count(most=MOST_PER_HOST)
_SCALING = choice(*SCALINGS)._replace(
    read=lambda value, flag: value if isinstance(value, tuple) else SCALINGS[choice(*SCALINGS).read(value, flag)],
    write=lambda value: next(name for name, kinds in SCALINGS.items() if kinds == value),
)
_SSH = Opt("Program that starts a shell on another host.", TEXT, metavar="PROGRAM", group="Launch", rare=True)
_HOSTS = Opt("Hosts and slots: a:2,b:2 (default: this machine).", HOSTS, group="Launch", horovodrun=("-H",))
_TIMEOUT = Opt("Abort a launch after this long without progress.", SECONDS, flag="--timeout", group="Launch", rare=True)


def _read_relative_to(value: Any, flag: str) -> bool:
    if value not in (True, False, "smallest"):
        raise UsageError(
            f"{flag} takes 'smallest', not '{plain(str(value), 60)}': leave it out to compare with 1 process"
        )
    return bool(value)


def _read_log_counts(value: Any, flag: str) -> tuple[int, ...]:
    """Numbers of processes in the order of the logs; a range is of runs."""
    if not isinstance(value, str) or ".." in value:
        return tuple(COUNTS.read(value, flag))
    parts = [part.strip() for part in value.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,8}", part) for part in parts):
        raise UsageError(f"{flag} takes whole numbers such as 1,2,4, one per log, not '{plain(value, 60)}'")
    return tuple(int(part) for part in parts)


_RELATIVE_TO = Kind(_read_relative_to, lambda _: "smallest", "bool", "smallest")
_OF_LOGS = COUNTS._replace(read=_read_log_counts)
# `97ms` belongs to the one batch size, so all of it is read when the batch is known.
_STEP_TIME = Kind(
    lambda value, _flag: value,
    lambda value: ",".join(f"{batch}={seconds * 1e3:g}ms" for batch, seconds in value.items()),
    "str | float | Mapping[int, float]",
)

Folder = A[
    str,
    Opt(
        "Folder for the results.",
        FILE,
        "-o",
        short="--output",
        metavar="DIR",
        group="Output",
        of_run=True,
        place=True,
        of_files=True,
    ),
]
Knobs = A[tuple[str, ...], Opt("Engine setting; repeatable.", ASSIGNMENTS, flag="--knob")]
Threads = A[int | None, Opt("Threads per rank (default: cores // ranks on a host).", _THREADS, group="Launch")]
_KINDS = Opt("weak: --batch is per process; strong: --batch is global; or both.", _SCALING)
Scaling = A[tuple[ScalingKind, ...], _KINDS]
Engine = A[str, Opt("ddp, horovod or fsdp2 (default: what the script imports; ddp for a MODEL).", TEXT)]
OneBatch = A[int | None, Opt(f"Batch size per process (default: {USUAL_BATCH} for a MODEL).", COUNT)]
Pattern = A[
    str,
    Opt(
        "Regular expression for the lines to read, with a named group: step_s, epoch_s, examples_per_s, "
        "examples_per_s_total or examples_per_s_per_worker. measure also takes one without groups: a line per step.",
        TEXT,
        metavar="REGEX",
        of_files=True,
    ),
]


class WorkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every verb that starts processes."""

    device: A[str, Opt("Device of a MODEL.", choice("cpu", "cuda", "auto"), group="Model")] = "auto"
    timeout_s: A[float, _TIMEOUT] = 600.0
    # Only of what is typed: the request has numbers of processes instead, except that of probe
    nodes: A[
        tuple[int, ...],
        Opt(
            "Numbers of nodes, such as 1,2,4, instead of --np; each with --per-node processes.",
            COUNTS,
            group="Launch",
            of_run=True,
        ),
    ] = ()
    per_node: A[int | None, Opt("Processes on a node (default: the GPUs in --site).", _THREADS, group="Launch")] = None
    submit: A[
        str,
        Opt("slurm: submit a job that does this, and wait for it.", TEXT, metavar="slurm", group="Launch"),
    ] = ""
    site: A[
        str,
        Opt("Account, partition, time, modules and the like of jobs, as TOML.", FILE, group="Launch"),
    ] = ""
    patience_s: A[
        float | None,
        Opt(
            "Cancel a submitted job that still waits in the queue after this long (default: never).",
            SECONDS,
            flag="--patience",
            group="Launch",
            of_run=True,
            again=True,
            rare=True,
        ),
    ] = None
    no_wait: A[
        bool,
        Opt(
            "Submit and return at once; --resume DIR waits for the job, or shows what it left.",
            FLAG,
            group="Launch",
            of_run=True,
            again=True,
            rare=True,
        ),
    ] = False


class HostsRequest(WorkRequest, frozen=True, kw_only=True):
    """Hosts on which processes are started."""

    hosts: A[tuple[Host, ...], _HOSTS] = ()
    env: A[dict[str, str], Opt("Environment variable for every rank; repeatable.", VARIABLES, group="Launch")] = {}
    ssh: A[str, _SSH] = "ssh"


class LaunchRequest(HostsRequest, frozen=True, kw_only=True):
    """Options of a launch."""

    workload: WorkloadSpec | None = None
    command: A[
        tuple[str, ...],
        Opt("The user's own training, instead of a MODEL.", TEXTS, after_dashes=True),
    ] = ()
    launcher: A[
        str,
        Opt(
            "torchrun, mpirun, horovodrun, srun, srun-torchrun or own (default: the usual one of the engine).",
            TEXT,
            group="Launch",
        ),
    ] = ""
    launcher_args: A[
        tuple[str, ...],
        Opt("Passed on to the launcher; repeatable.", WORDS, flag="--launcher-arg", group="Launch", rare=True),
    ] = ()
    oversubscribe: A[bool, Opt("Allow more processes than slots.", FLAG, group="Launch", rare=True)] = False


class TrainingRequest(LaunchRequest, frozen=True, kw_only=True):
    """Options of every verb that launches a training."""

    threads_per_rank: Threads = None
    steps: A[int | None, Opt("Stop after N steps (default: when the script ends).", COUNT, group="Launch")] = None
    folder: Folder = ""

    @property
    def what(self) -> str:
        """The model or the command, for people."""
        return training_name(self.workload, self.command)


def launch_of(request: LaunchRequest) -> dict[str, Any]:
    """The training of a request, and where and how it is started: what `measure`, `tune` and `study` have in common."""
    return {field.name: getattr(request, field.name) for field in msgspec.structs.fields(LaunchRequest)}


class MeasureRequest(TrainingRequest, frozen=True, kw_only=True):
    """Options of `scalescope measure`."""

    # Resumed, it gets those points in addition to its own that `again` allows (measurement/resume.py).
    np: A[tuple[int, ...], Opt("Numbers of processes: 1,2,4 or 1..8.", COUNTS, always=True, again=True)] = (1, 2)
    batch: A[
        tuple[int, ...],
        Opt(f"Batch sizes: 32,64 or 8,16,...,512 (default: {USUAL_BATCH} for a MODEL).", COUNTS, again=True),
    ] = ()
    scaling: A[tuple[ScalingKind, ...], _KINDS._replace(again=True)] = ("weak",)
    engines: A[
        tuple[str, ...],
        Opt(
            "ddp, horovod, fsdp2, several such as ddp,horovod, or none for a command without a launcher (default: "
            "what the script imports; ddp for a MODEL).",
            NAMES,
            flag="--engine",
            keyword="engine",
            metavar="NAME",
            again=True,
        ),
    ] = ()
    hosts: A[tuple[Host, ...], _HOSTS._replace(again=True)] = ()
    knobs: Knobs = ()
    pattern: Pattern = ""
    port: A[
        int | None,
        Opt("Port of rank 0 (default: a free one).", count(most=65535), metavar="PORT", group="Launch", rare=True),
    ] = None
    trace: A[
        bool,
        Opt("Add one launch per point that captures steps for scalescope explain.", FLAG, group="Launch", of_run=True),
    ] = False
    launches: A[
        int | None,
        Opt(
            "Maximum launches per configuration (default: 5; 30 with --precision).",
            COUNT,
            group="Statistics",
            of_run=True,
            again=True,
        ),
    ] = None
    precision: A[
        float | None,
        Opt(
            "Launch until steady speedups are known within this: 5%.",
            FRACTION,
            group="Statistics",
            of_run=True,
            again=True,
        ),
    ] = None
    # No launch begins that would end later
    budget_s: A[
        float | None,
        Opt(
            "Stop launching after this long: 90s, 10m, 2h.",
            SECONDS,
            flag="--budget",
            group="Statistics",
            of_run=True,
            again=True,
        ),
    ] = None
    # Speedups are relative to the smallest number of processes when that is not 1
    smallest: A[
        bool,
        Opt(
            "'smallest': baseline is the smallest number of processes (default: 1 process).",
            _RELATIVE_TO,
            flag="--relative-to",
            group="Statistics",
            rare=True,
        ),
    ] = False
    per_point: A[
        bool,
        Opt(
            "Submit a job for every number of processes, one after another, each with the nodes that it needs.",
            FLAG,
            group="Launch",
            of_run=True,
            rare=True,
        ),
    ] = False
    seed: A[
        int | None,
        Opt("Random seed for the launch order.", count(0, 2**63 - 1), group="Statistics", of_run=True, rare=True),
    ] = None
    timeout_s: A[float, _TIMEOUT._replace(again=True)] = 600.0
    quick: bool = False  # One launch per point, which interleaves blocks of one process alone and of all processes
    from_start: bool = False  # Captured are the first steps, not steady ones
    cpu_detail: bool = False  # Operators of the CPU are captured, too, where GPUs do the work

    @property
    def most_launches(self) -> int:
        """The largest number of launches of a point."""
        return self.launches or (1 if self.quick else 30 if self.precision else FEWEST)


class ExplainRequest(TrainingRequest, frozen=True, kw_only=True):
    """Options of `scalescope explain`."""

    paths: A[
        tuple[str, ...],
        Opt(
            "Horovod timelines, profiler traces of all ranks, a folder of scalescope measure, training logs, "
            "a scaling table or a Horovod autotune log (CSV). Or a MODEL, or -- COMMAND, to run and capture.",
            FILES,
            argument=True,
            of_files=True,
        ),
    ] = ()
    np: A[
        tuple[int, ...],
        Opt("Processes of every log, in their order: 1,2,4; or of the run (2).", _OF_LOGS, of_files=True),
    ] = ()
    pattern: Pattern = ""
    estimate: A[
        str,
        Opt("Folder of scalescope estimate, or a cluster.toml, to compare with.", FILE, metavar="PATH", of_files=True),
    ] = ""
    export: A[
        str,
        Opt("Write the steps of all ranks as one trace for Perfetto.", FILE, of_run=True, place=True, of_files=True),
    ] = ""
    engine: Engine = ""
    batch: OneBatch = None
    knobs: Knobs = ()
    from_start: A[bool, Opt("Capture the first steps, to explain a slow first epoch.", FLAG)] = False
    cpu_detail: A[bool, Opt("On GPUs capture operators of the CPU and message sizes, too; slows steps.", FLAG)] = False


class Plan(Record, frozen=True, kw_only=True, tag="plan"):
    """Plan of a measurement; written before its first launch."""

    current_version: ClassVar[int] = 2

    request: MeasureRequest  # With everything settled that must not change when it is resumed elsewhere
    cwd: str
    steps: int = 0  # Of every launch of a MODEL, found by trying it; 0: not tried yet, or a script
    seconds: float | None = None  # Guess for one launch of each point
    since_ns: int  # When it began, nanoseconds since the epoch
    fingerprint: Fingerprint | None = None  # Where it began; None: not known
    # Of launches from now on: points that were added, and another batch job, begin with a round of their own.
    first_round: int = 1
    notes: tuple[str, ...] = ()  # What happened on the way that a reader of the result should know


class ProbeRequest(HostsRequest, frozen=True, kw_only=True):
    """Options of `scalescope probe`."""

    # Empty: gloo, or nccl where there are GPUs
    backends: A[
        tuple[str, ...],
        Opt(
            "gloo, nccl, horovod-gloo, horovod-mpi, separated by commas (default: the one that DDP uses here).",
            NAMES,
            flag="--backend",
        ),
    ] = ()
    slots: A[int | None, Opt("Ranks per host (default: its GPUs, or its cores).", _THREADS)] = None
    threads_per_rank: A[int, Opt("Threads per rank.", _THREADS)] = 1
    seconds: A[float, Opt("Time per group of ranks.", SECONDS)] = 8.0
    rounds: int = 6
    folder: Folder = ""


class EstimateRequest(WorkRequest, frozen=True, kw_only=True):
    """Options of `scalescope estimate`."""

    hosts: A[tuple[Host, ...], _HOSTS] = ()  # On which the links are probed and cells are verified
    ssh: A[str, _SSH] = "ssh"
    env: dict[str, str] = {}  # Variables of every rank, as a study of a MODEL was given them

    workload: WorkloadSpec | None = None
    command: A[
        tuple[str, ...],
        Opt("The user's own training, instead of a MODEL: it runs here as rank 0 of N.", TEXTS, after_dashes=True),
    ] = ()
    # Empty: as many as the cluster has slots
    np: A[
        tuple[int, ...],
        Opt("Numbers of processes: 1..32 or 1,2,4 (default: all slots).", COUNTS),
    ] = ()
    batch: A[tuple[int, ...], Opt("Batch sizes: 32,64 or 8,16,...,512.", COUNTS)] = (8, 16, 32, 64, 128, 256, 512)
    scaling: Scaling = ("weak",)
    engine: A[str, Opt("ddp, horovod or fsdp2, or several in one map: ddp,fsdp2.", TEXT)] = "ddp"
    knobs: Knobs = ()
    # Empty: this machine, probed on the way
    cluster: A[str, Opt("cluster.toml that describes the cluster (default: this machine, probed).", FILE)] = ""
    # Empty: taken here
    profile: A[
        str,
        Opt(
            "profile.json taken earlier or elsewhere (default: taken now).",
            FILE,
            group="Statistics",
            of_run=True,
            place=True,
        ),
    ] = ""
    # Known seconds of one process by batch, so that nothing is profiled
    step_time: A[
        dict[int, float],
        Opt(
            "Known step time of one process, instead of a profile: 97ms for one --batch, or 32=97ms,64=180ms.",
            _STEP_TIME,
            metavar="TIME",
            group="Statistics",
        ),
    ] = {}
    threads_per_rank: Threads = None
    repeats: A[int, Opt("Blocks of steps per batch size.", COUNT, short="-it", group="Statistics", of_run=True)] = 8
    seconds: A[float, Opt("Maximum time for the profile.", SECONDS, group="Statistics", of_run=True)] = 18.0
    efficiency: A[float, Opt("Minimum efficiency of the recommended setting.", FRACTION, group="Statistics")] = (
        EFFICIENCY_GOAL
    )
    verify: A[
        int,
        Opt(
            "Measure N cells of the map and correct the prediction by them.", count(0), group="Statistics", of_run=True
        ),
    ] = 0
    launches: A[int, Opt("Launches per verified cell.", COUNT, group="Statistics", of_run=True)] = 3
    allow_writes: A[
        bool,
        Opt("Let a script save while it runs as rank 0 of N (default: held back).", FLAG, group="Launch", rare=True),
    ] = False
    folder: Folder = ""

    @property
    def what(self) -> str:
        """The model or the command, for people."""
        return training_name(self.workload, self.command)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines of the map."""
        return tuple(dict.fromkeys(name.strip() for name in self.engine.split(",")))

    @property
    def trained(self) -> WorkloadSpec:
        """The MODEL of an estimate that has no command."""
        assert self.workload
        return self.workload


class EstimatePlan(Record, frozen=True, kw_only=True, tag="estimate_plan"):
    """Plan of an estimate; written first, so that an interrupted one can be resumed."""

    request: EstimateRequest  # Without its folder
    fingerprint: Fingerprint
    finished: bool = False


class CompareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `scalescope compare`."""

    a: A[
        str,
        Opt(
            "Before. A result folder, or files that scalescope explain reads: timelines, traces, tables, logs.",
            FILE,
            argument=True,
        ),
    ]
    b: A[str, Opt("After.", FILE, argument=True)]
    tolerance: A[float, Opt("A change within this fraction is none.", FRACTION)] = TOLERANCE


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `scalescope report`."""

    paths: A[
        tuple[str, ...],
        Opt(
            "Folders of scalescope study, estimate, measure, explain and tune, or files that explain reads. Those of "
            "one training are shown together, others are compared.",
            FILES,
            argument=True,
        ),
    ]
    page: A[
        str,
        Opt(
            "The page (default: report.html in the first result folder, of a file in this one).",
            FILE,
            "-o",
            short="--output",
        ),
    ] = ""
    figures: A[str, Opt("Write every figure there as PDF, SVG and PNG.", FILE, metavar="DIR")] = ""
    tables: A[str, Opt("Write tables there as LaTeX and CSV.", FILE, metavar="DIR")] = ""
    proposal: A[str, Opt("Write one PDF page for an allocation: speedups over nodes, plot, method.", FILE)] = ""


class DoctorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`scalescope doctor` asks for nothing."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one run and its output; no part of a plan. A verb takes some of them."""

    resume: A[
        str,
        Opt(
            "Resume this folder; limits may change, and measure also adds --np, --batch and --engine.",
            FILE,
            metavar="DIR",
            again=True,
        ),
    ] = ""
    dry_run: A[bool, Opt("Print what would be started, and start nothing.", FLAG, group="Output")] = False
    show_output: A[
        bool, Opt("Show what the ranks print, tagged with their rank.", FLAG, group="Output", again=True)
    ] = False
    json: A[
        bool, Opt("Print one JSON document on stdout, everything else on stderr.", FLAG, group="Output", again=True)
    ] = False
    details: A[bool, Opt("Show all tables, not only the answer.", FLAG, group="Output", again=True)] = False
    quiet: A[bool, Opt("Show only the answer.", FLAG, short="-q", group="Output", again=True)] = False
    verbose: A[bool, Opt("Show one line per launch or sample.", FLAG, group="Output", again=True, rare=True)] = False
    formats: A[
        tuple[str, ...],
        Opt(f"Formats of the pictures, out of {listed(FORMATS)}.", NAMES, group="Output", again=True, rare=True),
    ] = USUAL_FORMATS
    join: A[str, Opt("", FILE, hidden=True)] = ""  # Started by scalescope.tuning(), on rank 0
