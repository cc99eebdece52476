"""A table as text: which character separates, where the heading is, and what its numbers are.
What the columns of people's scaling tables mean, by their names.
"""

import csv
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.measurement.text_files import whole
from scalescope.text import plain

_SEPARATORS = ("\t", ";", ",")
_MISSING = {"", "-", "--", "\N{EN DASH}", "\N{EM DASH}", "n/a", "na", "nan", "none", "null", "?"}
_NUMBER = r"[+-]?\d+(?:\.\d*)?(?:e[+-]?\d+)?|[+-]?\.\d+(?:e[+-]?\d+)?"
_THOUSANDS = re.compile(r"(?<=\d)[,'\s\u00a0\u202f](?=\d{3}(?!\d))")
_UNIT = re.compile(r"\s*(?:s|secs?|seconds?|x|%|\N{MULTIPLICATION SIGN})$")
_SPREAD = re.compile(r"\s*(?:\N{PLUS-MINUS SIGN}|\+/?-).*$")
_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")

_EXCEL_HINT = re.compile(r"sep=.\s*$", re.IGNORECASE)


class Row(NamedTuple):
    """Cells of one row, as many as the heading has."""

    line: int
    cells: list[str]


class TableText(NamedTuple):
    """A heading and its rows, cells still text."""

    name: str
    heading: list[str]
    rows: list[Row]
    decimal_comma: bool  # Whether 0,5 is a half


def read_table_text(path: Path) -> TableText:
    """The table in a file; one line that names the next action when there is none."""
    name = plain(path.name)
    numbered = [
        (number, line)
        for number, line in enumerate(whole(path).splitlines(), start=1)
        if line.strip() and not _EXCEL_HINT.match(line)
    ]
    heading_at = _heading_index([line for _, line in numbered])
    heading_line = numbered[heading_at][1].lstrip("# ") if heading_at is not None else ""
    separator = separator_of(heading_line)
    if heading_at is None or separator is None:
        raise UsageError(f"'{name}' has no heading that is understood: name its columns {KNOWN}")
    body = [(number, line) for number, line in numbered[heading_at + 1 :] if not line.lstrip().startswith("#")]
    heading = [cell.strip() for cell in next(csv.reader([heading_line], delimiter=separator, skipinitialspace=True))]
    rows = _rows(name, heading, body, separator)
    if not rows:
        raise UsageError(f"'{name}' has a heading and no rows: add one row per number of processes")
    return TableText(name, heading, rows, separator == ";" and _has_decimal_commas(rows))


def separator_of(heading: str) -> str | None:
    """What separates the cells of a heading: the character that leaves the most names understood."""
    best, understood = None, 0
    for separator in _SEPARATORS:
        cells = next(csv.reader([heading[:10_000]], delimiter=separator, skipinitialspace=True), [])
        count = sum(meaning_of(cell) is not None for cell in cells)
        if len(cells) > 1 and count > understood:
            best, understood = separator, count
    return best


def _heading_index(lines: list[str]) -> int | None:
    """The first line that is no comment; a comment right above numbers can be the heading too."""
    first = next((index for index, line in enumerate(lines) if not line.lstrip().startswith("#")), None)
    if first is None:
        return None
    starts_with_number = re.match(r"\s*\"?[\d.+-]", lines[first]) is not None
    return first - 1 if starts_with_number and first > 0 else first


def _rows(name: str, heading: list[str], body: list[tuple[int, str]], separator: str) -> list[Row]:
    reader = csv.reader((line for _, line in body), delimiter=separator, skipinitialspace=True)
    rows, begin = [], 0
    try:
        for cells in reader:
            line, begin = body[begin][0], reader.line_num
            stripped = [cell.strip() for cell in cells]
            if any(stripped[len(heading) :]):
                raise UsageError(
                    f"'{name}' line {line} has {len(stripped)} cells where the heading has {len(heading)}: "
                    "put numbers with separators, such as 1,234, into quotes"
                )
            if any(stripped):
                rows.append(Row(line, (stripped + [""] * len(heading))[: len(heading)]))
    except csv.Error as problem:
        raise UsageError(f"'{name}' is no table ({problem}): check its quotes") from None
    return rows


