"""explain's readers on traces of 200 MB and on damaged ones.

`trace_explain` compares the whole command, start-up and answer included, with typed msgspec decodes, which no reader in
Python beats. Both decodes count from after their imports: the fastest (a Horovod timeline in chunks, Structs that the
garbage collector leaves alone) and a plain one (the whole file at once, ordinary Structs), which takes about twice as
long. `start-up` is the explain of a trace of less than 1 MB. A check that forbids bytecode (PYTHONDONTWRITEBYTECODE)
compiles scalescope at every start: make bench does not.
"""

import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.shared import scalescope_words
from scalescope.errors import UsageError
from scalescope.traces.event_stream import Events
from scalescope.traces.horovod import reading as horovod_reading
from scalescope.traces.kineto import reading as kineto_reading
from scalescope.traces.trace import Trace

MEGABYTES = 200
REPEATS = 5
FOLDER = Path("results") / "bench" / "traces"
SAMPLES = Path("tests") / "data" / "traces"
PROFILER_TRACES = {
    "gloo, CPU": Path("kineto") / "gloo_small" / "rank0.json.gz",
    "NCCL, CUDA": Path("kineto") / "nccl" / "rank0.json.gz",
}


def trace_explain() -> list[dict[str, Any]]:
    """A row per kind of trace: CPU seconds, the fastest of some with floor and command alternating, and peak memory."""
    files = {
        "Horovod timeline, long training": (HOROVOD, HOROVOD_PLAIN, horovod(MEGABYTES)),
        "Horovod timeline, repeated": (HOROVOD, HOROVOD_PLAIN, horovod(MEGABYTES, shifted=False)),
    }
    for name, sample in PROFILER_TRACES.items():
        files[f"profiler trace, {name}"] = (KINETO, KINETO_PLAIN, kineto(sample, MEGABYTES))
    small = SAMPLES / "horovod" / "mpi_cnn.json.gz"
    _explain(small)  # leaves the bytecode
    startup_s = min(_explain(small)[0] for _ in range(REPEATS))
    rows = []
    for name, (fastest_code, plain_code, path) in files.items():
        rounds: list[tuple[Any, ...]] = []
        with tempfile.TemporaryDirectory() as folder:
            export = ("--export", str(Path(folder) / "steps.json"))
            for _ in range(REPEATS):
                decodes = (_decode_s(fastest_code, path), _decode_s(plain_code, path))
                rounds.append((*decodes, _explain(path), _explain(path, *export)))
        fastest_s, plain_s, explained, exported = map(min, zip(*rounds, strict=True))
        explain_s, memory = explained
        rows.append(
            {
                "trace": name,
                "MB": path.stat().st_size / 1e6,
                "fastest decode, CPU s": fastest_s,
                "plain decode, CPU s": plain_s,
                "explain, CPU s": explain_s,
                "start-up, CPU s": startup_s,
                "of the fastest": fastest_s / explain_s,
                "without start-up": fastest_s / (explain_s - startup_s),
                "of the plain": plain_s / explain_s,
                "peak MB": memory / 1e6,
                "with --export, CPU s": exported[0],
            }
        )
    return rows


def _explain(path: Path, *options: str) -> tuple[float, float]:
    """CPU seconds and peak bytes of one explain, from start to end."""
    words = scalescope_words("explain", "--json", str(path), *options)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024.0


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
KINETO_PLAIN = KINETO.replace(", gc=False", "")
TIMED = """
import time
used = time.process_time()
work()
print(time.process_time() - used)
"""


def _decode_s(code: str, path: Path) -> float:
    """CPU seconds of one reading."""
    whole = f"PATH = {str(path)!r}\n{code}\n{TIMED}"
    done = subprocess.run([sys.executable, "-c", whole], check=True, capture_output=True, text=True, timeout=900)
    return float(done.stdout)


# Big files: a sample repeated with shifted times, written a repetition at a time.

_TIME = re.compile(rb'("ts": ?)(-?\d+(?:\.\d+)?)')
_STEP = re.compile(rb'("ProfilerStep#)(\d+)"')


