"""Reads the log of Horovod's autotune: its header, its samples, and what of it is damaged."""

from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.named_paths import reading
from scalescope.records.autotune import SWITCHES, Knobs, Sample
from scalescope.records.explanation import Loss
from scalescope.text import plain
from scalescope.units import is_possible

CYCLE, FUSION, SCORE = "cycle_time_ms", "tensor_fusion_threshold", "score"
_LARGEST = 1 << 17  # Bytes of a file: autotune makes a few hundred samples, and each is compared with all before it
_BEGINNING = 20  # Lines among which the header is looked for
_SANE = 1e6  # Milliseconds and mebibytes that no setting reaches
_SAME = 0.01  # Settings that are this near to each other are one: 1 % of the value, or this many ms or MiB
_AROUND = "\ufeff\0 \r\t"


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
    """Every sample that can be read; settings that are practically equal are one.

    Raises:
        UsageError: There is none; it names the next action.
    """
    shown = plain(str(path))
    with reading(path), open(path, "rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise UsageError(f"'{shown}' is larger than {_LARGEST >> 10} KiB and no autotune log: name another file")
    lines = data.decode(errors="replace").split("\n")
    headers = [at for at, line in enumerate(lines) if _header(line)]
    if not headers:
        raise UsageError(
            f"'{shown}' is no log of Horovod's autotune: no line names {CYCLE}, {FUSION} and {SCORE}; "
            "name the file of HOROVOD_AUTOTUNE_LOG with its first line"
        )
    first, start = headers[0], headers[-1]
    columns = _header(lines[start])
    samples: list[Sample] = []
    settings: list[Knobs] = []
    unread = [(at + 1, "belongs to an earlier log in the same file") for at in range(first + 1, start)]
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        sample = _sample(number, line, columns, settings)
        has_end = number < len(lines)
        if sample and (has_end or _repeats_the_best(sample, samples)):
            samples.append(sample)
        elif line.strip(_AROUND) and (has_end or samples):
            unread.append((number, "is not a row of numbers" if has_end else "has no end and may be cut in a number"))
    if unread and not samples:
        raise UsageError(
            f"'{shown}' has lines below its header ({len(unread):,}) and none can be read: name an undamaged copy"
        )
    if not samples:
        raise UsageError(
            f"'{shown}' has no samples: autotune needs more steps than this run made, about 200 for its first sample; "
            "train longer, or set HOROVOD_AUTOTUNE_WARMUP_SAMPLES=1 and HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=2 (10 steps "
            "each)"
        )
    finished = _repeats_the_best(samples[-1], samples[:-1])
    more = f", and {len(unread) - 1:,} more" if len(unread) > 1 else ""
    lost = Loss(
        events=len(unread),
        bytes=sum(len(lines[number - 1]) for number, _ in unread),
        reason=f"line {unread[0][0]} {unread[0][1]}{more}" if unread else "",
    )
    return Log(columns, samples[:-1] if finished else samples, finished, lost)


def same_place(one: Knobs, other: Knobs) -> bool:
    """Compare cycle time and fusion threshold up to rounding."""
    cycle, cycle_of_other = one.cycle_time_ms, other.cycle_time_ms
    if abs(cycle - cycle_of_other) > _SAME * max(abs(cycle), abs(cycle_of_other), 1.0):
        return False
    fusion, fusion_of_other = one.fusion_threshold_mb, other.fusion_threshold_mb
    return abs(fusion - fusion_of_other) <= _SAME * max(abs(fusion), abs(fusion_of_other), 1.0)


def _repeats_the_best(sample: Sample, samples: list[Sample]) -> bool:
    best = max(samples, key=lambda each: each.score, default=None)
    return best is not None and (sample.knobs, sample.score) == (best.knobs, best.score)


def _header(line: str) -> tuple[str, ...]:
    """The columns that a line names; none when it is no header of such a log."""
    names = tuple(plain(cell.strip(_AROUND), 60).lower() for cell in line.split(","))
    return names if {CYCLE, FUSION, SCORE} <= set(names) else ()


def _sample(number: int, line: str, columns: tuple[str, ...], settings: list[Knobs]) -> Sample | None:
    """The numbers of a row that Horovod could have written; None for anything else. A new setting joins `settings`."""
    cells = [cell.strip(_AROUND) for cell in line.split(",")]
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
    knobs = Knobs(fusion_threshold_mb=fusion, cycle_time_ms=cycle, switches=switches)
    for at, known in enumerate(settings):
        if same_place(known, knobs) and known.switches == switches:
            return Sample(line=number, setting=at, knobs=knobs, score=score)
    settings.append(knobs)
    return Sample(line=number, setting=len(settings) - 1, knobs=knobs, score=score)
