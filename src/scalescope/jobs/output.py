"""Output of ranks and launcher: followed as it grows, searched for a pattern, and its last lines."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from scalescope.launchers.runner import LAUNCHER_OUTPUT
from scalescope.line_pattern import live_values
from scalescope.text import without_escapes

_REST = 50  # After every look, rest this many times the CPU time it took: 2 % of a core, whatever a script prints
_LEAST_REST_S = 0.001

_LAUNCHER = Path(LAUNCHER_OUTPUT).stem
_LINE_END = re.compile(rb"[\r\n]")  # A progress bar overwrites itself with carriage returns

# What torchrun --tee, mpirun --tag-output and horovodrun put before a rank's line.
_RANK_TAG = re.compile(r"\[(?:default|\d+,)?(\d+)\](?:<std(?:out|err)>)?:")


class Match(NamedTuple):
    """A line of output that matched the user's pattern."""

    at_ns: int  # When it arrived, on the monotonic clock of this host
    values: dict[str, float]
    # Several matching lines arrived at once, so when each of them was printed is not known.
    came_with_others: bool = False


class OutputFiles:
    """Follows the output files of a launch: one per rank and the launcher's own."""

    def __init__(
        self,
        folder: Path,
        pattern: re.Pattern[str] | None,
        on_line: Callable[[str, str], None],
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        np: int = 1,
    ) -> None:
        self._folder = folder
        self._np = np
        self._pattern = pattern
        self._on_line = on_line
        self._clock = clock
        self._lock = threading.Lock()
        self._offsets: dict[Path, int] = {}
        self._unfinished: dict[Path, tuple[bytes, int]] = {}  # The beginning of a line, and when it arrived
        # Source, lines that came together, when, and whether its file was emptied before: a rank that was restarted.
        self._arrivals: list[tuple[str, list[str], int, bool]] = []
        self._bytes = 0
        self.matches: dict[str, list[Match]] = {}  # Per source, the lines that matched
        self._first_ns: dict[str, int] = {}  # Per source, when its first lines came

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Stamp lines as they arrive, from a thread of its own, where a pattern makes their times count.

        At the end, lines without a line feed are taken in, too.
        """
        with contextlib.ExitStack() as at_end:
            at_end.callback(self.finish)
            if self._pattern:
                stop = threading.Event()
                thread = threading.Thread(target=self._follow, args=(stop,), name="scalescope-output", daemon=True)
                thread.start()
                at_end.callback(thread.join)
                at_end.callback(stop.set)  # the last is called first
            yield

    def _follow(self, stop: threading.Event) -> None:
        rest_s = 0.0
        while not stop.wait(rest_s):
            began_s = time.thread_time()
            self.look()
            rest_s = max(_REST * (time.thread_time() - began_s), _LEAST_REST_S)

    def look(self) -> None:
        """Read and stamp what is new, from any thread."""
        with self._lock:
            for path in [self._folder / LAUNCHER_OUTPUT, *self._folder.glob("rank*.out")]:
                self._read(path)

    def _read(self, path: Path) -> None:
        offset = self._offsets.get(path, 0)
        try:
            size = path.stat().st_size
            if size == offset:
                return
            begins_anew = size < offset
            if begins_anew:
                offset = 0
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read()
        except OSError:
            return
        self._offsets[path] = offset + len(data)
        self._bytes += len(data)
        before, since_ns = self._unfinished.pop(path, (b"", 0))
        if begins_anew:
            before = b""
            self._arrivals.append((path.stem, [], 0, True))
        if before and _LINE_END.match(data):  # the line was whole when it arrived, only its end was missing
            self._arrive(path, [before], since_ns)
            before = b""
        now_ns = self._clock()
        *lines, rest = _LINE_END.split(before + data)
        self._arrive(path, lines, now_ns)
        if rest:
            self._unfinished[path] = rest, now_ns

    def _arrive(self, path: Path, lines: list[bytes], at_ns: int) -> None:
        if texts := [without_escapes(line.decode(errors="replace")) for line in lines if line]:
            self._arrivals.append((path.stem, texts, at_ns, False))

    def finish(self) -> None:
        """Take in everything that was printed, last lines without an end among it."""
        self.look()
        with self._lock:
            for path, (line, at_ns) in self._unfinished.items():
                self._arrive(path, [line], at_ns)
            self._unfinished.clear()
        self.poll()

    def poll(self) -> int:
        """Look, and take in everything since the last time; how many bytes."""
        self.look()
        with self._lock:
            arrivals, self._arrivals = self._arrivals, []
            taken, self._bytes = self._bytes, 0
        for source, lines, at_ns, begins_anew in arrivals:
            if begins_anew:
                for name in [each for each in self.matches if each.partition(" ")[0] == source]:
                    del self.matches[name]
            if lines:
                self._take(source, lines, at_ns)
        return taken

    def _take(self, source: str, lines: list[str], at_ns: int) -> None:
        self._first_ns.setdefault(source, at_ns)
        for line in lines:
            self._on_line(source, line)
        found: dict[str, list[re.Match[str]]] = {}
        for line in lines:
            if self._pattern and (match := self._pattern.search(line)):
                found.setdefault(f"{source}{self._rank_tag(source, line)}", []).append(match)
        for name, together in found.items():
            known = self.matches.setdefault(name, [])
            since_ns = known[-1].at_ns if known else at_ns
            for number, match in enumerate(together, start=1):  # lines that come together share the time they took
                shared_ns = since_ns + (at_ns - since_ns) * number // len(together)
                known.append(Match(shared_ns, live_values(match), len(together) > 1))

    @property
    def first_ns(self) -> int:
        """Time at which the first rank printed something, on the monotonic clock; 0 before that.

        The launcher's output, warnings of its own among it, counts where no rank has a file.
        """
        ranks = [at_ns for source, at_ns in self._first_ns.items() if source != _LAUNCHER]
        return min(ranks) if ranks else self._first_ns.get(_LAUNCHER, 0)

    def _rank_tag(self, source: str, line: str) -> str:
        """` rank1` for a line that the launcher tagged: ranks that share its output step at the same time."""
        tag = _RANK_TAG.match(line) if self._np > 1 and source == _LAUNCHER else None
        return f" rank{tag[1]}" if tag and int(tag[1]) < self._np else ""

    def best_matches(self) -> list[Match]:
        """The matches of the source that matched most; with several alike, of the lowest rank."""
        sources = sorted(self.matches, key=lambda source: (-len(self.matches[source]), len(source), source))
        return self.matches[sources[0]] if sources else []


def outputs(folder: Path) -> list[Path]:
    """Output files of a launch by rank, the launcher's own last."""
    by_rank = sorted(folder.glob("rank*.out"), key=lambda path: (len(path.name), path.name))
    return [*by_rank, folder / LAUNCHER_OUTPUT]


def printed(folder: Path, count: int = 200) -> list[str]:
    """Last lines of every output file of a launch."""
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
