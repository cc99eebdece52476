"""Quick launches: one process alone and all processes take turns, block by block, inside one launch."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from scalescope.stats import relative_half_width

FILE = "turns-rank{rank}.jsonl"
_FIRST_STEPS = 5
"""Of every kind are made before the first block, to warm up."""
_BLOCK_S = 0.5
_FEWEST_PAIRS, _MOST_PAIRS = 8, 100
_SECONDS = 60.0
"""When nothing else is asked for, a launch takes turns for so long at most."""


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """How long to take turns, and with which batch the one process trains alone."""

    alone_batch: int
    precision: float
    seconds: float | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one turn in one rank, as written down when the turn ends."""

    pair: int
    mode: str
    """alone or all."""
    seconds: list[float]


Step = Callable[[], None]


def take_turns(together: Step, alone: Step, live: Any, rank: int, turns: Turns, folder: Path) -> None:
    """All ranks make a block of steps, rank 0 one without the others, then the other way round, until it is known."""
    began = time.monotonic()
    _timed(together, _FIRST_STEPS)
    first_s = _timed(alone, _FIRST_STEPS) if rank == 0 else []
    steps = live.agree(max(round(_BLOCK_S / median(first_s)), 3) if first_s else 0)
    ratios: list[float] = []
    with open(folder / FILE.format(rank=rank), "a", encoding="utf-8") as file:
        pair = 0
        while live.agree(int(rank == 0 and not _is_enough(ratios, turns, time.monotonic() - began))):
            medians = {}
            for mode in ("all", "alone") if pair % 2 else ("alone", "all"):
                if mode == "all":
                    live.agree(0)  # the others wait here, asleep, while rank 0 works alone
                elif rank:
                    continue
                seconds = _timed(alone if mode == "alone" else together, steps)
                medians[mode] = median(seconds)
                file.write(json.dumps({"pair": pair, "mode": mode, "seconds": seconds}) + "\n")
                file.flush()
            if rank == 0:
                ratios.append(medians["alone"] / medians["all"])
            pair += 1


def _timed(step: Step, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


def _is_enough(ratios: list[float], turns: Turns, elapsed_s: float) -> bool:
    if len(ratios) < 2:
        return False
    spent = elapsed_s > (turns.seconds or _SECONDS) or len(ratios) >= _MOST_PAIRS
    sure = len(ratios) >= _FEWEST_PAIRS and relative_half_width(ratios, looked=True) <= turns.precision
    return spent or sure


def read_pairs(folder: Path, ranks: int) -> tuple[tuple[float, float], ...]:
    """Per pair of blocks the median step of rank 0 alone and of the slowest rank of all."""
    decode = msgspec.json.Decoder(Block).decode
    alone: dict[int, float] = {}
    together: dict[int, list[list[float]]] = {}
    for rank in range(ranks):
        path = folder / FILE.format(rank=rank)
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for block in map(decode, lines):
            if block.mode == "alone":
                alone[block.pair] = median(block.seconds)
            else:
                together.setdefault(block.pair, []).append(block.seconds)
    complete = sorted(pair for pair in alone if len(together.get(pair, ())) == ranks)
    return tuple((alone[pair], median(map(max, zip(*together[pair], strict=True)))) for pair in complete)
