"""Progress on the terminal: one live line with the time left; in a log a line a minute."""

import math
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scalescope.progress import Kind, Progress
from scalescope.show.terminal import encoded
from scalescope.text import plain
from scalescope.units import format_seconds

_EVERY_S = 60.0  # Between lines where there is no live one
_BAR = 16  # Letters


class TerminalProgress(Progress):
    """Shows stages on one live line and notes above it; to be used in `with`.

    Args:
        console: Where to print; one that is no terminal gets a stage as a line if the last line is a minute old.
        quiet: Show nothing but output that is asked for.
        show_output: Show what ranks print.
        verbose: Show details, and every stage as a line.
        clock: Seconds.
    """

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool = False,
        show_output: bool = False,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._quiet, self._verbose, self._clock = console, quiet, verbose, clock
        self._show_output = show_output
        self._began, self._printed = clock(), -math.inf
        self._ends: float | None = None  # When the stage or all stages will probably be over
        self._what, self._steps, self._of = "", "", ""
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def stage(self, what: str, seconds: float | None = None, steps: int | None = None) -> None:
        """Put it on the live line, or print it where none can be drawn and the last line is old."""
        now = self._clock()
        self._what, self._ends = plain(what, 300), None if seconds is None else now + seconds
        self._steps, self._of = "", f" of {steps:,}" if steps else ""
        is_due = not self._console.is_terminal and now - self._printed >= _EVERY_S
        if self._verbose or is_due:
            left = self._left()
            self._print(f"{self._what[:1].upper()}{self._what[1:]}" + (f", {left}" if left else ""))
        if self._console.is_terminal and not self._quiet and self._live is None:
            self._live = Live(get_renderable=self._line, console=self._console, transient=True)
            self._live.start()

    def advance(self, steps: int) -> None:
        """Show it on the live line."""
        self._steps = f"step {steps:,}{self._of}" if steps else "starting"

    def note(self, text: str, kind: Kind = "plain") -> None:
        """Print a note; details only when verbose."""
        if self._verbose or kind != "detail":
            self._print(text, "yellow" if kind == "problem" else "")

    def output(self, source: str, line: str) -> None:
        """Print it with its rank when asked for."""
        if self._show_output:
            shown = encoded(f"[{source}] {line}", self._console)
            self._console.print(Text(shown), highlight=False, soft_wrap=True)

    def _print(self, text: str, style: str = "") -> None:
        if not self._quiet:
            self._printed = self._clock()
            self._console.print(Text(encoded(text, self._console), style), highlight=False, soft_wrap=True)

    def _left(self) -> str:
        """`40 s left`; empty where the end is not known."""
        if self._ends is None:
            return ""
        left_s = round(self._ends - self._clock())
        return f"{format_seconds(left_s)} left" if left_s > 0 else f"{format_seconds(1 - left_s)} longer than expected"

    def _line(self) -> Table:
        """A bar of the time that has passed, the stage, its steps, and the time left; what does not fit is cut."""
        now = self._clock()
        minutes, seconds = divmod(int(now - self._began), 60)
        tail = f" · {self._left() or f'{minutes}:{seconds:02d}'}"
        room = self._console.width - _BAR - 2
        what = Text(encoded(self._what, self._console), no_wrap=True)
        if self._steps and what.cell_len + len(self._steps) + len(tail) + 3 <= room:
            tail = f" · {self._steps}{tail}"
        what.truncate(max(10, room - len(tail)), overflow="ellipsis")
        total = None if self._ends is None else max(self._ends, now) - self._began  # None: a bar that pulses
        bar = ProgressBar(total=total, completed=now - self._began, width=_BAR, animation_time=now)
        line = Table.grid(padding=(0, 1))
        line.add_row(bar, what.append(encoded(tail, self._console), style="dim"))
        return line