def _has_decimal_commas(rows: list[Row]) -> bool:
    """In files separated by ; a comma is decimal unless another cell has a decimal point."""
    cells = [cell for row in rows for cell in row.cells]
    if any(re.fullmatch(r"[\d.]*\d,\d+", cell) and not re.fullmatch(r"\d{1,3},\d{3}", cell) for cell in cells):
        return True
    points = any(re.fullmatch(r"\d*\.\d+", cell) for cell in cells)
    return not points and any("," in cell for cell in cells)


def parse_number(text: str, *, decimal_comma: bool) -> float | None:
    """`1,234.5`, `163 s`, `1.72x`, `94 %`, `190 +- 3` or `0:02:43` as a number, None when nothing is there."""
    plain = text.strip().lower()
    if plain in _MISSING:
        return None
    if clock := _CLOCK.fullmatch(plain):
        return 3600 * float(clock[1]) + 60 * float(clock[2]) + float(clock[3])
    plain = _UNIT.sub("", _SPREAD.sub("", plain))
    if decimal_comma:
        thousands = re.fullmatch(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?", plain)
        plain = (plain.replace(".", "") if thousands else plain).replace(",", ".")
    plain = _THOUSANDS.sub("", plain)
    if not re.fullmatch(_NUMBER, plain):
        raise ValueError(text)
    value = float(plain)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_SECONDS_PER = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_WORKERS = {
    "np", "nproc", "nprocs", "process", "processes", "proc", "procs", "rank", "ranks", "worker", "workers", "gpu",
    "gpus", "device", "devices", "ntasks",
}  # fmt: skip
_COUNTING = {"n", "num", "number", "of", "no", "nr", "count", "total", "mpi", "the"}
_TIMING = {
    "time", "times", "wall", "walltime", "clock", "elapsed", "duration", "runtime", "in", "mean", "median", "avg",
    "average", "the", "of",
}  # fmt: skip
_INIT = {"init", "initialization", "initialisation", "initialize", "setup", "startup"}
_TRAIN = {"train", "training"}
_WHOLE = {"total", "wall", "walltime", "job", "end", "to", "e2e", "overall"}
_EXAMPLES = {
    "example", "examples", "ex", "image", "images", "img", "imgs", "sample", "samples", "sequence", "sequences",
    "sentence", "sentences", "token", "tokens", "item", "items", "record", "records",
}  # fmt: skip
_SUMMED = {"total", "global", "aggregate", "aggregated", "combined", "sum", "overall"}
# What scalescope's own tables hold beside, and nothing is computed from.
_OWN = {"threads_per_rank", "warmup_steps", "baseline_np", "baseline_engine", "what"}
_UNCERTAIN = {
    "low",
    "high",
    "std",
    "stdev",
    "sd",
    "sem",
    "err",
    "error",
    "ci",
    "interval",
    "min",
    "max",
    "count",
    "over",
}

# The names to tell when a table has none of them.
KNOWN = "np (or gpus, ranks, workers), init_s, train_s, total_s, examples_per_s_per_worker, examples_per_s_total"


class Meaning(NamedTuple):
    """What a column holds, and its unit."""

    # A field of a row (np, init_s, train_s, total_s, fixed_s, epoch_s, step_s, steps, batch, worker_batch,
    # global_batch, nodes, launches, engine, scaling, interval); rate_total, rate_worker, or bare_rate when it is not
    # said whose; time, likewise; speedup_NAME, or speedup when it is not said which; or recomputed.
    name: str
    scale: float = 1.0  # What a cell is multiplied by: 0.001 for milliseconds


def meaning_of(heading: str) -> Meaning | None:
    """The meaning of a heading such as `Train time(s)`, `GPUs` or `img/sec per GPU`; None when it has none here."""
    words = _words(heading)
    bracketed = {word for text in re.findall(r"[(\[]([^)\]]*)", heading) for word in _words(text)}
    for understand in (_label, _speedup, _count, _batch, _rate, _time):
        found = understand(words, bracketed)
        if found:
            return found
    return None


def _words(text: str) -> list[str]:
    """Lower-case words; a slash says per."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.replace("/", " per "))
    return re.findall(r"[a-z0-9]+", apart.lower())


def _label(words: list[str], _bracketed: set[str]) -> Meaning | None:
    names = {"engine": "engine", "framework": "engine", "scaling": "scaling", "interval": "interval"}
    return Meaning(names[words[0]]) if len(words) == 1 and words[0] in names else None


def _speedup(words: list[str], _bracketed: set[str]) -> Meaning | None:
    joined = "".join(words)
    rest = set(words) - {"speed", "up", "speedup", "speedups"}
    end = words[-1] if len(words) > 1 and words[-1] in ("low", "high") else ""
    own = "_".join(words) in _OWN or words[:1] == ["phase"]
    if "efficiency" in words or own or (end and "speedup" not in joined):
        return Meaning("recomputed")
    if "speedup" not in joined:
        return None
    if end:
        stated = _speedup(words[:-1], _bracketed)
        return Meaning(f"{stated.name}_{end}" if stated else "recomputed")
    if rest & _UNCERTAIN or "ideal" in rest or "linear" in rest:
        return Meaning("recomputed")
    if rest & _TRAIN:
        return Meaning("speedup_train")
    if rest & (_EXAMPLES | {"steady", "throughput", "rate"}):
        return Meaning("speedup_steady")
    return Meaning("speedup_end_to_end" if rest & _WHOLE else "speedup")


def _count(words: list[str], _bracketed: set[str]) -> Meaning | None:
    core = [word for word in words if word not in _COUNTING]
    if (len(core) == 1 and core[0] in _WORKERS) or words in (["n"], ["world", "size"]):
        return Meaning("np")
    names = {"node": "nodes", "nodes": "nodes", "host": "nodes", "hosts": "nodes"}
    names |= {"launches": "launches", "steps": "steps"}
    return Meaning(names[core[0]]) if len(core) == 1 and core[0] in names else None


def _batch(words: list[str], _bracketed: set[str]) -> Meaning | None:
    core = [word for word in words if word not in ("size", "batchsize")]
    if "batch" not in words and "batchsize" not in words:
        return None
    if set(core) <= {"batch"}:
        return Meaning("batch")
    if set(core) <= {"global", "total", "effective", "batch"}:
        return Meaning("global_batch")
    each = (core[-2:-1] == ["per"] and core[-1] in _WORKERS) or set(core) == {"local", "batch"}
    return Meaning("worker_batch") if each else None


def _rate(words: list[str], _bracketed: set[str]) -> Meaning | None:
    """Examples per time, whose: of all, of each, or not said."""
    pers = [after for before, after in pairwise(words) if before == "per"]
    times = [after for after in pers if after in _SECONDS_PER]
    if (set(words) - set(times)) & _UNCERTAIN or not ("throughput" in words or (set(words) & _EXAMPLES and times)):
        return None
    others = [after for after in pers if after not in _SECONDS_PER]
    if any(after not in _WORKERS for after in others):
        return None
    scale = 1 / _SECONDS_PER[times[0]] if times else 1.0
    if others:
        return Meaning("rate_worker", scale)
    return Meaning("rate_total" if set(words) & _SUMMED else "bare_rate", scale)


def _time(words: list[str], bracketed: set[str]) -> Meaning | None:
    units = [word for word in words if word in _SECONDS_PER and (word != "min" or word in bracketed)]
    alone = len(words) == 1 and words[0] in _INIT | _TRAIN | {"total"}
    if len(units) > 1 or not (units or alone or set(words) & _TIMING):
        return None
    scale = _SECONDS_PER[units[0]] if units else 1.0
    told = [word for word in words if word not in units]
    for part in ("epoch", "step"):
        synonyms = {part, "iteration", "iter"} if part == "step" else {part}
        if set(told) - _TIMING - {"per"} <= synonyms and set(told) & synonyms:
            return Meaning(f"{part}_s", scale)
    if "per" in told:
        return None
    core = set(told) - _TIMING
    if core == {"fixed"}:
        return Meaning("fixed_s", scale)
    if core and core <= _INIT:
        return Meaning("init_s", scale)
    if core & _TRAIN and core <= _TRAIN | {"total"}:
        return Meaning("train_s", scale)
    if core <= _WHOLE and set(told) & (_WHOLE | {"elapsed"}):
        return Meaning("total_s", scale)
    return Meaning("time", scale) if not core else None
