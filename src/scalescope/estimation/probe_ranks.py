"""The program that probes links and cores: every rank times the same collectives and writes them down."""

import importlib
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, stdev
from typing import Any

import msgspec

from scalescope.engines import find_engine
from scalescope.errors import ScalescopeError
from scalescope.estimation.link_probe import USUAL_OPERATIONS, IdleHelper, LinkProbe
from scalescope.jobs.load import LoadMeter, Peers
from scalescope.jobs.train_model import USAGE_MARK, device_named, end
from scalescope.records.run import QUIET
from scalescope.records.store import LineWriter

_FEWEST = 3  # Undisturbed rounds that agree, before which a probe does not end while it has patience
_DISAGREE = 0.15  # Relative standard deviation of rounds above which more of them are made
_PATIENCE = 2.0  # Times its own length that a disturbed probe is prolonged at most


class ProbeTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a probe: the engine whose collectives are timed, and for how long."""

    engine: str
    knobs: dict[str, Any]
    device: str
    rounds: int  # Undisturbed ones that are enough
    seconds: float
    sizes: tuple[int, ...]
    operations: tuple[str, ...] = USUAL_OPERATIONS


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """Repetitions of one collective in one rank."""

    operation: str
    bytes: int
    seconds: list[float]
    cpu_seconds: list[float]


class Overlapped(msgspec.Struct, frozen=True, kw_only=True, tag="overlapped"):
    """Compute and a message in one rank: each alone and both at the same time."""

    layer_s: float
    layer_overlapped_s: float
    message_s: float
    message_overlapped_s: float


class Around(msgspec.Struct, frozen=True, kw_only=True, tag="around"):
    """Cost of an engine in a rank apart from its messages."""

    copy_s_per_byte: float


class Idle(msgspec.Struct, frozen=True, kw_only=True, tag="idle"):
    """A small layer's backward next to a rank that has nothing to send, and next to one that is stopped."""

    layer_s: float
    layer_without_s: float


class Round(msgspec.Struct, frozen=True, kw_only=True, tag="round"):
    """The end of a round: how many cores other programs used meanwhile."""

    foreign_cores: float


Line = Timed | Overlapped | Around | Idle | Round


def file_of(rank: int) -> str:
    """File to which a rank writes its times."""
    return f"probe-rank{rank}.jsonl"


def one_round(probe: LinkProbe, writer: LineWriter, peers: Peers) -> tuple[float, float]:
    """Time every collective at every size, and how compute and messages slow each other down.

    Returns the cores that other programs used, and the seconds of one of each collective.
    """
    meter, pace_s = LoadMeter(), 0.0
    for timed in probe.collectives():
        writer.write(msgspec.convert(timed, Timed))
        pace_s += median(timed["seconds"])
    writer.write(msgspec.convert(probe.overlap(), Overlapped))
    foreign_cores = peers.foreign_cores(meter)
    writer.write(Round(foreign_cores=foreign_cores))
    return foreign_cores, pace_s


def make_rounds(
    task: ProbeTask, live: Any, probe: LinkProbe, writer: LineWriter, helper: IdleHelper | None, peers: Peers
) -> None:
    """Rounds until enough of them were undisturbed and agree: rank 0 decides.

    `helper` is there where the engine's threads poll.
    """
    ends, paces_s = time.monotonic() + task.seconds, list[float]()  # Of undisturbed rounds
    is_enough = False
    while not is_enough:
        began = time.monotonic()
        foreign_cores, pace_s = one_round(probe, writer, peers)
        if helper is not None:
            idle(helper, live, writer)
        if foreign_cores <= QUIET:
            paces_s.append(pace_s)
        now = time.monotonic()
        late_s = now - ends
        would_be_late = late_s + (now - began) / 2 > 0
        agree = len(paces_s) >= _FEWEST and disagreement(paces_s) <= _DISAGREE
        done = len(paces_s) >= task.rounds or late_s > _PATIENCE * task.seconds
        is_enough = bool(live.agree(int(done or (would_be_late and agree))))


def idle(helper: IdleHelper, live: Any, writer: LineWriter) -> None:
    """Two pairs of blocks of every rank's helper, at the same time; the second pair in the other order."""
    for number in range(2):
        live.agree(0)
        alive_s, stopped_s = helper.pair(number)
        writer.write(Idle(layer_s=alive_s, layer_without_s=stopped_s))


def disagreement(paces_s: Sequence[float]) -> float:
    """Relative standard deviation of what rounds took; 0 for one round."""
    return stdev([math.log(pace_s) for pace_s in paces_s]) if len(paces_s) > 1 else 0.0


def around(probe: LinkProbe, live: Any, writer: LineWriter) -> None:
    """Time what an engine costs apart from its messages."""
    live.agree(0)
    writer.write(Around(copy_s_per_byte=probe.copy_s_per_byte()))
    live.agree(0)


def helper_of(engine: str, device: str) -> IdleHelper | None:
    """The helper that an engine needs whose threads poll; on a GPU they take nothing from compute."""
    return IdleHelper() if find_engine(engine).polls and device == "cpu" else None


def main(arguments: list[str]) -> int:
    """`probe_ranks FILE`: one rank of a probe, into the folder of the file."""
    task = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ProbeTask)
    try:
        live = importlib.import_module(find_engine(task.engine).live_module)
        device = device_named(task.device)
        helper = helper_of(task.engine, device.type)
        rank, world = live.start(str(device), task.knobs)
        writer = LineWriter(Path(arguments[0]).parent / file_of(rank))
        probe = LinkProbe(live, device, task.sizes, task.operations)
        if helper is not None:
            helper.wait_until_ready()
        make_rounds(task, live, probe, writer, helper, Peers(live, device, rank, world))
        around(probe, live, writer)
        if helper is not None:
            helper.close()
        live.finish()
    except ScalescopeError as problem:
        print(USAGE_MARK, problem, file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
