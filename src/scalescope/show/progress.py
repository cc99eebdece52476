"""Progress of long work: one line with the time left; a line per launch and stage only when verbose."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from scalescope.records.prediction import Prediction
from scalescope.records.run import Failure, Point, Run
from scalescope.show.prediction import sentence
from scalescope.text import plural
from scalescope.units import format_rate, format_seconds

_EVERY_S = 60.0  # Between lines where there is no live one


def progress_bar(console: Console, field: str, *, quiet: bool) -> Progress:
    """A bar with a description, one more field and the time, on terminals only."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn(f"{{task.fields[{field}]}}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


class NowAndThen:
    """Whether a line is due where no live line can be drawn, such as in a job's log: at most one a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        """Whether the last line is a minute old; the next one is then a minute away."""
        if self._clock() - self._last < _EVERY_S:
            return False
        self._last = self._clock()
        return True


class MeasureProgress:
    """Says what is going to happen, and then on one line what happens and how long the rest will take.

    Args:
        console: Where to print; one that is no terminal gets a line a minute instead of a live one.
        quiet: Say nothing.
        show_output: Show what ranks print.
        verbose: Say when each launch begins and ends.
        clock: Seconds.
    """

    def __init__(
        self,
        console: Console,
        *,
        quiet: bool,
        show_output: bool,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._quiet = quiet
        self._show_output = show_output
        self._verbose = verbose
        self._clock = clock
        self._now_and_then = NowAndThen(clock)
        self._expected = 0
        self._guess_s: float | None = None
        self._done_s: list[float] = []
        self._began = 0.0
        self._bar = progress_bar(console, "steps", quiet=quiet)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def planned(self, points: int, fewest: int, most: int, done: int, seconds: float | None) -> None:
        """Before the first launch."""
        self._expected, self._guess_s = points * fewest, seconds
        about = f"about {format_seconds(seconds)}" if seconds else "how long is known after the first"
        each = "one each" if most == 1 else f"{most} each" if fewest == most else f"{fewest} to {most} each"
        least = "at least " if fewest < most else ""
        launches = plural(points * fewest, "launch")
        text = f"{least}{launches} at {plural(points, 'point')}, {each}; "
        if done >= points * fewest:
            text += "all are there already."
        else:
            text += (f"{done} are there already; " if done else "") + f"{least}{about}."
        self._say(text[0].upper() + text[1:])

    def begins(self, index: int, point: Point, steps: int | None) -> None:
        """A launch begins."""
        self._began = self._clock()
        self._expected = max(self._expected, index)
        left = self._time_left(index)
        label = f"launch {index}/{self._expected} {escape(point.label)}" + (f", {left} left" if left else "")
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(label, total=steps, steps="starting")
        if self._verbose or (self._now_and_then.due() and not self._console.is_terminal):
            self._say(label)

    def _time_left(self, index: int) -> str:
        if self._done_s:
            return format_seconds(sum(self._done_s) / len(self._done_s) * (self._expected - index + 1))
        return format_seconds(self._guess_s) if self._guess_s else ""

    def steps(self, count: int) -> None:
        """Steps done in this launch."""
        if self._task is not None:
            self._bar.update(self._task, completed=count, steps=f"step {count}" if count else "starting")

    def line(self, source: str, text: str) -> None:
        """A line of output, shown with its rank when asked for."""
        if self._show_output:
            self._console.print(f"[dim]\\[{escape(source)}][/dim] {escape(text)}", highlight=False, soft_wrap=True)

    def ends(self, outcome: Run | Failure) -> None:
        """A launch has ended."""
        self._done_s.append(self._clock() - self._began)
        if isinstance(outcome, Failure):
            self._say(f"{escape(outcome.point.label)}: failed", style="red")
            return
        if not self._verbose:
            return
        rate = f", {format_rate(outcome.throughput)} samples/s" if outcome.throughput else ""
        self._say(f"{escape(outcome.point.label)}: {format_seconds(outcome.step_s)} a step{rate}")

    def _say(self, text: str, style: str = "") -> None:
        if not self._quiet:
            self._console.print(text, style=style or None, highlight=False)


class EstimateProgress(MeasureProgress):
    """Stages with a bar over their expected time; what is verified is told like any measurement."""

    def __init__(self, console: Console, *, quiet: bool, verbose: bool = False) -> None:
        super().__init__(console, quiet=quiet, show_output=False, verbose=verbose)
        self._stages = progress_bar(console, "done", quiet=quiet)
        self._stage: TaskID | None = None
        self._since = 0.0

    def __exit__(self, *_: object) -> None:
        self._close()
        super().__exit__()

    def stage(self, what: str, seconds: float | None) -> None:
        """A part of the work begins; about what it takes."""
        self._close()
        if self._verbose or not self._console.is_terminal:
            about = f", about {format_seconds(seconds)}." if seconds else "."
            self._say(f"{escape(what[0].upper() + what[1:])}{about}")
        self._since = self._clock()
        self._stages.start()
        self._stage = self._stages.add_task(escape(what), total=seconds, done="starting")

    def tick(self, done: int) -> None:
        """Blocks of it that are done."""
        if self._stage is not None:
            passed = self._clock() - self._since
            self._stages.update(self._stage, completed=passed, done=f"{done} timed" if done else "starting")

    def remark(self, text: str) -> None:
        """A line that stays."""
        self._say(f"{escape(text[0].upper() + text[1:])}.")

    def continues(self, folder: Path) -> None:
        """An interrupted estimate is continued."""
        self._say(f"Continuing the interrupted estimate in {escape(str(folder))}: what it finished is used again.")

    def mapped(self, prediction: Prediction) -> None:
        """What the map says before its checks."""
        self._close()
        self._say(escape(f"Before its checks: {sentence(prediction)}"))

    def planned(self, points: int, fewest: int, most: int, done: int, seconds: float | None) -> None:
        """Before the first launch of what is verified."""
        self._close()
        super().planned(points, fewest, most, done, seconds)

    def _close(self) -> None:
        if self._stage is not None:
            self._stages.remove_task(self._stage)
            self._stage = None
        self._stages.stop()
