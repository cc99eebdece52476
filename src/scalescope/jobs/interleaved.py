"""Interleaved launches: one process alone and all processes train in blocks in turn, to check an estimate."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec

from scalescope.jobs.load import LoadMeter, Peers
from scalescope.records.run import QUIET
from scalescope.records.store import LineWriter, complete_lines
from scalescope.stats import relative_half_width
from scalescope.steady import step_times

FILE = "blocks-rank{rank}.jsonl"
_FIRST_STEPS = 5  # Of every kind are made before the first block, to warm up
_BLOCK_S = 0.5
_LONGEST_BLOCK_S = 2.0  # Of all processes, whose steps may be a hundred times as long over a slow network
_FEWEST_PAIRS, _MOST_PAIRS = 8, 100
_SECONDS = 60.0  # A launch makes no further blocks after this, unless something else is asked for
FEWEST = 2  # Pairs that make an answer
_FEWEST_QUIET, _PATIENCE = 3, 3.0  # With fewer undisturbed pairs a launch goes on, up to this many times as long


class Interleaved(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an interleaved launch."""

    precision: float
    seconds: float | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one block in one rank, as written down when it ends."""

    pair: int
    mode: str  # alone or all
    seconds: list[float]
    foreign_cores: float = 0.0  # That other programs used during its pair, on the machine where they used most


Step = Callable[[], None]


def run_interleaved(
    together: Step, alone: Step, live: Any, peers: Peers, rank: int, plan: Interleaved, folder: Path
) -> None:
    """All ranks make a block of steps, rank 0 one without the others, then the other way round, until it is known."""
    began = time.monotonic()
    together_s = median(_timed(together, _FIRST_STEPS))
    first_s = _timed(alone, _FIRST_STEPS) if rank == 0 else []
    fitting = min(_BLOCK_S / median(first_s), _LONGEST_BLOCK_S / together_s) if first_s else 0
    steps = live.agree(max(round(fitting), 3) if first_s else 0)
    pairs: list[tuple[float, float]] = []  # the ratio, and the cores of other programs
    blocks = LineWriter(folder / FILE.format(rank=rank))
    while live.agree(int(rank == 0 and not ratio_is_known(pairs, plan, time.monotonic() - began))):
        meter, seconds = LoadMeter(), {}
        for mode in ("all", "alone") if len(pairs) % 2 else ("alone", "all"):
            if mode == "all":
                live.agree(0)  # the others wait here, asleep, while rank 0 works alone
            elif rank:
                continue
            seconds[mode] = _timed(alone if mode == "alone" else together, steps)
        foreign_cores = peers.most(peers.foreign_cores(meter))
        for mode, steps_s in seconds.items():
            blocks.write(Block(pair=len(pairs), mode=mode, seconds=steps_s, foreign_cores=foreign_cores))
        pairs.append((fmean(seconds.get("alone", [0.0])) / fmean(seconds["all"]), foreign_cores))


def _timed(step: Step, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


def ratio_is_known(pairs: list[tuple[float, float]], plan: Interleaved, elapsed_s: float) -> bool:
    """True when these pairs, as ratio and cores of other programs, make the ratio known well enough."""
    quiet = [ratio for ratio, foreign_cores in pairs if foreign_cores <= QUIET]
    limit_s = plan.seconds or _SECONDS
    too_few = len(quiet) < min(_FEWEST_QUIET, len(pairs))
    if len(pairs) < FEWEST or (too_few and elapsed_s <= _PATIENCE * limit_s):
        return False
    spent = elapsed_s > limit_s or len(pairs) >= _MOST_PAIRS
    return spent or (len(quiet) >= _FEWEST_PAIRS and relative_half_width(quiet, looked=True) <= plan.precision)


class Pairs(NamedTuple):
    """Per pair of blocks the elapsed time over its steps, of rank 0 alone and of all ranks."""

    seconds: tuple[tuple[float, float], ...]
    foreign_cores: float  # That other programs used meanwhile, in the median pair


def read_pairs(folder: Path, ranks: int) -> Pairs:
    """The pairs that no other program disturbed; all of them when these are fewer than two."""
    decode = msgspec.json.Decoder(Block).decode
    alone: dict[int, Block] = {}
    together: dict[int, list[list[float]]] = {}
    for rank in range(ranks):
        for block in map(decode, complete_lines(folder / FILE.format(rank=rank))):
            if block.mode == "alone":
                alone[block.pair] = block
            else:
                together.setdefault(block.pair, []).append(block.seconds)
    complete = sorted(pair for pair in alone if len(together.get(pair, ())) == ranks)
    quiet = [pair for pair in complete if alone[pair].foreign_cores <= QUIET]
    used = quiet if len(quiet) >= FEWEST else complete
    return Pairs(
        tuple((fmean(alone[pair].seconds), fmean(step_times(together[pair]))) for pair in used),
        median(alone[pair].foreign_cores for pair in used) if used else 0.0,
    )
