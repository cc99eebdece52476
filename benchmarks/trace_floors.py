"""Typed msgspec decodes of traces, which no reader in Python beats: what the reading of traces is compared with."""

import json
import subprocess
import sys
from pathlib import Path

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


def measured(code: str, path: Path) -> dict[str, float]:
    """Seconds, CPU seconds and memory of one reading."""
    whole = f"PATH = {str(path)!r}\n{code}\n{TIMED}"
    done = subprocess.run([sys.executable, "-c", whole], check=True, capture_output=True, text=True, timeout=900)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
