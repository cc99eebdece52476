"""Damaged traces: a sample cut at every byte, and ten minutes of mutated samples through both readers."""

import gzip
import json
import random
import time
import traceback
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import trace_files
from scalescope.errors import UsageError
from scalescope.traces.event_stream import Events
from scalescope.traces.horovod import reading as horovod
from scalescope.traces.kineto import reading as kineto
from scalescope.traces.trace import Trace

MINUTES = 10
SEED = 5
PATH = trace_files.FOLDER / "fuzzed"
_TELLING = (
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b'"',
    b":",
    b"\\",
    b"\0",
    b"\xff",
    b"-1",
    b"1e400",
    b"99999999999999999999",
    b"null",
)


class Event(msgspec.Struct, gc=False):
    ph: str = ""


def trace_fuzz() -> list[dict[str, Any]]:
    """A row for the cuts and one per reader; what failed is shown with its kind of exception."""
    trace_files.FOLDER.mkdir(parents=True, exist_ok=True)
    rows = [_cuts(trace_files.SAMPLES / "horovod" / "gloo_ops.json")]
    timelines = sorted((trace_files.SAMPLES / "horovod").glob("*.json*"))
    profiles = sorted((trace_files.SAMPLES / "kineto").rglob("*.json*"))
    for name, read, samples in (("Horovod", horovod.read, timelines), ("profiler", kineto.read, profiles)):
        rows.append(_mutations(name, read, samples, MINUTES * 60 / 2))
    PATH.unlink(missing_ok=True)
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
        PATH.write_bytes(text[:size])
        try:
            kept = sum(map(len, Events(PATH, Event)))
            if kept != bisect_right(ends, size):
                failures.append(f"{kept} events at {size}")
            if size % 5 == 0:
                horovod.read(PATH)
        except Exception as problem:
            failures.append(f"{type(problem).__name__} at {size}")
    return _row(f"{sample.name} cut at every byte", len(text), 0, time.monotonic() - started, failures)


def _mutations(name: str, read: Callable[[Path], Trace], samples: list[Path], seconds: float) -> dict[str, Any]:
    """Mutated samples until the time is up; UsageError is an answer, everything else is a failure."""
    chance = random.Random(SEED)
    texts = [gzip.decompress(each.read_bytes()) if each.suffix == ".gz" else each.read_bytes() for each in samples]
    started, runs, refused, failures = time.monotonic(), 0, 0, []
    while time.monotonic() - started < seconds:
        data = mutated(chance, chance.choice(texts))
        PATH.write_bytes(data)
        runs += 1
        try:
            checked(read(PATH))
        except UsageError:
            refused += 1
        except Exception as problem:
            failures.append(f"{type(problem).__name__}: {problem}"[:80])
            kept = PATH.with_name(f"failed_{name}_{len(failures)}")
            if len(failures) <= 20:
                kept.write_bytes(data)
                kept.with_suffix(".txt").write_text(traceback.format_exc())
    return _row(f"{name} traces, mutated", runs, refused, time.monotonic() - started, failures)


def mutated(chance: random.Random, text: bytes) -> bytes:
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


def checked(trace: Trace) -> None:
    """What holds for every trace."""
    parts = trace.parts
    known = (parts.compute, parts.optimizer, parts.exposed, parts.input, parts.other)
    total = sum(part for part in known if part is not None)
    assert (abs(total - parts.step) <= 1e-3 * abs(parts.step)).all(), "the parts do not add up"
    assert (trace.starts_s[1:] >= trace.starts_s[:-1]).all(), "steps do not ascend"
    assert (trace.exchange.ends > trace.exchange.starts).all(), "an empty interval"


def _row(what: str, runs: int, refused: int, seconds: float, failures: list[str]) -> dict[str, Any]:
    return {
        "what": what,
        "files": runs,
        "refused in one line": refused,
        "seconds": seconds,
        "failures": len(failures),
        "first failure": failures[0] if failures else "",
    }
