"""The whole `scalescope explain` of traces of 200 MB, start-up and answer included, against a typed msgspec decode.

There are two decodes, both counted from after their imports: the fastest (a Horovod timeline in chunks, Structs that
the garbage collector leaves alone) and a plain one (the whole file at once, ordinary Structs), which takes about twice
as long. `start-up` is the explain of a trace of less than 1 MB. A check that forbids bytecode
(PYTHONDONTWRITEBYTECODE) compiles scalescope at every start: make bench does not.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import trace_files, trace_floors
from benchmarks.shared import print_table, scalescope_words

MEGABYTES = 200
REPEATS = 5
RANKS = 8
# The fastest decode and a plain one.
_HOROVOD = trace_floors.HOROVOD, trace_floors.HOROVOD_PLAIN
_KINETO = trace_floors.KINETO, trace_floors.KINETO_PLAIN


def trace_explain() -> list[dict[str, Any]]:
    """A row per kind of trace: CPU seconds, the fastest of some with floor and command alternating, and peak memory."""
    files = {
        "Horovod timeline, long training": (_HOROVOD, trace_files.horovod(MEGABYTES)),
        "Horovod timeline, repeated": (_HOROVOD, trace_files.horovod_repeated(MEGABYTES)),
    }
    for name in ("gloo, CPU", "NCCL, CUDA"):
        path = trace_files.kineto(trace_files.PROFILER_TRACES[name], MEGABYTES)
        files[f"profiler trace, {name}"] = (_KINETO, path)
    small = trace_files.SAMPLES / "horovod" / "mpi_cnn.json.gz"
    command(small)  # leaves the bytecode
    startup = min(command(small)[0] for _ in range(REPEATS))
    rows = [_row(name, decodes, path, startup) for name, (decodes, path) in files.items()]
    print_table(many_ranks(MEGABYTES // RANKS, RANKS, REPEATS))
    return rows


def many_ranks(megabytes: int, count: int, repeats: int) -> list[dict[str, Any]]:
    """Files of many ranks, read on one core and on all: wall seconds of the whole command, the fastest of some."""
    files = [str(path) for path in trace_files.ranks(trace_files.PROFILER_TRACES["gloo, CPU"], megabytes, count)]
    everything = sorted(os.sched_getaffinity(0))
    rows = []
    for cores in (everything[:1], everything):
        walls = []
        for _ in range(repeats):
            began = time.perf_counter()
            words = ["taskset", "-c", ",".join(map(str, cores)), *scalescope_words("explain", "--json", *files)]
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            walls.append(time.perf_counter() - began)
        rows.append({"ranks": count, "MB each": megabytes, "cores": len(cores), "explain, wall s": min(walls)})
    return rows


def _row(name: str, decodes: tuple[str, str], path: Path, startup: float) -> dict[str, Any]:
    rounds: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        export = ("--export", str(Path(folder) / "steps.json"))
        for _ in range(REPEATS):
            decoded = [trace_floors.measured(code, path)["cpu"] for code in decodes]
            rounds.append((*decoded, command(path), command(path, *export)))
    fastest, plain, explained, exported = map(min, zip(*rounds, strict=True))
    explaining, memory = explained
    return {
        "trace": name,
        "MB": path.stat().st_size / 1e6,
        "fastest decode, CPU s": fastest,
        "plain decode, CPU s": plain,
        "explain, CPU s": explaining,
        "start-up, CPU s": startup,
        "of the fastest": fastest / explaining,
        "without start-up": fastest / (explaining - startup),
        "of the plain": plain / explaining,
        "peak MB": memory / 1e6,
        "with --export, CPU s": exported[0],
    }


def command(path: Path, *options: str) -> tuple[float, float]:
    """CPU seconds and peak bytes of one explain, from start to end."""
    words = scalescope_words("explain", "--json", str(path), *options)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024.0
