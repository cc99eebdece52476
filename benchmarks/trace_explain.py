"""The whole `scalescope explain` of traces of 200 MB, start-up and answer included, against a typed msgspec decode.

The decode counts from after its imports; `start-up` is the explain of a trace of less than 1 MB. A check that forbids
bytecode (PYTHONDONTWRITEBYTECODE) compiles scalescope at every start: make bench does not.
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


def trace_explain() -> list[dict[str, Any]]:
    """A row per kind of trace: CPU seconds, the fastest of some with floor and command alternating, and peak memory."""
    files = {
        "Horovod timeline, long training": (trace_floors.HOROVOD, trace_files.horovod(MEGABYTES)),
        "Horovod timeline, repeated": (trace_floors.HOROVOD, trace_files.horovod_repeated(MEGABYTES)),
    }
    for name in ("gloo, CPU", "NCCL, CUDA"):
        path = trace_files.kineto(trace_files.PROFILER_TRACES[name], MEGABYTES)
        files[f"profiler trace, {name}"] = (trace_floors.KINETO, path)
    small = trace_files.SAMPLES / "horovod" / "mpi_cnn.json.gz"
    command(small)  # leaves the bytecode
    startup = min(command(small)[0] for _ in range(REPEATS))
    rows = [_row(name, floor, path, startup) for name, (floor, path) in files.items()]
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


def _row(name: str, floor: str, path: Path, startup: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        export = ("--export", str(Path(folder) / "steps.json"))
        rounds = [
            (trace_floors.measured(floor, path)["cpu"], command(path), command(path, *export)) for _ in range(REPEATS)
        ]
    decoding = min(each[0] for each in rounds)
    explaining, memory = min(each[1] for each in rounds)
    return {
        "trace": name,
        "MB": path.stat().st_size / 1e6,
        "msgspec, typed, CPU s": decoding,
        "explain, CPU s": explaining,
        "start-up, CPU s": startup,
        "of the floor": decoding / explaining,
        "without start-up": decoding / (explaining - startup),
        "peak MB": memory / 1e6,
        "with --export, CPU s": min(each[2][0] for each in rounds),
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
