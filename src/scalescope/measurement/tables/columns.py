"""What the columns of people's scaling tables mean, by their names."""

import re
from itertools import pairwise
from typing import NamedTuple

from scalescope.units import SECONDS_PER

_WORKERS = {
    "np", "nproc", "nprocs", "process", "processes", "proc", "procs", "rank", "ranks", "worker", "workers", "gpu",
    "gpus", "device", "devices", "ntasks",
}  # fmt: skip
_COUNTING = {"n", "num", "number", "of", "no", "nr", "count", "total", "mpi", "the"}
_TIMING = {
    "time", "times", "wall", "walltime", "clock", "elapsed", "duration", "runtime", "in", "mean", "median", "avg",
    "average", "the", "of",
}  # fmt: skip
_INIT = {"init", "initialization", "initialisation", "setup", "startup"}
_TRAIN = {"train", "training"}
_WHOLE = {"total", "wall", "walltime", "job", "end", "to", "e2e", "overall"}
_EXAMPLES = {
    "example", "examples", "ex", "image", "images", "img", "imgs", "sample", "samples", "sequence", "sequences",
    "token", "tokens", "item", "items",
}  # fmt: skip
_SUMMED = {"total", "global", "aggregate", "aggregated", "overall"}
_UNCERTAIN = {
    "low", "high", "std", "stdev", "sd", "sem", "err", "error", "ci", "interval", "min", "max", "count", "over",
}  # fmt: skip
# Columns of our own tables from which nothing is computed.
_OWN = {"threads_per_rank", "warmup_steps", "baseline_np", "baseline_engine", "what", "interval"}

# The names to tell when a table has none of them.
KNOWN = "np (or gpus, ranks, workers), init_s, train_s, total_s, examples_per_s_per_worker, examples_per_s_total"


class Meaning(NamedTuple):
    """What a column holds, and its unit."""

    # A field of a row (np, init_s, train_s, total_s, fixed_s, epoch_s, step_s, steps, batch, worker_batch,
    # global_batch, nodes, launches, engine, scaling); rate_total, rate_worker, or bare_rate when it does not say whose;
    # time, likewise; speedup_NAME, or speedup when it does not say which; or recomputed.
    name: str
    scale: float = 1.0  # What a cell is multiplied by: 0.001 for milliseconds


def meaning_of(heading: str) -> Meaning | None:
    """The meaning of a heading such as `Train time(s)`, `GPUs` or `img/sec per GPU`; None when it has none here."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", heading.replace("/", " per "))  # a slash says per
    words = re.findall(r"[a-z0-9]+", apart.lower())
    minutes = re.search(r"[(\[]\s*min", heading) is not None  # else min is the smallest
    if "_".join(words) in _OWN or words[:1] == ["phase"] or "efficiency" in words:
        return Meaning("recomputed")
    if len(words) == 1 and words[0] in ("engine", "framework", "scaling"):
        return Meaning("scaling" if words[0] == "scaling" else "engine")
    return _speedup(words) or _count(words) or _batch(words) or _rate(words) or _time(words, minutes)


def _speedup(words: list[str]) -> Meaning | None:
    if "speedup" not in "".join(words):
        return Meaning("recomputed") if len(words) > 1 and words[-1] in ("low", "high") else None
    rest = set(words) - {"speed", "up", "speedup", "speedups"}
    if rest & (_UNCERTAIN | {"ideal", "linear"}):
        return Meaning("recomputed")
    if rest & _TRAIN:
        return Meaning("speedup_train")
    if rest & (_EXAMPLES | {"steady", "throughput", "rate"}):
        return Meaning("speedup_steady")
    return Meaning("speedup_end_to_end" if rest & _WHOLE else "speedup")


def _count(words: list[str]) -> Meaning | None:
    core = [word for word in words if word not in _COUNTING]
    if (len(core) == 1 and core[0] in _WORKERS) or words in (["n"], ["world", "size"]):
        return Meaning("np")
    if core in (["launches"], ["steps"]):
        return Meaning(core[0])
    return Meaning("nodes") if core in (["node"], ["nodes"], ["host"], ["hosts"]) else None


def _batch(words: list[str]) -> Meaning | None:
    core = [word for word in words if word not in ("size", "batch", "batchsize")]
    if "batch" not in words and "batchsize" not in words:
        return None
    if not core:
        return Meaning("batch")
    if set(core) <= {"global", "total", "effective"}:
        return Meaning("global_batch")
    each = (core[:1] == ["per"] and core[-1] in _WORKERS) or core == ["local"]
    return Meaning("worker_batch") if each else None


def _rate(words: list[str]) -> Meaning | None:
    """Examples per time, whose: of all, of each, or not said."""
    pers = [after for before, after in pairwise(words) if before == "per"]
    times = [after for after in pers if after in SECONDS_PER]
    if (set(words) - set(times)) & _UNCERTAIN or not ("throughput" in words or (set(words) & _EXAMPLES and times)):
        return None
    others = set(pers) - set(times)
    if others - _WORKERS:
        return None
    scale = 1 / SECONDS_PER[times[0]] if times else 1.0
    if others:
        return Meaning("rate_worker", scale)
    return Meaning("rate_total" if set(words) & _SUMMED else "bare_rate", scale)


def _time(words: list[str], minutes: bool) -> Meaning | None:
    units = [word for word in words if word in SECONDS_PER and (word != "min" or minutes)]
    alone = len(words) == 1 and words[0] in _INIT | _TRAIN | {"total"}
    if len(units) > 1 or not (units or alone or set(words) & _TIMING):
        return None
    scale = SECONDS_PER[units[0]] if units else 1.0
    told = set(words) - set(units)
    core = told - _TIMING
    for name, synonyms in (("epoch_s", {"epoch"}), ("step_s", {"step", "iteration", "iter"})):
        if core & synonyms and core <= synonyms | {"per"}:
            return Meaning(name, scale)
    if core == {"fixed"}:
        return Meaning("fixed_s", scale)
    if core and core <= _INIT:
        return Meaning("init_s", scale)
    if core & _TRAIN and core <= _TRAIN | {"total"}:
        return Meaning("train_s", scale)
    if core <= _WHOLE and told & (_WHOLE | {"elapsed"}):
        return Meaning("total_s", scale)
    return Meaning("time", scale) if not core else None
