"""Records of a launch: an engine's knobs, a Job, the commands that a launcher makes of it, and how they ended."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from scalescope.errors import UsageError
from scalescope.options import Kind
from scalescope.text import plain
from scalescope.units import MOST_PER_HOST

KnobValue = bool | int | float | str
NO_ENGINE = "none"  # What stands for an engine where one process trains alone


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of an engine: its type and range, its default, and when it may change."""

    name: str
    type: Literal["bool", "int", "float", "choice"]
    default: KnobValue | None  # None: the engine decides when nothing is said
    unset: KnobValue | None = None  # What an engine that decides itself does; None: the default, or it is not known
    tried: tuple[KnobValue | None, ...] = ()  # What a search tries; None: left to the engine. Empty: it is not searched
    on_request: bool = False  # Searched only where a user asks for it, because scripts may notice it
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    # live: may change while training; relaunch: fixed when the processes start.
    changes: Literal["live", "relaunch"] = "relaunch"
    variable: str = ""  # The environment variable that carries it, if the engine reads one
    is_argument: bool = False  # Whether the engine's wrapper takes it as an argument of this name
    modelled: bool | tuple[str, ...] = True  # Whether an estimate knows what it changes; of a choice: of which values
    meaning: str


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen values for the knobs of one engine; what is absent stays at its default."""

    engine: str
    values: dict[str, KnobValue] = {}


class Host(msgspec.Struct, frozen=True):
    """A machine and how many ranks it takes."""

    name: str
    slots: int


def parse_hosts(text: Any, flag: str = "--hosts") -> tuple[Host, ...]:
    """`a:2,b:2` as hosts with slots."""
    if not isinstance(text, str):
        return tuple(text)
    hosts = []
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"([A-Za-z0-9_.-]+|\[[0-9a-fA-F:]+\]):(\d{1,30})", part.strip())
        if not match or match[1].startswith("-") or int(match[2]) < 1:
            raise UsageError(f"{flag} takes name:slots pairs such as a:2,b:2, not '{plain(part, 60)}'")
        if int(match[2]) > MOST_PER_HOST:
            raise UsageError(f"{flag} gives {match[1]} {match[2]} slots: no host has more than {MOST_PER_HOST:,}")
        hosts.append(Host(match[1], int(match[2])))
    if len({host.name for host in hosts}) < len(hosts):
        raise UsageError(f"{flag} names a host twice: add up its slots")
    return tuple(hosts)


HOSTS = Kind(
    parse_hosts, lambda hosts: ",".join(f"{host.name}:{host.slots}" for host in hosts), metavar="HOST:SLOTS,..."
)


def place(np: int, hosts: Sequence[Host], *, oversubscribe: bool) -> tuple[tuple[str, int], ...]:
    """Hosts with the ranks each one gets, filled up one after another."""
    left, placed = np, []
    for index, host in enumerate(hosts):
        last = index == len(hosts) - 1
        count = left if last and oversubscribe else min(left, host.slots)
        if count:
            placed.append((host.name, count))
        left -= count
    return tuple(placed)


def fewest_nodes(np: int, slots: Sequence[int]) -> tuple[int, int]:
    """The fewest nodes that hold np ranks, and the most ranks that one of them gets when they are spread evenly.

    Args:
        np: Number of ranks.
        slots: Ranks that each node takes; where np is more than all of them, nodes take more.
    """
    largest = sorted(slots, reverse=True)
    nodes = next((count for count in range(1, len(slots) + 1) if sum(largest[:count]) >= np), len(slots))
    per_node = -(-np // nodes)
    while per_node < largest[0] and sum(min(each, per_node) for each in largest[:nodes]) < np:
        per_node += 1  # smaller nodes are full
    return nodes, per_node


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a data-parallel training: everything a launcher has to know."""

    command: tuple[str, ...]  # What one rank runs; for the launcher `own`, the whole launch line
    np: int
    knobs: Knobs
    container: tuple[str, ...] = ()  # Words that run the command in a container; empty: none
    folder: str  # Absolute path where the ranks leave their records and output
    launch: str  # Marks every process of this launch, so that all of them can be found again
    threads_per_rank: int | None  # None: the launch line decides it
    hosts: tuple[Host, ...] = ()  # Empty: this machine
    env: dict[str, str] = {}
    launcher_args: tuple[str, ...] = ()
    port: int = 29500  # Where rank 0 listens for the others
    ssh: str = "ssh"  # The program that reaches another host
    # The interpreter that runs a launcher written in Python; it has the ranks' torch or Horovod.
    python: str = "python3"
    cwd: str = ""
    oversubscribe: bool = False

    @property
    def ranks_per_host(self) -> tuple[tuple[str, int], ...]:
        """Hosts in order with the ranks each one gets."""
        return place(self.np, self.hosts, oversubscribe=self.oversubscribe)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One process to start: its words, the environment it needs on top of ours, and where."""

    argv: tuple[str, ...]
    env: dict[str, str]
    host: str = ""  # Empty: this machine


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """End of a launch."""

    started_ns: int  # On the monotonic clock of this host, which no time server sets
    ended_ns: int
    started_wall_ns: int  # The moment of `started_ns` since the epoch, for ranks on other hosts
    code: int = 0  # Of the first process that failed; negative: the signal that ended it
    problem: str = ""  # Empty when all went well; otherwise one line
    details: str = ""  # Last output and stacks of the ranks that matter
    leftovers: int = 0  # Processes that had to be removed after a launch that ended well

    @property
    def wall_s(self) -> float:
        """Seconds from the start of the launcher to its end."""
        return (self.ended_ns - self.started_ns) * 1e-9
