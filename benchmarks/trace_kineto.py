"""Profiler traces: the reader against the msgspec floor and HolisticTraceAnalysis, and peak memory."""

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from benchmarks import trace_files

SAMPLES = {"gloo, CPU": trace_files.SAMPLES / "kineto" / "gloo_small" / "rank0.json.gz",
           "stacks, CPU": trace_files.SAMPLES / "kineto" / "gloo_with_stack" / "rank0.json.gz",
           "NCCL, CUDA": trace_files.SAMPLES / "kineto" / "nccl" / "rank0.json.gz"}  # fmt: skip
SMALL_MB, BIG_MB = 200, 2000
REPEATS = 3
PEER = "HolisticTraceAnalysis==0.5.0"
PEER_FOLDER = Path("results") / "bench" / "holistic_trace_analysis"

OURS = """
from pathlib import Path
from scalescope.traces.kineto import reading as kineto
def work(): return len(kineto.read(Path(PATH)).starts_s)
"""
FLOOR = """
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
HOLISTIC = """
import logging
from hta.common.trace import parse_trace_file
logging.disable(logging.CRITICAL)
def work(): return len(parse_trace_file(PATH)[1])
"""
TIMED = """
import json, resource, time
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, started, used = peak(), time.perf_counter(), time.process_time()
found = work()
print(json.dumps({"seconds": time.perf_counter() - started, "cpu": time.process_time() - used,
                  "memory": peak() - before, "found": found}))
"""


def run() -> list[dict[str, Any]]:
    """Every figure from a process of its own, the fastest of three; the floor and ours alternating."""
    rows = []
    for name, sample in SAMPLES.items():
        path = trace_files.kineto(sample, SMALL_MB)
        size = path.stat().st_size
        timed = [(measured(FLOOR, path), measured(OURS, path)) for _ in range(REPEATS)]
        floor = min((pair[0] for pair in timed), key=lambda each: each["cpu"])
        ours = min((pair[1] for pair in timed), key=lambda each: each["cpu"])
        rows.append(row(name, "msgspec, typed", size, floor, floor))
        rows.append(row(name, "scalescope", size, ours, floor))
        if name == "gloo, CPU":
            packed = trace_files.kineto(sample, SMALL_MB, packed=True)
            gzipped = min((measured(OURS, packed) for _ in range(REPEATS)), key=lambda each: float(each["cpu"]))
            rows.append(row(name, "scalescope, gzip", size, gzipped, floor))
        if name != "stacks, CPU":
            big = trace_files.kineto(sample, BIG_MB)
            rows.append(row(name, "scalescope, 2 GB", big.stat().st_size, measured(OURS, big), floor, size))
        if name == "NCCL, CUDA":
            peer = measured(HOLISTIC, path, str(peer_python()))
            rows.append(row(name, PEER, size, peer, floor))
            rows[-1]["scalescope is faster"] = peer["cpu"] / ours["cpu"]
    return rows


def row(
    trace: str, reader: str, size: int, figures: dict[str, float], floor: dict[str, float], floor_size: int = 0
) -> dict[str, Any]:
    """One line of the table; the rate is in MB of the unpacked file for a second of one core."""
    rate, best = size / figures["cpu"], (floor_size or size) / floor["cpu"]
    return {
        "trace": trace,
        "reader": reader,
        "MB": size / 1e6,
        "MB/s": rate / 1e6,
        "of the floor": rate / best,
        "MB above imports": figures["memory"] / 1e6,
        "scalescope is faster": None,
    }


def measured(code: str, path: Path, python: str = sys.executable) -> dict[str, float]:
    """Seconds, CPU seconds and memory of one reading."""
    whole = f"PATH = {str(path)!r}\n{code}\n{TIMED}"
    done = subprocess.run([python, "-c", whole], check=True, capture_output=True, text=True, timeout=900)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def peer_python() -> Path:
    """An environment that has the peer and nothing of ours."""
    python = PEER_FOLDER / "bin" / "python"
    if not (PEER_FOLDER / "ready").exists():
        venv.create(PEER_FOLDER, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", PEER], check=True, capture_output=True, timeout=600)
        (PEER_FOLDER / "ready").touch()
    return python