def horovod(megabytes: int, shifted: bool = True) -> Path:
    """A timeline of about `megabytes` MB: the beginning once, the steps after it again and again.

    Not shifted, all steps are at the same times, which no training writes.
    """
    text = gzip.decompress((SAMPLES / "horovod" / "mpi_cnn.json.gz").read_bytes())
    if not shifted:  # Equal digits, as the times of a long training have
        text = _TIME.sub(lambda found: b"%s%d" % (found[1], int(found[2]) + 10**9), text)
    begin = _where_nothing_is_open(text)
    body = text[begin:].rstrip().removesuffix(b"]") + b","
    name = f"horovod{'' if shifted else '_repeated'}_{megabytes}.json"
    return _made(name, text[:begin], body, b"]", megabytes, shifted)


def kineto(sample: Path, megabytes: int) -> Path:
    """A profiler trace of about `megabytes` MB: all events of the sample again and again."""
    text = gzip.decompress((SAMPLES / sample).read_bytes())
    found = re.search(rb'"traceEvents"\s*:\s*\[', text)
    assert found is not None
    end = text.rindex(b"}", 0, text.rindex(b"]", 0, text.rindex(b'"traceName"'))) + 1
    body = text[found.end() : end] + b","
    name = f"kineto_{sample.parent.name}_{megabytes}.json"
    return _made(name, text[: found.end()], body, text[end:], megabytes)


def _made(name: str, header: bytes, body: bytes, footer: bytes, megabytes: int, shifted: bool = True) -> Path:
    path = FOLDER / name
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{name}.part")
    with part.open("wb") as file:
        file.write(header)
        before = b""
        for piece in _repeated(body, megabytes * 1_000_000 - len(header) - len(footer), shifted):
            file.write(before)
            before = piece
        file.write(before.rstrip().removesuffix(b",") + footer)
    part.rename(path)
    return path


def _repeated(body: bytes, size: int, shifted: bool) -> Iterator[bytes]:
    times = [float(text) for _, text in _TIME.findall(body)]
    period = int(max(times) - min(times)) + 1000
    steps = [int(number) for _, number in _STEP.findall(body)]
    marks = max(steps) - min(steps) + 1 if steps else 0
    parts = re.split(rb'("ts": ?-?\d+(?:\.\d+)?|"ProfilerStep#\d+")', body)
    while size > 0:
        piece = b"".join(parts)
        yield piece
        size -= len(piece)
        if shifted:
            parts[1::2] = [_later(part, period, marks) for part in parts[1::2]]


def _later(part: bytes, period: int, marks: int) -> bytes:
    """A time or the name of a step, one repetition later."""
    if part.startswith(b'"P'):
        begin, number = part[:-1].split(b"#")
        return b'%s#%d"' % (begin, int(number) + marks)
    begin, time = part.rsplit(b":", 1)
    whole, point, rest = time.strip().partition(b".")
    return b"%s: %d%s%s" % (begin, int(whole) + period, point, rest)


def _where_nothing_is_open(text: bytes) -> int:
    """After the last name of a tensor, the first negotiation that begins when every activity has ended."""
    decoder, source = json.JSONDecoder(), text.decode()
    position, open_, last = 1, 0, source.rindex('"M"')
    while True:
        position = source.index("{", position)
        event, position = decoder.raw_decode(source, position)
        open_ += {"B": 1, "E": -1}.get(event["ph"], 0)
        following = source.index("{", position)
        if not open_ and position > last + 200 and source.startswith('{"ph": "B", "name": "NEGOTIATE_', following):
            return following


MINUTES = 10
SEED = 5
FUZZED = FOLDER / "fuzzed"
_TELLING = (
    *(b"{", b"}", b"[", b"]", b",", b'"', b":", b"\\", b"\0", b"\xff"),
    *(b"-1", b"1e400", b"99999999999999999999", b"null"),
)


class Event(msgspec.Struct, gc=False):
    ph: str = ""


