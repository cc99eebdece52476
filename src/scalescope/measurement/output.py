"""What ranks print: followed while it grows, tagged with its rank, and searched for a user's pattern."""

import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.launchers.runner import LAUNCHER_OUTPUT

_KNOWN_GROUPS = ("step_s", "examples_per_s")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


class Match(NamedTuple):
    """A line of output that matched the user's pattern."""

    at_ns: int
    """When it was seen, nanoseconds since the epoch."""
    values: dict[str, float]


def compile_pattern(text: str) -> re.Pattern[str]:
    """A user's --pattern, checked."""
    try:
        pattern = re.compile(text)
    except re.error as problem:
        raise UsageError(f"--pattern is no regular expression ({problem}): escape its special characters") from None
    unknown = set(pattern.groupindex) - set(_KNOWN_GROUPS)
    if unknown:
        known = ", ".join(f"(?P<{name}>...)" for name in _KNOWN_GROUPS)
        raise UsageError(f"--pattern has an unknown group '{min(unknown)}': use {known}, or no group")
    return pattern


def without_control(text: str) -> str:
    """The text without terminal escapes and control characters."""
    return _CONTROL.sub("", text)


class OutputFiles:
    """Follows the output files of a launch: one per rank and the launcher's own."""

    def __init__(self, folder: Path, pattern: re.Pattern[str] | None, on_line: Callable[[str, str], None]) -> None:
        self._folder = folder
        self._pattern = pattern
        self._on_line = on_line
        self._offsets: dict[Path, int] = {}
        self._unfinished: dict[Path, bytes] = {}
        self._looked_ns: dict[Path, int] = {}
        """When new output was last seen."""
        self.matches: dict[str, list[Match]] = {}
        """Per source, the lines that matched."""
        self.first_ns = 0
        """When the first rank printed something, nanoseconds since the epoch; 0 before that."""

    def poll(self) -> int:
        """Take in what is new; how many bytes."""
        taken = 0
        for path in [self._folder / LAUNCHER_OUTPUT, *self._folder.glob("rank*.out")]:
            try:
                if path.stat().st_size == self._offsets.get(path, 0):
                    continue
                with open(path, "rb") as file:
                    file.seek(self._offsets.get(path, 0))
                    data = file.read()
            except OSError:
                continue
            self._offsets[path] = self._offsets.get(path, 0) + len(data)
            taken += len(data)
            lines = (self._unfinished.get(path, b"") + data).split(b"\n")
            self._unfinished[path] = lines.pop()
            now_ns = time.time_ns()
            since_ns = self._looked_ns.get(path, now_ns)
            for number, line in enumerate(lines, start=1):  # lines since the last look share the time since then
                at_ns = since_ns + (now_ns - since_ns) * number // len(lines)
                self._take(path.stem, without_control(line.decode(errors="replace")), at_ns)
            self._looked_ns[path] = now_ns
        return taken

    def _take(self, source: str, line: str, at_ns: int) -> None:
        self.first_ns = self.first_ns or at_ns
        self._on_line(source, line)
        found = self._pattern.search(line) if self._pattern else None
        if found:
            values = {}
            for name, text in found.groupdict().items():
                try:
                    value = float((text or "").replace(",", ""))
                except ValueError:
                    continue
                if 0 < value < math.inf:
                    values[name] = value
            self.matches.setdefault(source, []).append(Match(at_ns, values))

    def best_matches(self) -> list[Match]:
        """The matches of the source that matched most; with several alike, of the lowest rank."""
        sources = sorted(self.matches, key=lambda source: (-len(self.matches[source]), len(source), source))
        return self.matches[sources[0]] if sources else []


def last_lines(path: Path, count: int = 15) -> list[str]:
    """The end of an output file, fit for a terminal."""
    try:
        with open(path, "rb") as file:
            file.seek(max(path.stat().st_size - 16_384, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [without_control(line) for line in text.splitlines() if line.strip()][-count:]
