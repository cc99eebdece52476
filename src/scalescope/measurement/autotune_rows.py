"""The rows of Horovod's autotune log, as far as they can be read.
How much samples of Horovod's autotune scatter, and what a setting reaches when its neighbours are asked too.
"""

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalescope.errors import UsageError
from scalescope.records.autotune import SWITCHES, Knobs, Noise
from scalescope.records.explanation import Loss
from scalescope.text import plain

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

    def says_the_same(self, other: "Row") -> bool:
        """Whether it has the same numbers."""
        return self.knobs == other.knobs and self.score == other.score


class Log(NamedTuple):
    """What a file holds."""

    columns: tuple[str, ...]
    rows: list[Row]  # Samples only
    finished: bool  # Whether a last row repeated the best sample: it is autotune's choice, and no further sample
    lost: Loss


class _Unread(NamedTuple):
    line: int
    bytes: int
    why: str


def is_autotune_log(beginning: str) -> bool:
    """Whether one of the first lines names the columns of an autotune log."""
    return any(_header(line) for line in beginning.splitlines()[:_BEGINNING])


def read_rows(path: Path) -> Log:
    """Every row that can be read; one line that names the next action when there is none."""
    shown = plain(str(path))
    columns: tuple[str, ...] | None = None
    rows: list[Row] = []
    unread: list[_Unread] = []
    *whole, last = _bytes(path, shown).split(b"\n")
    for number, line in enumerate(whole, start=1):
        text = line.decode(errors="replace")
        if header := _header(text):
            unread += [_Unread(row.line, 0, "belongs to an earlier log in the same file") for row in rows]
            columns, rows = header, []
        elif columns and text.strip(_AROUND):
            row = _row(number, text, columns)
            if row:
                rows.append(row)
            else:
                unread.append(_Unread(number, len(line), "is not a row of numbers"))
    columns = columns or _header(last.decode(errors="replace"))
    if columns is None:
        raise UsageError(
            f"'{shown}' is no log of Horovod's autotune: no line names {CYCLE}, {FUSION} and {SCORE}; "
            "name the file of HOROVOD_AUTOTUNE_LOG with its first line"
        )
    ending = _row(len(whole) + 1, last.decode(errors="replace"), columns)
    if ending and rows and ending.says_the_same(_best(rows)):
        rows.append(ending)
    elif rows and last.strip(_AROUND.encode()):
        unread.append(_Unread(len(whole) + 1, len(last), "has no end and may be cut in a number"))
    if not rows:
        raise UsageError(_nothing(shown, len(unread)))
    *before, final = rows
    finished = bool(before) and final.says_the_same(_best(before))
    return Log(columns, before if finished else rows, finished, _loss(unread))


