"""Reads the log of Horovod's autotune: its header, its rows, and what of it is damaged."""

from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.named_paths import reading
from scalescope.records.autotune import SWITCHES, Knobs
from scalescope.records.explanation import Loss
from scalescope.text import plain
from scalescope.units import is_possible

CYCLE, FUSION, SCORE = "cycle_time_ms", "tensor_fusion_threshold", "score"
_LARGEST = 1 << 23  # Bytes of a file
_BEGINNING = 20  # Lines among which the header is looked for
_SANE = 1e6  # Milliseconds and mebibytes that no setting reaches
_AROUND = "\ufeff\0 \r\t"


class Row(NamedTuple):
    """One line of the log."""

    line: int
    knobs: Knobs
    score: float


class Log(NamedTuple):
    """Contents of a log file."""

    columns: tuple[str, ...]
    rows: list[Row]  # Samples only
    finished: bool  # Whether the last row repeats the best sample: it is autotune's choice, and no further sample
    lost: Loss


def is_autotune_log(beginning: str) -> bool:
    """Check whether one of the first lines names the columns of an autotune log."""
    return any(_header(line) for line in beginning.splitlines()[:_BEGINNING])


def read_rows(path: Path) -> Log:
    """Every row that can be read; UsageError names the next action when there is none."""
    shown = plain(str(path))
    if path.stat().st_size > _LARGEST:
        raise UsageError(f"'{shown}' is larger than {_LARGEST >> 20} MiB and no autotune log: name another file")
    with reading(path):
        data = path.read_bytes()
    columns: tuple[str, ...] | None = None
    rows: list[Row] = []
    unread: list[tuple[int, int, str]] = []  # Line, bytes, why
    *whole, last = data.split(b"\n")
    for number, line in enumerate(whole, start=1):
        text = line.decode(errors="replace")
        if header := _header(text):
            unread += [(row.line, 0, "belongs to an earlier log in the same file") for row in rows]
            columns, rows = header, []
        elif columns and text.strip(_AROUND):
            if row := _row(number, text, columns):
                rows.append(row)
            else:
                unread.append((number, len(line), "is not a row of numbers"))
    columns = columns or _header(last.decode(errors="replace"))
    if columns is None:
        raise UsageError(
            f"'{shown}' is no log of Horovod's autotune: no line names {CYCLE}, {FUSION} and {SCORE}; "
            "name the file of HOROVOD_AUTOTUNE_LOG with its first line"
        )
    ending = _row(len(whole) + 1, last.decode(errors="replace"), columns)
    if ending and rows and _repeats_the_best(ending, rows):
        rows.append(ending)
    elif rows and last.strip(_AROUND.encode()):
        unread.append((len(whole) + 1, len(last), "has no end and may be cut in a number"))
    if not rows:
        if unread:
            raise UsageError(
                f"'{shown}' has lines below its header ({len(unread):,}) and none can be read: name an undamaged copy"
            )
        raise UsageError(
            f"'{shown}' has no samples: autotune needs more steps than this run made, about 200 for its first sample; "
            "train longer, or set HOROVOD_AUTOTUNE_WARMUP_SAMPLES=1 and HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=2 (10 steps "
            "each)"
        )
    finished = len(rows) > 1 and _repeats_the_best(rows[-1], rows[:-1])
    more = f", and {len(unread) - 1:,} more" if len(unread) > 1 else ""
    reason = f"line {unread[0][0]} {unread[0][2]}{more}" if unread else ""
    lost = Loss(events=len(unread), bytes=sum(size for _, size, _ in unread), reason=reason)
    return Log(columns, rows[:-1] if finished else rows, finished, lost)


def _repeats_the_best(row: Row, rows: list[Row]) -> bool:
    best = max(rows, key=lambda each: each.score)
    return (row.knobs, row.score) == (best.knobs, best.score)


def _header(line: str) -> tuple[str, ...] | None:
    """The columns that a line names; None when it is no header of such a log."""
    names = tuple(plain(cell.strip(_AROUND), 60).lower() for cell in line.split(","))
    return names if {CYCLE, FUSION, SCORE} <= set(names) else None


def _row(number: int, text: str, columns: tuple[str, ...]) -> Row | None:
    """A row of numbers that Horovod could have written; None for anything else."""
    cells = [cell.strip(_AROUND) for cell in text.split(",")]
    if len(cells) != len(columns):
        return None
    by_name = dict(zip(columns, cells, strict=True))
    try:
        cycle, fusion, score = (float(by_name[name]) for name in (CYCLE, FUSION, SCORE))
        switches = {name: bool(("0", "1").index(by_name[name])) for name in SWITCHES if name in by_name}
    except ValueError:
        return None
    if not (abs(cycle) <= _SANE and abs(fusion) <= _SANE and is_possible(score)):
        return None
    return Row(number, Knobs(fusion_threshold_mb=fusion, cycle_time_ms=cycle, switches=switches), score)
