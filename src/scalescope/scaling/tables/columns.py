"""What the columns of people's scaling tables mean, by their names."""

import re
from itertools import pairwise
from typing import NamedTuple

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
_OWN = {"threads_per_rank", "warmup_steps", "baseline_np", "baseline_engine", "what"}
"""What scalescope's own tables hold beside, and nothing is computed from."""
_SPREAD = {"low", "high", "std", "stdev", "sd", "sem", "err", "error", "ci", "interval", "min", "max", "count", "over"}

KNOWN = "np (or gpus, ranks, workers), init_s, train_s, total_s, examples_per_s_per_worker, examples_per_s_total"
"""The names to tell when a table has none of them."""


class Meaning(NamedTuple):
    """What a column holds, and its unit."""

    name: str
    """A field of a row (np, init_s, train_s, total_s, fixed_s, epoch_s, step_s, steps, batch, worker_batch,
    global_batch, nodes, launches, engine, scaling, interval); rate_total, rate_worker, or bare_rate when it is not
    said whose; time, likewise; speedup_NAME, or speedup when it is not said which; or recomputed."""
    scale: float = 1.0
    """What a cell is multiplied by: 0.001 for milliseconds."""


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
    if rest & _SPREAD or "ideal" in rest or "linear" in rest:
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
    if (set(words) - set(times)) & _SPREAD or not ("throughput" in words or (set(words) & _EXAMPLES and times)):
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