def _bytes(path: Path, shown: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as problem:
        raise UsageError(f"cannot read '{shown}': {problem.strerror}: check the path and its permissions") from None
    if len(data) > _LARGEST:
        raise UsageError(f"'{shown}' is larger than {_LARGEST >> 20} MiB, as no autotune log is: name another file")
    return data


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
    if not (abs(cycle) <= _SANE and abs(fusion) <= _SANE and 0 < score < math.inf):
        return None
    return Row(number, Knobs(fusion_threshold_mb=fusion, cycle_time_ms=cycle, switches=switches), score)


def _best(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.score)


def _nothing(shown: str, unreadable: int) -> str:
    """Why there is no sample, and what to do."""
    if unreadable:
        return f"'{shown}' has lines below its header ({unreadable:,}) and none can be read: name an undamaged copy"
    return (
        f"'{shown}' has no samples: autotune needs more steps than this run made, about 200 for its first sample; "
        "train longer, or set HOROVOD_AUTOTUNE_WARMUP_SAMPLES=1 and HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=2 (10 steps each)"
    )


def _loss(unread: Sequence[_Unread]) -> Loss:
    if not unread:
        return Loss()
    first = unread[0]
    more = f", and {len(unread) - 1:,} more" if len(unread) > 1 else ""
    return Loss(
        events=len(unread),
        bytes=sum(each.bytes for each in unread),
        reason=f"line {first.line} {first.why}{more}",
    )


Array = NDArray[np.float64]

_ENOUGH_REPEATS = 4  # Degrees of freedom from which on repeats alone tell the noise
_FEWEST = 6  # Samples for a surface
MOST = 400  # Samples that a surface is put through; it takes their third power
_LENGTHS = (0.5, 1.0, 2.0, 4.0)  # Octaves of cycle time or fusion threshold over which scores stay alike
_SWITCHED = (0.1, 1.0)  # How far apart a switch moves two settings, squared
_SIGNALS = (0.1, 0.3, 1.0, 3.0)
_NOISES = (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # Variances, relative to that of all samples
_TINY = 1e-10


class Surface(NamedTuple):
    """A smooth function of the knobs, in logarithms of scores."""

    values: Array  # At the samples
    errors: Array  # Standard errors of the values
    freedom: float  # Samples, less what the surface takes to follow them


class _Fit(NamedTuple):
    """One Gaussian process: variances of signal and noise along directions, and how well they fit."""

    likelihood: float  # Its logarithm
    signal: Array
    directions: Array
    noise: float


def noise_of_repeats(groups: Sequence[Sequence[float]]) -> Noise | None:
    """The standard deviation of one sample, from settings with several; None where none was repeated."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        return None
    squares = sum(float(np.var(np.log(group))) * len(group) for group in groups)
    return Noise(relative=math.sqrt(squares / freedom), source="repeats", freedom=freedom)


def noise_and_surface(
    knobs: Sequence[Knobs], scores: Sequence[float], groups: Sequence[Sequence[float]]
) -> tuple[Noise | None, Surface | None]:
    """The noise, from repeats where there are enough of them, and the surface that it leaves; None for too few."""
    repeats = noise_of_repeats(groups)
    if len(scores) < _FEWEST:
        return repeats, None
    if repeats and repeats.freedom >= _ENOUGH_REPEATS:
        return repeats, smooth(knobs, scores, repeats.relative)
    relative = _noise_of_neighbours(knobs, scores)
    surface = smooth(knobs, scores, relative)
    return Noise(relative=relative, source="neighbours", freedom=surface.freedom), surface


def smooth(knobs: Sequence[Knobs], scores: Sequence[float], noise: float) -> Surface:
    """The likeliest surface through samples with this noise."""
    logarithms = np.log(np.array(scores, dtype=float))
    middle = float(logarithms.mean())
    fit = max(_fits(knobs, logarithms, [noise**2]), key=lambda each: each.likelihood)
    kept = fit.signal / (fit.signal + fit.noise + _TINY)
    values = middle + fit.directions @ (kept * (fit.directions.T @ (logarithms - middle)))
    errors = np.sqrt((fit.directions**2) @ (fit.signal * (1 - kept)))
    return Surface(values, errors, max(len(scores) - float(kept.sum()), 1.0))


def _noise_of_neighbours(knobs: Sequence[Knobs], scores: Sequence[float]) -> float:
    """What surfaces leave over, each as likely as it is: the likeliest alone may go through every sample."""
    logarithms = np.log(np.array(scores, dtype=float))
    noises = [float(logarithms.var()) * relative for relative in _NOISES]
    fits = _fits(knobs, logarithms, noises)
    likeliest = max(fit.likelihood for fit in fits)
    weights = [math.exp(fit.likelihood - likeliest) for fit in fits]
    variance = sum(weight * fit.noise for weight, fit in zip(weights, fits, strict=True)) / sum(weights)
    return math.sqrt(variance)


def _fits(knobs: Sequence[Knobs], logarithms: Array, noises: Sequence[float]) -> list[_Fit]:
    """Gaussian processes of every smoothness, signal and noise."""
    rest = logarithms - logarithms.mean()
    steps, switched = _distances(knobs)
    fits = []
    for length, apart in product(_LENGTHS, _SWITCHED if switched.any() else _SWITCHED[:1]):
        shares, directions = np.linalg.eigh(np.exp(-0.5 * (steps / length**2 + apart * switched)))
        turned = directions.T @ rest
        for relative, noise in product(_SIGNALS, noises):
            signal = float(rest.var()) * relative * np.maximum(shares, 0.0)
            spread = signal + noise + _TINY
            likelihood = -0.5 * float((turned**2 / spread + np.log(spread)).sum())
            fits.append(_Fit(likelihood, signal, directions, noise))
    return fits


def _distances(knobs: Sequence[Knobs]) -> tuple[Array, Array]:
    """Between all pairs: squared octaves of cycle time and fusion threshold, and how many switches differ."""
    cycle = np.log2([max(each.cycle_time_ms, 0.1) for each in knobs])
    fusion = np.log2([1 + max(each.fusion_threshold_mb, 0.0) for each in knobs])
    places = np.stack([cycle, fusion], axis=1)
    switches = np.array([[float(value) for value in each.switches.values()] for each in knobs])

    def between(columns: Array) -> Array:
        apart: Array = ((columns[:, None, :] - columns[None, :, :]) ** 2).sum(axis=2)
        return apart

    return between(places), between(switches)
