"""Big trace files: a real one repeated with shifted times, written a repetition at a time."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

from isal import igzip

FOLDER = Path("results") / "bench" / "traces"
SAMPLES = Path("tests") / "data" / "traces"
PROFILER_TRACES = {
    "gloo, CPU": SAMPLES / "kineto" / "gloo_small" / "rank0.json.gz",
    "NCCL, CUDA": SAMPLES / "kineto" / "nccl" / "rank0.json.gz",
}
_TIME = re.compile(rb'("ts": ?)(-?\d+(?:\.\d+)?)')
_STEP = re.compile(rb'("ProfilerStep#)(\d+)"')


def horovod(megabytes: int, packed: bool = False) -> Path:
    """A timeline of about `megabytes` MB: the beginning once, the steps after it again and again."""
    text = _sample(SAMPLES / "horovod" / "mpi_cnn.json.gz")
    begin = _where_nothing_is_open(text)
    body = text[begin:].rstrip().removesuffix(b"]") + b","
    return _made(f"horovod_{megabytes}.json", text[:begin], body, b"]", megabytes, packed)


def horovod_repeated(megabytes: int) -> Path:
    """A timeline of about `megabytes` MB: the same steps at the same times, which no training writes."""
    text = _sample(SAMPLES / "horovod" / "mpi_cnn.json.gz")
    # Equal digits, as the times of a long training have.
    text = _TIME.sub(lambda found: b"%s%d" % (found[1], int(found[2]) + 10**9), text)
    begin = _where_nothing_is_open(text)
    body = text[begin:].rstrip().removesuffix(b"]") + b","
    name = f"horovod_repeated_{megabytes}.json"
    return _made(name, text[:begin], body, b"]", megabytes, packed=False, shifted=False)


def kineto(sample: Path, megabytes: int, packed: bool = False) -> Path:
    """A profiler trace of about `megabytes` MB: all events of the sample again and again."""
    text = _sample(sample)
    found = re.search(rb'"traceEvents"\s*:\s*\[', text)
    assert found is not None
    end = text.rindex(b"}", 0, text.rindex(b"]", 0, text.rindex(b'"traceName"'))) + 1
    body = text[found.end() : end] + b","
    name = f"kineto_{sample.parent.name}_{megabytes}.json"
    return _made(name, text[: found.end()], body, text[end:], megabytes, packed)


def ranks(sample: Path, megabytes: int, count: int) -> list[Path]:
    """Profiler traces of so many ranks, of about `megabytes` MB each."""
    whole = kineto(sample, megabytes)
    files = []
    for rank in range(count):
        path = whole.with_name(f"{whole.stem}_rank{rank}.json")
        if not path.exists():
            text = whole.read_bytes()
            path.write_bytes(re.sub(rb'("rank": ?)\d+', b"\\g<1>%d" % rank, text, count=1))
        files.append(path)
    return files


def _sample(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _made(
    name: str, header: bytes, body: bytes, footer: bytes, megabytes: int, packed: bool, shifted: bool = True
) -> Path:
    path = FOLDER / (name + ".gz" if packed else name)
    if path.exists():
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with igzip.open(part, "wb", compresslevel=1) if packed else part.open("wb") as file:
        file.write(header)
        before = b""
        for piece in _repeated(body, megabytes * 1_000_000 - len(header) - len(footer), shifted):
            file.write(before)
            before = piece
        file.write(before.rstrip().removesuffix(b",") + footer)
    part.rename(path)
    return path


def _repeated(body: bytes, size: int, shifted: bool = True) -> Iterator[bytes]:
    times = [float(text) for _, text in _TIME.findall(body)]
    period = int(max(times) - min(times)) + 1000
    steps = [int(number) for _, number in _STEP.findall(body)]
    marks = max(steps) - min(steps) + 1 if steps else 0
    parts = re.split(rb'("ts": ?-?\d+(?:\.\d+)?|"ProfilerStep#\d+")', body)
    while size > 0:
        piece = b"".join(parts)
        yield piece
        size -= len(piece)
        if not shifted:
            continue
        parts[1::2] = [_shifted(part, period, marks) for part in parts[1::2]]


def _shifted(part: bytes, shift: int, ahead: int) -> bytes:
    if part.startswith(b'"P'):
        begin, number = part[:-1].split(b"#")
        return b'%s#%d"' % (begin, int(number) + ahead)
    begin, time = part.rsplit(b":", 1)
    whole, point, rest = time.strip().partition(b".")
    return b"%s: %d%s%s" % (begin, int(whole) + shift, point, rest)


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
