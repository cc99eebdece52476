"""Progress of an estimate or a probe on the terminal: what is going on, and how much of its time has passed."""

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID

from scalescope.records.prediction import Prediction
from scalescope.reporting.prediction.show import show
from scalescope.reporting.progress import MeasureProgress, progress_bar
from scalescope.units import format_seconds


class EstimateProgress(MeasureProgress):
    """Stages with a bar over their expected time; what is verified is told like any measurement."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, quiet=quiet, show_output=False)
        self._stages = progress_bar(console, "done", quiet=quiet)
        self._stage: TaskID | None = None
        self._since = 0.0

    def __exit__(self, *_: object) -> None:
        self._close()
        super().__exit__()

    def stage(self, what: str, seconds: float | None) -> None:
        """A part of the work begins; about what it takes."""
        self._close()
        self._say(f"{escape(what[0].upper() + what[1:])}" + (f", about {format_seconds(seconds)}." if seconds else "."))
        self._since = time.monotonic()
        self._stages.start()
        self._stage = self._stages.add_task(escape(what), total=seconds, done="starting")

    def tick(self, done: int) -> None:
        """Blocks of it that are done."""
        if self._stage is not None:
            passed = time.monotonic() - self._since
            self._stages.update(self._stage, completed=passed, done=f"{done} timed" if done else "starting")

    def remark(self, text: str) -> None:
        """A line that stays."""
        self._say(f"{escape(text[0].upper() + text[1:])}.")

    def continues(self, folder: Path) -> None:
        """An interrupted estimate is continued."""
        self._say(f"Continuing the interrupted estimate in {escape(str(folder))}: what it finished is used again.")

    def mapped(self, prediction: Prediction) -> None:
        """The map before its checks."""
        self._close()
        if not self._quiet:
            show(prediction, self._console)
            self._console.print()

    def planned(self, points: int, fewest: int, most: int, done: int, seconds: float | None) -> None:
        """Before the first launch of what is verified."""
        self._close()
        super().planned(points, fewest, most, done, seconds)

    def _close(self) -> None:
        if self._stage is not None:
            self._stages.remove_task(self._stage)
            self._stage = None
        self._stages.stop()
