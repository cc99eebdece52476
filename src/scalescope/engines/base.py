"""Contract of engines: facts about themselves, the exchange of a step, and knobs as people write them."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, Protocol

import msgspec

from scalescope.errors import UsageError
from scalescope.records.cluster import Operation
from scalescope.records.job import Knob, Knobs, KnobValue
from scalescope.records.profile import Gradient, ModelProfile, ShardedPoint
from scalescope.text import assignment, did_you_mean, knob_name, plain

MIB = 1024 * 1024
SHARDING: tuple[Operation, Operation] = ("allgather", "reducescatter")  # Of engines that shard


class Message(msgspec.Struct, frozen=True):
    """Gradients that travel together."""

    bytes: int
    last: int  # Index of the gradient that is ready last, in the profile's order
    tensors: int


class ShardGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that every rank holds a shard of, which are gathered, freed and reduced together."""

    name: str  # Empty: the root's, which are in no block
    bytes: int
    gradients: tuple[int, ...]  # Indices in the profile's order
    reshards: bool = True  # Whether they are freed after forward and gathered again in backward


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """The exchange of one step's gradients: fixed messages, or messages of whatever is ready at each cycle."""

    backend: str  # As clusters name it: gloo, nccl, horovod-gloo, horovod-mpi, horovod-nccl
    messages: tuple[Message, ...]  # In the order in which they are sent; each waits for the one before
    algorithm: Literal["auto", "ring", "tree"] = "auto"  # That NCCL is held to
    protocol: str | None = None  # LL, LL128 or Simple where NCCL is held to it
    broadcasts: tuple[int, ...] = ()  # Bytes of what rank 0 sends to all before the forward
    broadcast_tensors: int = 0  # Of which they are made
    copies: bool = False  # Whether gradients are copied into messages during backward and back after it
    by_hosts: bool = False  # Whether a message is summed inside each host, then between hosts, then shared inside
    fuse_bytes: int = 0  # Messages that are ready together travel as one up to this size; 0: each for itself
    cycle_s: float = 0.0  # How often the ranks look for what is ready; 0: messages leave as soon as they are ready
    negotiated: bool = False  # Whether the ranks agree on every message before it leaves
    # Whether an agreement is remembered; if not, every tensor costs a question and an answer each step.
    agreements_kept: bool = True
    # Of an engine that shards, instead of messages: in the order of forward, the root's group first if it has one.
    shards: tuple[ShardGroup, ...] = ()
    sharded: tuple[ShardedPoint, ...] = ()  # What sharding like this was measured to add to a step


def one_by_one(gradients: Sequence[Gradient]) -> tuple[Message, ...]:
    """Every gradient as a message of its own."""
    return tuple(Message(gradient.bytes, index, 1) for index, gradient in enumerate(gradients))


def in_buckets(gradients: Sequence[Gradient], first_bytes: float, cap_bytes: float) -> tuple[Message, ...]:
    """Messages that are closed by the gradient that fills them, the first one at `first_bytes`.

    Gradients of different kinds of number never share a message; a gradient is never split.
    """
    messages: list[Message] = []
    open_: dict[int, tuple[int, int]] = {}
    closed_of_kind: set[int] = set()
    last_of_kind: dict[int, int] = {}
    for index, gradient in enumerate(gradients):
        kind = gradient.element_bytes
        size, tensors = open_.pop(kind, (0, 0))
        size, tensors, last_of_kind[kind] = size + gradient.bytes, tensors + 1, index
        if size >= (cap_bytes if kind in closed_of_kind else first_bytes):
            messages.append(Message(size, index, tensors))
            closed_of_kind.add(kind)
        else:
            open_[kind] = size, tensors
    rest = [Message(size, last_of_kind[kind], tensors) for kind, (size, tensors) in open_.items()]
    return (*messages, *sorted(rest, key=lambda message: message.last))


def in_blocks(gradients: Sequence[Gradient], reshards: bool | None) -> tuple[ShardGroup, ...]:
    """A group for each block and one for the rest, by the names of parameters; blocks are members of lists of modules.

    Inside ranks `fsdp2_live.blocks_of` decides. Names do not tell a list of lists, whose members it shards one by one.

    Args:
        gradients: In the order in which backward finishes them; forward takes blocks in the other order.
        reshards: Whether groups free their parameters after forward; None: blocks do, the root does not.
    """
    of_block: dict[str, list[int]] = {}
    for index, gradient in reversed(list(enumerate(gradients))):
        block = re.match(r"(?:[^.]*\.)*?\d+(?=\.)", gradient.name)
        of_block.setdefault(block[0] if block else "", []).append(index)
    return tuple(
        ShardGroup(
            name=name,
            bytes=sum(gradients[index].bytes for index in of_block[name]),
            gradients=tuple(sorted(of_block[name])),
            reshards=bool(name) if reshards is None else reshards,
        )
        for name in sorted(of_block, key=bool)  # the root's first, blocks as they were found
    )


