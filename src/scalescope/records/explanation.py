"""A folder with the traces of a launch, and what they say: where the time of steps went and what to change."""

from typing import ClassVar, Literal

import msgspec

from scalescope.records.run import Point
from scalescope.records.store import Inside, Record
from scalescope.records.timeline import Breakdown, Timeline

TRACE_RECORD = "traced.json"  # The record's name in its folder; people call their own traces trace.json


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of tracing, relative to a step: 0.1 is 10 %."""

    value: float
    low: float  # The least that neighbouring blocks of traced and untraced steps say, and the most
    high: float


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """An InfiniBand or RoCE port that is up."""

    name: str  # mlx5_0:1
    kind: str  # IB or RoCE
    bits_per_s: float = 0.0  # 0: not told


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """An IP network that several hosts of a launch share."""

    interface: str  # On the first host
    network: str = ""  # 10.78.0.0/24
    sent_bytes: int = 0  # Over it by the first host, while it trained
    declared_bits_per_s: float = 0.0  # By the driver; 0: not told
    measured_bits_per_s: float = 0.0  # Between two hosts, by one TCP connection after the training; 0: not measured

    @property
    def bits_per_s(self) -> float:
        """As measured, or else as declared."""
        return self.measured_bits_per_s or self.declared_bits_per_s


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The network over which ranks exchanged their messages, as their hosts and NCCL's log tell."""

    backend: str
    transport: str = ""  # tcp; of NCCL Socket, IB or the name of a plugin; empty: not told
    interfaces: tuple[str, ...] = ()  # That carried the messages
    links: tuple[Link, ...] = ()  # IP networks that the hosts share
    devices: tuple[Device, ...] = ()
    channels: int | None = None
    algorithms: tuple[str, ...] = ()  # Of NCCL: those that it chose, or else those that it prepared
    nodes: int | None = None  # As NCCL counts them
    settings: dict[str, str] = {}  # Variables that choose a network
    no_device: bool = False  # NCCL looked for InfiniBand and found none
    no_verbs: bool = False  # NCCL could not load the library that reaches InfiniBand


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one rank; names are relative to the folder, empty where there is no such file."""

    rank: int
    host: str
    profile: Inside = ""  # Of torch's profiler
    marks: Inside = ""  # When each part of each step began and ended


class TraceFolder(Record, frozen=True, kw_only=True, tag="trace_folder"):
    """One traced launch."""

    current_version: ClassVar[int] = 1

    what: str  # The model or the command, for people
    command: tuple[str, ...] = ()  # Empty for a model
    point: Point
    engine: str  # As the ranks showed it; none: there is none
    backend: str
    np: int
    cores: int | None = None  # Of the machine that launched it; None when ranks ran on other hosts
    timeline: Inside = ""  # Horovod's, written by rank 0; empty without Horovod
    ranks: tuple[RankTrace, ...]
    steps: int  # How many were captured on every rank
    untraced_step_s: float | None  # Median of the steps around them that were not traced
    untraced_after_s: float | None = None  # Of those after them alone
    overhead: Overhead | None = None
    before_s: dict[str, float] = {}  # What the launch did before its first step, by phase
    from_start: bool = False  # Whether the first captured step is the first of all
    network: Network | None = None
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """All of them that hold a trace."""
        profiles = tuple(rank.profile for rank in self.ranks if rank.profile)
        return (self.timeline, *profiles) if self.timeline else profiles


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Data that could not be read."""

    events: int = 0
    bytes: int = 0
    reason: str = ""
    files: tuple[str, ...] = ()  # Files of a folder that were left out, each in words that say why


class StepAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank; `start_s` is on the clock that all ranks share."""

    rank: int
    index: int
    start_s: float
    parts: Breakdown


class RankAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The typical steady step of one rank: means over its steady steps."""

    rank: int
    steps: int
    parts: Breakdown
    # How long others waited for it in a step and did nothing else, the median; None where ranks cannot be compared.
    late_s: float | None = None


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one operation and size."""

    operation: str
    bytes: int
    ranks: int
    count: int
    seconds: float  # Median of the shortest rank's time: what the transfer takes once all are there
    # Median of what the first rank waits for the last one; None where ranks cannot be compared.
    wait_s: float | None = None
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    probed_s: float | None = None  # What a probe of this machine took for that size


class ExchangeAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one operation, pass and process group in a typical steady step, in the mean over ranks."""

    phase: str  # forward, backward, or empty where the trace does not say
    operation: str
    group: str  # As the trace names it; empty where it does not
    ranks: int | None  # Of the group
    modules: int  # Whose parameters or gradients they carry; 0 where the trace does not say
    count: float
    prefetched: float  # How many of them were issued before their module was reached
    bytes: float | None
    seconds: float  # Moments in which any of them went on
    exposed_s: float  # Of these: while nothing was computed
    waiting_s: float | None  # Of exposed_s: until the last rank had come; None where ranks cannot be compared
    module_exposed_s: dict[str, float] | None = None  # Of exposed_s, the longest first; None: modules have no names

    @property
    def transfer_s(self) -> float:
        """Exposed, and waiting for no rank."""
        return self.exposed_s - (self.waiting_s or 0.0)


class TensorAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One named tensor of a Horovod timeline; seconds per operation, medians."""

    name: str
    operation: str
    bytes: int | None
    count: int
    negotiation_s: float
    queue_s: float
    data_wait_s: float
    memcpy_s: float
    collective_s: float


class HorovodAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Times of Horovod's background thread; seconds per steady step, unions over tensors."""

    negotiation_s: float
    # Of negotiation: until the last rank was ready; None where no rank ticks tell (cached negotiation)
    waiting_s: float | None
    protocol_s: float | None  # Of negotiation: after the last rank was ready
    queue_s: float
    data_wait_s: float
    memcpy_in_s: float
    memcpy_out_s: float
    collectives_s: dict[str, float]  # By activity: MPI_ALLREDUCE, GLOO_ALLREDUCE, NCCL_...
    responses: float  # Fused messages per step
    tensors_per_response: float
    bytes_per_response: float | None
    cycles: float | None = None  # Cycles of the background thread per step; None without CYCLE_START marks
    idle_cycles: float | None = None  # Cycles in which nothing was sent, per step
    cached: bool  # Whether steady steps were negotiated from the cache, so that no rank is named
    last_rank: dict[int, int] = {}  # How often each rank was the last to be ready, where ticks tell
    # By rank: how long a steady step waits for this rank alone, the median; empty where no rank can be named.
    late_s: dict[int, float] = {}
    first_negotiation_s: float  # Negotiation in the first step
    tensors: tuple[TensorAccount, ...] = ()


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """Correction of a rank's clock to the first rank's: t' = t + offset + drift * t."""

    rank: int
    offset_s: float
    drift: float
    residual_s: float  # Typical distance of the ends of the same collectives afterwards
    pairs: int


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """From this step on steps take another time."""

    step: int
    before_s: float
    after_s: float


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """Slow steps that come back."""

    every: int
    excess_s: float
    count: int


class FirstSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Excess of the first steps over steady ones, and its parts, which add up to it."""

    steps: int
    excess_s: float  # The mean over ranks, as is each part
    parts_s: dict[str, float]  # Below 0 where the first steps took less


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch: as the log tells it, and as far as the trace covers it."""

    number: int
    steps: int
    seconds: float
    negotiation_share: float | None = None
    exposed_share: float | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that costs time, and what to do about it."""

    id: str
    sentence: str
    evidence: dict[str, str]  # Names and numbers as text, and where they come from
    change: str  # The exact setting or code line
    # Step time now over step time then, minus 1; None where it cannot be computed, no setting brings it, or another
    # finding has it already: the same seconds are claimed once.
    gain: float | None
    gain_from: Literal["replay", "accounting", "guess", ""] = ""  # A guess: half of a time is taken to be avoidable
    parts: tuple[str, ...] = ()  # Of the step, out of which the gain comes: waiting, transfer, exposed, input, other


class Explanation(Record, frozen=True, kw_only=True, tag="explanation"):
    """A job's traces, explained."""

    current_version: ClassVar[int] = 1

    # On disk it is `source`: there `kind` is the kind of record.
    # That of the traces' reader (traces/readers.py), or `run folder`.
    kind: str = msgspec.field(name="source")
    what: str
    command: tuple[str, ...] = ()  # Of a captured run
    files: tuple[str, ...]
    ranks: tuple[int, ...]
    world_size: int | None
    engine: str
    collectives: dict[str, int] = {}  # How often each operation occurs on the first rank
    others: tuple[str, ...] = ()  # Operations among them that are not the engine's own
    backend: str
    device: Literal["cpu", "cuda"]
    steps_from: str
    warmup_steps: int
    # Median steady step, each the mean over ranks, as it runs without a tracer where that was measured; None without
    # steps.
    step_s: float | None
    traced_step_s: float | None = None  # The same while it was traced, where step_s is without the tracer
    accounting: Breakdown | None  # Means over steady steps and ranks, of steps of step_s
    # From a bare Horovod timeline: communication before the last gradient was submitted.
    possibly_hidden_s: float | None = None
    per_rank: tuple[RankAccount, ...] = ()
    steps: tuple[StepAccount, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    exchanges: tuple[ExchangeAccount, ...] = ()  # Of profiler traces; in the order of forward and backward
    bucket_bytes: tuple[int, ...] = ()
    horovod: HorovodAccount | None = None
    clocks: tuple[Clock, ...] = ()
    # Step by step: how long ranks waited for the one that was last; empty where ranks cannot be compared.
    skew_s: tuple[float, ...] = ()
    compiled: bool = False  # Whether code that torch.compile made was seen
    straggler: int | None = None
    straggler_note: str = ""
    changes: tuple[Change, ...] = ()
    periods: tuple[Period, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    first_steps: FirstSteps | None = None  # None where no step is known to be the first of all, or none is steady
    overhead: float | None = None  # What tracing added to a step, relative, where it was measured
    # Whether tracing cost so much that only parts that were seen in steps without it are told.
    too_heavy: bool = False
    shown_step: Timeline | None = None  # A representative step of all ranks
    shown_index: int | None = None
    predicted_step: Timeline | None = None
    network: Network | None = None
    findings: tuple[Finding, ...] = ()
    lost: Loss = Loss()
    notes: tuple[str, ...] = ()

    @property
    def untraced_per_traced(self) -> float:
        """Seconds without the tracer for each traced one; 1 on GPUs, whose work takes as long with it."""
        if not self.traced_step_s or not self.step_s or self.device != "cpu":
            return 1.0
        return self.step_s / self.traced_step_s
