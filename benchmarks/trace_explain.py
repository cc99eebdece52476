"""The whole `scalescope explain` of traces of 200 MB, start-up and answer included, against a typed msgspec decode.

There are two decodes, both counted from after their imports: the fastest (a Horovod timeline in chunks, Structs that
the garbage collector leaves alone) and a plain one (the whole file at once, ordinary Structs), which takes about twice
as long. `start-up` is the explain of a trace of less than 1 MB. A check that forbids bytecode
(PYTHONDONTWRITEBYTECODE) compiles scalescope at every start: make bench does not.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import trace_files
from benchmarks.shared import print_table, scalescope_words

MEGABYTES = 200
REPEATS = 5
RANKS = 8


def trace_explain() -> list[dict[str, Any]]:
    """A row per kind of trace: CPU seconds, the fastest of some with floor and command alternating, and peak memory."""
    files = {
        "Horovod timeline, long training": ((HOROVOD, HOROVOD_PLAIN), trace_files.horovod(MEGABYTES)),
        "Horovod timeline, repeated": ((HOROVOD, HOROVOD_PLAIN), trace_files.horovod_repeated(MEGABYTES)),
    }
    for name in ("gloo, CPU", "NCCL, CUDA"):
        path = trace_files.kineto(trace_files.PROFILER_TRACES[name], MEGABYTES)
        files[f"profiler trace, {name}"] = ((KINETO, KINETO_PLAIN), path)
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
            decoded = [decode(code, path)["cpu"] for code in decodes]
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


# Typed msgspec decodes, which no reader in Python beats.
HOROVOD = """
import msgspec
from scalescope.traces.event_stream import last_border
class Event(msgspec.Struct, gc=False):
    ph: str
    ts: int = 0
    pid: int = 0
    name: str = ""
    args: dict[str, int | str] | None = None
decoder = msgspec.json.Decoder(list[Event])
def work():
    found, rest = 0, b""
    with open(PATH, "rb", buffering=0) as file:
        file.read(1)
        while chunk := file.read(1 << 20):
            rest += chunk
            end, begin = last_border(rest)
            found += len(decoder.decode(b"[" + rest[:end] + b"]"))
            rest = rest[begin:]
    return found + len(decoder.decode(b"[" + rest))
"""
KINETO = """
import msgspec
from pathlib import Path
class Args(msgspec.Struct, gc=False, frozen=True, rename={"external_id": "External id", "count": "In msg nelems"}):
    correlation: int = -1
    external_id: int = -1
    count: int = -1
    dtype: str = ""
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    pid: int | str = 0
    args: Args = Args()
class File(msgspec.Struct):
    traceEvents: list[Event]
decoder = msgspec.json.Decoder(File)
def work(): return len(decoder.decode(Path(PATH).read_bytes()).traceEvents)
"""
# The same as one types it first: the whole file at once, into Structs that Python's garbage collector follows.
HOROVOD_PLAIN = """
import msgspec
from pathlib import Path
class Event(msgspec.Struct):
    ph: str
    ts: int = 0
    pid: int = 0
    name: str = ""
    args: dict[str, int | str] | None = None
decoder = msgspec.json.Decoder(list[Event])
def work(): return len(decoder.decode(Path(PATH).read_bytes()))
"""
KINETO_PLAIN = KINETO.replace(", gc=False", "")
TIMED = """
import json, resource, time
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, started, used = peak(), time.perf_counter(), time.process_time()
found = work()
print(json.dumps({"seconds": time.perf_counter() - started, "cpu": time.process_time() - used,
                  "memory": peak() - before, "found": found}))
"""


def decode(code: str, path: Path) -> dict[str, float]:
    """Seconds, CPU seconds and memory of one reading."""
    whole = f"PATH = {str(path)!r}\n{code}\n{TIMED}"
    done = subprocess.run([sys.executable, "-c", whole], check=True, capture_output=True, text=True, timeout=900)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
