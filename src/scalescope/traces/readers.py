"""The trace formats that are understood: one reader each, recognised by how a file begins.

A new format is a file with `recognises` and `read`, and an entry here; tests/traces/test_readers.py is its contract.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scalescope.errors import UsageError
from scalescope.text import plain
from scalescope.traces.event_stream import BEFORE, TraceBytes, beginning_of
from scalescope.traces.horovod import reading as horovod
from scalescope.traces.kineto import reading as kineto
from scalescope.traces.marks import RankMarks
from scalescope.traces.trace import Trace


@dataclass(frozen=True)
class Reader:
    """One format."""

    kind: str  # As explanations name it
    made_by: str  # One such file and what writes it, for messages
    endings: tuple[str, ...]  # Of its files' names, by which folders are searched
    recognises: Callable[[bytes], bool]  # By the first 64 KiB, unpacked; at most one reader says yes
    # As far as the file goes; what is lost is stated in the trace. The rank's own marks add what the file lacks.
    read: Callable[[Path, RankMarks | None], Trace]
    per_rank: bool  # Whether every rank writes a file; else one file is a job of its own


READERS = (
    Reader(
        "horovod timeline",
        "a Horovod timeline (HOROVOD_TIMELINE)",
        (".json", ".json.gz"),
        horovod.recognises,
        horovod.read,
        per_rank=False,
    ),
    Reader(
        "profiler traces",
        "a trace of PyTorch's profiler (export_chrome_trace)",
        (".json", ".json.gz"),
        kineto.recognises,
        kineto.read,
        per_rank=True,
    ),
)


def reader_of(path: Path) -> Reader | None:
    """The reader of a file; None when it is no trace or cannot be read."""
    with contextlib.suppress(UsageError):
        return _reader(beginning_of(path))
    return None


def _reader(beginning: bytes) -> Reader | None:
    return next((reader for reader in READERS if reader.recognises(beginning)), None)


def named_as_traces(folder: Path) -> list[Path]:
    """Files of a folder whose names end as those of a reader."""
    endings = tuple({ending for reader in READERS for ending in reader.endings})
    return [file for file in sorted(folder.iterdir()) if file.name.endswith(endings) and file.is_file()]


def why_unread(path: Path) -> str:
    """Reason why a file named as a trace is none; empty for a trace, and for JSON of another kind."""
    data = TraceBytes(path)
    try:
        beginning = next(iter(data), b"").lstrip(BEFORE)
    except UsageError as problem:
        return str(problem)
    if _reader(beginning) or beginning.startswith((b"{", b"[")):
        return ""
    if path.stat().st_size == 0:
        return f"'{plain(path.name)}' is empty"
    return f"'{plain(path.name)}' is not a trace" + (f" ({data.problem})" if data.problem else "")


def read_trace(path: Path, marks: RankMarks | None = None, *, may_be_empty: bool = False) -> Trace:
    """Reads a file of any format.

    Args:
        path: The file, plain or gzip.
        marks: Of the same rank, where it was captured by us.
        may_be_empty: Whether a trace without a single event of a training is an answer, too.

    Raises:
        UsageError: When the file cannot be opened, is no trace, or holds no events of a training.
    """
    beginning = beginning_of(path)
    reader = _reader(beginning)
    if reader is None:
        understood = " or ".join(each.made_by for each in READERS)
        raise UsageError(f"'{plain(path.name)}' is {'not a trace' if beginning else 'empty'}: name {understood}")
    trace = reader.read(path, marks)
    if trace.is_empty and not may_be_empty:
        why = f" ({trace.loss.reason})" if trace.loss.reason else ""
        raise UsageError(f"'{plain(path.name)}' holds no events of a training{why}: name another trace")
    return trace