class Starter(Protocol):
    """Properties of a launcher that an engine checks."""

    name: str
    controllers: tuple[str, ...] | None
    instead: str


_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Engine(ABC):
    """A way to exchange gradients: all that the other rooms know about it. ENGINES lists one instance of each."""

    name: str
    title: str  # As people write it
    live_module: str  # Its half inside a rank, with the functions that halves_live.py lists
    knobs: tuple[Knob, ...] = ()
    package: str = ""  # What ranks import in addition to torch; a script that imports it uses this engine
    backend_prefix: str = ""  # Before the name of what moves the bytes, in clusters' names of backends
    polls: bool = False  # Whether its own threads use a core while there is nothing to send
    live_check: str = ""  # A module whose why_not_here() says why its knobs cannot change in this Python
    autotunes: bool = False  # Whether it has an autotune of its own, for `tune --method native`
    trace_marks: tuple[str, ...] = ()  # Beginnings of names that it alone gives to ranges and operators of a profile
    shards: bool = False  # Whether it shards parameters, so that its exchange states groups of them
    operations: tuple[str, ...] = ()  # Collectives that it calls; any others in a trace are the script's or a library's
    fewer_exchanges: str = ""  # The code with which it exchanges less often
    message_size: str = (
        ""  # The code that sets the size of its messages to {mib}; empty: it has none, nothing is replayed
    )
    no_broadcasts: str = ""  # The change after which it broadcasts no buffers before a forward; empty: it never does
    sets_in_scripts: bool = True  # Whether a script gets its knobs as it wraps its model
    is_surveyed: bool = True  # Whether steps of a script tell what it exchanges, so that there is a map of it
    tracer: Literal["profiler", "timeline"] = "profiler"  # Of torch, or its own, which is on from the first step
    tracing_cost: str = ""  # What its tracer usually costs, for launches in which that could not be measured
    colour: str = ""  # In every figure; empty: one that no engine has
    stand_ins: ClassVar[
        Mapping[str, str]
    ] = {}  # Backends whose costs stand in for those of its own where these are not known
    why_not_tuned: str = "has no knobs that tune can change"  # After its name; not shown for one that is tuned
    section: str = ""  # Of a settings file, with its knobs; empty: its name
    beside_section: tuple[str, ...] = ()  # Knobs that stand next to the section instead
    not_recorded: str = ""  # Sentence on what a run as rank 0 of N does not show of it; empty: nothing in particular
    # Collective that, with the module it is for, shows in a run as rank 0 of N that it is used next to another engine.
    recorded_by: str = ""
    # The setting of the interface over which ranks exchange messages, by backend.
    interfaces: ClassVar[Mapping[str, str]] = {
        "gloo": "GLOO_SOCKET_IFNAME={name}",
        "nccl": "NCCL_SOCKET_IFNAME={name}",
    }
    lost_peer: str = ""  # A pattern of what its ranks print when another one is gone
    # Relative standard deviation of real steps around estimated ones where nothing was checked yet: what its model
    # misses, and what differs from launch to launch (make bench SECTION=accuracy shows both).
    model_error: float = 0.055

    @property
    def changes_live(self) -> bool:
        """True if some of its knobs may change while it trains."""
        return any(knob.changes == "live" for knob in self.knobs)

    @property
    def is_tuned(self) -> bool:
        """True if a search may try values of its knobs."""
        return any(knob.tried for knob in self.knobs)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The knobs that its wrapper takes as arguments of the same name."""
        return tuple(knob.name for knob in self.knobs if knob.is_argument)

    @property
    def sections(self) -> tuple[str, ...]:
        """Top-level keys of a settings file with its knobs; empty: none is tuned."""
        return (self.section or self.name, *self.beside_section) if self.is_tuned else ()

    def how_to_use(self, values: Mapping[str, KnobValue], path: str) -> list[str]:
        """Lines for people who want these knobs in their training; `path` is a settings file with them."""
        return []

    def built_with(self, python: str, what: Literal["mpi", "nccl"]) -> bool:
        """True if the engine of an interpreter was built with MPI, and there is one, or reduces through NCCL."""
        return False

    def environment(self, values: Mapping[str, KnobValue], *, named_hosts: bool) -> dict[str, str]:
        """The variables its ranks need, for these knob values."""
        carried = [knob for knob in self.knobs if knob.variable and knob.name in values]
        return {knob.variable: _as_variable(values[knob.name]) for knob in carried}

    def in_ranks(self, values: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
        """The values that no variable carries, for the agent to set inside the ranks."""
        without = {knob.name for knob in self.knobs if not knob.variable}
        return {name: value for name, value in values.items() if name in without}

    def over_mpi(self, values: Mapping[str, KnobValue]) -> bool:
        """True if its ranks agree through MPI, with these knob values."""
        return False

    def fitted(
        self, values: Mapping[str, KnobValue], launcher: Starter | None, has_mpi: Callable[[], bool]
    ) -> dict[str, KnobValue]:
        """The values with those that follow from the launcher where the user names none.

        Args:
            values: What the user set.
            launcher: That starts the ranks; None: not chosen yet.
            has_mpi: Whether the ranks' Python and machine can use MPI; asked only where it matters.

        Raises:
            UsageError: The launcher cannot start ranks with these values.
        """
        return dict(values)

    def launcher(self, values: Mapping[str, KnobValue]) -> str:
        """The launcher that fits when the user names none."""
        return "torchrun"

    def values_for(self, moved_by: str) -> dict[str, KnobValue]:
        """The knob values with which gloo, nccl or mpi moves the bytes."""
        return {}

    @abstractmethod
    def exchange(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> Exchange:
        """Return the exchange of a step of this model under these knob values."""


class OverTorch(Engine):
    """An engine whose ranks meet in a process group of torch."""

    backend_knob = Knob(
        name="backend",
        type="choice",
        default=None,
        choices=("gloo", "nccl"),
        meaning="communication backend (unset: nccl on GPUs, gloo otherwise)",
    )

    def environment(self, values: Mapping[str, KnobValue], *, named_hosts: bool) -> dict[str, str]:
        """The variables of its knobs; on one machine the ranks talk over loopback only."""
        loopback = {} if named_hosts else {"GLOO_SOCKET_IFNAME": "lo"}
        return loopback | super().environment(values, named_hosts=named_hosts)

    def values_for(self, moved_by: str) -> dict[str, KnobValue]:
        """The backend of its process group."""
        return {self.backend_knob.name: moved_by}

    def backend(self, profile: ModelProfile, values: Mapping[str, KnobValue]) -> str:
        """The backend of its process group, for a model where it was profiled."""
        return str(values.get(self.backend_knob.name) or ("gloo" if profile.device == "cpu" else "nccl"))


def _as_variable(value: KnobValue) -> str:
    return str(int(value)) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def short_value(value: KnobValue) -> KnobValue:
    """1.0 as 1; everything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parse_knobs(engine: Engine, assignments: Sequence[str]) -> Knobs:
    """`name=value` texts as checked knobs of one engine."""
    known = {knob.name: knob for knob in engine.knobs}
    values: dict[str, KnobValue] = {}
    for text in assignments:
        name, value = assignment(text, "--knob", "bucket_cap_mb=25")
        name = knob_name(name)
        if name not in known:
            use = f"use one of {', '.join(sorted(known))}" if known else "it has none"
            raise UsageError(f"{engine.name} has no knob '{plain(name, 60)}'{did_you_mean(name, known)}: {use}")
        if name in values:
            raise UsageError(f"--knob {name} is given twice: keep one of them")
        values[name] = parse_value(known[name], value.strip())
    return Knobs(engine=engine.name, values=values)


def parse_value(knob: Knob, text: str) -> KnobValue:
    """One value, checked against the knob's type and range."""
    expected = describe_range(knob)
    try:
        if knob.type == "bool":
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text.lower()]
        if knob.type == "choice":
            return {choice: choice for choice in knob.choices}[text]
        number = int(text) if knob.type == "int" else float(text)
    except (KeyError, ValueError):
        raise UsageError(f"knob {knob.name} takes {expected}, not '{text}'") from None
    if not (knob.low is None or number >= knob.low) or not (knob.high is None or number <= knob.high):
        raise UsageError(f"knob {knob.name} takes {expected}, not {text}")
    return number


def describe_range(knob: Knob) -> str:
    """Describe the values that a knob accepts, in words."""
    if knob.type == "bool":
        return "true or false"
    if knob.type == "choice":
        return " or ".join(knob.choices)
    kind = "a whole number" if knob.type == "int" else "a number"
    unit = f" {knob.unit}" if knob.unit else ""
    if knob.high is None:
        return f"{kind} from {knob.low:g}{unit}" if knob.low is not None else kind
    return f"{kind} from {knob.low:g} to {knob.high:g}{unit}"
