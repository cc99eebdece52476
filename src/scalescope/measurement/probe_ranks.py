"""The program that probes links and cores: every rank times the same collectives and writes them down."""

import atexit
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from scalescope.engines import find_engine
from scalescope.errors import ScalescopeError
from scalescope.measurement.link_probe import LinkProbe
from scalescope.measurement.rank_program import USAGE_MARK
from scalescope.measurement.train_model import device_named

_IDLE_S = 0.5


class ProbeTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine's collectives to time, and for how long."""

    engine: str
    knobs: dict[str, Any]
    device: str
    rounds: int
    seconds: float
    sizes: tuple[int, ...]


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """Repetitions of one collective in one rank."""

    operation: str
    bytes: int
    seconds: list[float]
    cpu_seconds: list[float]


class Beside(msgspec.Struct, frozen=True, kw_only=True, tag="beside"):
    """Compute and a message in one rank: each alone and one beside the other."""

    layer_s: float
    layer_beside_s: float
    message_s: float
    message_beside_s: float


class Around(msgspec.Struct, frozen=True, kw_only=True, tag="around"):
    """What an engine costs a rank apart from its messages."""

    copy_s_per_byte: float
    layer_s: float
    """The backward of a small layer while the engine has nothing to do."""
    layer_without_s: float
    """The same after the engine was stopped."""


Line = Timed | Beside | Around


def file_of(rank: int) -> str:
    """Where a rank writes what it timed."""
    return f"probe-rank{rank}.jsonl"


class Writer:
    """Appends lines to the file of a rank."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the rank lives

    def write(self, line: msgspec.Struct) -> None:
        """One line, at once."""
        self._file.write(msgspec.json.encode(line).decode() + "\n")
        self._file.flush()


def one_round(probe: LinkProbe, writer: Writer) -> None:
    """Every collective at every size, and what compute and messages do to each other."""
    for timed in probe.collectives():
        writer.write(msgspec.convert(timed, Timed))
    writer.write(msgspec.convert(probe.overlap(), Beside))


def around(probe: LinkProbe, live: Any, writer: Writer) -> None:
    """The engine at rest and after its end; nothing can be sent afterwards."""
    live.agree(0)
    copy = probe.copy_s_per_byte()
    live.agree(0)
    resting = probe.layers(_IDLE_S)
    live.agree(0)
    live.finish()
    without = probe.layers(_IDLE_S)
    writer.write(
        Around(
            copy_s_per_byte=copy,
            layer_s=resting.seconds / resting.made,
            layer_without_s=without.seconds / without.made,
        )
    )


def main(arguments: list[str]) -> int:
    """`probe_ranks FILE`: one rank of a probe, into the folder of the file."""
    task = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ProbeTask)
    try:
        live = importlib.import_module(find_engine(task.engine).live_module)
        device = device_named(task.device)
        rank, _ = live.start(str(device), task.knobs)
        writer = Writer(Path(arguments[0]).parent / file_of(rank))
        probe = LinkProbe(live, device, task.sizes)
        ends = time.monotonic() + task.seconds
        for made in range(task.rounds):
            if live.agree(int(made > 0 and time.monotonic() > ends)):
                break
            one_round(probe, writer)
        around(probe, live, writer)
    except ScalescopeError as problem:
        print(USAGE_MARK, problem, file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    atexit._run_exitfuncs()
    os._exit(code)  # as in train_model: torch's gloo threads may abort a process that is closing down
