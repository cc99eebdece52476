"""Progress of a study: its plan, then one line with the part, what it does and the time left of the budget."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from scalescope.records.run import Failure, Point, Run
from scalescope.records.study import Study, StudyPart
from scalescope.show.study import plan_lines
from scalescope.show.terminal import encoded
from scalescope.text import plain
from scalescope.units import format_seconds


class StudyProgress:
    """Progress listener of a study and of its verbs: one live line on a terminal, a line per part elsewhere.

    Args:
        console: Where to print.
        quiet: Say nothing.
        show_output: Show what ranks print.
        verbose: Say what every verb remarks.
        clock: Seconds.
    """

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool,
        show_output: bool = False,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._quiet, self._verbose = console, quiet, verbose
        self._show_output, self._clock = show_output, clock
        self._ends, self._budget_s, self._count, self._part = 0.0, 0.0, 0, ""
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
            get_time=clock,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def plan_made(self, study: Study, left_s: float) -> None:
        """What it will do, and how long about."""
        self._ends, self._budget_s = self._clock() + left_s, max(left_s, 1.0)
        for line in plan_lines(study, left_s):
            self._say(line)

    def part_begins(self, part: StudyPart, left_s: float) -> None:
        """A part begins."""
        self._count += 1
        self._part = part.name
        self._ends = self._clock() + left_s
        if not self._console.is_terminal or self._verbose:
            about = f", about {format_seconds(part.planned_s)}" if part.planned_s else ""
            self._say(f"{part.name}{about}; {_whole(left_s)} left of the budget")
        self._now("begins")

    def part_ends(self, part: StudyPart) -> None:
        """A part is over."""
        if part.state == "failed":
            self._say(f"{part.name} failed: {plain(part.why, 300)}", style="yellow")
        elif part.state in ("left out", "not needed"):
            self._say(f"{part.name}: {part.state}: {plain(part.why, 300)}")
        else:
            self._say(f"{part.name}: done in {format_seconds(part.used_s)}")

    # What verbs tell their listeners

    def planned(self, *told: Any) -> None:
        """Launches of a measurement, or in words what a search is going to do."""
        if len(told) == 1 and self._verbose:
            self._say(str(told[0]))

    def stage(self, what: str, seconds: float | None) -> None:
        """A stage of an estimate."""
        self._now(what)

    def tick(self, done: int) -> None:
        """Blocks of a stage that are done."""
        self._show()

    def begins(self, index: int, what: Point | str, *more: Any) -> None:
        """A launch, or a sample of a search."""
        if isinstance(what, Point):
            self._now(f"launch {index} {what.label}")
        else:
            self._now(f"sample {index}" if what != "confirm" else "the best one against the default")

    def steps(self, count: int) -> None:
        """Steps made in this launch."""
        self._show()

    def line(self, source: str, text: str) -> None:
        """A line of output, shown with its rank when asked for."""
        if self._show_output:
            self._console.print(f"[dim]\\[{escape(source)}][/dim] {escape(text)}", highlight=False, soft_wrap=True)

    def ends(self, outcome: Run | Failure) -> None:
        """A launch has ended."""
        if isinstance(outcome, Failure):
            self._say(f"{outcome.point.label}: failed", style="yellow")

    def remark(self, text: str) -> None:
        """Something about a profile or a probe."""
        if self._verbose:
            self._say(text)

    def continues(self, folder: Path) -> None:
        """An interrupted estimate is continued."""

    def mapped(self, prediction: Any) -> None:
        """A map is there, and its checks begin."""

    def sampled(self, *told: Any) -> None:
        """A sample is there."""
        self._show()

    def decided(self, text: str) -> None:
        """A search is over."""

    def _now(self, text: str) -> None:
        shown = encoded(escape(plain(f"{self._part}: {text}", 70)), self._console)
        if self._task is None:
            self._task = self._live.add_task(shown, total=self._budget_s, left="")
        self._live.update(self._task, description=shown)
        self._show()

    def _show(self) -> None:
        if self._task is not None:
            left_s = self._ends - self._clock()
            told = f"{_whole(left_s)} left" if left_s > 0 else f"{_whole(-left_s)} over the budget"
            self._live.update(self._task, completed=min(self._budget_s - left_s, self._budget_s), left=told)

    def _say(self, text: str, style: str = "") -> None:
        if not self._quiet:
            self._console.print(
                encoded(text, self._console), style=style or None, markup=False, highlight=False, soft_wrap=True
            )


def _whole(seconds: float) -> str:
    return format_seconds(max(round(seconds), 0)) if seconds >= 1 else "0 s"