def trace_fuzz() -> list[dict[str, Any]]:
    """A row for a sample cut at every byte and one for the mutated samples of each reader; failing files are kept."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = [_cuts(SAMPLES / "horovod" / "gloo_ops.json")]
    for name, read in (("horovod", horovod_reading.read), ("kineto", kineto_reading.read)):
        rows.append(_mutations(name, read, sorted((SAMPLES / name).rglob("*.json*")), MINUTES * 60 / 2))
    FUZZED.unlink(missing_ok=True)
    return rows


def _cuts(sample: Path) -> dict[str, Any]:
    """Every prefix of the file: every complete event is kept, and the reader does not fail."""
    text = sample.read_bytes()
    decoder, source, ends, position = json.JSONDecoder(), text.decode(), [], 1
    while (position := source.find("{", position)) >= 0:
        _, position = decoder.raw_decode(source, position)
        ends.append(position)
    started, failures = time.monotonic(), []
    for size in range(1, len(text) + 1):
        FUZZED.write_bytes(text[:size])
        try:
            kept = sum(map(len, Events(FUZZED, Event)))
            if kept != bisect_right(ends, size):
                failures.append(f"{kept} events at {size}")
            if size % 5 == 0:
                horovod_reading.read(FUZZED)
        except Exception as problem:
            failures.append(f"{type(problem).__name__} at {size}")
    return _fuzz_row(f"{sample.name} cut at every byte", len(text), 0, time.monotonic() - started, failures)


def _mutations(name: str, read: Callable[[Path], Trace], samples: list[Path], seconds: float) -> dict[str, Any]:
    """Mutated samples until the time is up; UsageError is an answer, everything else is a failure."""
    chance = random.Random(SEED)
    texts = [gzip.decompress(each.read_bytes()) if each.suffix == ".gz" else each.read_bytes() for each in samples]
    started, runs, refused, failures = time.monotonic(), 0, 0, []
    while time.monotonic() - started < seconds:
        data = _mutated(chance, chance.choice(texts))
        FUZZED.write_bytes(data)
        runs += 1
        try:
            _check(read(FUZZED))
        except UsageError:
            refused += 1
        except Exception as problem:
            failures.append(f"{type(problem).__name__}: {problem}"[:80])
            kept = FUZZED.with_name(f"failed_{name}_{len(failures)}")
            if len(failures) <= 20:
                kept.write_bytes(data)
                kept.with_suffix(".txt").write_text(traceback.format_exc())
    return _fuzz_row(f"{name} traces, mutated", runs, refused, time.monotonic() - started, failures)


def _mutated(chance: random.Random, text: bytes) -> bytes:
    """A stretch of the text with some changes; now and then packed, and then changed or cut."""
    if chance.random() < 0.8:
        begin = chance.choice([0, 0, chance.randrange(len(text))])
        text = text[begin : begin + chance.randrange(1, 200_000)]
    for _ in range(chance.randrange(8)):
        at, length = chance.randrange(len(text) + 1), chance.choice([0, 1, 1, chance.randrange(60)])
        new = chance.choice([*_TELLING, chance.randbytes(chance.randrange(6)), text[at : at + chance.randrange(400)]])
        text = text[:at] + new + text[at + length :]
    if chance.random() < 0.1:
        text = gzip.compress(text, 1)
        at = chance.randrange(len(text))
        text = text[:at] if chance.random() < 0.5 else text[:at] + chance.randbytes(2) + text[at + 2 :]
    return text


def _check(trace: Trace) -> None:
    """Assert what holds for every trace."""
    parts = trace.parts
    known = (parts.compute, parts.optimizer, parts.exposed, parts.input, parts.other)
    total = sum(part for part in known if part is not None)
    assert (abs(total - parts.step) <= 1e-3 * abs(parts.step)).all(), "the parts do not add up"
    assert (trace.starts_s[1:] >= trace.starts_s[:-1]).all(), "steps do not ascend"
    assert (trace.exchange.ends > trace.exchange.starts).all(), "an empty interval"


def _fuzz_row(what: str, runs: int, refused: int, seconds: float, failures: list[str]) -> dict[str, Any]:
    return {
        "what": what,
        "files": runs,
        "refused in one line": refused,
        "seconds": seconds,
        "failures": len(failures),
        "first failure": failures[0] if failures else "",
    }
