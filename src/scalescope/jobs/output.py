"""What ranks and their launcher print: followed as it grows, searched for a pattern, and its last lines."""

import contextlib
import ctypes
import os
import re
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from scalescope.launchers.runner import LAUNCHER_OUTPUT
from scalescope.line_pattern import live_values
from scalescope.text import without_escapes

_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_HEADER = struct.Struct("iIII")  # Of an event: watch, kind, cookie, length of the name that follows
_WITHOUT_INOTIFY_MS = 10
_REST = 50  # After every look, rest this many times the CPU time it took: 2 % of a core, whatever a script prints

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def following(folder: Path, look: Callable[[set[str] | None], object]) -> Iterator[None]:
    """From a thread of its own, call `look` with the names of files as they change; None: any may have changed."""
    with contextlib.ExitStack() as stack:
        stop = os.eventfd(0)
        stack.callback(os.close, stop)
        changes = _watch(folder)
        if changes >= 0:
            stack.callback(os.close, changes)
        thread = threading.Thread(target=_follow, args=(changes, stop, look), name="scalescope-output", daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.eventfd_write(stop, 1)
            thread.join()


def _watch(folder: Path) -> int:
    """A descriptor that is readable after changes in the folder; -1 when the system gives none (its limit is low)."""
    descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if descriptor >= 0 and _libc.inotify_add_watch(descriptor, os.fsencode(folder), _IN_MODIFY | _IN_CREATE) < 0:
        os.close(descriptor)
        return -1
    return descriptor


def _follow(changes: int, stop: int, look: Callable[[set[str] | None], object]) -> None:
    stopped, either = select.poll(), select.poll()
    stopped.register(stop, select.POLLIN)
    either.register(stop, select.POLLIN)
    if changes >= 0:
        either.register(changes, select.POLLIN)
    rest_ms = 0.0
    while not stopped.poll(rest_ms):
        ready = either.poll(None if changes >= 0 else _WITHOUT_INOTIFY_MS)
        began_s = time.thread_time()
        look(_names(os.read(changes, 65_536)) if (changes, select.POLLIN) in ready else None)
        rest_ms = max(1000 * _REST * (time.thread_time() - began_s), 1.0)


def _names(events: bytes) -> set[str]:
    """The files that inotify's events are about."""
    names, offset = set(), 0
    while offset < len(events):
        *_, length = _HEADER.unpack_from(events, offset)
        offset += _HEADER.size + length
        names.add(os.fsdecode(events[offset - length : offset].rstrip(b"\0")))
    return names


# What torchrun --tee, mpirun --tag-output and horovodrun put before a rank's line.
_RANK_TAG = re.compile(r"\[(?:default|\d+,)?(\d+)\](?:<std(?:out|err)>)?:")


class Match(NamedTuple):
    """A line of output that matched the user's pattern."""

    at_ns: int  # When it arrived, on the monotonic clock of this host
    values: dict[str, float]
    # Several matching lines arrived at once, so when each of them was printed is not known.
    came_with_others: bool = False


class _Arrival(NamedTuple):
    """Lines that arrived together."""

    source: str
    lines: list[str]
    at_ns: int
    begins_anew: bool  # The file was emptied before: a rank that was restarted


class OutputFiles:
    """Follows the output files of a launch: one per rank and the launcher's own."""

    def __init__(
        self,
        folder: Path,
        pattern: re.Pattern[str] | None,
        on_line: Callable[[str, str], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._folder = folder
        self._pattern = pattern
        self._on_line = on_line
        self._clock = clock
        self._lock = threading.Lock()
        self._offsets: dict[Path, int] = {}
        self._unfinished: dict[Path, bytes] = {}
        self._arrivals: list[_Arrival] = []
        self._bytes = 0
        self.matches: dict[str, list[Match]] = {}  # Per source, the lines that matched
        self.first_ns = 0  # When the first rank printed something, on the monotonic clock; 0 before that

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Stamp lines when they arrive, where a pattern makes their times count."""
        if self._pattern is None:
            yield
            return
        with following(self._folder, self.look):
            yield

    def look(self, changed: set[str] | None = None) -> None:
        """Read and stamp what is new, from any thread; `changed` names the only files to look at."""
        outputs = self._folder.glob("rank*.out") if changed is None else map(self._folder.joinpath, changed)
        ranks = [path for path in outputs if path.match("rank*.out")]
        with self._lock:
            for path in [self._folder / LAUNCHER_OUTPUT, *ranks]:
                self._read(path)

    def _read(self, path: Path) -> None:
        offset = self._offsets.get(path, 0)
        try:
            size = path.stat().st_size
            if size == offset:
                return
            with open(path, "rb") as file:
                file.seek(offset if size > offset else 0)
                data = file.read()
        except OSError:
            return
        begins_anew = size < offset
        self._offsets[path] = len(data) + (0 if begins_anew else offset)
        before = b"" if begins_anew else self._unfinished.get(path, b"")
        *lines, self._unfinished[path] = (before + data).split(b"\n")
        if lines or begins_anew:
            texts = [without_escapes(line.decode(errors="replace")) for line in lines]
            self._arrivals.append(_Arrival(path.stem, texts, self._clock(), begins_anew))
        self._bytes += len(data)

    def poll(self) -> int:
        """Look, and take in everything since the last time; how many bytes."""
        self.look()
        with self._lock:
            arrivals, self._arrivals = self._arrivals, []
            taken, self._bytes = self._bytes, 0
        for arrival in arrivals:
            self._take(arrival)
        return taken

    def _take(self, arrival: _Arrival) -> None:
        source, lines, at_ns, begins_anew = arrival
        if begins_anew:
            self.matches.pop(source, None)
        if not lines:
            return
        self.first_ns = self.first_ns or at_ns
        for line in lines:
            self._on_line(source, line)
        found: dict[str, list[re.Match[str]]] = {}
        for line in lines:
            if self._pattern and (match := self._pattern.search(line)):
                tag = _RANK_TAG.match(line)  # ranks that share the launcher's output step at the same time
                found.setdefault(f"{source} rank{tag[1]}" if tag else source, []).append(match)
        for name, together in found.items():
            known = self.matches.setdefault(name, [])
            since_ns = known[-1].at_ns if known else at_ns
            for number, match in enumerate(together, start=1):  # lines that come together share the time they took
                shared_ns = since_ns + (at_ns - since_ns) * number // len(together)
                known.append(Match(shared_ns, live_values(match), len(together) > 1))

    def best_matches(self) -> list[Match]:
        """The matches of the source that matched most; with several alike, of the lowest rank."""
        sources = sorted(self.matches, key=lambda source: (-len(self.matches[source]), len(source), source))
        return self.matches[sources[0]] if sources else []


def outputs(folder: Path) -> list[Path]:
    """Files with what ranks of a launch printed, the launcher's own last."""
    return [*sorted(folder.glob("rank*.out")), folder / LAUNCHER_OUTPUT]


def printed(folder: Path, count: int = 200) -> list[str]:
    """The ends of all of them."""
    return [line for path in outputs(folder) for line in last_lines(path, count)]


def last_lines(path: Path, count: int = 15) -> list[str]:
    """The end of an output file, fit for a terminal."""
    try:
        with open(path, "rb") as file:
            file.seek(max(path.stat().st_size - 16_384, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [without_escapes(line) for line in text.splitlines() if line.strip()][-count:]
