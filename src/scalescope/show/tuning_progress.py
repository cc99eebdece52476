"""Progress of a search for better knobs on the terminal."""

import math
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID
from rich.text import Text

from scalescope.records.tuning import Phase, Sample, Values
from scalescope.show.progress import NowAndThen
from scalescope.show.terminal import encoded
from scalescope.show.tuning import setting_words, times, with_error
from scalescope.text import plain
from scalescope.units import format_change, format_seconds


class _LiveLine(ProgressColumn):
    """What is going on, how many steps were made, and the time; of what does not fit the steps go first."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        """The line as it is now."""
        minutes, seconds = divmod(int(task.elapsed or 0.0), 60)
        tail = f" · {minutes}:{seconds:02d}"
        now = Text(task.description, no_wrap=True)
        room = self._console.width - len(tail) - 4
        if now.cell_len + len(task.fields["steps"]) <= room:
            tail = task.fields["steps"] + tail
        now.truncate(max(10, room), overflow="ellipsis")
        return now.append(encoded(tail, self._console), style="dim")


class TuneProgress:
    """Progress listener of a search: one live line on a terminal, a line a minute elsewhere, all samples when verbose.

    The search calls `planned` before long work, `begins` and `sampled` around every sample, `steps` and `line` while
    ranks run, and `decided` at the end. Inside of `with`.
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
        self._began: float | None = None
        self._now_and_then = NowAndThen(clock)
        self._best = 1.0
        self._default: Values = {}
        self._confirmed: dict[int, dict[bool, float]] = {}
        self._blocks = 0
        self._live = Progress(
            SpinnerColumn("line"),
            _LiveLine(console),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def planned(self, text: str) -> None:
        """Before long work: what comes and about how long it takes."""
        self._say(text)

    def begins(self, index: int, phase: Phase, values: Values, most: int) -> None:
        """A sample begins; `most` is the largest number of samples before the confirmation."""
        where = f"sample {index} of at most {most}{self._time_left(index, most)}"
        if phase == "default":
            self._default = dict(values)
            self._now(f"{where} · the default, which others are compared with")
        elif phase == "search":
            self._now(f"{where} · best so far {times(self._best)} · now {setting_words(values)}")
        else:
            self._now(f"confirming: pair {self._blocks // 2 + 1}{self._so_far()} · now {setting_words(values)}")

    def _time_left(self, index: int, most: int) -> str:
        """` · at most 3 min left`, by the samples so far; the confirmation is not in it."""
        if self._began is None:
            self._began = self._clock()
            return ""
        each = (self._clock() - self._began) / max(1, index)
        left = each * max(0, most - index)
        return f" · at most {format_seconds(left)} left" if left >= 1 else ""

    def steps(self, count: int) -> None:
        """Steps that the training has made."""
        if self._task is not None:
            self._live.update(self._task, steps=f" · step {count:,}" if count else "")

    def line(self, source: str, text: str) -> None:
        """A line of output, shown with its rank when asked for."""
        if self._show_output:
            self._console.print(f"[dim]\\[{escape(source)}][/dim] {escape(text)}", highlight=False, soft_wrap=True)

    def sampled(self, sample: Sample, best: float, default_step_s: float | None) -> None:
        """A sample has ended; `best` is the default's step over the fastest one so far."""
        self._best = best
        if sample.phase == "confirm":
            self._blocks += 1
            if sample.pair is not None and sample.step_s:
                sides = self._confirmed.setdefault(sample.pair, {})
                sides[sample.values == self._default] = sample.step_s
        if self._verbose or (self._now_and_then.due() and not self._console.is_terminal):
            self._say(self._told(sample, default_step_s))

    def decided(self, text: str) -> None:
        """The search has ended."""
        if self._task is not None:
            self._live.remove_task(self._task)
            self._task = None
        self._say(text)

    def _told(self, sample: Sample, default_step_s: float | None) -> str:
        """`sample 4: bucket_cap_mb 1: 353 ± 4 ms, 1.58x faster than the default; best so far`."""
        where = f"sample {sample.index}"
        if sample.phase == "confirm":
            where = "confirming" + (f", pair {sample.pair + 1}" if sample.pair is not None else "")
        told = f"{where}: {setting_words(sample.values)}: "
        if sample.step_s is None:
            return f"{told}failed: {plain(sample.problem, 200) or 'no step was measured'}"
        told += with_error(sample.step_s, sample.error_s)
        if sample.phase == "confirm":
            complete = len(self._confirmed.get(-1 if sample.pair is None else sample.pair, {})) == 2
            return told + (self._so_far() if complete else "")
        if default_step_s and sample.values != self._default:
            told += f", {_against(default_step_s / sample.step_s)}"
        return told + (f"; {plain(sample.decision, 100)}" if sample.decision else "")

    def _so_far(self) -> str:
        """` · +12 % so far`: of the pairs whose two sides are known."""
        logs = [math.log(sides[True] / sides[False]) for sides in self._confirmed.values() if len(sides) == 2]
        return f" · {format_change(math.exp(sum(logs) / len(logs)) - 1)} so far" if logs else ""

    def _now(self, text: str) -> None:
        """Put this on the live line."""
        shown = encoded(text, self._console)
        if self._task is None:
            self._task = self._live.add_task(shown, total=None, steps="")
        else:
            self._live.update(self._task, description=shown)

    def _say(self, text: str) -> None:
        if text and not self._quiet:
            self._console.print(Text(encoded(text, self._console)), highlight=False, soft_wrap=True)


def _against(factor: float) -> str:
    """`1.58x faster than the default`, `2.09x slower than the default`."""
    return f"{times(factor)} faster than the default" if factor >= 1 else f"{times(1 / factor)} slower than the default"
