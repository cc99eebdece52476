"""Reads the log of Horovod's autotune: its header, its samples, and how much of it is damaged."""

import math
from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.named_paths import reading
from scalescope.records.autotune import SWITCHES, Knobs, Sample
from scalescope.records.explanation import Loss
from scalescope.text import plain
from scalescope.units import is_possible

CYCLE, FUSION, SCORE = "cycle_time_ms", "tensor_fusion_threshold", "score"
_BEGINNING = 20  # Lines among which the header is looked for
_SANE = 1e6  # Milliseconds and mebibytes that no setting reaches
_AROUND = "\ufeff\0 \r\t"

Place = tuple[int, int, tuple[bool, ...]]


class Log(NamedTuple):
    """Contents of a log file."""

    columns: tuple[str, ...]
    samples: list[Sample]
    finished: bool  # Whether the last row repeats the best sample: it is autotune's choice, and no further sample
    lost: Loss


def is_autotune_log(beginning: str) -> bool:
    """True if one of the first lines names the columns of an autotune log."""
    return any(_header(line) for line in beginning.splitlines()[:_BEGINNING])


def read_samples(path: Path) -> Log:
    """Every sample below the last header; settings that are practically equal are one.

    Raises:
        UsageError: There is none; it names the next action.
    """
    shown = plain(str(path))
    with reading(path):
        lines = path.read_bytes().decode(errors="replace").split("\n")
    start = max((at for at, line in enumerate(lines) if _header(line)), default=None)
    if start is None:
        raise UsageError(
            f"'{shown}' is no log of Horovod's autotune: no line names {CYCLE}, {FUSION} and {SCORE}; "
            "name the file of HOROVOD_AUTOTUNE_LOG with its first line"
        )
    columns = _header(lines[start])
    samples: list[Sample] = []
    settings: dict[Place, int] = {}
    unread: list[int] = []
    best: tuple[Knobs, float] | None = None
    finished = False
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        if not line.strip(_AROUND):
            continue
        found = _row(line, columns)
        if found is None or (number == len(lines) and found != best):  # without its line feed it may be cut
            unread.append(number)
            continue
        finished = found == best
        knobs, score = found
        if best is None or score > best[1]:
            best = found
        setting = settings.setdefault(place_of(knobs), len(settings))
        samples.append(Sample(line=number, setting=setting, knobs=knobs, score=score))
    if not samples:
        raise UsageError(
            f"'{shown}' has no samples that can be read: autotune needs more steps than this run made, about 200 for "
            "its first sample; train longer, or set HOROVOD_AUTOTUNE_WARMUP_SAMPLES=1 and "
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=2 (10 steps each)"
        )
    more = f", and {len(unread) - 1:,} more" if len(unread) > 1 else ""
    lost = Loss(
        events=len(unread),
        bytes=sum(len(lines[number - 1]) for number in unread),
        reason=f"line {unread[0]} is not a whole row of numbers{more}" if unread else "",
    )
    return Log(columns, samples[:-1] if finished else samples, finished, lost)


def place_of(knobs: Knobs) -> Place:
    """The cell, 1.4 % wide, in which knobs lie: what rounds to one cell is one setting.

    The points that Horovod always tries, such as 5 ms and 4 MiB, lie near the middle of their cells.
    """
    cells = [round(50 * math.log2(max(value, 0.1))) for value in (knobs.cycle_time_ms, knobs.fusion_threshold_mb)]
    return cells[0], cells[1], tuple(knobs.switches.values())


def _header(line: str) -> tuple[str, ...]:
    """The columns that a line names; none when it is no header of such a log."""
    names = tuple(plain(cell.strip(_AROUND), 60).lower() for cell in line.split(","))
    return names if {CYCLE, FUSION, SCORE} <= set(names) else ()


def _row(line: str, columns: tuple[str, ...]) -> tuple[Knobs, float] | None:
    """The knobs and the score of a row that Horovod could have written; None for anything else."""
    cells = [cell.strip(_AROUND) for cell in line.split(",")]
    if len(cells) != len(columns):
        return None
    by_name = dict(zip(columns, cells, strict=True))
    try:
        cycle, fusion, score = (float(by_name[name]) for name in (CYCLE, FUSION, SCORE))
        switches = {name: bool(("0", "1").index(by_name[name])) for name in SWITCHES if name in by_name}
    except ValueError:
        return None
    if not (0 < cycle <= _SANE and 0 <= fusion <= _SANE and is_possible(score)):
        return None
    return Knobs(fusion_threshold_mb=fusion, cycle_time_ms=cycle, switches=switches), score
